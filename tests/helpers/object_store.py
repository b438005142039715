"""An object store on a loopback port: moto's S3, behind a door that counts, turns away and cuts off as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


@dataclass
class Request:
    """What was asked, and how many bytes were sent in answer."""

    method: str
    path: str
    bytes: int = 0


@dataclass
class ObjectStore:
    """The door. ``slow_down``, ``cut``: whether to answer a request with 503, or with half of what it is due."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    slow_down: Callable[[Request], bool] = lambda _: False
    cut: Callable[[Request], bool] = lambda _: False
    _lock: Any = field(default_factory=threading.Lock)

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        with self._lock:
            self.requests.append(request)
            slow_down, cut = self.slow_down(request), self.cut(request)
        if slow_down:
            start("503 Slow Down", [("Content-Type", "application/xml"), ("Content-Length", str(len(SLOW_DOWN)))])
            return [SLOW_DOWN]
        body = b"".join(_APP(environ, start))
        if cut:
            body = body[: len(body) // 2]  # the length that was announced is longer
        request.bytes = len(body) if request.method == "GET" else 0
        return [body]

    def environment(self) -> dict[str, str]:
        """The variables through which it is reached."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "2",
        }

    def read(self, suffix: str) -> int:
        """Bytes of objects of which the names end so that were sent."""
        return sum(request.bytes for request in self.requests if request.path.endswith(suffix))

    def written(self) -> list[str]:
        """Parts of tables that were written."""
        return [request.path for request in self.requests if request.method == "PUT" and "/.parts/" in request.path]


class _Quiet(WSGIRequestHandler):
    def log(self, *_: Any) -> None:
        pass


_APP = DomainDispatcherApplication(create_backend_app)


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Run a store."""
    door = ObjectStore()
    server = make_server("127.0.0.1", 0, door, threaded=True, request_handler=_Quiet)
    door.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield door
    finally:
        server.shutdown()
        thread.join()

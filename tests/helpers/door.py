"""A server on a loopback port that counts, turns away and cuts off as a test wants, in front of an application."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server

SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


@dataclass
class Request:
    """What was asked, and how many bytes were sent in answer."""

    method: str
    path: str
    bytes: int = 0


@dataclass
class Door:
    """The door. ``slow_down``, ``cut``: whether to answer a request with 503, or with half of what it is due."""

    app: Callable[..., Iterable[bytes]]
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
        body = b"".join(self.app(environ, start))
        if cut:
            body = body[: len(body) // 2]  # the length that was announced is longer
        request.bytes = len(body) if request.method == "GET" else 0
        return [body]

    def read(self, suffix: str) -> int:
        """Bytes of objects of which the names end so that were sent."""
        return sum(request.bytes for request in self.requests if request.path.endswith(suffix))

    def reset(self) -> None:
        """Forget what was asked, and answer everything."""
        self.slow_down = self.cut = lambda _: False
        self.requests.clear()


def once(suffix: str) -> tuple[Callable[[Request], bool], list[Request]]:
    """Return what is true of the first request for bytes of an object of which the name ends so, and which it was."""
    met: list[Request] = []

    def first(request: Request) -> bool:
        if request.method == "GET" and request.path.endswith(suffix) and not met:
            met.append(request)
            return True
        return False

    return first, met


class _Quiet(WSGIRequestHandler):
    # Without it a connection is closed after every answer; clients of the genuine services keep theirs.
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:
        pass


@contextmanager
def opened(door: Door) -> Iterator[None]:
    """Run a server in front of the door's application."""
    server = make_server("127.0.0.1", 0, door, threaded=True, request_handler=_Quiet)
    door.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()

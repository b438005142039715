"""The workers of a Ray cluster as a ``Pool``: a call whose worker is lost is made again, on another one.

Nodes must have this package installed, and see the run and the folder of tables under the same paths or URLs.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from typing import Any

from staleness_audit.errors import AuditError, OptionalReaderMissing, Unreachable
from staleness_audit.limits import environment, seldom_collect

RETRIES = 5
"""How often a call is made again whose worker died, or which could not reach a file."""


class Cluster:
    """A connection to a Ray cluster; made by ``connected``."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self.width = max(1, int(ray.cluster_resources().get("CPU", 1)))
        options = {"num_cpus": 1, "max_retries": RETRIES, "retry_exceptions": [Unreachable]}
        self._call = ray.remote(**options)(_call)
        # A worker is one of many on its node: it takes one core, unless told otherwise.
        self._environment = {"STALENESS_AUDIT_THREADS": "1", "POLARS_MAX_THREADS": "1", **environment()}

    def share(self, value: Any) -> Any:
        """See ``Pool``."""
        return self._ray.put(value)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """See ``Pool``."""
        future: Future[Any] = self._call.remote(self._environment, function, *arguments).future()
        return future

    def each(self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """See ``Pool``."""
        for future in as_completed([self.submit(function, *arguments) for arguments in calls]):
            yield future.result()


def _call(environment: dict[str, str], function: Callable[..., Any], *arguments: Any) -> Any:
    os.environ.update(environment)
    seldom_collect()
    return function(*arguments)


def _knock(address: str | None) -> None:
    """Raise ``OSError`` if nobody listens at ``HOST:PORT``: Ray would go on trying for minutes."""
    where = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address or "")
    if where:
        socket.create_connection((where[1], int(where[2])), timeout=10).close()


@contextmanager
def connected(address: str | None = None) -> Iterator[Cluster]:
    """Connect to a cluster; without any, start one on this machine.

    ``address``: as Ray's own (``auto``, ``HOST:PORT``, ``ray://HOST:PORT``); default: the cluster this process is
    connected to already, else ``RAY_ADDRESS``.

    Raises:
        OptionalReaderMissing: Ray is not installed.
        AuditError: there is no cluster at the address.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise OptionalReaderMissing("--engine ray needs an extra: pip install 'staleness-audit[ray]'.") from error
    if ray.is_initialized() and address is None:
        yield Cluster(ray)
        return
    ray_init: Callable[..., Any] = ray.init
    address = address or os.environ.get("RAY_ADDRESS")
    alone = {} if address else {"include_dashboard": False}
    try:
        _knock(address)
        ray_init(address=address, logging_level="ERROR", log_to_driver=False, **alone)
    except (OSError, ValueError, RuntimeError) as error:
        said = " ".join(str(error).split())[:200]
        raise AuditError(f"--ray-address {address}: no Ray cluster answers ({said}).") from error
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()

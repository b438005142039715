"""Who does the work that can be divided: this process, or the workers of a Ray cluster (``cluster.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol


class Pool(Protocol):
    """Calls functions elsewhere. What a function leaves behind must be where this process sees it.

    ``width``: how many it calls at a time.
    """

    width: int

    def share(self, value: Any) -> Any:
        """Return what stands for a large argument of many calls, so that it is sent once."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call."""

    def each(self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the results of calls as they are done."""


class Here:
    """Makes the calls in the process itself, one after the other."""

    width = 1

    def share(self, value: Any) -> Any:
        """See ``Pool``."""
        return value

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """See ``Pool``."""
        done: Future[Any] = Future()
        done.set_result(function(*arguments))
        return done

    def each(self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """See ``Pool``."""
        for arguments in calls:
            yield function(*arguments)

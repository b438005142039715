"""The turns of a watch: refresh, show, wait; until somebody says stop or the run is over."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from staleness_audit.errors import AuditError
from staleness_audit.watch.follow import Follower
from staleness_audit.watch.state import State

Show = Callable[[State], None]
Waits = Callable[[AuditError], None]


def watch(
    follower: Follower,
    shows: Sequence[Show],
    stop: threading.Event,
    *,
    every: float,
    until_finished: bool,
    waits: Waits | None = None,
) -> None:
    """Take turns until ``stop`` is set, or the run says that it has ended if ``until_finished``.

    A turn begins ``every`` seconds after the last one began, but a watch whose refreshes are slow rests as long as it
    has worked: it runs beside the training and must leave it the machine. What was written in the last rest is looked
    at after ``stop``, so that nothing that the closing audit proves goes by without an alert. ``waits`` is told why
    there is no run yet that can be read; without it, that ends the watch.
    """
    last = False
    while not last:
        last = stop.is_set()
        begun = time.monotonic()
        try:
            state = follower.refresh()
        except AuditError as error:
            if waits is None or last:
                raise
            waits(error)
            stop.wait(every)
            continue
        for show in shows:
            show(state)
        if until_finished and state.over:
            return
        follower.settle()
        worked = time.monotonic() - begun
        stop.wait(max(every - worked, min(worked, every * 30)))


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C (or SIGTERM) sets; the second interrupts as usual."""
    stop = threading.Event()
    before = {which: signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)}

    def ask(which: int, _: object) -> None:
        stop.set()
        signal.signal(which, before[signal.Signals(which)])

    for which in before:
        signal.signal(which, ask)
    try:
        yield stop
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)

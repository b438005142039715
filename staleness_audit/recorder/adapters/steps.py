"""What adapters share: batches become steps, names travel with tensors, and no error reaches the training.

A trainer that takes batch after batch in one thread says with each new batch that an earlier one is over. Until then
its ``trained`` lines are unconfirmed, which the audit counts in upper ends only.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from staleness_audit.recorder.recorder import Recorder


@contextmanager
def unharmed(record: Recorder) -> Iterator[None]:
    """Let no error of the recording reach the training; what was missed leaves a gap in the log's numbers."""
    try:
        yield
    except Exception as error:
        record.missed(error)


class Batches:
    """Writes the batches that a trainer takes: ``trained`` for their rows at once, ``step`` when the step is over.

    Arguments:
        record: where to.
        ahead: batches that may be taken while a step still trains (0: taking the next one means that it is over).
    """

    def __init__(self, record: Recorder, ahead: int = 0) -> None:
        self.record = record
        self._ahead = ahead
        self._lock = threading.Lock()
        self._open: dict[int, dict[str, Any]] = {}

    def took(self, step: int, version: int, rows: Iterable[tuple[str, int | None]]) -> None:
        """``step`` takes rows (names; loss tokens or None) and starts from ``version``; may be said in parts."""
        with self._lock:
            for done in sorted(self._open):
                if done < step - self._ahead:
                    self._close(done)
            opened = self._open.setdefault(step, {"version": version, "started": time.time(), "count": 0, "loss": 0})
            for name, loss in rows:
                self.record.trained(name, step, **({} if loss is None else {"loss_tokens": loss}))
                opened["count"] += 1
                opened["loss"] = None if loss is None or opened["loss"] is None else opened["loss"] + loss

    def over(self) -> None:
        """All steps so far are over; to be said when the training has ended."""
        with self._lock:
            for step in sorted(self._open):
                self._close(step)

    def _close(self, step: int) -> None:
        closed = self._open.pop(step)
        stated = {} if closed["loss"] is None else {"loss_tokens": closed["loss"]}
        self.record.step(step, closed["version"], started=closed["started"], trajectories=closed["count"], **stated)


_numbers = count(1)
_process: tuple[int, int] | None = None


def new_tag() -> tuple[int, int]:
    """Return two whole numbers, exact as 32-bit floats, that name a trajectory among all processes of a run.

    The first is drawn at random in each process (from 2^24, so that a hundred processes collide once in 3000 runs).
    """
    global _process  # noqa: PLW0603 - one of each process
    if _process is None or _process[0] != os.getpid():
        _process = (os.getpid(), int.from_bytes(os.urandom(3), "big"))
    return _process[1], next(_numbers)


def tag_name(tag: Sequence[Any]) -> str:
    """Return the trajectory id of a tag, also of one that has been in tensors meanwhile."""
    process, number = (int(part) for part in tag)
    return f"{process:06x}-{number}"

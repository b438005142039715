"""The recorder: takes events from any thread of a process and never troubles the training loop.

*Buffered* (the default): an event costs its caller an append to a list; a background thread makes lines of the list and
writes them at most ``INTERVAL`` later. If the disk can't follow, the list fills, and events beyond ``capacity`` are
not kept. *Durable*: the caller makes the line and writes it, one write per event.

Either way an event takes its number when it is recorded, so what never reaches the file leaves a gap in the
numbers: the audit then says that lines are missing instead of judging without them.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from operator import index
from pathlib import Path
from time import time
from types import TracebackType
from typing import Any

from staleness_audit.recorder.files import LogFiles
from staleness_audit.recorder.lines import PLAIN, event_line, plain, plain_config

INTERVAL = 0.05
"""Seconds between an event and the write that holds it; half of the 100 ms promised, for the machine's sake."""

COMPRESSED_WITHIN = 5.0
"""Seconds that ``close`` waits for full files to be compressed, so that the end line can say which could not be."""

_LOGGER = logging.getLogger("staleness_audit.recorder")
_recorders: set[Recorder] = set()


@dataclass(frozen=True)
class Stats:
    """Events of this process: ``written``, ``dropped`` as the buffer was full, ``failed`` to be made or written.

    ``uncompressed``: full files that should have been compressed and could not be; nothing is lost by that.
    """

    written: int
    dropped: int
    failed: int
    uncompressed: int = 0


class Recorder:
    """Writes the events of this process. One is enough for all of its threads and coroutines.

    No method raises: what can't be recorded is counted (``stats``), logged once as a warning, and shows in the log as a
    gap. A forked child writes a file of its own from its first event on; pickled (for a spawned process, a Ray actor)
    the recorder arrives as a fresh one. ``close`` writes the end line, without which the audit can't pass; it is called
    when the interpreter exits, but nothing calls it when a process is killed.

    Every event takes any further field of ``docs/events.md`` by name, ``ts`` among them (default: now; None: unknown).

    Arguments:
        folder: where the files go; several processes share it.
        writer: what this process is, for instance ``"rollout"``; host, process and a number are added.
        durable: one write per event instead of the buffer.
        capacity: events that the buffer holds.
        rotate_bytes: begin a new file when one has reached this size.
        compress: compress full files with zstd if a module for it is there.
        framework, bound, unit, config, attempt, resumed_after, groups_per_step: of the header (``docs/events.md``);
            give the same to all processes of a launch.
        unseen: fates that no process of the run records, see the method of this name.

    Raises ``TypeError`` or ``ValueError`` if a number among these is none; nothing is written before the first event.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        writer: str = "writer",
        *,
        durable: bool = False,
        capacity: int = 1 << 16,
        rotate_bytes: int | None = None,
        compress: bool = False,
        framework: str | None = None,
        bound: int | None = None,
        unit: str | None = None,
        config: dict[str, Any] | None = None,
        attempt: int | None = None,
        resumed_after: int | None = None,
        groups_per_step: int | None = None,
        unseen: Iterable[str] = (),
    ) -> None:
        numbers = {
            "bound": bound,
            "attempt": attempt,
            "resumed_after": resumed_after,
            "groups_per_step": groups_per_step,
        }
        header = {name: None if number is None else _whole(name, number) for name, number in numbers.items()}
        self._folder = Path(folder).absolute()
        self._writer = str(writer)
        self._durable = durable
        self._capacity = _whole("capacity", capacity, least=1)
        self._rotate_bytes = None if rotate_bytes is None else _whole("rotate_bytes", rotate_bytes, least=1)
        self._compress = compress
        self._header: dict[str, Any] = {
            "framework": None if framework is None else str(framework),
            "unit": None if unit is None else str(unit),
            "clock": "epoch",
            "config": None if config is None else plain_config(config),
            "unseen": _fates([unseen] if isinstance(unseen, str) else unseen),
            **header,
        }
        self._begin()

    def _begin(self) -> None:
        """Be as new: at the start, and in a forked child, whose parent writes what was buffered."""
        self._pid = os.getpid()
        # Reentrant, as a signal handler may record while the main thread does.
        self._lock = threading.RLock()  # of the buffer and the numbers; held for moments
        self._writing = threading.RLock()  # of the files; held while the disk is slow
        self._wanted = threading.Event()
        self._hurry = threading.Event()
        self._flusher: threading.Thread | None = None
        self._numbers = count(1)
        self._buffer: list[tuple[str, int, dict[str, Any]]] = []
        self._direct = self._durable
        self._files = LogFiles(
            self._folder, self._writer, self._header, self._rotate_bytes, self._compress, self._not_compressed
        )
        self._written = self._dropped = self._failed = self._uncompressed = 0
        self._ended = self._warned = self._known = False

    def __reduce__(self) -> tuple[Any, ...]:
        header = {name: value for name, value in self._header.items() if name != "clock"}
        header["unseen"] = header["unseen"] or ()
        options = {
            "durable": self._durable,
            "capacity": self._capacity,
            "rotate_bytes": self._rotate_bytes,
            "compress": self._compress,
        }
        return _rebuilt, (str(self._folder), self._writer, {**options, **header})

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def stats(self) -> Stats:
        """What was written and what was not, in this process."""
        return Stats(self._written, self._dropped, self._failed, self._uncompressed)

    def event(self, kind: str, /, **fields: Any) -> None:
        """Record an event of any kind."""
        try:
            if "ts" not in fields:
                fields["ts"] = time()
            for value in fields.values():
                if value.__class__ not in PLAIN:
                    # Now, as a list or an array may change after the call.
                    fields = {name: plain(value) for name, value in fields.items()}
                    break
            self._record(kind, fields)
        except Exception as error:
            self.missed(error)

    def _record(self, kind: str, fields: dict[str, Any]) -> None:
        if not self._known:
            self._make_known()
        if not self._direct:
            with self._lock:
                kept = not self._direct
                first = kept and self._keep(kind, fields)
            if first:
                self._wake()
            if kept:
                return
        with self._writing:
            number = next(self._numbers)
            try:
                _, error = self._files.append(event_line(kind, number, fields))
            except Exception as refused:
                self._fail(1, refused)
                return
            if error is None:
                self._written += 1
                self._ended = False
            else:
                self._fail(1, error)

    def _keep(self, kind: str, fields: dict[str, Any]) -> bool:
        """Put an event into the buffer, or count it if there is no room; return whether it is the first one there."""
        number = next(self._numbers)
        buffer = self._buffer
        if len(buffer) >= self._capacity:
            self._dropped += 1
            self._ended = False
            self._warn("its buffer is full; events are dropped (their numbers are missing in the log)")
            return False
        buffer.append((kind, number, fields))
        if len(buffer) == self._capacity >> 1:
            self._hurry.set()
        return len(buffer) == 1

    def unseen(self, *fates: str) -> None:
        """Say in the header which fates (``dropped``, ``cancelled``, ``lost``, ``pending``) are not recorded.

        Without it, the audit takes a fate that is not in the log for one that nothing met. Adapters say it. If it comes
        after the first event, a new file begins, whose header says so.
        """
        with self._writing:
            said = _fates([*(self._header["unseen"] or ()), *fates])
            if said != self._header["unseen"]:
                self._header["unseen"] = said
                self._files.end_part()

    def missed(self, error: Exception) -> None:
        """Something happened that could not be made an event (an adapter met what it does not know): leave a gap."""
        if not self._known:
            self._make_known()  # it may be all that this process has to tell
        next(self._numbers)
        self._fail(1, error)

    def flush(self) -> None:
        """Write what is buffered, now."""
        try:
            with self._writing:
                with self._lock:
                    batch, self._buffer = self._buffer, []
                self._write(batch)
        except Exception as error:
            self._fail(0, error)

    def close(self) -> None:
        """Write what is buffered and the end line, and close the file. An event after it opens the file again."""
        try:
            with self._writing:
                with self._lock:
                    batch, self._buffer = self._buffer, []
                    idle = not batch and (self._ended or not (self._files.begun or self._dropped or self._failed))
                    number = 0 if idle else next(self._numbers)
                    # A late event that a kill could still take from the buffer would be missed behind an end line.
                    self._direct = True
                self._write(batch)
                if number:
                    self._files.settle(COMPRESSED_WITHIN)
                    lacking = {
                        "unwritten": self._dropped + self._failed or None,
                        "uncompressed": self._uncompressed or None,
                    }
                    self._write([("end", number, lacking)])
                self._files.close()
            _recorders.discard(self)
            self._known = False
            self._wanted.set()  # the background thread finds nothing left to do
            self._hurry.set()
        except Exception as error:
            self._fail(0, error)

    def _write(self, batch: list[tuple[str, int, dict[str, Any]]]) -> None:
        """Make lines of events and append them; those that fail are counted."""
        lines = []
        for kind, number, fields in batch:
            try:
                lines.append(event_line(kind, number, fields))
            except Exception as unfit:  # one bad event must not take the others with it
                self._fail(1, unfit)
        if not lines:
            return
        data = b"".join(lines)
        ends = batch[-1][0] == "end"
        written = 0
        error: Exception | None
        try:
            if self._files.removed():
                self._files.end_part()
                self._warn("its file was removed; it goes on in a new one, and what the old one said is missing")
            written, error = self._files.append(data)
        except Exception as refused:
            error = refused
        self._ended = ends and error is None
        whole = len(lines) - ends
        if error is not None:
            whole = data.count(b"\n", 0, written)
            self._fail(len(lines) - ends - whole, error)
        self._written += whole

    def _make_known(self) -> None:
        """Be closed at the exit of this process, and begin anew in its forks."""
        if os.getpid() != self._pid:  # made, or closed, in a parent
            self._begin()
        self._known = True
        _recorders.add(self)
        if "multiprocessing.util" in sys.modules:
            # Its children leave without running atexit's functions (before Python 3.13), but run these.
            sys.modules["multiprocessing.util"].Finalize(self, self.close, exitpriority=0)

    def _wake(self) -> None:
        """Tell the background thread that the buffer is not empty any more; start it if there is none."""
        self._wanted.set()
        if self._flusher is None or not self._flusher.is_alive():
            with self._lock:
                if self._flusher is None or not self._flusher.is_alive():
                    self._flusher = threading.Thread(target=self._run, name="staleness-recorder", daemon=True)
                    try:
                        self._flusher.start()
                    except RuntimeError:  # the interpreter is shutting down
                        self._flusher = None
        if self._flusher is None:
            self.flush()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            self._hurry.wait(INTERVAL)
            self._hurry.clear()
            self.flush()
            if self._direct:
                return

    def _fail(self, events: int, error: Exception) -> None:
        with self._lock:
            self._failed += events
            self._ended = self._ended and not events
        self._warn(f"{error} ({type(error).__name__}); the events' numbers are missing in the log")

    def _not_compressed(self, error: Exception) -> None:
        with self._lock:
            self._uncompressed += 1
            first = self._uncompressed == 1
        if first:
            with suppress(Exception):
                _LOGGER.warning(
                    "Recorder %s in %s: a full file was left uncompressed: %s (%s). Further ones are only counted.",
                    self._writer,
                    self._folder,
                    error,
                    type(error).__name__,
                )

    def _warn(self, why: str) -> None:
        """Say it once: a full disk would otherwise fill the console too."""
        if not self._warned:
            self._warned = True
            with suppress(Exception):
                _LOGGER.warning(
                    "Recorder %s in %s: %s. Further losses are only counted.", self._writer, self._folder, why
                )

    # What a run does. All arguments may be left out where they are not known; the audit then says what it misses.

    def admitted(self, trajectory_id: Any = None, group_id: Any = None, **fields: Any) -> None:
        """Generation may begin; also ``role`` (``"eval"`` counts nowhere), ``prompt_tokens``."""
        self.event("admitted", trajectory_id=trajectory_id, group_id=group_id, **fields)

    def started(self, trajectory_id: Any = None, **fields: Any) -> None:
        """Generation begins."""
        self.event("started", trajectory_id=trajectory_id, **fields)

    def paused(self, trajectory_id: Any = None, **fields: Any) -> None:
        """Generation is interrupted."""
        self.event("paused", trajectory_id=trajectory_id, **fields)

    def resumed(self, trajectory_id: Any = None, **fields: Any) -> None:
        """Generation goes on."""
        self.event("resumed", trajectory_id=trajectory_id, **fields)

    def span(self, trajectory_id: Any = None, tokens: Any = None, version: Any = None, **fields: Any) -> None:
        """Tokens that the policy sampled one after another with the weights of ``version``; or ``versions``, a list."""
        self.event("span", trajectory_id=trajectory_id, tokens=tokens, version=version, **fields)

    def finished(self, trajectory_id: Any = None, **fields: Any) -> None:
        """Generation is over."""
        self.event("finished", trajectory_id=trajectory_id, **fields)

    def enqueued(self, trajectory_id: Any = None, **fields: Any) -> None:
        """It waits for the trainer."""
        self.event("enqueued", trajectory_id=trajectory_id, **fields)

    def sampled(self, trajectory_id: Any = None, **fields: Any) -> None:
        """It was taken into a batch; whether it was trained, only ``trained`` says."""
        self.event("sampled", trajectory_id=trajectory_id, **fields)

    def dropped(self, trajectory_id: Any = None, reason: Any = None, **fields: Any) -> None:
        """Discarded by a rule after generation was over (``"stale"``, ``"zero_advantage"``, ``"filtered"``, ...)."""
        self.event("dropped", trajectory_id=trajectory_id, reason=reason, **fields)

    def cancelled(self, trajectory_id: Any = None, reason: Any = None, **fields: Any) -> None:
        """Stopped by a rule before generation was over."""
        self.event("cancelled", trajectory_id=trajectory_id, reason=reason, **fields)

    def lost(self, trajectory_id: Any = None, reason: Any = None, **fields: Any) -> None:
        """Failed, or gone while the run went on."""
        self.event("lost", trajectory_id=trajectory_id, reason=reason, **fields)

    def requeued(self, trajectory_id: Any = None, **fields: Any) -> None:
        """Taken up again after a drop, a cancellation or a loss."""
        self.event("requeued", trajectory_id=trajectory_id, **fields)

    def trained(self, trajectory_id: Any = None, step: Any = None, **fields: Any) -> None:
        """It was in the batch of ``step``; ``loss_tokens`` if not all that its spans say."""
        self.event("trained", trajectory_id=trajectory_id, step=step, **fields)

    def step(self, step: Any = None, version: Any = None, **fields: Any) -> None:
        """A step is complete that started from ``version``; ``trajectories`` and ``loss_tokens`` betray lost lines."""
        self.event("step", step=step, version=version, **fields)

    def sync(self, version: Any = None, **fields: Any) -> None:
        """Weights were published."""
        self.event("sync", version=version, **fields)


def _whole(name: str, number: Any, least: int | None = None) -> int:
    """Return an option's whole number; say which option it is if it is none."""
    try:
        whole = index(number)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {number!r}") from None
    if least is not None and whole < least:
        raise ValueError(f"{name} must be {least} or more, not {whole}")
    return whole


def _fates(unseen: Iterable[str]) -> list[str] | None:
    """Fates as the header names them; None for no fate."""
    return sorted(set(map(str, unseen))) or None


def _rebuilt(folder: str, writer: str, options: dict[str, Any]) -> Recorder:
    """Unpickle a recorder."""
    return Recorder(folder, writer, **options)


def _close_all() -> None:
    for recorder in list(_recorders):
        recorder.close()


def _begin_anew() -> None:
    """In a forked child: the parent keeps its files, its numbers, and what it has buffered."""
    for recorder in list(_recorders):
        recorder._files.close()
        recorder._begin()
    _recorders.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)

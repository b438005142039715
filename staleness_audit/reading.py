"""Who reads the units of a run: this process, others of this machine beside it, or a pool (``pool.py``)."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from queue import SimpleQueue
from threading import Event, Lock, Thread
from time import perf_counter

from staleness_audit.discovery import RunFiles
from staleness_audit.errors import UnreadableInput
from staleness_audit.limits import seldom_collect
from staleness_audit.parser import Parser, Unit
from staleness_audit.pool import Pool
from staleness_audit.sink import PartWriter
from staleness_audit.store import Store

WORTH_SECONDS = 1.0
WORTH_BYTES = 32 << 20
"""Worker processes, which import everything anew, are started when as much is left to be read as has taken
``WORTH_SECONDS`` already, or before a unit of ``WORTH_BYTES``."""

Keyed = tuple[str, Unit]
"""A unit and the name of its parts."""
Progress = Callable[[int, int, str], None]
"""Called with (units done, units in all, what is being read)."""


@dataclass(frozen=True)
class Work:
    """What reading a unit takes beside it; worker processes are given it once."""

    parser: Parser
    run: RunFiles
    kept: Store

    def read(self, key: str, unit: Unit) -> None:
        """Read one unit; its parts appear only when they are whole."""
        with self.kept.fresh(key) as folder, PartWriter(folder) as sink:
            self.parser.read(unit, self.run, sink)
        self.run.forget(unit.pieces)


class Counter:
    """Tells ``progress`` how many of the units planned so far are done, whichever thread has done them."""

    def __init__(self, progress: Progress | None) -> None:
        self.planned = 0
        self._progress = progress
        self._done = 0
        self._lock = Lock()

    def ended(self, unit: Unit, _: Future[None]) -> None:
        """Count a unit that a pool was asked to read."""
        self.done(unit)

    def done(self, unit: Unit) -> None:
        """Count a unit."""
        with self._lock:
            self._done += 1
            if self._progress:
                self._progress(self._done, self.planned, unit.pieces[0].source if unit.pieces else unit.kind)


def read_here(work: Work, todo: Iterator[Keyed], counter: Counter) -> None:
    """Read units in this process, one after the other."""
    for key, unit in todo:
        work.read(key, unit)
        counter.done(unit)


def read_together(work: Work, workers: int, todo: Iterator[Keyed], counter: Counter, *, at_once: bool) -> None:
    """Read units here and by ``workers - 1`` others beside: processes as soon as they are worth it, or ``at_once``.

    Parsers whose work is done by libraries outside the interpreter lock are given threads. Everybody takes the next
    unit when one is read, so that all are done at about the same time.
    """
    threads = not getattr(work.parser, "uses_processes", True)
    if not threads and not at_once:
        todo = chain(_read_until_worth(work, todo, counter), todo)
    begun = next(todo, None)
    if begun is None:
        return
    waiting: SimpleQueue[Keyed | None] = SimpleQueue()
    failed = Event()

    def take(read: Callable[[str, Unit], object], *, once: bool = False) -> None:
        try:
            while not failed.is_set() and (found := waiting.get()) is not None:
                read(*found)
                counter.done(found[1])
                if once:
                    return
        except BaseException:
            failed.set()
            raise

    pool: AbstractContextManager[Executor | None] = nullcontext() if threads else processes(work, workers - 1)
    with pool as others, ThreadPoolExecutor(workers - 1) as hands:
        read = work.read if others is None else partial(_read_by, others)
        helping = [hands.submit(take, read) for _ in range(workers - 1)]
        try:
            for found in chain((begun,), todo):
                waiting.put(found)
                # What was fetched waits on the disk: no more of it than keeps everybody at work.
                if work.run.spool and waiting.qsize() > workers:
                    take(work.read, once=True)
        except BaseException:
            failed.set()
            raise
        finally:
            for _ in range(workers):
                waiting.put(None)
        take(work.read)
        for each in helping:
            each.result()


def _read_until_worth(work: Work, todo: Iterator[Keyed], counter: Counter) -> list[Keyed]:
    """Read units until worker processes are worth starting; return those looked at that are left (none: all are read).

    A unit costs what its bytes have cost so far: how fast formats are read differs by a factor of thirty.
    """
    spent, size, left, ahead = 0.0, 0, list[Keyed](), 0
    for key, unit in todo:
        if left or spent >= WORTH_SECONDS or _bytes(unit) >= WORTH_BYTES:
            left.append((key, unit))
            ahead += _bytes(unit)
            if len(left) > 1 and ahead >= (size if spent >= WORTH_SECONDS else WORTH_BYTES):
                return left
            continue
        begun = perf_counter()
        work.read(key, unit)
        counter.done(unit)
        spent += perf_counter() - begun
        size += _bytes(unit)
    read_here(work, iter(left), counter)
    return []


def _bytes(unit: Unit) -> int:
    return sum(piece.end - piece.start for piece in unit.pieces)


def processes(work: Work, workers: int) -> ProcessPoolExecutor:
    """Return processes that read units for this one; they end with it."""
    # Spawned, not forked: the libraries that read here run threads of their own.
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin, initargs=(work,))


_given: list[Work] = []
"""In a worker process: what it was given."""


def _begin(work: Work) -> None:
    seldom_collect()
    _given.append(work)
    _end_with_parent()


def _read_by(pool: Executor, key: str, unit: Unit) -> None:
    pool.submit(_read_given, key, unit).result()


def _read_given(key: str, unit: Unit) -> None:
    _given[0].read(key, unit)


def _end_with_parent() -> None:
    """Let a worker process end when the one that started it is killed; it would wait for work for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            multiprocessing.connection.wait([parent.sentinel])
            os._exit(1)

    Thread(target=watch, daemon=True).start()


def read_in_pool(work: Work, pool: Pool, todo: Iterator[Keyed], counter: Counter) -> None:
    """Let a pool read units; a worker that is lost costs those that it was reading.

    Raises:
        UnreadableInput: what the workers wrote cannot be seen from here.
    """
    shared = pool.share(work)
    futures = {}
    for key, unit in todo:
        futures[key] = pool.submit(Work.read, shared, key, unit)
        futures[key].add_done_callback(partial(counter.ended, unit))
    for future in futures.values():
        future.result()
    if futures:
        work.kept.begin()
    if missing := [key for key in futures if not work.kept.has(key)]:
        raise UnreadableInput(
            f"{work.kept.folder}: {len(missing)} of {len(futures)} parts that workers wrote are not to be seen from "
            "here; name with --tables a folder that all machines share, or a URL."
        )

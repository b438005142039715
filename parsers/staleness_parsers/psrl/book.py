"""What the components' logs add up to: entries, buffers, pulls and aborts (guide sections 4 and 5.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import polars as pl

from staleness_audit.parser import Staged
from staleness_parsers.psrl.components import TABLE, TRACKER
from staleness_parsers.psrl.past import follow

Row = Mapping[str, Any]
_INFORMED: Final = ("header", "wait", "ready", "begin", "push", "pull", "reserve", "failed")
_REPLICA: Final = "vLLMHTTPServer_Replica"
_QUARTER: Final = timedelta(minutes=15)
_OF_FILES: Final = ("present", "damaged")
"""Kinds that speak of a log as a whole; they may stand for a line that is not yet whole."""


@dataclass
class Buffer:
    """A buffer handed to the trainer; ``tags``: version tag, trajectories, logged staleness."""

    row: Row
    tags: set[tuple[int, int, int]] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Trajectories in it."""
        return sum(count for _, count, _ in self.tags)


@dataclass
class Book:
    """The state that the messages leave behind.

    ``reserved``: first reservation of (prompt, index): the version that counts. ``occupied``: a group's last place.
    ``stored``: requests whose results are kept. ``surplus``, ``old``, ``aborted``, ``refused``: request ids, ``failed``
    and ``filtered``: prompts, with the line that says so. ``replicas``: instances with a log that is not damaged.
    """

    reserved: dict[tuple[int, int], Row] = field(default_factory=dict)
    occupied: dict[int, Row] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    buffers: dict[int, Buffer] = field(default_factory=dict)
    seen_buffers: set[int] = field(default_factory=set)
    pushes: dict[int, Row] = field(default_factory=dict)
    pulls: dict[str, dict[int, Row]] = field(default_factory=lambda: defaultdict(dict))
    replicas: set[str] = field(default_factory=set)
    overtaken: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    snapshots: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    failed: dict[int, Row] = field(default_factory=dict)
    filtered: dict[int, Row] = field(default_factory=dict)
    surplus: dict[int, Row] = field(default_factory=dict)
    old: dict[int, Row] = field(default_factory=dict)
    aborted: dict[int, Row] = field(default_factory=dict)
    refused: dict[int, Row] = field(default_factory=dict)
    retagged: Row | None = None
    chunked: bool = False
    validates: bool = False
    partial: bool | None = None
    waiting: Row | None = None
    anchor: datetime | None = None
    informed: set[str] = field(default_factory=set)
    """Components whose log is at level INFO or finer."""
    offset: timedelta | None = None
    touched: set[tuple[int, int]] = field(default_factory=set)
    """Prompts and indices of the reservations that were taken last, and ``counted``: requests of snapshots."""
    counted: set[int] = field(default_factory=set)
    _current: Buffer | None = None

    def follow(self, rows: Sequence[Row]) -> None:
        """Take further messages; see ``keep_book``."""
        self.touched, self.counted = set(), set()
        for row in rows:
            kind, numbers = row["kind"], row["numbers"]
            if kind == "header":
                self._current = self.buffers.setdefault(numbers[0], Buffer(row))
            elif kind == "tag" and self._current is not None:
                self._current.tags.add((numbers[0], numbers[1], numbers[2]))
            else:
                _take(self, row, kind, numbers)
            if kind in ("header", "wait", "ready"):
                self.seen_buffers.add(numbers[0])
            if kind in _INFORMED:
                self.informed.add(row["component"])

    def utc(self, row: Row | None) -> datetime | None:
        """Return when a message was written; None if the machine's time zone is not known."""
        if row is None or row["ts"] is None or self.offset is None:
            return None
        moment: datetime = row["ts"] - self.offset
        return moment.replace(tzinfo=UTC)

    def newest(self, instance: str | None, tag: int) -> int | None:
        """Return the newest version that tokens pinned to ``tag`` on an instance may have: see the guide, section 3."""
        # A launch's first version is loaded, not pulled: that before the first push, 0 unless it resumed.
        if TRACKER in self.informed and tag == min(self.pushes, default=1) - 1:
            return tag
        pulled = self.pulls.get(str(instance), {})
        if tag in pulled:
            return tag
        if self.partial and instance in self.replicas:
            # Its log, if it has any line, warns of every pull that overtook.
            return self.overtaken[instance].get(tag, tag)
        return min((version for version in pulled if version > tag), default=None)


def keep_book(staged: Staged, started: datetime | None, partial: bool | None) -> Book:
    """Follow the messages, which are in the order of their files and lines.

    What one component says changes nothing of what others have said. ``started``: when the statistics say that they
    began (UTC); ``partial``: whether requests continue after syncs.
    """
    logs, chosen = _logs(staged)
    told = chosen & ~pl.col("kind").is_in(_OF_FILES)
    book = follow(staged, TABLE, Book, key=str(chosen), author="component", told=told)
    damaged = {component for component, kind in logs if kind == "damaged"}
    present = {component for component, kind in logs if kind == "present"}
    book.replicas = {component.removeprefix(_REPLICA) for component in present - damaged}
    book.partial = partial
    book.offset = None
    if book.anchor is not None and started is not None:
        # The recorder's start stands in both clocks, a moment apart.
        book.offset = round((book.anchor - started.astimezone(UTC).replace(tzinfo=None)) / _QUARTER) * _QUARTER
    return book


def _logs(staged: Staged) -> tuple[set[tuple[str, str | None]], pl.Expr]:
    """Return what is said of the components' own logs as a whole, and which messages are chosen.

    A component's file goes before the console; of a console the last launch counts.
    """
    if not staged.has(TABLE):
        return set(), pl.lit(True)
    of_file = pl.when(pl.col("kind").is_in(_OF_FILES)).then("kind")
    rows = staged.scan(TABLE).select("console", "component", of_file).unique().collect()
    logs = {(component, kind) for console, component, kind in rows.iter_rows() if not console}
    chosen = ~pl.col("console")
    if rows["console"].any():
        filed = sorted({component for component, _ in logs})
        begins = staged.scan(TABLE).filter(pl.col("console") & (pl.col("kind") == "begin"))
        begun = begins.group_by("source").agg(pl.col("line").max()).sort("source").collect()
        earlier = [(pl.col("source") == source) & (pl.col("line") < line) for source, line in begun.iter_rows()]
        chosen |= ~pl.any_horizontal(pl.col("component").is_in(filed), *earlier)
    return logs, chosen


def _take(book: Book, row: Row, kind: str, numbers: Sequence[int]) -> None:
    if kind == "reserve":
        for index in row["ids"]:
            book.reserved.setdefault((numbers[0], index), row)
            book.touched.add((numbers[0], index))
    elif kind in ("occupy", "wasted", "move"):
        before = book.occupied.get(numbers[0])
        # A move names the group, and may abbreviate the rest.
        book.occupied[numbers[0]] = row if kind != "move" or before is None else {**before, "numbers": numbers}
    elif kind == "clear":
        book.occupied.pop(numbers[0], None)
    elif kind in ("push", "pull"):
        (book.pushes if kind == "push" else book.pulls[row["worker"]]).setdefault(numbers[0], row)
    elif kind == "overtaken":
        book.overtaken[row["component"].removeprefix(_REPLICA)][numbers[1]] = numbers[0]
    elif kind == "snapshot":
        counts = book.snapshots[numbers[1]]
        counts[numbers[0]] = max(numbers[2], counts.get(numbers[0], 0))
        book.counted.add(numbers[1])
    elif kind in ("failed", "filtered"):
        (book.failed if kind == "failed" else book.filtered).setdefault(numbers[0], row)
    elif kind == "stale":
        book.refused.setdefault(numbers[0], row)
    elif kind in ("surplus", "old", "aborted"):
        found = {"surplus": book.surplus, "old": book.old, "aborted": book.aborted}[kind]
        for request in row["ids"]:
            found.setdefault(request, row)
    else:
        _remember(book, row, kind)


def _remember(book: Book, row: Row, kind: str) -> None:
    if kind == "stored":
        book.stored.update(row["ids"])
    elif kind == "retagged":
        book.retagged = book.retagged or row
    elif kind in ("chunk", "validation"):
        book.chunked, book.validates = book.chunked or kind == "chunk", book.validates or kind == "validation"
    elif kind in ("wait", "gate"):
        book.waiting = row
    elif kind == "anchor":
        book.anchor = row["ts"]

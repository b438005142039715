"""What the components' logs add up to: entries, buffers, pulls and aborts (guide sections 4 and 5.2)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from staleness_parsers.psrl.components import TRACKER

Row = Mapping[str, Any]
_INFORMED: Final = ("header", "wait", "ready", "begin", "push", "pull", "reserve", "failed")
_REPLICA: Final = "vLLMHTTPServer_Replica"
_QUARTER: Final = timedelta(minutes=15)


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


def keep_book(messages: Sequence[Row], started: datetime | None, partial: bool | None) -> Book:
    """Follow the messages, which are in the order of their files and lines.

    ``started``: when the statistics say that they began (UTC); ``partial``: whether requests continue after syncs.
    """
    book = Book(partial=partial)
    current: Buffer | None = None
    for row in _chosen(messages):
        kind, numbers = row["kind"], row["numbers"]
        if kind == "header":
            current = book.buffers.setdefault(numbers[0], Buffer(row))
        elif kind == "tag" and current is not None:
            current.tags.add((numbers[0], numbers[1], numbers[2]))
        else:
            _take(book, row, kind, numbers)
        if kind in ("header", "wait", "ready"):
            book.seen_buffers.add(numbers[0])
        if kind in _INFORMED:
            book.informed.add(row["component"])
    if book.anchor is not None and started is not None:
        # The recorder's start stands in both clocks, a moment apart.
        book.offset = round((book.anchor - started.astimezone(UTC).replace(tzinfo=None)) / _QUARTER) * _QUARTER
    return book


def _chosen(messages: Sequence[Row]) -> Iterable[Row]:
    """A component's file goes before the console; of a console the last launch counts."""
    filed = {row["component"] for row in messages if not row["console"]}
    begun: dict[str, int] = {}
    for row in messages:
        if row["console"] and row["kind"] == "begin":
            begun[row["source"]] = row["line"]
    return (
        row
        for row in messages
        if not row["console"] or (row["component"] not in filed and row["line"] >= begun.get(row["source"], 0))
    )


def _take(book: Book, row: Row, kind: str, numbers: Sequence[int]) -> None:
    if kind == "reserve":
        for index in row["ids"]:
            book.reserved.setdefault((numbers[0], index), row)
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
    elif kind in ("present", "damaged"):
        name = row["component"].removeprefix(_REPLICA)
        (book.replicas.add if kind == "present" else book.replicas.discard)(name)
    elif kind == "retagged":
        book.retagged = book.retagged or row
    elif kind in ("chunk", "validation"):
        book.chunked, book.validates = book.chunked or kind == "chunk", book.validates or kind == "validation"
    elif kind in ("wait", "gate"):
        book.waiting = row
    elif kind == "anchor":
        book.anchor = row["ts"]

"""What the console of a launch adds: the sample queue, the drops, and the weight syncs (guide section 5.3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from staleness_parsers.trl.launches import Launch, Segment
from staleness_parsers.trl.replay import Queue, Shape, deliveries

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Drop:
    """A dropped row: in which step it was pulled (at least, at most), its logged staleness (None = oversize)."""

    step_lo: int
    step_hi: int
    staleness: int | None
    row: Row


@dataclass(frozen=True)
class Sync:
    """A publication: version, beginning and end (seconds, the console's clock)."""

    version: int
    started: float | None
    ended: float | None
    row: Row


@dataclass
class Story:
    """One launch by its console. ``whole``: it shows the launch from its first sync on, at level INFO."""

    whole: bool = False
    drops: list[Drop] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    newest: list[int] = field(default_factory=list)
    lines: list[Row] = field(default_factory=list)
    drops_lo: dict[int, int] = field(default_factory=dict)
    drops_hi: dict[int, int] = field(default_factory=dict)

    @property
    def scored(self) -> int:
        """Rows that reached the queue, as far as the log shows."""
        return sum(self.sizes)

    def queue(self) -> Queue:
        """Return the queue without exact places."""
        return Queue(self.sizes, self.newest, self.drops_lo, self.drops_hi)


def tell(launch: Launch, shape: Shape) -> Story:
    """Walk the console of a launch once; of several files the one with the syncs counts."""
    segments = sorted(
        launch.consoles, key=lambda one: (sum(row["kind"] == "transferring" for row in one.events), one.part)
    )
    if not segments:
        return Story()
    story = Story()
    events = segments[-1].events
    _syncs(events, shape, story)
    _scores(segments, events, shape, story)
    _drops(events, shape, launch.last, story)
    story.whole = _is_whole(launch, shape, segments, story)
    return story


def _is_whole(launch: Launch, shape: Shape, segments: Sequence[Segment], story: Story) -> bool:
    """One sync at the beginning and one per W steps, and a worker that said hello: nothing was cut off or left out."""
    published = launch.last // shape.sync_every - shape.base + 1
    worker = any(row["kind"] == "worker" for segment in segments for row in segment.events)
    # The sync of the last step may be missing if the launch died in it.
    return worker and bool(story.syncs) and published - 1 <= len(story.syncs) <= published


def _syncs(events: Sequence[Row], shape: Shape, story: Story) -> None:
    started: float | None = None
    for row in events:
        if row["kind"] == "pausing":
            started = row["ts"]
        elif row["kind"] == "transferring":
            story.syncs.append(
                Sync(shape.base + len(story.syncs), started if started is not None else row["ts"], None, row)
            )
        elif row["kind"] == "done" and story.syncs:
            last = story.syncs[-1]
            story.syncs[-1] = Sync(last.version, last.started, row["ts"], last.row)


def _scores(segments: Sequence[Segment], events: Sequence[Row], shape: Shape, story: Story) -> None:
    """Bound a scored group's tokens by the transfers begun when it was scored: by the file's order and by stamps."""
    stamps = [sync.row["ts"] for sync in story.syncs if sync.row["ts"] is not None]
    stamped = len(stamps) == len(story.syncs) and stamps == sorted(stamps)
    own = any(row["kind"] == "score" for row in events)
    source = (
        events
        if own
        else next((one.events for one in segments if any(row["kind"] == "score" for row in one.events)), ())
    )
    transfers = 0
    newest = shape.base
    for row in source:
        if row["kind"] == "transferring":
            transfers += 1
        elif row["kind"] == "score" and row["count"]:
            by_time = bisect_right(stamps, row["ts"]) if stamped and row["ts"] is not None else None
            if not own and by_time is None:
                return  # another file without times can't be put beside the syncs
            newest = max(newest, shape.base + max(transfers if own else 0, by_time or 0, 1) - 1)
            story.sizes.append(row["count"])
            story.newest.append(newest)
            story.lines.append(row)


def _drops(events: Sequence[Row], shape: Shape, last: int, story: Story) -> None:
    """Place the drops between the ends of steps that the trainer's lines mark: syncs and records.

    Bars don't: one that was held back is drawn later, in the middle of the next step.
    """
    marks = list(_marks(events, shape))
    passed = shape.start
    pending: list[tuple[int, Row]] = []
    counts: list[tuple[int, int]] = []
    total = 0
    for index, row in enumerate(events):
        step = marks[index]
        if step is not None and step > passed:
            story.drops += [_drop(low, step, dropped) for low, dropped in pending]
            pending = []
            passed = step
            counts.append((step, total))
        if row["kind"] in ("drop", "oversize"):
            total += 1
            pending.append((passed + 1, row))
    story.drops += [_drop(low, max(last, low), dropped) for low, dropped in pending]
    previous, lowest = shape.start, 0
    story.drops_lo[shape.start] = 0
    for step, count in [*counts, (max(last, passed + 1), total)]:
        for between in range(previous + 1, step):
            story.drops_lo[between], story.drops_hi[between] = lowest, count
        if step not in story.drops_hi:
            story.drops_lo[step] = story.drops_hi[step] = count
        previous, lowest = step, count


def _drop(low: int, high: int, row: Row) -> Drop:
    return Drop(low, high, row["number"] if row["kind"] == "drop" else None, row)


def _marks(events: Sequence[Row], shape: Shape) -> Iterator[int | None]:
    """For each message the step whose pulls are over when it is printed."""
    syncs = 0
    for row in events:
        mark: int | None = None
        if row["kind"] == "pausing":
            # The first publishes what the launch starts from.
            mark = (shape.base + syncs) * shape.sync_every if syncs else None
            syncs += 1
        elif row["kind"] == "record":
            mark = row["number"]
        yield mark


def places(story: Story, delivered: Mapping[int, int], start: int) -> dict[int, int]:
    """Queue positions of delivered rows where whole groups leave only one choice.

    All rows of a group carry one version, so within one step's pulls they pass or fail together. ``delivered``: rows
    delivered in a step's pulls, while it is known for every step from the launch's start.
    """
    found: dict[int, int] = {}
    ends: list[int] = []
    for size in story.sizes:
        ends.append((ends[-1] if ends else 0) + size)
    row = position = 0
    step = start + 1
    while step in delivered:
        dropped = story.drops_hi.get(step)
        if dropped is None or dropped != story.drops_lo.get(step):
            break
        stop = row + delivered[step] + dropped
        if not ends or stop > ends[-1]:
            break
        parts = _parts(ends, position, stop)
        choice = deliveries(parts, delivered[step])
        if choice is not None:
            at, number = position, row
            for size, taken in zip(parts, choice, strict=True):
                for offset in range(size if taken else 0):
                    found[number] = at + offset
                    number += 1
                at += size
        row += delivered[step]
        position = stop
        step += 1
    return found


def _parts(ends: Sequence[int], start: int, stop: int) -> list[int]:
    """Sizes of the groups' parts that lie between two queue positions."""
    parts = []
    index = bisect_right(ends, start)
    while start < stop:
        parts.append(min(ends[index], stop) - start)
        start = min(ends[index], stop)
        index += 1
    return parts

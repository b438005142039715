"""One launch after another: cutting what the sources say into attempts and merging it (guide sections 5.1 and 8).

A resumed run repeats steps. TensorBoard starts a file per launch; in trackio and in the console steps go back; the
first record of a launch has no ``perf/step_s``; ``trainer_state.json`` only keeps the chain that counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import orjson

Row = Mapping[str, Any]

ORIGINS: Final = ("state", "trackio", "tensorboard", "console")
"""Whose numbers are taken, best first: double precision, double, float32, four digits."""
_DURATIONS: Final = ("perf/step_s", "iteration_time_s")
"""Missing in the first record of a launch only."""


@dataclass(frozen=True)
class Value:
    """A number and where it was read."""

    value: float | None
    origin: str
    source: str
    line: int | None
    locator: str | None


@dataclass
class Record:
    """One log record: its step, its numbers, and when it was written (seconds since 1970)."""

    step: int
    values: dict[str, Value] = field(default_factory=dict)
    ts: float | None = None

    def get(self, name: str) -> float | None:
        """Return a number; None if the key is missing or null."""
        found = self.values.get(name)
        return found.value if found else None

    @property
    def trains(self) -> bool:
        """Whether it is a record of training, not the closing one with the run's totals."""
        return any(name not in ("train_runtime", "global_step") for name in self.values) and not (
            "train_runtime" in self.values and "loss" not in self.values
        )


@dataclass
class Segment:
    """What one source says of one launch. ``events``: a console's messages, in order; ``reached``: last step shown."""

    origin: str
    part: str
    records: dict[int, Record] = field(default_factory=dict)
    events: list[Row] = field(default_factory=list)
    flushes: set[str] = field(default_factory=set)
    reached: int = 0
    finished: Row | None = None
    broken: list[Row] = field(default_factory=list)

    @property
    def first(self) -> int:
        """Its first step."""
        return min(self.records, default=self.reached)

    @property
    def begins(self) -> bool:
        """Whether a console shows how its launch began."""
        return any(row["kind"] == "worker" or (row["kind"] == "bar" and row["number"] == 0) for row in self.events)

    def steps(self) -> set[int]:
        """Return the steps it has records of; where it has none, those of its bars, or all up to the last it names."""
        bars = {row["number"] for row in self.events if row["kind"] == "bar" and row["number"]}
        return set(self.records) or bars or set(range(1, self.reached + 1))

    def add(self, row: Row, step: int, name: str, value: float | None) -> None:
        """Take one number."""
        if name == "train_runtime":
            self.finished = row
        self.reached = max(self.reached, step)
        if name in ("train_runtime", "global_step"):
            return
        record = self.records.setdefault(step, Record(step))
        place = Value(value, self.origin, row["source"], row.get("line"), row.get("locator"))
        if name not in record.values or record.values[name].value is None:
            record.values[name] = place
        if row.get("ts") is not None and record.ts is None:
            record.ts = row["ts"]


@dataclass
class Launch:
    """One attempt. It resumed after ``start`` (0 = afresh; ``start_lo``: at least), and reached step ``last``."""

    number: int
    start_lo: int
    start: int
    last: int
    records: dict[int, Record] = field(default_factory=dict)
    consoles: list[Segment] = field(default_factory=list)
    flushes: set[str] = field(default_factory=set)
    origins: set[str] = field(default_factory=set)
    finished: Row | None = None
    broken: list[Row] = field(default_factory=list)

    @property
    def ends(self) -> bool:
        """Whether no step after ``last`` can have gone unlogged: its end, its bar or a checkpoint shows it."""
        bars = any(row["kind"] == "bar" for one in self.consoles for row in one.events)
        return self.finished is not None or bars


def metric_segments(rows: Iterable[Row]) -> list[Segment]:
    """Cut staged ``trl_records`` into segments, in the order of the launches within each origin."""
    parts: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["origin"] in ("state", "tensorboard", "trackio"):
            key = row["part"] if row["origin"] != "state" else row["source"]
            parts.setdefault((row["origin"], key), []).append(row)
    found: list[tuple[float, Segment]] = []
    for (origin, part), members in parts.items():
        members.sort(key=lambda row: row["seq"])
        times = [row["ts"] for row in members if row["ts"] is not None]
        cuts = _cut(origin, part, members)
        found += [(min(times, default=0.0), segment) for segment in cuts]
    found.sort(key=lambda pair: (ORIGINS.index(pair[1].origin), pair[0]))
    return _newest_state([segment for _, segment in found])


def _cut(origin: str, part: str, rows: Sequence[Row]) -> list[Segment]:
    """Begin a new segment where steps go back, or at a record that lacks its duration."""
    by_record: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        # Scalars of a step are written one by one; in the other sources a record is one place.
        place = row["locator"] if origin != "tensorboard" else ""
        by_record.setdefault((row["step"] if row["step"] is not None else -1, place), []).append(row)
    timed = any(row["name"] in _DURATIONS for row in rows)
    segments = [Segment(origin, part)]
    previous = 0
    for (step, _), members in by_record.items():
        names = {row["name"] for row in members}
        if step < 0:
            segments[-1].flushes |= {name.removeprefix("flush:") for name in names}
            continue
        # A step is logged once per launch; the closing record of the last one has no loss.
        again = "loss" in names and (step == previous or (timed and not names & set(_DURATIONS)))
        if origin != "tensorboard" and previous and (step < previous or again):
            segments.append(Segment(origin, part))
        for row in members:
            segments[-1].add(row, step, row["name"], row["value"])
        previous = step
    return segments


def _newest_state(segments: list[Segment]) -> list[Segment]:
    """Of several checkpoints keep the history that reaches furthest; what only others show is kept behind it."""
    states = [segment for segment in segments if segment.origin == "state"]
    if not states:
        return segments
    reach = {part: max(one.reached for one in states if one.part == part) for part in {one.part for one in states}}
    best = max(reach, key=lambda part: (reach[part], part))
    return [segment for segment in segments if segment.origin != "state" or segment.part == best]


def console_segments(rows: Iterable[Row], logging: int | None) -> list[Segment]:
    """Cut staged ``trl_console`` into launches and give its records their steps."""
    files: dict[str, list[Row]] = {}
    for row in rows:
        files.setdefault(row["source"], []).append(row)
    segments = []
    for source, messages in files.items():
        for events in _launches_in(messages):
            segments.append(_number(source, events, logging or 1))
    return [segment for segment in segments if segment.events]


def _launches_in(rows: Sequence[Row]) -> list[list[Row]]:
    """Cut where a bar is at 0 again, or (no bars) at the weight sync before another worker starts."""
    launches: list[list[Row]] = [[]]
    moved = worker = False
    for row in rows:
        current = launches[-1]
        fresh = row["kind"] == "bar" and row["number"] == 0
        if fresh and (moved or worker):
            launches.append([])
            moved = worker = False
        elif row["kind"] == "worker" and worker:
            at = max((index for index, other in enumerate(current) if other["kind"] == "pausing"), default=len(current))
            launches.append(current[at:])
            del current[at:]
            moved = worker = False
        launches[-1].append(row)
        worker = worker or row["kind"] == "worker"
        moved = moved or row["kind"] == "record" or (row["kind"] == "bar" and row["number"] > 0)
    return launches


def _number(source: str, events: list[Row], logging: int) -> Segment:
    """Give records their steps: the bar is drawn anew after each and shows its step; without bars they are counted."""
    segment = Segment("console", source)
    has_bars = any(row["kind"] == "bar" for row in events)
    following: int | None = None
    steps: dict[int, int | None] = {}
    for index in range(len(events) - 1, -1, -1):
        row = events[index]
        if row["kind"] == "bar":
            following = row["number"]
        elif row["kind"] == "record":
            steps[index], following = following, None
    shown, counted = 0, 0
    for index, row in enumerate(events):
        if row["kind"] == "bar":
            shown = max(shown, row["number"])
            segment.reached = max(segment.reached, shown)
        if row["kind"] != "record":
            segment.events.append(row)
            continue
        document = orjson.loads(row["document"])
        if not document:
            segment.broken.append(row)
        closing = "train_runtime" in document and "loss" not in document
        counted += not closing
        step = steps[index] or shown if has_bars else counted * logging
        for name, value in document.items():
            segment.add({**row, "ts": None}, step, name, value)
        segment.events.append({**row, "number": None if closing else step})
    return segment


def launches(
    segments: Sequence[Segment], saves: int | None, logging: int | None, checkpoints: set[int]
) -> list[Launch]:
    """Join the segments of all sources into attempts.

    The source that shows most launches is the backbone; segments of the others go where they agree most, in order.
    ``checkpoints``: steps of checkpoints on disk; with ``saves`` and ``logging`` they tell where one resumed.
    """
    with_steps = [segment for segment in segments if segment.reached or segment.records]
    by_origin = {origin: [one for one in with_steps if one.origin == origin] for origin in ORIGINS}
    told = console_launches(by_origin["console"])
    beside = {id(together[0]): together[1:] for together in told}
    chains = [by_origin["tensorboard"], by_origin["trackio"], [together[0] for together in told], by_origin["state"]]
    backbone = max(chains, key=len, default=[])
    if not backbone:
        return [Launch(0, 0, 0, 0, consoles=[one for one in segments if one.origin == "console"])]
    members: list[list[Segment]] = [[one] for one in backbone]
    # A chain of records that tells fewer launches apart is dealt out step by step.
    dealt = [chain for chain in (by_origin["trackio"], by_origin["state"]) if 0 < len(chain) < len(backbone)]
    if by_origin["state"] is not backbone and by_origin["state"] not in dealt:
        dealt.append(by_origin["state"])
    for chain in chains:
        if chain is not backbone and chain not in dealt:
            for segment, place in zip(chain, _places(chain, backbone), strict=True):
                members[place].append(segment)
    for parts in members:
        parts += [other for one in parts for other in beside.get(id(one), ())]
    found = [_launch(number, parts, saves, logging, checkpoints) for number, parts in enumerate(members)]
    _give_stepless(found, [one for one in segments if one not in with_steps])
    for chain in dealt:
        _deal(found, chain)
    for launch, later in pairwise(found):
        # A checkpoint to resume from was written by who trained up to it, if less than a log record is in between.
        if launch.last < later.start_lo < launch.last + (logging or 1):
            launch.last = later.start_lo
    return found


def console_launches(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Return what several log files say of one launch together: the launches in the order of their first stamped lines.

    Files that show the same steps tell of one launch if no loss differs, else of several: each resumed or began anew.
    So they do if each shows its own beginning and no loss says that they are copies.
    """
    found: list[list[Segment]] = []
    for segment in sorted(segments, key=lambda one: (_stamp(one) or 0.0, one.part)):
        fits = [(_shared(segment, one[0]), one) for one in found if all(segment.part != other.part for other in one)]
        same = [
            (score, one)
            for score, one in fits
            if score and score == len(segment.steps() & one[0].steps()) and not _both_begin(segment, one[0])
        ]
        if same:
            max(same, key=lambda pair: pair[0])[1].append(segment)
        elif fits and not segment.begins:
            fits[-1][1].append(segment)  # the log went on in another file
        else:
            found.append([segment])
    return found


def _both_begin(one: Segment, other: Segment) -> bool:
    """Whether each of two logs has a worker of its own: a launch starts one."""
    workers = [[row["ts"] for row in log.events if row["kind"] == "worker"] for log in (one, other)]
    copied = any(one.records[step].get("loss") is not None for step in one.records.keys() & other.records.keys())
    return all(workers) and not copied and (None in workers[0] or workers[0] != workers[1])


def _stamp(segment: Segment) -> float | None:
    return min((row["ts"] for row in segment.events if row["ts"] is not None), default=None)


def _places(chain: Sequence[Segment], backbone: Sequence[Segment]) -> list[int]:
    """Which launch of the backbone each segment of a shorter chain is of: in order, and no two the same.

    The choice has most records in common; among equals the latest, as a log that is kept is rather that of the end.
    """
    # best[place]: most agreement of the segments so far, the last of them at ``place``, and their places.
    best: list[tuple[int, list[int]]] = [(0, [])] * (len(backbone) + 1)
    for number, segment in enumerate(chain):
        longer: list[tuple[int, list[int]]] = []
        for place, one in enumerate(backbone):
            before = best[0] if not number else max(best[number - 1 : place], default=None, key=lambda pair: pair)
            longer.append(
                (-(1 << 60), []) if before is None else (before[0] + _shared(segment, one), [*before[1], place])
            )
        best = longer
    return max(best)[1]


def _shared(one: Segment, other: Segment) -> int:
    """How many steps two segments both show with the same loss, less those that they show with different ones."""
    common = one.steps() & other.steps()
    return sum(1 if _agrees(one.records.get(step), other.records.get(step)) else -1 for step in common)


def _give_stepless(found: Sequence[Launch], segments: Sequence[Segment]) -> None:
    """Place consoles without bars and records (they may go elsewhere): if a file has one per launch, in order."""
    for part in {one.part for one in segments} - {one.part for launch in found for one in launch.consoles}:
        own = [one for one in segments if one.part == part]
        for launch, segment in zip(found, own, strict=True) if len(own) == len(found) else ():
            launch.consoles.append(segment)


def _deal(found: Sequence[Launch], chain: Sequence[Segment]) -> None:
    """Give each record of a history to the launch that wrote it.

    A checkpoint's history only holds the chain that counted, and steps written twice would go back, so that is the last
    launch that can have made the step, unless another source shows that it did not.
    """
    reached = {launch.number: launch.last for launch in found}
    for segment in chain:
        for step in [*sorted(segment.records), segment.reached]:
            record = segment.records.get(step)
            able = [launch for launch in reversed(found) if launch.start < step] or [found[0]]
            same = [launch for launch in able if step in launch.records and _agrees(launch.records[step], record)]
            launch = next(iter(same), next((one for one in able if reached[one.number] >= step), able[0]))
            launch.last = max(launch.last, step)
            launch.origins.add(segment.origin)
            if record:
                _merge(launch.records, record)
        found[-1].finished = found[-1].finished or segment.finished


def _merge(records: dict[int, Record], record: Record) -> None:
    """Join a record with what other sources say of its step; the better source's numbers hold."""
    merged = records.setdefault(record.step, Record(record.step))
    for name, value in record.values.items():
        present = merged.values.get(name)
        rank = ORIGINS.index(value.origin)
        if present is None or (
            value.value is not None and (present.value is None or rank < ORIGINS.index(present.origin))
        ):
            merged.values[name] = value
    if record.ts is not None and (
        merged.ts is None or any(one.origin == "tensorboard" for one in record.values.values())
    ):
        # An event file's time is that of logging; trackio's may be that of a later flush.
        merged.ts = record.ts


def _agrees(one: Record | None, other: Record | None) -> bool:
    mine, theirs = one.get("loss") if one else None, other.get("loss") if other else None
    return mine is None or theirs is None or abs(mine - theirs) <= 1e-3 * max(abs(mine), abs(theirs), 1e-9)


def _launch(
    number: int, parts: Sequence[Segment], saves: int | None, logging: int | None, checkpoints: set[int]
) -> Launch:
    """Merge the segments of one launch."""
    records: dict[int, Record] = {}
    for segment in sorted(parts, key=lambda one: ORIGINS.index(one.origin)):
        for record in segment.records.values():
            _merge(records, record)
    first = min((step for step, record in records.items() if record.trains), default=None)
    bars = [row["number"] for one in parts for row in one.events if row["kind"] == "bar" and row["number"]]
    low, high = _start(first, min(bars, default=None), saves, logging, checkpoints)
    return Launch(
        number,
        low,
        high,
        max(one.reached for one in parts),
        records,
        [one for one in parts if one.origin == "console"],
        set().union(*(one.flushes for one in parts)),
        {one.origin for one in parts},
        next((one.finished for one in parts if one.finished), None),
        [row for one in parts for row in one.broken],
    )


def _start(
    first: int | None, bar: int | None, saves: int | None, logging: int | None, checkpoints: set[int]
) -> tuple[int, int]:
    """Return the steps a launch can have resumed after, from its first record and the first step of its bar."""
    high = min([value - 1 for value in (first, bar) if value is not None], default=0)
    low = 0 if first is None else max(first - (logging or first), 0)
    if first is not None and first <= (logging or 1):
        return 0, 0
    places = sorted(step for step in checkpoints if low <= step <= high)
    if not places and saves:
        places = [step for step in range(low, high + 1) if step % saves == 0]
    return (places[0], places[-1]) if places else (low, high)

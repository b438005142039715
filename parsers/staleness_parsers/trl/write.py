"""Writing what one launch did: steps, trained rows, drops, what was left over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from staleness_audit.readers.numbers import micros
from staleness_parsers.trl import batches
from staleness_parsers.trl.batches import Chunk
from staleness_parsers.trl.console_story import Drop, Story, places, tell
from staleness_parsers.trl.launches import Launch, Record
from staleness_parsers.trl.replay import Batch, Queue, Shape, Span, joined, spans
from staleness_parsers.trl.rows import Rows, time
from staleness_parsers.trl.settings import Settings
from staleness_parsers.trl.traces import Replay

EXCESS = {True: 2, False: 1}
"""How many versions may pass between check and training: two for the row that opens a token-budget micro-batch."""


@dataclass
class Teller:
    """One launch and all that is known to tell about it."""

    launch: Launch
    settings: Settings
    shape: Shape
    story: Story
    per_record: int | None
    forked: bool
    replay: Replay | None = None
    shift: float = 0.0
    drops_known: bool = False
    cuts: set[int] = field(default_factory=set)

    def time(self, seconds: float | None) -> datetime | None:
        """Return a console time in UTC: the console's clock may be in another zone."""
        return None if seconds is None else time(seconds - self.shift)

    @property
    def name(self) -> str:
        """Prefix of ids: they restart with each launch."""
        return f"a{self.launch.number}"


def teller(launch: Launch, settings: Settings, forked: bool) -> Teller:
    """Put together what a launch's sources say."""
    shape = batches.shape_of(launch, settings)
    per_record = batches.window(settings, launch)
    story = tell(launch, shape)
    return Teller(launch, settings, shape, story, per_record, forked, shift=_shift(launch, story, shape))


def _shift(launch: Launch, story: Story, shape: Shape) -> float:
    """Return how far the console's clock is ahead of UTC, in quarters of an hour, by syncs beside their records."""
    for sync in story.syncs[1:]:
        record = launch.records.get(sync.version * shape.sync_every)
        if record and record.ts is not None and sync.ended is not None:
            return round((sync.ended - record.ts) / 900) * 900.0
    return 0.0


def write_steps(rows: Rows, told: Teller) -> None:
    """One row per optimizer step; steps that an earlier launch may have made instead are unconfirmed."""
    launch, shape = told.launch, told.shape
    known = told.settings.sync_every is not None
    place = next(iter(next(iter(launch.records.values())).values.values())) if launch.records else None
    for step in range(launch.start_lo + 1, launch.last + 1):
        record = launch.records.get(step)
        single = told.per_record == 1 and record is not None
        took = (record.get("perf/step_s") or record.get("iteration_time_s")) if record and single else None
        waited = record.get("perf/rollout_wait_s") if record and single else None
        where = next(iter(record.values.values()), place) if record else place
        rows.add(
            "steps",
            where.__dict__ if where else None,
            attempt=launch.number,
            step=step,
            v_train_lo=shape.version(step) if known else 0,
            v_train_hi=shape.version(step) if known else step - 1,
            started=time(record.ts - took) if record and record.ts is not None and took is not None else None,
            ended=time(record.ts) if record and single else None,
            waited_us=micros(waited),
            updates=shape.sync_every if known else None,
            completed=True if step > launch.start else None,
        )
    for sync in told.story.syncs:
        rows.add(
            "syncs",
            sync.row,
            attempt=launch.number,
            version_lo=sync.version,
            version_hi=sync.version,
            started=told.time(sync.started),
            ended=told.time(sync.ended),
        )


def write_unlogged(rows: Rows, told: Teller) -> None:
    """Write the steps that may have followed the last log record, of which nothing is known but how old they can be."""
    launch, shape = told.launch, told.shape
    last = launch.last + (told.per_record or 1) - 1
    if told.settings.max_steps is not None:
        last = min(last, told.settings.max_steps)
    if launch.ends or last <= launch.last or any(cut <= launch.last for cut in told.cuts):
        return
    for step in range(launch.last + 1, last + 1):
        version = shape.version(step) if told.settings.sync_every is not None else None
        rows.add("steps", None, "inferred", attempt=launch.number, step=step, v_train_lo=version, v_train_hi=version)
        name = f"anonymous:{told.name}/unlogged {step}"
        common = {"trajectory_id": name, "attempt": launch.number}
        most = shape.per_micro * (shape.micro or 1) if shape.per_micro else None
        rows.add(
            "trajectories",
            None,
            "inferred",
            **common,
            role="train",
            anonymous=True,
            multiplicity_lo=0,
            multiplicity_hi=most,
        )
        rows.add("uses", None, "inferred", **common, step=step, staleness_hi=_limit(told))
        rows.add("spans", None, "inferred", trajectory_id=name, span_index=0, tokens_lo=0)


def usable_queue(told: Teller, found: Sequence[Chunk]) -> tuple[Queue, str | None]:
    """Return the queue by the console, or an empty one and why: a log with lines missing would prove too much."""
    story = told.story
    if not story.sizes:
        return Queue(), None
    if not story.whole:
        return Queue(), "the log does not show every weight sync of the launch"
    counted = sum(_counted(record) for record in told.launch.records.values() if record.trains)
    last = max((step for step, record in told.launch.records.items() if record.trains), default=0)
    if counted and counted != story.drops_hi.get(last, counted):
        return Queue(), f"it shows {story.drops_hi.get(last)} drops where the metrics count {counted}"
    delivered: dict[int, int] = {}
    shape = told.shape
    if shape.per_micro and shape.micro:
        delivered = dict.fromkeys(range(shape.start + 1, told.launch.last + 1), shape.per_micro * shape.micro)
        delivered[shape.start + 1] = shape.per_micro * (shape.micro + 1)
    queue = story.queue()
    return replace(queue, places=places(story, delivered, shape.start)), None


def _counted(record: Record) -> int:
    return round((record.get("sample/dropped_stale_total") or 0) + (record.get("batch/dropped_oversize_total") or 0))


def write_trained(rows: Rows, told: Teller, queue: Queue, found: Sequence[Chunk]) -> bool:
    """Write the trained rows as anonymous classes; False (and nothing written) if the queue contradicts the metrics."""
    largest = batches.pulls(told.launch, told.per_record)
    result: list[tuple[Chunk, list[Span]]] = []
    row: int | None = 0
    for chunk in found:
        least, most = chunk.rows
        exact = least == most
        parts = list(
            spans(
                told.shape,
                queue,
                largest,
                Batch(chunk.first, chunk.last, least if exact else 1, row if exact else None),
            )
        )
        if any(part.lag_hi is not None and part.lag_lo > part.lag_hi for part in parts):
            return False
        if any(part.version_lo is not None and part.version_lo > part.version_hi for part in parts):
            return False
        row = row + least if exact and row is not None else None
        result.append((chunk, parts))
    for chunk, parts in result:
        _write_chunk(rows, told, chunk, parts, last=chunk is result[-1][0])
    return True


def _write_chunk(rows: Rows, told: Teller, chunk: Chunk, parts: Sequence[Span], *, last: bool) -> None:
    place = chunk.place.__dict__ if chunk.place else None
    known = told.settings.sync_every is not None
    single = chunk.first == chunk.last
    surest = max(part.lag_lo for part in parts) if known else 0
    counted = not told.forked and chunk.rows[0] == chunk.rows[1]
    if not counted:
        # Rows are no trajectories, or their number is open: one class, of which some trajectory is that old.
        parts = [joined(parts)]
    for index, part in enumerate(parts):
        name = f"anonymous:{told.name}/{_steps_name(chunk)}/{index}"
        most = chunk.rows[1] if len(parts) == 1 else part.count
        least = chunk.rows[0] if len(parts) == 1 else part.count
        others = chunk.rows[0] - least
        rows.add(
            "trajectories",
            place,
            trajectory_id=name,
            group_id=None if part.group is None else f"{told.name}/q{part.group}",
            attempt=told.launch.number,
            role="train",
            anonymous=True,
            # Other steps may have trained other rows of the same conversations, all of them.
            multiplicity_lo=min(least, int(last)) if told.forked else least,
            multiplicity_hi=most,
        )
        if part.group is not None:
            # One group of the queue, however many of its rows are told apart.
            group = f"{told.name}/q{part.group}"
            rows.add("groups", place, group_id=group, multiplicity_lo=1, multiplicity_hi=1)
        rows.add(
            "spans",
            place,
            trajectory_id=name,
            span_index=0,
            # Rows without a trainable token are never delivered, so each has at least one.
            tokens_lo=chunk.tokens[0] if len(parts) == 1 else least,
            tokens_hi=None if chunk.tokens[1] is None else max(chunk.tokens[1] - others, least),
            version_lo=part.version_lo if known else None,
            version_hi=part.version_hi if known else None,
            monotone=False,
        )
        rows.add(
            "uses",
            place,
            trajectory_id=name,
            attempt=told.launch.number,
            step=chunk.last,
            staleness_lo=None if single or not known else part.lag_lo,
            staleness_hi=_limit(told) if not known else (None if single else part.lag_hi),
        )
    _constrain(rows, told, chunk, place, counted=counted, surest=surest)


def _limit(told: Teller) -> int | None:
    return None if told.settings.bound is None else told.settings.bound + EXCESS[told.settings.budget is not False]


def _steps_name(chunk: Chunk) -> str:
    return f"step {chunk.last}" if chunk.first == chunk.last else f"steps {chunk.first}-{chunk.last}"


def _constrain(
    rows: Rows, told: Teller, chunk: Chunk, place: Mapping[str, Any] | None, *, counted: bool, surest: int
) -> None:
    """State sums: with an exact number of trajectories the classes are all there is, else they speak for themselves."""
    facts: list[tuple[str, str, int]] = []
    if counted:
        facts.append(("trajectories", "eq", chunk.rows[0]))
        if chunk.tokens[1] is not None:
            facts += [("loss_tokens", "le", chunk.tokens[1]), ("loss_tokens", "ge", chunk.tokens[0])]
    elif surest and chunk.rows[0]:
        facts.append(("staleness_max", "ge", surest))
    if chunk.first < chunk.last:
        facts.append(("first_step", "eq", chunk.first))
    for quantity, op, value in facts:
        rows.add(
            "constraints",
            place,
            attempt=told.launch.number,
            step=chunk.last,
            quantity=quantity,
            op=op,
            value=float(value),
        )


def write_replayed(rows: Rows, told: Teller, found: Replay, queue: Queue) -> bool:
    """Write 1.10's traces as trajectories; False (and nothing written) if the queue contradicts them."""
    launch, shape = told.launch, told.shape
    newest: list[int] = []
    for one in found.rows:
        at = shape.version(one.pulled)
        by_queue = queue.newest_of(one.number, (one.pulled, one.pulled))
        newest.append(min(at, by_queue) if by_queue is not None else at)
        if newest[-1] < one.row["model_version"] - 1 + shape.base:
            return False
    per_step: dict[int, int] = {}
    # Of a split conversation nothing tells which rows are one trajectory's; that of its group's last row is one.
    last_of = {one.row["group_id"]: one.row["trace_id"] for one in found.rows if one.step <= launch.last}
    for one, version in zip(found.rows, newest, strict=True):
        row = one.row
        rows.add(
            "trajectories",
            row,
            "recorded",
            trajectory_id=row["trace_id"],
            group_id=None if row["group_id"] is None else f"{told.name}/g{row['group_id']}",
            attempt=launch.number,
            role="train",
            anonymous=told.forked,
            multiplicity_lo=int(not told.forked or last_of.get(row["group_id"]) == row["trace_id"]),
            multiplicity_hi=1,
            prompt_tokens=row["prompt_tokens"],
        )
        rows.add(
            "spans",
            row,
            "derived",
            trajectory_id=row["trace_id"],
            span_index=0,
            tokens_lo=row["completion_tokens"],
            tokens_hi=row["completion_tokens"],
            version_lo=row["model_version"] - 1 + shape.base,
            version_hi=version,
            monotone=True,
        )
        if one.step <= launch.last:
            rows.add("uses", row, "derived", trajectory_id=row["trace_id"], attempt=launch.number, step=one.step)
            per_step[one.step] = per_step.get(one.step, 0) + 1
        else:
            rows.add(
                "events",
                row,
                "derived",
                kind="sampled",
                trajectory_id=row["trace_id"],
                attempt=launch.number,
                step=one.step,
            )
    _complete(rows, told, found, per_step)
    return True


def _complete(rows: Rows, told: Teller, found: Replay, per_step: Mapping[int, int]) -> None:
    """State how many rows the last steps trained that were never flushed: fewer than a flush."""
    micro = told.settings.micro or 1
    for step in range(found.whole_until + 1, told.launch.last + 1):
        known = per_step.get(step, 0)
        least = most = (found.per_micro or 0) * micro
        if not found.per_micro:
            least, most = max(known, micro), known + 7
        values: list[tuple[str, str, int]] = [
            ("trajectories", "ge", 1 if told.forked else least),
            ("trajectories", "le", most),
        ]
        if (limit := _limit(told)) is not None:
            values.append(("staleness_max", "le", limit))
        for quantity, op, value in values:
            rows.add(
                "constraints", None, attempt=told.launch.number, step=step, quantity=quantity, op=op, value=float(value)
            )


def write_drops(rows: Rows, told: Teller) -> int:
    """Write dropped rows as classes of one window and one recorded version; return how many the sources prove."""
    story, launch = told.story, told.launch
    counted = sum(_counted(record) for record in launch.records.values() if record.trains)
    if story.whole and len(story.drops) >= counted:
        told.drops_known = True
        classes: dict[tuple[int, int, int | None], list[Drop]] = {}
        for drop in story.drops:
            classes.setdefault((drop.step_lo, drop.step_hi, drop.staleness), []).append(drop)
        for (low, high, staleness), members in classes.items():
            row = members[0].row
            _write_drop(rows, told, _Dropped((low, high), staleness, len(members), row, told.time(row["ts"])))
        return len(story.drops)
    logged = [step for step, record in launch.records.items() if batches.SAMPLES in record.values]
    # A launch that was stopped may have dropped rows for a step that it never logged.
    over = launch.finished is not None or launch.last == told.settings.max_steps
    told.drops_known = over and max(logged, default=0) == launch.last
    previous = launch.start
    for step in sorted(step for step, record in launch.records.items() if record.trains):
        record = launch.records[step]
        for name, stale in (("sample/dropped_stale_total", True), ("batch/dropped_oversize_total", False)):
            if number := round(record.get(name) or 0):
                place = record.values[name].__dict__
                _write_drop(rows, told, _Dropped((previous + 1, step), -1 if stale else None, number, place))
        previous = step
    return counted


@dataclass(frozen=True)
class _Dropped:
    """Rows dropped in the steps ``window``.

    ``staleness``: as logged at the check; -1 = stale, not said by how much; None = too long for the budget.
    """

    window: tuple[int, int]
    staleness: int | None
    count: int
    place: Mapping[str, Any]
    ts: datetime | None = None


def _write_drop(rows: Rows, told: Teller, dropped: _Dropped) -> None:
    window, staleness, count, place = dropped.window, dropped.staleness, dropped.count, dropped.place
    shape = told.shape
    low, high = shape.version(window[0]), shape.version(window[1])
    name = f"anonymous:{told.name}/dropped {window[0]}-{window[1]}/{'oversize' if staleness is None else staleness}"
    exact = staleness is not None and staleness >= 0
    known = told.settings.sync_every is not None
    oldest = max(low - (staleness or 0), shape.base) if exact and known else (shape.base if known else None)
    _add_class(rows, told, place, name, count, (oldest, high if known else None))
    step, versions = _collecting(shape, window)
    rows.add(
        "events",
        place,
        seq=place.get("line") or 0,
        ts=dropped.ts,
        kind="dropped",
        trajectory_id=name,
        attempt=told.launch.number,
        step=step,
        version_lo=versions[0] if known else None,
        version_hi=versions[1] if known else None,
        multiplicity=count,
        reason="other:oversize" if staleness is None else "stale",
    )


def _add_class(
    rows: Rows,
    told: Teller,
    place: Mapping[str, Any],
    name: str,
    count: int,
    versions: tuple[int | None, int | None],
) -> None:
    """Write ``count`` rows without identity, which may be parts of fewer trajectories, and the versions they hold."""
    rows.add(
        "trajectories",
        place,
        trajectory_id=name,
        attempt=told.launch.number,
        role="train",
        anonymous=True,
        multiplicity_lo=0 if told.forked else count,
        multiplicity_hi=count,
    )
    rows.add(
        "spans",
        place,
        trajectory_id=name,
        span_index=0,
        tokens_lo=count,
        tokens_hi=None,
        version_lo=versions[0],
        version_hi=versions[1],
        monotone=False,
    )


def _collecting(shape: Shape, window: tuple[int, int]) -> tuple[int | None, tuple[int, int]]:
    """Return the step whose micro-batch was being filled, if there is one such step, and its versions.

    With one micro-batch per step that is always the next step's (in the first step, where nothing can be stale, also
    its own); with several it is the running step's or, for the last of them, the next one's.
    """
    versions = shape.version(window[0]), shape.version(window[1] + 1)
    if shape.micro == 1 and window[0] == window[1]:
        return window[0] + 1, (versions[1], versions[1])
    if window[0] == window[1] and versions[0] == versions[1]:
        return window[0], versions
    return None, versions


def write_left(rows: Rows, told: Teller, trained: int, dropped: int, identified: int) -> None:
    """Write what was scored and neither trained nor dropped nor named: still queued when the launch ended."""
    story = told.story
    left = story.scored - trained - dropped - identified
    if not story.whole or left <= 0:
        return
    name = f"anonymous:{told.name}/queued"
    place = story.lines[-1]
    _add_class(rows, told, place, name, left, (told.shape.base, story.newest[-1]))
    rows.add("events", place, seq=place["line"], kind="enqueued", trajectory_id=name, attempt=told.launch.number)


def trained_rows(found: Iterable[Chunk]) -> int | None:
    """Rows trained in all chunks, if that is known."""
    total = 0
    for chunk in found:
        if chunk.rows[0] != chunk.rows[1]:
            return None
        total += chunk.rows[0]
    return total

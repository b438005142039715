"""When a delivered row was checked and trained, and how old its tokens can be (guide sections 4.4 to 4.6, 5.3).

Pure functions of a launch's shape. Steps are the framework's (optimizer steps, from 1), micro-batches and rows count
from the launch's start. Versions are DESIGN's: step ``s`` trains ``version(s) = (s - 1) // W``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

_WIDE = 64
"""Of more steps than this that a row can be trained in, only some are looked at: they repeat."""
_MANY = 20_000
"""Rows times steps of a window from which on those in its middle are bounded by the rules alone."""


@dataclass(frozen=True)
class Shape:
    """How a launch consumes rows.

    ``start``: the step it resumed after (0 = afresh); ``sync_every``: W; ``micro``: micro-batches per step, G (None =
    not known); ``per_micro``: rows per micro-batch where that is fixed; ``budget``: micro-batches are filled up to a
    token budget (None = not known); ``bound``: the configured threshold.
    """

    start: int
    sync_every: int
    micro: int | None
    per_micro: int | None
    budget: bool | None
    bound: int | None

    def version(self, step: int) -> int:
        """Version that a step starts from."""
        return max(step - 1, 0) // self.sync_every

    @property
    def base(self) -> int:
        """Version of the launch's first policy: nothing it trains is older."""
        return self.start // self.sync_every

    def pulled(self, step: int, *, row: int | None = None, first: bool | None = None) -> tuple[int, int]:
        """Return the steps in which a row trained in ``step`` can have been checked.

        ``row``: its number since the launch's start, which names the micro-batch in fixed-count mode. ``first``:
        whether it is its step's first row, which a token-budget batcher checks while it fills the batch before.
        """
        local = step - self.start
        if self.micro is None:
            return self._clamp(local - 2), self._clamp(local)
        if self.per_micro is not None and row is not None:
            number = row // self.per_micro + 1
            found = 1 if number <= self.micro + 1 else -(-(number - 1) // self.micro)
            return self._clamp(found), self._clamp(found)
        if self.micro == 1:
            early, late = self.budget is not False and first is not False, not (self.budget and first)
            return self._clamp(local - 2 if early else local - 1), self._clamp(local - 1 if late else local - 2)
        return self._clamp(local - 1), self._clamp(local - 1 if first else local)

    def _clamp(self, local: int) -> int:
        return self.start + max(local, 1)


@dataclass(frozen=True)
class Queue:
    """The sample queue as the console tells it.

    ``sizes``: rows per scored group, in queue order; ``newest``: the newest version that existed when the group was
    scored; ``drops_lo`` / ``drops_hi``: rows dropped until the end of a step, at least and at most; ``places``: queue
    positions of delivered rows that are known for other reasons.
    """

    sizes: Sequence[int] = ()
    newest: Sequence[int] = ()
    drops_lo: Mapping[int, int] = field(default_factory=dict)
    drops_hi: Mapping[int, int] = field(default_factory=dict)
    places: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", list(accumulate(self.sizes)))

    def group_at(self, position: int) -> int | None:
        """Return the number of the scored group that a queue position belongs to; None beyond what was scored."""
        ends: list[int] = self._ends  # type: ignore[attr-defined]
        found = bisect_right(ends, position)
        return found if found < len(ends) else None

    def place(self, row: int, pulled: tuple[int, int]) -> int | None:
        """Return a delivered row's exact queue position, if drops leave only one."""
        if row in self.places:
            return self.places[row]
        before = self.drops_lo.get(pulled[0] - 1)
        after = self.drops_hi.get(pulled[1])
        return row + after if before is not None and before == after else None

    def newest_of(self, row: int, pulled: tuple[int, int]) -> int | None:
        """Return the newest version a delivered row can hold by its place in the queue."""
        position = self.place(row, pulled)
        if position is None:
            dropped = self.drops_hi.get(pulled[1])
            if dropped is None:
                return None
            position = row + dropped
        group = self.group_at(position)
        return None if group is None else self.newest[group]


@dataclass(frozen=True)
class Span:
    """Rows of a batch with one interval: ``count`` of them from number ``row`` on.

    ``version_lo/hi`` hold for tokens (exact step); ``lag_lo/hi`` is the staleness interval of each row. ``group`` is
    the scored group they belong to, if known.
    """

    row: int | None
    count: int
    version_lo: int | None
    version_hi: int
    lag_lo: int
    lag_hi: int | None
    group: int | None


@dataclass(frozen=True)
class Batch:
    """Rows trained in the steps ``first`` to ``last`` together; ``row`` = number of the first of them, if known."""

    first: int
    last: int
    rows: int
    row: int | None


def spans(shape: Shape, queue: Queue, pulls: Mapping[int, int], batch: Batch) -> Iterator[Span]:
    """Bound the rows of a batch, merging neighbours that are alike. ``pulls``: largest staleness delivered, by step."""
    pending: Span | None = None
    for index, count in _probes(shape, queue, batch):
        span = _grow(_bound_row(shape, queue, pulls, batch, index), count - 1)
        if pending and _alike(pending, span):
            pending = _grow(pending, count)
        else:
            if pending:
                yield pending
            pending = span
    if pending:
        yield pending


def _probes(shape: Shape, queue: Queue, batch: Batch) -> Iterator[tuple[int | None, int]]:
    """Yield the rows to bound, each with how many it stands for; None is any row of the batch.

    Of rows without numbers one stands for all. Without a console, the rows of a micro-batch are alike, and so are all
    but the first of a step. In the middle of a long window little is known of a row but the rules.
    """
    steps = batch.last - batch.first + 1
    if batch.row is None:
        yield None, batch.rows
        return
    if not queue.sizes and shape.per_micro and shape.micro:
        for index in range(0, batch.rows, shape.per_micro):
            yield index, min(shape.per_micro, batch.rows - index)
        return
    exact = steps == 1 or (shape.per_micro and shape.micro)
    edge = 1 if steps == 1 else 4 * steps
    if (not queue.sizes or (not exact and batch.rows * steps > _MANY)) and batch.rows > 2 * edge + 1:
        yield from ((index, 1) for index in range(edge))
        if steps == 1:
            yield 1, batch.rows - 1
            return
        yield None, batch.rows - 2 * edge
        yield from ((index, 1) for index in range(batch.rows - edge, batch.rows))
        return
    yield from ((index, 1) for index in range(batch.rows))


def _alike(one: Span, other: Span) -> bool:
    return (one.version_lo, one.version_hi, one.lag_lo, one.lag_hi, one.group) == (
        other.version_lo,
        other.version_hi,
        other.lag_lo,
        other.lag_hi,
        other.group,
    )


def _grow(span: Span, count: int) -> Span:
    return Span(span.row, span.count + count, span.version_lo, span.version_hi, span.lag_lo, span.lag_hi, span.group)


def _steps_of(shape: Shape, batch: Batch, index: int | None) -> tuple[int, int]:
    """Return the steps that the row ``index`` of a batch can be trained in: each step takes at least G rows."""
    if batch.row is None or index is None:
        return batch.first, batch.last
    if shape.per_micro is not None and shape.micro is not None:
        step = shape.start + (batch.row + index) // (shape.per_micro * shape.micro) + 1
        return max(batch.first, min(step, batch.last)), max(batch.first, min(step, batch.last))
    least = shape.micro or 1
    return (
        max(batch.first, batch.last - (batch.rows - 1 - index) // least),
        min(batch.last, batch.first + index // least),
    )


def _looked_at(shape: Shape, earliest: int, latest: int) -> Sequence[int]:
    """Return the steps to look at: all, or the ends and those around a sync, where what passed since a pull changes."""
    if latest - earliest <= _WIDE:
        return range(earliest, latest + 1)
    sync = -(-earliest // shape.sync_every) * shape.sync_every
    picked = {*range(earliest, earliest + 4), *range(sync, sync + 4), *range(latest - 3, latest + 1)}
    return sorted(step for step in picked if earliest <= step <= latest)


def _bound_row(shape: Shape, queue: Queue, pulls: Mapping[int, int], batch: Batch, index: int | None) -> Span:
    earliest, latest = _steps_of(shape, batch, index)
    row = None if batch.row is None or index is None else batch.row + index
    steps = _looked_at(shape, earliest, latest)
    if latest - earliest > _WIDE:
        row = None
    version_lo: int | None = None
    version_hi = lag_hi = 0
    lag_lo: int | None = None
    known = True
    group: int | None = None
    # Of rows without numbers one stands for all.
    first: bool | None = None
    if row is not None and index == 0:
        first = True
    elif row is not None and index and batch.first == batch.last:
        first = False
    for number, step in enumerate(steps):
        pulled = shape.pulled(step, row=row, first=first)
        low, high = _versions(shape, queue, pulls, row, pulled)
        at = shape.version(step)
        version_hi = max(version_hi, high)
        lag_lo = at - high if lag_lo is None else min(lag_lo, at - high)
        known = known and low is not None
        if low is not None:
            version_lo = low if version_lo is None else min(version_lo, low)
            lag_hi = max(lag_hi, at - low)
        if row is not None:
            place = queue.place(row, pulled)
            here = None if place is None else queue.group_at(place)
            group = here if number == 0 or group == here else None
    return Span(
        row, 1, version_lo if known else None, version_hi, max(lag_lo or 0, 0), lag_hi if known else None, group
    )


def _versions(
    shape: Shape, queue: Queue, pulls: Mapping[int, int], row: int | None, pulled: tuple[int, int]
) -> tuple[int | None, int]:
    """Return the oldest and newest version of the tokens of a row checked in one of the steps ``pulled``."""
    newest = shape.version(pulled[1])
    if row is not None and (by_queue := queue.newest_of(row, pulled)) is not None:
        newest = min(newest, by_queue)
    oldest: int | None = None
    for step in range(pulled[0], pulled[1] + 1):
        largest = pulls.get(step, shape.bound)
        if largest is None:
            return shape.base, max(newest, shape.base)
        low = max(shape.version(step) - largest, shape.base)
        oldest = low if oldest is None else min(oldest, low)
    return oldest, newest


def joined(parts: Sequence[Span]) -> Span:
    """Return one span for all parts, for rows that can't be told apart by number."""
    highs = [part.lag_hi for part in parts]
    lows = [part.version_lo for part in parts]
    groups = {part.group for part in parts}
    return Span(
        parts[0].row,
        sum(part.count for part in parts),
        min((low for low in lows if low is not None), default=None) if None not in lows else None,
        max(part.version_hi for part in parts),
        min(part.lag_lo for part in parts),
        max((high for high in highs if high is not None), default=None) if None not in highs else None,
        groups.pop() if len(groups) == 1 else None,
    )


def deliveries(sizes: Sequence[int], delivered: int) -> list[bool] | None:
    """Tell which of the groups in a slice of the queue were delivered whole, the rest having been dropped whole.

    Pulling stops with a delivered row, so the last group counts. Returns None unless only one choice adds up to the
    number of ``delivered`` rows.
    """
    if not sizes or sum(sizes) < delivered or delivered < sizes[-1]:
        return None
    target = delivered - sizes[-1]
    # Sums that the groups from each on (but the last) can make, as bits.
    tails = [1]
    for size in reversed(sizes[:-1]):
        tails.append((tails[-1] | tails[-1] << size) & ((1 << target + 1) - 1))
    tails.reverse()
    chosen: list[bool] = []
    for index, size in enumerate(sizes[:-1]):
        rest = tails[index + 1]
        taken = size <= target and bool(rest >> (target - size) & 1)
        left = bool(rest >> target & 1)
        if taken == left:
            return None
        chosen.append(taken)
        target -= size if taken else 0
    return [*chosen, True] if target == 0 else None


def micro_batches(lengths: Sequence[int], budget: int, processes: int) -> list[int]:
    """Replay the token-budget batcher up to 1.15: the number of the micro-batch (from 0) that each row goes to.

    A row goes to the least loaded process (load = sum of squared lengths) that has room; if none has, it opens the
    next micro-batch.
    """
    loads, fills = [0] * processes, [0] * processes
    numbers: list[int] = []
    current = 0
    for length in lengths:
        room = [index for index in range(processes) if fills[index] + length <= budget]
        if not room:
            current += 1
            loads, fills = [0] * processes, [0] * processes
            room = [0]
        target = min(room, key=lambda index: (loads[index], index))
        loads[target] += length * length
        fills[target] += length
        numbers.append(current)
    return numbers

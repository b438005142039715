"""What was trained, by the sums the metrics give, or by the rules where they give none (guide sections 4.5 and 5.1)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from staleness_parsers.trl.launches import Launch, Record, Value
from staleness_parsers.trl.replay import Shape
from staleness_parsers.trl.settings import Settings

SAMPLES, TOKENS = "batch/samples_per_step", "batch/trained_tokens_per_step"
PER_ROLLOUT = "rollout/samples_per_rollout"
_DRIFT = 0.25
"""Sums of means are not quite whole (3.74999998 x 4); further off than this they are not taken for exact."""


@dataclass(frozen=True)
class Chunk:
    """The steps ``first`` to ``last`` trained ``rows`` (lo, hi) with ``tokens`` (lo, hi); hi None = not known."""

    first: int
    last: int
    rows: tuple[int, int | None]
    tokens: tuple[int, int | None]
    place: Value | None


def shape_of(launch: Launch, settings: Settings) -> Shape:
    """Return how a launch consumes rows; in fixed-count mode the metrics tell how many processes there were."""
    per_step = None
    if settings.budget is False:
        per_step = settings.samples
        means = {record.values[SAMPLES].value for record in launch.records.values() if SAMPLES in record.values}
        exact = {round(mean) for mean in means if mean is not None}
        if len(exact) == 1 and all(abs(mean - round(mean)) < 1e-3 for mean in means if mean is not None):
            per_step = exact.pop()
    micro = settings.micro
    per_micro = per_step // micro if per_step and micro and per_step % micro == 0 else None
    return Shape(launch.start, settings.sync_every or 1, micro, per_micro, settings.budget, settings.bound)


def window(settings: Settings, launch: Launch) -> int | None:
    """Return the steps per log record: as configured, else the smallest distance between records."""
    if settings.logging:
        return settings.logging
    steps = sorted(step for step, record in launch.records.items() if record.trains)
    gaps = [later - earlier for earlier, later in zip([launch.start, *steps], steps, strict=False)]
    return min((gap for gap in gaps if gap > 0), default=None)


def chunks(launch: Launch, shape: Shape, settings: Settings, per_record: int | None) -> Iterator[Chunk]:
    """Yield what the records say, in order, and what they leave open between and after them."""
    # Each process has a row in each micro-batch, or as many as one of fixed count has.
    least = (shape.micro or 1) * ((settings.size or 1) if settings.budget is False else 1)
    previous = launch.start
    for step in sorted(step for step, record in launch.records.items() if record.trains and step > launch.start):
        record = launch.records[step]
        begin = previous
        if per_record and step - previous > per_record and previous > launch.start:
            begin = step - per_record
            yield from _unknown(shape, previous + 1, begin, least)
        # After a resume it may be open how many steps the first record sums over.
        most = step - (launch.start_lo if begin == launch.start else begin)
        rows, tokens = _sum(record, SAMPLES, step - begin, most), _sum(record, TOKENS, step - begin, most)
        if rows is None or rows[1] < 1:  # what trains no row is no step
            yield from _unknown(shape, begin + 1, step, least)
        else:
            place = record.values[SAMPLES]
            yield Chunk(begin + 1, step, rows, tokens or (rows[0], None), place)
        previous = step
    yield from _unknown(shape, previous + 1, launch.last, least)


def split(chunk: Chunk, shape: Shape, cuts: Iterable[int]) -> Iterator[Chunk]:
    """Cut a chunk where a later launch resumed: what comes after counts nowhere, so the two must not be one."""
    for cut in sorted({cut for cut in cuts if chunk.first <= cut < chunk.last}):
        before, after = cut - chunk.first + 1, chunk.last - cut
        least = (shape.per_micro or 1) * (shape.micro or 1)
        most = chunk.rows[1]
        heads = (before * least, None if most is None else most - after * least)
        tails = (after * least, None if most is None else most - before * least)
        if shape.per_micro and shape.micro:
            heads, tails = (before * least, before * least), (after * least, after * least)
        tokens = chunk.tokens[1]
        yield Chunk(chunk.first, cut, heads, (heads[0], None if tokens is None else tokens - tails[0]), chunk.place)
        rest = (tails[0], None if tokens is None else tokens - heads[0])
        chunk = Chunk(cut + 1, chunk.last, tails, rest, chunk.place)
    yield chunk


def _unknown(shape: Shape, first: int, last: int, least: int) -> Iterator[Chunk]:
    """Yield steps of which no sum is known: in fixed-count mode the rows still are."""
    if shape.per_micro and shape.micro:
        rows = shape.per_micro * shape.micro
        for step in range(first, last + 1):
            yield Chunk(step, step, (rows, rows), (rows, None), None)
    elif first <= last:
        yield Chunk(first, last, ((last - first + 1) * least, None), ((last - first + 1) * least, None), None)


def _sum(record: Record, name: str, least: int, most: int) -> tuple[int, int] | None:
    """Return a mean times the steps it is over; None if the record does not have it."""
    found = record.values.get(name)
    if found is None or found.value is None or found.value < 0:
        return None
    error = 0.0
    if found.origin == "console" and found.value:
        error = 0.5 * 10.0 ** (math.floor(math.log10(found.value)) - 3)
    elif found.origin == "tensorboard":
        error = found.value * 2.0**-24
    low, high = (found.value - error) * least, (found.value + error) * most
    if least == most and high - low < _DRIFT and abs(found.value * least - round(found.value * least)) < _DRIFT:
        return round(found.value * least), round(found.value * least)
    inner = math.ceil(low - _DRIFT), math.floor(high + _DRIFT)
    return inner if inner[0] <= inner[1] else (math.floor(low), math.ceil(high))


def pulls(launch: Launch, per_record: int | None) -> dict[int, int]:
    """Return the largest recorded staleness of the rows delivered in each step, where a record gives it."""
    found: dict[int, int] = {}
    previous = launch.start_lo
    for step in sorted(step for step, record in launch.records.items() if record.trains):
        largest = launch.records[step].get("sample/staleness_max")
        begin = max(previous, step - per_record) if per_record and previous > launch.start_lo else previous
        if largest is not None:
            found.update(dict.fromkeys(range(begin + 1, step + 1), math.ceil(largest - 1e-6)))
        previous = step
    return found


def forked(launches: Sequence[Launch], settings: Settings, traced: Iterable[int]) -> bool:
    """Whether conversations may have been split into several rows, so that rows are not trajectories.

    Since 1.11 the records tell. Before, only groups of the right size show that none was: those of the log's lines of
    scoring, or of the traces (``traced``: delivered rows of each group).
    """
    records = [record for launch in launches for record in launch.records.values()]
    events = [row for launch in launches for one in launch.consoles for row in one.events]
    sizes = [*traced, *(row["count"] or 0 for row in events if row["kind"] == "score")]
    if settings.generations is not None and any(size > settings.generations for size in sizes):
        return True
    told = [record.get(PER_ROLLOUT) for record in records if PER_ROLLOUT in record.values]
    if any((value or 1) > 1 for value in told) or any((record.get("rollout/fork_frac") or 0) > 0 for record in records):
        return True
    return not told and (settings.generations is None or not sizes)

"""Replaying the traces of 1.10: which step trained which row (guide section 5.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from staleness_parsers.trl.launches import Launch
from staleness_parsers.trl.replay import Shape, micro_batches
from staleness_parsers.trl.settings import Settings

Row = Mapping[str, Any]
FLUSH = 8
_PROCESSES = 256


@dataclass(frozen=True)
class Replayed:
    """A trace row, the step that trains it and the step that checked it; ``number`` counts the launch's rows."""

    row: Row
    number: int
    step: int
    pulled: int


@dataclass(frozen=True)
class Replay:
    """All traces of a launch, replayed.

    ``per_micro``: rows per micro-batch in fixed-count mode; ``whole_until``: last step all of whose rows are there.
    """

    rows: Sequence[Replayed]
    per_micro: int | None
    whole_until: int


def by_launch(rows: Sequence[Row], launches: Sequence[Launch]) -> dict[int, list[Row]]:
    """Sort trace rows by launch: the flush that wrote them stands between the launch's metrics."""
    of_flush = {flush: launch.number for launch in launches for flush in launch.flushes}
    found: dict[int, list[Row]] = {}
    for row in rows:
        number = of_flush.get(row["log_id"], launches[-1].number if len(launches) == 1 else None)
        if number is not None:
            found.setdefault(number, []).append(row)
    return found


def replay(rows: Sequence[Row], launch: Launch, shape: Shape, settings: Settings) -> Replay | None:
    """Replay the delivery order for every number of processes until all flush labels agree; None if none does.

    A flush is written while its last row is pulled, and its ``step`` is the version label then (1 = the launch's first
    policy): a lost flush or a wrong count shifts the rows after it against the labels.
    """
    if not settings.micro or any(row["completion_tokens"] is None or row["model_version"] is None for row in rows):
        return None
    for processes in range(1, _PROCESSES + 1):
        numbers = _micro_numbers(rows, settings, processes)
        if numbers is None:
            return None
        per_micro = None if settings.budget else (settings.size or 0) * processes
        if not _ends_right(len(rows), numbers, launch, settings.micro, per_micro):
            continue
        replayed = list(_steps(rows, numbers, shape, settings))
        if all(_agrees(one, shape) for one in replayed[FLUSH - 1 :: FLUSH]):
            # The last micro-batch may lack rows that were never flushed.
            complete = len(rows) // (per_micro * settings.micro) if per_micro else numbers[-1] // settings.micro
            return Replay(replayed, per_micro, shape.start + complete)
    return None


def _micro_numbers(rows: Sequence[Row], settings: Settings, processes: int) -> list[int] | None:
    """Micro-batch of each row, from 0."""
    if settings.budget:
        if settings.budget_tokens is None:
            return None
        lengths = [(row["prompt_tokens"] or 0) + row["completion_tokens"] for row in rows]
        return micro_batches(lengths, settings.budget_tokens, processes)
    if settings.budget is None or not settings.size:
        return None
    return [number // (settings.size * processes) for number in range(len(rows))]


def _ends_right(count: int, numbers: Sequence[int], launch: Launch, micro: int, per_micro: int | None) -> bool:
    """Whether as many rows were delivered as the steps took: less up to 7 unflushed ones, plus a started step."""
    steps = launch.last - launch.start
    if per_micro is not None:
        return (steps * micro + 1) * per_micro - FLUSH < count <= ((steps + 1) * micro + 1) * per_micro
    return steps * micro - FLUSH <= numbers[-1] <= (steps + 1) * micro + 1


def _steps(rows: Sequence[Row], numbers: Sequence[int], shape: Shape, settings: Settings) -> Iterator[Replayed]:
    micro = settings.micro or 1
    for number, (row, index) in enumerate(zip(rows, numbers, strict=True)):
        opens = bool(settings.budget) and number > 0 and numbers[number - 1] != index
        # What opens a micro-batch was checked while the one before was filled.
        checked = index if opens else index + 1
        pulled = 1 if checked <= micro + 1 else -(-(checked - 1) // micro)
        yield Replayed(row, number, shape.start + index // micro + 1, shape.start + pulled)


def _agrees(one: Replayed, shape: Shape) -> bool:
    label = one.row["step"]
    return label is None or shape.base + label - 1 == shape.version(one.pulled)

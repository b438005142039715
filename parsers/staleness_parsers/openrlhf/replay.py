"""Two clocks: from the timings of a launch's steps to the versions behind each batch (guide section 5.5, rule 9).

A moment is a pair (part, seconds). Within a part the trainer's clock is known; an evaluation or a step without timings
begins a new part, an unknown time after all that came before. Nothing here knows files or tables.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from staleness_parsers.openrlhf.launches import Batch, Item

Moment = tuple[float, float]
Mode = Literal["default", "partial", "synchronous"] | None

SLACK: Final = 0.05
"""Seconds of a step that may lie between its timers, so that a broadcast began that much earlier than they say."""
NEVER: Final[Moment] = (-1.0, 0.0)


@dataclass(frozen=True)
class Versions:
    """What is known of the versions behind some samples.

    Their oldest token is of ``oldest_lo`` to ``oldest_hi``, and none is newer than ``newest``.
    """

    oldest_lo: int
    oldest_hi: int
    newest: int

    def union(self, other: Versions) -> Versions:
        """What holds for samples that are of one or the other."""
        return Versions(
            min(self.oldest_lo, other.oldest_lo), max(self.oldest_hi, other.oldest_hi), max(self.newest, other.newest)
        )


@dataclass(frozen=True)
class Timeline:
    """The trainer's clock at each item: earliest and latest times of what an item's step did."""

    take_lo: list[Moment]
    take_hi: list[Moment]
    begins: list[Moment]
    ends: list[Moment]


def timeline(items: Sequence[Item]) -> Timeline:
    """Add up the timings of a launch; ``begins`` and ``ends`` have one entry per batch (of its broadcast)."""
    part, now = 0.0, 0.0
    line = Timeline([], [], [], [])
    logged: Moment = (part, now)
    for item in items:
        # An evaluation may stand on either side of steps that no log has: those may have begun before it.
        before = logged if isinstance(item, Batch) and item.hole else (part, now)
        if isinstance(item, Batch) and item.timed:
            end = now + item.metrics["timing/step_total"]
            take = max(end - item.work, now)
            line.take_hi.append((part, take))
            line.begins.append((part, max(end - item.metrics["timing/broadcast"] - SLACK, now)))
            now = end
            line.ends.append((part, now))
        else:
            part, now = part + 1, 0.0
            line.take_hi.append((part, now))
            if isinstance(item, Batch):
                line.begins.append(before)
                line.ends.append((part, now))
        line.take_lo.append(before)
        if isinstance(item, Batch):
            logged = (part, now)
    return line


def replay(
    items: Sequence[Item], queue: int | None, mode: Mode, floors: Sequence[int], *, began: bool, steady: bool = True
) -> list[Versions]:
    """Return, per batch, the versions of the call that its step's ``timing/generation`` tells of.

    ``queue``: Q, None if unknown. ``floors``: per batch, the version that no token of its call is older than, whatever
    the clocks say (rule 8). ``began``: the launch's first item is ``items[0]``. ``steady``: the release has permits
    (0.9.1 and later) and every call made a batch, so that with Q = 1 in default mode a call is made between a take and
    the next broadcast.
    """
    line = timeline(items)
    first = next((item.step - 1 for item in items if isinstance(item, Batch)), 0)
    result: list[Versions] = []
    free = NEVER
    evaluations = 0
    for place, item in enumerate(items):
        evaluations = evaluations + 1 if not isinstance(item, Batch) else evaluations if item.hole else 0
        earliest = place - evaluations if isinstance(item, Batch) else place
        permit = line.take_lo[earliest - queue] if queue is not None and earliest >= queue else NEVER
        start = max(free, permit)
        if not isinstance(item, Batch):
            free = start
            continue
        number, trained = len(result), item.step - 1
        floor = floors[number]
        if mode == "synchronous":
            result.append(Versions(trained, trained, trained))
            continue
        oldest = first + bisect_right(line.ends, start) if start != NEVER else floor
        latest, newest = trained, first + bisect_left(line.begins, line.take_hi[place], hi=number)
        if item.generation is not None and item.timed:
            latest = first + bisect_left(line.begins, _earlier(line.take_hi[place], item.generation), hi=number)
            free = (start[0], start[1] + max(item.generation - SLACK, 0.0)) if start != NEVER else NEVER
        if began and number == 0:
            oldest = latest = newest = first
        elif (
            steady
            and mode == "default"
            and queue == 1
            and floor == trained - 1
            and place
            and isinstance(items[place - 1], Batch)
        ):
            oldest = latest = trained - 1
        oldest = min(max(oldest, floor), trained)
        latest = max(min(latest, trained), oldest)
        newest = latest if mode == "default" else max(min(newest, trained), latest)
        result.append(Versions(oldest, latest, newest))
    return result


def _earlier(moment: Moment, seconds: float) -> Moment:
    """Latest start of a call that took ``seconds`` and was over by ``moment``.

    Not before the part: its own beginning is an unknown time after the part before.
    """
    return moment[0], max(moment[1] - seconds, 0.0)

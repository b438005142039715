"""RLVR: spans that must have been there and are not, by what they leave behind in the others.

Prompts of a scheduler are numbered without gaps in the order in which they begin; one that ends outside of the driver's
pauses has all of its responses scored; and a response's requests follow each other at once, since an aborted one is
sent again within the pause that aborted it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from staleness_parsers.roll.timeline import Span, Timeline

if TYPE_CHECKING:
    from staleness_parsers.roll.rlvr import Prompt, Response


@dataclass(frozen=True)
class Unseen:
    """A prompt that may have been finished unseen. ``since``: it was not before. ``step``: it began in none before.

    ``lost``: it did end, so that spans were lost; otherwise it may have been running when the launch ended.
    """

    since: int
    step: int
    lost: bool


def unseen(members: Sequence[Prompt], timeline: Timeline, size: int | None, window: int) -> list[Unseen]:
    """Find whom one scheduler of one launch may have finished unseen; ``members``: its prompts."""
    if not members:
        return []
    pauses, _ = timeline.launch(members[0].attempt)
    last_pause = max(pauses, default=-1)
    closed = {prompt.number: prompt for prompt in members if not prompt.open and prompt.number is not None}
    oldest = _oldest_after(closed)
    numbers = [prompt.number for prompt in members if prompt.number is not None]
    found = []
    since, step = 0, 0
    for number in range(max(numbers, default=-1) + 1):
        prompt = closed.get(number)
        if prompt is None:
            found.append((number, since, step))
            continue
        since, step = max(since, prompt.start), max(step, prompt.start_step or 0)
    return [
        *(
            Unseen(start, first, number in oldest and last_pause > oldest[number] + window)
            for number, start, first in found
        ),
        *(
            Unseen(prompt.end, prompt.start_step or 0, lost=True)
            for prompt in members
            if not prompt.open and prompt.end is not None and _torn(prompt, prompt.end, pauses, size)
        ),
    ]


def _oldest_after(closed: Mapping[int, Prompt]) -> dict[int, int]:
    """Return the oldest start step of those with a greater number, by number.

    Once the pause that collects it is over, so is every prompt of that number: nobody runs longer.
    """
    found: dict[int, int] = {}
    oldest: int | None = None
    for number in range(max(closed, default=-1), -1, -1):
        if oldest is not None:
            found[number] = oldest
        step = closed[number].start_step if number in closed else None
        if step is not None:
            oldest = step if oldest is None else min(oldest, step)
    return found


def _torn(prompt: Prompt, end: int, pauses: Mapping[int, Span], size: int | None) -> bool:
    """Whether a prompt ended as only finished ones do, and lacks responses or rewards."""
    if not size or prompt.place["failed"] or (prompt.answers >= size and prompt.rewards >= size):
        return False
    between = bool(pauses) and end < max(pause["start"] for pause in pauses.values())
    return between and not any(pause["start"] <= end <= pause["end"] for pause in pauses.values())


def requests(prompt: Prompt, response: Response) -> list[tuple[int, int, bool]]:
    """Return a response's requests as (start, end, seen), with the times between them in which one may have been lost.

    Nothing was between them where the versions at both ends are the same and no pause begins.
    """
    start = response.place["start"] if not response.open else None if prompt.open else prompt.start
    end = response.scored if response.scored is not None else None if response.open else response.place["end"]
    found = []
    for segment in response.segments:
        if start is not None and start < segment["start"]:
            found.append((start, segment["start"], False))
        found.append((segment["start"], segment["end"], True))
        start = segment["end"]
    if start is not None and end is not None and start < end:
        found.append((start, end, False))
    return found

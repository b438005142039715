"""What was never trained: groups without variance, partial batches, what a launch left behind.

Guide sections 4, 5.2 and 8.

Only ``sample_full_batch`` drops groups, and the metrics count them per step. What the last, incomplete batch of an
epoch dropped is in no metric, but an epoch that is exhausted has used all its N*B prompts, each trained or dropped
(pitfall 9). At any moment at most (S+1)*B groups are admitted and untrained, which bounds what a launch can leave
behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from staleness_audit.solve import Range
from staleness_parsers.skyrl.batches import Frame
from staleness_parsers.skyrl.history import Stretch, surviving
from staleness_parsers.skyrl.launches import Step


@dataclass(frozen=True)
class Drop:
    """Dropped trajectories of one step being collected; ``newest`` version that any token of theirs can have."""

    attempt: int
    step: int
    trajectories: Range
    tokens: tuple[int, int | None]
    reason: str
    newest: int
    source: str | None
    line: int | None


def drops(found: Sequence[Stretch], frames: Mapping[int, Frame]) -> Iterator[Drop]:
    """Yield what was dropped, step by step and at the ends of epochs."""
    for stretch in found:
        samples = frames[stretch.attempt].samples
        for number, step in stretch.launch.steps.items():
            if number < stretch.first or not (count := step.size("async/num_groups_dropped")):
                continue
            size = count * samples
            newest = stretch.v_train(number)[1]
            tokens = _dropped_tokens(step, size)
            yield Drop(stretch.attempt, number, (size, size), tokens, "zero_advantage", newest, step.source, step.line)
    yield from _exhausted(found, frames)


def _dropped_tokens(step: Step, rows: int) -> tuple[int, int | None]:
    mean = step.figure("generate_dropped/avg_assistant_tokens")
    return (mean.count(rows) if mean else None) or (rows, None)


def _exhausted(found: Sequence[Stretch], frames: Mapping[int, Frame]) -> Iterator[Drop]:
    """Yield the drops after the last step of each epoch that used up its prompts."""
    path = surviving(found)
    for index, (stretch, last) in enumerate(path):
        launch, frame = stretch.launch, frames[stretch.attempt]
        epoch, planned = last.size("trainer/epoch"), launch.per_epoch
        if not launch.settings.refill or epoch is None or planned is None or len(frame.sizes) != 1:
            continue
        following = path[index + 1][1].size("trainer/epoch") if index + 1 < len(path) else None
        ended = following not in (None, epoch) if index + 1 < len(path) else bool(launch.done and not launch.stopped)
        if not ended:
            continue
        steps = [step for _, step in path[: index + 1] if step.size("trainer/epoch") == epoch]
        if any("async/num_groups_dropped" not in step.figures for step in steps):
            continue
        counted = sum(step.size("async/num_groups_dropped") or 0 for step in steps)
        left = frame.sizes[0] * (planned - len(steps)) - counted
        mark = next((mark for mark in launch.exhausted if mark["value"] == epoch), None)
        partial = min(mark["number"] if mark else 0, max(left, 0))
        place = (mark["source"], mark["line"]) if mark else (last.source, last.line)
        number, newest = (last.number or 0) + 1, stretch.v_train(last.number or 0)[1] + 1
        for count, reason in ((left - partial, "zero_advantage"), (partial, "surplus")):
            if count > 0:
                size = count * frame.samples
                yield Drop(stretch.attempt, number, (size, size), (size, None), reason, newest, *place)


def drops_are_told(stretch: Stretch) -> bool:
    """Whether every drop of a launch is counted somewhere; without the refill there are none, nor their number."""
    launch = stretch.launch
    if launch.settings.known and not launch.settings.refill:
        return True
    # The last wait of an epoch that is exhausted takes nothing; what it dropped follows from the epoch.
    ended = bool(launch.done)
    steps = [step for step in launch.steps.values() if step.taken or step.completed or not ended]
    counted = ["async/num_groups_dropped" in step.figures for step in steps]
    if any(counted) or launch.settings.refill:
        return all(counted) and launch.per_epoch is not None
    return bool(counted) and all(step.words for step in steps)


def left_over(stretch: Stretch, frame: Frame) -> int | None:
    """Return how many trajectories can have been admitted and untrained at the end of a launch; None if not known."""
    launch = stretch.launch
    if launch.done and not launch.stopped:
        return 0
    bound = launch.settings.bound if launch.settings.bound is not None else launch.stated_bound
    if bound is None or len(frame.sizes) != 1:
        return None
    held = any(step.taken and not step.completed for step in launch.steps.values())
    return (bound + 1 - held) * frame.sizes[0] * frame.samples

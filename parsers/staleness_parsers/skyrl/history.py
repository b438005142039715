"""Attempts, versions and epochs: where each launch stands in the run (guide sections 3, 4 and 8).

Version v is the policy after v completed global steps. Inside a launch the batch of step g is trained on v{g-1}, up to
a constant: a checkpoint written at the end of training carries the number of a step that nobody did (pitfall 1), so
that a run resumed from it skips a number but no version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from staleness_audit.parser import Attempt
from staleness_audit.solve import Range
from staleness_parsers.skyrl.launches import Launch, Step


@dataclass
class Stretch:
    """A launch as an attempt.

    ``first``: its first step. ``resumed``: last step whose weights it began with (0 = none). ``base``: version that
    step ``first`` starts from. ``tops``: for each step, how many steps before it its oldest group can have been
    admitted, as generation starts anew with every launch and every epoch.
    """

    attempt: int
    launch: Launch
    first: int
    resumed: Range
    base: Range
    tops: dict[int, int] = field(default_factory=dict)

    def v_train(self, step: int) -> Range:
        """Return the version a step starts from."""
        return self.base[0] + step - self.first, self.base[1] + step - self.first


def stretches(launches: Sequence[Launch]) -> list[Stretch]:
    """Put the launches in a row; each knows from which step on it went."""
    found: list[Stretch] = []
    for attempt, launch in enumerate(launches):
        said = (launch.resumed_after or 0) + 1
        first = min(launch.steps, default=said) if launch.resumed_after is None else min([said, *launch.steps])
        resumed = _resumed(found, first - 1)
        stretch = Stretch(attempt, launch, first, resumed, _base(found, resumed))
        # Where the beginning of a launch is lost, its oldest groups may be from any step before; a tracker may also
        # have opened its file anew.
        stretch.tops = _tops(launch, first if launch.console and launch.resumed_after is not None else 1)
        found.append(stretch)
    return found


def _resumed(before: Sequence[Stretch], number: int) -> Range:
    """Return the last step that had been done when the checkpoint of this number was written."""
    for stretch in reversed(before):
        if number in stretch.launch.saved:
            return stretch.launch.saved[number], stretch.launch.saved[number]
    path = {step.number: step for _, step in surviving(before, number)}
    step, earlier = path.get(number), path.get(number - 1)
    if step is None:
        # Trackers are told of a step before its checkpoint is written, so this number is from the end of training.
        skipped = earlier is not None and not any(stretch.launch.console for stretch in before)
        return number - skipped, number - skipped
    # Where an epoch ends early, a checkpoint is written under the number of the next one's first step.
    early = "async/num_groups_dropped" in step.figures and earlier is not None
    early = early and step.size("trainer/epoch") != path[number - 1].size("trainer/epoch")
    return number - early, number


def _base(before: Sequence[Stretch], resumed: Range) -> Range:
    """Return the version that a launch starts from which goes on after these steps."""
    if resumed[1] <= 0:
        return 0, 0
    path = surviving(before, resumed[1])
    if not path:
        # The launches before are not at hand; each may have left a number out.
        return 0, resumed[1]
    stretch, step = path[-1]
    low, high = stretch.v_train(step.number or 0)
    missing = resumed[1] - (step.number or 0)
    return low + 1 - (resumed[1] - resumed[0]), high + 1 + missing


def surviving(stretches_: Sequence[Stretch], last: int | None = None) -> list[tuple[Stretch, Step]]:
    """Return the completed steps that no later launch rolled back, up to the number ``last``."""
    path: list[tuple[Stretch, Step]] = []
    for stretch in stretches_:
        path = [item for item in path if (item[1].number or 0) <= stretch.resumed[1]]
        steps = stretch.launch.steps
        path += [(stretch, steps[at]) for at in sorted(steps) if at >= stretch.first and steps[at].completed]
    return [item for item in path if last is None or (item[1].number or 0) <= last]


def _tops(launch: Launch, first: int) -> dict[int, int]:
    tops = {}
    start, seen, epoch = first, first, None
    for number in sorted(launch.steps):
        named = launch.steps[number].size("trainer/epoch")
        if named is not None and epoch is not None and named != epoch:
            start = seen + 1
        if named is not None:
            epoch, seen = named, number
        tops[number] = max(number - start, 0)
    return tops


def attempts(found: Sequence[Stretch]) -> tuple[Attempt, ...]:
    """Return the launches for the core; the first one of a log that resumes supersedes nothing that is at hand."""
    return tuple(
        Attempt(
            stretch.attempt,
            None if stretch.attempt == 0 else stretch.resumed[1],
            None if stretch.attempt == 0 else stretch.resumed[0],
            started=stretch.launch.first_ts,
            ended=stretch.launch.marks[-1]["ts"] if stretch.launch.marks else None,
        )
        for stretch in found
    )

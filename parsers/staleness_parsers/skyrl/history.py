"""Attempts, versions and epochs: where each launch stands in the run (guide sections 3, 4 and 8).

Version v is the policy after v completed global steps. Inside a launch the batch of step g is trained on v{g-1}, up to a
constant: a checkpoint written at the end of training carries the number of a step that nobody did (pitfall 1), so that a
run resumed from it skips a number but no version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from staleness_audit.parser import Attempt
from staleness_audit.solve import Range
from staleness_parsers.skyrl.launches import Launch, Step


@dataclass
class Stretch:
    """A launch as an attempt. ``base``: version that step ``first`` starts from. ``tops``: for each step, how many steps its
    oldest group can have been admitted before it, as generation starts anew with every launch and every epoch.
    """

    attempt: int
    launch: Launch
    first: int
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
        stretch = Stretch(attempt, launch, first, _base(found, first - 1))
        # Where the beginning of a launch is lost, its oldest groups may be from any step before.
        stretch.tops = _tops(launch, 1 if launch.resumed_after is None else first)
        found.append(stretch)
    return found


def _base(before: Sequence[Stretch], resumed_after: int) -> Range:
    """Return the version that a launch starts from which resumed after this step."""
    if resumed_after <= 0:
        return 0, 0
    path = surviving(before, resumed_after)
    if not path:
        # The launches before are not at hand; each may have left a number out.
        return 0, resumed_after
    stretch, step = path[-1]
    low, high = stretch.v_train(step.number or 0)
    missing = resumed_after - (step.number or 0)
    # Of the number of a checkpoint at the end of training it is known that the step was not done: trackers are told
    # of a step before its checkpoint is written, and console text tells of both.
    skipped = missing == 1 and (
        not stretch.launch.console or any(resumed_after in item.launch.saved for item in before)
    )
    return low + 1, high + 1 + (0 if skipped else missing)


def surviving(stretches_: Sequence[Stretch], last: int | None = None) -> list[tuple[Stretch, Step]]:
    """Return the completed steps that no later launch rolled back, up to the number ``last``."""
    path: list[tuple[Stretch, Step]] = []
    for stretch in stretches_:
        path = [item for item in path if (item[1].number or 0) < stretch.first]
        path += [(stretch, stretch.launch.steps[number]) for number in sorted(stretch.launch.steps)
                 if number >= stretch.first and stretch.launch.steps[number].completed]  # fmt: skip
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
            None if stretch.attempt == 0 else stretch.first - 1,
            started=stretch.launch.first_ts,
            ended=stretch.launch.marks[-1]["ts"] if stretch.launch.marks else None,
        )
        for stretch in found
    )

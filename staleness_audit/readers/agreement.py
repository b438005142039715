"""Whether files of a folder can be of one run: of the same steps they must tell the same moments and figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import isclose

QUARTER = 900.0
CLOSE = 60.0
"""Seconds that two records of the same moment may lie apart."""

Moments = Mapping[int, Collection[float]]
"""Seconds by number (of a step, of a task), several where it occurs again."""
Figures = Mapping[int, Sequence[Mapping[str, float | None]]]
"""Figures by name of each step, several where it was done again."""


def of_one_run(one: Moments, other: Moments) -> bool:
    """Tell whether most of what two files both date lies close together; True if they share nothing.

    Local times differ from each other and from UTC by whole quarters of an hour, the same for all of a run. Half must
    agree, for a clock may have been set in between.
    """
    common = one.keys() & other.keys()
    agreeing: Counter[int] = Counter()
    for number in common:
        apart = [there - here for here in one[number] for there in other[number]]
        quarters = ((each, round(each / QUARTER)) for each in apart)
        agreeing.update({count for each, count in quarters if abs(each - count * QUARTER) < CLOSE})
    return not common or 2 * max(agreeing.values(), default=0) >= len(common)


def strangers(told: Moments, files: Mapping[str, Moments], *, in_turn: bool) -> set[str]:
    """Return files that are of another run than what is ``told``, or than an earlier file.

    ``in_turn``: each launch writes a file of its own, so that none is written while an earlier one still is, over the
    same numbers.
    """
    found = {name for name, moments in files.items() if not of_one_run(told, moments)}
    own = {name: moments for name, moments in files.items() if moments and name not in found}
    before: list[Moments] = []
    for name, moments in sorted(own.items(), key=lambda item: min(map(min, item[1].values()))):
        begun = min(map(min, moments.values()))
        if in_turn and any(
            begun + CLOSE < max(map(max, earlier.values())) and earlier.keys() & moments.keys() for earlier in before
        ):
            found.add(name)
        else:
            before.append(moments)
    return found


def same_figures(one: Figures, other: Figures) -> bool:
    """Tell whether most steps that two files both give figures of have the same ones; True if there is no such step."""
    common = one.keys() & other.keys()
    agreeing = sum(any(_equal(here, there) for here in one[step] for there in other[step]) for step in common)
    return 2 * agreeing >= len(common)


def _equal(here: Mapping[str, float | None], there: Mapping[str, float | None]) -> bool:
    """Whether all figures that both have are equal, but for what single precision leaves of them."""
    return all(
        mine is None or (other := there.get(name)) is None or isclose(mine, other, rel_tol=1e-6, abs_tol=1e-9)
        for name, mine in here.items()
    )


ANOTHER_RUN = (
    "It is of another run than {told}: of the same steps they tell other things, or at other times. It was not used; "
    "audit it in a folder of its own."
)

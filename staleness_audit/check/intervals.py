"""Closed intervals with open ends, and what spreads of uncertain counts over uncertain values imply (DESIGN section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any


@dataclass(frozen=True)
class Interval:
    """``[lo, hi]``; None is an open end. ``Interval.exact(n)`` is ``[n, n]``."""

    lo: float | None
    hi: float | None

    @classmethod
    def exact(cls, value: float) -> Interval:
        """Return the interval that holds only ``value``."""
        return cls(value, value)

    @property
    def is_exact(self) -> bool:
        """Whether both ends are known and equal."""
        return self.lo is not None and self.lo == self.hi

    def __add__(self, other: Interval) -> Interval:
        """Sum of two independent quantities."""
        return Interval(_plus(self.lo, other.lo), _plus(self.hi, other.hi))

    def __contains__(self, value: float) -> bool:
        """Whether ``value`` lies inside."""
        return (self.lo is None or self.lo <= value) and (self.hi is None or value <= self.hi)

    def open_above(self, lost: bool = True) -> Interval:
        """Return it without an upper end if ``lost``."""
        return Interval(self.lo, None) if lost else self

    def json(self) -> dict[str, float | None]:
        """``{"lo": x, "hi": y}``; whole numbers stay whole."""
        return {"lo": _tidy(self.lo), "hi": _tidy(self.hi)}


NOTHING = Interval.exact(0)
UNKNOWN = Interval(None, None)


def total(parts: Iterable[Interval]) -> Interval:
    """Sum of any number of intervals."""
    low: float | None = 0
    high: float | None = 0
    for part in parts:  # no interval is made for each of very many steps
        low, high = _plus(low, part.lo), _plus(high, part.hi)
    return Interval(low, high)


@dataclass(frozen=True)
class Class:
    """Between ``n_lo`` and ``n_hi`` members, each with a value in ``[lo, hi]`` (None = open end)."""

    lo: float | None
    hi: float | None
    n_lo: int
    n_hi: int | None


def mean(classes: Sequence[Class]) -> Interval:
    """Tightest interval of the mean value over all members; open where values or counts are."""
    exact = _exact_mean(classes)
    if exact is not None:
        return Interval.exact(exact)
    return Interval(_extreme_mean(classes, low=True), _extreme_mean(classes, low=False))


def _exact_mean(classes: Sequence[Class]) -> float | None:
    """The mean of whole numbers that are exact, as are their counts (as in most steps of most runs); None of others."""
    weight = count = 0
    for item in classes:
        if item.n_hi == 0:
            continue
        if item.n_lo != item.n_hi or item.lo != item.hi or not isinstance(item.lo, int):
            return None
        weight += item.lo * item.n_lo
        count += item.n_lo
    return weight / count if count else None


def _extreme_mean(classes: Sequence[Class], low: bool) -> float | None:
    """Smallest (or largest) possible mean: the members that pull it that way are many, all others few.

    Sorting by value, the extreme is reached where a prefix takes its upper and the rest its lower count.
    """
    if not any(item.n_hi is None or item.n_hi > 0 for item in classes):
        return None
    ends = [(item.lo if low else item.hi, item.n_lo, item.n_hi) for item in classes]
    if any(value is None and (most is None or most > 0) for value, _, most in ends):
        return None
    if all(least == most and isinstance(value, int) for value, least, most in ends if most != 0):
        # Counts that are exact leave nothing to choose, and whole numbers need no fractions.
        sized = [(value or 0, least) for value, least, most in ends if most != 0]
        return sum(value * least for value, least in sized) / sum(least for _, least in sized)
    weighed = [(float(value or 0), least, most) for value, least, most in ends]
    ordered = sorted(weighed, key=lambda item: item[0], reverse=not low)
    count = sum(least for _, least, _ in ordered)
    weight = sum(Fraction(value) * least for value, least, _ in ordered)
    best = weight / count if count else None
    for value, least, most in ordered:
        if most is None:
            # Arbitrarily many members of this value pull the mean all the way to it.
            limit = Fraction(value)
            best = limit if best is None or (limit < best) == low else best
            break
        count += most - least
        weight += Fraction(value) * (most - least)
        if count:
            reached = weight / count
            if best is None or (reached < best if low else reached > best):
                best = reached
    return None if best is None else float(best)


def merged(classes: Iterable[Class]) -> list[Class]:
    """Join classes of the same values, as those of different steps: what follows from them costs by how many there are."""
    found: dict[tuple[float | None, float | None], tuple[int, int | None]] = {}
    for item in classes:
        least, most = found.get((item.lo, item.hi), (0, 0))
        found[item.lo, item.hi] = (least + item.n_lo, None if most is None or item.n_hi is None else most + item.n_hi)
    return [Class(low, high, least, most) for (low, high), (least, most) in found.items()]


def _floor(item: Class) -> float:
    """Return the least value of a class; no staleness is below zero."""
    return 0 if item.lo is None else item.lo


def quantile(classes: Sequence[Class], share: float) -> Interval:
    """Tightest interval of the smallest value that at least ``share`` of the members do not exceed."""
    present = [item for item in classes if item.n_hi is None or item.n_hi > 0]
    if not present:
        return UNKNOWN
    wanted = Fraction(share).limit_denominator(1000)
    return Interval(_quantile_low(present, wanted), _quantile_high(present, wanted))


def _quantile_low(classes: Sequence[Class], share: Fraction) -> float | None:
    """Smallest x for which it is possible that enough members are <= x."""
    x, most, others = 0.0, 0, sum(item.n_lo for item in classes)
    for x, items in groupby(sorted(classes, key=_floor), _floor):
        for item in items:
            if item.n_hi is None:
                return x
            most += item.n_hi
            others -= item.n_lo
        if most and _reaches(most, others, share):
            return x
    return x


def _quantile_high(classes: Sequence[Class], share: Fraction) -> float | None:
    """Smallest x for which it is certain that enough members are <= x."""
    fewest, others = 0, sum(item.n_hi or 0 for item in classes)
    uncounted = sum(item.n_hi is None for item in classes)
    ended = sorted((item for item in classes if item.hi is not None), key=_end)
    for x, items in groupby(ended, _end):
        for item in items:
            fewest += item.n_lo
            others -= item.n_hi or 0
            uncounted -= item.n_hi is None
        if not uncounted and (not others or (fewest and _reaches(fewest, others, share))):
            return x
    return None


def _end(item: Class) -> float:
    return 0 if item.hi is None else item.hi


def _reaches(some: int, others: int, share: Fraction) -> bool:
    """Whether some are at least this share of all."""
    return some * share.denominator >= share.numerator * (some + others)


LONGEST = 20_000
"""Largest staleness with a row of its own in a histogram: a damaged number must not ask for any number of rows."""


def histogram(
    classes: Sequence[Class], name: str, lost: bool = False, known: int = -1, upto: int = -1
) -> list[dict[str, Any]]:
    """Rows ``{"staleness": n, name: I}`` for every n that some member may have.

    ``upto``: where to begin the open class at the earliest, so that histograms drawn over one axis are cut alike.
    ``lost``: members may be missing, so upper ends are open, and every value up to ``known`` has a row. Values without
    an upper end, or beyond ``LONGEST``, make a last row ``"or_more": true``.
    """
    given = [item for item in classes if item.n_hi is None or item.n_hi > 0]
    beyond = [item for item in given if _floor(item) > LONGEST]
    present = [
        item if item.hi is None or item.hi <= LONGEST else Class(item.lo, None, item.n_lo, item.n_hi)
        for item in given
        if _floor(item) <= LONGEST
    ]
    finite = [int(item.hi) for item in present if item.hi is not None]
    top = max([*finite, *(int(_floor(item)) for item in present)], default=-1)
    top = LONGEST if beyond else min(max(top, upto, known if lost else -1), LONGEST)
    lows = [0] * (top + 2)
    highs = [0] * (top + 2)
    opens = [0] * (top + 2)
    for item in present:
        first, last = int(_floor(item)), (top if item.hi is None else int(item.hi))
        if item.lo == item.hi:
            lows[first] += item.n_lo
        highs[first] += item.n_hi or 0
        highs[last + 1] -= item.n_hi or 0
        if item.n_hi is None:
            opens[first] += 1
            opens[last + 1] -= 1
    rows: list[dict[str, Any]] = []
    most = infinite = 0
    for value in range(top + 1):
        most += highs[value]
        infinite += opens[value]
        if most or infinite or lost:
            interval = Interval(lows[value], None if infinite or lost else most)
            rows.append({"staleness": value, name: interval.json()})
    unbounded = [item for item in present if item.hi is None] + beyond
    if unbounded or lost:
        counts = [item.n_hi for item in unbounded]
        most_above = None if lost or None in counts else sum(count or 0 for count in counts)
        above = Interval(sum(item.n_lo for item in beyond), most_above)
        rows.append({"staleness": top + 1, "or_more": True, name: above.json()})
    return rows


def _plus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _tidy(value: float | None) -> float | None:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value

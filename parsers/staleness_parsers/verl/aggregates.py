"""What counts, sums and extremes of one step imply about its rows, one by one.

A step reports, of N rows of unknown identity, mean, smallest and largest of two numbers: ``last`` (staleness of the
row's newest token) and ``worst`` (recorded staleness of its oldest); a row's true staleness lies between its two
(guide section 6). So at least as many rows are <= v as have ``worst`` <= v, and at most as many as have ``last`` <=
v. Both are bounded by the sums, and from the two curves follows an interval for the row that is i-th in order: the
tightest statement that is a list of classes with exact multiplicities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True)
class Spread:
    """``count`` whole numbers in ``[lo, hi]`` that add up to ``total`` (None = not known).

    ``has_lo``, ``has_hi``: at least one of them is ``lo``, at least one is ``hi``.
    """

    count: int
    lo: int
    hi: int
    total: int | None = None
    has_lo: bool = False
    has_hi: bool = False

    @property
    def sound(self) -> bool:
        """Whether such numbers exist."""
        if self.lo > self.hi or self.count < 0:
            return False
        if self.total is None or not self.count:
            return not self.total
        least = self.count * self.lo + (self.hi - self.lo if self.has_hi else 0)
        most = self.count * self.hi - (self.hi - self.lo if self.has_lo else 0)
        return least <= self.total <= most if self.count > 1 else self.lo <= self.total <= self.hi

    def least_up_to(self, value: int) -> int:
        """Smallest possible number of members that are <= ``value``."""
        if value >= self.hi:
            return self.count
        if value < self.lo or not self.count:
            return 0
        above = self.count - (1 if self.has_lo else 0)
        if self.total is not None:
            # k members above value take at least k * (value + 1), and hi once if it must occur.
            first = self.hi if self.has_hi else value + 1
            spare = self.total - self.count * self.lo - (first - self.lo)
            above = min(above, 0 if spare < 0 else 1 + spare // (value + 1 - self.lo))
        return self.count - max(above, 1 if self.has_hi else 0)

    def most_up_to(self, value: int) -> int:
        """Largest possible number of members that are <= ``value``."""
        mirrored = Spread(
            self.count, -self.hi, -self.lo, None if self.total is None else -self.total, self.has_hi, self.has_lo
        )
        return self.count - mirrored.least_up_to(-value - 1)

    def without(self, known: list[int]) -> Spread:
        """Return what is left of the members when some are known."""
        total = None if self.total is None else self.total - sum(known)
        return Spread(
            self.count - len(known),
            self.lo,
            self.hi,
            total,
            self.has_lo and self.lo not in known,
            self.has_hi and self.hi not in known,
        )


@dataclass(frozen=True)
class RowClass:
    """``count`` rows whose staleness lies in ``[lo, hi]``."""

    count: int
    lo: int
    hi: int


def row_classes(last: Spread, worst: Spread) -> list[RowClass]:
    """Order the rows by true staleness and give each its interval; rows with the same one are a class."""
    values = range(last.lo, worst.hi + 1)
    return order_classes(
        last.count,
        {value: worst.least_up_to(value) for value in values},
        {value: last.most_up_to(value) for value in values},
    )


def order_classes(count: int, surely: Mapping[int, int], perhaps: Mapping[int, int]) -> list[RowClass]:
    """Classes of ``count`` rows of which at least ``surely[v]`` and at most ``perhaps[v]`` are <= v.

    Keys are the values in order; at the last one every row counts.
    """
    values = sorted(surely)

    def interval(place: int) -> tuple[int, int]:
        low = next((value for value in values if perhaps[value] >= place), values[-1])
        high = next((value for value in values if surely[value] >= place), values[-1])
        return min(low, high), high

    ordered = (interval(place) for place in range(1, count + 1))
    return [RowClass(sum(1 for _ in rows), low, high) for (low, high), rows in groupby(ordered)]

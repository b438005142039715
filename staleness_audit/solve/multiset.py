"""A multiset of integers, known by its size, sum, extremes and counts: what all that fit have in common.

The unknowns are tail counts: ``T[v]`` members are larger than ``v``. They fall as ``v`` rises, every fact bounds some
of them from below or above, and the sum of all values is the sum of all tail counts. Between the smallest and the
largest sequence of tails that the bounds allow, every sum is reached (one tail can always be raised by one), so facts
can be met if and only if their sum lies between the sums of the two. Every answer is such a question, asked by
bisection:

* most of ``T[v]``: raise it as far as the tails above stay within the largest sum; least: lower it, alike;
* most members of a value: that many are taken out as known, and the rest must still fit;
* fewest: see ``_fewest``, the one case where tails are bound to each other from above.

So the work is about (number of values)^2 * log(members) for each possible size, whatever the number of solutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, groupby

from staleness_audit.solve.amounts import Range, Share, whole


@dataclass(frozen=True)
class Facts:
    """What is known of the values of some members; a field that is left out says nothing.

    ``members``: how many there are. ``domain``: smallest and largest value possible. ``total``: sum of all values.
    ``mean``: their mean (``rounded``, ``single``). ``smallest``, ``largest``: extremes that some member has. ``over``:
    for a threshold, how many members are larger than it. ``share_over``: the same as a share of the members.
    ``known``: for a value, how many members are known to have it, others not excluded.
    """

    members: Range
    domain: Range
    total: Range | None = None
    mean: Share | None = None
    smallest: int | None = None
    largest: int | None = None
    over: Mapping[int, Range] = field(default_factory=dict)
    share_over: Mapping[int, Share] = field(default_factory=dict)
    known: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Band:
    """Between ``members`` members, neighbours in the order of size, each with a value in ``values``."""

    members: Range
    values: Range


@dataclass(frozen=True)
class Solution:
    """What all multisets that fit have in common; every interval is the tightest.

    ``counts``: for each value of the domain, how many members have it. ``tails``: for each value of the domain (and the
    one before the first, which stands for all members), how many members are larger.
    """

    counts: Mapping[int, Range]
    tails: Mapping[int, Range]

    @property
    def members(self) -> Range:
        """How many members there are."""
        return next(iter(self.tails.values()))

    @property
    def unique(self) -> bool:
        """Whether only one multiset fits."""
        return all(low == high for low, high in self.counts.values())

    def count(self, value: int) -> Range:
        """How many members have this value."""
        return self.counts.get(value, (0, 0))

    def over(self, threshold: int) -> Range:
        """How many members are larger than this."""
        first = next(iter(self.tails))
        return self.tails.get(max(threshold, first), (0, 0))

    def bands(self) -> tuple[Band, ...]:
        """Return the members in falling order, each with what is known of it, equal neighbours taken together.

        The members of bands that lie beyond a threshold, surely or possibly, are as many as ``over`` says: rows that
        are made of bands give the tightest count over every threshold, and all members. Only of single values may they
        know less than ``counts``: where a value is surely there, but not surely in the same place.
        """
        sure = self.members[0]
        places = zip(_ranked(self.tails, 1), _ranked(self.tails, 0), strict=True)
        ordered = [(index < sure, low, high) for index, (high, low) in enumerate(places)]
        return tuple(
            Band((size if certain else 0, size), (low, high))
            for (certain, low, high), run in groupby(ordered)
            for size in [sum(1 for _ in run)]
        )


def _ranked(tails: Mapping[int, Range], end: int) -> Iterator[int]:
    """Yield the largest (``end`` 1) or smallest (0) value that the first, second, ... largest member can have."""
    first = next(iter(tails))
    members = tails[first][1]
    done = 0
    for threshold in sorted(tails, reverse=True):
        # As many members as may (or surely do) exceed the threshold can (or must) have the value after it.
        reach = members if threshold == first else tails[threshold][end]
        yield from (threshold + 1 for _ in range(reach - done))
        done = max(done, reach)


def solve(facts: Facts) -> Solution | None:
    """Return the tightest intervals; None if no multiset fits (the facts contradict each other)."""
    return either(_solve(facts, members) for members in range(max(facts.members[0], 0), facts.members[1] + 1))


def either(solutions: Iterable[Solution | None]) -> Solution | None:
    """Return what holds whichever of several solutions is the true one; None if there is none.

    Their domains may differ.
    """
    found = [solution for solution in solutions if solution is not None]
    if len(found) < 2:
        return found[0] if found else None
    first = min(next(iter(solution.tails)) for solution in found)
    last = max(max(solution.tails) for solution in found)
    return Solution(
        {value: _hull(solution.count(value) for solution in found) for value in range(first + 1, last + 1)},
        {value: _hull(solution.over(value) for solution in found) for value in range(first, last + 1)},
    )


def _hull(ranges: Iterable[Range]) -> Range:
    lows, highs = zip(*ranges, strict=True)
    return min(lows), max(highs)


@dataclass(frozen=True)
class _Tails:
    """Bounds of the tail counts of members that are not known one by one.

    ``low[i]``, ``high[i]``: how many of them are larger than the i-th value of the domain; both fall. ``sums``: what
    all tail counts may add up to, within reach of the bounds. ``members``: how many there are.
    """

    members: int
    low: list[int]
    high: list[int]
    sums: Range


def _solve(facts: Facts, members: int) -> Solution | None:
    first, last = facts.domain
    if facts.smallest is not None:
        first = max(first, facts.smallest)
    if facts.largest is not None:
        last = min(last, facts.largest)
    known = {value: count for value, count in facts.known.items() if count}
    # An extreme is one known member, unless it is among those already.
    for extreme in (facts.smallest, facts.largest):
        if extreme is not None:
            known.setdefault(extreme, 1)
    bounds = _bounds(facts, members)
    if bounds is None or (members and first > last) or any(not first <= value <= last for value in known):
        return None
    if not members:
        first, last = facts.domain[0], max(facts.domain)
    over, sums = bounds

    def rest(value: int = first, count: int = 0) -> _Tails | None:
        """Return the bounds for all but the known members, and ``count`` more of them with ``value``."""
        taken = {**known, value: max(count, known.get(value, 0))}
        return _tails(members, (first, last), over, sums, taken)

    whole_set = rest()
    if whole_set is None:
        return None
    beyond = [sum(count for value, count in known.items() if value > at) for at in range(first, last)]
    inner = [_extremes(whole_set, index) for index in range(last - first)]
    tails = {first - 1: (members, members)}
    tails |= {first + index: (low + beyond[index], high + beyond[index]) for index, (low, high) in enumerate(inner)}
    tails[last] = (0, 0)
    counts = {}
    for value in range(first, last + 1):
        own = known.get(value, 0)
        most = _last(own, members, lambda count, value=value: rest(value, count) is not None)  # type: ignore[misc]
        counts[value] = (own + _fewest(whole_set, value - first, inner), most)
    return Solution(counts, tails)


def _bounds(facts: Facts, members: int) -> tuple[dict[int, Range], Range | None] | None:
    """Bring counts over thresholds and sums to integers for this many members; None if there are none such."""
    over = dict(facts.over)
    for threshold, share in facts.share_over.items():
        count = whole(share, members)
        if count is None:
            return None
        low, high = over.get(threshold, count)
        over[threshold] = max(low, count[0]), min(high, count[1])
    total = facts.total
    if facts.mean is not None and members:
        by_mean = whole(facts.mean, members)
        if by_mean is None:
            return None
        total = by_mean if total is None else (max(total[0], by_mean[0]), min(total[1], by_mean[1]))
    return over, total


def _tails(
    members: int, domain: Range, over: Mapping[int, Range], sums: Range | None, known: Mapping[int, int]
) -> _Tails | None:
    """Close the bounds of the unknown members under each other; None if nothing fits."""
    first, last = domain
    free = members - sum(known.values())
    if free < 0:
        return None
    low, high = [0] * (last - first), [free] * (last - first)
    for threshold, stated in over.items():
        beyond = sum(count for value, count in known.items() if value > threshold)
        least, most = stated[0] - beyond, stated[1] - beyond
        if threshold < first:
            fits = least <= free <= most
        elif threshold >= last:
            fits = least <= 0 <= most
        else:
            index = threshold - first
            low[index], high[index] = max(low[index], least), min(high[index], most)
            fits = True
        if not fits:
            return None
    low = list(accumulate(reversed(low), max))[::-1]
    high = list(accumulate(high, min))
    if any(least > most for least, most in zip(low, high, strict=True)):
        return None
    least_sum, most_sum = sum(low), sum(high)
    if sums is not None:
        # Values count from the first; what is known has its share of the sum already.
        base = members * first + sum((value - first) * count for value, count in known.items())
        least_sum, most_sum = max(least_sum, sums[0] - base), min(most_sum, sums[1] - base)
    return _Tails(free, low, high, (least_sum, most_sum)) if least_sum <= most_sum else None


def _extremes(tails: _Tails, index: int) -> Range:
    """Return the smallest and largest value that one tail count can have."""
    low, high = tails.low, tails.high
    room = tails.sums[1] - sum(low[index + 1 :])
    need = tails.sums[0] - sum(high[:index])
    most = _last(low[index], high[index], lambda count: sum(max(count, item) for item in low[: index + 1]) <= room)
    # The other way round: the more of it is taken off, the less is left for the sum.
    spare = _last(
        0, high[index] - low[index], lambda off: sum(min(high[index] - off, item) for item in high[index:]) >= need
    )
    return high[index] - spare, most


def _fewest(tails: _Tails, index: int, extremes: list[Range]) -> int:
    """Return how few of the unknown members can have the index-th value.

    With x members at or beyond the value and y beyond it, x - y have it. Given y, the smallest x that reaches the
    smallest sum is best. As y grows, that x falls until it meets its floor, and rises with it from there on; so the
    largest sum is respected ever better at first, then ever worse, while x - y only falls: the largest y that fits is
    best.
    """
    low, high, (least_sum, most_sum) = tails.low, tails.high, tails.sums
    if not low:
        return tails.members
    if index == 0:
        return tails.members - extremes[0][1]
    if index == len(low):
        return extremes[-1][0]
    before, above = sum(high[: index - 1]), sum(low[index + 1 :])

    def needed(y: int) -> int:
        return least_sum - before - y - sum(min(item, y) for item in high[index + 1 :])

    def floor(y: int) -> int:
        return max(y, low[index - 1])

    def fits(y: int) -> bool:
        x = max(floor(y), needed(y))
        return x <= high[index - 1] and x + y + above + sum(max(item, x) for item in low[: index - 1]) <= most_sum

    meets = _last(low[index] - 1, high[index], lambda y: needed(y) > floor(y))
    best = (
        meets
        if meets >= low[index] and not (meets < high[index] and fits(meets + 1))
        else _last(meets + 1, high[index], fits)
    )
    return max(floor(best), needed(best)) - best


def _last(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the last number for which a condition holds that holds for ``low`` and, once false, stays false."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low

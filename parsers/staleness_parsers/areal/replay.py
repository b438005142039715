"""Replaying how batches were put together: which finished task was trained in which step (guide section 6).

The collector waits until as many results are there as it still needs, takes those that were started first, and keeps
the accepted ones, until it has its batch. It looks at the results a moment later than a log line tells, so a batch is
checked against what the step logged about itself, and where the check fails the results that came in
around that moment are tried as well.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

EARLY = 50_000
LATE = 250_000
CLOSE_CHECKED = 3_000
CLOSE_UNCHECKED = 10_000
"""Microseconds: how far around its moment a look of the collector is tried, and how near another look must be to be as
likely as the expected one (with and without a check of the batch)."""
TRIES = 24
BACKTRACKS = 300
LOOKAHEAD = 3


class Result(NamedTuple):
    """A finished task: its place in the order of creation, when it was ready, whether it was accepted, and its key."""

    order: int
    ready: int
    accepted: bool
    key: int


State = tuple[int, tuple[Result, ...]]
"""Of one rank: how many results were seen so far, and those of them not yet taken, oldest first."""


@dataclass(frozen=True)
class Need:
    """A step as the collector of one rank saw it: when it began and ended looking, and how many results it wanted.

    ``slack``: by how much it may have begun later than ``begin`` says.
    """

    begin: int
    end: int | None
    count: int
    slack: int = 0


@dataclass(frozen=True)
class Pick:
    """One way a step's batch may have come about. ``state``: per rank, results seen so far and those not yet taken.

    ``away``: microseconds between its look and the expected one; ``late``: it needs results from after the window.
    """

    members: frozenset[int]
    state: tuple[State, ...]
    away: int
    late: bool


@dataclass
class Assigned:
    """What the replay says of one step: tasks that were trained for certain, and those of which some were.

    ``checked``: the batch agrees with what the step logged.
    """

    certain: set[int] = field(default_factory=set)
    perhaps: set[int] = field(default_factory=set)
    checked: bool = False


Check = Callable[[int, frozenset[int]], bool | None]


def replay(
    ranks: Sequence[Sequence[Result]], steps: Sequence[Sequence[Need]], once: bool, check: Check
) -> list[Assigned]:
    """Assign results to steps.

    Args:
        ranks: results of each rank, in the order in which they were ready.
        steps: for each step, what each rank wanted.
        once: a batch is one look, however many of its results were rejected (``dynamic_bs``).
        check: tells of step (by index) and members whether they agree with the step's statistics; None = can't tell.

    """
    return _Replay(ranks, steps, once, check).run()


class _Replay:
    def __init__(
        self, ranks: Sequence[Sequence[Result]], steps: Sequence[Sequence[Need]], once: bool, check: Check
    ) -> None:
        self.ranks = [sorted(results, key=lambda result: (result.ready, result.order)) for results in ranks]
        self.times = [[result.ready for result in results] for results in self.ranks]
        self.steps = steps
        self.once = once
        self.check = check
        self.known: dict[tuple[int, tuple[State, ...]], list[Pick]] = {}

    def run(self) -> list[Assigned]:
        start: tuple[State, ...] = tuple((0, ()) for _ in self.ranks)
        path: list[Pick | None] = []
        spare: list[list[Pick]] = []
        budget = BACKTRACKS
        floor = 0
        deepest: tuple[list[Pick | None], list[list[Pick]]] = ([], [])
        while len(path) < len(self.steps):
            index = len(path)
            state = self._state(path, start)
            sound = self._sound(index, state)
            if sound:
                path.append(sound[0])
                spare.append(sound[1:])
                continue
            if index > len(deepest[0]) or (not deepest[0] and floor == index):
                deepest = (list(path), [list(rest) for rest in spare])
            back = next((at for at in range(index - 1, floor - 1, -1) if spare[at]), None)
            if back is not None and budget > 0:
                budget -= 1
                path = [*path[:back], spare[back][0]]
                spare = [*spare[:back], spare[back][1:]]
                continue
            # Nothing explains this step: the earlier ones stand, and it is left open.
            if len(deepest[0]) > len(path):
                path, spare = deepest
            index = len(path)
            expected = next(iter(self._picks(index, self._state(path, start))), None)
            path.append(expected)
            spare.append([])
            floor, budget, deepest = index + 1, BACKTRACKS, ([], [])
        return self._judge(path, start)

    def _state(self, path: Sequence[Pick | None], start: tuple[State, ...]) -> tuple[State, ...]:
        return next((pick.state for pick in reversed(path) if pick is not None), start)

    def _sound(self, index: int, state: tuple[State, ...]) -> list[Pick]:
        """Ways to fill a step that no check speaks against, the expected one first; judging asks for them again."""
        found = self.known.get((index, state))
        if found is None:
            unique: dict[frozenset[int], Pick] = {}
            for pick in islice(self._picks(index, state), TRIES):
                if pick.members not in unique and not pick.late and self.check(index, pick.members) is not False:
                    unique[pick.members] = pick
            found = self.known[index, state] = list(unique.values())
        return found

    def _picks(self, index: int, state: tuple[State, ...]) -> Iterator[Pick]:
        """Ways to fill a step: all ranks as expected, then one rank differently at a time."""
        options = [
            list(islice(self._collect(rank, need, state[rank], need.begin, need.count), TRIES))
            for rank, need in enumerate(self.steps[index])
        ]
        if not all(options):
            return
        yield self._join([rank[0] for rank in options])
        for rank, found in enumerate(options):
            for other in found[1:]:
                yield self._join([other if at == rank else first[0] for at, first in enumerate(options)])

    @staticmethod
    def _join(parts: Sequence[Pick]) -> Pick:
        members = frozenset[int]().union(*(part.members for part in parts))
        state = tuple(part.state[0] for part in parts)
        return Pick(members, state, max((part.away for part in parts), default=0), any(part.late for part in parts))

    def _collect(self, rank: int, need: Need, state: State, at: int, count: int) -> Iterator[Pick]:
        """One rank's ways to get ``count`` accepted results from a moment on, the expected one first."""
        results, times = self.ranks[rank], self.times[rank]
        seen, pool = state
        least = seen + max(0, count - len(pool))
        if least > len(results):
            return
        moment = max(at, times[least - 1]) if least > seen else at
        expected = max(least, bisect_right(times, moment))
        low = max(least, bisect_left(times, moment - EARLY))
        high = max(expected, bisect_right(times, moment + LATE))
        for upto in sorted(range(low, high + 1), key=lambda cut: abs(cut - expected))[:8]:
            merged = list(pool)
            for result in results[seen:upto]:
                insort(merged, result)
            taken, rest = merged[:count], tuple(merged[count:])
            kept = frozenset(result.key for result in taken if result.accepted)
            looked = max(moment, times[upto - 1]) if upto > seen else moment
            # How far the clocks must be off for this look: to the farthest result in or out against its time.
            away = (
                abs(times[upto - 1] - moment) if upto > expected else (moment - times[upto] if upto < expected else 0)
            )
            late = need.end is not None and looked > need.end + LATE
            if self.once or len(kept) == count:
                yield Pick(kept, ((upto, rest),), away, late)
                continue
            for more in self._collect(rank, need, (upto, rest), looked, count - len(kept)):
                yield Pick(kept | more.members, more.state, max(away, more.away), late or more.late)

    # ------------------------------------------------------------------------------------------------ how sure it is

    def _judge(self, path: Sequence[Pick | None], start: tuple[State, ...]) -> list[Assigned]:
        found = [Assigned() for _ in path]
        shaken = False
        for index, pick in enumerate(path):
            verdict = self.check(index, pick.members) if pick is not None else False
            if pick is None or pick.late or verdict is False:
                shaken = True
                continue
            # After a step that nothing explains only a checked one can be trusted.
            if shaken and verdict is None:
                continue
            found[index].certain |= pick.members
            found[index].checked = verdict is True
        state = start
        for index, pick in enumerate(path):
            if pick is None:
                continue
            if found[index].certain:
                for other in self._as_likely(index, pick, state):
                    self._doubt(index, other, path, found)
            state = pick.state
        sure = set[int]().union(*(assigned.certain for assigned in found)) if found else set()
        for assigned in found:
            assigned.perhaps -= sure
        return found

    def _as_likely(self, index: int, pick: Pick, state: tuple[State, ...]) -> list[Pick]:
        """Other ways to fill the step that the clocks allow as well, unless the next steps refute them."""
        others = []
        for other in self._sound(index, state):
            near = CLOSE_CHECKED if self.check(index, other.members) else CLOSE_UNCHECKED
            near = max(near, *(need.slack for need in self.steps[index]))
            if (
                other.members != pick.members
                and other.away <= near
                and self._survives(index + 1, other.state, LOOKAHEAD)
            ):
                others.append(other)
        return others

    def _survives(self, index: int, state: tuple[State, ...], depth: int) -> bool:
        if depth == 0 or index >= len(self.steps):
            return True
        return any(self._survives(index + 1, pick.state, depth - 1) for pick in self._sound(index, state)[:2])

    def _doubt(self, index: int, other: Pick, path: Sequence[Pick | None], found: list[Assigned]) -> None:
        """Follow another way until it meets the chosen one again; what differs on the way is only possible."""
        pick: Pick | None = other
        for at in range(index, len(path)):
            chosen = path[at]
            if pick is None or chosen is None:
                return
            both = set(pick.members) & found[at].certain
            found[at].perhaps |= (pick.members | found[at].certain) - both
            found[at].certain = both
            if self._left(pick, chosen) == self._left(chosen, pick):
                return
            pick = next(iter(self._sound(at + 1, pick.state)), None) if at + 1 < len(path) else None

    def _left(self, pick: Pick, other: Pick) -> list[list[Result]]:
        """Per rank, what a way leaves of the results that either has seen."""
        both = zip(pick.state, other.state, self.ranks, strict=True)
        return [sorted([*rest, *results[seen : max(seen, beyond)]]) for (seen, rest), (beyond, _), results in both]

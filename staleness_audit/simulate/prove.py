"""Exhaustive exploration of a policy: either every schedule keeps the bound, or this is a shortest one that does not.

``explore`` visits every state that some schedule reaches, breadth first, so the first violation it meets is a shortest
one. States that no rule can tell apart are one (``Policy.key``): groups have no names, versions are relative to the
trainer's, labels older than anything a rule compares are alike, and so are oldest tokens older than a horizon, which no
rule looks at. Two states with one key go through the same moves. Therefore

* if the exploration ends without a violation, there is none in runs of any length (with these sizes);
* the largest staleness met, if it is below the horizon, is the true limit;
* if an old group can stay old around a cycle of states in which versions go on, and can be trained after that, then it
  can be trained at any age: there is no limit (``_unlimited``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from staleness_audit.simulate.kernel import REJECTS, Move, apply, initial, moves
from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import State

Progress = Callable[[int, int], None]
"""Called now and then with the number of states met and the length of their schedules."""


@dataclass
class Exploration:
    """What an exploration saw.

    ``closed``: every reachable state was visited. ``depth``: moves of the longest schedule explored. ``worst``: largest
    staleness trained (at the horizon: that or more); None if nothing was trained. ``schedule``: moves up to the first
    violation, if one was looked for and found. ``stuck``: moves up to the first state that no move leaves, if there is
    one. ``unlimited``: the pumping argument holds.
    """

    states: int = 0
    depth: int = 0
    closed: bool = False
    worst: int | None = None
    schedule: tuple[Move, ...] | None = None
    stuck: tuple[Move, ...] | None = None
    unlimited: bool = False


@dataclass
class _Graph:
    """Edges between states that keep every old group, and the states whose next move trains one."""

    edges: list[tuple[int, int, bool]] = field(default_factory=list)
    trains_old: set[int] = field(default_factory=set)


def explore(
    policy: Policy,
    horizon: int,
    *,
    stop_above: int | None = None,
    rejects: int = 0,
    max_states: int = 1_000_000,
    max_depth: int | None = None,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> Exploration:
    """Visit the states of a policy.

    Args:
        policy: with sizes small enough to be explored.
        horizon: age of oldest tokens from which on all are alike, at least 1.
        stop_above: end at the first schedule that trains something staler than this.
        rejects: groups that a filter may discard when they end, in any one schedule.
        max_states: give up after this many.
        max_depth: do not look at longer schedules.
        deadline: give up at this time of ``time.process_time``, so that a busy machine decides as much as an idle one.
        progress: is told how far it got.
    """
    explorer = _Explorer(policy, horizon, stop_above, rejects)
    seen = explorer.seen
    while explorer.frontier and seen.schedule is None and (max_depth is None or seen.depth < max_depth):
        for number, state in explorer.advance():
            explorer.expand(number, state)
            if seen.schedule is not None:
                break
            if len(explorer.parents) > max_states or (deadline is not None and time.process_time() > deadline):
                explorer.give_up()
                break
        if progress is not None:
            progress(len(explorer.parents), seen.depth)
    seen.closed = not explorer.frontier and seen.schedule is None and not explorer.gave_up
    seen.states = len(explorer.parents)
    seen.unlimited = _unlimited(explorer.graph)
    if seen.worst is not None:
        seen.worst = min(seen.worst, horizon) if seen.schedule is None else seen.worst
    return seen


class _Explorer:
    """The states met so far, numbered, each with the move that first led to it."""

    def __init__(self, policy: Policy, horizon: int, stop_above: int | None, rejects: int) -> None:
        self._policy, self._horizon, self._stop_above = policy, horizon, stop_above
        self.seen = Exploration()
        start = initial(policy)
        if rejects:
            start.counts[REJECTS] = rejects
        self._numbers: dict[Any, int] = {policy.key(start, horizon): 0}
        self.parents: list[tuple[int, Move | None]] = [(-1, None)]
        self.frontier: list[tuple[int, State]] = [(0, start)]
        self.graph = _Graph()
        self.gave_up = False

    def advance(self) -> list[tuple[int, State]]:
        """Return the states of the frontier, and begin the next one."""
        current, self.frontier = self.frontier, []
        self.seen.depth += 1
        return current

    def give_up(self) -> None:
        """Leave the frontier as it is."""
        self.frontier, self.gave_up = [], True

    def expand(self, number: int, state: State) -> None:
        """Make every move of a state; stop at one that breaks the bound."""
        policy, horizon = self._policy, self._horizon
        old = _old(state, horizon)
        left = False
        for move in moves(policy, state):
            successor = state.copy()
            apply(policy, successor, move)
            trained, old_trained = _trained(successor, old)
            if trained is not None:
                self.seen.worst = max(trained, self.seen.worst or 0)
                if self._stop_above is not None and trained > self._stop_above:
                    self.seen.schedule = (*_path(self.parents, number), move)
                    return
            key = policy.key(successor, horizon)
            known = self._numbers.get(key)
            left = left or known != number
            if known is None:
                known = self._numbers[key] = len(self.parents)
                self.parents.append((number, move))
                self.frontier.append((known, successor))
            if old_trained:
                self.graph.trains_old.add(number)
            if old and old == _old(successor, horizon):
                self.graph.edges.append((number, known, move[0] == "publish"))
        if not left and self.seen.stuck is None:
            self.seen.stuck = _path(self.parents, number)


def _old(state: State, horizon: int) -> frozenset[int]:
    """Return the groups whose first version is beyond the horizon."""
    oldest = state.v - horizon
    groups = (*state.running.values(), *state.done.values(), *state.held)
    return frozenset(group.id for group in groups if group.first <= oldest)


def _trained(state: State, old: frozenset[int]) -> tuple[int | None, bool]:
    """Return the staleness of what the last move trained, and whether one of the old groups was in it."""
    worst, any_old = None, False
    for kind, version, groups, _ in state.effects:
        if kind == "trained":
            worst = max(worst or 0, *(version - group.first for group in groups))
            any_old = any_old or any(group.id in old for group in groups)
    state.effects.clear()
    return worst, any_old


def _path(parents: list[tuple[int, Move | None]], number: int) -> tuple[Move, ...]:
    path: list[Move] = []
    while (step := parents[number])[1] is not None:
        path.append(step[1])
        number = step[0]
    return tuple(reversed(path))


def _unlimited(graph: _Graph) -> bool:
    """Whether some old group can stay while versions go on for ever, and still be trained afterwards.

    All edges keep the set of old groups as it is, so it is the same set all along a path: any group of it has been
    through every cycle on the way to the state that trains one.
    """
    into: dict[int, list[int]] = {}
    out: dict[int, list[int]] = {}
    for source, target, _ in graph.edges:
        into.setdefault(target, []).append(source)
        out.setdefault(source, []).append(target)
    # States from which one of the old groups can still be trained without losing another.
    useful, waiting = set(graph.trains_old), list(graph.trains_old)
    while waiting:
        for source in into.get(waiting.pop(), ()):
            if source not in useful:
                useful.add(source)
                waiting.append(source)
    cycles = _components(useful, out)
    return any(
        publishes and source in cycles and cycles[source] == cycles.get(target)
        for source, target, publishes in graph.edges
    )


def _components(nodes: set[int], out: Mapping[int, list[int]]) -> dict[int, int]:
    """Return a number for each node, the same for two that lie on one cycle (Tarjan's algorithm, without recursion)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    stack: list[int] = []
    for root in nodes:
        if root in order:
            continue
        order[root] = low[root] = len(order)
        stack.append(root)
        path = [(root, iter(out.get(root, ())))]
        while path:
            node, successors = path[-1]
            for successor in successors:
                if successor not in nodes or successor in component:
                    continue
                if successor not in order:
                    order[successor] = low[successor] = len(order)
                    stack.append(successor)
                    path.append((successor, iter(out.get(successor, ()))))
                    break
                low[node] = min(low[node], order[successor])
            else:
                path.pop()
                if path:
                    parent = path[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == order[node]:
                    while (member := stack.pop()) != node:
                        component[member] = node
                    component[node] = node
    return component


@dataclass
class Proof:
    """The answer for one policy, bound and size.

    ``strict``: True, False, or None if the exploration had to give up. ``limit``: the largest staleness of any
    schedule; "none" if there is none; None if it isn't known, and then at least ``at_least``.
    """

    policy: Policy
    bound: int
    strict: bool | None
    limit: int | str | None
    at_least: int | None
    search: Exploration
    """The exploration that looked for a violation."""
    whole: Exploration
    """The exploration that looked for the limit."""


def prove(
    policy: Policy,
    bound: int,
    *,
    rejects: int = 0,
    max_depth: int | None = None,
    seconds: float = 50.0,
    max_states: int = 400_000,
    progress: Progress | None = None,
) -> Proof:
    """Decide whether every trained token of every schedule has a staleness of at most ``bound``.

    Args:
        policy: sizes and knobs.
        bound: largest allowed ``v_train - v_gen``.
        rejects: groups that a filter may discard when they end, in any one schedule.
        max_depth: only schedules of at most so many moves.
        seconds: of computing after which to give up.
        max_states: give up after this many states.
        progress: is told how far it got.
    """
    end = time.process_time() + seconds
    limits: dict[str, Any] = {
        "rejects": rejects,
        "max_states": max_states,
        "max_depth": max_depth,
        "progress": progress,
    }
    search = explore(policy, bound + 1, stop_above=bound, deadline=end, **limits)
    if search.schedule is None:
        strict = True if search.closed else None
        return Proof(policy, bound, strict, search.worst if strict else None, search.worst, search, search)
    worst = search.worst or 0
    # Few states are different under a near horizon, and a proof that there is no limit often needs no far one.
    for horizon in (1, *range(bound + 2, bound + 12)):
        whole = explore(policy, horizon, deadline=end, **limits)
        if whole.closed or whole.unlimited:
            worst = max(worst, whole.worst or 0)
        if whole.unlimited:
            return Proof(policy, bound, False, "none", worst, search, whole)
        if whole.closed and (whole.worst or 0) < horizon:
            return Proof(policy, bound, False, whole.worst, worst, search, whole)
        if not whole.closed:
            break
    return Proof(policy, bound, False, None, worst, search, whole)

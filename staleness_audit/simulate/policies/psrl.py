"""PSRL: every request reserves a place in the buffer of a step that its version may still reach."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import Group, State

_TARGET = attrgetter("target")


@dataclass(frozen=True)
class Psrl(Policy):
    """Reserve the latest place in [u, u + eta], occupy the earliest, consume a buffer when it is full.

    ``label`` is the pinned version u, ``target`` the buffer. One instance serves, which pulls a new version some time
    after it was pushed. ``retag``: a resumed request is tagged with the version it resumes under, as in releases whose
    server did so by itself; the tokens it has keep their version. ``native_multi_turn``: later turns are sent without a
    version, and a second instance that lags behind the first may take them; only the prover makes such turns.
    """

    staleness: int = 1
    max_dispatch_ahead: int = 5
    retag: bool = False
    native_multi_turn: bool = False
    pull_s: float = 0.1

    sees = ("label", "target")
    sorted_done = True

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """Eta bounds buffer number minus pinned version."""
        return {"staleness": bound}

    def horizon(self) -> int:
        """Versions are compared with buffers that are not older than the trainer's."""
        return self.staleness + 1

    def start(self, state: State) -> None:
        """What the dispatch gate lets out at version 0."""
        state.counts |= {"quota": 0, "ahead": 0}
        self._dispatch(state)
        if self.native_multi_turn:
            state.marks["lagging"] = (0,)

    def _dispatch(self, state: State) -> None:
        """L1, the gate: a whole batch leaves while what was sent, replacements included, is near enough to ``v``."""
        while state.counts["ahead"] < (min(self.staleness, self.max_dispatch_ahead) + 1) * self.batch:
            state.counts["ahead"] += self.batch
            state.counts["quota"] += self.batch

    def _free(self, state: State, version: int) -> dict[int, int]:
        """Return how many places are free in each buffer that a version may still reach, in order.

        Places, not groups, are counted: this is asked for whenever anything happens.
        """
        taken = Counter(map(_TARGET, chain(state.running.values(), state.done.values())))
        first = max(version, state.v + (1 if state.training or state.held else 0))
        return {buffer: self.batch - taken[buffer] for buffer in range(first, version + self.staleness + 1)}

    def room(self, state: State) -> int:
        """L1: what the gate has let out, and free places in the buffers that the serving version may reach."""
        quota = state.counts["quota"]
        return min(quota, sum(self._free(state, state.serving).values())) if quota else 0

    def stamp(self, state: State) -> tuple[int, int]:
        """L1: reserve in the highest buffer with room."""
        free = self._free(state, state.serving)
        return state.serving, max(buffer for buffer, places in free.items() if places > 0)

    def admitted(self, state: State, group: Group) -> None:
        """What was sent has its place."""
        state.counts["quota"] -= 1

    def rejected(self, state: State, group: Group) -> None:
        """The entry is cleared and one fresh prompt sent at once, which the gate counts for ever."""
        state.counts["quota"] += 1
        state.counts["ahead"] += 1

    def finished(self, state: State, group: Group) -> None:
        """Occupy: a reservation from an earlier buffer moves into the place left, then the lowest place is taken."""
        eta, version, place = self.staleness, group.label, group.target
        state.done[group.id] = group._replace(target=-1)
        movable = [
            other
            for other in (state.running.values() if version < place else ())
            if version <= other.target < place and place - eta <= other.label <= place
        ]
        if movable:
            first = min(movable, key=lambda other: (other.target, -other.id))
            state.running[first.id] = first._replace(target=place)
        free = self._free(state, version)
        lowest = next((buffer for buffer, places in free.items() if places > 0), place)
        state.done[group.id] = group._replace(target=lowest)

    def collect(self, state: State) -> None:
        """L3: wait until the step's own buffer is full; nothing is dropped."""
        if Counter(map(_TARGET, state.done.values()))[state.v] == self.batch:
            for group in state.oldest_done():
                if group.target == state.v:
                    state.hold(group)

    def published(self, state: State) -> None:
        """A push; instances have yet to pull it."""
        state.counts["ahead"] -= self.batch
        self._dispatch(state)

    def own(self, state: State) -> tuple[str, ...]:
        """An instance pulls the newest version; a later turn goes to the one that lags."""
        possible = ["pull"] if state.serving < state.v else []
        if self.native_multi_turn:
            (lagging,) = state.marks["lagging"]
            if lagging < state.v:
                possible.append("pull lagging")
            # A group with a place in a buffer may use any version that still reaches that buffer (selector, rule 3).
            possible += [
                f"turn {group.id}"
                for group in (state.running.values() if lagging < state.serving else ())
                if lagging < group.first and lagging + self.staleness >= group.target
            ]
        return tuple(possible)

    def delay(self, name: str) -> float:
        """The coordinator looks for instances behind at intervals."""
        return math.inf if name.startswith("turn") else self.pull_s

    def move(self, state: State, name: str) -> None:
        """Requests are interrupted and go on under the new version, with their old tag or a new one."""
        if name == "pull lagging":
            state.marks["lagging"] = (state.v,)
        elif name.startswith("turn"):
            group, (lagging,) = state.running[int(name.split()[1])], state.marks["lagging"]
            state.running[group.id] = group._replace(first=lagging)
            state.tell("turn", lagging, (state.running[group.id],))
        else:
            self._pull(state)

    def _pull(self, state: State) -> None:
        state.serving = state.v
        if self.retag and state.running:
            state.tell("note", state.v, (), f"groups in flight are tagged v{state.v} anew")
            for group in list(state.running.values()):
                state.running[group.id] = group._replace(label=state.serving)

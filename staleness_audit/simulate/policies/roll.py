"""ROLL: the replay buffer of RLVR and the group queues of agentic runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import Group, State


@dataclass(frozen=True)
class Roll(Policy):
    """RLVR: prompts are counted by the step in which they began, and trained in that order.

    ``model_update_frequency`` (F): weights reach the engines at every F-th step only, which the buffer does not know.
    """

    async_generation_ratio: int = 1
    model_update_frequency: int = 1

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """R is the bound where weights are pushed every step."""
        return {"async_generation_ratio": bound}

    def horizon(self) -> int:
        """Start steps are compared with the window only."""
        return self.async_generation_ratio + 1

    def start(self, state: State) -> None:
        """The quota after the first advance."""
        state.counts["quota"] = (self.async_generation_ratio + 1) * self.batch

    def room(self, state: State) -> int:
        """L1: running and completed prompts stay below the quota (rules 1 and 2)."""
        return state.counts["quota"]

    def stamp(self, state: State) -> tuple[int, int]:
        """The label is the step at which the prompt begins."""
        return state.v, 0

    def admitted(self, state: State, group: Group) -> None:
        """A prompt uses quota."""
        state.counts["quota"] -= 1

    def cancel(self, state: State) -> Iterable[Group]:
        """L2: what began before the window can't be used any more (rule 11); its slot is free again (rule 5)."""
        stale = [group for group in state.running.values() if group.label < state.v - self.async_generation_ratio]
        state.counts["quota"] += len(stale)
        for group in [group for group in state.done.values() if group.label < state.v - self.async_generation_ratio]:
            state.drop(group)
        return stale

    def collect(self, state: State) -> None:
        """L3: from the oldest start step on, wait for its running prompts before touching a younger step (rule 13)."""
        wanted = self.batch - len(state.held)
        chosen: list[Group] = []
        for step in sorted({group.label for group in (*state.running.values(), *state.done.values())}):
            finished = [group for group in state.done.values() if group.label == step]
            chosen += finished[: wanted - len(chosen)]
            if len(chosen) == wanted:
                for group in chosen:
                    state.hold(group)
                return
            if any(group.label == step for group in state.running.values()):
                return

    def published(self, state: State) -> None:
        """The quota grows by a batch; the engines may keep what they have."""
        state.counts["quota"] += self.batch
        if state.v % self.model_update_frequency == 0:
            state.serving = state.v


@dataclass(frozen=True)
class RollAgentic(Policy):
    """Agentic: episodes have slots, and a slot expires R steps after it was created.

    One queue stands for those of all environment groups, which play ``batch`` episodes at a time.
    """

    async_generation_ratio: int = 1
    model_update_frequency: int = 1

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """R is the bound where weights are pushed every step."""
        return {"async_generation_ratio": bound}

    def horizon(self) -> int:
        """Create steps are compared with the window only."""
        return self.async_generation_ratio + 1

    def start(self, state: State) -> None:
        """R batches of slots, then one more, all created at the first step (rule 1)."""
        state.marks["slots"] = (0,) * ((self.async_generation_ratio + 1) * self.batch)

    def room(self, state: State) -> int:
        """L1: an idle environment takes the oldest slot (rule 3)."""
        return min(len(state.marks["slots"]), self.batch - len(state.running))

    def stamp(self, state: State) -> tuple[int, int]:
        """The label is the step at which the slot was created, not when the episode began."""
        return state.marks["slots"][0], 0

    def admitted(self, state: State, group: Group) -> None:
        """The slot is claimed."""
        state.marks["slots"] = state.marks["slots"][1:]

    def finished(self, state: State, group: Group) -> None:
        """An episode whose slot has expired is ignored (rule 8)."""
        if self._expired(state, group.label):
            state.drop(group)

    def collect(self, state: State) -> None:
        """L3: in order of completion, unless the slot is too old (rules 11 and 12)."""
        while state.done and len(state.held) < self.batch:
            group = next(iter(state.done.values()))
            if self._expired(state, group.label):
                state.drop(group)
            else:
                state.hold(group)

    def published(self, state: State) -> None:
        """Slots that are too old vanish, those of the new step are created (rule 2)."""
        kept = tuple(step for step in state.marks["slots"] if not self._expired(state, step))
        state.marks["slots"] = (*kept, *(state.v,) * self.batch)
        for group in [group for group in state.done.values() if self._expired(state, group.label)]:
            state.drop(group)
        if state.v % self.model_update_frequency == 0:
            state.serving = state.v

    def _expired(self, state: State, step: int) -> bool:
        return state.v - step > self.async_generation_ratio

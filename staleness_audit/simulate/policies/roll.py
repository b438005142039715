"""ROLL: the replay buffer of RLVR and the group queues of agentic runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import Group, State


@dataclass(frozen=True)
class Roll(Policy):
    """RLVR: prompts are counted by the step in which they began, and trained in that order.

    ``async_generation_ratio`` (R) may be a fraction; the window W is R rounded up. ``model_update_frequency`` (F):
    weights reach the engines at every F-th step only, which the buffer does not know. ``is_use_additional_prompts``:
    prompts beyond the quota begin while fewer than ``max_additional_running_prompts`` run in all; as nothing limits how
    many of them finish, their states can't all be visited.
    """

    async_generation_ratio: float = 1
    model_update_frequency: int = 1
    is_use_additional_prompts: bool = False
    max_additional_running_prompts: int = 16

    positive = ("model_update_frequency",)
    sorted_done = True  # batches are chosen by start step, and prompts of one start step have one serving version

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """R is the bound where weights are pushed every step."""
        return {"async_generation_ratio": bound}

    def window(self) -> int:
        """Return W, the steps a prompt may be behind."""
        return math.ceil(self.async_generation_ratio)

    def horizon(self) -> int:
        """Start steps are compared with the window only."""
        return self.window()

    def start(self, state: State) -> None:
        """The quota after the first advance, less what runs in it and what was completed."""
        state.counts["quota"] = math.ceil(self.async_generation_ratio * self.batch) + self.batch
        if self.is_use_additional_prompts:
            state.counts["plain"] = 0  # those that run within the quota

    def room(self, state: State) -> int:
        """L1: running and completed prompts stay below the quota; then additional ones (rules 1 to 3)."""
        if state.counts["quota"] > 0 or not self.is_use_additional_prompts:
            return state.counts["quota"]
        return self.max_additional_running_prompts - len(state.running)

    def stamp(self, state: State) -> tuple[int, int]:
        """The label is the step at which the prompt begins."""
        return state.v, 0

    def admitted(self, state: State, group: Group) -> None:
        """A prompt uses quota, unless it is additional."""
        if not self.is_use_additional_prompts:
            state.counts["quota"] -= 1
        elif state.counts["quota"] > 0:
            state.counts["quota"] -= 1
            state.counts["plain"] += 1

    def finished(self, state: State, group: Group) -> None:
        """Completed prompts count for good; one within the quota is thought to have ended, while any is (the quirk)."""
        if self.is_use_additional_prompts and not self._ended(state):
            state.counts["quota"] -= 1

    def rejected(self, state: State, group: Group) -> None:
        """A filtered prompt gives its slot back; a new one begins at the then current step (rule 5)."""
        state.counts["quota"] += self._ended(state)

    def _ended(self, state: State) -> bool:
        """Whether a prompt that ended, finished or cancelled, is taken for one within the quota."""
        if not self.is_use_additional_prompts:
            return True
        plain = state.counts["plain"] > 0
        state.counts["plain"] -= plain
        return plain

    def cancel(self, state: State) -> Iterable[Group]:
        """L2: what began before the window can't be used any more (rule 11); its slot is free again (rule 5)."""
        stale = [group for group in state.running.values() if group.label < state.v - self.window()]
        state.counts["quota"] += sum(self._ended(state) for _ in stale)
        for group in [group for group in state.done.values() if group.label < state.v - self.window()]:
            state.drop(group)
        return stale

    def collect(self, state: State) -> None:
        """L3: from the oldest start step on, wait for its running prompts before touching a younger step (rule 13)."""
        chosen: list[Group] = []
        for step in sorted({group.label for group in (*state.running.values(), *state.done.values())}):
            finished = [group for group in state.done.values() if group.label == step]
            wanted = min(self.batch - len(state.held) - len(chosen), self._share(state, step))
            chosen += finished[:wanted]
            if len(chosen) == self.batch - len(state.held):
                for group in chosen:
                    state.hold(group)
                return
            if len(finished) < wanted and any(group.label == step for group in state.running.values()):
                return

    def _share(self, state: State, step: int) -> int:
        """Return how many prompts of a step a batch takes: with a fraction, few of the oldest step (rule 15)."""
        fraction = self.async_generation_ratio % 1
        return int(round(self.batch * fraction, 9)) if fraction and step == state.v - self.window() else self.batch

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

    positive = ("model_update_frequency",)

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """R is the bound where weights are pushed every step."""
        return {"async_generation_ratio": bound}

    def horizon(self) -> int:
        """Create steps are compared with the window only."""
        return self.async_generation_ratio

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

    def rejected(self, state: State, group: Group) -> None:
        """A filtered group is replaced by a slot of the current step, unless its own has expired (rules 8 and 9)."""
        if not self._expired(state, group.label):
            state.marks["slots"] = (*state.marks["slots"], state.v)

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

"""NeMo-RL: the samplers of the single controller, and async_grpo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import Group, State


@dataclass(frozen=True)
class SingleController(Policy):
    """What all samplers share: permits for groups in flight and for buffered ones, selection in chunks.

    ``max_buffered_rollouts`` counts slots, which are taken before generation starts and given back by the trainer.
    """

    max_inflight_prompts: int = 32
    max_buffered_rollouts: int = 64
    min_groups_for_streaming_train: int | None = None

    sorted_done = True

    def room(self, state: State) -> int:
        """L1: free permits (4.1, rule 5)."""
        slots = self.max_buffered_rollouts - len(state.running) - len(state.done)
        return min(slots, self.max_inflight_prompts - len(state.running))

    def evict(self, state: State) -> None:
        """L3: drop what can't be selected any more."""

    def candidates(self, state: State) -> list[Group]:
        """L3: return the finished groups that may be selected, in order."""
        return state.oldest_done()

    def needed(self, state: State) -> int:
        """Return how many groups the step takes."""
        return self.batch

    def ready(self, state: State) -> int:
        """A step is complete when it has all it needs."""
        needed = self.needed(state)
        return needed if len(state.held) >= needed else 0

    def collect(self, state: State) -> None:
        """L3: evict, then select a chunk of at least ``min_groups_for_streaming_train`` (4.1, train loop)."""
        self.evict(state)
        missing = max(0, self.needed(state) - len(state.held))
        chosen = self.candidates(state)[:missing]
        if chosen and len(chosen) >= min(self.min_groups_for_streaming_train or self.batch, missing):
            for group in chosen:
                state.hold(group)


@dataclass(frozen=True)
class Gated(SingleController):
    """The gate of three samplers: admission may lead the trainer by so many batches (4.3)."""

    def lead(self) -> int:
        """Return how many batches admission may lead."""
        raise NotImplementedError

    def unfit(self) -> str | None:
        """What is checked at start-up (4.3)."""
        needed = (self.lead() + 1) * self.batch
        if self.max_buffered_rollouts < needed:
            return f"max_buffered_rollouts must be at least batch * (lead of admission + 1) = {needed}"
        return None

    def start(self, state: State) -> None:
        """Batches 0 to ``lead`` may be admitted."""
        state.counts["quota"] = (self.lead() + 1) * self.batch

    def room(self, state: State) -> int:
        """L1: the gate, on top of the permits."""
        return min(state.counts["quota"], super().room(state))

    def admitted(self, state: State, group: Group) -> None:
        """Finished groups give no quota back."""
        state.counts["quota"] -= 1

    def published(self, state: State) -> None:
        """Only an advancing trainer opens the gate."""
        state.serving = state.v
        state.counts["quota"] += self.batch


@dataclass(frozen=True)
class Windowed(SingleController):
    """windowed: admission is limited by capacity only; the window of versions is checked in flight and at selection."""

    max_staleness_versions: int = 1

    small: ClassVar[Mapping[str, Any]] = {"max_inflight_prompts": 3, "max_buffered_rollouts": 4}

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """Eta is the bound."""
        return {"max_staleness_versions": bound}

    def horizon(self) -> int:
        """Start versions are compared with the window only."""
        return self.max_staleness_versions + 1

    def cancel(self, state: State) -> Iterable[Group]:
        """L2: groups in flight that have left the window (4.2)."""
        return [group for group in state.running.values() if group.label < state.v - self.max_staleness_versions]

    def evict(self, state: State) -> None:
        """L3: finished groups that have left the window."""
        for group in [g for g in state.done.values() if g.label < state.v - self.max_staleness_versions]:
            state.drop(group)


@dataclass(frozen=True)
class WeightFifo(Gated):
    """weight_fifo: the gate, the window, and no version before an older one is used up."""

    max_staleness_versions: int = 1

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """Eta is the bound."""
        return {"max_staleness_versions": bound}

    def horizon(self) -> int:
        """Start versions are compared with the window only."""
        return self.max_staleness_versions + 1

    def lead(self) -> int:
        """L1: as far as the window reaches."""
        return self.max_staleness_versions

    def evict(self, state: State) -> None:
        """L3: finished groups that have left the window."""
        for group in [g for g in state.done.values() if g.label < state.v - self.max_staleness_versions]:
            state.drop(group)

    def candidates(self, state: State) -> list[Group]:
        """L3: ready groups of the smallest start version that any slot of the window has, ready or not (4.4)."""
        window = state.v - self.max_staleness_versions
        starts = (g.label for g in (*state.running.values(), *state.done.values()) if g.label >= window)
        oldest = min(starts, default=window)
        return [group for group in state.oldest_done() if group.label == oldest]


@dataclass(frozen=True)
class ReadyFirst(Gated):
    """ready_first: the gate; then whatever is ready is trained, and nothing is ever evicted (4.6)."""

    max_staleness_versions: int = 1

    sees = ()

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """The knob is a lead of admission, whatever its name says."""
        return {"max_staleness_versions": bound}

    def lead(self) -> int:
        """L1: all that the knob does."""
        return self.max_staleness_versions


@dataclass(frozen=True)
class InOrder(Gated):
    """in_order: groups are bound to the step they were admitted for.

    ``on_dropped_prompt``: a step that loses a prompt for good shrinks (``shrink``), or a spare prompt begins for it
    (``replace``). ``resumed_from_lookahead``: begin as a run resumed at step 1 from a checkpoint that another value of
    the knob left.
    """

    max_lookahead_versions: int = 1
    on_dropped_prompt: str = "shrink"
    resumed_from_lookahead: int | None = None

    sees = ("target",)

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """Eta is the bound."""
        return {"max_lookahead_versions": bound}

    def lead(self) -> int:
        """L1: the lookahead."""
        return self.max_lookahead_versions

    def unfit(self) -> str | None:
        """There are two ways to go on without a prompt."""
        if self.on_dropped_prompt not in ("shrink", "replace"):
            return "on_dropped_prompt is shrink or replace"
        return super().unfit()

    def start(self, state: State) -> None:
        """Batches 0 to eta may be admitted; a checkpoint brings finished groups of its own."""
        super().start(state)
        state.marks |= {"admitted": (0,), "short": (), "spare": ()}
        state.counts["restored"] = 0
        if self.resumed_from_lookahead is not None:
            self._restore(state, self.resumed_from_lookahead)

    def _restore(self, state: State, lookahead: int) -> None:
        """Version 1, and a batch of version 0 finished for every step up to the old lookahead (4.1, rule 3)."""
        _resume(state, 1, _left(lookahead, self.batch))
        # Batches that are complete already are not generated again (4.1, rule 4).
        state.marks["admitted"] = (1 + lookahead,)
        state.counts["quota"] = max(0, self.lead() + 1 - lookahead) * self.batch
        state.counts["restored"] = max(0, lookahead - self.lead() - 1)

    def room(self, state: State) -> int:
        """L1: a spare prompt has the permits of the one it stands for."""
        return len(state.marks["spare"]) or super().room(state)

    def stamp(self, state: State) -> tuple[int, int]:
        """The target is the number of the batch (4.5), or the step that lost a prompt."""
        return state.serving, (state.marks["spare"] or state.marks["admitted"])[0]

    def admitted(self, state: State, group: Group) -> None:
        """Every ``batch`` groups the dispatch index moves on."""
        if state.marks["spare"]:
            state.marks["spare"] = state.marks["spare"][1:]
            return
        super().admitted(state, group)
        if state.counts["quota"] % self.batch == 0:
            state.marks["admitted"] = (state.marks["admitted"][0] + 1,)

    def published(self, state: State) -> None:
        """One batch more, unless it was restored."""
        super().published(state)
        state.marks["short"] = tuple(step for step in state.marks["short"] if step >= state.v)
        if state.counts["restored"]:
            state.counts["restored"] -= 1
            state.counts["quota"] -= self.batch

    def rejected(self, state: State, group: Group) -> None:
        """A prompt is given up: its step shrinks, or a spare one takes its place (4.1, failures)."""
        lost = "spare" if self.on_dropped_prompt == "replace" else "short"
        state.marks[lost] = (*state.marks[lost], group.target)

    def needed(self, state: State) -> int:
        """What was given up is not waited for."""
        return self.batch - state.marks["short"].count(state.v)

    def evict(self, state: State) -> None:
        """L3: groups whose step has passed; the start version is not looked at."""
        for group in [group for group in state.done.values() if group.target < state.v]:
            state.drop(group)

    def candidates(self, state: State) -> list[Group]:
        """L3: the groups of this step."""
        return [group for group in state.oldest_done() if group.target == state.v]


@dataclass(frozen=True)
class AsyncGrpo(Policy):
    """async_grpo: one worker generates the batch of one target step; age is checked when it is sampled.

    ``label`` is the generator version at the worker's start. The collector never rests while a target lacks groups.
    ``resumed_from_age``: begin as a run resumed at step 1 from a checkpoint that another value of the knob left.
    """

    max_trajectory_age_steps: int = 1
    in_flight_weight_updates: bool = False
    resumed_from_age: int | None = None

    eager = True
    whole = True
    sees = ("label", "target")
    sorted_done = True

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """A is the bound."""
        return {"max_trajectory_age_steps": bound}

    def horizon(self) -> int:
        """Versions are compared with the window, targets with the step."""
        return self.max_trajectory_age_steps + 1

    def start(self, state: State) -> None:
        """The collector is new: it may also generate for the step that is next."""
        state.counts["fresh"] = 1
        if self.resumed_from_age is not None:
            self.restore(state, 1, _left(self.resumed_from_age, self.batch))

    def restore(self, state: State, step: int, saved: Iterable[tuple[int, int]]) -> None:
        """Begin at a step with the groups (start version, target) of a checkpoint that may still be of use (5.2.1)."""
        age = self.max_trajectory_age_steps
        useful = [group for group in saved if group[1] >= step and group[0] >= step - age]
        _resume(state, step, useful[: self.batch * age * 2])

    def _target(self, state: State) -> tuple[int, int]:
        """Return the smallest allowed target that lacks groups, and how many (4.7, rules 2 to 4)."""
        age = self.max_trajectory_age_steps
        consumed = state.v if state.training else state.v - 1
        first = state.serving + (0 if state.counts["fresh"] else 1)
        made = Counter(
            group.target
            for group in chain(state.done.values(), state.running.values())
            if group.label >= group.target - age
        )
        for target in range(max(first, consumed + 1), state.serving + age + 1):
            if made[target] < self.batch:
                return target, self.batch - made[target]
        return 0, 0

    def room(self, state: State) -> int:
        """L1: what the next target needs; one worker generates it, all from one version."""
        return self._target(state)[1]

    def stamp(self, state: State) -> tuple[int, int]:
        """Generator version at the worker's start, and the step it works for."""
        return state.serving, self._target(state)[0]

    def collect(self, state: State) -> None:
        """L3: evict what is too old, then wait for N groups of this very step."""
        for group in [g for g in state.done.values() if g.label < state.v - self.max_trajectory_age_steps]:
            state.drop(group)
        if (
            state.counts["fresh"]
            and self.max_trajectory_age_steps
            and len(self._for_step(state, state.v + 1)) < self.batch
        ):
            return  # The barrier before the first step: it and the next one must be complete.
        chosen = self._for_step(state, state.v)[: self.batch]
        if len(chosen) == self.batch:
            for group in chosen:
                state.hold(group)

    def _for_step(self, state: State, step: int) -> list[Group]:
        return [group for group in state.oldest_done() if group.target == step]

    def may_publish(self, state: State) -> bool:
        """A refit waits for running generations unless they may cross it."""
        return self.in_flight_weight_updates or not state.running

    def published(self, state: State) -> None:
        """Weights are refitted."""
        state.serving = state.v
        state.counts["fresh"] = 0


def _left(lead: int, batch: int) -> list[tuple[int, int]]:
    """Return what a run leaves at step 1 whose admission led by so many steps, as (start version, target)."""
    return [(0, 1 + number // batch) for number in range(lead * batch)]


def _resume(state: State, version: int, restored: list[tuple[int, int]]) -> None:
    """Begin at a version, with finished groups of a checkpoint."""
    state.v = state.serving = version
    for label, target in restored:
        group = Group(state.next_id, label, label, label, target)
        state.tell("admitted", label, (group,))
        state.tell("finished", label, (group,))
        state.done[group.id] = group
        state.next_id += 1
    state.tell("published", version)
    state.tell("serving", version)
    state.tell("note", version, (), f"a run resumes at v{version} with {len(restored)} finished groups restored")

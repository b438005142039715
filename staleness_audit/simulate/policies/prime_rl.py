"""prime-rl: the orchestrator counts shipped batches, looks at start versions in flight and in its sink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from staleness_audit.simulate.policies.prime_rl_cap import POLL_S, cap_of, grow, look, start_cap
from staleness_audit.simulate.policy import Load, Policy
from staleness_audit.simulate.state import Group, State

TARGET_LAG = 1


@dataclass(frozen=True)
class PrimeRl(Policy):
    """A dispatcher with a gate, a sweep of everything that waits, and batches shipped at most one version early.

    A group here is one trace. ``max_inflight`` caps them; with ``adaptive`` it is the ceiling of a cap that follows the
    engines (4.1, rule 5), and the knobs beside it matter. Within five seconds the pool grows by a tenth of the cap, or
    ``min_burst`` if that is more (rule 1b; 0: without limit). Both take a clock, so the prover leaves them aside, which
    only adds schedules. ``queue_check``: traces that wait are checked (since PR #3313); without it only version changes
    in flight count. ``label_race``: the version counter moves before the engines have the weights (between PR #3050 and
    #3385), ``pause_s`` before, so what starts in between is labelled one too new. Left out: episodes for evaluation.
    """

    max_off_policy_steps: int = 8
    max_inflight: int = 1024
    min_burst: int = 8
    queue_check: bool = True
    label_race: bool = False
    broadcast_s: float = 1.0
    pause_s: float = 0.3
    adaptive: bool = False
    initial_inflight: int | None = None
    min_inflight: int = 1
    seq_len: int = 2048

    positive = ("min_inflight", "seq_len")
    prompt = True
    small: ClassVar[Mapping[str, Any]] = {"max_inflight": 3, "min_burst": 0, "batch": 1}

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """The configured number is the bound."""
        return {"max_off_policy_steps": bound}

    def horizon(self) -> int:
        """Start versions are compared with the step being collected, at most two ahead of the trainer."""
        return self.max_off_policy_steps + 3

    def start(self, state: State) -> None:
        """``shipped`` is progress.step - 1, ``policy`` the version counter of the orchestrator."""
        state.marks |= {"shipped": (0,), "policy": (0,)}
        state.counts |= {"gate": 1, "applying": 0, "burst": 0, "arrived": 0}
        if self.adaptive:
            start_cap(state, self.initial_inflight or self.min_inflight)

    def room(self, state: State) -> int:
        """L1: the gate is open, and the cap and the growth of the pool leave room (4.1, rule 1)."""
        cap = int(cap_of(state)) if self.adaptive else self.max_inflight
        room = cap - len(state.running) if state.counts["gate"] else 0
        return min(room, max(self.min_burst, cap // 10) - state.counts["burst"]) if self.min_burst else room

    def admitted(self, state: State, group: Group) -> None:
        """The pool grows."""
        if self.min_burst:
            state.counts["burst"] += 1

    def finished(self, state: State, group: Group) -> None:
        """What finishes makes room in the pool, lets the adaptive cap grow, and is for the sink to look at."""
        state.counts["arrived"] += 1
        state.counts["burst"] = max(0, state.counts["burst"] - 1)
        if self.adaptive:
            grow(state, self.max_inflight)

    def rejected(self, state: State, group: Group) -> None:
        """A curriculum's gate says no: room in the pool, and nothing for the sink (4.3, rule 2)."""
        state.counts["burst"] = max(0, state.counts["burst"] - 1)
        if self.adaptive:
            grow(state, self.max_inflight)

    def polls(self) -> float:
        """The adaptive cap looks at the engines every five seconds; the pool's growth is counted over as long."""
        return POLL_S if self.adaptive or self.min_burst else 0.0

    def polled(self, state: State, load: Load) -> None:
        """Count growth anew; set the cap by what the engines say; the excess is cancelled, youngest first."""
        state.counts["burst"] = 0
        if not self.adaptive:
            return
        if not state.counts["polled"] and self.initial_inflight is None:
            derived = load.kv_tokens // self.seq_len
            start_cap(state, max(self.min_inflight, min(derived, self.max_inflight)))
        excess = look(state, load, self.min_inflight)
        for group in list(state.running.values())[::-1][:excess]:
            state.stop(group, "overload")

    def stamp(self, state: State) -> tuple[int, int]:
        """The label is the version counter when the group is opened."""
        return state.marks["policy"][0], 0

    def collect(self, state: State) -> None:
        """L3: for each arrival sweep what waits, and ship at most one batch (4.3, rules 3 and 4).

        A batch is held, with all later arrivals, until the version is near enough (rule 6).
        """
        while state.counts["arrived"]:
            (shipped,), (policy,) = state.marks["shipped"], state.marks["policy"]
            if self.queue_check:
                for group in [g for g in state.done.values() if g.label < shipped - self.max_off_policy_steps]:
                    state.drop(group)
            if len(state.done) >= self.batch:
                if policy < shipped - TARGET_LAG:
                    return
                for group in list(state.done.values())[: self.batch]:
                    state.hold(group)
                state.marks["shipped"] = (shipped + 1,)
                self._gate(state)
            state.counts["arrived"] -= 1

    def published(self, state: State) -> None:
        """The trainer broadcasts; the orchestrator's watcher has yet to adopt it."""

    def own(self, state: State) -> tuple[str, ...]:
        """The watcher adopts a version; the engines apply it."""
        if state.counts["applying"]:
            return ("apply",)
        return ("adopt",) if state.marks["policy"][0] < state.v else ()

    def delay(self, name: str) -> float:
        """A version is seen at the next poll; with the race, the engines are paused for it later."""
        return self.broadcast_s if name == "adopt" else self.pause_s

    def move(self, state: State, name: str) -> None:
        """Adopt: the counter moves and L2 cancels; then the engines are paused, loaded and resumed (4.4)."""
        if name == "adopt":
            state.marks["policy"] = (state.marks["policy"][0] + 1,)
            state.counts["applying"] = 1
            state.tell("note", state.v, (), f"the orchestrator adopts v{state.marks['policy'][0]} and labels with it")
            for group in self._doomed(state):
                state.stop(group)
            if self.label_race:
                return
        state.counts["applying"] = 0
        (state.serving,) = state.marks["policy"]
        self._gate(state)

    def _doomed(self, state: State) -> Iterable[Group]:
        """L2: open groups that started too long before the step being collected (4.2; before #3313: 4.6)."""
        (shipped,), (policy,) = state.marks["shipped"], state.marks["policy"]
        newest = shipped if self.queue_check else policy
        return [group for group in state.running.values() if group.label < newest - self.max_off_policy_steps]

    def _gate(self, state: State) -> None:
        """L1: closed while more batches were shipped than the version allows (4.1, rule 3)."""
        state.counts["gate"] = int(state.marks["shipped"][0] - state.marks["policy"][0] <= TARGET_LAG)

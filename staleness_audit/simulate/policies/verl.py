"""verl: V1 ``separate_async`` with its three ways at the training input, fully-async, one-step-off."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import Group, State


@dataclass(frozen=True)
class VerlV1(Policy):
    """V1: a fixed number of outstanding groups; the strategy decides what happens to those of old admission steps.

    The admission step of a group is ``a``, the step being collected ``s = v + 1``. ``resumes``: how often a schedule
    may be stopped after a step and resumed from its checkpoint, which admits the warm-up batches once more.
    """

    max_off_policy_threshold: int | None = 8
    max_off_policy_strategy: str = "drop"
    num_warmup_batches: int = 1
    parameter_sync_step: int = 1
    resumes: int = 0

    eager = True
    whole = True
    sorted_done = True
    small: ClassVar[Mapping[str, Any]] = {"resumes": 1, "batch": 1}

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """A finished group is evicted when s - a + 1 > T, and v_gen >= a - 1: T - 1 is the bound."""
        return {"max_off_policy_threshold": bound + 1}

    def unfit(self) -> str | None:
        """The rules that verl asserts."""
        if self.max_off_policy_strategy not in ("drop", "wait"):
            return "max_off_policy_strategy is drop or wait"
        if self.max_off_policy_threshold is not None and self.max_off_policy_threshold < 1:
            return "max_off_policy_threshold must be at least 1"
        return _divides(self.parameter_sync_step, self.batch, "parameter_sync_step")

    def horizon(self) -> int:
        """Ages are compared with the threshold only."""
        return (self.max_off_policy_threshold or 0) + 1

    def start(self, state: State) -> None:
        """The warm-up batches and the first one are admitted as step 1 (rules 1 and 2)."""
        state.counts |= {"quota": (self.num_warmup_batches + 1) * self.batch, "resumes": self.resumes, "saved": 0}

    def room(self, state: State) -> int:
        """L1: a batch a step, and one group for each that was evicted (rules 2 and 3)."""
        return state.counts["quota"]

    def stamp(self, state: State) -> tuple[int, int]:
        """The label is the admission step."""
        return state.v + 1, 0

    def admitted(self, state: State, group: Group) -> None:
        """Use up quota."""
        state.counts["quota"] -= 1

    def collect(self, state: State) -> None:
        """L3: evict (drop), or wait for groups in flight (wait), then take the oldest admissions (rules 9 to 13)."""
        step, threshold = state.v + 1, self.max_off_policy_threshold
        if threshold is not None and self.max_off_policy_strategy == "drop":
            for group in [group for group in state.done.values() if step - group.label + 1 > threshold]:
                state.drop(group)
                state.counts["quota"] += 1
        elif threshold is not None and any(step - group.label + 1 >= threshold for group in state.running.values()):
            return
        portion = self.batch // self.parameter_sync_step
        if len(state.done) >= portion and len(state.held) < self.batch:
            for group in sorted(state.done.values(), key=lambda group: group.label)[:portion]:
                state.hold(group)

    def rejected(self, state: State, group: Group) -> None:
        """A failed or uniform group is evicted, and replaced by one of the step being collected (rules 3 and 10)."""
        state.counts["quota"] += 1

    def published(self, state: State) -> None:
        """The next step admits its batch."""
        state.serving = state.v
        state.counts["quota"] += self.batch
        state.counts["saved"] = 1

    def own(self, state: State) -> tuple[str, ...]:
        """Resuming is possible between two steps, once there is a checkpoint."""
        between = state.counts["saved"] and not (state.training or state.held)
        return ("resume",) if state.counts["resumes"] and between else ()

    def move(self, state: State, name: str) -> None:
        """Resume: finished groups are restored, those in flight start again, warm-up comes on top (rule 5)."""
        state.counts["resumes"] -= 1
        state.tell("note", state.v, (), "the run stops here and is resumed from its checkpoint")
        state.counts["quota"] += len(state.running) + self.num_warmup_batches * self.batch
        for group in list(state.running.values()):
            del state.running[group.id]
            state.tell("lost", state.v, (group,), "error")

    def delay(self, name: str) -> float:
        """A timed run is not stopped by itself."""
        return math.inf


@dataclass(frozen=True)
class VerlFullyAsync(Policy):
    """Fully async: a cap on samples between two syncs, a FIFO queue, no look at ages.

    ``batch`` is what ``trigger_parameter_sync_step`` micro-steps train, one parameter version.
    """

    staleness_threshold: float = 0.1
    trigger_parameter_sync_step: int = 1

    sees = ()

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """The threshold is a ratio of samples; the nominal reading (1 is one step off) is all there is."""
        return {"staleness_threshold": float(bound)}

    def unfit(self) -> str | None:
        """Micro-steps have equal sizes."""
        return _divides(self.trigger_parameter_sync_step, self.batch, "trigger_parameter_sync_step")

    def required(self) -> int:
        """Return the cap on started samples and on the queue, ``max_required_samples``."""
        return int(self.batch * (self.staleness_threshold + 1))

    def start(self, state: State) -> None:
        """Count what was started since the last sync."""
        state.counts["started"] = 0

    def room(self, state: State) -> int:
        """L1: stop at the cap of the queue or of the counter (rules 1 and 2)."""
        return 0 if len(state.done) >= self.required() else self.required() - state.counts["started"]

    def admitted(self, state: State, group: Group) -> None:
        """Count it."""
        state.counts["started"] += 1

    def collect(self, state: State) -> None:
        """L3: none; micro-steps in order of finishing."""
        portion = self.batch // self.trigger_parameter_sync_step
        while len(state.done) >= portion and len(state.held) < self.batch:
            for group in list(state.done.values())[:portion]:
                state.hold(group)

    def published(self, state: State) -> None:
        """The counter restarts at what is still outstanding (rule 4)."""
        state.serving = state.v
        state.counts["started"] = len(state.running) + len(state.done)


@dataclass(frozen=True)
class VerlOneStepOff(Policy):
    """One step off: a batch is generated while the one before it trains; the sync comes first in a step."""

    sees = ()
    whole = True

    def start(self, state: State) -> None:
        """The first batch is generated before anything trains."""
        state.counts["quota"] = self.batch

    def room(self, state: State) -> int:
        """L1: one batch in flight."""
        return state.counts["quota"]

    def admitted(self, state: State, group: Group) -> None:
        """Use up quota."""
        state.counts["quota"] -= 1

    def rejected(self, state: State, group: Group) -> None:
        """The batch is made whole (the guide names no filter in this mode)."""
        state.counts["quota"] += 1

    def collect(self, state: State) -> None:
        """L3: wait for the whole batch."""
        if len(state.done) == self.batch:
            for group in list(state.done.values()):
                state.hold(group)

    def began(self, state: State) -> None:
        """The weights made so far are published at the start of the step, then the next batch is started."""
        state.serving = state.v
        state.counts["quota"] = self.batch

    def published(self, state: State) -> None:
        """What was trained waits for the next sync."""


def _divides(parts: int, batch: int, knob: str) -> str | None:
    return None if parts >= 1 and batch % parts == 0 else f"{knob} must divide the batch of {batch}"

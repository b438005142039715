"""OpenRLHF's asynchronous trainer: permits for whole batches; over-sampling leaves a buffer that no permit counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import Group, State


@dataclass(frozen=True)
class Openrlhf(Policy):
    """A generator that takes a permit, makes a batch, queues it; a trainer that returns the permit when it takes one.

    ``done`` is the generator's sample buffer, ``held`` the queue. ``oversampling``: batches per generation call
    (``vllm_generate_batch_size`` / ``batch``).
    """

    async_queue_size: int = 1
    oversampling: int = 1
    partial_rollout_enable: bool = False

    positive = ("async_queue_size", "oversampling")
    sees = ()
    whole = True
    ahead = True

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """There is no staleness knob; the queue size is the limit without over-sampling."""
        if bound < 1:
            raise ValueError("async_queue_size must be at least 1, so no setting stands for a bound of 0")
        return {"async_queue_size": bound}

    def start(self, state: State) -> None:
        """All permits are free."""
        state.counts |= {"permits": self.async_queue_size, "replace": 0}

    def room(self, state: State) -> int:
        """L1: a generation call, if a permit is free and the buffer is too small to serve a batch (4.1, 4.2)."""
        if state.counts["replace"]:
            return state.counts["replace"]
        needed = state.counts["permits"] > 0 and len(state.done) < self.batch
        return self.batch * self.oversampling if needed and not self._calling(state) else 0

    def admitted(self, state: State, group: Group) -> None:
        """One that was filtered has its replacement."""
        state.counts["replace"] = max(0, state.counts["replace"] - 1)

    def rejected(self, state: State, group: Group) -> None:
        """Dynamic filtering: the call goes on with another prompt (4.2, rule 2)."""
        state.counts["replace"] += 1

    def finished(self, state: State, group: Group) -> None:
        """The call returns when its last group is done, and a batch of it goes to the queue."""
        self._serve(state)

    def collect(self, state: State) -> None:
        """Without a call: the generator serves from its buffer while it gets permits. L3: none, the queue is FIFO."""
        self._serve(state)

    def _serve(self, state: State) -> None:
        if not self._calling(state) and state.counts["permits"] > 0 and len(state.done) >= self.batch:
            state.counts["permits"] -= 1
            for group in list(state.done.values())[: self.batch]:
                state.hold(group)

    def began(self, state: State) -> None:
        """The permit goes back before the batch is trained (4.1, rule 5)."""
        state.counts["permits"] += 1

    def may_publish(self, state: State) -> bool:
        """The broadcast waits for the lock of a generation call, except with partial rollouts (4.3)."""
        return self.partial_rollout_enable or not self._calling(state)

    def _calling(self, state: State) -> bool:
        return bool(state.running or state.counts["replace"])

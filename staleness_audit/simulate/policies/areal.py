"""AReaL: admission counts tasks; nothing looks at the age of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import Group, State


@dataclass(frozen=True)
class Areal(Policy):
    """A quota of (eta + v + 1) * C tasks, and batches of the tasks that were created first.

    ``consumer_batch_size`` (C) is the batch size unless it is set. Limits of 0 count as 1.
    """

    max_head_offpolicyness: int = 1
    max_concurrent_rollouts: int = 256
    consumer_batch_size: int | None = None

    sees = ()
    sorted_done = True

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """Eta is meant as the bound."""
        return {"max_head_offpolicyness": bound}

    def start(self, state: State) -> None:
        """The quota that is left at version 0."""
        state.counts["quota"] = (self.max_head_offpolicyness + 1) * self._consumer()

    def _consumer(self) -> int:
        return self.batch if self.consumer_batch_size is None else max(1, self.consumer_batch_size)

    def room(self, state: State) -> int:
        """L1: what concurrency and quota leave (4.1, rule 1)."""
        return min(max(1, self.max_concurrent_rollouts) - len(state.running), state.counts["quota"])

    def admitted(self, state: State, group: Group) -> None:
        """A task uses quota for good: training never gives it back, only a new version does."""
        state.counts["quota"] -= 1

    def collect(self, state: State) -> None:
        """L3: wait for B results, take those with the smallest create_time (4.3)."""
        if len(state.done) >= self.batch:
            for task in state.oldest_done()[: self.batch]:
                state.hold(task)

    def rejected(self, state: State, group: Group) -> None:
        """The quota of a rejected task is free again at once (4.1, rule 5)."""
        state.counts["quota"] += 1

    def published(self, state: State) -> None:
        """The quota grows by C."""
        state.serving = state.v
        state.counts["quota"] += self._consumer()

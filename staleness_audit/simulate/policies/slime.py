"""slime's fully asynchronous rollout: thresholds on active and on finished groups, no look at versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import State


@dataclass(frozen=True)
class Slime(Policy):
    """A worker that keeps T groups active while fewer than T wait; the next batch is collected while one trains.

    ``threshold`` (T): engines times concurrency, in groups. ``queue_gate``: admission looks at the queue (since August
    2026); before that it did not, and a collection took everything and discarded what its batch did not need.
    """

    threshold: int = 256
    queue_gate: bool = True
    update_weights_interval: int = 1
    queue_capacity: int = 1000

    sees = ()
    ahead = True
    small: ClassVar[Mapping[str, Any]] = {"threshold": 2, "batch": 1, "queue_capacity": 2}

    def room(self, state: State) -> int:
        """L1: the two conditions are separate (rule 2)."""
        limit = self.threshold if self.queue_gate else self.queue_capacity
        return self.threshold - len(state.running) if len(state.done) < limit else 0

    def collect(self, state: State) -> None:
        """L3: first in, first out; no test of versions (rules 9 and 11)."""
        while state.done and len(state.held) < self.batch:
            state.hold(next(iter(state.done.values())))
        if not self.queue_gate and len(state.held) == self.batch:
            for group in list(state.done.values()):
                state.drop(group, "surplus")

    def may_publish(self, state: State) -> bool:
        """A sync waits until the next batch has been collected."""
        return not self._syncs(state) or len(state.held) >= self.batch

    def published(self, state: State) -> None:
        """Weights go to the engines every k-th rollout."""
        if state.v % self.update_weights_interval == 0:
            state.serving = state.v

    def _syncs(self, state: State) -> bool:
        return (state.v + 1) % self.update_weights_interval == 0

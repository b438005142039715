"""SkyRL's fully async trainer: a quota of groups; age is only logged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import Group, State


@dataclass(frozen=True)
class Skyrl(Policy):
    """At most (S + current step) * B groups submitted, trained in the order in which they finish."""

    max_staleness_steps: int = 4
    num_parallel_generation_workers: int | None = None

    sees = ()

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """S is compared with ages in the log, without consequence."""
        return {"max_staleness_steps": bound}

    def start(self, state: State) -> None:
        """The quota at step 1."""
        state.counts["quota"] = (self.max_staleness_steps + 1) * self.batch

    def room(self, state: State) -> int:
        """L1: workers and quota (rule 2)."""
        workers = self.num_parallel_generation_workers or self.batch * (self.max_staleness_steps + 1)
        return min(workers - len(state.running), state.counts["quota"])

    def admitted(self, state: State, group: Group) -> None:
        """A group uses quota for good."""
        state.counts["quota"] -= 1

    def collect(self, state: State) -> None:
        """L3: the buffer in order of finishing; an old group is warned about and trained (rules 1 and 3)."""
        while state.done and len(state.held) < self.batch:
            state.hold(next(iter(state.done.values())))

    def rejected(self, state: State, group: Group) -> None:
        """A group without variance counts as not accepted (rule 6)."""
        state.counts["quota"] += 1

    def published(self, state: State) -> None:
        """The manager is told of the next step."""
        state.serving = state.v
        state.counts["quota"] += self.batch

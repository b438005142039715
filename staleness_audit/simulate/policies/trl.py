"""TRL's asynchronous GRPO: staleness is checked when a row is pulled, and the loader pulls ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import State


@dataclass(frozen=True)
class Trl(Policy):
    """Rows pulled from a FIFO queue into micro-batches, one micro-batch ahead of the optimizer.

    A group here is one row. ``batch`` rows are ``gradient_accumulation_steps`` micro-batches. With ``token_budget`` the
    row that does not fit closes a micro-batch and opens the next one, so it has been pulled, and checked, by then.
    """

    max_staleness: int = 4
    gradient_accumulation_steps: int = 1
    token_budget: bool = False
    max_inflight_tasks: int = -1
    queue_maxsize: int = 1024

    small: ClassVar[Mapping[str, Any]] = {"queue_maxsize": 3, "batch": 1, "max_inflight_tasks": 2}

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """``max_staleness`` is meant as the bound."""
        return {"max_staleness": bound}

    def unfit(self) -> str | None:
        """Micro-batches have equal sizes."""
        steps = self.gradient_accumulation_steps
        fits = steps >= 1 and self.batch % steps == 0
        return None if fits else f"gradient_accumulation_steps must divide the batch of {self.batch}"

    def horizon(self) -> int:
        """Labels are compared with the knob only."""
        return self.max_staleness

    def room(self, state: State) -> int:
        """L1: free slots, whatever waits, until the queue is full (4.1)."""
        slots = self.max_inflight_tasks if self.max_inflight_tasks >= 0 else max(self.max_staleness, 1) * self.batch
        return slots - len(state.running) if len(state.done) < self.queue_maxsize else 0

    def collect(self, state: State) -> None:
        """L3: pull until the batch and one micro-batch more are assembled; drop what is too old *now* (4.4, 4.6)."""
        while state.done and len(state.held) < self._pulled():
            row = next(iter(state.done.values()))
            if state.v - row.label > self.max_staleness:
                state.drop(row)
            else:
                state.hold(row)

    def ready(self, state: State) -> int:
        """The optimizer gets its micro-batches only when the loader has the next one."""
        return self.batch if len(state.held) >= self._pulled() else 0

    def _pulled(self) -> int:
        micro_batch = self.batch // self.gradient_accumulation_steps
        return self.batch + micro_batch + (1 if self.token_budget else 0)

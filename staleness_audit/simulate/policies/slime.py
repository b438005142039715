"""slime's fully asynchronous rollout: limits on groups that are active, finished or pooled, no look at versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from random import Random
from typing import Any, ClassVar

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import State

_TARGET = attrgetter("target")


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
    positive = ("update_weights_interval",)
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


@dataclass(frozen=True)
class SlimePooled(Policy):
    """The pooled worker (October 2026): a pool of groups in flight or finished, batches formed ahead of the trainer.

    ``fully_async_pool_size`` (P): groups in the pool. ``batches_ahead`` (M): slots for batches. Of several finished
    groups that with the smallest random key is taken; with ``random_keys`` off, the one that finished first. The prover
    has it off: as any group may finish first, it sees the same choices.
    """

    fully_async_pool_size: int = 256
    batches_ahead: int = 1
    update_weights_interval: int = 1
    random_keys: bool = True

    sees = ("target",)
    ahead = True
    positive = ("batches_ahead", "update_weights_interval")
    small: ClassVar[Mapping[str, Any]] = {"fully_async_pool_size": 2, "batch": 1, "random_keys": False}

    def horizon(self) -> int:
        """Keys are compared with each other, and nothing with a version."""
        return -1

    def room(self, state: State) -> int:
        """L1: the pool is filled up whenever a group is taken from it, and not while all slots are taken."""
        return self.fully_async_pool_size - len(state.running) - len(state.done) if self._forms(state) else 0

    def stamp(self, state: State) -> tuple[int, int]:
        """The key is drawn when a group is dispatched."""
        return state.serving, Random(state.next_id).randrange(1 << 30) if self.random_keys else 0  # noqa: S311

    def collect(self, state: State) -> None:
        """L3: one group for the batch that is being formed; no test of versions."""
        if state.done and self._forms(state):
            state.hold(min(state.done.values(), key=_TARGET))

    def published(self, state: State) -> None:
        """Weights go to the engines every k-th rollout."""
        if state.v % self.update_weights_interval == 0:
            state.serving = state.v

    def _forms(self, state: State) -> bool:
        return len(state.held) < self.batches_ahead * self.batch

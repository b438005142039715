"""A control of our own: every group has a deadline, and admission makes sure that all deadlines can be met."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import State

_LABEL = attrgetter("label")


@dataclass(frozen=True)
class Deadline(Policy):
    """No drop, no violation, and waiting only where a deadline would be missed.

    A group that starts under version u must be trained by step u + bound. Steps have ``batch`` places, so all deadlines
    can be met exactly if for each k at most (k + 1) * batch outstanding groups are due within k steps (Hall's condition
    for unit tasks with deadlines). Admission keeps that true, and so does selection: finished groups are taken earliest
    deadline first, and only if the groups left behind can still be placed.

    ``lookahead``: batches admitted beyond the next one. As many as the bound allows (None) leave no slack: every group
    then has to be trained in order. Fewer leave stragglers the rest of the bound to finish in, without anyone waiting.
    """

    max_staleness: int = 1
    lookahead: int | None = None

    sorted_done = True

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """The knob is the bound."""
        return {"max_staleness": bound}

    def horizon(self) -> int:
        """No group is ever older than the bound."""
        return self.max_staleness + 1

    def room(self, state: State) -> int:
        """L1: how many groups of the serving version can be added without breaking Hall's condition, or looking on."""
        first = state.v + (1 if state.training else 0)
        # All deadlines are at most that of a new group, so only the condition for the last step can bind.
        places = state.serving + self.max_staleness - first + 1
        if self.lookahead is not None:
            places = min(places, self.lookahead + 1)
        return places * self.batch - len(state.running) - len(state.done)

    def collect(self, state: State) -> None:
        """L3: take the earliest deadlines that are finished, unless someone left behind would then come too late."""
        if len(state.done) < self.batch:
            return
        # Labels are few, groups may be thousands: first see whether the step may go, then choose.
        left, places = Counter(map(_LABEL, chain(state.running.values(), state.done.values()))), self.batch
        for label, finished in sorted(Counter(map(_LABEL, state.done.values())).items()):
            taken = min(finished, places)
            left[label] -= taken
            places -= taken
        due = 0
        for label in sorted(+left):
            due += left[label]
            if due > (label + self.max_staleness - state.v) * self.batch:
                return
        for group in sorted(state.done.values(), key=lambda group: (group.label, group.id))[: self.batch]:
            state.hold(group)

    def published(self, state: State) -> None:
        """The engines serve the new version at once."""
        state.serving = state.v

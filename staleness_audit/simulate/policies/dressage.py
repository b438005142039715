"""Dressage: the last labels of sessions are compared with each other, never with the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import Group, State


@dataclass(frozen=True)
class Dressage(Policy):
    """Partial async collection on slime's loop: a window of the end labels seen, a limit on labels in a session.

    A group here is one session. ``tool_calls``: a session may be in its environment while versions pass, and then has
    no token of them, so that the limit on labels does not count them; without, it has tokens of every version it spans.
    """

    dressage_staleness_keep_versions: int = 2
    max_partial_rollout_preempts: int | None = 2
    max_active_groups: int = 256
    output_queue_watermark: int = 800
    tool_calls: bool = True

    sees = ("label", "last")
    ahead = True
    small: ClassVar[Mapping[str, Any]] = {"max_active_groups": 2, "output_queue_watermark": 1, "batch": 1}

    def horizon(self) -> int:
        """Labels are compared with each other; those that can't return are forgotten."""
        return self.dressage_staleness_keep_versions + (self.max_partial_rollout_preempts or 0) + 2

    def start(self, state: State) -> None:
        """No label has been observed."""
        state.marks["labels"] = ()

    def room(self, state: State) -> int:
        """L1: active groups, and the watermark of the output queue (rule 2)."""
        return self.max_active_groups - len(state.running) if len(state.done) < self.output_queue_watermark else 0

    def finished(self, state: State, group: Group) -> None:
        """L2: a session with too many labels is rejected when its turn is over (rules 3 and 5)."""
        spanned = group.last - group.label
        changes = min(spanned, 1) if self.tool_calls else spanned
        if self.max_partial_rollout_preempts is not None and changes > self.max_partial_rollout_preempts:
            state.drop(group)

    def collect(self, state: State) -> None:
        """L3: observe all that finished, drop what is outside the window of labels, take until full (rules 6 to 10)."""
        if len(state.held) >= self.batch:
            return
        labels = list(state.marks["labels"])
        for group in state.done.values():
            if group.last not in labels:
                labels.append(group.last)
        keep = self.dressage_staleness_keep_versions
        stale = set(labels[:-keep]) if keep else set()
        for group in [group for group in state.held if group.last in stale]:
            state.held.remove(group)
            state.tell("dropped", state.v, (group,), "stale")
        for group in list(state.done.values()):
            if len(state.held) >= self.batch:
                break
            if group.last in stale:
                state.drop(group)
            else:
                state.hold(group)
        # A label matters only while some group that finished under it waits, or the engines serve it.
        alive = {group.last for group in (*state.done.values(), *state.held)} | {state.serving}
        cut = len(labels) - max(keep, 1)
        state.marks["labels"] = tuple(label for place, label in enumerate(labels) if place >= cut or label in alive)

    def may_publish(self, state: State) -> bool:
        """A sync waits until the next batch has been collected, as in slime."""
        return len(state.held) >= self.batch

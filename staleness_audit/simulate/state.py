"""What a control can see of a run: versions, groups in flight, groups that wait, the batch being made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

Effect = tuple[str, int, tuple["Group", ...], str]
"""What a move did: kind, version, groups concerned, reason. Kinds: ``admitted``, ``finished``, ``trained`` (at that
version), ``published``, ``serving`` (from now on), ``dropped``, ``cancelled``, ``lost``, ``turn``
(a later turn is made by that older version), ``note`` (reason is text)."""


class Group(NamedTuple):
    """A group of trajectories on its way to the trainer.

    ``label``: the version or step the framework stamped it with; ``first``: the version that made its oldest token;
    ``last``: the version of its newest token, once it has finished; ``target``: the step or buffer it is bound to.
    """

    id: int
    label: int
    first: int
    last: int
    target: int


@dataclass(slots=True)
class State:
    """The whole state of a control.

    ``v``: the version the next training step starts from, or the running one started from; ``serving``: the version
    the engines sample with. ``running`` is in order of admission, ``done`` in order of finishing, ``held`` in the order
    in which the trainer took them. ``counts`` are plain counters of the policy, ``marks`` versions or steps of its own,
    which the prover looks at relative to ``v``. ``effects`` collects what moves did; it is not state.
    """

    v: int = 0
    serving: int = 0
    training: bool = False
    running: dict[int, Group] = field(default_factory=dict)
    done: dict[int, Group] = field(default_factory=dict)
    held: list[Group] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    marks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    next_id: int = 0
    effects: list[Effect] = field(default_factory=list)

    def copy(self) -> State:
        """Return a copy that can be moved on without touching this one; its list of effects is empty."""
        return State(
            self.v,
            self.serving,
            self.training,
            dict(self.running),
            dict(self.done),
            list(self.held),
            dict(self.counts),
            dict(self.marks),
            self.next_id,
        )

    def tell(self, kind: str, version: int, groups: tuple[Group, ...] = (), reason: str = "") -> None:
        """Note an effect."""
        self.effects.append((kind, version, groups, reason))

    def hold(self, group: Group) -> None:
        """Move a finished group into the batch being made (L3 takes it)."""
        del self.done[group.id]
        self.held.append(group)

    def drop(self, group: Group, reason: str = "stale") -> None:
        """Discard a finished group (L3)."""
        del self.done[group.id]
        self.tell("dropped", self.v, (group,), reason)

    def stop(self, group: Group, reason: str = "stale") -> None:
        """Cancel a group in flight (L2)."""
        del self.running[group.id]
        self.tell("cancelled", self.v, (group,), reason)

    def oldest_done(self) -> list[Group]:
        """Finished groups in order of admission."""
        return [self.done[key] for key in sorted(self.done)]

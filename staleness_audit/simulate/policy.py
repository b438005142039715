"""The rules a policy consists of, and their defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from staleness_audit.simulate.state import Group, State


class Load(NamedTuple):
    """What a control can ask of the engines in a timed run.

    ``running`` and ``waiting``: sequences in all engines; ``usage``: share of its cache that the fullest engine uses;
    ``preemptions``: so far; ``kv_tokens``: of all caches.
    """

    running: int
    waiting: int
    usage: float
    preemptions: int
    kv_tokens: int


@dataclass(frozen=True)
class Policy:
    """A staleness control. Its fields are its knobs, named as in the framework's configuration.

    ``batch``: groups per published version (B). All rules may change the ``State`` they are given, and only that.
    """

    batch: int = 2

    eager: ClassVar[bool] = False
    """Groups that may begin do so at once: the label is stamped when the quota is granted."""
    whole: ClassVar[bool] = False
    """All groups that may begin do so together."""
    ahead: ClassVar[bool] = False
    """The next batch is collected while the trainer is busy."""
    prompt: ClassVar[bool] = False
    """Collecting is a loop of its own that acts at once, and not a moment the trainer chooses."""
    sees: ClassVar[tuple[str, ...]] = ("label",)
    """Fields of a group that rules look at, besides its place. Never ``first``: no framework knows it."""
    sorted_done: ClassVar[bool] = False
    """Rules choose finished groups by age: the order in which they finished tells nothing more."""
    positive: ClassVar[tuple[str, ...]] = ()
    """Knobs that are at least 1, besides ``batch``. Other numbers are at least 0, or at least their default."""
    small: ClassVar[Mapping[str, Any]] = {}
    """Knobs that the prover sets smaller than their defaults, so that the states can be counted."""

    @classmethod
    def knobs_for(cls, bound: int, batch: int) -> dict[str, Any]:
        """Return the framework's own knob at the value whose conversion is ``bound``; nothing if it has none.

        Raises:
            ValueError: the knob has no such value.
        """
        return {}

    def unfit(self) -> str | None:
        """Return why these knobs make no policy, as a sentence without its end; None if they do."""
        return None

    def horizon(self) -> int:
        """Return the largest age (``v`` minus a label or mark) that a rule tells from a larger one; -1: none looks."""
        return 0

    def start(self, state: State) -> None:
        """Set counters and marks for a fresh run."""

    # L1

    def room(self, state: State) -> int:
        """Return how many groups may begin to generate."""
        raise NotImplementedError

    def stamp(self, state: State) -> tuple[int, int]:
        """Return label and target of the next group."""
        return state.serving, 0

    # L2

    def cancel(self, state: State) -> Iterable[Group]:
        """Return the groups in flight to stop, now that ``v`` has been published."""
        return ()

    # L3

    def collect(self, state: State) -> None:
        """Take and drop finished groups as the trainer does when it looks at them; doing nothing is waiting."""
        raise NotImplementedError

    def ready(self, state: State) -> int:
        """Return how many of the held groups, from the first on, make up the batch; 0 if it is not complete."""
        return self.batch if len(state.held) >= self.batch else 0

    def may_publish(self, state: State) -> bool:
        """Whether the running training step may end and publish its version now."""
        return True

    # bookkeeping

    def admitted(self, state: State, group: Group) -> None:
        """A group began."""

    def finished(self, state: State, group: Group) -> None:
        """A group's generation ended; it is in ``done`` and may be dropped at once."""

    def rejected(self, state: State, group: Group) -> None:
        """A group's generation ended, and a filter discarded the group: give back what the framework gives back.

        By default that is its place among those in flight, which it has left already.
        """

    def began(self, state: State) -> None:
        """A training step began."""

    def published(self, state: State) -> None:
        """A training step ended: ``v`` has gone up by one. By default the engines serve it at once."""
        state.serving = state.v

    # moves of the policy's own

    def own(self, state: State) -> tuple[str, ...]:
        """Return the names of the policy's own moves that are possible now."""
        return ()

    def move(self, state: State, name: str) -> None:
        """Make one of the policy's own moves."""
        raise NotImplementedError

    def delay(self, name: str) -> float:
        """Return after how many seconds a timed run makes an own move that has become possible; inf: never."""
        return 0.0

    def polls(self) -> float:
        """Return after how many seconds, again and again, a timed run calls ``polled``; 0: never."""
        return 0.0

    def polled(self, state: State, load: Load) -> None:
        """Look at the engines. The prover has none and never calls this."""

    def key(self, state: State, horizon: int) -> tuple[Any, ...]:
        """Return what rules can see of a state, as a hashable value: equal for states that behave alike.

        Versions are relative to ``v``. Ages of oldest tokens, which no rule looks at, count up to ``horizon``; ages of
        labels and marks up to one more than the policy's own horizon.
        """
        v, sees, own = state.v, self.sees, self.horizon() + 1

        def seen(group: Group) -> tuple[int, ...]:
            return (min(v - group.first, horizon), *(min(v - getattr(group, name), own) for name in sees))

        done = map(seen, state.done.values())
        return (
            tuple(sorted(map(seen, state.running.values()))),
            tuple(sorted(done) if self.sorted_done else done),
            tuple(map(seen, state.held)),
            v - state.serving,
            state.training,
            tuple(sorted(state.counts.items())),
            tuple(tuple(min(v - mark, own) for mark in state.marks[name]) for name in sorted(state.marks)),
        )

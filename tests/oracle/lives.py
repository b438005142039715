"""What happened in a run, as plain objects. Times are seconds; versions are policy versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Chunk:
    """Consecutive sampled tokens that one line tells of: a version and a mask (True = in the loss) for each token.

    ``listed``: written as a ``versions`` list; else as one span, and all versions are equal.
    """

    versions: tuple[int, ...]
    loss: tuple[bool, ...]
    listed: bool = False
    ts: float = 0.0


@dataclass(frozen=True)
class Use:
    """A trajectory in the batch of a step. ``loss``: its mask, one flag per token (None = that of the chunks)."""

    attempt: int
    step: int
    loss: tuple[bool, ...] | None = None


@dataclass(frozen=True)
class Happening:
    """A lifecycle event other than spans and uses."""

    kind: str
    ts: float
    reason: str | None = None
    step: int | None = None
    attempt: int | None = None


@dataclass(frozen=True)
class Life:
    """A trajectory. ``happenings`` are in order."""

    trajectory_id: str
    group_id: str | None = None
    attempt: int = 0
    role: str = "train"
    chunks: tuple[Chunk, ...] = ()
    uses: tuple[Use, ...] = ()
    happenings: tuple[Happening, ...] = ()

    @cached_property
    def versions(self) -> list[int]:
        """Version of each token, in the order of sampling."""
        return [version for chunk in self.chunks for version in chunk.versions]

    @cached_property
    def loss(self) -> list[bool]:
        """Mask of each token, as the chunks have it."""
        return [flag for chunk in self.chunks for flag in chunk.loss]

    @property
    def group(self) -> str:
        """A trajectory without a group is its own."""
        return self.group_id if self.group_id is not None else f"alone:{self.trajectory_id}"


@dataclass(frozen=True)
class Step:
    """A training step. ``stated``: its line counts the trajectories and tokens that it trained."""

    attempt: int
    step: int
    version: int
    completed: bool = True
    started: float = 0.0
    ended: float = 0.0
    waited: float | None = None
    stated: bool = False


@dataclass(frozen=True)
class Run:
    """Everything. ``attempts``: number -> step after which it resumed (None = afresh). ``timed``: lines carry times.

    ``implied``: the header says nothing of resumption where the first step of an attempt tells it as well.
    """

    lives: tuple[Life, ...]
    steps: tuple[Step, ...]
    attempts: dict[int, int | None] = field(default_factory=lambda: {0: None})
    bound: int | None = None
    timed: bool = True
    clock: str = "epoch"
    implied: bool = False

    def superseded(self, attempt: int, step: int) -> bool:
        """Whether a later attempt resumed before this step."""
        return any(after is not None and number > attempt and step > after for number, after in self.attempts.items())

    @cached_property
    def by_key(self) -> dict[tuple[int, int], Step]:
        """Steps by (attempt, step)."""
        return {(step.attempt, step.step): step for step in self.steps}

    def counts(self, attempt: int, step: int) -> bool:
        """Whether what this step took is trained."""
        found = self.by_key.get((attempt, step))
        return found is not None and found.completed and not self.superseded(attempt, step)

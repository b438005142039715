"""What the logs and rows of each attempt say about steps, drops and cancellations: small data, walked in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from staleness_parsers.prime_rl.build import Build
from staleness_parsers.prime_rl.fates import GroupDrop, Sweeps
from staleness_parsers.prime_rl.launches import Launch

Row = dict[str, Any]


@dataclass(frozen=True)
class Cancelled:
    """Members cancelled in flight: ``least`` to ``most`` of them, at ``version``; ``prefix`` of their group's id."""

    attempt: int
    reason: str | None
    least: int
    most: int
    version: int | None
    prefix: str | None
    row: Row


@dataclass
class Story:
    """One attempt, told in the order of its orchestrator's log."""

    launch: Launch
    drops: list[GroupDrop] = field(default_factory=list)
    drains: list[GroupDrop] = field(default_factory=list)
    cancelled: list[Cancelled] = field(default_factory=list)
    swept: dict[int, int] = field(default_factory=dict)
    overload: bool = False
    rejects: bool = False
    adopted_at: int | None = None
    collecting: int = 1
    debug: bool = False
    has_log: bool = False
    began: bool = False
    ended: bool = False

    @property
    def names_groups(self) -> bool:
        """Whether the log shows every drop of a group: level DEBUG, from the start of the loop to the final batch."""
        return self.debug and self.began and self.ended

    def sweeps(self) -> Iterator[Sweeps]:
        """Voided traces per step: the metrics row of a shipped step, the log's warnings for the one being collected."""
        counted = {
            row["step"]: row["dropped"] for row in self.launch.metrics("orchestrator") if row["dropped"] is not None
        }
        for step, voided in counted.items():
            yield Sweeps(self.launch.number, step, int(voided))
        if self.began and self.collecting not in counted:
            yield Sweeps(self.launch.number, self.collecting, self.swept.get(self.collecting, 0))


def tell(launch: Launch, build: Build) -> Story:
    """Walk the orchestrator's log of an attempt once.

    The step being collected is one more than that of the last step line before. Weights may have moved on a little
    before the line is printed, so at an update that is the least it can be: enough to say what certainly was too old.
    """
    first = 0 if build.zero_based else 1
    story = Story(launch, collecting=launch.resumed_after + 1 if launch.resumed_after is not None else first)
    version: int | None = None
    named = 0
    last_step = _last_step(launch)
    for row in launch.log("orchestrator"):
        kind = row["kind"]
        if kind == "step":
            story.collecting = row["number"] + 1
        elif kind in ("sync", "updating"):
            version = row["number"]
            # After the last batch everything in flight is cut, whatever its age, so nothing is dropped for age then.
            if last_step is None or story.collecting <= last_step:
                story.adopted_at = max(story.adopted_at or story.collecting, story.collecting)
        elif kind == "drop":
            named += _drop(story, row, version, build)
        elif kind in ("cancelled", "overload"):
            reason = "stale" if kind == "cancelled" else "overload"
            story.overload = story.overload or kind == "overload"
            # What DEBUG lines have not named group by group; running and never dispatched members in one number.
            if (rest := row["count"] - named) > 0 and not (kind == "cancelled" and build.records_cancelled):
                story.cancelled.append(Cancelled(launch.number, reason, 0, rest, version, None, row))
            named = 0
        elif kind == "swept":
            story.swept[story.collecting] = story.swept.get(story.collecting, 0) + row["count"]
        elif kind == "final":
            story.ended = True
            if row["running"]:
                story.cancelled.append(
                    Cancelled(launch.number, None, row["running"], row["running"], version, None, row)
                )
        elif kind == "last":
            story.debug, story.has_log = row["word"] == "DEBUG", True
        story.began = story.began or kind == "loop"
        story.rejects = story.rejects or kind == "rejected"
    return story


def _last_step(launch: Launch) -> int | None:
    """Last step of an attempt that shipped its final batch, or the one its loop was told to stop after."""
    told = [row["number"] for row in launch.log("orchestrator") if row["kind"] == "loop" and row["number"] is not None]
    if told:
        return int(told[-1])
    if any(row["kind"] == "final" for row in launch.log("orchestrator")):
        return max((row["number"] for row in launch.log("orchestrator") if row["kind"] == "step"), default=None)
    return None


def _drop(story: Story, row: Row, version: int | None, build: Build) -> int:
    drop = GroupDrop(story.launch.number, row["word"], row["what"], story.collecting, row["count"], row["running"])
    reason = drop.reason
    if reason == "drain":
        # The older code drains a group for its age only, and its finished members still train.
        story.drains.append(drop)
        reason = "stale"
        if build.records_cancelled:
            return drop.cancelled
    else:
        story.drops.append(drop)
    story.overload = story.overload or reason == "overload"
    if drop.running:
        story.cancelled.append(
            Cancelled(story.launch.number, reason, drop.running, drop.running, version, drop.prefix, row)
        )
    return drop.cancelled

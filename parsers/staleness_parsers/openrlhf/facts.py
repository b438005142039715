"""What holds for the run as a whole: the limit, the attempts, and what its logs can't show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from staleness_audit.parser import Attempt, Bound, Guarantee, Hint, RunFacts, Sign
from staleness_audit.readers.numbers import moment
from staleness_parsers.openrlhf.card import NO_BOUND, QUEUE, UNIT
from staleness_parsers.openrlhf.filling import Filling, filters
from staleness_parsers.openrlhf.launches import Launch
from staleness_parsers.openrlhf.replay import Mode, Versions
from staleness_parsers.openrlhf.settings import Settings


@dataclass(frozen=True)
class Told:
    """A launch with all that was found out about it.

    ``reach``: how many versions a sample can age between its call and the batch it was made for. ``versions``: per
    batch, of the call for it. ``first``: the version the engines began with, 0 if not known.
    """

    launch: Launch
    mode: Mode
    queue: int | None
    reach: int | None
    filling: Filling
    versions: Sequence[Versions]
    first: int

    @cached_property
    def filters(self) -> bool:
        """Whether some group may have been discarded by dynamic filtering."""
        return filters(self.launch)

    @property
    def shows_filtered(self) -> bool:
        """Whether its logs have the generator's lines, one per discarded group."""
        return self.launch.console and bool(self.launch.filtered or self.launch.calls)


def facts(told: Sequence[Told], settings: Settings) -> RunFacts:
    """State the facts of a run."""
    queues = {one.queue for one in told}
    queue = queues.pop() if len(queues) == 1 else None
    config = dict(settings.shown)
    if queue is not None:
        config.setdefault(QUEUE, queue)
    return RunFacts(
        framework="openrlhf",
        unit=UNIT,
        dialect=_dialect(told),
        config=config,
        bound=Bound(None, QUEUE if queue is not None else None, queue, NO_BOUND),
        guarantee=_guarantee(told),
        attempts=tuple(_attempts(told)) or (Attempt(0),),
        signs=tuple(_signs(told)),
        unseen=_unseen(told),
        hints=tuple(_hints(told)),
        groups_per_step=_groups_per_step(told, settings),
        # Engines are synced together, and nothing is generated twice.
        ascending=True,
    )


def _dialect(told: Sequence[Told]) -> str | None:
    if not any(one.launch.batches for one in told):
        return None
    if any(one.mode == "synchronous" for one in told):
        return "synchronous trainer"
    if any(one.launch.timed for one in told):
        return "with timings (0.9.9 and later)"
    if any(one.launch.old_filter or one.launch.waiting for one in told):
        return "without permits (up to 0.9.0)"
    return "without timings (up to 0.9.8)"


def _guarantee(told: Sequence[Told]) -> Guarantee:
    limits = [_limit(one) for one in told if one.launch.batches]
    open_ends = [limit for limit in limits if limit.limit is None]
    if not limits or open_ends:
        return open_ends[0] if open_ends else Guarantee(None, "no step is logged")
    return max(limits, key=lambda limit: limit.limit if isinstance(limit.limit, int) else 0)


def _limit(one: Told) -> Guarantee:
    if one.mode == "synchronous":
        return Guarantee(0, "The synchronous trainer generates, trains and broadcasts in turn.")
    if one.queue is None or one.reach is None:
        return Guarantee(
            None, f"The logs do not state {QUEUE}, the number of batches that may be ahead of the trainer."
        )
    if one.reach > one.queue:
        return Guarantee(
            one.reach,
            f"Releases without timings that filter collect a batch over several calls, while the trainer uses up the "
            f"{one.queue} queued and one more: 2 * {QUEUE} + 1.",
        )
    permit = "the permit for batch n comes back when batch n - Q is taken, after version n - Q was broadcast"
    if one.filling.depth is None:
        return Guarantee(
            None, f"{permit[0].upper()}{permit[1:]}, but whether calls make more than a batch is not known."
        )
    if one.filling.depth:
        return Guarantee(
            one.queue + one.filling.depth,
            f"{permit[0].upper()}{permit[1:]}, but samples stay in the generator's buffer, outside the permits, for "
            f"up to {one.filling.depth} batches more (over-sampling).",
        )
    return Guarantee(one.queue, f"{permit[0].upper()}{permit[1:]}, and every call makes exactly one batch.")


def _attempts(told: Sequence[Told]) -> Iterator[Attempt]:
    reached = 0
    for number, one in enumerate(told):
        batches = one.launch.batches
        walls = [batch.wall for batch in batches if batch.wall is not None]
        times = [moment(wall) for wall in (min(walls), max(walls))] if walls else [None, None]
        resumed = lowest = None
        if number and batches:
            resumed = batches[0].step - 1
            # Where only every so many steps are logged, the first one logged may not be the first one trained.
            lowest = max(resumed - one.launch.interval + 1, 0) if one.launch.interval > 1 else None
        elif number:
            # It logged no step: it may have gone back to any checkpoint, or to the beginning.
            resumed, lowest = reached, 0
        reached = max([reached, *(batch.step for batch in batches)])
        yield Attempt(number, resumed, lowest, *times)


def _signs(told: Sequence[Told]) -> Iterator[Sign]:
    for one in told:
        for batch in one.launch.batches:
            if not batch.hole:
                ts = moment(batch.wall)
                yield Sign("progress", ts, f"step {batch.step}", batch.source, batch.line)
        if row := one.launch.waiting:
            what = "the generator waits for the trainer (the queue is full)"
            yield Sign("waiting", None, what, row["source"], row["line"])


def _unseen(told: Sequence[Told]) -> frozenset[str]:
    """No log tells what the queue and the buffer held at the end, or what a failed or exhausted call threw away."""
    unseen = {"lost", "pending"}
    if not told or any(one.filters and not one.shows_filtered for one in told):
        unseen.add("dropped")
    return frozenset(unseen)


def _hints(told: Sequence[Told]) -> Iterator[Hint]:
    if any(one.queue is None and one.mode != "synchronous" for one in told):
        yield Hint(
            "the queue size, hence how long a batch may have waited",
            "keep the console log, which states queue_size=, or the launch script",
        )
    if any(one.mode is None for one in told):
        yield Hint(
            "whether generation overlaps weight syncs (tokens may be newer than the oldest of their batch)",
            "keep the launch script or W&B's config.yaml, which have partial_rollout_enable",
        )
    if any(one.filling.depth is None for one in told):
        yield Hint(
            "whether calls make more than a batch (over-sampling), so that samples wait in the generator's buffer",
            "keep the launch script or W&B's config.yaml, or the console log with the bars of its generation calls",
        )
    if any(not one.launch.timed and one.mode != "synchronous" for one in told):
        yield Hint("when a batch was generated", "use release 0.9.9 or later: it logs timings per step")
    if any(batch.hole for one in told for batch in one.launch.batches):
        yield Hint("sizes and times of some steps", "set --logger.logging_steps 1, and keep the console log")
    yield Hint("the bound to audit", f"give --bound: {NO_BOUND.split('; ')[1].removesuffix(': give --bound')}")


def _groups_per_step(told: Sequence[Told], settings: Settings) -> int | None:
    if stated := settings.number("rollout.batch_size"):
        return stated
    sizes = {
        max(batch.samples or 0 for batch in one.launch.batches) // one.filling.group
        for one in told
        if one.launch.batches and one.filling.group
    }
    return sizes.pop() if len(sizes) == 1 else None

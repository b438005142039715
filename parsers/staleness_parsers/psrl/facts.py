"""What holds for the run as a whole, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from staleness_audit.parser import Attempt, Bound, Guarantee, Hint, RunFacts, Sign
from staleness_parsers.psrl.card import CONVERSION, UNIT
from staleness_parsers.psrl.components import MANAGER, TRACKER
from staleness_parsers.psrl.settings import STALENESS

if TYPE_CHECKING:
    from staleness_parsers.psrl.finish import Story


def facts(story: Story, unseen: frozenset[str]) -> RunFacts:
    """State the facts of a run."""
    bound = story.settings.number(STALENESS)
    return RunFacts(
        framework="psrl",
        unit=UNIT,
        dialect=_dialect(story),
        config=dict(story.settings.shown),
        bound=Bound(bound, STALENESS, bound, CONVERSION) if bound is not None else Bound(None),
        guarantee=_guarantee(story, bound),
        attempts=(Attempt(0), Attempt(1, resumed_after=story.first - 1)) if story.relaunched else (Attempt(0),),
        signs=tuple(_signs(story)),
        unseen=unseen,
        # Generations of steps that the log does not reach may be those of requests that it leaves unfinished.
        undone=any(map(story.doubtful, story.steps)),
        hints=tuple(_hints(story)),
        groups_per_step=story.settings.number("psrl.staleness_buffer_entries"),
    )


def _dialect(story: Story) -> str:
    loop = "multi-turn loop" if story.pins.native else "several turns" if story.pins.several else "single-turn loop"
    if story.book.retagged:
        return "re-tagging release"
    return loop if story.requests else "without the gateway's trace"


def _guarantee(story: Story, bound: int | None) -> Guarantee:
    if story.book.retagged:
        return Guarantee(
            "none",
            "A request that resumes on newer weights is re-tagged, and may be moved to later buffers again and again.",
        )
    if bound is None:
        return Guarantee(None, f"The logs do not state {STALENESS}.")
    if story.pins.native and not story.settings.sticky:
        return Guarantee(
            2 * bound,
            "Every turn is pinned anew: to a version as old as its group's slot minus the bound, and the slot may be "
            "as old as the group's first version; it can be trained as late as that version plus the bound.",
        )
    if not story.requests:
        return Guarantee(None, "Without the gateway's trace nothing tells whether later turns were pinned anew.")
    if story.pins.several and not story.pins.native and not story.settings.sticky:
        return Guarantee(None, "Turns of this run kept their first version, but nothing tells whether they had to.")
    return Guarantee(
        bound, "A slot is never later than its group's version plus the bound, and groups take the lowest legal one."
    )


def _signs(story: Story) -> Iterator[Sign]:
    book = story.book
    for number, buffer in sorted(book.buffers.items()):
        yield Sign(
            "progress", book.utc(buffer.row), f"buffer {number} is trained", buffer.row["source"], buffer.row["line"]
        )
    for version, push in sorted(book.pushes.items()):
        yield Sign("progress", book.utc(push), f"version {version} is pushed", push["source"], push["line"])
    row = book.waiting
    if row is not None:
        what = f"the trainer waits for buffer {row['numbers'][0]}"
        if row["kind"] == "gate":
            what = f"dispatch waits for version {row['numbers'][0]}"
        yield Sign("waiting", book.utc(row), what, row["source"], row["line"])


def _hints(story: Story) -> Iterator[Hint]:
    if not story.requests:
        yield Hint(
            "the version of every call and its tokens",
            "keep route_trace.log (psrl.rollout_gateway.rust_log_filter with route_trace=info); with the default "
            "logging path it lies in a folder named ~ below the launch directory",
        )
    if not story.requests and not story.texts:
        yield Hint(
            "whether requests had several turns, of which each may be older than the first",
            "set psrl.agentic_rl.trajectory_output.enable",
        )
    if not story.dumped:
        yield Hint("which trajectories each step trained", "set trainer.rollout_data_dir")
    if TRACKER not in story.book.informed:
        yield Hint("whether a pull overtook the advertised version, and aborts", "set PSRL_LOGGING_LEVEL=INFO")
    if MANAGER not in story.book.informed:
        yield Hint("what became of requests that were not trained", "set PSRL_LOGGING_LEVEL=INFO")
    if story.settings.number(STALENESS) is None:
        yield Hint("the bound", "keep Hydra's outputs/*/*/.hydra/config.yaml, or give --bound")


def reported(story: Story) -> Iterator[dict[str, Any]]:
    """Yield the distributions of version tags, PSRL's own staleness (section 8: unreliable in mixed groups)."""
    for number, buffer in sorted(story.book.buffers.items()):
        total = buffer.size
        if not total:
            continue
        mean = sum(count * staleness for _, count, staleness in buffer.tags) / total
        for name, raw, value in (
            ("step.trajectories", "count", float(total)),
            ("step.staleness_max", "staleness", float(max(staleness for _, _, staleness in buffer.tags))),
            ("step.staleness_trajectory_mean", "mean of staleness by count", mean),
        ):
            yield {
                "attempt": story.attempt(number + 1),
                "step": number + 1,
                "ts": story.book.utc(buffer.row),
                "name": name,
                "raw_name": raw,
                "value": value,
                "evidence": "recorded",
                "source": buffer.row["source"],
                "line": buffer.row["line"],
            }

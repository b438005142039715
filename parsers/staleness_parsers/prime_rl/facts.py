"""What holds for a run as a whole: bound, guarantee, health, and what its logs can't show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from staleness_audit.parser import Attempt, Bound, Guarantee, Hint, RunFacts, Sign
from staleness_parsers.prime_rl.build import Build
from staleness_parsers.prime_rl.settings import Settings
from staleness_parsers.prime_rl.story import Story

KEY = "max_off_policy_steps"
UNIT = "training steps"


@dataclass(frozen=True)
class Known:
    """All that was found out about a run."""

    settings: Settings
    build: Build
    stories: Sequence[Story]
    steps: dict[int, set[int]]
    attempts: Sequence[Attempt]
    has_traces: bool
    has_metrics: bool
    arrivals_missing: bool


def facts(known: Known) -> RunFacts:
    """State the facts of a run."""
    settings, build = known.settings, known.build
    return RunFacts(
        framework="prime-rl",
        # Engines are paused together and updated in order; an adapter is replaced while requests run.
        ascending=not settings.lora,
        unit=UNIT,
        framework_version=_version(build),
        dialect=build.dialect,
        config=dict(settings.shown),
        bound=Bound(
            settings.bound,
            KEY if settings.bound is not None else None,
            settings.bound,
            None
            if settings.bound is None
            else "a trace is kept while its start version >= (step - 1) - bound, and step N trains v{N-1}: as it is",
        ),
        guarantee=_guarantee(settings, build),
        attempts=tuple(known.attempts),
        signs=tuple(_signs(known.stories)),
        unseen=_unseen(known),
        hints=tuple(_hints(known)),
        groups_per_step=settings.groups_per_step,
    )


def _version(build: Build) -> str | None:
    return {
        "episodes": "v0.8.1.dev" if build.enforces is not None else None,
        "traces": "v0.7.0 to v0.8.0",
        "rollouts": "v0.6.0",
        "logs": "up to v0.6.0" if build.zero_based else None,
    }[build.dialect]


def _guarantee(settings: Settings, build: Build) -> Guarantee:
    if build.enforces is None:
        return Guarantee(
            None, f"{build.why[0].upper()}{build.why[1:]}: since PR #3313 the bound is enforced, before it was not."
        )
    if not build.enforces:
        return Guarantee(
            "none",
            "This code bounds only the version changes seen in flight and nothing in the queue (before PR #3313: "
            f"{build.why}).",
        )
    if settings.bound is None:
        return Guarantee(None, f"No file states {KEY}, the number that the queue is swept by.")
    if not build.early_label:
        return Guarantee(settings.bound, "The queue is swept at selection, and start versions are assumed to be exact.")
    return Guarantee(
        settings.bound + settings.most_skipped,
        "The sweep at selection keeps recorded start versions within the bound, but a group opened between the version "
        "counter's move and the engines' pause records a version whose weights they don't have yet: one too new, or "
        "two where the broadcasts are on disk, for one update may skip a version (until PR #3385, which files don't "
        f"show; with it the limit is {settings.bound}).",
    )


_WAITS = {
    "gate": "the dispatcher waits for a new policy (one step ahead of the trainer)",
    "hold": "batch {number} waits for the trainer to publish its policy",
    "awaiting": "the orchestrator waits for the trainer to broadcast v{number}",
    "training": "the trainer waits for batch {number}",
}


def _signs(stories: Sequence[Story]) -> Iterator[Sign]:
    """Every step line is progress; of waiting lines, only those that no progress of the same process followed."""
    for story in stories:
        for process, rows in story.launch.logs.items():
            waiting: dict[str, Sign] = {}
            for row in rows:
                kind = row["kind"]
                if kind in ("step", "sync", "waited", "open"):
                    waiting.clear()
                    if kind == "step":
                        yield _sign("progress", row, f"{process}: step {row['number']}")
                elif kind in _WAITS:
                    waiting[kind] = _sign("waiting", row, _WAITS[kind].format(number=row["number"]))
                elif kind == "finished":
                    yield _sign("finished", row, "RL trainer finished!")
            yield from waiting.values()


def _sign(kind: Literal["finished", "crashed", "waiting", "progress"], row: dict[str, Any], what: str) -> Sign:
    ts = None if row.get("lo") is None else datetime.fromtimestamp(row["lo"], UTC)
    return Sign(kind, ts, what, row["source"], row["line"])


def _unseen(known: Known) -> frozenset[str]:
    """Classes of fates without any count: cancellations and the rest in flight only stand in the orchestrator's log."""
    unseen = set()
    if not all(story.began for story in known.stories):
        unseen.add("cancelled")
    if known.arrivals_missing:
        # A shipped trace without a record of its arrival: files of `all` are gone, and with them who else arrived.
        unseen |= {"dropped", "cancelled", "lost"}
    if known.build.dialect in ("rollouts", "logs"):
        unseen |= {"dropped", "cancelled", "lost"}
    if len(known.attempts) > 1:
        # Going back deletes the files of later steps, and what the old attempt had in flight leaves no mark.
        unseen |= {"lost", "dropped"}
    if not known.stories[-1].ended:
        unseen.add("pending")
    return frozenset(unseen)


def _hints(known: Known) -> Iterator[Hint]:
    if not known.has_traces:
        yield Hint(
            "versions and tokens of each trace",
            "leave `monitors.file` on: it writes rollouts/step_*/train/*/traces.jsonl",
        )
    if not known.has_metrics:
        yield Hint(
            "proof that a shipped batch was trained, and dates of log lines", "keep metrics.jsonl (`monitors.file`)"
        )
    if not all(story.has_log for story in known.stories):
        yield Hint("cancellations, and when engines changed weights", "keep logs/attempt_*/orchestrator.log")
    elif not all(story.debug for story in known.stories):
        yield Hint(
            "when a weight update ended (start versions may be one too new), and which groups were cancelled",
            'set `log.level = "debug"`',
        )
    if known.build.dialect in ("traces", "rollouts"):
        yield Hint(
            "the version under which a trace ended", "use a build of 2026-08 or later: it records a span per episode"
        )
    if known.settings.seq_len is None:
        yield Hint("where branches were cut for training", "keep configs/orchestrator.json, which has `seq_len`")
    yield Hint(
        "tokens of episodes cancelled in flight",
        "no setting records them: the framework discards them",
    )

"""What holds for the run as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from staleness_audit.parser import Attempt, Hint, RunFacts, Sign
from staleness_parsers.roll.rows import moment
from staleness_parsers.roll.settings import DEFAULTS, F_KEY, R_KEY, bound, guarantee

if TYPE_CHECKING:
    from staleness_parsers.roll.known import Known


def run_facts(known: Known) -> RunFacts:
    """Gather configuration, bound, guarantee, launches, signs and hints."""
    settings = known.settings
    slots = "train_env_manager.group_size"
    groups = settings.whole_number("rollout_batch_size")
    if known.agentic and groups is not None:
        groups = groups // (settings.whole_number(slots) or 1)
    config = {key: value for key in settings.values if (value := settings.get(key)) is not None}
    if settings.whole:
        config |= {key: value for key, value in DEFAULTS.items() if key not in config and value is not None}
    return RunFacts(
        framework="roll",
        unit="global steps",
        dialect=_dialect(known),
        config=config,
        bound=bound(settings),
        guarantee=guarantee(settings, known.pushes),
        attempts=tuple(_attempts(known)),
        signs=tuple(_signs(known)),
        unseen=_unseen(known),
        hints=tuple(_hints(known)),
        groups_per_step=groups if groups and groups > 0 else None,
        ascending=True,
    )


def _dialect(known: Known) -> str:
    """Name the pipeline, and the releases of which the files are (guide sections 1 and 8)."""
    name = "agentic" if known.agentic else "rlvr"
    if any(row["kind"] in ("old", "deleted") for row in known.lines):
        return f"{name} (before v0.2.0)"
    if known.spans or len(known.lives):
        return f"{name} (v0.3.0 or later)"
    pickled = any(batch[0]["kind"] == "pickle" for batch in known.rows.values())
    return f"{name} (v0.2.0 or later)" if pickled else name


def _attempts(known: Known) -> Iterator[Attempt]:
    time = known.time
    if not time.first:
        yield Attempt(0)
        if time.reseeded is not None:
            yield Attempt(1, None, time.reseeded)
        return
    for attempt in time.attempts:
        if attempt in time.nameless:
            yield Attempt(attempt, time.nameless[attempt], -1, started=moment(time.begins[attempt]))
            continue
        first = time.first[attempt]
        steps = [step for step in time.steps if step.attempt == attempt]
        started = moment(steps[0].start) if time.traced else None
        ended = moment(max(step.seen_until for step in steps)) if time.traced else None
        resumed = None if attempt == 0 and first == 0 else first - 1
        yield Attempt(attempt, resumed, started=started, ended=ended)


def _signs(known: Known) -> Iterator[Sign]:
    for row in known.lines:
        where = {"source": row["source"], "line": row["line"]}
        if row["kind"] == "complete":
            yield Sign("finished", None, "pipeline complete!", **where)
        elif row["kind"] == "finished":
            yield Sign("progress", _local(row["time"]), f"pipeline step {row['step']} finished", **where)
        elif row["kind"] == "waiting":
            yield Sign("waiting", _local(row["time"]), "the trainer waits for a batch", **where)
    for step in known.time.steps:
        where = {"source": step.place.get("source"), "line": step.place.get("line")}
        if step.failed:
            yield Sign("crashed", moment(step.end), "a step ended with an exception", **where)
        elif step.closed and known.time.traced:
            yield Sign("progress", moment(step.end), "a step ended", **where)


def _local(text: str | None) -> datetime | None:
    """Console times name no zone; they are only compared with each other."""
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)


def _unseen(known: Known) -> frozenset[str]:
    traced = known.trajectories_traced if known.agentic else known.prompts_traced
    # What still ran at the end was not exported, and the last seconds of a scheduler's spans can be missing.
    return frozenset({"pending"} if traced else {"dropped", "cancelled", "lost", "pending"})


def _hints(known: Known) -> Iterator[Hint]:
    if known.settings.ratio is None:
        yield Hint("the bound", f"keep the captured output or the YAML, or give --assume {R_KEY}=R")
    if known.pushes.frequencies is None:
        yield Hint(
            "which steps pushed weights, so which weights made a token",
            f"keep the captured output, the YAML or a tracker's metrics, or give --assume {F_KEY}=F",
        )
    if not known.agentic and not known.prompts_traced:
        yield Hint(
            "the weights of each segment, drops and cancels",
            'set `system_envs: {ROLL_OTEL_ENABLED: "1"}` (v0.3.0 or later) and keep otlp/traces',
        )
    folder = known.settings.get("rollout_dump_dir")
    if isinstance(folder, str) and not folder.startswith("/"):
        yield Hint("who was in each batch", f"let rollout_dump_dir begin with /: {folder!r} writes nothing")
    if not any(batch[0]["kind"] == "pickle" for batch in known.rows.values()):
        yield Hint("tokens of each trajectory", "set `rollout_mock: {enable: true, mode: dump}`")
    if known.agentic and "dropped" in _unseen(known):
        yield Hint("trajectories that were dropped", "no setting records them with this env manager")

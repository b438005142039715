"""Training steps: which are proven to have completed, from what, and what is said in sums about their batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from staleness_audit.parser import Sink
from staleness_audit.readers.numbers import micros
from staleness_audit.tables import SCHEMAS
from staleness_parsers.prime_rl.build import Build
from staleness_parsers.prime_rl.launches import Apply, Launch, replaced
from staleness_parsers.prime_rl.settings import Settings

Row = dict[str, Any]


@dataclass
class Batch:
    """What the trace files of one attempt say.

    Steps shipped, those of which a line was lost, the last step collected, the newest version a record names.
    """

    shipped: set[int] = field(default_factory=set)
    damaged: set[int] = field(default_factory=set)
    collected: int = 0
    newest: int = 0


def write_steps(
    sink: Sink,
    found: Sequence[Launch],
    build: Build,
    batches: dict[int, Batch],
    updates: dict[int, list[Apply]],
    settings: Settings,
) -> tuple[dict[int, set[int]], bool]:
    """Write ``steps``, ``constraints`` and the step lines' own figures.

    Returns the known steps per attempt, and whether the shipped traces of one are not on disk.

    A step is proven by the trainer's row or line, or by its weights: trainer step N makes v{N}, so a version that was
    published (a record ends under it, the engines load it) proves its step, and batch M ships only once v{M-2} is out.
    A batch that was shipped without any of these is unconfirmed.
    """
    steps: list[Row] = []
    constraints: list[Row] = []
    reported: list[Row] = []
    known: dict[int, set[int]] = {}
    any_lost = False
    for index, launch in enumerate(found):
        batch = batches[launch.number]
        rows = _step_rows(launch, build, batch, updates[launch.number])
        known[launch.number] = {row["step"] for row in rows}
        steps += rows
        early = _most_early(updates[launch.number], build, settings)
        _sums(launch, build, early, constraints, reported)
        superseded = min((_restart(later) for later in found[index + 1 :]), default=None)
        lost = [
            row
            for row in rows
            if row["step"] not in batch.shipped and (superseded is None or row["step"] <= superseded)
        ]
        any_lost = any_lost or bool(lost)
        _diagnose_lost(sink, lost, bool(batch.shipped), settings)
    for table, rows in (("steps", steps), ("constraints", constraints), ("reported", reported)):
        if rows:
            schema = SCHEMAS[table]
            kept = pa.schema([column for column in schema if column.name in rows[0]])
            plain = [{**row, **{key: row[key] for key in ("started", "ended") if key in row}} for row in rows]
            sink.write(table, pa.Table.from_pylist(plain, schema=kept))
    return known, any_lost


def _restart(launch: Launch) -> int:
    return launch.resumed_after if launch.resumed_after is not None else 0


def _step_rows(launch: Launch, build: Build, batch: Batch, updates: Sequence[Apply]) -> list[Row]:
    trained = {row["step"]: row for row in launch.metrics("trainer")}
    lines = {row["number"]: row for row in launch.log("trainer") if row["kind"] == "step"}
    shipped = {row["number"]: row for row in launch.log("orchestrator") if row["kind"] == "step"}
    shipped_rows = {row["step"]: row for row in launch.metrics("orchestrator")}
    floor = launch.resumed_after or 0
    named = [row["version"] for row in launch.log("orchestrator") if row["version"] is not None]
    published = max([batch.newest, floor, *(update.version for update in updates), *named])
    if build.dialect == "episodes" and batch.shipped:
        published = max(published, max(batch.shipped) - 2)
    # One absurd version in a damaged record must not invent steps.
    highest = max([floor, *trained, *lines, *shipped, *shipped_rows, *batch.shipped, batch.collected])
    published = min(published, highest + 2)
    proven_by_weights = set(range(floor, published)) if build.zero_based else set(range(floor + 1, published + 1))
    found = []
    for step in sorted({*trained, *lines, *shipped, *shipped_rows, *batch.shipped, *proven_by_weights}):
        row = trained.get(step)
        line = lines.get(step)
        proof = row or line
        place = proof or shipped_rows.get(step) or shipped.get(step) or {"source": None, "line": None}
        # Weights published by an earlier attempt are this attempt's start, not its steps.
        by_weights = step in proven_by_weights
        ended = row["ts"] if row else line["hi"] if line else None
        computed = row["computed"] if row else None
        found.append(
            {
                "attempt": launch.number,
                "step": step,
                "v_train_lo": build.v_train(step),
                "v_train_hi": build.v_train(step),
                "started": micros(None if ended is None or computed is None else ended - computed),
                "ended": micros(ended),
                "waited_us": micros(row["waited"] if row else None),
                "updates": 1,
                "completed": True if proof or by_weights else None,
                "evidence": "recorded" if proof else "derived",
                "source": place["source"],
                "line": place["line"],
            }
        )
    return found


def _most_early(updates: Sequence[Apply], build: Build, settings: Settings) -> int:
    """How much too new a start version may be: one update, whose size the log shows unless it says nothing of them."""
    if not build.early_label:
        return 0
    gaps = [version - older for version, older in replaced(updates).items()]
    return max(gaps, default=settings.most_skipped)


def _sums(launch: Launch, build: Build, early: int, constraints: list[Row], reported: list[Row]) -> None:
    """Take from step lines how many traces they shipped, and the largest recorded staleness among them.

    Recorded staleness is that of the start version, which may be ``early`` too new: the true maximum is so much more.
    Old lines name the level of episodes still running, which bounds nothing that was trained.
    """
    for line in launch.log("orchestrator"):
        if line["kind"] != "step":
            continue
        place = {"attempt": launch.number, "step": line["number"], "source": line["source"], "line": line["line"]}
        if line["word"] == "old":
            if line["running"] is not None:
                reported.append(_figure(place, line, None, "Max. Off-Policy Level"))
            continue
        if line["count"] is not None:
            constraints.append(_constraint(place, "trajectories", "eq", line["count"], "traces", "recorded"))
        if line["running"] is not None:
            known = build.states_recorded_max
            reported.append(_figure(place, line, "step.staleness_max" if known else None, "Max Off-Policy"))
            if not known:
                continue
            limit = line["running"] + early
            constraints.append(_constraint(place, "staleness_max", "le", limit, "training steps", "derived"))
    if any(row["kind"] == "step" for row in launch.log("orchestrator")):
        return
    for row in launch.metrics("orchestrator"):
        if row["recorded_max"] is not None:
            place = {"attempt": launch.number, "step": row["step"], "source": row["source"], "line": row["line"]}
            limit = row["recorded_max"] + early
            constraints.append(_constraint(place, "staleness_max", "le", limit, "training steps", "derived"))


def _constraint(place: Row, quantity: str, op: str, value: float, unit: str, evidence: str) -> Row:
    return {
        **place,
        "quantity": quantity,
        "op": op,
        "value": float(value),
        "unit": unit,
        "evidence": evidence,
    }


def _figure(place: Row, line: Row, name: str | None, raw_name: str) -> Row:
    return {
        **place,
        "ts": micros(line["lo"]),
        "name": name,
        "raw_name": raw_name,
        "value": float(line["running"]),
        "evidence": "recorded",
    }


def _diagnose_lost(sink: Sink, lost: list[Row], some_on_disk: bool, settings: Settings) -> None:
    """Report steps whose shipped traces are not on disk: they trained (or may have trained) tokens nobody can see."""
    if not lost:
        return
    if not some_on_disk:
        switch = (
            "`monitors.file` is off"
            if settings.file_monitor is False
            else "they were not kept, or `monitors.file` was off"
        )
        sink.diagnose(
            "warning",
            "no-traces",
            f"{len(lost)} steps have no file of shipped traces ({switch}): only sums are known of them.",
            source=lost[0]["source"],
            line=lost[0]["line"],
            opens="training",
        )
        return
    for row in lost:
        sink.diagnose(
            "error",
            "batch-missing",
            f"Batch {row['step']} was shipped, but its train/effective/traces.jsonl is missing or empty; restore it.",
            source=row["source"],
            line=row["line"],
            opens="training",
        )

"""What became of rows that were not trained: from checkpoints by name, from the eviction counts of the steps in number.

A group whose prompt is in one checkpoint and not in the next, and which no step trained, was evicted between them
(guide section 6, "dropped"). Counts are of groups: a group has one row at least, how many is not said. Where two
rules evicted in the same stretch, the rule is an alternative. Nothing is ever cancelled: aborted requests are
resumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import polars as pl

from staleness_audit.parser import Sink
from staleness_parsers.verl.launches import Row
from staleness_parsers.verl.rows import write_rows, write_stamped
from staleness_parsers.verl.v1 import V1, Step, members
from staleness_parsers.verl.v1_rows import loss_interval

_REASONS: Final = {"stale": "stale", "failed": "group", "filtered": "zero_advantage"}
"""Why an evicted group's finished rows were dropped: by age; because a session of it failed; by the group filter."""


def evictions(record: Row | None) -> dict[str, int] | None:
    """Count the groups evicted in a step, by rule; a missing metric means zero (guide pitfall 9). None: no record."""
    if record is None:
        return None
    stale = record["stale"] if record["stale"] is not None else record["stale_old"]
    return {
        "stale": round(stale or 0),
        "failed": round(record["failed"] or 0),
        "filtered": round(record["filtered"] or 0),
    }


@dataclass(frozen=True)
class Verdict:
    """What may have become of a group that was not trained: rules, ``pending``, ``unknown``; and in which steps."""

    attempt: int
    steps: tuple[tuple[int, int], ...]
    options: tuple[str, ...]

    @property
    def step(self) -> int | None:
        """The step of the eviction, if it can only be one."""
        return self.steps[0][1] if len(self.steps) == 1 else None


def write_fates(model: V1, dated: pl.DataFrame, sink: Sink) -> frozenset[str]:
    """Write rows left in the buffer or evicted from it; returns the classes of fates that stay unseen."""
    out: dict[str, list[Row]] = {"trajectories": [], "events": [], "spans": []}
    left = _left(model, dated)
    verdicts = {uid: verdict for uid, row in left.items() if (verdict := _verdict(model, row)) is not None}
    named = _write_left(model, {uid: left[uid] for uid in verdicts}, verdicts, out, sink)
    counted, blind = _write_counts(model, named, out)
    write_rows(out, sink)
    unseen = {"pending"}
    if counted or blind:
        unseen.add("dropped")
    if blind or len(model.launches) > 1:
        unseen.add("lost")
    return frozenset(unseen)


def _left(model: V1, dated: pl.DataFrame) -> dict[str, Row]:
    """Find the groups that a checkpoint holds as prompts and no step trained: where last, and the checkpoint after."""
    held = model.keys.filter(pl.col("origin") == "checkpoint")
    prompts = held.filter(pl.col("kind") == "prompt")
    steps = [number for number in sorted(set(held["step"])) if _in_line(model, number)]
    if not steps or prompts.is_empty():
        return {}
    uids = [members(model).select("uid"), dated.select(pl.col("group_id").alias("uid"))]
    trained = pl.concat(uids).drop_nulls().unique()
    last = prompts.filter(pl.col("step").is_in(steps)).join(trained, on="uid", how="anti")
    last = last.sort("step").group_by("uid", maintain_order=True).last()
    after = dict(pairwise(steps))
    return {row["uid"]: {**row, "after": after.get(row["step"])} for row in last.iter_rows(named=True)}


def _in_line(model: V1, step: int) -> bool:
    """Whether no later launch went back behind a checkpoint."""
    held = model.saved.get(step, 0)
    return all(launch.start >= step for launch in model.launches[held + 1 :])


def _verdict(model: V1, row: Row) -> Verdict | None:
    """Judge one group; None if a step that may have trained it does not name its rows."""
    until = row["after"]
    span = [
        step
        for (_, number), step in sorted(model.steps.items())
        if number > row["step"] and (until is None or number <= until) and not step.superseded
    ]
    if any(not step.named for step in span):
        return None
    counts = [evictions(step.record) for step in span]
    options = [rule for rule in _REASONS if any(count is None or count[rule] for count in counts)]
    threshold = model.settings.threshold
    if "stale" in options and row["admitted"] is not None and threshold:
        age = max(step.number for step in span) - row["admitted"] + 1
        if age <= threshold * model.scale:
            options.remove("stale")
    if until is None:
        options.append("pending")
    steps = tuple((step.attempt, step.number) for step in span)
    return Verdict(model.saved.get(row["step"], 0), steps, tuple(options or ["unknown"]))


def _write_left(
    model: V1, left: Mapping[str, Row], verdicts: Mapping[str, Verdict], out: dict[str, list[Row]], sink: Sink
) -> list[Verdict]:
    """Write the finished rows of those groups with the tags of the last checkpoint that holds them.

    Returns the verdicts of the groups that have any.
    """
    if not left:
        return []
    last = {"uid": list(left), "step": [row["step"] for row in left.values()]}
    wanted = pl.DataFrame(last, schema={"uid": pl.String, "step": pl.Int64})
    rows = model.keys.filter((pl.col("origin") == "checkpoint") & (pl.col("kind") == "row") & ~pl.col("padding"))
    rows = rows.join(wanted, on=["uid", "step"], how="semi").filter(pl.col("v_max").is_not_null())
    plain = not model.settings.masks and all(
        record["turns"] is not None and record["turns"] <= 2
        for launch in model.launches
        for record in launch.records.values()
    )
    attempts = {uid: verdict.attempt for uid, verdict in verdicts.items()}
    stamped = rows.select(
        pl.col("key").alias("trajectory_id"),
        pl.col("uid").alias("group_id"),
        pl.col("uid").replace_strict(attempts, default=0, return_dtype=pl.Int64).alias("attempt"),
        pl.lit(None, pl.Int64).alias("step"),
        pl.min_horizontal("v_min", "v_max").alias("v_lo"),
        pl.col("v_max").alias("v_hi"),
        *loss_interval(plain, masked=False),
        "prompt_tokens",
        "source",
        pl.lit(None, pl.Int64).alias("line"),
        pl.col("key").alias("locator"),
    )
    write_stamped(stamped, sink)
    for row in stamped.iter_rows(named=True):
        out["events"] += _events(row, verdicts[row["group_id"]])
    return [verdicts[uid] for uid in stamped["group_id"].unique(maintain_order=True)]


def _events(row: Row, verdict: Verdict) -> Iterator[Row]:
    base = {name: row[name] for name in ("trajectory_id", "group_id", "attempt", "source", "locator")}
    versions = {"version_lo": row["v_hi"], "version_hi": row["v_hi"]}
    yield {**base, **versions, "kind": "finished", "evidence": "derived"}
    if verdict.options == ("pending",):
        return
    for option in verdict.options:
        certain = len(verdict.options) == 1 and option != "unknown"
        fate = (
            {"kind": "dropped", "reason": _REASONS.get(option, "unknown")} if option != "pending" else {"kind": option}
        )
        yield {**base, **fate, "step": verdict.step, "evidence": "derived" if certain else "inferred"}


def _write_counts(model: V1, named: Sequence[Verdict], out: dict[str, list[Row]]) -> tuple[bool, bool]:
    """Write evicted groups that nothing names; returns whether there are any, and whether some step is silent about it.

    A group that may be one of those with a name, or that two rules counted, adds nothing to the lower end.
    """
    counted = blind = False
    for key, step in sorted(model.steps.items()):
        counts = evictions(step.record)
        if step.superseded:
            continue
        if counts is None:
            blind = True
            continue
        counted |= any(counts.values())
        several = sum(1 for groups in counts.values() if groups) > 1
        for rule, groups in counts.items():
            mine = sum(1 for verdict in named if key in verdict.steps and rule in verdict.options)
            if groups and rule == "failed":
                # Of a failed group at least the failed session is lost; whether another had ended is not said.
                _class(key, ("lost", "error"), groups, step, out)
                _class(key, ("dropped", "group"), 0, step, out)
            elif groups > mine or (groups and several):
                least = 0 if several and rule != "stale" else max(groups - mine, 0)
                _class(key, ("dropped", _REASONS[rule]), least, step, out)
    return counted, blind


def _class(key: tuple[int, int], fate: tuple[str, str], least: int, step: Step, out: dict[str, list[Row]]) -> None:
    record = step.record or {}
    name = f"anonymous:{key[0]}:{key[1]}:{fate[0]}:{fate[1]}"
    proof = {"trajectory_id": name, **{column: record.get(column) for column in ("source", "line", "locator")}}
    many = {"anonymous": True, "multiplicity_lo": least, "multiplicity_hi": None}
    out["trajectories"].append({**proof, "attempt": key[0], "role": "train", **many, "evidence": "derived"})
    out["spans"].append({**proof, "span_index": 0, "tokens_lo": 0, "tokens_hi": None, "evidence": "inferred"})
    event = {"attempt": key[0], "step": key[1], "kind": fate[0], "reason": fate[1], "multiplicity": max(least, 1)}
    out["events"].append({**proof, **event, "evidence": "derived"})

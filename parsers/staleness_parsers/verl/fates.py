"""What became of rows that were not trained: from checkpoints by name, from the eviction counts of the steps in number.

A group whose prompt is in one checkpoint and not in the next, and which no step trained, was evicted between them
(guide section 6, "dropped"). Counts are of groups: a group has one row at least, how many is not said. Where two rules evicted
in the same stretch, the rule is an alternative. Nothing is ever cancelled: aborted requests are resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from staleness_audit.parser import Sink
from staleness_parsers.verl.launches import Row
from staleness_parsers.verl.rows import STAMPED, write_rows, write_stamped
from staleness_parsers.verl.v1 import V1

_REASONS: Final = {"stale": "stale", "failed": "group", "filtered": "zero_advantage"}
"""Why an evicted group's finished rows were dropped: by age; because a session of the group failed; by the group filter."""


def evictions(record: Row | None) -> dict[str, int] | None:
    """Groups evicted in a step, by rule; a metric that is missing means zero (guide pitfall 9). None: no record."""
    if record is None:
        return None
    stale = record["stale"] if record["stale"] is not None else record["stale_old"]
    return {"stale": round(stale or 0), "failed": round(record["failed"] or 0), "filtered": round(record["filtered"] or 0)}


def write_fates(model: V1, dated: pl.DataFrame, sink: Sink) -> frozenset[str]:
    """Write rows left in the buffer or evicted from it; returns the classes of fates that stay unseen."""
    out: dict[str, list[Row]] = {"trajectories": [], "events": [], "spans": []}
    left = _left(model, dated)
    verdicts = {uid: _verdict(model, row) for uid, row in left.items()}
    named: dict[tuple[int, int, str], int] = {}
    _write_left(model, left, verdicts, named, out, sink)
    counted, blind = _write_counts(model, named, out)
    write_rows(out, sink)
    unseen = {"pending"}
    if counted or blind:
        unseen.add("dropped")
    if blind or len(model.launches) > 1:
        unseen.add("lost")
    return frozenset(unseen)


def _left(model: V1, dated: pl.DataFrame) -> dict[str, Row]:
    """Groups that some checkpoint holds as prompts and no step trained: where last seen, and the checkpoint after."""
    prompts = model.keys.filter((pl.col("origin") == "checkpoint") & (pl.col("kind") == "prompt"))
    steps = [number for number in sorted(set(prompts["step"]) | set(model.keys.filter(pl.col("origin") == "checkpoint")["step"])) if _in_line(model, number)]
    if not steps or prompts.is_empty():
        return {}
    trained = pl.concat([model.members.select("uid"), dated.select(pl.col("group_id").alias("uid"))]).drop_nulls().unique()
    last = prompts.filter(pl.col("step").is_in(steps)).join(trained, on="uid", how="anti").sort("step").group_by("uid").last()
    after = {step: following for step, following in zip(steps, steps[1:], strict=False)}
    return {row["uid"]: {**row, "after": after.get(row["step"])} for row in last.iter_rows(named=True)}


def _in_line(model: V1, step: int) -> bool:
    """Whether no later launch went back behind a checkpoint."""
    held = model.saved.get(step, 0)
    return all(launch.start >= step for launch in model.launches[held + 1 :])


def _verdict(model: V1, row: Row) -> tuple[int, int | None, list[str]]:
    """Return attempt, step (None = several possible) and what may have happened: eviction rules, ``pending``, ``unknown``."""
    first, until = row["step"] + 1, row["after"]
    attempt = model.saved.get(row["step"], 0)
    final = len(model.launches) - 1
    span = [step for (index, number), step in model.steps.items() if number >= first and (until is None or number <= until) and index == final or (index == attempt and number >= first and (until is None or number <= until))]
    counts = [evictions(step.record) for step in span]
    options = [rule for rule in _REASONS if any(count is None or count[rule] for count in counts)]
    if "stale" in options and row["admitted"] is not None and model.settings.threshold and span:
        age = max(step.number for step in span) - row["admitted"] + 1
        if age <= model.settings.threshold * model.scale:
            options.remove("stale")
    if until is None:
        options.append("pending")
    elif not options:
        options.append("unknown")
    step = span[0].number if len(span) == 1 else None
    return attempt, step, options


def _write_left(
    model: V1, left: Mapping[str, Row], verdicts: Mapping[str, tuple[int, int | None, list[str]]], named: dict[tuple[int, int, str], int], out: dict[str, list[Row]], sink: Sink
) -> None:
    """Write the finished rows of those groups with the tags of the last checkpoint that holds them."""
    if not left:
        return
    wanted = pl.DataFrame({"uid": list(left), "step": [row["step"] for row in left.values()]}, schema={"uid": pl.String, "step": pl.Int64})
    rows = model.keys.filter((pl.col("origin") == "checkpoint") & (pl.col("kind") == "row") & ~pl.col("padding")).join(wanted, on=["uid", "step"], how="semi")
    plain = not model.settings.masks and all(
        record["turns"] is not None and record["turns"] <= 2 for launch in model.launches for record in launch.records.values()
    )
    stamped = rows.filter(pl.col("v_min").is_not_null() & pl.col("v_max").is_not_null()).select(
        pl.col("key").alias("trajectory_id"),
        pl.col("uid").alias("group_id"),
        pl.col("uid").replace_strict({uid: verdict[0] for uid, verdict in verdicts.items()}, default=0, return_dtype=pl.Int64).alias("attempt"),
        pl.lit(None, pl.Int64).alias("step"),
        pl.min_horizontal("v_min", "v_max").alias("v_lo"),
        pl.col("v_max").alias("v_hi"),
        pl.coalesce("loss", pl.when(pl.lit(plain)).then("response"), pl.min_horizontal(pl.lit(1, pl.Int64), "response")).alias("tokens_lo"),
        pl.coalesce("loss", "response").alias("tokens_hi"),
        "prompt_tokens",
        "source",
        pl.lit(None, pl.Int64).alias("line"),
        pl.col("key").alias("locator"),
    )
    write_stamped(stamped.select(list(STAMPED)), sink)
    for row in stamped.iter_rows(named=True):
        attempt, step, options = verdicts[row["group_id"]]
        place = {"source": row["source"], "locator": row["locator"]}
        base = {"trajectory_id": row["trajectory_id"], "group_id": row["group_id"], "attempt": attempt, **place}
        out["events"].append({**base, "kind": "finished", "version_lo": row["v_hi"], "version_hi": row["v_hi"], "evidence": "derived"})
        if options == ["pending"]:
            continue
        for option in options:
            certain = len(options) == 1 and option != "unknown"
            kind = "pending" if option == "pending" else "dropped"
            reason = None if kind == "pending" else _REASONS.get(option, "unknown")
            out["events"].append({**base, "kind": kind, "reason": reason, "step": step, "evidence": "derived" if certain else "inferred"})
    for uid in set(stamped["group_id"]):
        attempt, step, options = verdicts[uid]
        if len(options) == 1 and step is not None and options[0] in _REASONS:
            named[attempt, step, options[0]] = named.get((attempt, step, options[0]), 0) + 1


def _write_counts(model: V1, named: Mapping[tuple[int, int, str], int], out: dict[str, list[Row]]) -> tuple[bool, bool]:
    """Write evicted groups that nothing names; returns whether there are any, and whether some step is silent about it."""
    counted = blind = False
    for (attempt, number), step in sorted(model.steps.items()):
        counts = evictions(step.record)
        if counts is None:
            blind = True
            continue
        for rule, groups in counts.items():
            counted |= groups > 0
            rest = groups - named.get((attempt, number, rule), 0)
            if groups <= 0:
                continue
            # Of a failed group at least the failed session is lost; whether another had ended is not said.
            if rule == "failed":
                _class(step_key := (attempt, number), "lost", "error", groups, step.record or {}, out)
                _class(step_key, "dropped", "group", 0, step.record or {}, out)
            elif rest > 0:
                overlap = sum(1 for value in counts.values() if value) > 1
                _class((attempt, number), "dropped", _REASONS[rule], 0 if overlap and rule != "stale" else rest, step.record or {}, out)
    return counted, blind


def _class(key: tuple[int, int], kind: str, reason: str, least: int, record: Mapping[str, Any], out: dict[str, list[Row]]) -> None:
    name = f"anonymous:{key[0]}:{key[1]}:{kind}:{reason}"
    proof = {"source": record.get("source"), "line": record.get("line"), "locator": record.get("locator")}
    out["trajectories"].append(
        {"trajectory_id": name, "attempt": key[0], "role": "train", "anonymous": True, "multiplicity_lo": least, "multiplicity_hi": None, "evidence": "derived", **proof}
    )
    out["spans"].append({"trajectory_id": name, "span_index": 0, "tokens_lo": 0, "tokens_hi": None, "evidence": "inferred", **proof})
    out["events"].append(
        {"trajectory_id": name, "attempt": key[0], "step": key[1], "kind": kind, "reason": reason, "multiplicity": max(least, 1), "evidence": "derived", **proof}
    )

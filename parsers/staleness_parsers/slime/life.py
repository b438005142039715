"""Lifecycle events, aggregates and reported numbers (guide sections 5.4, 5.5 and 6)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from staleness_audit.parser import Sink, Staged
from staleness_parsers.slime import processes as p
from staleness_parsers.slime.console import metrics_of
from staleness_parsers.slime.eras import Eras
from staleness_parsers.slime.finish import Model, completed, optimizer_steps, rollouts_of
from staleness_parsers.slime.processes import Process

_CANONICAL: Final = {
    "rollout/staleness/max": "step.staleness_max",
    "rollout/staleness/mean": "step.staleness_trajectory_mean",
    "rollout/num_trajectories": "step.trajectories",
}
_REASON: Final = re.compile(r"'?([\w.\-]+)'?:\s*(\d+)")
_FLOAT32: Final = 2.0**-22
"""Relative error to allow for a number that TensorBoard keeps in 32 bits."""


def write_events(eras: Eras, samples: pl.DataFrame, staged: Staged, sink: Sink) -> None:
    """Write the life of dumped trajectories; ``seq`` orders the events of an era."""
    frames = [
        _moments(samples, kind, column)
        for kind, column in (
            ("admitted", "admitted"),
            ("started", "started"),
            ("finished", "finished"),
            ("enqueued", "enqueued"),
        )
    ]
    frames += [_sampled(samples), _trimmed(samples)]
    if staged.has("slime_calls"):
        frames += _pauses(eras.scan(staged, "slime_calls"), samples)
    events = pl.concat([frame for frame in frames if len(frame)], how="diagonal_relaxed")
    seq = pl.int_range(pl.len(), dtype=pl.Int64).over("era").alias("seq")
    sink.write("events", events.sort("ts", nulls_last=True, maintain_order=True).with_columns(seq).drop("era"))


def _moments(samples: pl.DataFrame, kind: str, column: str) -> pl.DataFrame:
    return samples.filter(pl.col(column).is_not_null() & pl.col("tells_spans")).select(
        "trajectory_id",
        "group_id",
        "attempt",
        "era",
        pl.col(column).alias("ts"),
        pl.lit(kind).alias("kind"),
        pl.lit("recorded").alias("evidence"),
        "source",
        pl.format("samples[{}]", "position").alias("locator"),
    )


def _sampled(samples: pl.DataFrame) -> pl.DataFrame:
    """Make ``sampled`` events: into the batch of the dump, when the console says the dump was saved."""
    return samples.unique(["trajectory_id", "rollout"], keep="first", maintain_order=True).select(
        "trajectory_id",
        "group_id",
        "attempt",
        "era",
        pl.col("rollout").alias("step"),
        pl.col("saved").alias("ts"),
        pl.lit("sampled").alias("kind"),
        pl.lit("recorded").alias("evidence"),
        "source",
        pl.format("samples[{}]", "position").alias("locator"),
    )


def _trimmed(samples: pl.DataFrame) -> pl.DataFrame:
    """Make ``dropped`` events of samples over a multiple of the global batch size, which were trained in no step."""
    gone = samples.filter(pl.col("completed") & ~pl.col("member")).unique(
        "trajectory_id", keep="first", maintain_order=True
    )
    critic = samples.filter(pl.col("critic_only")).unique("trajectory_id", keep="first", maintain_order=True)
    frames = [
        frame.select(
            "trajectory_id",
            "group_id",
            "attempt",
            "era",
            pl.col("rollout").alias("step"),
            pl.lit("dropped").alias("kind"),
            pl.lit(reason).alias("reason"),
            pl.lit("derived").alias("evidence"),
            "source",
            pl.format("samples[{}]", "position").alias("locator"),
        )
        for frame, reason in ((gone, "surplus"), (critic, "other:critic_only"))
    ]
    return pl.concat(frames)


def _pauses(calls: pl.DataFrame, samples: pl.DataFrame) -> list[pl.DataFrame]:
    """Make pauses: an aborted call that is followed by another is no fate."""
    keys = ["root", "rollout", "position"]
    numbered = calls.with_columns(pl.int_range(pl.len()).over(keys).alias("turn"))
    placed = numbered.join(
        samples.filter("tells_spans").select(*keys, "trajectory_id", "group_id", "attempt", "era"), on=keys
    )
    common: list[Any] = [
        "trajectory_id",
        "group_id",
        "attempt",
        "era",
        "source",
        pl.format("samples[{}]", "position").alias("locator"),
        pl.lit("recorded").alias("evidence"),
    ]
    paused = placed.filter(pl.col("aborted") & ~pl.col("last") & pl.col("ended").is_not_null())
    after_abort = pl.col("aborted").shift(1).over(keys).fill_null(False)
    resumed = placed.filter(after_abort & pl.col("started").is_not_null())
    return [
        paused.select(*common, pl.col("ended").alias("ts"), pl.lit("paused").alias("kind")),
        resumed.select(*common, pl.col("started").alias("ts"), pl.lit("resumed").alias("kind")),
    ]


def write_lost_groups(model: Model, sink: Sink) -> None:
    """Write groups that crashed or were filtered out: known only by number, hence anonymous."""
    members = max((batch["members"] or 0 for batch in model.batches), default=0) or None
    filtered_on_console = False
    for attempt, process in enumerate(model.processes):
        for line in process.lines:
            place, ts = {"source": line["source"], "line": line["line"]}, model.utc(line["local"])
            if line["kind"] in {"group_lost", "group_failed"}:
                write_anonymous(
                    sink, attempt, place, members=members, groups=1, kind="lost", reason="error", step=None, ts=ts
                )
            elif line["kind"] == "collected" and line["count"]:
                filtered_on_console = True
                for reason, count in _reasons(line).items():
                    write_anonymous(
                        sink,
                        attempt,
                        place,
                        members=members,
                        groups=count,
                        kind="dropped",
                        reason=reason,
                        step=line["rollout"],
                        ts=ts,
                    )
    if filtered_on_console or model.scalars.is_empty():
        return
    dropped = model.scalars.filter((pl.col("tag") == "rollout/dynamic_filter/dropped_groups") & (pl.col("value") >= 1))
    for row in dropped.iter_rows(named=True):
        attempt_found = model.attempt_of(row["x"])
        if attempt_found is not None:
            place = {"source": row["source"], "locator": f"record {row['record']}"}
            write_anonymous(
                sink,
                attempt_found,
                place,
                members=members,
                groups=int(row["value"]),
                kind="dropped",
                reason="filtered",
                step=row["x"],
                ts=row["wall"],
            )


def _reasons(line: Mapping[str, Any]) -> Counter[str]:
    """Split the groups a dynamic filter dropped by reason; equal rewards in a group are ``zero_advantage``."""
    found: Counter[str] = Counter()
    for word, count in _REASON.findall(line["text"] or ""):
        found["zero_advantage" if word.startswith("zero_std") else "filtered"] += int(count)
    rest = line["count"] - sum(found.values())
    if rest < 0:
        return Counter({"filtered": line["count"]})
    if rest:
        found["filtered"] += rest
    return found


def write_anonymous(
    sink: Sink,
    attempt: int,
    place: dict[str, Any],
    *,
    members: int | None,
    groups: int,
    kind: str,
    reason: str,
    step: int | None,
    ts: datetime | None,
) -> None:
    """Write a class of groups of which only the number and the fate are known."""
    where = place.get("line") or place.get("locator")
    name = f"anonymous:{kind}-{reason}@{place['source']}:{where}"
    lo, hi = (groups * members, groups * members) if members else (groups, None)
    common = {"attempt": attempt, "evidence": "recorded", **place}
    schema: dict[str, Any] = {
        "multiplicity_hi": pl.Int64,
        "ts": pl.Datetime("us", "UTC"),
        "step": pl.Int64,
        "multiplicity": pl.Int64,
    }

    def frame(row: dict[str, Any]) -> pl.DataFrame:
        return pl.DataFrame([row], schema_overrides={name: kind for name, kind in schema.items() if name in row})

    sink.write(
        "trajectories",
        frame(
            {
                **common,
                "trajectory_id": name,
                "group_id": name,
                "role": "train",
                "anonymous": True,
                "multiplicity_lo": lo,
                "multiplicity_hi": hi,
            }
        ),
    )
    sink.write(
        "groups",
        frame(
            {
                **common,
                "group_id": name,
                "members_lo": members or 1,
                "members_hi": members,
                "multiplicity_lo": groups,
                "multiplicity_hi": groups,
            }
        ),
    )
    sink.write(
        "events",
        frame(
            {
                **common,
                "seq": place.get("line"),
                "kind": kind,
                "trajectory_id": name,
                "group_id": name,
                "step": step,
                "ts": ts,
                "multiplicity": hi,
                "reason": reason,
            }
        ),
    )


def write_constraints(model: Model, known: set[tuple[int, int]], sink: Sink) -> None:
    """Write what is known of completed steps whose members no dump names (guide 5.4, 5.5; console-only runs).

    As many trajectories as ``train/global_batch_size`` adds up to; not more loss tokens than the batch has response
    tokens; nothing older than the policy the process started with. A step of which not even that is known opens the
    verdict.
    """
    found: list[dict[str, Any]] = []
    for attempt, process in enumerate(model.processes):
        # What a later launch went back behind counts nowhere, whoever was in it.
        starts = [later.start_hi for later in model.processes[attempt + 1 :] if later.start_hi is not None]
        nameless = [
            rollout
            for rollout in rollouts_of(process)
            if (attempt, rollout) not in known and rollout < min(starts, default=rollout + 1)
        ]
        values = _metrics_by_rollout(model, attempt) if nameless else {}
        sizes = _batch_sizes(process, values)
        for rollout in nameless:
            done, _, source, line = completed(model, attempt, rollout)
            if done is False:
                continue
            train = process.trains.get(rollout)
            oldest = model.versions[attempt].start[0]
            facts: list[tuple[str, str, float, str]] = [
                ("staleness_max", "le", p.policy(process, rollout) - oldest, "trained rollouts")
            ]
            taken = process.executions(rollout)
            if train is not None and taken is not None:
                facts.append(("trajectories", "eq", taken, "rollout executions"))
                most = _most_tokens(taken, train.global_batch, values.get(rollout, {}), sizes)
                if most is not None:
                    facts.append(("loss_tokens", "le", most, "tokens"))
            else:
                sink.diagnose(
                    "error",
                    "step-without-members",
                    f"Rollout {rollout} was trained, and no dump or log line says how many "
                    "trajectories it took; restore its dumps or its console log.",
                    source=source,
                    line=line,
                    opens="training",
                )
            place = {"attempt": attempt, "step": rollout, "evidence": "derived", "source": source, "line": line}
            found += [
                {**place, "quantity": quantity, "op": op, "value": float(value), "unit": unit}
                for quantity, op, value, unit in facts
            ]
    if found:
        sink.write("constraints", pl.DataFrame(found, schema_overrides={"line": pl.Int64}, infer_schema_length=None))


def _metrics_by_rollout(model: Model, attempt: int) -> dict[int, dict[str, float]]:
    """Metrics of a process's rollouts, the console's (exact) before TensorBoard's (32 bits)."""
    values: dict[int, dict[str, float]] = {}
    if not model.scalars.is_empty():
        for row in _placed_scalars(model).filter(pl.col("attempt") == attempt).iter_rows(named=True):
            values.setdefault(row["step"], {})[row["tag"]] = row["value"]
    for line, metrics in metrics_of(list(model.processes[attempt].lines)):
        if line["kind"] in {"perf_rollout", "perf_train"}:
            values.setdefault(line["rollout"], {}).update(metrics)
    return values


def _batch_sizes(process: Process, values: dict[int, dict[str, float]]) -> int:
    """Return a divisor of every batch's samples: from the prompts of a batch, and from its mean lengths.

    A mean of whole numbers times their count is whole; the batches of a run are equally large.
    """
    prompts = {line["count"] for line in process.lines if line["kind"] in {"collect", "collect_old"} and line["count"]}
    divisor = prompts.pop() if len(prompts) == 1 else 1
    largest = max(
        (2 * train.global_batch * len(train.steps) for train in process.trains.values() if train.global_batch),
        default=0,
    )
    for metrics in values.values():
        mean = metrics.get("rollout/response_len/mean")
        if mean:
            divisor = math.lcm(divisor, _denominator(mean, largest))
    return divisor


def _denominator(mean: float, largest: int) -> int:
    """Return the smallest count whose whole numbers ``mean`` can average; 1 where its precision leaves a choice."""
    error = _FLOAT32 * mean
    for count in range(1, largest + 1):
        if abs(round(mean * count) / count - mean) <= error:
            # Fractions with denominators up to ``largest`` lie at least this far apart.
            return count if 2 * error < 1 / (count * largest) else 1
    return 1


def _most_tokens(taken: int, size: int | None, metrics: dict[str, float], divisor: int) -> int | None:
    """Return an upper end for the loss tokens of a step: its batch's response tokens.

    Fewer than a global batch of samples can have been trimmed; where the batch's size is not sure, the largest
    possible one is taken. Executions that fan out to several samples show in the trainer's own token count (prompts
    included).
    """
    mean = metrics.get("rollout/response_len/mean")
    if size is None or mean is None:
        return None
    largest = taken + size - 1
    samples = largest // divisor * divisor if largest // divisor * divisor >= taken else largest
    most = mean * samples
    rate, seconds = metrics.get("perf/actor_train_tok_per_s"), metrics.get("perf/actor_train_time")
    if rate and seconds:
        most = max(most, rate * seconds)
    return math.floor(most * (1 + _FLOAT32) + 1e-6)


def _placed_scalars(model: Model) -> pl.DataFrame:
    """Return TensorBoard's points with rollout and attempt: the last with that rollout that began before them."""
    if "attempt" in model.scalars.columns:
        return model.scalars
    rows = []
    for (_,), file in model.scalars.group_by("source", maintain_order=True):
        scale = optimizer_steps(file)
        per_rollout = {
            process: max((len(train.steps) for train in model.processes[process].trains.values()), default=1) or 1
            for process in range(len(model.processes))
        }
        for row in file.iter_rows(named=True):
            for attempt in reversed(range(len(model.processes))):
                process = model.processes[attempt]
                begun = (
                    process.started
                    if process.seen_by == "events"
                    else (model.utc(process.started) if process.started else None)
                )
                begun = begun.replace(tzinfo=None) if begun else None
                rollout = row["x"] // (per_rollout[attempt] if row["tag"].startswith("train/") else scale)
                late = begun is None or begun - timedelta(seconds=2) <= row["wall"].replace(tzinfo=None)
                if late and (rollout in process.collected or rollout in process.trains):
                    rows.append({**row, "attempt": attempt, "step": rollout})
                    break
    schema: dict[str, Any] = {**model.scalars.schema, "attempt": pl.Int64, "step": pl.Int64}
    model.scalars = pl.DataFrame(rows, schema=schema)
    return model.scalars


def write_reported(model: Model, sink: Sink) -> None:
    """Write the numbers slime logs about itself; of a number on the console and in TensorBoard, the console's."""
    rows = []
    for attempt, process in enumerate(model.processes):
        by_step = {n: rollout for rollout, train in process.trains.items() for n in train.steps}
        for line, metrics in metrics_of(list(process.lines)):
            rollout = by_step.get(line["rollout"]) if line["kind"] == "step" else line["rollout"]
            if line["kind"] not in {"step", "perf_rollout", "perf_train"} or rollout is None:
                continue
            for tag, value in metrics.items():
                rows.append(
                    {
                        "attempt": attempt,
                        "step": rollout,
                        "ts": model.utc(line["local"]),
                        "raw_name": tag,
                        "value": float(value),
                        "source": line["source"],
                        "line": line["line"],
                        "locator": None,
                    }
                )
    schema: dict[str, Any] = {
        "attempt": pl.Int64,
        "step": pl.Int64,
        "ts": pl.Datetime("us", "UTC"),
        "raw_name": pl.String,
        "value": pl.Float64,
        "source": pl.String,
        "line": pl.Int64,
        "locator": pl.String,
    }
    frame = pl.DataFrame(rows, schema=schema)
    if not model.scalars.is_empty():
        points = _placed_scalars(model).select(
            "attempt",
            "step",
            pl.col("wall").alias("ts"),
            pl.col("tag").alias("raw_name"),
            "value",
            "source",
            pl.lit(None, pl.Int64).alias("line"),
            pl.format("record {}", "record").alias("locator"),
        )
        frame = pl.concat([frame, points.join(frame, on=["attempt", "step", "raw_name"], how="anti")])
    sink.write(
        "reported",
        frame.with_columns(
            pl.col("raw_name").replace_strict(_CANONICAL, default=None, return_dtype=pl.String).alias("name"),
            pl.lit("recorded").alias("evidence"),
        ),
    )

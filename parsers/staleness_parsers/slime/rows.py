"""From the model of a run to rows of the event tables (guide sections 3, 5 and 6)."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from staleness_audit.parser import Sink, Staged
from staleness_audit.readers.numbers import micros
from staleness_parsers.slime import processes as p
from staleness_parsers.slime.finish import OVERLAP, Model, completed, rollouts_of

_BATCH: Final = ["root", "rollout"]
_TIME: Final = pl.Datetime("us", "UTC")


def write_steps(model: Model, sink: Sink) -> pl.DataFrame:
    """Write ``steps``; return them with ``floor`` and ``ceiling``: oldest and newest version their tokens can have."""
    rows = []
    for attempt, process in enumerate(model.processes):
        versions = model.versions[attempt]
        for rollout in rollouts_of(process):
            done, evidence, source, line = completed(model, attempt, rollout)
            train = process.trains.get(rollout)
            v_train = p.policy(process, rollout)
            ahead = process.one_ahead and process.start_hi is not None and rollout > process.start_hi
            rows.append(
                {
                    "attempt": attempt,
                    "step": rollout,
                    "v_train_lo": v_train,
                    "v_train_hi": v_train,
                    "started": model.utc(train.started) if train else None,
                    "ended": model.utc(train.ended) if train else None,
                    "waited_us": micros(train.waited) if train else None,
                    "updates": len(train.steps) or None if train else None,
                    "completed": done,
                    "evidence": evidence,
                    "source": source,
                    "line": line,
                    "floor": min(versions.start[0], v_train),
                    "ceiling": max(v_train - 1 if ahead else v_train, min(versions.start[0], v_train)),
                    "critic_only": train is not None and train.critic_only,
                }
            )
    frame = pl.DataFrame(
        rows,
        schema={
            "attempt": pl.Int64,
            "step": pl.Int64,
            "v_train_lo": pl.Int64,
            "v_train_hi": pl.Int64,
            "started": _TIME,
            "ended": _TIME,
            "waited_us": pl.Int64,
            "updates": pl.Int64,
            "completed": pl.Boolean,
            "evidence": pl.String,
            "source": pl.String,
            "line": pl.Int64,
            "floor": pl.Int64,
            "ceiling": pl.Int64,
            "critic_only": pl.Boolean,
        },
    )
    sink.write("steps", frame.drop("floor", "ceiling", "critic_only"))
    return frame


def write_syncs(model: Model, sink: Sink) -> None:
    """Write ``syncs``: the n-th sync of a process, with the version that the trainings before it make."""
    rows = []
    for attempt, process in enumerate(model.processes):
        for sync in process.syncs:
            if sync.after is None:
                lo, hi = model.versions[attempt].start
            elif sync.after.rollout is not None:
                lo = hi = p.policy(process, sync.after.rollout + 1)
            else:
                continue
            rows.append(
                {
                    "attempt": attempt,
                    "version_lo": lo,
                    "version_hi": hi,
                    "started": model.utc(sync.started),
                    "ended": model.utc(sync.ended),
                    "evidence": "derived",
                    "source": sync.source,
                    "line": sync.line,
                }
            )
    if rows:
        sink.write("syncs", pl.DataFrame(rows, infer_schema_length=None))


def place_samples(model: Model, steps: pl.DataFrame, staged: Staged, sink: Sink) -> pl.DataFrame | None:
    """Return the dumped samples with their attempt, trajectory id, and whether their step took them.

    ``member``: true, false (trimmed), or null (it may have been trimmed). ``whole_use``: the train dump says so.
    """
    if not staged.has("slime_samples"):
        return None
    batches = pl.DataFrame([_batch_facts(model, batch) for batch in model.batches], infer_schema_length=None)
    samples = staged.scan("slime_samples").collect().join(batches, on=_BATCH)
    samples = samples.join(
        steps.select("attempt", pl.col("step").alias("rollout"), "completed", "critic_only"), on=["attempt", "rollout"]
    )
    samples = _name(samples, sink)
    order = (
        pl.col("position").min().over("trajectory_id", "attempt", "rollout").rank("dense").over("attempt", "rollout")
        - 1
    )
    samples = samples.with_columns(order.cast(pl.Int64).alias("turn"))
    any_trained = pl.col("trained").any().over("trajectory_id", "attempt", "rollout")
    member = (
        pl.when(pl.col("by_dump"))
        .then(pl.when(any_trained).then(True).when(~pl.col("maybe_missing")).then(False))
        .when(pl.col("turn") < pl.col("sure"))
        .then(True)
        .when(pl.col("turn") >= pl.col("possible"))
        .then(False)
    )
    return samples.with_columns(member.alias("member"))


def _batch_facts(model: Model, batch: dict[str, Any]) -> dict[str, Any]:
    """Say which samples of a dump were trained: by its train dump, else as many as the steps took, in order.

    If neither is known: S >= 1 optimizer steps of equal size leave fewer than half of the executions over.
    """
    process = model.processes[batch["attempt"]]
    train = process.trains.get(batch["rollout"])
    count = batch["executions"] or 0
    taken = process.executions(batch["rollout"])
    if taken is not None and train is not None and count - taken >= (train.global_batch or 0):
        taken = None  # a whole global batch is never trimmed: some line is missing
    ranks_missing = bool(model.ranks - set(str(batch["ranks"] or "").split(",")))
    by_dump = bool(batch["has_train"] and batch["matched"])
    certain = count // 2 + 1
    return {
        "root": batch["root"],
        "rollout": batch["rollout"],
        "attempt": batch["attempt"],
        "by_dump": by_dump,
        "maybe_missing": by_dump
        and (not batch["whole"] or ranks_missing)
        and (taken is None or taken > (batch["matched"] or 0)),
        "sure": count if taken is not None and taken >= count else taken if taken is not None else certain,
        "possible": count if taken is None else max(taken, 0),
    }


def _name(samples: pl.DataFrame, sink: Sink) -> pl.DataFrame:
    """Give trajectories ids that are unique in the run: later attempts get a prefix, since ids restart with them.

    The same id in two dumps of one attempt is the same trajectory only if its tokens are.
    """
    prefix = pl.when(pl.col("attempt") > 0).then(pl.format("{}/", "attempt")).otherwise(pl.lit(""))
    samples = samples.with_columns(
        (prefix + pl.col("key")).alias("trajectory_id"), (prefix + pl.col("group_key")).alias("group_id")
    ).sort("attempt", "rollout", "position")
    first = pl.col("rollout").min().over("trajectory_id")
    whole = pl.col("digest").sort_by("position").str.join(",").over("trajectory_id", "rollout")
    samples = samples.with_columns(first.alias("first_rollout"), whole.alias("content"))
    original = pl.col("content").filter(pl.col("rollout") == pl.col("first_rollout")).first().over("trajectory_id")
    again = (pl.col("rollout") != pl.col("first_rollout")) & (pl.col("content") != original)
    odd = samples.filter(again)
    if len(odd):
        sink.diagnose(
            "warning",
            "id-again",
            f"{len(odd)} samples bear the index of other samples in an earlier dump of the same "
            "attempt; they are told apart by their rollout.",
            source=odd["source"][0],
        )
    renamed = pl.when(again).then(pl.format("{}@{}", "trajectory_id", "rollout")).otherwise(pl.col("trajectory_id"))
    return samples.with_columns(
        renamed.alias("trajectory_id"), ((pl.col("rollout") == pl.col("first_rollout")) | again).alias("tells_spans")
    )


def write_trajectories(samples: pl.DataFrame, sink: Sink) -> None:
    """Write ``trajectories`` and ``groups`` of the dumped samples."""
    locator = pl.format("samples[{}]", "position").alias("locator")
    sink.write(
        "trajectories",
        samples.select(
            "trajectory_id",
            "group_id",
            "attempt",
            "prompt_tokens",
            "source",
            locator,
            pl.lit("train").alias("role"),
            pl.lit(False).alias("anonymous"),
            pl.lit(1).alias("multiplicity_lo"),
            pl.lit(1).alias("multiplicity_hi"),
            pl.lit("recorded").alias("evidence"),
        ).unique("trajectory_id", keep="first", maintain_order=True),
    )
    groups = (
        samples.filter(pl.col("group_id").is_not_null())
        .group_by("group_id", maintain_order=True)
        .agg(
            pl.col("attempt").first(),
            pl.col("trajectory_id").n_unique().alias("members_lo"),
            pl.col("source").first(),
            pl.format("samples[{}]", pl.col("position").first()).alias("locator"),
        )
    )
    sink.write(
        "groups",
        groups.with_columns(
            pl.col("members_lo").alias("members_hi"),
            pl.lit(1).alias("multiplicity_lo"),
            pl.lit(1).alias("multiplicity_hi"),
            pl.lit("recorded").alias("evidence"),
        ),
    )


def write_spans(model: Model, steps: pl.DataFrame, samples: pl.DataFrame, staged: Staged, sink: Sink) -> None:
    """Write ``spans`` with versions for labels, and the ``uses`` of every dumped sample."""
    place = samples.select(
        *_BATCH,
        "position",
        "attempt",
        "trajectory_id",
        "tells_spans",
        "trained",
        "member",
        "completed",
        "critic_only",
        "by_dump",
        "train_source",
        "train_locator",
    )
    if staged.has("slime_segments"):
        segments = staged.scan("slime_segments").collect().join(place, on=[*_BATCH, "position"])
        segments = _versions(model, steps, segments, staged, sink)
        sink.write("spans", _span_rows(segments.filter("tells_spans")))
        sink.write("uses", _use_rows(segments, per_span=True))
    empty = samples.filter(pl.col("segments").sum().over("trajectory_id", "rollout") == 0)
    sink.write(
        "uses",
        _use_rows(
            empty.with_columns(
                *(pl.lit(0, pl.Int64).alias(name) for name in ("mask_lo", "mask_hi", "loss_lo", "loss_hi")),
                pl.lit(None, pl.Int64).alias("span_index"),
                pl.lit(True).alias("exact"),
            ),
            per_span=False,
        ),
    )


def _versions(model: Model, steps: pl.DataFrame, segments: pl.DataFrame, staged: Staged, sink: Sink) -> pl.DataFrame:
    segments = _lived_through_syncs(model, segments, staged, sink)
    meaning = pl.DataFrame(
        [
            {"attempt": attempt, "label": label, "lo": lo, "hi": hi}
            for attempt, versions in enumerate(model.versions)
            for label, (lo, hi) in versions.by_label.items()
        ],
        schema={"attempt": pl.Int64, "label": pl.Int64, "lo": pl.Int64, "hi": pl.Int64},
    )
    limits = steps.select(
        "attempt", pl.col("step").alias("rollout"), "floor", "ceiling", pl.col("v_train_lo").alias("v_train")
    )
    found = (
        segments.join(
            meaning.select("attempt", pl.col("label").alias("label_lo"), pl.col("lo").alias("version_lo")),
            on=["attempt", "label_lo"],
            how="left",
        )
        .join(
            meaning.select("attempt", pl.col("label").alias("label_hi"), pl.col("hi").alias("version_hi")),
            on=["attempt", "label_hi"],
            how="left",
        )
        .join(limits, on=["attempt", "rollout"], how="left")
    )
    above = found.filter(pl.col("version_lo") > pl.col("v_train"))
    if len(above):
        sink.diagnose(
            "warning",
            "label-above",
            f"{len(above)} spans bear a label newer than the policy that trained them; their "
            "version is taken for unknown.",
            source=above["source"][0],
            locator=f"samples[{above['position'][0]}]",
        )
    impossible = pl.col("version_lo") > pl.col("v_train")
    return found.with_columns(
        pl.when(impossible)
        .then(pl.col("floor"))
        .otherwise(pl.col("version_lo").fill_null(pl.col("floor")))
        .alias("version_lo"),
        pl.when(impossible)
        .then(pl.col("ceiling"))
        .otherwise(pl.min_horizontal(pl.col("version_hi").fill_null(pl.col("ceiling")), "v_train"))
        .alias("version_hi"),
    ).with_columns(pl.max_horizontal("version_lo", "version_hi").alias("version_hi"))


def _lived_through_syncs(model: Model, segments: pl.DataFrame, staged: Staged, sink: Sink) -> pl.DataFrame:
    """Open the lower end of calls that lived through a sync: only their last label is recorded (guide 3, item 5).

    With the pause that aborts, a call that began before the end of another of an older label would have been aborted
    with that label. If one was not, the run paused in place, and a call can hold tokens of every label since it began:
    from the newest that had ended a call by then, which is its own where no sync can have come in between.
    """
    if not staged.has("slime_calls"):
        return segments
    attempts = pl.DataFrame(
        [{"root": b["root"], "rollout": b["rollout"], "attempt": b["attempt"]} for b in model.batches]
    )
    calls = (
        staged.scan("slime_calls")
        .filter(pl.col("label").is_not_null() & pl.col("ended").is_not_null())
        .collect()
        .join(attempts, on=_BATCH)
    )
    if calls.is_empty():
        return segments
    ends = (
        calls.group_by("attempt", "label")
        .agg(pl.col("ended").max().alias("last_end"))
        .sort("attempt", "label")
        .with_columns(pl.col("last_end").cum_max().shift(1).over("attempt").alias("older_end"))
        .select("attempt", pl.col("label").alias("label_hi"), "older_end")
    )
    segments = segments.join(ends, on=["attempt", "label_hi"], how="left")
    alive = pl.col("exact") & (pl.col("older_end") > pl.col("started"))
    in_place = segments.filter(alive & (pl.col("older_end") - pl.col("started") > OVERLAP))
    if in_place.is_empty():
        return segments
    first = in_place.row(0, named=True)
    sink.diagnose(
        "warning",
        "paused-in-place",
        "Engine calls lived through weight syncs (--flush-cache-interval is not 1): their label is "
        "only that of their last token, so the versions of their tokens are intervals.",
        source=first["source"],
        locator=f"samples[{first['position']}]",
    )
    newest = calls.sort("ended").with_columns(pl.col("label").cum_max().over("attempt").alias("in_force"))
    began = segments.sort("started", nulls_last=True).join_asof(
        newest.select("attempt", "ended", "in_force"),
        left_on="started",
        right_on="ended",
        by="attempt",
        strategy="backward",
        check_sortedness=False,
    )
    # Nothing is older than the first label, 1 or "default".
    open_end = (
        pl.col("exact") & (pl.col("label_lo") > 1) & (pl.col("in_force").fill_null(0) < pl.col("label_lo"))
    ).fill_null(False)
    return began.with_columns(
        pl.when(open_end).then(pl.col("in_force")).otherwise(pl.col("label_lo")).alias("label_lo"),
        (pl.col("exact") & ~open_end).alias("exact"),
    )


def _span_rows(segments: pl.DataFrame) -> pl.DataFrame:
    known = pl.col("version_lo") == pl.col("version_hi")
    return segments.select(
        "trajectory_id",
        "span_index",
        "token_start",
        "tokens_lo",
        "tokens_hi",
        pl.col("mask_lo").alias("loss_tokens_lo"),
        pl.col("mask_hi").alias("loss_tokens_hi"),
        "version_lo",
        "version_hi",
        pl.lit(True).alias("monotone"),
        "started",
        "ended",
        pl.when(pl.col("exact") & known).then(pl.lit("derived")).otherwise(pl.lit("inferred")).alias("evidence"),
        "source",
        pl.format("samples[{}]", "position").alias("locator"),
    )


def _use_rows(parts: pl.DataFrame, *, per_span: bool) -> pl.DataFrame:
    """Count members' loss tokens: the train dump's final mask, else the rollout dump's; none of trimmed samples."""
    counted = pl.col("by_dump") & pl.col("trained")
    trimmed = pl.col("by_dump") & ~pl.col("trained") & pl.col("member")
    uncertain = pl.col("member").is_null()
    lo = pl.when(counted).then(pl.col("loss_lo")).when(trimmed | uncertain).then(0).otherwise(pl.col("mask_lo"))
    hi = pl.when(counted).then(pl.col("loss_hi")).when(trimmed.fill_null(False)).then(0).otherwise(pl.col("mask_hi"))
    evidence = (
        pl.when(uncertain).then(pl.lit("inferred")).when(counted).then(pl.lit("recorded")).otherwise(pl.lit("derived"))
    )
    members = parts.filter(~pl.col("critic_only") & pl.col("member").fill_null(True))
    frame = members.select(
        "trajectory_id",
        "attempt",
        pl.col("rollout").alias("step"),
        "span_index",
        lo.alias("loss_tokens_lo"),
        hi.alias("loss_tokens_hi"),
        (~uncertain).alias("member"),
        evidence.alias("evidence"),
        pl.when(counted).then(pl.col("train_source")).otherwise(pl.col("source")).alias("source"),
        pl.when(counted).then(pl.col("train_locator")).otherwise(pl.format("samples[{}]", "position")).alias("locator"),
    )
    return frame if per_span else frame.unique(["trajectory_id", "attempt", "step"], keep="first", maintain_order=True)


def write_orphans(model: Model, steps: pl.DataFrame, staged: Staged, sink: Sink) -> None:
    """Write what train dumps hold that the rollout dump beside them does not: trained, but of unknown version."""
    if not staged.has("slime_orphans"):
        return
    orphans = staged.scan("slime_orphans").collect()
    facts = []
    for batch in model.batches:
        attempt = batch["attempt"]
        whole = batch["readable"] and not batch["skipped"]
        if whole and batch["unmatched"]:
            earlier = [n for n in range(attempt) if batch["rollout"] in rollouts_of(model.processes[n])]
            if earlier and not batch["matched"]:
                attempt = earlier[-1]
                sink.diagnose(
                    "note",
                    "train-dump-of-earlier-attempt",
                    f"The train dump of rollout {batch['rollout']} is that of an earlier "
                    "attempt: it holds none of the samples collected since.",
                    source=batch["train_source"],
                )
            else:
                sink.diagnose(
                    "error",
                    "dumps-disagree",
                    f"The train dump of rollout {batch['rollout']} holds {batch['unmatched']} samples "
                    "that its rollout dump does not; their versions are unknown.",
                    source=batch["train_source"],
                    opens="training",
                )
        facts.append({"root": batch["root"], "rollout": batch["rollout"], "attempt": attempt, "beside": whole})
    limits = steps.select("attempt", pl.col("step").alias("rollout"), "floor", "ceiling")
    found = orphans.join(pl.DataFrame(facts), on=_BATCH).join(limits, on=["attempt", "rollout"])
    name = pl.when(pl.col("attempt") > 0).then(pl.format("{}/", "attempt")).otherwise(pl.lit("")) + pl.col("key")
    # Beside a readable rollout dump they are others than those it names, though their ids may be the same.
    name = pl.when("beside").then(pl.format("{}@train{}", name, "rollout")).otherwise(name)
    found = found.with_columns(name.alias("trajectory_id")).unique("trajectory_id", keep="first", maintain_order=True)
    where = ["source", "locator"]
    sink.write(
        "trajectories",
        found.select(
            "trajectory_id",
            "attempt",
            "prompt_tokens",
            *where,
            pl.lit("train").alias("role"),
            pl.lit(False).alias("anonymous"),
            pl.lit(1).alias("multiplicity_lo"),
            pl.lit(1).alias("multiplicity_hi"),
            pl.lit("recorded").alias("evidence"),
        ),
    )
    sink.write(
        "spans",
        found.select(
            "trajectory_id",
            pl.lit(0).alias("span_index"),
            pl.col("loss_lo").alias("tokens_lo"),
            pl.col("response_tokens").alias("tokens_hi"),
            pl.col("loss_lo").alias("loss_tokens_lo"),
            pl.col("loss_hi").alias("loss_tokens_hi"),
            pl.col("floor").alias("version_lo"),
            pl.col("ceiling").alias("version_hi"),
            pl.lit(True).alias("monotone"),
            pl.lit("inferred").alias("evidence"),
            *where,
        ),
    )
    sink.write(
        "uses",
        found.select(
            "trajectory_id",
            "attempt",
            pl.col("rollout").alias("step"),
            pl.lit(0).alias("span_index"),
            pl.col("loss_lo").alias("loss_tokens_lo"),
            pl.col("loss_hi").alias("loss_tokens_hi"),
            pl.lit("recorded").alias("evidence"),
            *where,
        ),
    )

"""From the model of a run to rows of the event tables (guide sections 3, 5 and 6)."""

from __future__ import annotations

from typing import Final

import polars as pl

from staleness_audit.parser import Sink, Staged
from staleness_audit.readers.numbers import micros
from staleness_parsers.slime import processes as p
from staleness_parsers.slime.eras import Eras, with_names
from staleness_parsers.slime.finish import Model, completed, rollouts_of
from staleness_parsers.slime.pauses import BATCH

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


def place_samples(eras: Eras, staged: Staged) -> pl.DataFrame:
    """Return the dumped samples with their attempt, trajectory id, and whether their step took them.

    ``member``: true, false (trimmed), or null (it may have been trimmed). ``whole_use``: the train dump says so.
    """
    dumps = eras.dumps.drop("samples", "labels", "told")
    samples = _name(eras.scan(staged, "slime_samples").join(dumps, on=BATCH))
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


def _name(samples: pl.DataFrame) -> pl.DataFrame:
    """Name trajectories; ``again``: the same id in two dumps of one attempt is the same only if its tokens are."""
    samples = with_names(samples).sort("attempt", "rollout", "position")
    first = pl.col("rollout").min().over("trajectory_id")
    whole = pl.col("digest").sort_by("position").str.join(",").over("trajectory_id", "rollout")
    samples = samples.with_columns(first.alias("first_rollout"), whole.alias("content"))
    original = pl.col("content").filter(pl.col("rollout") == pl.col("first_rollout")).first().over("trajectory_id")
    again = (pl.col("rollout") != pl.col("first_rollout")) & (pl.col("content") != original)
    samples = samples.with_columns(again.alias("again"))
    renamed = pl.format("{}@{}", "trajectory_id", "rollout")
    tells_spans = (pl.col("rollout") == pl.col("first_rollout")) | pl.col("again")
    # A group comes in one batch: with other samples in a later one it is another, of a launch that nothing else shows.
    named = pl.col("group_id").is_not_null()
    another = named & tells_spans & (pl.col("rollout") != pl.col("rollout").min().over("group_id"))
    return samples.with_columns(
        pl.when("again").then(renamed).otherwise("trajectory_id").alias("trajectory_id"),
        tells_spans.alias("tells_spans"),
        pl.when(another).then(pl.format("{}@{}", "group_id", "rollout")).otherwise("group_id").alias("group_id"),
        another.alias("another_group"),
    )


def tell_odd(eras: Eras, staged: Staged, sink: Sink) -> None:
    """Say over the whole run what is odd about ids and labels; only the dumps in which it can be are looked at."""
    several = eras.several()
    placed = place_samples(several, staged) if len(several.dumps) else None
    if placed is not None and len(new := placed.filter(pl.col("another_group") & ~pl.col("again"))):
        sink.diagnose(
            "warning",
            "launch-unseen",
            f"{new['group_id'].n_unique()} groups bear the index of other groups in an earlier dump: the trainer was "
            "launched again, and nothing else shows when; keep the console log of each launch.",
            source=new["source"][0],
        )
    if placed is not None and len(odd := placed.filter("again")):
        sink.diagnose(
            "warning",
            "id-again",
            f"{len(odd)} samples bear the index of other samples in an earlier dump of the same "
            "attempt; they are told apart by their rollout.",
            source=odd["source"][0],
        )
    if (high := eras.above()).dumps.is_empty():
        return
    segments = high.scan(staged, "slime_segments").join(high.dumps, on=BATCH, maintain_order="left")
    above = _versions(eras, segments).filter("impossible")
    if len(above):
        sink.diagnose(
            "warning",
            "label-above",
            f"{len(above)} spans bear a label newer than the policy that trained them; their "
            "version is taken for unknown.",
            source=above["source"][0],
            locator=f"samples[{above['position'][0]}]",
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


def write_spans(eras: Eras, samples: pl.DataFrame, staged: Staged, sink: Sink) -> None:
    """Write ``spans`` with versions for labels, and the ``uses`` of every dumped sample."""
    place = samples.select(
        *BATCH,
        "position",
        "attempt",
        "floor",
        "ceiling",
        "v_train",
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
        segments = eras.scan(staged, "slime_segments").join(place, on=[*BATCH, "position"])
        segments = _versions(eras, segments)
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


def _versions(eras: Eras, segments: pl.DataFrame) -> pl.DataFrame:
    """Add the versions of runs of tokens; ``impossible``: labels newer than the policy that trained them."""
    lo, hi = (
        eras.meaning.select("attempt", pl.col("label").alias(f"label_{end}"), pl.col(end).alias(f"version_{end}"))
        for end in ("lo", "hi")
    )
    found = (
        _with_open_ends(segments, eras)
        .join(lo, on=["attempt", "label_lo"], how="left")
        .join(hi, on=["attempt", "label_hi"], how="left")
        .with_columns((pl.col("version_lo") > pl.col("v_train")).fill_null(False).alias("impossible"))
    )
    version_hi = pl.min_horizontal(pl.col("version_hi").fill_null(pl.col("ceiling")), "v_train")
    return found.with_columns(
        pl.when("impossible")
        .then("floor")
        .otherwise(pl.col("version_lo").fill_null(pl.col("floor")))
        .alias("version_lo"),
        pl.when("impossible").then("ceiling").otherwise(version_hi).alias("version_hi"),
    ).with_columns(pl.max_horizontal("version_lo", "version_hi").alias("version_hi"))


def _with_open_ends(segments: pl.DataFrame, eras: Eras) -> pl.DataFrame:
    """Open the lower end of calls that may have lived through a sync (``Eras.in_force``): their label is the last."""
    if eras.in_force is None:
        return segments
    began = segments.sort("started", nulls_last=True).join_asof(
        eras.in_force,
        left_on="started",
        right_on="ended",
        by="attempt",
        strategy="backward",
        check_sortedness=False,
    )
    oldest = eras.meaning.select("attempt", pl.col("label").alias("label_lo"), "oldest")
    began = began.join(oldest, on=["attempt", "label_lo"], how="left", maintain_order="left")
    first = pl.max_horizontal(pl.col("in_force").fill_null(0), "oldest")
    open_end = (pl.col("exact") & (first < pl.col("label_lo"))).fill_null(False)
    return began.with_columns(
        pl.when(open_end).then(first).otherwise(pl.col("label_lo")).alias("label_lo"),
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
        facts.append(
            {
                "root": batch["root"],
                "rollout": batch["rollout"],
                "attempt": attempt,
                "beside": whole,
                "alone": not batch["readable"],
            }
        )
    limits = steps.select("attempt", pl.col("step").alias("rollout"), "floor", "ceiling")
    found = orphans.join(pl.DataFrame(facts), on=BATCH).join(limits, on=["attempt", "rollout"])
    name = pl.when(pl.col("attempt") > 0).then(pl.format("{}/", "attempt")).otherwise(pl.lit("")) + pl.col("key")
    # Beside a readable rollout dump they are others than those it names, though their ids may be the same.
    name = pl.when("beside").then(pl.format("{}@train{}", name, "rollout")).otherwise(name)
    # Which are of one group is not known.
    group = pl.format("train:{}:{}", "attempt", "rollout").alias("group_id")
    found = found.with_columns(name.alias("trajectory_id"), group)
    found = found.unique("trajectory_id", keep="first", maintain_order=True)
    where = ["source", "locator"]
    sink.write(
        "groups",
        found.group_by("group_id", maintain_order=True).agg(
            pl.col("attempt", *where).first(),
            pl.lit(1, pl.Int64).first().alias("members_lo"),
            pl.len().cast(pl.Int64).alias("members_hi"),
            # Beside a rollout dump they may be of the groups that it names.
            pl.col("alone").first().cast(pl.Int64).alias("multiplicity_lo"),
            pl.len().cast(pl.Int64).alias("multiplicity_hi"),
            pl.lit("inferred").first().alias("evidence"),
        ),
    )
    sink.write(
        "trajectories",
        found.select(
            "trajectory_id",
            "group_id",
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

"""V1 trainers (and what shares their dumps): who was trained in which global step, how old, and what became of the rest.

Members of a step come from its rollout dump, else from the checkpoint of the step (rows whose prompt is gone), else from
the dumped mini-batches, else only the metrics say what they were like. Versions come from the tags of the same step's
checkpoint or mini-batches, or of an earlier checkpoint whose row was not thrown away by a resume (guide section 5 D);
rows without any are bounded by the step's metrics, or by the drop rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from staleness_audit.parser import Sink, Staged
from staleness_parsers.verl import dumps, state
from staleness_parsers.verl.aggregates import RowClass, Spread, row_classes
from staleness_parsers.verl.launches import Launch, Row, owner
from staleness_parsers.verl.rows import STAMPED, Lengths, StepClasses, write_classes, write_rows, write_stamped
from staleness_parsers.verl.settings import Settings

_SLACK: Final = 1e-3


@dataclass
class Step:
    """One global step as the files show it. ``count_lo/hi``: rows it trained, padding left out (hi None = open).

    ``known``, ``lags``: how many rows are dated, and their staleness by last and by first version. ``fake``: replayed from
    a cache. ``spoke``: every row has some text, so at least one sampled token.
    """

    attempt: int
    number: int
    completed: bool | None
    record: Row | None
    count_lo: int = 0
    count_hi: int | None = None
    source: str | None = None
    known: int = 0
    lags: list[tuple[int, int]] = field(default_factory=list)
    fake: bool = False
    spoke: bool = False

    @property
    def v_train(self) -> int:
        """The weights labelled with the step before (guide section 3, rule 2)."""
        return self.number - 1


@dataclass
class V1:
    """Everything the stations below share."""

    settings: Settings
    launches: Sequence[Launch]
    scale: int
    rule: str
    keys: pl.DataFrame
    rollouts: pl.DataFrame
    damaged: pl.DataFrame
    steps: dict[tuple[int, int], Step] = field(default_factory=dict)
    members: pl.DataFrame = field(default_factory=pl.DataFrame)
    saved: dict[int, int] = field(default_factory=dict)
    """Launch (index) whose checkpoint of a step is left."""


def build(settings: Settings, found: Sequence[Launch], staged: Staged, rule: str) -> V1:
    """Gather steps and members. ``rule``: ``v1``, or ``oso`` (one step off: every batch is one version old)."""
    keys = staged.scan(state.TABLE).collect() if staged.has(state.TABLE) else pl.DataFrame(schema=state.ROWS)
    rollouts = _training(staged, settings)
    damaged = staged.scan(dumps.DAMAGE).collect() if staged.has(dumps.DAMAGE) else pl.DataFrame(schema={"source": pl.String, "step": pl.Int64, "cut": pl.Boolean})
    model = V1(settings, found, _scale(settings, found), rule, keys, rollouts, damaged)
    _place_steps(model)
    model.members = _members(model)
    return model


def _training(staged: Staged, settings: Settings) -> pl.DataFrame:
    """Rows of rollout dumps that are no validation: those have a ``reward``, or lie in the folder the configuration names."""
    if not staged.has(dumps.TABLE):
        return pl.DataFrame(schema={"source": pl.String, "line": pl.Int64, "step": pl.Int64, "uid": pl.String, "padding": pl.Boolean, "file_step": pl.Int64, "output_chars": pl.Int64})
    rows = staged.scan(dumps.TABLE).collect()
    folder = pl.col("source").str.extract(r"(?:^|/)([^/]+)/[^/]+$")
    evaluated = rows.group_by("source").agg(pl.col("validation").any())
    rows = rows.drop("validation").join(evaluated, on="source")
    keep = ~pl.col("validation")
    named = settings.folder("trainer.validation_data_dir")
    if named is not None and named != settings.folder("trainer.rollout_data_dir"):
        keep &= folder.fill_null("") != named
    return rows.filter(keep)


def _scale(settings: Settings, found: Sequence[Launch]) -> int:
    """k where a global step was one mini-batch and metrics were divided by k (separate_async until 2026-07-08), else 1."""
    k = settings.updates_per_sync
    if settings.trainer != "separate_async" or k == 1:
        return 1
    batch, mini = settings.count("data.train_batch_size"), settings.count("actor_rollout_ref.actor.ppo_mini_batch_size")
    fractions = any(
        value is not None and value != int(value)
        for launch in found
        for record in launch.records.values()
        for value in (record["worst_max"], record["worst_min"], record["last_max"], record["last_min"])
    )
    return k if fractions or (batch is not None and mini is not None and batch != k * mini) else 1


# ------------------------------------------------------------------------------------------------- steps


def _place_steps(model: V1) -> None:
    """List the steps of each launch: every number from its start to the last it proves, then what files show beyond."""
    found = model.launches
    ends = [launch.reached() for launch in found]
    checkpoints = sorted(set(model.keys.filter(pl.col("origin") == "checkpoint")["step"]))
    filed = sorted({*model.rollouts["step"], *model.damaged["step"], *checkpoints})
    for index, launch in enumerate(found):
        if index + 1 < len(found):
            # What the next launch resumed from, this one or one before it had completed.
            ends[index] = max(ends[index], found[index + 1].start if index == 0 or found[index + 1].start > launch.start else 0)
    last = len(found) - 1
    if last == 0:
        ends[0] = max([ends[0], *filed])
    for number in filed:
        if owner(found, ends, number) is None:
            # Beyond what the last launch is known to have reached: its own, or left over from one before.
            ends[last] = max(ends[last], number) if all(number > end for end in ends[:last]) else ends[last]
    spoken = {index: {message["a"] for message in launch.said("saving")} for index, launch in enumerate(found)}
    for number in checkpoints:
        told = [index for index, steps in spoken.items() if number in steps]
        held = told[-1] if told else owner(found, ends, number)
        model.saved[number] = last if held is None else held
    for index, launch in enumerate(found):
        for number in range(launch.start + 1, ends[index] + 1):
            model.steps[index, number] = Step(index, number, completed=True, record=launch.records.get(number), fake=bool(launch.said("injected")))
    for number in filed:
        if number == ends[last] + 1 and last and (last, number) not in model.steps and owner(found, ends, number) is not None:
            # The last launch may have trained it and died before saying so.
            model.steps[last, number] = Step(last, number, completed=None, record=None)
    model_ends = {number: owner(found, ends, number) for number in filed}
    model.rollouts = model.rollouts.with_columns(
        pl.col("step").replace_strict(model_ends, default=None, return_dtype=pl.Int64).fill_null(last).alias("attempt")
    )


def _members(model: V1) -> pl.DataFrame:
    """Rows each step trained: (attempt, step, key, uid, source, line), and the counts of each step."""
    rows = model.rollouts.filter(~pl.col("padding"))
    frames = [
        rows.select(
            "attempt", "step", pl.col("uid").alias("key"), pl.col("uid").str.replace(r"_[^_]*_[^_]*$", "").alias("uid"), "source", "line"
        )
    ]
    counts = {(row["attempt"], row["step"]): row for row in rows.group_by("attempt", "step").agg(pl.len().alias("n"), pl.col("source").first(), (pl.col("output_chars") > 0).all().alias("spoke")).iter_rows(named=True)}
    listed = set(model.rollouts.select("attempt", "step").unique().iter_rows())
    broken = set(model.damaged["step"])
    orphans = _orphans(model)
    for (attempt, number), step in model.steps.items():
        count = counts.get((attempt, number))
        whole = (attempt, number) in listed and number not in broken
        others = orphans.get(number) if model.saved.get(number, attempt) == attempt else None
        if whole and count is not None:
            step.count_lo = step.count_hi = count["n"]
            step.source = count["source"]
            step.spoke = count["spoke"]
        elif others is not None and not others.is_empty():
            step.count_lo = step.count_hi = others.height
            step.source = others["source"][0]
            if count is not None:
                frames[0] = frames[0].filter(~((pl.col("attempt") == attempt) & (pl.col("step") == number)))
            frames.append(
                others.select(
                    pl.lit(attempt, pl.Int64).alias("attempt"), pl.lit(number, pl.Int64).alias("step"), "key", "uid", "source", pl.lit(None, pl.Int64).alias("line")
                )
            )
        else:
            _count_from_metrics(model, step, 0 if count is None else count["n"])
            step.source = None if count is None else count["source"]
    return pl.concat(frames)


def _orphans(model: V1) -> dict[int, pl.DataFrame]:
    """Rows without their prompt in the checkpoint of a step, or all rows of its mini-batches: what the step trained.

    A row that was an orphan before stays in later checkpoints after a resume; only its first one counts.
    """
    rows = model.keys.filter((pl.col("kind") == "row") & ~pl.col("padding"))
    result: dict[int, pl.DataFrame] = {}
    k = model.settings.updates_per_sync
    for (number,), batches in rows.filter(pl.col("origin") == "batch").group_by("step", maintain_order=True):
        if batches["part"].n_unique() == k or model.settings.trainer == "colocate_async":
            result[int(number)] = batches.unique("key", keep="first", maintain_order=True)  # type: ignore[call-overload]
    prompts = model.keys.filter((pl.col("origin") == "checkpoint") & (pl.col("kind") == "prompt")).select("step", "uid")
    orphans = rows.filter(pl.col("origin") == "checkpoint").join(prompts, on=["step", "uid"], how="anti")
    first = orphans.sort("step").unique("key", keep="first", maintain_order=True)
    trained = model.rollouts.select(pl.col("uid").alias("key"), pl.col("step").alias("dumped")).drop_nulls()
    first = first.join(trained, on="key", how="left").filter(pl.col("dumped").is_null() | (pl.col("dumped") >= pl.col("step")))
    for (number,), left in first.group_by("step", maintain_order=True):
        result[int(number)] = left  # type: ignore[call-overload]
    return result


def _count_from_metrics(model: V1, step: Step, seen: int) -> None:
    """Bound the number of rows by the metrics: all tokens are prompt and response tokens of rows, or of padding.

    ``data.train_batch_size`` groups have a row each at least; what n says is no proof (guide pitfall 10).
    """
    record, settings = step.record, model.settings
    batch = settings.count("actor_rollout_ref.actor.ppo_mini_batch_size" if model.scale > 1 else "data.train_batch_size")
    short = record is not None and record["stale_old"] is not None  # the old sampler did not refill what it dropped
    step.count_lo = max(seen, 0 if short or model.rule != "v1" else batch or 0)
    if record is None or None in (record["tokens"], record["response_mean"], record["prompt_mean"]):
        return
    mean = record["response_mean"] + record["prompt_mean"]
    if mean <= 0:
        return
    most = record["tokens"] / mean
    launch = model.launches[step.attempt]
    plain = record["origin"] == "console" or launch.consoled
    step.count_hi = math.floor(most * (1 + 1e-5))
    if plain and not launch.said("upsampled") and abs(most - round(most)) < _SLACK * max(1.0, most / 100):
        step.count_lo = step.count_hi = round(most)
    step.count_lo = min(step.count_lo, step.count_hi)


# ------------------------------------------------------------------------------------------------- versions


def write_trained(model: V1, sink: Sink) -> pl.DataFrame:
    """Write every trained row; returns the dated ones (``STAMPED``)."""
    dated = _dated(model)
    write_stamped(dated.select(list(STAMPED)), sink)
    ids: dict[tuple[int, int], list[Any]] = {}
    known = dated.select("attempt", "step", "trajectory_id")
    undated = model.members.join(known, left_on=["attempt", "step", "key"], right_on=["attempt", "step", "trajectory_id"], how="anti")
    for row in undated.iter_rows(named=True):
        ids.setdefault((row["attempt"], row["step"]), []).append(row)
    for row in dated.select("attempt", "step", "v_lo", "v_hi", "recorded_lo", "tokens_lo", "tokens_hi").iter_rows(named=True):
        step = model.steps[row["attempt"], row["step"]]
        step.known += 1
        step.lags.append((step.v_train - row["v_hi"], step.v_train - row["recorded_lo"]))
    out: dict[str, list[Row]] = {"trajectories": [], "spans": [], "uses": [], "constraints": [], "steps": [], "syncs": []}
    for key, step in sorted(model.steps.items()):
        _write_step(model, step, out)
        _write_rest(model, step, ids.get(key, []), out, sink)
    write_rows(out, sink)
    return dated


def _dated(model: V1) -> pl.DataFrame:
    """Members joined with the tags that hold for them, in the shape of ``STAMPED`` (plus ``recorded_lo``)."""
    last = len(model.launches) - 1
    owners = pl.col("step").replace_strict(model.saved, default=None, return_dtype=pl.Int64)
    tags = model.keys.filter((pl.col("kind") == "row") & pl.col("v_min").is_not_null() & pl.col("v_max").is_not_null())
    prompts = model.keys.filter(pl.col("kind") == "prompt").select("source", "uid", pl.col("status").alias("prompt"))
    tags = tags.join(prompts, on=["source", "uid"], how="left").with_columns(
        pl.when(pl.col("origin") == "batch").then(last).otherwise(owners).alias("owner"), pl.col("step").alias("at")
    )
    starts = [launch.start for launch in model.launches]
    joined = model.members.filter(pl.col("key").is_not_null()).join(
        tags.select("key", "at", "owner", "prompt", "origin", "admitted", "v_min", "v_max", "prompt_tokens", "response", "loss", pl.col("source").alias("tag_source")),
        on="key",
    )
    own = pl.col("owner") == pl.col("attempt")
    start = pl.col("attempt").replace_strict(dict(enumerate(starts)), return_dtype=pl.Int64)
    # Groups not finished when a run was resumed are generated again under the same keys.
    handed = (pl.col("at") <= start) & (pl.col("prompt") == "finished")
    holds = (pl.col("at") <= pl.col("step")) & (((pl.col("at") > start) & own) | handed | ((pl.col("origin") == "batch") & (pl.col("at") == pl.col("step"))))
    fakes = [key for key, step in model.steps.items() if step.fake]
    joined = joined.filter(holds).sort("at", "loss", descending=True, nulls_last=True).unique(["attempt", "step", "key"], keep="first", maintain_order=True)
    joined = joined.filter(~pl.struct("attempt", "step").is_in([{"attempt": a, "step": s} for a, s in fakes])) if fakes else joined
    admitted = pl.col("admitted") - 1 if model.scale == 1 else pl.lit(None, pl.Int64)
    lowest = pl.max_horizontal(pl.col("v_min"), pl.when(admitted <= pl.col("v_max")).then(admitted))
    exact = pl.struct("attempt", "step").map_elements(lambda key: _exact_lengths(model, key["attempt"], key["step"]), return_dtype=pl.Boolean)
    return joined.with_columns(exact.alias("exact"), pl.min_horizontal(lowest, "v_max").alias("v_lo")).select(
        pl.col("key").alias("trajectory_id"),
        pl.col("uid").alias("group_id"),
        "attempt",
        "step",
        "v_lo",
        pl.col("v_max").alias("v_hi"),
        pl.coalesce("loss", pl.when("exact").then("response"), pl.min_horizontal(pl.lit(0 if model.settings.masks else 1, pl.Int64), "response")).alias("tokens_lo"),
        pl.coalesce("loss", "response").alias("tokens_hi"),
        "prompt_tokens",
        pl.col("tag_source").alias("source"),
        pl.lit(None, pl.Int64).alias("line"),
        pl.col("key").alias("locator"),
        pl.col("v_min").alias("recorded_lo"),
    )


def _exact_lengths(model: V1, attempt: int, number: int) -> bool:
    """Whether every response token of a step is a loss token: no row has several turns, nothing is rejected (section 5 D)."""
    step = model.steps.get((attempt, number))
    record = step.record if step else None
    turns = None if record is None else record["turns"] if record["turns"] is not None else record["turns_fa"]
    return turns is not None and turns <= 2 and not model.settings.masks


def _write_step(model: V1, step: Step, out: dict[str, list[Row]]) -> None:
    record = step.record or {}
    proof = {"evidence": "derived", "source": record.get("source") or step.source, "line": record.get("line"), "locator": record.get("locator")}
    waited = record.get("waited")
    out["steps"].append(
        {
            "attempt": step.attempt,
            "step": step.number,
            "v_train_lo": step.v_train,
            "v_train_hi": step.v_train,
            "completed": step.completed,
            "updates": _updates(model),
            "waited_us": None if waited is None else round(waited * 1e6),
            **proof,
        }
    )
    if step.completed and step.number % model.scale == 0:
        out["syncs"].append({"attempt": step.attempt, "version_lo": step.number, "version_hi": step.number, **proof})


def _updates(model: V1) -> int | None:
    settings = model.settings
    epochs = settings.count("actor_rollout_ref.actor.ppo_epochs") or 1
    if settings.count("trainer.critic_warmup") or model.rule != "v1":
        return None
    if settings.trainer == "separate_async":
        return epochs * (1 if model.scale > 1 else settings.updates_per_sync)
    batch, mini = settings.count("data.train_batch_size"), settings.count("actor_rollout_ref.actor.ppo_mini_batch_size")
    return epochs * (batch // mini) if settings.trainer == "colocate_async" and batch and mini else None


# ------------------------------------------------------------------------------------------------- rows without versions


def _write_rest(model: V1, step: Step, undated: list[Row], out: dict[str, list[Row]], sink: Sink) -> None:
    """Write what a step trained beyond its dated rows, and the sums it states."""
    rest = step.count_lo - step.known
    more = None if step.count_hi is None else step.count_hi - step.count_lo
    record = step.record
    exact_count = more == 0
    lengths = _lengths(model, step)
    if record is not None and exact_count and record["response_mean"] is not None:
        tokens = record["response_mean"] * step.count_lo
        if abs(tokens - round(tokens)) < _SLACK * max(1.0, tokens / 100):
            _constrain(step, "loss_tokens", "eq" if lengths.exact else "le", round(tokens), out)
            _constrain(step, "trajectories", "eq", step.count_lo, out)
    if not rest and exact_count:
        return
    if record is None and not exact_count and not step.source:
        sink.diagnose(
            "warning",
            "step-unread",
            f"Step {step.number} was trained, but no dump, checkpoint or record of it is left; how many rows it had and how old they were is not known.",
            locator=f"step {step.number}",
            opens="training",
        )
    elif step.count_hi is None:
        sink.diagnose(
            "warning",
            "rows-uncounted",
            f"How many rows step {step.number} trained is not known in full: its rollout dump is missing or damaged.",
            source=step.source or (record or {}).get("source"),
            locator=f"step {step.number}",
            opens="training" if record is None else None,
        )
    classes, spanless = _classes(model, step, max(rest, 0), sink)
    newest = None if record is None or record["last_min"] is None or step.fake or model.rule != "v1" else step.v_train - round(record["last_min"] * model.scale)
    write_classes(
        StepClasses(
            step.attempt,
            step.number,
            step.v_train,
            classes,
            lengths,
            more=more,
            newest=newest,
            spanless=spanless,
            ids=[(row["key"], row["uid"], row["line"]) for row in undated if row["key"]],
            source=record["source"] if record else step.source,
            line=record["line"] if record else None,
            ids_source=undated[0]["source"] if undated else None,
            evidence="derived" if all(item.lo == item.hi for item in classes) else "inferred",
        ),
        out,
    )


def _constrain(step: Step, quantity: str, op: str, value: float, out: dict[str, list[Row]]) -> None:
    record = step.record or {}
    out["constraints"].append(
        {"attempt": step.attempt, "step": step.number, "quantity": quantity, "op": op, "value": float(value), "unit": None, "evidence": "derived", "source": record.get("source"), "line": record.get("line"), "locator": record.get("locator")}
    )


def _lengths(model: V1, step: Step) -> Lengths:
    record = step.record
    masked = model.settings.masks
    if record is None or record["response_max"] is None:
        return Lengths(int(step.spoke), model.settings.count("data.max_response_length"), exact=False, masked=masked)
    exact = _exact_lengths(model, step.attempt, step.number)
    return Lengths(round(record["response_min"] or 0), round(record["response_max"]), exact, masked)


def _classes(model: V1, step: Step, rest: int, sink: Sink) -> tuple[list[RowClass], bool]:
    """Intervals of the undated rows, and whether each of them is of one version."""
    if model.rule == "oso":
        lag = min(step.v_train, 1)
        return [RowClass(rest, lag, lag)], True
    if step.fake:
        return [RowClass(rest, 0, step.v_train)], False
    record, scale = step.record, model.scale
    cap = step.v_train if model.settings.enforced is None else min(step.v_train, _enforced(model) or 0)
    if record is None or record["worst_max"] is None or record["last_max"] is None:
        return [RowClass(rest, 0, cap)], False
    exact = step.count_lo == step.count_hi
    spreads = []
    for name, at in (("last", 0), ("worst", 1)):
        low, high, mean = (record[f"{name}_{end}"] for end in ("min", "max", "mean"))
        total = None if mean is None or not exact else mean * scale * step.count_lo
        if total is not None and abs(total - round(total)) > _SLACK * max(1.0, total / 100):
            total = None
        whole = Spread(step.count_lo, round((low or 0) * scale), round(high * scale), None if total is None else round(total), has_lo=exact, has_hi=exact)
        if not exact:
            whole = Spread(step.count_lo, whole.lo, whole.hi)
        spreads.append(whole.without([lag[at] for lag in step.lags]))
    last, worst = spreads
    if not (last.sound and worst.sound) or last.lo > worst.hi:
        sink.diagnose(
            "warning",
            "metrics-disagree",
            f"The staleness metrics of step {step.number} fit no {rest} rows: its dump, checkpoint and metrics are not of one launch, or a row is missing.",
            source=record["source"],
            line=record["line"],
            opens="training",
        )
        return [RowClass(rest, 0, step.v_train)], False
    spanless = record["span_max"] == 1
    return row_classes(Spread(rest, last.lo, last.hi, last.total, last.has_lo, last.has_hi), worst), spanless


def _enforced(model: V1) -> int | None:
    return bound_of(model.settings.threshold, model.scale) if model.settings.enforced is not None else None


def bound_of(threshold: int | None, scale: int) -> int | None:
    """Return the threshold as ``v_train - v_gen`` in global steps (guide section 3, "Bound")."""
    if threshold is None:
        return None
    # While a step was one mini-batch: (s - a + 1) / k <= T, and a group admitted at a has weights of a - k at least.
    return threshold - 1 if scale == 1 else threshold * scale + scale - 2

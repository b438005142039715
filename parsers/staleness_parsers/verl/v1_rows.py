"""The rows of V1's steps: dated by the tags that hold for them, else as classes that the step's metrics allow.

Versions come from the tags of the same step's checkpoint or mini-batches, or of an earlier checkpoint whose row was not
thrown away by a resume (guide section 5 D).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import sha256

import polars as pl

from staleness_audit.parser import Era, Sink
from staleness_audit.readers.numbers import micros, moment
from staleness_parsers.verl.aggregates import RowClass, Spread, row_classes
from staleness_parsers.verl.launches import Row
from staleness_parsers.verl.rows import STAMPED, Lengths, StepClasses, write_classes, write_rows, write_stamped
from staleness_parsers.verl.settings import bound_of
from staleness_parsers.verl.v1 import SLACK, V1, Step, members

# ------------------------------------------------------------------------------------------------- versions


def write_trained(model: V1, sink: Sink) -> pl.DataFrame:
    """Write every trained row, step by step; returns the dated ones (``STAMPED``)."""
    dated = _dated(model)
    for attempt, step, count in dated.group_by("attempt", "step").len().iter_rows():
        model.steps[attempt, step].known = count
    out: dict[str, list[Row]] = {"steps": [], "syncs": []}
    for _, each in sorted(model.steps.items()):
        _write_step(model, each, out)
    write_rows(out, sink)
    sink.write_eras(_eras(model, dated), lambda numbers, into: _write_members(model, dated, numbers, into))
    return dated


def _eras(model: V1, dated: pl.DataFrame) -> list[Era]:
    """Return an era for each number of a step: what its rows are made from is known without most of them."""
    run = sha256(repr((model.settings, model.scale, model.rule)).encode()).hexdigest()
    units = dict(model.heads.group_by("step").agg(pl.col("unit").unique().sort()).iter_rows())
    tagged = [_hashes(frame) for frame in (dated, model.restored)]
    steps: dict[int, list[Step]] = {}
    for _, step in sorted(model.steps.items()):
        steps.setdefault(step.number, []).append(step)
    return [
        Era(
            number,
            sum(step.count_lo for step in group),
            repr((run, group, units.get(number), [hashes.get(number) for hashes in tagged])),
        )
        for number, group in sorted(steps.items())
    ]


def _hashes(rows: pl.DataFrame) -> dict[int, tuple[int, ...]]:
    """Return by step what tells rows from others, whatever their order."""
    hashed = rows.select("step", *(rows.hash_rows(seed).alias(str(seed)) for seed in (0, 1)))
    found = hashed.group_by("step").agg(pl.len(), pl.col("0").bitwise_xor(), pl.col("1").sum())
    return {row[0]: row[1:] for row in found.iter_rows()}


def _write_members(model: V1, dated: pl.DataFrame, numbers: Sequence[int], sink: Sink) -> None:
    """Write the rows of the steps with these numbers."""
    chosen = set(numbers)
    dated = dated.filter(pl.col("step").is_in(list(numbers)))
    write_stamped(dated.select(list(STAMPED)), sink)
    steps = {key: step for key, step in sorted(model.steps.items()) if step.number in chosen}
    for step in steps.values():
        step.lags = []
    for row in dated.select("attempt", "step", "v_hi", "recorded_lo").iter_rows(named=True):
        step = steps[row["attempt"], row["step"]]
        step.lags.append((step.v_train - row["v_hi"], step.v_train - row["recorded_lo"]))
    known = dated.select("attempt", "step", pl.col("trajectory_id").alias("key"))
    rest = members(model, numbers).join(known, on=["attempt", "step", "key"], how="anti")
    undated = rest.partition_by("attempt", "step", as_dict=True)
    out: dict[str, list[Row]] = {"trajectories": [], "spans": [], "uses": [], "constraints": []}
    for key, step in steps.items():
        if not step.superseded:
            # Of a superseded step's unnamed rows nobody knows whether they were used again.
            _write_rest(model, step, undated.get(key, rest.clear()), out, sink)
    write_rows(out, sink)


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
    dumped = members(model, None if tags.height else ())
    joined = dumped.filter(pl.col("key").is_not_null()).join(
        tags.select(
            "key",
            "at",
            "owner",
            "prompt",
            "origin",
            "admitted",
            "v_min",
            "v_max",
            "prompt_tokens",
            "response",
            "loss",
            pl.col("source").alias("tag_source"),
        ),
        on="key",
    )
    own = pl.col("owner") == pl.col("attempt")
    start = pl.col("attempt").replace_strict(dict(enumerate(starts)), return_dtype=pl.Int64)
    # Groups not finished when a run was resumed are generated again under the same keys.
    handed = (pl.col("at") <= start) & (pl.col("prompt") == "finished")
    holds = (pl.col("at") <= pl.col("step")) & (
        ((pl.col("at") > start) & own) | handed | ((pl.col("origin") == "batch") & (pl.col("at") == pl.col("step")))
    )
    fakes = [key for key, step in model.steps.items() if step.fake]
    joined = (
        joined.filter(holds)
        .sort("at", "loss", descending=True, nulls_last=True)
        .unique(["attempt", "step", "key"], keep="first", maintain_order=True)
    )
    joined = (
        joined.filter(~pl.struct("attempt", "step").is_in([{"attempt": a, "step": s} for a, s in fakes]))
        if fakes
        else joined
    )
    admitted = pl.col("admitted") - 1 if model.scale == 1 else pl.lit(None, pl.Int64)
    lowest = pl.max_horizontal(pl.col("v_min"), pl.when(admitted <= pl.col("v_max")).then(admitted))
    exact = [{"attempt": a, "step": s, "exact": _exact_lengths(model, step)} for (a, s), step in model.steps.items()]
    flags = pl.DataFrame(exact, schema={"attempt": pl.Int64, "step": pl.Int64, "exact": pl.Boolean})
    joined = joined.join(flags, on=["attempt", "step"], how="left")
    return joined.with_columns(pl.min_horizontal(lowest, "v_max").alias("v_lo")).select(
        pl.col("key").alias("trajectory_id"),
        pl.col("uid").alias("group_id"),
        "attempt",
        "step",
        "v_lo",
        pl.col("v_max").alias("v_hi"),
        *loss_interval("exact", masked=model.settings.masks),
        "prompt_tokens",
        pl.col("tag_source").alias("source"),
        pl.lit(None, pl.Int64).alias("line"),
        pl.col("key").alias("locator"),
        pl.col("v_min").alias("recorded_lo"),
    )


def loss_interval(exact: str | bool, *, masked: bool) -> tuple[pl.Expr, pl.Expr]:
    """Loss tokens of tagged rows: the mask's ones, else the response if ``exact`` (a column or a constant) says so.

    A row has a sampled token at least, which rejection sampling may have ``masked``; its response is the upper limit.
    """
    whole = pl.col(exact) if isinstance(exact, str) else pl.lit(exact)
    least = pl.min_horizontal(pl.lit(0 if masked else 1, pl.Int64), "response")
    return (
        pl.coalesce("loss", pl.when(whole).then("response"), least).alias("tokens_lo"),
        pl.coalesce("loss", "response").alias("tokens_hi"),
    )


def _exact_lengths(model: V1, step: Step) -> bool:
    """Whether every response token is in the loss: no row has several turns, nothing is rejected (section 5 D)."""
    record = step.record
    turns = None if record is None else record["turns"] if record["turns"] is not None else record["turns_fa"]
    return turns is not None and turns <= 2 and not model.settings.masks


def _write_step(model: V1, step: Step, out: dict[str, list[Row]]) -> None:
    record = step.record or {}
    proof = {
        "evidence": "derived",
        "source": record.get("source") or step.source,
        "line": record.get("line"),
        "locator": record.get("locator"),
    }
    waited, spent, logged = (record.get(name) for name in ("waited", "duration", "ts"))  # it logs when it is done
    out["steps"].append(
        {
            "attempt": step.attempt,
            "step": step.number,
            "v_train_lo": step.v_train if model.numbered else 0,
            "v_train_hi": step.v_train,
            "completed": step.completed,
            "updates": _updates(model),
            "waited_us": micros(waited),
            "started": None if logged is None or spent is None else moment(logged - spent),
            "ended": moment(logged),
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


# ------------------------------------------------------------------------------------------ rows without versions


def _write_rest(model: V1, step: Step, undated: pl.DataFrame, out: dict[str, list[Row]], sink: Sink) -> None:
    """Write what a step trained beyond its dated rows, and the sums it states."""
    rest = step.count_lo - step.known
    more = None if step.count_hi is None else step.count_hi - step.count_lo
    record = step.record
    exact_count = more == 0
    lengths = _lengths(model, step)
    if exact_count:
        _constrain_tokens(step, lengths, out)
    if not rest and exact_count:
        return
    if record is None and not exact_count and not step.source:
        sink.diagnose(
            "warning",
            "step-unread",
            f"Step {step.number} was trained, but no dump, checkpoint or record of it is left; how many rows it "
            "had and how old they were is not known.",
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
    newest = (
        None
        if record is None or record["last_min"] is None or step.fake or model.rule != "v1"
        else step.v_train - round(record["last_min"] * model.scale)
    )
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
            ids=undated.filter(pl.col("key").is_not_null()),
            source=record["source"] if record else step.source,
            line=record["line"] if record else None,
            evidence="derived" if all(item.lo == item.hi for item in classes) else "inferred",
        ),
        out,
        sink,
    )


def _constrain_tokens(step: Step, lengths: Lengths, out: dict[str, list[Row]]) -> None:
    """State the response tokens of the step, from a float32 mean: all loss tokens, or a limit to them."""
    mean = None if step.record is None else step.record["response_mean"]
    tokens = (mean or 0) * step.count_lo
    blur = tokens * 1.2e-7
    if mean is None or abs(tokens - round(tokens)) > max(2 * blur, SLACK):
        return
    wide = math.ceil(blur) if blur > 0.2 else 0
    _constrain(step, "trajectories", "eq", step.count_lo, out)
    _constrain(step, "loss_tokens", "le", round(tokens) + wide, out)
    if lengths.exact:
        _constrain(step, "loss_tokens", "ge", round(tokens) - wide, out)


def _constrain(step: Step, quantity: str, op: str, value: float, out: dict[str, list[Row]]) -> None:
    record = step.record or {}
    out["constraints"].append(
        {
            "attempt": step.attempt,
            "step": step.number,
            "quantity": quantity,
            "op": op,
            "value": float(value),
            "unit": None,
            "evidence": "derived",
            "source": record.get("source"),
            "line": record.get("line"),
            "locator": record.get("locator"),
        }
    )


def _lengths(model: V1, step: Step) -> Lengths:
    record = step.record
    masked = model.settings.masks
    if record is None or record["response_max"] is None:
        return Lengths(int(step.spoke), model.settings.count("data.max_response_length"), exact=False, masked=masked)
    exact = _exact_lengths(model, step)
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
        if total is not None and abs(total - round(total)) > SLACK * max(1.0, total / 100):
            total = None
        whole = Spread(
            step.count_lo,
            round((low or 0) * scale),
            round(high * scale),
            None if total is None else round(total),
            has_lo=exact,
            has_hi=exact,
        )
        if not exact:
            whole = Spread(step.count_lo, whole.lo, whole.hi)
        spreads.append(whole.without([lag[at] for lag in step.lags]))
    last, worst = spreads
    if not (last.sound and worst.sound) or last.lo > worst.hi:
        sink.diagnose(
            "warning",
            "metrics-disagree",
            f"The staleness metrics of step {step.number} fit no {rest} rows: its dump, checkpoint and metrics "
            "are not of one launch, or a row is missing.",
            source=record["source"],
            line=record["line"],
            opens="training",
        )
        return [RowClass(rest, 0, step.v_train)], False
    spanless = record["span_max"] == 1
    return row_classes(Spread(rest, last.lo, last.hi, last.total, last.has_lo, last.has_hi), worst), spanless


def _enforced(model: V1) -> int | None:
    return bound_of(model.settings.threshold, model.scale) if model.settings.enforced is not None else None

"""V1 trainers (and what shares their dumps): which global steps there were, and who was trained in each.

Members of a step come from its rollout dump, else from the checkpoint of the step (rows whose prompt is gone), else
from the dumped mini-batches, else only the metrics say how many they were.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from staleness_audit.parser import Sink, Staged
from staleness_parsers.verl import dumps, state
from staleness_parsers.verl.launches import Launch, Row, owner
from staleness_parsers.verl.metrics import most_rows
from staleness_parsers.verl.settings import Settings

SLACK: Final = 1e-3
"""How far a sum rebuilt from a mean may lie from a whole number."""

_KEY: Final = ["attempt", "step"]
MEMBER: Final = {
    "attempt": pl.Int64,
    "step": pl.Int64,
    "key": pl.String,
    "uid": pl.String,
    "source": pl.String,
    "line": pl.Int64,
}
"""A row that a step trained; ``uid`` names its group."""
_DUMPED: Final = {
    "step": pl.Int64,
    "uid": pl.String,
    "source": pl.String,
    "line": pl.Int64,
    "output_chars": pl.UInt32,
    "padding": pl.Boolean,
    "validation": pl.Boolean,
}


@dataclass
class Step:
    """One global step as the files show it. ``count_lo/hi``: rows it trained, padding left out (hi None = open).

    ``known``, ``lags``: how many rows are dated, and their staleness by last and by first version. ``fake``: replayed
    from a cache. ``spoke``: every row has some text, so at least one sampled token. ``named``: every row's key is
    known.
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
    superseded: bool = False
    named: bool = False
    spoke: bool = False

    @property
    def v_train(self) -> int:
        """The weights labelled with the step before (guide section 3, rule 2)."""
        return self.number - 1


@dataclass
class V1:
    """Everything the stations of V1 share.

    ``scale``: see ``_scale``. ``heads``: what dumps say of the steps they are of (``dumps.HEADS``), by ``unit``, with
    the ``attempt``. ``restored``: members of steps whose state is believed instead. ``saved``: the launch (index) whose
    checkpoint of a step is left.
    """

    settings: Settings
    launches: Sequence[Launch]
    scale: int
    rule: str
    staged: Staged
    keys: pl.DataFrame
    heads: pl.DataFrame
    damaged: pl.DataFrame
    steps: dict[tuple[int, int], Step] = field(default_factory=dict)
    restored: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=MEMBER))
    saved: dict[int, int] = field(default_factory=dict)

    @property
    def numbered(self) -> bool:
        """Whether the number of a step surely counts policies: not if nothing says which trainer ran."""
        return self.rule != "other" or self.settings.known


def build(settings: Settings, found: Sequence[Launch], staged: Staged, rule: str, sink: Sink) -> V1:
    """Gather steps and members. ``rule``: ``v1``, or ``oso`` (one step off: every batch is one version old)."""
    keys = staged.scan(state.TABLE).collect() if staged.has(state.TABLE) else pl.DataFrame(schema=state.ROWS)
    heads = _training(staged, settings)
    damaged = _damaged(staged, heads)
    model = V1(settings, found, _scale(settings, found), rule, staged, keys, heads, damaged)
    _place_steps(model)
    _count_members(model, sink)
    return model


def _training(staged: Staged, settings: Settings) -> pl.DataFrame:
    """Return dumps that are no validation's: those have a ``reward``, or lie in the folder configured for it."""
    if not staged.has(dumps.HEADS):
        return pl.DataFrame(schema={**dumps.HEAD_ROWS, "unit": pl.String})
    heads = staged.scan(dumps.HEADS, named=True).collect()
    folder = pl.col("source").str.extract(r"(?:^|/)([^/]+)/[^/]+$")
    keep = ~pl.col("validation").any().over("source")
    named = settings.folder("trainer.validation_data_dir")
    if named is not None and named != settings.folder("trainer.rollout_data_dir"):
        keep &= folder.fill_null("") != named
    return heads.filter(keep)


def _damaged(staged: Staged, heads: pl.DataFrame) -> pl.DataFrame:
    """Find the steps whose rollout dump lacks rows; damage beside validation dumps only is none of training's."""
    if not staged.has(dumps.DAMAGE):
        return pl.DataFrame(schema=dumps.DAMAGE_ROWS)
    folder = pl.col("source").str.extract(r"^(.*?)[^/]*$")
    homes = heads.select(folder.alias("home"))["home"].unique()
    damaged = staged.scan(dumps.DAMAGE).collect()
    return damaged.filter(folder.is_in(homes.implode())) if len(homes) else damaged


def _scale(settings: Settings, found: Sequence[Launch]) -> int:
    """Return k where a global step was one mini-batch, metrics divided by k (until 2026-07-08), else 1."""
    k = settings.updates_per_sync
    if settings.trainer != "separate_async" or k == 1:
        return 1
    batch, mini = settings.count("data.train_batch_size"), settings.count("actor_rollout_ref.actor.ppo_mini_batch_size")
    fractions = any(
        value is not None and not value.is_integer()
        for launch in found
        for record in launch.records.values()
        for value in (record["worst_max"], record["worst_min"], record["last_max"], record["last_min"])
    )
    return k if fractions or (batch is not None and mini is not None and batch != k * mini) else 1


# ------------------------------------------------------------------------------------------------- steps


def _place_steps(model: V1) -> None:
    """List the steps of each launch: every number from its start to the last it proves, then what files show beyond."""
    found, keys = model.launches, model.keys
    last = len(found) - 1
    ends = [launch.reached() for launch in found]
    for index in range(last):
        # What the next launch resumed from, this one or one before it had completed.
        if index == 0 or found[index + 1].start > found[index].start:
            ends[index] = max(ends[index], found[index + 1].start)
    checkpoints = sorted(set(keys.filter(pl.col("origin") == "checkpoint")["step"]))
    filed = sorted({*model.heads["step"], *model.damaged["step"], *checkpoints})
    # Files beyond everything that a log tells of belong to the last launch.
    beyond = [number for number in filed if number > max(ends)]
    ends[last] = max([ends[last], *beyond])
    owners = {number: owner(found, ends, number) for number in filed}
    for number in checkpoints:
        told = [index for index, launch in enumerate(found) if any(row["a"] == number for row in launch.said("saving"))]
        held = told[-1] if told else owners[number]
        model.saved[number] = last if held is None else held
    for index, launch in enumerate(found):
        # Only a console tells whether dumps were made or read back (guide pitfall 17).
        injected = bool(launch.said("injected"))
        for number in range(launch.start + 1, ends[index] + 1):
            sure = model.numbered or not model.steps
            step = Step(index, number, completed=True if sure else None, record=launch.records.get(number))
            step.fake = injected or (not launch.consoled and model.settings.may_replay("rollout_tq", number))
            step.superseded = any(later.resumed is not None and later.resumed < number for later in found[index + 1 :])
            model.steps[index, number] = step
    # The last launch may have trained one more, and died before saying so; mini-batches are dumped before training.
    sampled = set(keys.filter(pl.col("origin") == "batch")["step"])
    for number in sorted({*(filed if last else ()), *sampled}):
        if number == ends[last] + 1:
            model.steps[last, number] = Step(last, number, completed=None, record=None)
    model.heads = model.heads.with_columns(
        pl.col("step").replace_strict(owners, default=None, return_dtype=pl.Int64).fill_null(last).alias("attempt")
    )


def _rows(model: V1, units: Sequence[str]) -> pl.DataFrame:
    """Return the dumped rows of units, all of training."""
    if not units:
        return pl.DataFrame(schema={**_DUMPED, "attempt": pl.Int64})
    rows = model.staged.scan(dumps.TABLE, units=set(units)).select(_DUMPED.keys()).collect()
    owners = dict(model.heads.select("step", "attempt").iter_rows())
    return rows.with_columns(pl.col("step").replace_strict(owners, return_dtype=pl.Int64).alias("attempt"))


def members(model: V1, steps: Collection[int] | None = None) -> pl.DataFrame:
    """Return the rows that these steps, or all, trained, in the shape of ``MEMBER``."""
    heads, restored = model.heads, model.restored
    if steps is not None:
        heads, restored = (frame.filter(pl.col("step").is_in(list(steps))) for frame in (heads, restored))
    rows = dumps.distinct(_rows(model, heads["unit"].unique().to_list()))
    if steps is not None:
        rows = rows.filter(pl.col("step").is_in(list(steps)))
    dumped = rows.select(
        *_KEY,
        pl.col("uid").alias("key"),
        pl.col("uid").str.replace(r"_[^_]*_[^_]*$", ""),
        "source",
        "line",
    )
    return pl.concat([dumped.join(restored, on=_KEY, how="anti"), restored])


def _counts(model: V1) -> dict[tuple[int, int], Row]:
    """Say of each step what its dump holds; a row that several units may have is looked for in theirs."""
    heads = model.heads.filter(pl.col("n") > 0)
    several = pl.len().over(_KEY) > 1
    units = heads.filter(several)["unit"].unique().to_list()
    again = dumps.counted(_rows(model, units), *_KEY).join(heads.filter(several), on=_KEY, how="semi")
    frames = (heads.filter(~several), again)
    return {(row["attempt"], row["step"]): row for frame in frames for row in frame.iter_rows(named=True)}


def _count_members(model: V1, sink: Sink) -> None:
    """Count the rows of each step, and note whose state is believed instead of its dump."""
    counts = _counts(model)
    padded = set(model.heads.filter("padded").select(_KEY).unique().iter_rows())
    broken = set(model.damaged["step"])
    orphans = _orphans(model)
    dumped = members(model, orphans)
    frames = []
    for key, step in model.steps.items():
        count = counts.get(key)
        others = orphans.get(step.number) if model.saved.get(step.number, step.attempt) == step.attempt else None
        if others is not None and (others.is_empty() or _mixed(model, step)):
            others = None
        if count is not None:
            step.source, step.spoke, step.named = count["source"], count["spoke"], count["named"]
            step.count_lo = step.count_hi = count["n"]
        if others is not None and (count is None or step.number in broken or _differ(dumped, others, step, sink)):
            step.count_lo = step.count_hi = others.height
            step.source, step.named = others["source"][0], True
            where = {"attempt": pl.lit(step.attempt, pl.Int64), "step": pl.lit(step.number, pl.Int64)}
            frames.append(others.select(**where, key="key", uid="uid", source="source", line=pl.lit(None, pl.Int64)))
        elif count is None or step.number in broken:
            step.named = False
            _count_from_metrics(model, step, 0 if count is None else count["n"])
        elif key not in padded:
            _check_count(model, step, sink)
    model.restored = pl.concat([model.restored, *frames])


def _differ(dumped: pl.DataFrame, others: pl.DataFrame, step: Step, sink: Sink) -> bool:
    """Whether a step's state names other rows than its rollout dump; the state, a single file, then holds."""
    listed = dumped.filter((pl.col("attempt") == step.attempt) & (pl.col("step") == step.number))
    if not step.named or (listed.height == others.height and listed.join(others, on="key", how="anti").is_empty()):
        return False
    sink.diagnose(
        "warning",
        "members-differ",
        f"The rollout dump of step {step.number} and the state saved with it name other rows; the state is believed.",
        source=step.source,
    )
    return True


def _check_count(model: V1, step: Step, sink: Sink) -> None:
    """Compare the rows of a dump with the tokens that the metrics count: a line may be lost without a trace."""
    most = most_rows(step.record)
    if most is None or model.launches[step.attempt].said("upsampled") or round(most) <= step.count_lo:
        return
    step.count_hi, step.named = round(most), False
    sink.diagnose(
        "warning",
        "rows-missing",
        f"The rollout dump of step {step.number} holds {step.count_lo} rows, its metrics tokens of {step.count_hi}.",
        source=step.source,
    )


def _mixed(model: V1, step: Step) -> bool:
    """Whether orphans of a checkpoint may be of the step that its launch resumed from, because nothing names those."""
    start = model.launches[step.attempt].start
    if not start or start in model.saved or start in set(model.heads["step"]):
        return False
    later = [number for number, held in model.saved.items() if held == step.attempt and number > start]
    return step.number == min(later, default=step.number)


def _orphans(model: V1) -> dict[int, pl.DataFrame]:
    """Rows without their prompt in the checkpoint of a step, or all rows of its mini-batches: what the step trained.

    A row that was an orphan before stays in later checkpoints after a resume; only its first one counts.
    """
    rows = model.keys.filter((pl.col("kind") == "row") & ~pl.col("padding"))
    result: dict[int, pl.DataFrame] = {}
    k = model.settings.updates_per_sync
    for (number,), batches in rows.filter(pl.col("origin") == "batch").group_by("step", maintain_order=True):
        if batches["part"].n_unique() == k or model.settings.trainer == "colocate_async":
            result[int(number)] = batches.unique("key", keep="first", maintain_order=True)
    prompts = model.keys.filter((pl.col("origin") == "checkpoint") & (pl.col("kind") == "prompt")).select("step", "uid")
    orphans = rows.filter(pl.col("origin") == "checkpoint").join(prompts, on=["step", "uid"], how="anti")
    first = orphans.sort("step").unique("key", keep="first", maintain_order=True)
    rows = _rows(model, model.heads["unit"].unique().to_list() if first.height else ())
    dumped = rows.select(pl.col("uid").alias("key"), pl.col("step").alias("dumped")).drop_nulls()
    trained = dumped.group_by("key").agg(pl.col("dumped").min())
    first = first.join(trained, on="key", how="left").filter(
        pl.col("dumped").is_null() | (pl.col("dumped") >= pl.col("step"))
    )
    for (number,), left in first.group_by("step", maintain_order=True):
        result[int(number)] = left
    return result


def _count_from_metrics(model: V1, step: Step, seen: int) -> None:
    """Bound the number of rows by the metrics: all tokens are prompt and response tokens of rows, or of padding.

    ``data.train_batch_size`` groups have a row each at least; what n says is no proof (guide pitfall 10).
    """
    record, settings = step.record, model.settings
    step.count_hi = None
    batch = settings.count(
        "actor_rollout_ref.actor.ppo_mini_batch_size" if model.scale > 1 else "data.train_batch_size"
    )
    short = record is not None and record["stale_old"] is not None  # the old sampler did not refill what it dropped
    step.count_lo = max(seen, 0 if short or model.rule != "v1" else batch or 0)
    most = most_rows(step.record)
    if record is None or most is None:
        return
    launch = model.launches[step.attempt]
    plain = record["origin"] == "console" or launch.consoled
    step.count_hi = math.floor(most * (1 + 1e-5))
    if plain and not launch.said("upsampled") and abs(most - round(most)) < SLACK * max(1.0, most / 100):
        step.count_lo = step.count_hi = round(most)
    step.count_lo = min(step.count_lo, step.count_hi)

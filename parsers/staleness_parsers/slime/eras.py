"""The run in eras: rollouts whose dumps are told of without those of others, for the sake of a watch.

Rows of a rollout's samples are written from its dumps, from their rows in ``Eras.dumps``, and from nothing else; so a
watch writes only those anew of which one has changed (``Sink.write_eras``). Rollouts in which the same trajectory or
group comes are one era, with those between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter
from typing import Any, Final

import polars as pl

from staleness_audit.parser import Era, Sink, Staged
from staleness_parsers.slime import pauses
from staleness_parsers.slime.finish import Model
from staleness_parsers.slime.pauses import BATCH

_ATTEMPT: Final = 1 << 33
"""Numbers of eras of an attempt: more than the 32 bits of a rollout's id."""


@dataclass(frozen=True)
class Eras:
    """What the rows of samples depend on beside their dumps.

    Arguments:
        dumps: per dump what the run says of it (``_facts``), and its ``era``.
        meaning: ``lo`` and ``hi``, the versions of each ``label`` of an ``attempt``; ``oldest``: no call of it holds
            tokens of older labels.
        in_force: the newest label that was in force in the ``attempt`` by ``ended``; None where syncs abort calls.
        keys: of all samples.
    """

    dumps: pl.DataFrame
    meaning: pl.DataFrame
    in_force: pl.DataFrame | None
    keys: pl.Series

    def listed(self) -> list[Era]:
        """Return the eras in order, for a sink."""
        rows: dict[int, list[dict[str, Any]]] = {}
        for row in self.dumps.iter_rows(named=True):
            rows.setdefault(row["era"], []).append(row)
        return [Era(era, sum(row["samples"] or 0 for row in found), repr(found)) for era, found in rows.items()]

    def of(self, numbers: Sequence[int]) -> Eras:
        """Restrict the dumps to those of some eras."""
        return self._where(pl.col("era").is_in(numbers))

    def scan(self, staged: Staged, table: str) -> pl.DataFrame:
        """Return the rows of a staged table that the dumps left, if it was written."""
        return staged.scan(table, units=set(self.dumps["unit"])).collect()

    def several(self) -> Eras:
        """Restrict the dumps to those of eras of several rollouts, among which a trajectory may come again."""
        return self._where(pl.col("rollout").n_unique().over("era") > 1)

    def above(self) -> Eras:
        """Restrict the dumps to those with a label that may be newer than the policy that trained them."""
        return self._where(pl.col("above"))

    def _where(self, condition: pl.Expr) -> Eras:
        return replace(self, dumps=self.dumps.filter(condition))


def divide(model: Model, steps: pl.DataFrame, staged: Staged, told: Mapping[str, str], sink: Sink) -> Eras | None:
    """Divide the dumped rollouts, and gather what their rows depend on; None if there are none.

    ``steps``: as ``rows.write_steps`` returns them; ``told``: by unit, what else its rows depend on.
    """
    if model.names.is_empty():
        return None
    by_step = {(step["attempt"], step["step"]): step for step in steps.iter_rows(named=True)}
    labels = pauses.labels_of(model)
    in_force = pauses.in_force(labels, model, staged, sink)
    oldest = _oldest(model, labels)
    newest = _by_attempt(model, in_force)
    saved = _saved(model)
    facts = []
    for batch in model.batches:
        place = batch["attempt"], batch["rollout"]
        beside = {"saved": saved.get(place), "told": told.get(batch["unit"])}
        facts.append({**_facts(model, batch, by_step[place], newest, oldest), **beside})
    schema: dict[str, Any] = {"saved": pl.Datetime("us", "UTC"), "unit": pl.String, "told": pl.String}
    dumps = pl.DataFrame(facts, schema_overrides=schema, infer_schema_length=None).sort("attempt", "rollout", "root")
    dumps = dumps.with_columns(pl.struct("attempt", "rollout").rle_id().cast(pl.Int64).alias("place"))
    names = with_names(model.names.join(dumps.select(*BATCH, "attempt", "place"), on=BATCH))
    return Eras(_with_eras(dumps, names), _meaning(model, oldest), in_force, names["key"])


def with_names(samples: pl.DataFrame) -> pl.DataFrame:
    """Give ids that are unique in the run: later attempts get a prefix, since ids restart with them."""
    prefix = pl.when(pl.col("attempt") > 0).then(pl.format("{}/", "attempt")).otherwise(pl.lit(""))
    return samples.with_columns(
        (prefix + pl.col("key")).alias("trajectory_id"), (prefix + pl.col("group_key")).alias("group_id")
    )


def _with_eras(dumps: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    """Number the eras by the attempt and rollout they begin with; an ``@`` in a key may be that of a new name."""
    extents = pl.concat(
        names.filter(pl.col(name).is_not_null())
        .group_by(name)
        .agg(pl.col("place").min(), pl.col("place").max().alias("last"))
        .drop(name)
        for name in ("trajectory_id", "group_id")
    ).filter(pl.col("place") < pl.col("last"))
    if len(extents) and names["key"].str.contains("@", literal=True).any():
        extents = names.select(pl.col("place").min(), pl.col("place").max().alias("last"))
    reach = extents.group_by("place").agg(pl.col("last").max())
    dumps = dumps.join(reach, on="place", how="left", maintain_order="left")
    so_far = pl.max_horizontal("place", "last").cum_max().shift(1, fill_value=-1)
    begins = (pl.col("place") > so_far).cum_sum()
    first = pl.col("attempt") * _ATTEMPT + pl.col("rollout")
    return dumps.with_columns(first.first().over(begins).alias("era")).drop("place", "last")


def _facts(
    model: Model,
    batch: Mapping[str, Any],
    step: Mapping[str, Any],
    newest: Mapping[int, Sequence[Sequence[Any]]],
    oldest: Mapping[tuple[int, int], int],
) -> dict[str, Any]:
    """Say which samples of a dump were trained: by its train dump, else as many as the steps took, in order.

    If neither is known: S >= 1 optimizer steps of equal size leave fewer than half of the executions over.
    Beside that: what its labels mean, and which were in force when its calls began.
    """
    process, versions = model.processes[batch["attempt"]], model.versions[batch["attempt"]]
    train = process.trains.get(batch["rollout"])
    count = batch["executions"] or 0
    taken = process.executions(batch["rollout"])
    if taken is not None and train is not None and count - taken >= (train.global_batch or 0):
        taken = None  # a whole global batch is never trimmed: some line is missing
    ranks_missing = bool(model.ranks - set(str(batch["ranks"] or "").split(",")))
    by_dump = bool(batch["has_train"] and batch["matched"])
    certain = count // 2 + 1
    meaning = [(label, versions.by_label.get(label)) for label in batch["own_labels"]]
    since = [oldest[batch["attempt"], label] for label in batch["own_labels"]]
    return {
        "root": batch["root"],
        "rollout": batch["rollout"],
        "attempt": batch["attempt"],
        "unit": batch["unit"],
        "samples": batch["samples"],
        "by_dump": by_dump,
        "maybe_missing": by_dump
        and (not batch["whole"] or ranks_missing)
        and (taken is None or taken > (batch["matched"] or 0)),
        "sure": count if taken is not None and taken >= count else taken if taken is not None else certain,
        "possible": count if taken is None else max(taken, 0),
        "completed": step["completed"],
        "critic_only": step["critic_only"],
        "floor": step["floor"],
        "ceiling": step["ceiling"],
        "v_train": step["v_train_lo"],
        "above": any(known[0] > step["v_train_lo"] for _, known in meaning if known),
        "labels": repr((meaning, since, _window(newest.get(batch["attempt"], ()), batch))),
    }


def _window(newest: Sequence[Sequence[Any]], batch: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """Of the labels in force, those that were while the calls of a dump began."""
    if batch["first_begun"] is None:
        return ()
    first, last = (bisect_right(newest, batch[end], key=itemgetter(0)) for end in ("first_begun", "last_begun"))
    return newest[max(first - 1, 0) : last]


def _by_attempt(model: Model, in_force: pl.DataFrame | None) -> dict[int, list[tuple[Any, ...]]]:
    """Labels in force by attempt, as (since when, label, its versions)."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for row in in_force.iter_rows(named=True) if in_force is not None else ():
        meaning = model.versions[row["attempt"]].by_label.get(row["in_force"])
        found.setdefault(row["attempt"], []).append((row["ended"], row["in_force"], meaning))
    return found


def _oldest(model: Model, labels: pl.DataFrame | None) -> dict[tuple[int, int], int]:
    """Return the oldest label whose tokens a call of each label of an attempt can hold, whatever it lived through.

    Nothing is older than the first label, 1 or "default", nor than the last sync that aborted.
    """
    aborted: dict[int, list[int]] = {}
    for attempt, label in labels.filter("aborted").select("attempt", "label").rows() if labels is not None else ():
        aborted.setdefault(attempt, []).append(label)
    oldest = {}
    for attempt, versions in enumerate(model.versions):
        cuts = sorted(aborted.get(attempt, ()))
        first = 1 if versions.delta is False else 0
        for label in versions.by_label:
            before = bisect_right(cuts, label)
            oldest[attempt, label] = cuts[before - 1] if before else min(label, first)
    return oldest


def _meaning(model: Model, oldest: Mapping[tuple[int, int], int]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {"attempt": attempt, "label": label, "lo": lo, "hi": hi, "oldest": oldest[attempt, label]}
            for attempt, versions in enumerate(model.versions)
            for label, (lo, hi) in versions.by_label.items()
        ],
        schema=dict.fromkeys(("attempt", "label", "lo", "hi", "oldest"), pl.Int64),
    )


def _saved(model: Model) -> dict[tuple[int, int], datetime | None]:
    """When the console says that the batch of a rollout was collected or saved."""
    saved: dict[tuple[int, int], datetime | None] = {}
    for attempt, process in enumerate(model.processes):
        for line in process.lines:
            if line["kind"] in {"saved_rollout", "collected"} and line["rollout"] is not None:
                saved[attempt, line["rollout"]] = model.utc(line["local"])
    return saved

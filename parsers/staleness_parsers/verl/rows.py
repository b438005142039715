"""Rows of the event tables, from trajectories with stamps and from classes of which only numbers are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from staleness_audit.parser import Sink
from staleness_parsers.verl.aggregates import RowClass
from staleness_parsers.verl.launches import Row

STAMPED: Final = {
    "trajectory_id": pl.String,
    "group_id": pl.String,
    "attempt": pl.Int64,
    "step": pl.Int64,
    "v_lo": pl.Int64,
    "v_hi": pl.Int64,
    "tokens_lo": pl.Int64,
    "tokens_hi": pl.Int64,
    "prompt_tokens": pl.Int64,
    "source": pl.String,
    "line": pl.Int64,
    "locator": pl.String,
}
"""A trajectory of which the record says the versions it lies between; ``step`` = where it was trained, null = nowhere.
``tokens_lo/hi``: its tokens in the loss, or sampled where that is all that is known."""


def write_stamped(rows: pl.DataFrame, sink: Sink) -> None:
    """Write trajectories, spans and uses of rows in the shape of ``STAMPED``.

    The last token was sampled under the newest stamp (the last attempt of the last turn set it); the others lie between
    the two stamps, and never go back.
    """
    if rows.is_empty():
        return
    place = ["source", "line", "locator"]
    exact = pl.col("v_lo") == pl.col("v_hi")
    evidence = (
        pl.when(exact & (pl.col("tokens_lo") == pl.col("tokens_hi")))
        .then(pl.lit("recorded"))
        .otherwise(pl.lit("inferred"))
        .alias("evidence")
    )
    sink.write(
        "trajectories",
        rows.select(
            "trajectory_id",
            "group_id",
            "attempt",
            "prompt_tokens",
            *place,
            pl.lit("train").alias("role"),
            pl.lit("recorded").alias("evidence"),
        ),
    )
    splits = (~exact) & (pl.col("tokens_lo") >= 1) & ((pl.col("tokens_hi") > 1) | pl.col("tokens_hi").is_null())
    cut = rows.with_columns(splits.fill_null(value=False).alias("splits"))
    body = cut.select(
        "trajectory_id",
        pl.lit(0, pl.Int64).alias("span_index"),
        *((pl.col(name) - pl.col("splits").cast(pl.Int64)).alias(name) for name in ("tokens_lo", "tokens_hi")),
        pl.col("v_lo").alias("version_lo"),
        pl.col("v_hi").alias("version_hi"),
        pl.lit(value=True).alias("monotone"),
        evidence,
        *place,
    )
    end = cut.filter("splits").select(
        "trajectory_id",
        pl.lit(1, pl.Int64).alias("span_index"),
        pl.lit(1, pl.Int64).alias("tokens_lo"),
        pl.lit(1, pl.Int64).alias("tokens_hi"),
        pl.col("v_hi").alias("version_lo"),
        pl.col("v_hi").alias("version_hi"),
        pl.lit(value=True).alias("monotone"),
        pl.lit("derived").alias("evidence"),
        *place,
    )
    sink.write("spans", pl.concat([body, end]))
    used = rows.filter(pl.col("step").is_not_null())
    if not used.is_empty():
        sink.write(
            "uses", used.select("trajectory_id", "attempt", "step", *place, pl.lit("recorded").alias("evidence"))
        )


@dataclass(frozen=True)
class Lengths:
    """Response lengths of a step's rows: extremes, and whether a response token is surely a loss token (``exact``)."""

    lo: int = 0
    hi: int | None = None
    exact: bool = False
    masked: bool = True

    def of(self, count_lo: int, count_hi: int | None) -> dict[str, int | None]:
        """Return token and loss token intervals of a class of rows."""
        least = count_lo * self.lo
        most = None if self.hi is None or count_hi is None else count_hi * self.hi
        sampled = least if self.exact else min(count_lo, least)
        loss = 0 if self.masked else sampled
        return {"tokens_lo": sampled, "tokens_hi": most, "loss_tokens_lo": loss, "loss_tokens_hi": most}


@dataclass(frozen=True)
class StepClasses:
    """The rows of one step that no record dates: how many, how old, how long, and who they are where that is known.

    ``more``: how many further ones there may be (None = any number). ``newest``: version of the newest token of any
    of them. ``spanless``: every row is of one version. ``ids``: ``key``, ``uid``, ``source``, ``line`` of those that
    are named.
    """

    attempt: int
    step: int
    v_train: int
    classes: Sequence[RowClass]
    lengths: Lengths
    more: int | None = 0
    newest: int | None = None
    spanless: bool = False
    ids: pl.DataFrame | None = None
    source: str | None = None
    line: int | None = None
    evidence: str = "inferred"

    def span(self, item: RowClass, counts: tuple[int, int | None]) -> Row:
        """Return the span of a class: a token is at most as old as its row, and no newer than the newest."""
        newest = self.v_train - item.lo if self.spanless else self.newest
        versions = {"version_lo": max(self.v_train - item.hi, 0), "version_hi": newest}
        return {"span_index": 0, **versions, "monotone": True, **self.lengths.of(*counts), "evidence": self.evidence}

    def use(self, item: RowClass) -> Row:
        """Return the use of a class."""
        known = {"staleness_lo": item.lo, "staleness_hi": item.hi, "evidence": self.evidence}
        return {"attempt": self.attempt, "step": self.step, **known}


def write_classes(step: StepClasses, out: dict[str, list[Row]], sink: Sink) -> None:
    """Write a step's undated rows: by name if all have the same interval, else as anonymous classes."""
    shown = [item for item in step.classes if item.count]
    if len(shown) == 1 and step.ids is not None and shown[0].count == step.ids.height and step.more == 0:
        _write_named(step, shown[0], step.ids, sink)
        return
    group = f"anonymous:{step.attempt}:{step.step}"
    for item in shown:
        _add(step, item, (item.count, item.count), f"{group}:{item.lo}-{item.hi}", out)
    if step.more != 0:
        low, high = min((item.lo for item in shown), default=0), max((item.hi for item in shown), default=step.v_train)
        _add(step, RowClass(0, low, high), (0, step.more), f"{group}:more", out)


def _write_named(step: StepClasses, item: RowClass, ids: pl.DataFrame, sink: Sink) -> None:
    name = pl.col("key").alias("trajectory_id")
    place: list[pl.Expr | str] = [name, "source", "line"]
    fixed = {"attempt": step.attempt, "role": "train", "evidence": "recorded"}
    sink.write("trajectories", ids.select(*place, pl.col("uid").alias("group_id"), **_literals(fixed)))
    sink.write("spans", ids.select(*place, **_literals(step.span(item, (1, 1)))))
    sink.write("uses", ids.select(*place, **_literals(step.use(item))))


def _literals(values: Row) -> dict[str, pl.Expr]:
    return {name: pl.lit(value) for name, value in values.items()}


def _add(
    step: StepClasses, item: RowClass, counts: tuple[int, int | None], name: str, out: dict[str, list[Row]]
) -> None:
    """Add an anonymous class. All of a step share a group id: how they are distributed over its groups is not known."""
    place = {"trajectory_id": name, "source": step.source, "line": step.line}
    many = {"anonymous": True, "multiplicity_lo": counts[0], "multiplicity_hi": counts[1]}
    group = f"anonymous:{step.attempt}:{step.step}"
    fixed = {"group_id": group, "attempt": step.attempt, "role": "train", "evidence": step.evidence}
    out["trajectories"].append({**place, **many, **fixed})
    out["spans"].append({**place, **step.span(item, counts)})
    out["uses"].append({**place, **step.use(item)})


def write_rows(out: dict[str, list[Row]], sink: Sink) -> None:
    """Write collected rows table by table."""
    for table, rows in out.items():
        if rows:
            sink.write(table, pl.DataFrame(rows, infer_schema_length=None))

"""Tokens that were sampled and cut off before the dump (guide pitfall 9).

They are in no dump and were not trained; how many they are, the session's payload says, which keeps its full length.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import polars as pl

from staleness_audit.parser import Sink, Staged

_LAST: Final = 1 << 20
"""Index of the span of cut tokens: after all others of its trajectory."""


def cut_off(members: pl.DataFrame, staged: Staged) -> pl.DataFrame:
    """Return the sampled tokens of truncated sessions in dumps (``lo``, ``hi``) and in their payloads (``.._all``).

    By ``unit`` and ``key`` of their samples.
    """
    names = members.filter("truncated").select("session").unique()
    rows = members.join(names, on="session", how="semi").select("unit", pl.col("session").alias("key")).unique()
    dumped = _totals(staged, "slime_segments", "key", names, set(rows["unit"]))
    whole = _totals(staged, "dressage_spans", "session", names).rename({"session": "key"})
    return rows.join(dumped, on="key", how="left").join(whole, on="key", how="left", suffix="_all")


def write_cut_tokens(samples: pl.DataFrame, truncated: pl.DataFrame, sink: Sink) -> None:
    """Write a masked span for what each truncated trajectory lacks, and its use beside the other spans' uses."""
    cut = (
        samples.filter(~pl.col("critic_only") & pl.col("member").fill_null(True))
        .join(truncated, on=["unit", "key"], maintain_order="left")
        .unique(["trajectory_id", "attempt", "rollout"], keep="first", maintain_order=True)
        .with_columns(
            (pl.col("lo_all") - pl.col("hi")).clip(lower_bound=0).fill_null(0).alias("tokens_lo"),
            (pl.col("hi_all") - pl.col("lo")).clip(lower_bound=0).alias("tokens_hi"),
            pl.lit(_LAST, pl.Int64).alias("span_index"),
            pl.lit(0, pl.Int64).alias("loss_tokens_lo"),
            pl.lit(0, pl.Int64).alias("loss_tokens_hi"),
            pl.col("member").fill_null(False),
            pl.format("samples[{}]", "position").alias("locator"),
            pl.lit("inferred").alias("evidence"),
        )
    )
    shared = ["trajectory_id", "span_index", "loss_tokens_lo", "loss_tokens_hi", "evidence", "source", "locator"]
    spans = cut.unique("trajectory_id", keep="first", maintain_order=True)
    sink.write("spans", spans.select(*shared, "tokens_lo", "tokens_hi", pl.lit(True).alias("monotone")))
    sink.write("uses", cut.select(*shared, "attempt", pl.col("rollout").alias("step"), "member"))


def _totals(
    staged: Staged, table: str, key: str, names: pl.DataFrame, units: Collection[str] | None = None
) -> pl.DataFrame:
    """Sampled tokens by trajectory: ``lo`` and ``hi`` (null where some part has no upper end)."""
    if names.is_empty() or not staged.has(table):
        return pl.DataFrame(schema={key: pl.String, "lo": pl.Int64, "hi": pl.Int64})
    hi = pl.when(pl.col("tokens_hi").is_not_null().all()).then(pl.col("tokens_hi").sum())
    found = staged.scan(table, units=units).join(names.lazy(), left_on=key, right_on="session", how="semi")
    return found.group_by(key).agg(pl.col("tokens_lo").sum().alias("lo"), hi.alias("hi")).collect()

"""Tokens that were sampled and cut off before the dump (guide pitfall 9).

They are in no dump and were not trained; how many they are, the session's payload says, which keeps its full length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from staleness_audit.parser import Sink, Staged

_LAST: Final = 1 << 20
"""Index of the span of cut tokens: after all others of its trajectory."""


def write_cut_tokens(samples: pl.DataFrame, members: list[Mapping[str, Any]], staged: Staged, sink: Sink) -> None:
    """Write a masked span for what each truncated trajectory lacks, and its use beside the other spans' uses."""
    truncated = {member["session"] for member in members if member["truncated"]}
    cut = (
        samples.filter(pl.col("key").is_in(truncated) & ~pl.col("critic_only") & pl.col("member").fill_null(True))
        .unique(["trajectory_id", "attempt", "rollout"], keep="first", maintain_order=True)
        .select("key", "trajectory_id", "attempt", "rollout", "member", "source", "position")
        .join(_totals(staged, "slime_segments", "key"), on="key", how="left")
        .join(
            _totals(staged, "dressage_spans", "session").rename({"session": "key"}), on="key", how="left", suffix="_all"
        )
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


def _totals(staged: Staged, table: str, key: str) -> pl.DataFrame:
    """Sampled tokens by trajectory: ``lo`` and ``hi`` (null where some part has no upper end)."""
    if not staged.has(table):
        return pl.DataFrame(schema={key: pl.String, "lo": pl.Int64, "hi": pl.Int64})
    hi = pl.when(pl.col("tokens_hi").is_not_null().all()).then(pl.col("tokens_hi").sum())
    return staged.scan(table).group_by(key).agg(pl.col("tokens_lo").sum().alias("lo"), hi.alias("hi")).collect()

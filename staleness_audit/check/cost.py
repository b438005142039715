"""What the control cost, and what throughput resulted (DESIGN ``waste``, ``throughput``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from staleness_audit.check.classes import Classes, json_or_null, sum_open
from staleness_audit.check.intervals import UNKNOWN, Interval
from staleness_audit.check.openings import Openings


def waste(classes: Classes, openings: Openings, tokens: Mapping[str, Any], bound: int | None) -> dict[str, Any]:
    """Return the ``waste`` block: share of generated tokens never trained, doomed tokens, needless drops, length bias."""
    distinct, generated = tokens["trained_distinct"], tokens["generated"]
    others_lo = max((generated.lo or 0) - distinct.hi, 0) if distinct.hi is not None else 0
    low = others_lo / (others_lo + distinct.hi) if distinct.hi else (1.0 if distinct.hi == 0 and generated.lo else 0.0)
    others_hi = None if generated.hi is None else max(generated.hi - (distinct.lo or 0), 0)
    high = 1.0 if others_hi is None else (others_hi / (others_hi + distinct.lo) if distinct.lo or others_hi else 0.0)
    nothing = generated.hi == 0
    doomed = needless = None
    if bound is not None:
        doomed = Interval(
            0 if openings.undone else sum(row["tokens_lo"] for row in classes.ages if row["age_lo"] > bound),
            sum_open(row["tokens_hi"] for row in classes.ages if row["age_hi"] is None or row["age_hi"] > bound),
        ).open_above(openings.any or bool({"dropped", "cancelled", "lost"} & openings.unseen))
        needless = Interval(
            0
            if openings.undone
            else sum(
                row["tokens_lo"]
                for row in classes.drops
                if row["certain"] and row["age_hi"] is not None and row["age_hi"] <= bound
            ),
            sum_open(row["tokens_hi"] for row in classes.drops if row["age_lo"] is None or row["age_lo"] <= bound),
        ).open_above(openings.any or "dropped" in openings.unseen)
    return {
        "ratio": (UNKNOWN if nothing else Interval(low, high)).json(),
        "doomed_tokens": json_or_null(doomed, bound),
        "needless_drop_tokens": json_or_null(needless, bound),
        "length_bias": _length_bias(classes.lengths, openings),
    }


def _length_bias(lengths: pl.DataFrame, openings: Openings) -> dict[str, Any]:
    """Trained against all finished trajectories by length; null where the finished ones are not all known."""
    unknown = {"mean_ratio": None, "ks": None, "longest_decile_trained_share": None}
    if openings.any or "dropped" in openings.unseen or not lengths.height or lengths["tokens"].has_nulls():
        return unknown
    finished, trained = int(lengths["finished"].sum()), int(lengths["trained"].sum())
    if not trained:
        return unknown
    mean_finished = float((lengths["tokens"] * lengths["finished"]).sum()) / finished
    mean_trained = float((lengths["tokens"] * lengths["trained"]).sum()) / trained
    by_length = lengths.sort("tokens").with_columns(
        (pl.col("finished").cum_sum() / finished).alias("f"), (pl.col("trained").cum_sum() / trained).alias("g")
    )
    decile = by_length.sort("tokens", descending=True).with_columns(pl.col("finished").cum_sum().alias("count"))
    # The longest tenth, with all trajectories as long as its shortest.
    cut = decile.filter(pl.col("count") >= finished / 10)["tokens"][0]
    longest = decile.filter(pl.col("tokens") >= cut)
    return {
        "mean_ratio": mean_trained / mean_finished if mean_finished else None,
        "ks": float((by_length["f"] - by_length["g"]).abs().max()),  # type: ignore[arg-type]
        "longest_decile_trained_share": int(longest["trained"].sum()) / int(longest["finished"].sum()),
    }


def throughput(classes: Classes, tokens: Mapping[str, Any], violating: Interval | None) -> dict[str, Any]:
    """Return the ``throughput`` block; a rate is null where its count is an interval or times are missing."""
    occupancy = classes.occupancy
    started, ended = occupancy["wall_started"], occupancy["wall_ended"]
    wall = (ended - started) / 1e6 if started is not None and ended is not None and ended > started else None

    def rate(count: Interval | None) -> float | None:
        return count.lo / wall if wall and count is not None and count.is_exact and count.lo is not None else None

    def share(microseconds: float | None) -> float | None:
        return microseconds / 1e6 / wall if wall and microseconds is not None else None

    busy, waiting = share(occupancy["busy_us"]), share(occupancy["waited_us"])
    if busy is not None and waiting is not None and busy + waiting > 1 + 1e-6:
        # Steps whose times are whole seconds, or which count their wait in, do not tell how long the trainer worked.
        busy = None
    in_bound = None
    if violating is not None and violating.is_exact and tokens["trained"].is_exact:
        in_bound = Interval.exact(tokens["trained"].lo - (violating.lo or 0))
    timed = occupancy["trajectories"] and occupancy["timed"] == occupancy["trajectories"]
    return {
        "wall_s": wall,
        "generated_tokens_per_s": rate(tokens["generated"]),
        "trained_tokens_per_s": rate(tokens["trained"]),
        "in_bound_tokens_per_s": rate(in_bound),
        "trainer_busy": busy,
        "trainer_waiting": waiting,
        "mean_in_flight": share(occupancy["in_flight_us"]) if timed else None,
        "mean_queued": share(occupancy["queued_us"]) if timed else None,
    }

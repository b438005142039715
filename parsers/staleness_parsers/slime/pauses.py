"""Whether engine calls may have lived through weight syncs, and through which (guide section 3, item 5).

The pause that aborts ends every call with the label of its tokens. A pause in place lets calls go on, and their label
is then that of their last token only: a call can hold tokens of every label since it began, from the newest that was
surely in force by then, and of none before a sync that aborted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

import polars as pl

from staleness_audit.parser import Sink, Staged
from staleness_parsers.slime import processes as p
from staleness_parsers.slime.finish import OVERLAP, Model

BATCH: Final = ["root", "rollout"]
_TIME: Final = pl.Datetime("us", "UTC")
_SYNCS: Final[dict[str, Any]] = {"attempt": pl.Int64, "label": pl.Int64, "began": _TIME, "over": _TIME}
_LATEST: Final = timedelta(seconds=2)
"""A moment on the console is that much earlier at most: cut to the second, and of another host's clock than calls."""


def labels_of(model: Model) -> pl.DataFrame | None:
    """Return per label of an attempt when its calls began and ended, and what is known of its sync; None without calls.

    ``first_alone``: its first tokens began; ``since``: its sync was over by then; ``early``: tokens began before the
    end of a call of an older label, or before the sync did on the console; ``aborted``: none can have lived through it.
    """
    if model.edges.is_empty():
        return None
    ends = (
        _placed_edges(model)
        .filter(pl.col("last_end").is_not_null())
        .group_by("attempt", "label")
        .agg(pl.col("last_end", "last_abort").max(), pl.col("first_end", "first_alone").min())
        .sort("attempt", "label")
    )
    # It ended all calls: none of its label was made longer, and none of a newer label began before.
    newer = pl.col("first_alone").backward_fill().cum_min(reverse=True).shift(-1).over("attempt")
    whole = pl.col("last_end") - pl.col("last_abort") <= OVERLAP
    whole &= pl.col("last_abort") - newer.fill_null(pl.col("last_abort")) <= OVERLAP
    aborted = ends.filter(whole).select("attempt", pl.col("label") + 1, pl.lit(True).alias("aborted"))
    older_end = pl.col("last_end").cum_max().shift(1).over("attempt")
    early = (older_end - pl.col("first_alone") > OVERLAP) | (pl.col("began") > pl.col("first_alone"))
    labels = (
        ends.join(pl.DataFrame(list(_dated_syncs(model)), _SYNCS), ["attempt", "label"], "left", maintain_order="left")
        .join(aborted, on=["attempt", "label"], how="left", maintain_order="left")
        .with_columns(
            pl.col("aborted").fill_null(False),
            pl.min_horizontal("first_end", "over").alias("since"),
            (early & older_end.is_not_null()).fill_null(False).alias("early"),
        )
    )
    # An interval other than 1 leaves syncs in place between two that abort.
    twice = (pl.col("aborted") & pl.col("aborted").shift(1) & (pl.col("label").diff() == 1)).any().over("attempt")
    in_place = [attempt for attempt, process in enumerate(model.processes) if process.may_pause_in_place]
    silent = [attempt for attempt, process in enumerate(model.processes) if not process.lines]
    # Without a console, aborted calls say that the rollout is not the default one, whose calls all end before a sync.
    may = pl.col("attempt").is_in(in_place) | (
        pl.col("attempt").is_in(silent) & pl.col("aborted").any().over("attempt")
    )
    return labels.with_columns(pl.col("aborted") | (~pl.col("early").any() & (twice.fill_null(False) | ~may)))


def in_force(labels: pl.DataFrame | None, model: Model, staged: Staged, sink: Sink) -> pl.DataFrame | None:
    """Return which label was in force since when, if calls lived through syncs or may have.

    They may where the console's words are those of releases with ``--flush-cache-interval``, or where there is none.
    """
    if labels is None or labels["aborted"].all():
        return None
    if len(late := labels.filter("early")):
        _tell(late.row(0, named=True), model, staged, sink)
    elif len(labels.filter(~pl.col("aborted") & (pl.col("first_alone") < pl.col("since")))):
        sink.diagnose(
            "note",
            "may-pause-in-place",
            "Engine calls began before a weight sync was surely over, and nothing shows that it aborted calls: they "
            "may have lived through it (--flush-cache-interval), so the versions of their tokens are intervals.",
        )
    newest = pl.col("label").cum_max().over("attempt").alias("in_force")
    return labels.sort("since").select("attempt", pl.col("since").alias("ended"), newest)


def _placed_edges(model: Model) -> pl.DataFrame:
    batches = [{name: batch[name] for name in (*BATCH, "attempt", "unit")} for batch in model.batches]
    return model.edges.join(pl.DataFrame(batches, infer_schema_length=None), on=BATCH, maintain_order="left")


def _dated_syncs(model: Model) -> Iterator[dict[str, Any]]:
    """Yield the syncs that made a label, as the console dates them, by the version they share; of runs in place."""
    for attempt, process in enumerate(model.processes):
        if not model.offset_known or not process.may_pause_in_place:
            continue
        labels: dict[int, list[int]] = {}
        for label, (lo, hi) in model.versions[attempt].by_label.items():
            for version in {lo, hi}:
                labels.setdefault(version, []).append(label if lo == hi else -1)
        for sync in process.syncs:
            if sync.after is None or sync.after.rollout is None:
                continue
            label, *others = labels.get(p.policy(process, sync.after.rollout + 1), [-1])
            if label > 0 and not others:
                over = model.utc(sync.ended)
                yield {
                    "attempt": attempt,
                    "label": label,
                    "began": model.utc(sync.started),
                    "over": over + _LATEST if over else None,
                }


def _tell(late: Mapping[str, Any], model: Model, staged: Staged, sink: Sink) -> None:
    """Point at a call that lived through a sync."""
    found = _placed_edges(model).filter(attempt=late["attempt"], label=late["label"], first_alone=late["first_alone"])
    parts = staged.scan("slime_segments", units={found["unit"][0]})
    place = parts.filter(exact=True, label_hi=late["label"], started=late["first_alone"]).collect().row(0, named=True)
    sink.diagnose(
        "warning",
        "paused-in-place",
        "Engine calls lived through weight syncs (--flush-cache-interval is not 1): their label is "
        "only that of their last token, so the versions of their tokens are intervals.",
        source=place["source"],
        locator=f"samples[{place['position']}]",
    )

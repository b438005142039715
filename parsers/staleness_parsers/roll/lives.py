"""All spans in order, each once: the driver's as rows, and those of prompts and trajectories as a frame.

There are few of the driver's, so that the run's steps are cheaply told; the others are only joined and counted, and
become rows where a trajectory is written (``prompts``, ``agents``).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import polars as pl

from staleness_audit.parser import Sink, Staged
from staleness_audit.readers.numbers import MOST_STEPS, around, near, set_back
from staleness_parsers.roll.spans import SCHEMA

_SLACK: Final = 60_000_000_000
"""Nanoseconds by which spans may be exported out of order."""
_ORDER: Final = ["start", "end", "span"]
_PLACE: Final = ["source", "line"]
_OF_STEPS: Final = (
    *("pipeline_step", "stop_server", "model_update", "validation", "val_generate", "val", "rollout", "train"),
    "get_batch",
)


def read_lives(staged: Staged, sink: Sink) -> tuple[list[dict[str, Any]], pl.DataFrame]:
    """Return spans of steps and sampling calls in order, and all others in no order; damaged ones are left out."""
    if not staged.has("otel"):
        return [], pl.DataFrame(schema=SCHEMA)
    spans = _timed(staged.scan("otel").collect(), sink)
    if spans["span"].n_unique() < len(spans):
        spans = spans.sort(*_ORDER, *_PLACE).unique("span", keep="first", maintain_order=True)
    spans = _near(_near(spans, "step", "Step", sink), "prompt", "Prompt", sink)
    turn = (pl.col("name") == "generate") & (pl.col("service") != "driver").fill_null(value=False)
    of_steps = (pl.col("name").is_in(_OF_STEPS) | (pl.col("name") == "generate")) & ~turn
    return in_order(spans.filter(of_steps)), spans.filter(~of_steps)


def in_order(spans: pl.DataFrame) -> list[dict[str, Any]]:
    """Return spans as rows, by time."""
    return spans.sort(_ORDER).to_dicts()


def _timed(spans: pl.DataFrame, sink: Sink) -> pl.DataFrame:
    """Leave out all spans if a clock was set back: nothing but times puts them in order.

    A process exports its spans as they end, so their ends never fall from one line to the next.
    """
    spans = spans.sort(_PLACE, maintain_order=True)
    # What does not fall among the spans of a whole file falls in none of its processes.
    falls = pl.col("end") < pl.col("end").cum_max().over("source") - _SLACK
    if not spans.select(falls.any()).item():
        return spans
    processes: dict[tuple[str, str | None, str | None], list[dict[str, Any]]] = defaultdict(list)
    for row in spans.iter_rows(named=True):
        processes[row["source"], row["service"], row["instance"]].append(row)
    for rows in processes.values():
        place = set_back((row["end"] for row in rows), _SLACK)
        if place is not None:
            message = "From here on spans end earlier than before: the clock was set back, and no span is used."
            row = rows[place]
            sink.diagnose(
                "warning", "clock-set-back", message, source=row["source"], line=row["line"], opens="training"
            )
            return spans.clear()
    return spans


def _near(spans: pl.DataFrame, name: str, what: str, sink: Sink) -> pl.DataFrame:
    """Leave out spans whose number is nowhere near the others' (``near``)."""
    numbers = spans[name].filter((spans[name] >= 0) & (spans[name] < MOST_STEPS)).sort()
    least, most = around(numbers[len(numbers) // 2] if len(numbers) else None, len(numbers))
    if spans[name].is_between(least, most).all():  # nulls are no numbers
        return spans
    near(in_order(spans), name, None, sink, what=what)
    return spans.filter(pl.col(name).is_null() | pl.col(name).is_between(least, most))

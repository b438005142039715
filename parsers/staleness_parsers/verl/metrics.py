"""Metrics of steps: the file logger's JSON lines, TensorBoard, the same records on the console (guide section 5).

One staged row per record, with the columns of ``METRICS``; a restart destroys the earlier run's lines of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.agreement import ANOTHER_RUN, same_figures
from staleness_audit.readers.console import decimal_of, number_of
from staleness_audit.readers.json_lines import BadLine, read_json_lines
from staleness_audit.readers.numbers import MOST, is_figure
from staleness_audit.readers.records import DamagedRecords
from staleness_audit.readers.scalars import read_scalars

TABLE: Final = "verl_metrics"
_OFF: Final = "training/off_policy"
METRICS: Final = {
    "global_step": "training/global_step",
    **{
        f"{short}_{end}": f"{_OFF}/{name}/{end}"
        for short, name in (
            ("worst", "trajectory_staleness_worst"),
            ("last", "trajectory_staleness"),
            ("span", "trajectory_spans"),
        )
        for end in ("mean", "max", "min")
    },
    "stale": f"{_OFF}/evicted_samples",
    "stale_old": f"{_OFF}/dropped_samples",
    "stale_age_max": f"{_OFF}/evicted_samples_staleness/max",
    "failed": "training/rollout_failure/evicted_samples",
    "filtered": "training/filter_groups/evicted_samples",
    "turns": "training/num_turns/max",
    "turns_fa": "num_turns/max",
    **{f"response_{end}": f"response_length/{end}" for end in ("mean", "max", "min")},
    **{f"prompt_{end}": f"prompt_length/{end}" for end in ("mean", "min")},
    "tokens": "perf/total_num_tokens",
    "waited": "timing_s/gen",
    "duration": "timing_s/step",
    "fa_version": "fully_async/count/current_param_version",
    "fa_stale": "fully_async/count/stale_trajectory_processed",
    "fa_dropped": "fully_async/count/dropped_stale_samples",
    "fa_partial": "fully_async/partial/total_partial_num",
    "fa_span": "fully_async/partial/max_partial_span",
    "fa_wait": "fully_async/total_wait_time",
    "fa_period": "fully_async/rollouter/version_time",
}
"""Columns of a staged record: our word and verl's metric (guide section 5, "Metric names" and H)."""

ROWS: Final = {
    "source": pl.String,
    "line": pl.Int64,
    "locator": pl.String,
    "origin": pl.String,
    "pid": pl.Int64,
    "step": pl.Int64,
    "ts": pl.Float64,
    **dict.fromkeys(METRICS, pl.Float64),
}
_SHORT: Final = {name: short for short, name in METRICS.items()}
_JSON: Final = pa.schema(
    [("step", pa.int64()), ("data", pa.struct([(name, pa.float64()) for name in METRICS.values()]))]
)
_RECORD: Final = re.compile(r"\bstep:(-?\d+) - (?=[\w@.]+/[\w@./-]+:)")
_VALUE: Final = re.compile(r"(?:np\.\w+\()?(-?(?:[\d.]+(?:e[-+]?\d+)?|inf|nan))\)?\s*$")


def stage_metrics(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage a piece of a file logger's file."""

    def damaged(bad: BadLine) -> None:
        if bad.cut:
            sink.diagnose(
                "note", "metrics-cut", "The last record of the metrics was cut.", source=piece.source, line=bad.line
            )
            return
        sink.diagnose(
            "error",
            "metrics-damaged",
            f"A record of the metrics cannot be read ({bad.why}), so a step's versions or evictions may be unknown.",
            source=piece.source,
            line=bad.line,
            opens="training",
        )

    for table in read_json_lines(run, piece, _JSON, damaged):
        rows = pl.DataFrame(pl.from_arrow(table))
        for line in rows.filter(pl.col("step").is_null())["line"]:
            damaged(BadLine(line, "it names no step", ""))
        rows = rows.filter(pl.col("step").is_not_null())
        sink.write(
            TABLE,
            rows.select(
                pl.lit(piece.source).alias("source"),
                pl.col("line").cast(pl.Int64),
                pl.lit(None, pl.String).alias("locator"),
                pl.lit("file").alias("origin"),
                pl.lit(None, pl.Int64).alias("pid"),
                pl.col("step"),
                pl.lit(None, pl.Float64).alias("ts"),
                *(_figure(pl.col("data").struct.field(name)).alias(short) for short, name in METRICS.items()),
            ),
        )


def _figure(value: pl.Expr) -> pl.Expr:
    """See ``is_figure``."""
    return pl.when(value.abs() < MOST).then(value)


def stage_events(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage a piece of a TensorBoard event file: its scalars gathered by step; ``joined`` joins the pieces."""
    source = piece.source
    steps: dict[int, dict[str, Any]] = {}
    try:
        for scalar in read_scalars(run, piece):
            if scalar.tag in _SHORT and is_figure(scalar.value):
                row = steps.setdefault(
                    scalar.step, {"step": scalar.step, "ts": scalar.wall_time, "locator": f"record {scalar.record}"}
                )
                row[_SHORT[scalar.tag]] = scalar.value
    except DamagedRecords as damage:
        sink.diagnose(
            "note" if damage.cut else "error",
            "events-damaged",
            f"The event file is unreadable from there on: {damage}.",
            source=source,
            locator=f"record {damage.record}",
            opens=None if damage.cut else "training",
        )
    rows = [{"source": source, "origin": "events", **row} for row in steps.values()]
    if rows:
        sink.write(TABLE, pl.DataFrame(rows, schema=ROWS))


def joined(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make one record of what the pieces of an event file say of a step; the last number counts, as within a piece."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for at, record in enumerate(records):
        key = (record["source"], record["step"]) if record["origin"] == "events" else (at,)
        first = found.setdefault(key, record)
        if first is not record:
            first |= {name: record[name] for name in METRICS if record[name] is not None}
    return list(found.values())


def parse_record(text: str) -> dict[str, Any] | None:
    """Read a console record ``step:4 - key:1.0 - key:np.float64(2.0) ..``; None if the line holds none."""
    record = _RECORD.search(text) if "step:" in text else None
    if record is None:
        return None
    values = {}
    for part in text[record.end() :].split(" - "):
        key, _, printed = part.partition(":")
        if key in _SHORT and (found := _VALUE.match(printed)) and (value := decimal_of(found[1])) is not None:
            values[_SHORT[key]] = value
    return {"step": number_of(record[1]), **values}


def most_rows(record: Mapping[str, Any] | None) -> float | None:
    """All tokens over the mean tokens of a row: the number of rows a record covers, if none of them is padding."""
    if record is None or None in (record["tokens"], record["response_mean"], record["prompt_mean"]):
        return None
    mean = record["response_mean"] + record["prompt_mean"]
    return float(record["tokens"] / mean) if mean > 0 else None


def of_one_run(records: Sequence[dict[str, Any]], sink: Sink) -> list[dict[str, Any]]:
    """Leave out the records of files whose figures of the console's steps are others: they are of another run."""
    figures: dict[tuple[str, str], dict[int, list[Mapping[str, float | None]]]] = {}
    for record in records:
        steps = figures.setdefault((record["origin"], record["source"]), {})
        steps.setdefault(record["step"], []).append({name: record[name] for name in METRICS})
    told = sorted(source for origin, source in figures if origin == "console")
    strange = {
        source
        for (origin, source), steps in figures.items()
        if origin != "console"
        and told
        and not any(same_figures(figures["console", console], steps) for console in told)
    }
    for source in sorted(strange):
        message = ANOTHER_RUN.format(told=told[0])
        sink.diagnose("warning", "several-runs", message, source=source, opens="training")
    return [record for record in records if record["source"] not in strange]

"""Rollout dumps ``<step>.jsonl``: which rows a step trained (guide section 5 C and I).

Rows become a staged table; texts are kept only as what joins need (the prompt itself where fully-async dumps are to be
joined with it). Beside it goes a small one, ``HEADS``, of what a dump says of a step as a whole: it is looked at each
time, the rows only where they are written. ``read_dump`` is importable by refining parsers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.json_lines import BadLine, read_json_lines

TABLE: Final = "verl_rollouts"
HEADS: Final = "verl_dumps"
DAMAGE: Final = "verl_rollout_damage"
SCHEMA: Final = pa.schema(
    [
        ("input", pa.string()),
        ("output", pa.string()),
        ("score", pa.float64()),
        ("step", pa.int64()),
        ("uid", pa.string()),
        ("reward", pa.float64()),
    ]
)
PADDING: Final = r"^pad[0-9a-f]{32}_"
_FARTHEST: Final = 100_000
HEAD_ROWS: Final = {
    "source": pl.String,
    "step": pl.Int64,
    "n": pl.UInt32,
    "spoke": pl.Boolean,
    "named": pl.Boolean,
    "padded": pl.Boolean,
    "validation": pl.Boolean,
    "keyed": pl.Boolean,
}
"""What one unit says of one step: ``n`` rows without padding and copies, whether all of them have some text (``spoke``)
and an id (``named``); and whether any row at all is padding, is validation's, has an id (``keyed``)."""
DAMAGE_ROWS: Final = {"source": pl.String, "step": pl.Int64, "cut": pl.Boolean}


def read_dump(run: RunFiles, piece: Piece, on_bad: object, schema: pa.Schema = SCHEMA) -> Iterator[pl.DataFrame]:
    """Yield the rows of a dump with ``line``; see ``read_json_lines`` for ``on_bad`` (called with each bad line)."""
    for table in read_json_lines(run, piece, schema, on_bad):  # type: ignore[arg-type]
        yield pl.DataFrame(pl.from_arrow(table))


def stage_rollouts(run: RunFiles, piece: Piece, step: int, sink: Sink) -> None:
    """Stage one dump. A cut or bad line is a row that was trained and is not known: it is remembered with its step."""

    def damaged(bad: BadLine) -> None:
        row = {"source": piece.source, "step": step, "cut": bad.cut}
        sink.write(DAMAGE, pl.DataFrame([row], schema=DAMAGE_ROWS))
        sink.diagnose(
            "warning",
            "rollout-row-damaged",
            f"A row of the rollout dump of step {step} {'is cut' if bad.cut else f'cannot be read ({bad.why})'}; "
            "it was trained all the same.",
            source=piece.source,
            line=bad.line,
        )

    told = []
    for rows in read_dump(run, piece, damaged):
        staged = rows.select(
            pl.lit(piece.source).alias("source"),
            "line",
            pl.lit(step, pl.Int64).alias("file_step"),
            # A damaged digit must not ask for a step of its own far beyond the others.
            pl.when((pl.col("step") - step).abs() < _FARTHEST).then("step").otherwise(step).alias("step"),
            pl.col("uid"),
            # Only rows without an id are joined by their prompt.
            pl.when(pl.col("uid").is_null()).then("input").alias("input"),
            pl.col("output").fill_null("").str.len_chars().alias("output_chars"),
            pl.col("score"),
            pl.col("uid").fill_null("").str.contains(PADDING).alias("padding"),
            pl.col("reward").is_not_null().alias("validation"),
        )
        sink.write(TABLE, staged)
        told.append(staged.select("source", "step", "uid", "output_chars", "padding", "validation"))
    if told:
        sink.write(HEADS, counted(pl.concat(told), "step").select(HEAD_ROWS.keys()))
    else:
        sink.write(DAMAGE, pl.DataFrame([{"source": piece.source, "step": step, "cut": True}], schema=DAMAGE_ROWS))


_COUNTED: Final = ~pl.col("padding") & (pl.col("uid").is_null() | pl.col("uid").is_first_distinct())
"""Of the rows of one step: no padding, and of those with an id the first: a line that occurs twice was copied."""


def distinct(rows: pl.DataFrame) -> pl.DataFrame:
    """Leave out padding and copies of rows."""
    return rows.filter(_COUNTED.over("step"))


def counted(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Say of the rows of each step what ``HEAD_ROWS`` holds; ``by``: columns that tell steps."""
    return rows.group_by(*by, maintain_order=True).agg(
        pl.col("source").first(),
        _COUNTED.sum().alias("n"),
        (pl.col("output_chars") > 0).filter(_COUNTED).all().alias("spoke"),
        pl.col("uid").is_not_null().filter(_COUNTED).all().alias("named"),
        pl.col("padding").any().alias("padded"),
        pl.col("validation").any(),
        pl.col("uid").is_not_null().any().alias("keyed"),
    )

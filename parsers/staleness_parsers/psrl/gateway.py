"""The gateway's trace: where every segment of a request was placed, and what it made (guide section 5.1)."""

from __future__ import annotations

from typing import Final

import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.console import ANSI
from staleness_audit.readers.lines import DamagedStream, line_frames

TABLE: Final = "psrl_route"
ROWS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "source": pl.String,
    "line": pl.Int64,
    "ts": pl.Datetime("us", "UTC"),
    "pop": pl.Boolean,
    "request": pl.Int64,
    "prompt": pl.Int64,
    "tag": pl.Int64,
    "prompt_tokens": pl.Int64,
    "tokens": pl.Int64,
    "instance": pl.String,
    "completed": pl.Boolean,
}
_NUMBERS: Final = {
    "request": "request_id",
    "prompt": "prompt_id",
    "tag": "version_tag",
    "prompt_tokens": "prompt_tokens",
    "tokens": "response_tokens",
}
_TIME: Final = r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)"
_PREFIX: Final = r"^\s*(?:\([\w ]+ pid=\d+(?:, *ip=[^)]*)?\)\s?)+"
_LEVEL: Final = r"(?:TRACE|DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL)"
_FOREIGN: Final = (
    rf"^\s*(?:\[?{_LEVEL}\b|Traceback \(most|File \"|"
    rf"\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\S*\s+{_LEVEL}\s+[A-Za-z_][\w:]*: |[.,]\d+ - ))"
)
"""How a line of another process begins that a launcher mixed in: with all that leads up to its message."""
_OWN: Final = r"route_trace|event=|request_id=|prompt_id=|version_tag=|_tokens=|instance=|\x00|\x{FFFD}"
"""Of which a line of the trace has some, however little of it is left."""
_NEEDED: Final = ("request", "tag", "prompt_tokens", "tokens")


def stage(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the placements (``route``) and ends (``pop``) of segments; ``tokens`` accumulate within a call."""
    try:
        for lines in line_frames(run, piece):
            rows = lines.filter(~pl.col("cut") & (pl.col("text").str.strip_chars() != "")).pipe(_rows)
            for (line,) in rows.filter("damaged").select("line").iter_rows():
                _damaged(sink, piece.source, line)
            rows = rows.filter(~pl.col("damaged") & pl.col("event").is_in(["route", "pop"]))
            sink.write(TABLE, rows.with_columns(source=pl.lit(piece.source)).select(*ROWS).cast(pl.Schema(ROWS)))
    except DamagedStream as damage:
        _damaged(sink, piece.source, damage.line)


def _damaged(sink: Sink, source: str, line: int) -> None:
    message = "A line of the gateway's trace can't be read; segments of a request may be missing: restore the file."
    sink.diagnose("warning", "trace-damaged", message, source=source, line=line, opens="training")


def _rows(lines: pl.DataFrame) -> pl.DataFrame:
    """Take the lines apart; ``damaged``: without an event, of a segment without its numbers, or no trace's length."""
    clean = lines.with_columns(pl.col("text").str.replace_all(ANSI, ""))
    clean = clean.filter(pl.col("long") | ~_foreign(pl.col("text")))
    fields = clean.select(
        "line",
        "long",
        ts=pl.col("text").str.extract(_TIME).str.replace("T", " ").str.to_datetime(
            "%Y-%m-%d %H:%M:%S", time_unit="us", time_zone="UTC", strict=False
        ),
        event=_field("event"),
        status=_field("status"),
        route_instance=_field("dst_instance"),
        pop_instance=_field("instance"),
        **{name: _field(field).cast(pl.Int64, strict=False) for name, field in _NUMBERS.items()},
    )  # fmt: skip
    pop = pl.col("event") == "pop"
    segment = pl.col("event").is_in(["route", "pop"])
    incomplete = pl.any_horizontal(pl.col(name).is_null() for name in _NEEDED) | (pop & pl.col("status").is_null())
    return fields.with_columns(
        pop=pop,
        instance=pl.when(pop).then("pop_instance").otherwise("route_instance"),
        completed=pl.when(pop).then(pl.col("status") == "completed"),
        damaged=pl.col("long") | pl.col("event").is_null() | (segment & incomplete),
    )


def _foreign(text: pl.Expr) -> pl.Expr:
    """Whether a line is another process's, and not what is left of one of the trace."""
    told = text.str.replace(_PREFIX, "")
    other = ((told != text) & ~told.str.contains(r"^\s*\d")) | told.str.contains(_FOREIGN)
    return other & ~text.str.contains(_OWN)


def _field(name: str) -> pl.Expr:
    """Return the value of ``name=value`` or ``name="value"``."""
    return pl.col("text").str.extract(rf'(?:^|\s){name}=("[^"]*"|\S+)').str.strip_chars('"')

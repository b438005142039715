"""The gateway's trace: where every segment of a request was placed, and what it made (guide section 5.1)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.console import strip_ansi
from staleness_audit.readers.lines import DamagedStream, numbered_lines

TABLE: Final = "psrl_route"
ROWS: Final = {
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
_FIELD: Final = re.compile(r'(\w+)=("[^"]*"|\S+)')
_NUMBERS: Final = ("request_id", "version_tag", "prompt_tokens", "response_tokens")


def stage(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the placements (``route``) and ends (``pop``) of segments; ``tokens`` accumulate within a call."""
    rows: list[dict[str, object]] = []
    try:
        for line, text, cut in numbered_lines(run, piece):
            row = None if cut or not text.strip() else _row(strip_ansi(text))
            if row:
                rows.append({"source": piece.source, "line": line, **row})
            elif row is None and text.strip() and not cut:
                _damaged(sink, piece.source, line)
    except DamagedStream as damage:
        _damaged(sink, piece.source, damage.line)
    sink.write(TABLE, pl.DataFrame(rows, schema=ROWS))


def _damaged(sink: Sink, source: str, line: int) -> None:
    message = "A line of the gateway's trace can't be read; segments of a request may be missing: restore the file."
    sink.diagnose("warning", "trace-damaged", message, source=source, line=line, opens="training")


def _row(text: str) -> dict[str, object] | None:
    """Return a segment's row, an empty one for other events, None for damage."""
    fields = {name: value.strip('"') for name, value in _FIELD.findall(text)}
    event = fields.get("event")
    if event not in ("route", "pop"):
        return {} if event else None
    pop = event == "pop"
    numbers = [_number(fields.get(name)) for name in _NUMBERS]
    if any(value is None for value in numbers) or (pop and "status" not in fields):
        return None
    return {
        "ts": _time(text),
        "pop": pop,
        "request": numbers[0],
        "prompt": _number(fields.get("prompt_id")),
        "tag": numbers[1],
        "prompt_tokens": numbers[2],
        "tokens": numbers[3],
        "instance": fields.get("instance" if pop else "dst_instance"),
        "completed": fields.get("status") == "completed" if pop else None,
    }


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d+", text) else None


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text[:19]).replace(tzinfo=UTC)
    except ValueError:
        return None

"""OpenTelemetry spans as ROLL's receiver or an external collector writes them (guide section 5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson
import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.lines import DamagedStream, blocks

KEPT: Final = frozenset(
    {
        *("pipeline_step", "stop_server", "model_update", "validation", "val_generate", "val", "generate", "rollout"),
        *("train", "get_batch", "process_new_prompt", "generate_and_reward", "rollout.generate"),
        *("rollout.compute_rewards", "trajectory"),
    }
)
_INTEGERS: Final = {"global_step": "step", "prompt_id": "prompt", "batch_size": "batch", "episode_id": "episode"}
_TEXTS: Final = {"request_id": "request", "traj_id": "traj", "traj_group_id": "traj_group", "group_id": "grp"}
SCHEMA: Final[dict[str, Any]] = {
    "span": pl.String,
    "parent": pl.String,
    "name": pl.String,
    "service": pl.String,
    "instance": pl.String,
    "start": pl.Int64,
    "end": pl.Int64,
    "failed": pl.Boolean,
    **dict.fromkeys(_INTEGERS.values(), pl.Int64),
    **dict.fromkeys(_TEXTS.values(), pl.String),
    "source": pl.String,
    "line": pl.Int64,
}
_READ: Final = {key: (column, True) for key, column in _INTEGERS.items()} | {
    key: (column, False) for key, column in _TEXTS.items()
}
"""Attributes that are kept: their columns, and whether they are whole numbers."""
_NONE: Final = dict.fromkeys((*_INTEGERS.values(), *_TEXTS.values()))
_ROWS: Final = 20_000


def read_spans(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage ``otel``: those that matter, one row each; times in nanoseconds since 1970."""
    rows: list[dict[str, Any]] = []
    try:
        for block in blocks(run, piece):
            lines = block.data.split(b"\n")
            if not block.cut:
                lines.pop()
            for index, text in enumerate(lines):
                line = block.first_line + index
                rows.extend(_line(text, piece.source, line, sink, cut=block.cut and index == len(lines) - 1))
                if len(rows) >= _ROWS:
                    sink.write("otel", pl.DataFrame(rows, schema=SCHEMA))
                    rows.clear()
    except DamagedStream as damage:
        message = f"{damage}; what follows could not be read, restore the file."
        sink.diagnose("error", "damaged-file", message, source=piece.source, line=damage.line, opens="training")
        sink.write("damage", pl.DataFrame({"source": [piece.source], "line": [damage.line]}))
    if rows:
        sink.write("otel", pl.DataFrame(rows, schema=SCHEMA))


def _line(text: bytes, source: str, line: int, sink: Sink, *, cut: bool) -> Iterator[dict[str, Any]]:
    if not text.strip():
        return
    try:
        export = orjson.loads(text)
    except ValueError:
        export = None
    if not isinstance(export, dict):
        if cut:
            sink.diagnose(
                "note", "cut-line", "The last line is cut: its export did not happen.", source=source, line=line
            )
        else:
            _bad(sink, source, line, "is not one JSON object")
        return
    bad = 0
    for resource in _list(export.get("resourceSpans")):
        about = _attributes(_dict(resource).get("resource"))
        for scope in _list(_dict(resource).get("scopeSpans")):
            for span in map(_dict, _list(_dict(scope).get("spans"))):
                if str(span.get("name")) not in KEPT:
                    bad += "name" not in span
                    continue
                row = _span(span, about, source, line)
                bad += row is None
                if row is not None:
                    yield row
    if bad or not isinstance(export.get("resourceSpans"), list):
        _bad(sink, source, line, "holds spans without identity, name or times")


def _bad(sink: Sink, source: str, line: int, why: str) -> None:
    message = f"The line {why}; its spans are missing from the audit, restore the file."
    sink.diagnose("error", "bad-line", message, source=source, line=line, opens="training")
    sink.write("damage", pl.DataFrame({"source": [source], "line": [line]}))


def _span(span: Mapping[str, Any], about: Mapping[str, Any], source: str, line: int) -> dict[str, Any] | None:
    start, end = _whole(span.get("startTimeUnixNano")), _whole(span.get("endTimeUnixNano"))
    if not isinstance(span.get("spanId"), str) or start is None or end is None:
        return None
    parent = span.get("parentSpanId")
    row = {
        **_NONE,
        "span": span["spanId"],
        "parent": parent if isinstance(parent, str) and parent else None,
        "name": span["name"],
        "service": _text(about.get("service.name")),
        "instance": _text(about.get("service.instance.id")),
        "start": start,
        "end": end,
        "failed": _dict(span.get("status")).get("code") in ("STATUS_CODE_ERROR", 2),
        "source": source,
        "line": line,
    }
    for key, value in _attributes(span).items():
        if key in _READ:
            column, whole = _READ[key]
            row[column] = _whole(value) if whole else _text(value)
    return row


def _attributes(holder: object) -> dict[str, Any]:
    found = {}
    for item in _list(_dict(holder).get("attributes")):
        if isinstance(item, dict):
            key, value = item.get("key"), item.get("value")
            if isinstance(key, str) and isinstance(value, dict) and value:
                found[key] = next(iter(value.values()))
    return found


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _whole(value: object) -> int | None:
    """Whole number of 64 bits; the format writes them as text."""
    try:
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
    except ValueError:
        return None
    return number if number is not None and abs(number) < 1 << 63 else None

"""Reading ``metrics.jsonl``: two processes append to one file, and its rows prove steps (guide section 5.2).

A row with ``time/forward_backward`` is the trainer's and proves that its step was trained; one with
``off_policy/dropped`` or ``progress/rollouts`` is the orchestrator's and says that its batch was shipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.lines import DamagedStream, blocks
from staleness_audit.readers.records import DamagedRecords, read_records
from staleness_audit.readers.wandb_files import read_wandb
from staleness_parsers.prime_rl.values import moment, number, whole

ROWS = pa.schema(
    [
        ("source", pa.string()),
        ("line", pa.int64()),
        ("family", pa.string()),
        ("step", pa.int32()),
        ("ts", pa.float64()),
        ("took", pa.float64()),
        ("waited", pa.float64()),
        ("computed", pa.float64()),
        ("dropped", pa.float64()),
        ("recorded_max", pa.float64()),
        ("enforcing", pa.bool_()),
    ]
)
"""Staged ``prime_metrics``: one row per step and process. ``ts`` (epoch seconds) is its end; ``took``, ``waited`` and
``computed`` (seconds) are the step, its wait for data, and its work from the first forward pass to the broadcast.
``enforcing``: an orchestrator row has keys that came with the enforcement of queue time."""

NUMBERS = pa.schema(
    [
        ("source", pa.string()),
        ("line", pa.int64()),
        ("family", pa.string()),
        ("step", pa.int32()),
        ("ts", pa.float64()),
        ("raw_name", pa.string()),
        ("value", pa.float64()),
    ]
)
"""Staged ``prime_numbers``: what the framework says about itself, without the hundreds of keys per environment."""

_UNREPORTED = ("train/", "eval/", "step", "time", "system/")
_WORK = ("time/forward_backward", "time/broadcast_weights", "time/save_ckpt")


def read_metrics(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the rows of a piece of ``metrics.jsonl``."""
    rows: list[dict[str, Any]] = []
    numbers: list[dict[str, Any]] = []
    try:
        for line, data, cut in _lines(run, piece):
            for record in _records(line, data, cut, piece.source, sink):
                _take(record, {"source": piece.source, "line": line}, rows, numbers)
            if len(numbers) >= 1 << 15:
                _write(sink, rows, numbers)
                rows, numbers = [], []
    except DamagedStream as damage:
        sink.diagnose(
            "error",
            "metrics-damaged",
            f"From here on the file cannot be read ({damage}); restore it from a copy.",
            source=piece.source,
            line=damage.line,
            opens="training",
        )
    _write(sink, rows, numbers)


def read_offline(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the same rows from an offline file of W&B; those on its axis of time alone have no step."""
    rows: list[dict[str, Any]] = []
    numbers: list[dict[str, Any]] = []
    try:
        for record in chain.from_iterable(read_records(run, piece, read_wandb)):
            values = {name: value for name, value in record.values.items() if not name.startswith("_")}
            if record.kind == "history":
                values = {"time": record.values.get("_timestamp"), **values}
                _take(values, {"source": piece.source, "line": record.record}, rows, numbers)
    except DamagedRecords as damage:
        severity, opens = ("note", None) if damage.cut else ("error", "training")
        message = f"From here on the file cannot be read ({damage}); restore it from a copy."
        sink.diagnose(severity, "metrics-damaged", message, source=piece.source, opens=opens)  # type: ignore[arg-type]
    _write(sink, rows, numbers)


def _write(sink: Sink, rows: list[dict[str, Any]], numbers: list[dict[str, Any]]) -> None:
    if rows:
        sink.write("prime_metrics", pa.Table.from_pylist(rows, schema=ROWS))
    if numbers:
        sink.write("prime_numbers", pa.Table.from_pylist(numbers, schema=NUMBERS))


def _lines(run: RunFiles, piece: Piece) -> Iterator[tuple[int, bytes, bool]]:
    for block in blocks(run, piece):
        lines = block.data.split(b"\n")
        for index, data in enumerate(lines):
            if data.strip():
                yield block.first_line + index, data, block.cut and index == len(lines) - 1


def _records(line: int, data: bytes, cut: bool, source: str, sink: Sink) -> list[dict[str, Any]]:
    """Objects of a line: one, or several where the two processes wrote at the same moment."""
    try:
        record = orjson.loads(data)
    except orjson.JSONDecodeError:
        several = _several(data)
        if several:
            return several
        if cut:
            sink.diagnose(
                "note", "line-cut", "The last line is cut: the row was never finished.", source=source, line=line
            )
            return []
        record = None
    if isinstance(record, dict):
        return [record]
    # Only the trainer's rows confirm steps: a lost one may have been such a row.
    sink.diagnose(
        "error",
        "metrics-line-damaged",
        "Not a JSON object; restore the line from a copy of the file.",
        source=source,
        line=line,
        opens="training",
    )
    return []


def _several(data: bytes) -> list[dict[str, Any]]:
    """Objects written one behind the other without a line end between them; empty unless they fill the line."""
    decoder = json.JSONDecoder()
    text = data.decode("utf-8", errors="replace").strip()
    found: list[dict[str, Any]] = []
    at = 0
    while at < len(text):
        try:
            record, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        if not isinstance(record, dict):
            return []
        found.append(record)
    return found


def _take(
    record: dict[str, Any], place: dict[str, Any], rows: list[dict[str, Any]], numbers: list[dict[str, Any]]
) -> None:
    step, ts = whole(record.get("step")), moment(record.get("time"))
    if step is None:
        return
    if "time/forward_backward" in record or "time/wait_for_batch" in record:
        family = "trainer"
    elif "off_policy/dropped" in record or "progress/rollouts" in record:
        family = "orchestrator"
    else:
        family = "other"
    common = {**place, "family": family, "step": step, "ts": ts}
    if family != "other":
        work = [number(record.get(key)) for key in _WORK]
        rows.append(
            {
                **common,
                "took": number(record.get("time/step")),
                "waited": number(record.get("time/wait_for_batch")),
                "computed": None if work[0] is None else sum(part or 0.0 for part in work),
                "dropped": number(record.get("off_policy/dropped")),
                "recorded_max": number(record.get("off_policy/max")),
                "enforcing": "off_policy/dropped" in record if family == "orchestrator" else None,
            }
        )
    numbers.extend(
        {**common, "raw_name": key, "value": value}
        for key, raw in record.items()
        if not key.startswith(_UNREPORTED[:2]) and key not in _UNREPORTED and (value := number(raw)) is not None
    )

"""Reading tracker files that are not console text: TensorBoard events, W&B offline files (guide section 5.2)."""

from __future__ import annotations

import math
from typing import Any, Literal

import orjson
import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.errors import OptionalReaderMissing
from staleness_audit.parser import Sink
from staleness_audit.readers.tensorboard import DamagedEvents, read_scalars
from staleness_audit.readers.wandb_files import DamagedWandb, read_wandb
from staleness_parsers.skyrl.console import CONFIGS, NUMBERS, wanted


def read_events(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the scalars of an event file into ``skyrl_numbers``; they are 32-bit floats (pitfall 17)."""
    rows: list[dict[str, Any]] = []
    try:
        for scalar in read_scalars(run, piece.source):
            if wanted(scalar.tag):
                row = {"source": piece.source, "line": scalar.record, "launch": None, "ts": int(scalar.wall_time * 1e6)}
                rows.append({**row, "step": scalar.step, "key": scalar.tag, "value": scalar.value, "form": "single"})
    except OptionalReaderMissing as missing:
        _diagnose(sink, piece, "warning", "tensorboard-not-read", str(missing))
    except DamagedEvents as damage:
        if damage.cut:
            sink.diagnose("note", "cut-record", f"The last record did not happen: {damage}.", source=piece.source)
        else:
            _diagnose(sink, piece, "error", "events-damaged", f"Event file not read to its end: {damage}.")
    _write(sink, rows)


def read_offline(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the history of a W&B file, one row per step of 64-bit numbers, and its configuration."""
    rows: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    try:
        for record in read_wandb(run, piece.source):
            values = record.values
            if record.kind == "config":
                config |= values
                continue
            step, moment = values.get("_step"), values.get("_timestamp")
            if not isinstance(step, int):
                continue
            ts = int(moment * 1e6) if isinstance(moment, int | float) and math.isfinite(moment) else None
            row = {"source": piece.source, "line": record.record, "launch": None, "ts": ts, "step": step}
            for key, value in values.items():
                if wanted(key) and isinstance(value, int | float) and math.isfinite(value):
                    form = "whole" if isinstance(value, int) else "double"
                    rows.append({**row, "key": key, "value": float(value), "form": form})
    except DamagedWandb as damage:
        if damage.cut:
            sink.diagnose("note", "cut-record", f"The last record did not happen: {damage}.", source=piece.source)
        else:
            _diagnose(sink, piece, "error", "wandb-damaged", f"W&B file not read to its end: {damage}.")
    _write(sink, rows)
    if config:
        text = orjson.dumps(config, default=str).decode()
        sink.write("skyrl_configs", pl.DataFrame([{"source": piece.source, "config": text}], schema=CONFIGS))


def _write(sink: Sink, rows: list[dict[str, Any]]) -> None:
    frame = pl.DataFrame(rows, schema={**NUMBERS, "ts": pl.Int64}).with_columns(
        pl.from_epoch("ts", time_unit="us").dt.replace_time_zone("UTC")
    )
    sink.write("skyrl_numbers", frame)


def _diagnose(sink: Sink, piece: Piece, severity: Literal["error", "warning"], code: str, message: str) -> None:
    sink.diagnose(severity, code, message, source=piece.source, opens="training")

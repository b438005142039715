"""Reading tracker files that are not console text: TensorBoard events, W&B offline files (guide section 5.2)."""

from __future__ import annotations

from typing import Any, Literal

import orjson
import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.errors import OptionalReaderMissing
from staleness_audit.parser import Sink
from staleness_audit.readers.config import as_json
from staleness_audit.readers.numbers import is_figure
from staleness_audit.readers.records import CONFIG, DamagedRecords, Text
from staleness_audit.readers.scalars import read_values
from staleness_parsers.skyrl.console import CONFIGS, NUMBERS, wanted


def read_tracker(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the numbers of a piece of a file into ``skyrl_numbers``, and the configuration that W&B keeps.

    TensorBoard's are 32-bit floats (pitfall 17), W&B's 64-bit ones or whole numbers.
    """
    rows: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    single = not run.file(piece.source).name.endswith(".wandb")
    try:
        for item in read_values(run, piece):
            if isinstance(item, Text):
                config |= orjson.loads(item.text) if item.tag == CONFIG else {}
            elif wanted(item.tag) and is_figure(item.value):
                form = "single" if single else "whole" if isinstance(item.value, int) else "double"
                row = {"source": piece.source, "line": item.record, "launch": None, "ts": int(item.wall_time * 1e6)}
                rows.append({**row, "step": item.step, "key": item.tag, "value": float(item.value), "form": form})
    except OptionalReaderMissing as missing:
        _diagnose(sink, piece, "warning", "tensorboard-not-read", str(missing))
    except DamagedRecords as damage:
        if damage.cut:
            sink.diagnose("note", "cut-record", f"The last record did not happen: {damage}.", source=piece.source)
        else:
            code, what = ("events-damaged", "Event file") if single else ("wandb-damaged", "W&B file")
            _diagnose(sink, piece, "error", code, f"{what} not read to its end: {damage}.")
    frame = pl.DataFrame(rows, schema={**NUMBERS, "ts": pl.Int64}).with_columns(
        pl.from_epoch("ts", time_unit="us").dt.replace_time_zone("UTC")
    )
    sink.write("skyrl_numbers", frame)
    if config:
        row = {"source": piece.source, "config": as_json(config)}
        sink.write("skyrl_configs", pl.DataFrame([row], schema=CONFIGS))


def _diagnose(sink: Sink, piece: Piece, severity: Literal["error", "warning"], code: str, message: str) -> None:
    sink.diagnose(severity, code, message, source=piece.source, opens="training")

"""Reading tracker files that are not console text: TensorBoard events (guide section 5.2)."""

from __future__ import annotations

from typing import Any, Literal

import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.errors import OptionalReaderMissing
from staleness_audit.parser import Sink
from staleness_audit.readers.tensorboard import DamagedEvents, read_scalars
from staleness_parsers.skyrl.console import NUMBERS, wanted


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
    frame = pl.DataFrame(rows, schema={**NUMBERS, "ts": pl.Int64}).with_columns(
        pl.from_epoch("ts", time_unit="us").dt.replace_time_zone("UTC")
    )
    sink.write("skyrl_numbers", frame)


def _diagnose(sink: Sink, piece: Piece, severity: Literal["error", "warning"], code: str, message: str) -> None:
    sink.diagnose(severity, code, message, source=piece.source, opens="training")

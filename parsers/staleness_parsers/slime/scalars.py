"""Reading TensorBoard and W&B files into the staged table ``slime_scalars`` (guide section 5.5)."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from staleness_audit.discovery import RunFiles
from staleness_audit.errors import OptionalReaderMissing
from staleness_audit.parser import Sink, Unit
from staleness_audit.readers.numbers import is_figure
from staleness_audit.readers.records import DamagedRecords
from staleness_audit.readers.scalars import read_scalars
from staleness_parsers.slime.console import worth_keeping

SCALARS: Final[dict[str, Any]] = {
    "source": pl.String,
    "record": pl.Int64,
    "tag": pl.String,
    "x": pl.Int64,
    "value": pl.Float64,
    "wall": pl.Datetime("us", "UTC"),
}

STEPS: Final = ("rollout/step", "train/step")
"""Metrics that hold the step in rows of W&B."""


def read_event_file(unit: Unit, run: RunFiles, sink: Sink) -> None:
    """Stage the scalars worth keeping; a missing extra or damage becomes a diagnostic."""
    (piece,) = unit.pieces
    source = piece.source
    rows: list[dict[str, Any]] = []
    try:
        for scalar in read_scalars(run, piece, STEPS):
            if worth_keeping(scalar.tag) and is_figure(scalar.value):
                rows.append(
                    {
                        "source": source,
                        "record": scalar.record,
                        "tag": scalar.tag,
                        "x": scalar.step,
                        "value": scalar.value,
                        "wall": int(scalar.wall_time * 1e6),
                    }
                )
    except OptionalReaderMissing as missing:
        _unread(
            sink, source=source, severity="warning", code="tensorboard-not-read", message=str(missing), locator=None
        )
    except DamagedRecords as damage:
        if damage.cut:
            sink.diagnose("note", "cut-record", f"The last record did not happen: {damage}.", source=source)
        else:
            message = f"Event file not read to its end: {damage}."
            place = f"record {damage.record}"
            _unread(sink, source=source, severity="error", code="events-damaged", message=message, locator=place)
    frame = pl.DataFrame(rows, schema={**SCALARS, "wall": pl.Int64}).with_columns(
        pl.from_epoch("wall", time_unit="us").dt.replace_time_zone("UTC")
    )
    sink.write("slime_scalars", frame)


def _unread(sink: Sink, *, source: str, severity: str, code: str, message: str, locator: str | None) -> None:
    """Leave a diagnostic to ``finish``: what an unread event file hides depends on what else there is."""
    row = {"source": source, "severity": severity, "code": code, "message": message, "locator": locator}
    sink.write("slime_unread", pl.DataFrame([row], schema=dict.fromkeys(row, pl.String)))

"""Reading TensorBoard and W&B files into the staged table ``openrlhf_scalars`` (guide section 5.2)."""

from __future__ import annotations

from typing import Any, Final

import orjson
import polars as pl

from staleness_audit.discovery import RunFiles
from staleness_audit.errors import OptionalReaderMissing
from staleness_audit.parser import Sink, Unit
from staleness_audit.readers.config import as_json
from staleness_audit.readers.numbers import is_figure
from staleness_audit.readers.records import CONFIG, DamagedRecords, Text
from staleness_audit.readers.scalars import read_values
from staleness_parsers.openrlhf.console import KEPT
from staleness_parsers.openrlhf.settings import from_document

SCALARS: Final[dict[str, Any]] = {
    "source": pl.String,
    "record": pl.Int64,
    "tag": pl.String,
    "step": pl.Int64,
    "value": pl.Float64,
    "wall": pl.Float64,
}
"""One row per scalar worth keeping, in the order of writing: ``tag`` without ``train/``, or ``eval``; ``wall`` in s."""

STEPS: Final = ("train/global_step", "eval/global_step")
"""Metrics that hold the step in rows of W&B."""


def read_event_file(unit: Unit, run: RunFiles, sink: Sink) -> None:
    """Stage the scalars; a missing extra or damage is left to ``finish``, as consoles may say the same."""
    (piece,) = unit.pieces
    source = piece.source
    rows: list[tuple[Any, ...]] = []
    try:
        for scalar in read_values(run, piece, STEPS):
            if isinstance(scalar, Text):
                if scalar.tag == CONFIG and (flags := from_document(orjson.loads(scalar.text))):
                    row = {"source": source, "text": as_json(flags)}
                    sink.write("openrlhf_settings", pl.DataFrame([row], schema=dict.fromkeys(row, pl.String)))
                continue
            family, _, key = scalar.tag.partition("/")
            if family == "train" and KEPT.match(key) and is_figure(scalar.value):
                rows.append((source, scalar.record, key, scalar.step, scalar.value, scalar.wall_time))
            elif family == "eval":
                rows.append((source, scalar.record, "eval", scalar.step, scalar.value, scalar.wall_time))
    except OptionalReaderMissing as missing:
        _leave(sink, source, "warning", "tensorboard-not-read", str(missing), None)
    except DamagedRecords as damage:
        if damage.cut:
            sink.diagnose("note", "cut-record", f"The last record did not happen: {damage}.", source=source)
        else:
            message = f"Event file not read to its end: {damage}; restore it."
            _leave(sink, source, "error", "events-damaged", message, f"record {damage.record}")
    sink.write("openrlhf_scalars", pl.DataFrame(rows, schema=SCALARS, orient="row"))


def _leave(sink: Sink, source: str, severity: str, code: str, message: str, locator: str | None) -> None:
    row = {"source": source, "severity": severity, "code": code, "message": message, "locator": locator}
    sink.write("openrlhf_unread", pl.DataFrame([row], schema=dict.fromkeys(row, pl.String)))

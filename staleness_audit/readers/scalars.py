"""Scalar metrics by step, whichever tracker wrote them: TensorBoard event files and offline files of W&B."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from staleness_audit.discovery import Piece, Read, RunFile, RunFiles
from staleness_audit.errors import OptionalReaderMissing
from staleness_audit.readers.config import UnreadableConfig, as_json, within_64_bits
from staleness_audit.readers.numbers import moment
from staleness_audit.readers.records import (
    CONFIG,
    DamagedRecords,
    Records,
    Scalar,
    Text,
    read_records,
    record_pieces,
)
from staleness_audit.readers.tensorboard import event_reader
from staleness_audit.readers.wandb_files import WandbRecord, read_wandb

_OFFLINE = ".wandb"


def scalar_files(run: RunFiles) -> list[RunFile]:
    """Return the event files of a run; where it has none, the offline files of W&B, which hold the same numbers."""
    return run.named(lambda name: "tfevents" in name) or run.named(lambda name: name.endswith(_OFFLINE))


def scalar_pieces(run: RunFiles, source: str, steps: Sequence[str] = ()) -> Iterator[Piece]:
    """Cut a tracker's file, so that a watch reads what was appended; ``steps`` as for ``read_values``."""
    try:
        records = _reader(run, source, steps)
    except OptionalReaderMissing:  # who reads it will say it
        yield run.whole(source)
        return
    yield from record_pieces(run, source, records)


def read_scalars(run: RunFiles, piece: Piece, steps: Sequence[str] = ()) -> Iterator[Scalar]:
    """Yield the scalars of a piece of a tracker's file in the order of writing; all else as ``read_values``."""
    for value in read_values(run, piece, steps):
        if isinstance(value, Scalar):
            yield value


def read_values(run: RunFiles, piece: Piece, steps: Sequence[str] = ()) -> Iterator[Scalar | Text]:
    """Yield the scalars and texts of a piece of a tracker's file in the order of writing.

    ``steps``: metrics that hold the training step in W&B's rows, in order of preference; without one of them the step
    is the one given to the logger. A row without step or time is passed over, and so are values that are no numbers.
    Steps are between 0 and 2**31, times within the calendar; a value may be NaN or infinite.

    Raises:
        OptionalReaderMissing: the ``tensorboard`` extra is not installed, and an event file needs it.
        DamagedRecords: after the last sound record of a cut or damaged file, or before a step or time that is none.
        UnreadableInput: the file cannot be opened.

    """
    for values in read_records(run, piece, _reader(run, piece.source, steps)):
        yield from values


def _reader(run: RunFiles, source: str, steps: Sequence[str]) -> Records[list[Scalar | Text]]:
    """Return what reads a tracker's file and believes no step and no time that is none."""
    records = partial(_read_offline, steps) if run.file(source).name.endswith(_OFFLINE) else event_reader()

    def read_believed(read: Read, at: int, first: int) -> Iterator[list[Scalar | Text]]:
        for values in records(read, at, first):
            for value in values:
                if isinstance(value, Scalar):
                    _believe(value)
            yield values

    return read_believed


def _believe(value: Scalar) -> None:
    if not 0 <= value.step < 1 << 31:
        raise DamagedRecords(f"record {value.record} is of step {value.step}", value.record, cut=False)
    if moment(value.wall_time) is None:
        raise DamagedRecords(f"record {value.record} is of no time", value.record, cut=False)


def _read_offline(steps: Sequence[str], read: Read, at: int, first: int) -> Iterator[list[Scalar | Text]]:
    for rows in read_wandb(read, at, first):
        yield [value for row in rows for value in _told(row, steps)]


def _told(row: WandbRecord, steps: Sequence[str]) -> Iterator[Scalar | Text]:
    if row.kind == "config":
        try:
            text = as_json(row.values)
        except UnreadableConfig as error:
            raise DamagedRecords(f"record {row.record} holds no settings ({error})", row.record, cut=False) from error
        yield Text(CONFIG, text, row.record)
        return
    values = row.values
    step = next((found for name in (*steps, "_step") if (found := _whole(values.get(name))) is not None), None)
    wall = values.get("_timestamp")
    if step is None or not isinstance(wall, int | float) or not abs(wall) < 1e18:
        return
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and not name.startswith("_"):
            number = within_64_bits(value) if isinstance(value, int) else value
            yield Scalar(name, step, number, float(wall), row.record)


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1 << 63:
        return None
    return int(value) if value == int(value) else None

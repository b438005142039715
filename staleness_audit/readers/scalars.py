"""Scalar metrics by step, whichever tracker wrote them: TensorBoard event files and offline files of W&B."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.readers.config import UnreadableConfig, as_json, within_64_bits
from staleness_audit.readers.numbers import moment
from staleness_audit.readers.records import CONFIG, DamagedRecords, Scalar, Text
from staleness_audit.readers.tensorboard import read_events
from staleness_audit.readers.wandb_files import read_wandb

_OFFLINE = ".wandb"


def scalar_files(run: RunFiles) -> list[RunFile]:
    """Return the event files of a run; where it has none, the offline files of W&B, which hold the same numbers."""
    events = [file for file in run.files if "tfevents" in file.name.rsplit("/", 1)[-1]]
    return events or [file for file in run.files if file.name.endswith(_OFFLINE)]


def read_scalars(run: RunFiles, source: str, steps: Sequence[str] = ()) -> Iterator[Scalar]:
    """Yield the scalars of a tracker's file in the order of writing; arguments and errors as ``read_values``."""
    for value in read_values(run, source, steps):
        if isinstance(value, Scalar):
            yield value


def read_values(run: RunFiles, source: str, steps: Sequence[str] = ()) -> Iterator[Scalar | Text]:
    """Yield the scalars and texts of a tracker's file in the order of writing.

    ``steps``: metrics that hold the training step in W&B's rows, in order of preference; without one of them the step
    is the one given to the logger. A row without step or time is passed over, and so are values that are no numbers.
    Steps are between 0 and 2**31, times within the calendar; a value may be NaN or infinite.

    Raises:
        OptionalReaderMissing: the ``tensorboard`` extra is not installed, and an event file needs it.
        DamagedRecords: after the last sound record of a cut or damaged file, or before a step or time that is none.
        UnreadableInput: the file cannot be opened.

    """
    for value in _values(run, source, steps):
        if isinstance(value, Scalar) and not 0 <= value.step < 1 << 31:
            raise DamagedRecords(f"record {value.record} is of step {value.step}", value.record, cut=False)
        if isinstance(value, Scalar) and moment(value.wall_time) is None:
            raise DamagedRecords(f"record {value.record} is of no time", value.record, cut=False)
        yield value


def _values(run: RunFiles, source: str, steps: Sequence[str]) -> Iterator[Scalar | Text]:
    if not run.file(source).name.endswith(_OFFLINE):
        yield from read_events(run, source)
        return
    for record in read_wandb(run, source):
        if record.kind == "config":
            try:
                text = as_json(record.values)
            except UnreadableConfig as error:
                why = f"record {record.record} holds no settings ({error})"
                raise DamagedRecords(why, record.record, cut=False) from error
            yield Text(CONFIG, text, record.record)
            continue
        values = record.values
        step = next((found for name in (*steps, "_step") if (found := _whole(values.get(name))) is not None), None)
        wall = values.get("_timestamp")
        if step is None or not isinstance(wall, int | float) or not abs(wall) < 1e18:
            continue
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and not name.startswith("_"):
                number = within_64_bits(value) if isinstance(value, int) else value
                yield Scalar(name, step, number, float(wall), record.record)


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1 << 63:
        return None
    return int(value) if value == int(value) else None

"""Scalar metrics by step, whichever tracker wrote them: TensorBoard event files and offline files of W&B."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.readers.records import CONFIG, Scalar, Text
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

    Raises:
        OptionalReaderMissing: the ``tensorboard`` extra is not installed, and an event file needs it.
        DamagedRecords: after the last sound record of a cut or damaged file.
        UnreadableInput: the file cannot be opened.

    """
    if not run.file(source).name.endswith(_OFFLINE):
        yield from read_events(run, source)
        return
    for record in read_wandb(run, source):
        if record.kind == "config":
            yield Text(CONFIG, json.dumps(record.values), record.record)
            continue
        values = record.values
        step = next((found for name in (*steps, "_step") if (found := _whole(values.get(name))) is not None), None)
        wall = values.get("_timestamp")
        if step is None or not isinstance(wall, int | float) or not math.isfinite(wall):
            continue
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and not name.startswith("_"):
                yield Scalar(name, step, value, float(wall), record.record)


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else None

"""Rows of the event tables: anonymous classes, steps, drops, what may be left over (guide section 6).

Every class has exactly as many members as are surely alike; what is left of a batch is told by its ``constraints``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from staleness_audit.parser import Sink
from staleness_audit.readers.numbers import micros
from staleness_audit.solve import Range
from staleness_audit.tables import SCHEMAS
from staleness_parsers.skyrl.batches import Batch, Part
from staleness_parsers.skyrl.drops import Drop
from staleness_parsers.skyrl.history import Stretch
from staleness_parsers.skyrl.launches import Step

Row = dict[str, Any]
REPORTED: Final = {
    "async/staleness_max": "step.staleness_max",
    "async/staleness_mean": "step.staleness_trajectory_mean",
}


class Tables:
    """Collects rows by table and writes them."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}

    def add(self, table: str, **row: Any) -> None:
        """Add a row; what follows by the framework's rules is ``derived`` unless said otherwise."""
        self.rows.setdefault(table, []).append({"evidence": "derived", **row})

    def write(self, sink: Sink) -> None:
        """Write all rows; columns nobody filled are null."""
        for table, rows in self.rows.items():
            names = {name for row in rows for name in row}
            ordered = [name for name in SCHEMAS[table].names if name in names]
            cells = {name: [row.get(name) for row in rows] for name in ordered}
            sink.write(table, pl.DataFrame(cells, strict=False))


def write_step(tables: Tables, stretch: Stretch, step: Step, batch: Batch) -> None:
    """Write a step and the classes of its batch."""
    number, attempt = step.number, stretch.attempt
    place = {"source": step.source, "line": step.line}
    v_train = stretch.v_train(number or 0)
    key = {"attempt": attempt, "step": number}
    _step_row(tables, stretch, step, v_train)
    for index, part in enumerate(batch.parts):
        _write_part(tables, key, f"anonymous:{attempt}/{number}/{index}", part, v_train, place)
    if batch.masked[1]:
        name = f"anonymous:{attempt}/{number}/masked"
        _write_class(tables, name, attempt, batch.masked, batch.masked_tokens, (0, v_train[1]), place, masked=True)
        tables.add("uses", trajectory_id=name, **key, loss_tokens_lo=0, loss_tokens_hi=0, **place)
    if step.completed:  # of a step that may not have happened, its classes are all there is to count
        _constrain(tables, key, "trajectories", batch.trajectories, place)
        _constrain(tables, key, "loss_tokens", batch.loss_tokens, place)
    if batch.parts:
        _constrain(tables, key, "staleness_max", (0, batch.parts[0].reported[1]), place)


def _step_row(tables: Tables, stretch: Stretch, step: Step, v_train: Range) -> None:
    started, ended, waited_us = _times(step)
    tables.add(
        "steps",
        attempt=stretch.attempt,
        step=step.number,
        v_train_lo=v_train[0],
        v_train_hi=v_train[1],
        started=started,
        ended=ended,
        waited_us=waited_us,
        updates=stretch.launch.settings.updates or 1,
        completed=step.completed,
        source=step.source,
        line=step.line,
    )


def _times(step: Step) -> tuple[datetime | None, datetime | None, int | None]:
    """Return when the batch was complete, when its weights were out, and how long (microseconds) it was waited for."""
    started, ended = step.at("finished", "wait_for_generation_buffer"), step.at("finished", "step")
    begun = step.at("started", "wait_for_generation_buffer")
    if started and begun:
        return started, ended, int((started - begun).total_seconds() * 1e6)
    waited, whole = step.figure("timing/wait_for_generation_buffer"), step.figure("timing/step")
    if step.phases or not (step.recorded and waited and whole):
        return started, ended, micros(waited.value) if waited else None
    # Without console text: the tracker is told right after the step, or after an evaluation.
    evaluated = step.figure("timing/eval")
    ended = step.recorded - timedelta(seconds=evaluated.value if evaluated else 0.0)
    return ended - timedelta(seconds=max(whole.value - waited.value, 0.0)), ended, micros(waited.value)


def _write_part(tables: Tables, key: Row, name: str, part: Part, v_train: Range, place: Row) -> None:
    count = part.trajectories[0]
    if not count:
        return
    if part.line is not None:
        place = {**place, "line": part.line}
    exact = part.trajectories[1] == count
    tokens = part.tokens if exact else (count if part.trained else 0, part.tokens[1])
    group = None
    if part.groups is not None and part.groups[0]:
        group, (groups, _) = name, part.groups
        members = count // groups if exact and count % groups == 0 else None
        size = {"members_lo": members, "members_hi": members, "multiplicity_lo": groups, "multiplicity_hi": groups}
        tables.add("groups", group_id=group, attempt=key["attempt"], **size, **place)
    versions = (max(v_train[0] - part.reported[1], 0), v_train[1])
    _write_class(tables, name, key["attempt"], (count, count), tokens, versions, place, group=group)
    tables.add(
        "uses",
        trajectory_id=name,
        **key,
        loss_tokens_lo=tokens[0] if part.trained else 0,
        loss_tokens_hi=tokens[1],
        staleness_lo=part.staleness[0],
        staleness_hi=part.staleness[1],
        **place,
    )


def _write_class(
    tables: Tables,
    name: str,
    attempt: int,
    members: Range,
    tokens: tuple[int, int | None],
    versions: Range,
    place: Row,
    *,
    group: str | None = None,
    masked: bool = False,
) -> None:
    """Write an anonymous class and its tokens; versions inside a trajectory never decrease."""
    about = {"trajectory_id": name, **place}
    size = {"multiplicity_lo": members[0], "multiplicity_hi": members[1]}
    tables.add("trajectories", group_id=group, attempt=attempt, role="train", anonymous=True, **size, **about)
    amount: Row = {"tokens_lo": tokens[0], "tokens_hi": tokens[1]}
    if masked:
        amount |= {"loss_tokens_lo": 0, "loss_tokens_hi": 0}
    range_ = {"version_lo": versions[0], "version_hi": versions[1]}
    tables.add("spans", span_index=0, monotone=True, **amount, **range_, **about)


def _constrain(tables: Tables, key: Row, quantity: str, value: tuple[int, int | None], place: Row) -> None:
    low, high = value
    if low == high:
        tables.add("constraints", **key, quantity=quantity, op="eq", value=float(low), **place)
        return
    if low:
        tables.add("constraints", **key, quantity=quantity, op="ge", value=float(low), **place)
    if high is not None:
        tables.add("constraints", **key, quantity=quantity, op="le", value=float(high), **place)


def write_sync(tables: Tables, stretch: Stretch, step: Step) -> None:
    """Write the publication of the weights that a completed step made."""
    if not step.completed:
        return
    low, high = stretch.v_train(step.number or 0)
    mark = step.phases.get(("finished", "sync_weights"))
    tables.add(
        "syncs",
        attempt=stretch.attempt,
        version_lo=low + 1,
        version_hi=high + 1,
        started=step.at("started", "sync_weights"),
        ended=mark["ts"] if mark else None,
        source=step.source,
        line=mark["line"] if mark else step.line,
    )


def write_drop(tables: Tables, drop: Drop, index: int) -> None:
    """Write a class of dropped trajectories; their versions are known only to be no newer than the step's weights."""
    name = f"anonymous:{drop.attempt}/{drop.step}/dropped{index}"
    place = {"source": drop.source, "line": drop.line}
    _write_class(tables, name, drop.attempt, drop.trajectories, drop.tokens, (0, drop.newest), place)
    about = {"kind": "dropped", "reason": drop.reason, "multiplicity": drop.trajectories[1]}
    tables.add("events", trajectory_id=name, attempt=drop.attempt, step=drop.step, seq=drop.line, **about, **place)


def write_left_over(tables: Tables, attempt: int, most: int, newest: int, place: Row) -> None:
    """Write the class of those that may have been running or buffered when a launch ended."""
    _write_class(tables, f"anonymous:{attempt}/left-over", attempt, (0, most), (0, None), (0, newest), place)


def write_reported(tables: Tables, attempt: int, step: Step, samples: int | None) -> None:
    """Write what the framework says about itself under canonical names."""
    found: Mapping[str, tuple[str, float]] = {key: (name, 1.0) for key, name in REPORTED.items()}
    if samples:
        found = {**found, "async/num_groups_dropped": ("step.dropped", float(samples))}
    for key, (name, times) in found.items():
        if figure := step.figure(key):
            where = {"step": step.number, "ts": step.recorded, "source": figure.source, "line": figure.line}
            value = figure.value * times
            tables.add("reported", attempt=attempt, name=name, raw_name=key, value=value, **where, evidence="recorded")

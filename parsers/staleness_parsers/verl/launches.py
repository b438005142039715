"""Launches of the training process, in order: who trained which step, and what it reported about it.

A launch is seen by its console (a new main actor; step numbers that go back) and by its metrics file, which begins
after the step it resumed from because every launch overwrites the file (guide pitfall 5). Steps are the framework's
numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from staleness_audit.discovery import natural

Row = dict[str, Any]


@dataclass
class Launch:
    """One launch: it continued after step ``resumed`` (0 = afresh; None = not known) and reached ``last`` at least.

    ``place``: where its console begins. ``records``: the metrics of each step it trained. ``extra``: records of fully
    async rollouters and validations.
    """

    resumed: int | None = None
    records: dict[int, Row] = field(default_factory=dict)
    extra: list[Row] = field(default_factory=list)
    messages: list[Row] = field(default_factory=list)
    consoled: bool = False
    place: tuple[str, int] = ("", 0)

    def said(self, kind: str) -> list[Row]:
        """Return its console messages of one kind, in order."""
        return [message for message in self.messages if message["kind"] == kind]

    @property
    def start(self) -> int:
        """Step after which it began, 0 where nothing says otherwise."""
        return self.resumed or 0

    def reached(self, kinds: Iterable[str] = ("dumped", "saving")) -> int:
        """Return the last step that it proves complete (``start`` if none)."""
        spoken = [message["a"] for kind in kinds for message in self.said(kind) if message["a"] is not None]
        return max(int(step) for step in (self.start, *self.records, *spoken))


def launches(records: Sequence[Row], messages: Sequence[Row], *, by_version: bool = False) -> list[Launch]:
    """Sort metric records and console messages into launches.

    ``by_version``: records are numbered by parameter version (fully async), which does not tell where a launch began. A
    record without ``global_step`` is not of a step.
    """
    by_source: dict[str, list[Row]] = {}
    for row in [*messages, *(record for record in records if record["origin"] == "console")]:
        by_source.setdefault(row["source"], []).append(row)
    consoles = [
        launch for rows in by_source.values() for launch in _of_console(sorted(rows, key=lambda row: row["line"]))
    ]
    timed = all(_first_time(launch) for launch in consoles)
    found = sorted(consoles, key=lambda launch: (_first_time(launch) if timed else "", _begun(launch), launch.place))
    files: dict[str, list[Row]] = {}
    for record in records:
        if record["origin"] != "console":
            files.setdefault(record["source"], []).append(record)
    for _, rows in sorted(files.items(), key=lambda item: natural(item[0])):
        for launch in _of_file(rows):
            _merge(found, launch)
    if not found:
        return [Launch(resumed=None)]
    if by_version:
        return found
    if found[0].start:
        found.insert(0, Launch(resumed=0))  # what it continues is another launch, of which no log is left
    return found


def owner(found: Sequence[Launch], ends: Sequence[int], step: int) -> int | None:
    """Index of the launch whose files of a step are left: the last one that trained it (it overwrote the others').

    ``ends``: how far each launch came. None: beyond all of them.
    """
    for index in range(len(found) - 1, -1, -1):
        if found[index].start < step <= ends[index]:
            return index
    return None


def _first_time(launch: Launch) -> str:
    return str(min((message["ts"] for message in launch.messages if message["ts"] is not None), default=""))


def _begun(launch: Launch) -> int:
    """Step or version a launch began after, for consoles that print no times."""
    return min((message["a"] for message in launch.said("sync")), default=launch.start)


def _of_console(rows: Sequence[Row]) -> list[Launch]:
    """Cut a console where a new main actor speaks, or where the step of a training record goes back."""
    result: list[Launch] = []
    current, reached, main = Launch(consoled=True), 0, None
    for row in rows:
        training = "kind" not in row and row["global_step"] is not None
        if row.get("kind") == "launch":
            # One that said nothing is whoever started the others, as a log tells that was captured twice.
            again = main is not None and bool(current.records or current.extra or len(current.messages) > 1)
            main = row["pid"]
        else:
            again = training and row["step"] < reached
        if again:
            result.append(current)
            current, reached = Launch(consoled=True), 0
        if "kind" in row:
            current.messages.append(row)
        elif training:
            current.records[row["step"]] = row
            reached = max(reached, row["step"])
        else:
            current.extra.append(row)
    result.append(current)
    for index, launch in enumerate(result):
        launch.place = natural(rows[0]["source"].split(".")[0]), index
        stated = [message["a"] for message in launch.said("resuming")]
        whole = index > 0 or bool(launch.said("launch"))
        launch.resumed = stated[-1] if stated else min(launch.records) - 1 if launch.records and whole else None
    return result


def _of_file(rows: Sequence[Row]) -> list[Launch]:
    """One launch per metrics file, or several where lines of several were put together."""
    result = [Launch()]
    head = True
    for row in sorted(rows, key=lambda row: (row["line"] or 0, row["step"] or 0)):
        launch = result[-1]
        if row["global_step"] is None:
            launch.extra.append(row)
            continue
        step = int(row["step"])
        if step in launch.records:  # an earlier one that is new is only out of order
            result.append(Launch())
            launch, head = result[-1], True
        if head:
            # Only if nothing before the first training record is missing does it tell where the launch began.
            before = len(launch.extra)
            launch.resumed = step - 1 if row["line"] is None or row["line"] <= before + 1 or len(result) > 1 else None
            head = False
        launch.records[step] = row
    return [launch for launch in result if launch.records or launch.extra]


def _merge(found: list[Launch], launch: Launch) -> None:
    """Join a metrics file to the console of the same launch, or put it in its place among the others."""
    first = min(launch.records, default=None)
    for other in reversed(found):
        same_start = first is not None and (
            min(other.records, default=None) == first or (other.resumed is not None and other.resumed == launch.resumed)
        )
        if (
            same_start
            or (first is None and _steps(launch.extra) <= _steps(other.extra or launch.extra))
            or (not other.records and other is found[-1] and first == other.start + 1)
        ):
            other.records = {**other.records, **_filled(launch.records, other.records)}
            other.extra = launch.extra or other.extra  # the file holds all of its launch, a console may begin late
            if other.resumed is None:
                other.resumed = launch.resumed
            return
    overlapping = next((other for other in reversed(found) if set(other.records) & set(launch.records)), None)
    if overlapping is not None and (overlapping.resumed is None or launch.resumed is None):
        overlapping.records.update(_filled(launch.records, overlapping.records))
        return
    at = next((index for index, other in enumerate(found) if launch.start < other.start), len(found))
    found.insert(at, launch)


def _steps(rows: Iterable[Row]) -> set[int]:
    return {row["step"] for row in rows}


def _filled(records: dict[int, Row], others: dict[int, Row]) -> dict[int, Row]:
    """Fill what records of one origin lack from those of the other."""
    return {
        step: {
            key: other if value is None else value
            for (key, value), other in zip(row.items(), others.get(step, row).values(), strict=True)
        }
        if step in others and others[step].keys() == row.keys()
        else row
        for step, row in records.items()
    }

"""Launches of the run, and dates for log lines that carry only a time of day (guide section 6, pitfalls 5 and 15).

The orchestrator writes the metrics row of a batch and then its log line, so each batch ties a line of its log to an
epoch time; the trainer does the same. Time zones differ from UTC by quarters of an hour, so one such pair fixes the
difference between a clock in a log and the epoch exactly: only the log's own resolution of a second remains.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

QUARTER = 900.0
RESOLUTION = 1.0

Row = dict[str, Any]


@dataclass
class Launch:
    """One attempt: where it started from, and everything its logs and rows say, in the order of their files.

    ``after``: epoch seconds of the last row of the attempt before it. ``origin_unknown``: a later attempt that does not
    say where it started from, and left no step either.
    """

    number: int
    resumed_after: int | None = None
    logs: dict[str, list[Row]] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    after: float | None = None
    origin_unknown: bool = False

    def log(self, process: str) -> list[Row]:
        """Messages of one process in the order of its log."""
        return self.logs.get(process, [])

    def metrics(self, family: str) -> list[Row]:
        """Rows of ``metrics.jsonl`` by one process; the last one of a step counts."""
        return list({row["step"]: row for row in self.rows.get(family, [])}.values())

    @property
    def fresh(self) -> bool:
        """Whether its log says that it started from the initial weights."""
        first = any(row["kind"] == "start" and row["number"] <= 1 for row in self.log("trainer"))
        return first or any(row["kind"] == "scratch" for row in self.log("orchestrator"))

    @property
    def shipped(self) -> dict[int, int]:
        """Numbers of traces that its step lines say were shipped."""
        rows = self.log("orchestrator")
        return {row["number"]: row["count"] for row in rows if row["kind"] == "step" and row["count"] is not None}

    @property
    def steps(self) -> set[int]:
        """Steps that its logs or rows name as done."""
        logged = {row["number"] for rows in self.logs.values() for row in rows if row["kind"] == "step"}
        return logged | {row["step"] for rows in self.rows.values() for row in rows}

    @property
    def started(self) -> float | None:
        """Epoch seconds before which nothing of this attempt happened; None if its log has no dates."""
        dated = (row["lo"] for rows in self.logs.values() for row in rows if row.get("lo") is not None)
        first = min(dated, default=None)
        return max((time for time in (first, self.after) if time is not None), default=None)

    @property
    def ended(self) -> float | None:
        """Epoch seconds of the last thing known of it."""
        seen = [row["hi"] for rows in self.logs.values() for row in rows if row.get("hi") is not None]
        seen += [row["ts"] for rows in self.rows.values() for row in rows if row["ts"] is not None]
        return max(seen, default=None)


def launches(log: Sequence[Row], metrics: Sequence[Row], configured_resume: int | None) -> list[Launch]:
    """Sort log messages and metrics rows by attempt, and date the messages.

    Args:
        log: staged ``prime_log`` rows, by source and line.
        metrics: staged ``prime_metrics`` rows in the order of their file.
        configured_resume: ``resume.step`` of the last attempt's configuration, where no log says it.

    """
    found = _from_logs(log)
    from_logs = bool(found)
    if from_logs and all(row["attempt"] is None for row in log):
        found = _with_overwritten(found, metrics)
    if not found:
        found = [Launch(1)]
    _assign_rows(found, metrics, from_logs)
    last = found[-1]
    silent = last.resumed_after is None and not last.fresh
    if silent and configured_resume is not None and all(step > configured_resume for step in last.steps):
        last.resumed_after = configured_resume
    for launch in found:
        _date(launch)
    for launch in found[1:]:
        if launch.resumed_after is None:
            first = min(launch.steps, default=None)
            launch.origin_unknown = first is None and not launch.fresh
            launch.resumed_after = 0 if launch.fresh else None if first is None else first - 1
    for before, launch in pairwise(found):
        launch.after = max(
            (row["ts"] for rows in before.rows.values() for row in rows if row["ts"]), default=before.after
        )
    return found


def _from_logs(log: Iterable[Row]) -> list[Launch]:
    """One launch per attempt folder, or per start message in logs that have no folders."""
    found: dict[int, Launch] = {}
    for row in log:
        number = row["attempt"] if row["attempt"] is not None else row["launch"]
        launch = found.setdefault(number, Launch(number))
        launch.logs.setdefault(row["process"], []).append(row)
        if row["kind"] == "resume":
            launch.resumed_after = row["number"]
        elif (
            row["kind"] == "start"
            and row["process"] == "trainer"
            and launch.resumed_after is None
            and row["number"] > 1
        ):
            launch.resumed_after = row["number"] - 1
    return [found[number] for number in sorted(found)]


def _with_overwritten(found: list[Launch], metrics: Iterable[Row]) -> list[Launch]:
    """Put launches before those of logs without attempt folders that a later launch has written over.

    The shared file shows them: a step of a process that comes again is a later launch's.
    """
    begun, last = 1, dict[str, int]()
    for row in metrics:
        if row["step"] <= last.get(row["family"], -1):
            begun, last = begun + 1, {}
        last[row["family"]] = row["step"]
    lost = max(begun - len(found), 0)
    for launch in found:
        launch.number += lost
    return [*(Launch(number + 1) for number in range(lost)), *found]


def _assign_rows(found: list[Launch], metrics: Iterable[Row], from_logs: bool) -> None:
    """Give each row of the shared file to the attempt that wrote it: a step that comes again begins the next one.

    The launcher keeps the rows of a lost attempt, so steps repeat with a later time. The two processes start anew at
    different rows; a row whose step only a later attempt's log shows is that attempt's already.
    """
    shown = [
        {process: {row["number"] for row in launch.log(process) if row["kind"] == "step"} for process in launch.logs}
        for launch in found
    ]
    at = 0
    last: dict[str, int] = {}
    for row in metrics:
        family, step = row["family"], row["step"]
        if family in last and step <= last[family]:
            if at + 1 == len(found) and not from_logs:
                found.append(Launch(found[-1].number + 1, resumed_after=step - 1))
            if at + 1 < len(found):
                at, last = at + 1, {}
        elif from_logs and step not in shown[at].get(family, {step}):
            later = [index for index in range(at + 1, len(found)) if step in shown[index].get(family, ())]
            if later:
                at, last = later[0], {}
        last[family] = step
        launch = found[at]
        launch.rows.setdefault(family, []).append(row)
        if not from_logs and launch.resumed_after is not None:
            launch.resumed_after = min(launch.resumed_after, step - 1)


def _date(launch: Launch) -> None:
    """Put ``lo`` and ``hi`` (epoch seconds, None if unknown) on each message."""
    for process, rows in launch.logs.items():
        times = {row["step"]: row["ts"] for row in launch.metrics(process) if row["ts"] is not None}
        anchors = sorted(
            (row["clock"], round((times[row["number"]] - row["clock"]) / QUARTER) * QUARTER)
            for row in rows
            if row["kind"] == "step" and not row["dated"] and row["number"] in times
        )
        clocks = [clock for clock, _ in anchors]
        for row in rows:
            row["lo"], row["hi"] = _epoch(row, clocks, [shift for _, shift in anchors])


def _epoch(row: Row, clocks: list[float], shifts: list[float]) -> tuple[float | None, float | None]:
    if row["dated"]:
        return row["clock"], row["clock"]
    if not shifts:
        return None, None
    after = bisect_right(clocks, row["clock"])
    # Between two batches that disagree (a change of summer time, a silent day) both are possible.
    near = {shifts[max(after - 1, 0)], shifts[min(after, len(shifts) - 1)]}
    return row["clock"] + min(near), row["clock"] + max(near) + RESOLUTION


@dataclass
class Apply:
    """Version ``version`` being loaded into the engines: tokens before ``begin`` are older, after ``end`` none is.

    Epoch seconds, each on its safe side; None where the log does not tell.
    """

    version: int
    begin: float | None
    end: float | None
    source: str
    line: int


def applies(launch: Launch) -> list[Apply]:
    """Weight updates of an attempt in their order (guide section 6, "When an apply ended").

    The begin is the last of: counter moved, about to pause, all paused. At level DEBUG the end is logged; otherwise an
    update ended no later than the message that begins the next one.
    """
    found: list[Apply] = []
    for row in launch.log("orchestrator"):
        kind, current = row["kind"], found[-1] if found else None
        if kind in ("sync", "updating"):
            if current is None or current.version != row["number"]:
                if current is not None and current.end is None:
                    current.end = row["hi"]
                found.append(Apply(row["number"], row["lo"], None, row["source"], row["line"]))
            elif current.end is None:
                current.begin = row["lo"]
        elif current is None or current.end is not None:
            continue
        elif kind == "paused":
            current.begin = row["lo"]
        elif kind == "resumed" or (kind == "updated" and row["number"] == current.version):
            current.end = row["hi"]
    return found


def replaced(found: Sequence[Apply]) -> dict[int, int]:
    """Versions and those that the engines had before, as far as the log tells; an update it lost makes them older."""
    return {after.version: before.version for before, after in pairwise(found) if before.version < after.version}

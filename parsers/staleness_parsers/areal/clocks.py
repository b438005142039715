"""Clocks that were set back while a file was written: its lines tell of the same moments twice, so none of its times.

Records stand in an order that is known without times: lines of a console as they were printed, samples of a process by
their ids. Where a later one has an earlier time, no time of the file puts anything into an order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from staleness_audit.parser import Sink
from staleness_audit.readers.numbers import set_back
from staleness_parsers.areal.launches import Row, columns

_SLACK: Final = 60_000_000
"""Microseconds by which lines of several processes that share a file may be out of order."""


def untimed_log(log: Sequence[Row], sink: Sink) -> list[Row]:
    """Take the times from the rows of each console (in the order of its lines) whose clock was set back."""
    kept: list[Row] = []
    for _, group in groupby(log, key=lambda row: row["source"]):
        rows = list(group)
        place = set_back((row["us"] for row in rows), _SLACK)
        if place is not None:
            _tell(sink, rows[place])
            rows = [{**row, "us": None} for row in rows]
        kept += rows
    return kept


def timed_sessions(sessions: Sequence[Row], sink: Sink) -> list[Row]:
    """Leave out the session records of each file (in the order of its lines) whose clock was set back.

    Times are all that tells when their tasks began and ended.
    """
    kept: list[Row] = []
    for _, group in groupby(sessions, key=lambda row: row["source"]):
        rows = list(group)
        if _in_order(rows):
            kept += rows
            continue
        begun = [row for process in _processes(rows) for row in process]
        place = set_back((row["submit"] for row in begun), _SLACK)
        if place is None:
            kept += rows
        else:
            _tell(sink, begun[place])
    return kept


def _in_order(rows: Sequence[Row]) -> bool:
    """Tell at a glance whether a file is of one process whose clock was never set back, as nearly all are."""
    begun = columns(rows, "session", "submit").drop_nulls("session").sort("session")
    times = begun["submit"].drop_nulls()
    return not begun["session"].is_duplicated().any() and not (times < times.cum_max() - _SLACK).any()


def _processes(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the records of each process in the order of their ids, which never come twice in one process."""
    process: dict[int, Row] = {}
    for row in rows:
        known = process.get(row["session"])
        if known is not None and known["submit"] == row["submit"]:
            continue  # the same record, written twice
        if known is not None:
            yield [process[session] for session in sorted(process)]
            process = {}
        if row["session"] is not None:
            process[row["session"]] = row
    yield [process[session] for session in sorted(process)]


def _tell(sink: Sink, row: Row) -> None:
    sink.diagnose(
        "warning",
        "clock-set-back",
        "From here on times are earlier than before: the clock was set back, and no time of this file is used.",
        source=row["source"],
        line=row["line"],
        opens="fates",
    )

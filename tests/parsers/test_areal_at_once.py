"""What is asked of many of AReaL's records at once says what asking them one by one does."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from staleness_parsers.areal.clocks import _SLACK, _in_order, _processes
from staleness_parsers.areal.launches import CLOCKS, Launch, of_other_runs

from staleness_audit.readers.agreement import of_one_run
from staleness_audit.readers.numbers import set_back

SECOND = 1_000_000
MINUTE = 60 * SECOND

RECORDS = st.lists(st.tuples(st.none() | st.integers(0, 5), st.none() | st.integers(0, 4)), max_size=8)
"""Session id, and begin in minutes."""
MOMENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=8)
"""Task, and begin in minutes."""


def test_a_time_lies_in_the_long_evaluation_that_began_before_a_short_one() -> None:
    """From 10 to 100 s and, within that, from 20 to 30 s; each shuts 60 ms before and 20 ms after it."""
    launch = Launch(0, evaluations=[(10 * SECOND, 100 * SECOND), (20 * SECOND, 30 * SECOND)])
    inside = [10 * SECOND - 3 * CLOCKS, 25 * SECOND, 90 * SECOND, 100 * SECOND + CLOCKS]
    outside = [None, 10 * SECOND - 3 * CLOCKS - 1, 100 * SECOND + CLOCKS + 1]
    assert [launch.evaluating(at) for at in inside + outside] == [True] * 4 + [False] * 3


@given(RECORDS)
def test_a_file_in_order_at_a_glance_is_in_order(records: list[tuple[int | None, int | None]]) -> None:
    """Only one process whose clock was never set back passes at a glance; all others are looked at row by row."""
    rows: list[dict[str, Any]] = [
        {"session": session, "submit": None if minute is None else minute * MINUTE} for session, minute in records
    ]
    processes = list(_processes(rows))
    sound = set_back((row["submit"] for process in processes for row in process), _SLACK) is None
    known = [session for session, _ in records if session is not None]
    assert _in_order(rows) == (sound and len(known) == len(set(known)))


@given(MOMENTS, MOMENTS)
def test_records_of_another_run_are_told_as_for_any_file(
    lines: list[tuple[int, int]], samples: list[tuple[int, int]]
) -> None:
    told: dict[int, list[float]] = {}
    dated: dict[int, list[float]] = {}
    for found, moments in ((told, lines), (dated, samples)):
        for task, minute in moments:
            found.setdefault(task, []).append(60.0 * minute)
    log = [{"kind": "submitted", "number": task, "us": minute * MINUTE} for task, minute in lines]
    sessions = [{"source": "s", "task": task, "submit": minute * MINUTE} for task, minute in samples]
    assert of_other_runs(log, [], sessions) == (set() if of_one_run(told, dated) else {"s"})

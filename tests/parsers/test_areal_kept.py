"""What a watch keeps of AReaL's tasks between its looks, and when it makes it anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from staleness_parsers.areal.content import Content, Dialect, Group, contents_of
from staleness_parsers.areal.launches import Launch
from staleness_parsers.areal.settings import Settings
from staleness_parsers.areal.tasks import Task

SECOND = 1_000_000


def look(memory: dict[str, Any], updates: list[int], task: Task, groups: list[Group]) -> Content:
    """What a task holds, at a look that knows of updates after so many seconds."""
    launch = Launch(0, first=0, marks=[at * SECOND for at in updates])
    settings = Settings(samples=1)
    return contents_of(memory, [task], {task.key: groups}, [launch], Dialect(void=True), settings)[task.key]


def versions(content: Content) -> list[tuple[int, int]]:
    return [(span.version_lo, span.version_hi) for sample in content.samples for span in sample.spans]


def test_only_what_may_differ_is_made_anew() -> None:
    """Versions are not trusted: the task ran from second 1 to 5, so updates until then matter, and its rows."""
    memory: dict[str, Any] = {}
    task = Task(0, 0, 7, 0, 1 * SECOND, 5 * SECOND, "accepted", sure=True)
    first = look(memory, [], task, [])
    assert versions(first) == [(0, 0)]
    assert look(memory, [8], replace(task), []) is first  # an update after its end
    assert look(memory, [8, 12], replace(task), []) is first
    assert versions(look(memory, [3, 8, 12], task, [])) == [(0, 1)]  # one within its life, told late
    assert versions(look(memory, [9], task, [])) == [(0, 0)]  # it was another launch's after all
    row = {"source": "rollout/0/7.jsonl", "line": 1, "folder": 0, "task": 7, "sample": 0, "length": 5, "prompt": 2}
    dumped = look(memory, [9], task, [Group([{**row, "tail": 0, "runs": [[0, 3]]}])])
    assert dumped.samples[0].tokens == (3, 3)
    # The same rows, read again because other dumps of their unit are new.
    assert look(memory, [9], task, [Group([{**row, "tail": 0, "runs": [[0, 3]]}])]) is dumped
    assert versions(look(memory, [9], replace(task, ready=10 * SECOND), [])) == [(0, 1)]


def test_a_task_that_has_not_ended_may_see_any_update() -> None:
    memory: dict[str, Any] = {}
    task = Task(0, 0, 7, 0, 1 * SECOND)
    assert [versions(look(memory, updates, task, [])) for updates in ([], [8], [8, 12])] == [
        [(0, 0)],
        [(0, 1)],
        [(0, 2)],
    ]


def test_updates_in_no_order_settle_nothing() -> None:
    memory: dict[str, Any] = {}
    task = Task(0, 0, 7, 0, 1 * SECOND, 5 * SECOND)
    assert look(memory, [9, 8], task, []) is not look(memory, [9, 8], task, [])

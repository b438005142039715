"""Fixtures for all tests: a folder of one's own, and canonical event logs written line by line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

# Commands that tests start are an installed tool's: they need not compile its modules every time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class EventLog:
    """A canonical event log (DESIGN section 6) under the pen; lines are numbered as they are added."""

    def __init__(self, path: Path, **header: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.lines = [
            {"format": "staleness-events/1", "framework": "toy", "writer": "main", "clock": "epoch", **header}
        ]

    def add(self, kind: str, **fields: Any) -> EventLog:
        """Add an event and return the log, so that calls can be chained."""
        self.lines.append({"kind": kind, "n": len(self.lines), **fields})
        return self

    def close(self, *, end: bool = True) -> Path:
        """Write the file, with its end line unless told otherwise, and return the run's directory."""
        if end:
            self.add("end")
        self.path.write_text("".join(json.dumps(line) + "\n" for line in self.lines), encoding="utf-8")
        return self.path.parent


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test in a folder of its own, as caches are made below the current directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def event_log(tmp_path: Path):
    """Return a function that begins an event log: ``event_log("name", bound=1)``."""
    return lambda name, **header: EventLog(tmp_path / name / "run.staleness.jsonl", **header)


def write_two_steps(log: EventLog, *, end: bool = True) -> Path:
    """Write the run most tests look at, closed properly unless ``end=False``.

    Trajectory ``a`` has 10 tokens of v0 and is trained by step 0, from v0: staleness 0. Trajectory ``b`` has 10 tokens
    of v0 and is trained by step 2, from v2: staleness 2, of which it gained none in flight and 2 in the queue.
    So bound 2 is kept, and bound 1 is broken by one trajectory with 10 tokens.
    """
    for trajectory, moment in (("a", 100.0), ("b", 101.0)):
        log.add("admitted", trajectory_id=trajectory, group_id=f"group-{trajectory}", version=0, ts=moment)
        log.add("span", trajectory_id=trajectory, tokens=10, version=0, ts=moment + 2)
        log.add("finished", trajectory_id=trajectory, ts=moment + 2)
        log.add("enqueued", trajectory_id=trajectory, ts=moment + 2)
    log.add("trained", trajectory_id="a", step=0, ts=104.0)
    log.add("step", step=0, version=0, started=104.0, ended=106.0)
    log.add("trained", trajectory_id="b", step=2, ts=110.0)
    log.add("step", step=2, version=2, started=110.0, ended=112.0)
    return log.close(end=end)


@pytest.fixture
def two_step_run(event_log):
    """Return a function that writes the run of ``write_two_steps`` under a name."""
    return lambda name, *, end=True, **header: write_two_steps(event_log(name, **header), end=end)

"""What the framework says of itself beside what was rebuilt: agreement, and the reason where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.cases import SAMPLES

from staleness_audit.api import audit
from staleness_audit.check.intervals import Interval
from staleness_audit.check.reported import compare

FIGURES = [("sample/*_max", "taken at the pull"), ("sample/*", "something else")]


def row(value: float | None, raw_name: str = "sample/staleness_max") -> dict[str, Any]:
    place = {"source": "x.log", "line": 3}
    return {"attempt": None, "step": 1, "name": "step.staleness_max", "raw_name": raw_name, "value": value, **place}


def judged(value: float | None, rebuilt: Interval | None, raw_name: str = "sample/staleness_max") -> tuple[Any, Any]:
    per_step = {} if rebuilt is None else {(0, 1): {"step.staleness_max": rebuilt}}
    (found,) = compare([row(value, raw_name)], per_step, FIGURES)
    return found["agrees"], found["explanation"]


def test_only_a_disagreement_is_explained() -> None:
    assert judged(2, Interval(2, 2)) == (True, None)
    assert judged(2, Interval(1, 3)) == (None, None)
    assert judged(2, None) == (None, None)
    assert judged(None, Interval(1, 1)) == (None, None)
    assert judged(1, Interval(2, 3)) == (False, "taken at the pull")
    assert judged(1, Interval(2, None), "sample/mean") == (False, "something else")
    assert judged(1, Interval(2, 2), "another") == (False, None)


def test_a_mean_printed_with_four_digits_agrees() -> None:
    assert judged(0.3333, Interval(1 / 3, 1 / 3)) == (True, None)
    assert judged(0.33, Interval(1 / 3, 1 / 3)) == (False, "taken at the pull")


@pytest.mark.parametrize(
    ("case", "raw_name", "steps", "because"),
    [
        # Samples pulled at a staleness of 0 and 1 for steps 2 and 3, trained one version later.
        ("trl/fixed-ga1-s1", "sample/staleness_max", {2: (0, 1), 3: (1, 2), 6: (1, 2)}, "pulled from the queue"),
        # Weights are pushed every third step; the lag in steps does not see it.
        ("roll/rlvr_freq3", "math_rule/scheduler/off_policy_ratio", {2: (1, 2), 3: (1, 3)}, "every F-th step"),
    ],
)
def test_disagreements_of_recorded_runs_are_explained(
    case: str, raw_name: str, steps: dict[int, tuple[int, int]], because: str, tmp_path: Path
) -> None:
    rows = audit(SAMPLES / case / "run", tables=tmp_path).data["reported"]
    differing = {row["step"]: row for row in rows if row["raw_name"] == raw_name and row["agrees"] is False}
    for step, (reported, rebuilt) in steps.items():
        assert differing[step]["reported"] == reported
        assert differing[step]["rebuilt"] == {"lo": rebuilt, "hi": rebuilt}
        assert because in differing[step]["explanation"]


def test_parts_of_staleness_and_fates_are_compared(tmp_path: Path) -> None:
    rows = audit(SAMPLES / "dryrun/areal-bimodal/run", tables=tmp_path).data["reported"]
    newest = [row for row in rows if row["name"] == "step.in_queue_max"]
    assert newest and all(row["agrees"] for row in newest)  # the staleness of the newest token is its wait
    cancelled = [row for row in rows if row["name"] == "step.cancelled"]
    assert cancelled and all(row["agrees"] is not None for row in cancelled)

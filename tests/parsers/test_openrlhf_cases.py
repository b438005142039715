"""Genuine runs of OpenRLHF against what their engine recorded (`truth.jsonl`), step by step."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from staleness_audit.api import audit

CASES = Path(__file__).parents[2] / "sample_traces" / "openrlhf"
NAMES = ["q1-normal", "q1-oversample", "q2-eval-filter"]


def truth(case: str) -> dict[int, list[int]]:
    """Per step, the staleness of each of its trajectories."""
    ages = defaultdict(list)
    for line in (CASES / case / "truth.jsonl").read_text().splitlines():
        life = json.loads(line)
        for use in life["trained"]:
            ages[use["step"]].append(use["v_train"] - min(version for version, *_ in life["segments"]))
    return ages


@pytest.mark.parametrize("case", NAMES)
def test_every_step_holds_what_was_trained(case):
    data = audit(CASES / case / "run", 1).data
    ages = truth(case)
    assert {row["step"] for row in data["per_step"]} == set(ages)
    for row in data["per_step"]:
        assert row["trajectories"] == {"lo": len(ages[row["step"]]), "hi": len(ages[row["step"]])}
        assert row["max"]["lo"] <= max(ages[row["step"]]) <= row["max"]["hi"]


@pytest.mark.parametrize(("case", "limit"), [("q1-normal", 1), ("q1-oversample", 4), ("q2-eval-filter", 2)])
def test_the_limit_of_the_mechanism_is_found(case, limit):
    assert audit(CASES / case / "run", 1).data["guarantee"]["limit"] == limit


def test_scalars_alone_leave_the_upper_end_to_the_bound_of_the_queue(tmp_path):
    shutil.copytree(CASES / "q1-normal" / "run" / "tb", tmp_path / "run" / "tb")
    data = audit(tmp_path / "run", 1).data
    # Without the number of passes over the data, calls may have made more than the batch they were for.
    assert (data["verdict"], data["staleness"]["max"]) == ("inconclusive", {"lo": 0, "hi": 9})
    assert data["trajectories"]["trained"] == {"lo": 60, "hi": 60}


def test_filtered_groups_of_the_console(tmp_path):
    data = audit(CASES / "q2-eval-filter" / "run", 2).data
    assert data["trajectories"]["dropped"] == {"filtered": {"lo": 4, "hi": 4}}

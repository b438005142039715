"""Genuine runs of PSRL against what their engine recorded (`truth.jsonl`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from staleness_audit.api import audit

CASES = Path(__file__).parents[2] / "sample_traces" / "psrl"


@pytest.mark.parametrize("case", ["default-level", "multiturn-violation"])
def test_every_step_encloses_what_was_trained(case):
    ages: dict[int, list[int]] = {}
    for line in (CASES / case / "truth.jsonl").read_text().splitlines():
        life = json.loads(line)
        oldest = min((version for version, _, loss in life["segments"] if loss), default=0)
        for use in life["trained"]:
            ages.setdefault(use["step"], []).append(use["v_train"] - oldest)
    data = audit(CASES / case / "run", 1).data
    assert {row["step"] for row in data["per_step"]} == set(ages)
    for row in data["per_step"]:
        assert row["trajectories"] == {"lo": len(ages[row["step"]]), "hi": len(ages[row["step"]])}
        assert row["max"]["lo"] <= max(ages[row["step"]]) <= row["max"]["hi"]


def test_without_the_trace_a_multi_turn_violation_stays_possible(tmp_path):
    shutil.copytree(CASES / "multiturn-violation" / "run", tmp_path / "run")
    (tmp_path / "run/psrl_logs/route_trace.log").unlink()
    data = audit(tmp_path / "run").data
    assert data["verdict"] == "inconclusive"
    assert data["staleness"]["max"]["hi"] >= 2
    assert data["tokens"]["trained"] == {"lo": 684, "hi": 684}


def test_without_generations_the_inventory_finds_the_violation(tmp_path):
    shutil.copytree(CASES / "multiturn-violation" / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run/rollout_data")
    data = audit(tmp_path / "run").data
    assert data["verdict"] == "fail"
    assert data["violations"]["tokens"] == {"lo": 60, "hi": 60}

"""Recorded runs of the simulator: the rebuilt tables agree with what its engine knows about every token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dryrun_logs import fates, findings, rows, spans, steps, tables

CASES = Path(__file__).parents[2] / "sample_traces" / "dryrun"


def truth(case: str) -> dict[str, dict]:
    lines = (json.loads(line) for line in (CASES / case / "truth.jsonl").open())
    return {str(line["trajectory"]): line for line in lines}


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir()))
def test_every_span_use_and_fate_is_the_engines(case):
    data = tables(CASES / case / "run")
    known = truth(case)
    assert findings(data) == set()
    assert {row["trajectory_id"] for row in rows(data, "trajectories")} == set(known)
    made = {rid: [(tokens, "v", version) for version, tokens, _ in life["segments"]] for rid, life in known.items()}
    assert spans(data) == {rid: segments for rid, segments in made.items() if segments}
    completed = steps(data)
    used = {
        row["trajectory_id"]: [{"step": row["step"], "v_train": row["step"] - 1}]
        for row in rows(data, "uses")
        if completed[row["attempt"], row["step"]]
    }
    assert used == {rid: life["trained"] for rid, life in known.items() if life["trained"]}
    ended = {
        rid: [(life["fate"], life["reason"])] for rid, life in known.items() if life["fate"] in {"dropped", "cancelled"}
    }
    assert fates(data) == ended


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir()))
def test_the_bound_and_the_totals_are_the_expected_ones(case):
    expected = json.loads((CASES / case / "expected.json").read_text())
    data = tables(CASES / case / "run")
    completed = {key for key, value in steps(data).items() if value}
    used = [row for row in rows(data, "uses") if (row["attempt"], row["step"]) in completed]
    assert len(completed) == expected["truth"]["steps"]
    assert len(used) == expected["truth"]["trained_trajectories"]
    assert sum(row["loss_tokens_lo"] for row in used) == expected["truth"]["trained_tokens"]
    assert max(row["staleness_hi"] for row in used) == expected["truth"]["max_staleness"]
    configured = None if expected["argv"] else expected["bound"]
    assert data.facts["bound"]["value"] == configured

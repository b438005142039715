"""SkyRL on recorded runs: every rank of age against what the engine noted while it made the tokens."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from staleness_audit.api import audit

CASES = Path(__file__).parents[2] / "sample_traces" / "skyrl"


@pytest.mark.parametrize("name", ["straggler_s1", "straggler_s1_tb", "eval_window_s2"])
def test_the_ith_oldest_of_every_step_is_as_old_as_its_class_says(name: str, tmp_path: Path) -> None:
    true: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for line in (CASES / name / "truth.jsonl").read_text().splitlines():
        life = json.loads(line)
        if life["role"] == "train":
            for use in life["trained"]:
                oldest = min(version for version, _, loss in life["segments"] if loss)
                true[use["step"]].append((use["v_train"] - oldest, sum(loss for _, _, loss in life["segments"])))
    result = audit(CASES / name / "run", tables=tmp_path)
    classes: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in result.table("uses").collect().sort("staleness_hi", "staleness_lo", descending=True).to_dicts():
        classes[row["step"]].append(row)
    sizes = {row["trajectory_id"]: row["multiplicity_lo"] for row in result.table("trajectories").collect().to_dicts()}
    assert set(classes) == set(true)
    for step, rows in classes.items():
        ages = sorted((age for age, _ in true[step]), reverse=True)
        intervals = [
            (row["staleness_lo"], row["staleness_hi"]) for row in rows for _ in range(sizes[row["trajectory_id"]])
        ]
        assert len(ages) == len(intervals)
        assert all(low <= age <= high for age, (low, high) in zip(ages, intervals, strict=True))
        tokens = sum(tokens for _, tokens in true[step])
        assert sum(row["loss_tokens_lo"] for row in rows) <= tokens <= sum(row["loss_tokens_hi"] for row in rows)


def test_what_the_framework_says_of_itself_agrees(tmp_path: Path) -> None:
    # Its ages may be one too high and its mean with them, which the rebuilt intervals allow.
    data = audit(CASES / "straggler_s1" / "run", tables=tmp_path).data
    assert len(data["reported"]) == 24
    assert not [row for row in data["reported"] if row["agrees"] is False]

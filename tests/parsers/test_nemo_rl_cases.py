"""NeMo-RL on recorded runs, against what the engine noted while it made the tokens."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from nemo_rl_run import Audited

from staleness_audit.api import audit

CASES = Path(__file__).parents[2] / "sample_traces" / "nemo-rl"
NAMES = ("sc-ready_first-violation", "sc-windowed-strict", "async_grpo-age1-drain")


@pytest.fixture(scope="module", params=NAMES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Audited, dict[str, Any]]:
    folder = CASES / request.param
    expected = json.loads((folder / "expected.json").read_text())
    data = audit(folder / "run", expected["bound"], tables=tmp_path_factory.mktemp("tables")).data
    return request.param, Audited(data), expected


Case = tuple[str, Audited, dict[str, Any]]


def test_the_verdict_is_right(case: Case) -> None:
    _, audited, expected = case
    assert audited["verdict"] in expected["verdict"]


def test_the_truth_lies_in_every_interval(case: Case) -> None:
    name, audited, _ = case
    tokens: Counter[int] = Counter()
    trajectories: Counter[int] = Counter()
    for line in (CASES / name / "truth.jsonl").read_text().splitlines():
        life = json.loads(line)
        for use in life["trained"]:
            ages = {use["v_train"] - version: loss for version, _, loss in life["segments"] if loss}
            tokens.update(ages)
            trajectories[max(ages)] += 1
    for of, truth in (("token", tokens), ("trajectory", trajectories)):
        found = audited.histogram(of)
        assert set(truth) <= set(found)
        for staleness, (low, high) in found.items():
            assert low <= truth[staleness] <= (float("inf") if high is None else high)


def test_what_the_logs_determine_is_exact(case: Case) -> None:
    name, audited, expected = case
    truth = expected["truth"]
    assert audited.count("run", "steps") == (truth["steps"],) * 2
    assert audited.count("trajectories", "trained") == (truth["trained_trajectories"],) * 2
    assert audited.count("tokens", "trained") == (truth["trained_tokens"],) * 2
    for kind in ("dropped", "cancelled"):
        counts = audited["trajectories"][kind]
        assert sum(count["lo"] for count in counts.values()) == truth[f"{kind}_trajectories"]
        assert sum(count["hi"] for count in counts.values()) == truth[f"{kind}_trajectories"]
    if name.startswith("async_grpo"):
        assert audited["coverage"]["tokens_exact"] == 1.0
        assert audited["coverage"]["trajectories_identified"] == 1.0


def test_what_the_framework_reports_agrees(case: Case) -> None:
    _, audited, _ = case
    assert audited["reported"]
    assert all(row["agrees"] is not False for row in audited["reported"])

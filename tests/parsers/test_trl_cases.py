"""TRL on recorded runs, against what the inference server noted while it made the tokens."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from staleness_audit.api import audit

CASES = Path(__file__).parents[2] / "sample_traces" / "trl"
NAMES = ("fixed-ga1-s1", "budget-ga1-s2", "old-format-1.10.0-s1")


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, dict[str, Any]]:
    folder = CASES / request.param
    expected = json.loads((folder / "expected.json").read_text())
    return request.param, audit(folder / "run", tables=tmp_path_factory.mktemp("tables")), expected["truth"]


def test_counts_are_exact(case: tuple[str, Any, dict[str, Any]]) -> None:
    _, result, truth = case
    data = result.data
    assert data["run"]["steps"] == {"lo": truth["steps"], "hi": truth["steps"]}
    assert data["trajectories"]["trained"] == {"lo": truth["trained_trajectories"], "hi": truth["trained_trajectories"]}
    assert data["tokens"]["trained"] == {"lo": truth["trained_tokens"], "hi": truth["trained_tokens"]}
    dropped = truth["dropped_trajectories"]
    assert data["trajectories"]["dropped"] == {"stale": {"lo": dropped, "hi": dropped}}
    assert data["trajectories"]["cancelled"] == {}
    assert data["verdict"] == "fail"
    assert not data["diagnostics"]["items"]


def test_the_truth_lies_in_every_interval(case: tuple[str, Any, dict[str, Any]]) -> None:
    _, result, truth = case
    data = result.data

    def holds(interval: dict[str, Any], value: int) -> bool:
        return interval["lo"] <= value and (interval["hi"] is None or value <= interval["hi"])

    assert holds(data["staleness"]["max"], truth["max_staleness"])
    for unit in ("trajectories", "groups", "tokens"):
        assert holds(data["violations"][unit], truth[f"violating_{unit}"])
    for name, unit in (("token_histogram", "tokens"), ("trajectory_histogram", "trajectories")):
        found = {row["staleness"]: row[unit] for row in data["staleness"][name]}
        assert all(holds(found[int(key)], value) for key, value in truth[name].items())


def test_what_the_guide_says_can_be_proven_is(case: tuple[str, Any, dict[str, Any]]) -> None:
    name, result, _ = case
    proven = {"fixed-ga1-s1": (8, 2, 2), "budget-ga1-s2": (1, 3, 4), "old-format-1.10.0-s1": (16, 2, 2)}[name]
    assert result.data["violations"]["trajectories"]["lo"] >= proven[0]
    assert (result.data["staleness"]["max"]["lo"], result.data["staleness"]["max"]["hi"]) == proven[1:]


def test_1_10_traces_name_step_version_and_tokens_of_every_trained_row(tmp_path: Path) -> None:
    folder = CASES / "old-format-1.10.0-s1"
    data = audit(folder / "run", tables=tmp_path).rebuilt.dataset
    uses = {row["trajectory_id"]: row["step"] for row in data.scan("uses").collect().to_dicts()}
    spans = {row["trajectory_id"]: row for row in data.scan("spans").collect().to_dicts()}
    found = 0
    for line in (folder / "truth.jsonl").read_text().splitlines():
        life = json.loads(line)
        if not life["trained"]:
            continue
        assert [use["step"] for use in life["trained"]] == [uses[life["trajectory"]]]
        span = spans[life["trajectory"]]
        assert span["tokens_lo"] == sum(loss for _, _, loss in life["segments"])
        assert all(span["version_lo"] <= version <= span["version_hi"] for version, _, _ in life["segments"])
        found += 1
    assert found == 80


def test_nested_moved_and_plain_files_give_the_same_audit(tmp_path: Path) -> None:
    name = "budget-ga1-s2"
    before = audit(CASES / name / "run", tables=tmp_path / "a").data
    deeper = tmp_path / "b" / "deeper" / "still"
    shutil.copytree(CASES / name / "run", deeper)
    for path in [path for path in deeper.rglob("*") if path.is_file()]:
        if path.suffix == ".zst":
            import zstandard

            path.with_suffix("").write_bytes(zstandard.decompress(path.read_bytes()))
            path.unlink()
    after = audit(tmp_path / "b", tables=tmp_path / "c").data
    for key in ("verdict", "staleness", "violations", "trajectories", "tokens", "per_step"):
        if key != "violations":
            assert before[key] == after[key]
    assert before["violations"]["trajectories"] == after["violations"]["trajectories"]


def test_the_windows_of_four_steps_share_their_sums(tmp_path: Path) -> None:
    data = audit(CASES / "budget-ga1-s2" / "run", tables=tmp_path).data
    shares = Counter((row["trajectories"]["lo"], row["trajectories"]["hi"]) for row in data["per_step"])
    # Six log records of four steps with 16, 15, 15, 16, 16 and 16 rows: no single step is said to hold them.
    assert shares == {(0, 16): 16, (0, 15): 8}


def test_no_token_is_made_by_older_weights_than_one_before_it(case: tuple[str, Any, dict[str, Any]]) -> None:
    # One server, halted while it takes new weights. So neither part is below 0, nor above the whole.
    staleness = case[1].data["staleness"]
    for part in ("in_flight_mean", "in_queue_mean"):
        assert 0 <= staleness[part]["lo"] <= staleness[part]["hi"] <= staleness["token_mean"]["hi"]

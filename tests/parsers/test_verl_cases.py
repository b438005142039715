"""verl on recorded runs, row by row against what the engine noted while it made the tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from verl_run import Tables, figure, read

CASES = Path(__file__).parents[2] / "sample_traces" / "verl"
NAMES = ("v1_colocate_drop_t2_dapo", "v1_sep_drop_t4", "fa_theta0.5_trig2_partial")


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tables]:
    folder = CASES / request.param
    return folder, read(folder / "run", tmp_path_factory.mktemp("tables"))


def truth_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "truth.jsonl").read_text().splitlines()]


def test_figures_hold_the_truth(case: tuple[Path, Tables]) -> None:
    folder, tables = case
    expected = json.loads((folder / "expected.json").read_text())
    audit = tables.audit(expected["bound"] if expected["argv"] else None)
    truth = expected["truth"]
    assert audit["verdict"] in expected["verdict"]
    assert audit["bound"]["value"] == expected["bound"]
    found = {
        "steps": figure(audit["run"]["steps"]),
        "trained_trajectories": figure(audit["trajectories"]["trained"]),
        "trained_tokens": figure(audit["tokens"]["trained"]),
        "max_staleness": figure(audit["staleness"]["max"]),
        "violating_trajectories": figure(audit["violations"]["trajectories"]),
        "violating_groups": figure(audit["violations"]["groups"]),
        "violating_tokens": figure(audit["violations"]["tokens"]),
    }
    for name, (low, high) in found.items():
        assert low <= truth[name] <= high, name
        if name in expected["exact"]:
            assert low == high, name
        assert high - low <= expected["width"].get(name, high), name
    for name, unit in (("token_histogram", "tokens"), ("trajectory_histogram", "trajectories")):
        for row in audit["staleness"][name]:
            low, high = figure(row[unit])
            assert low <= truth[name].get(str(row["staleness"]), 0) <= high
            assert high - low <= expected["width"].get(name, high)
    assert all(row["agrees"] is not False for row in audit["reported"])


def test_every_dated_row_holds_its_tokens(case: tuple[Path, Tables]) -> None:
    """Each token of a row with stamps lies in the interval of its place."""
    folder, tables = case
    spans: dict[str, list[dict[str, Any]]] = {}
    for row in tables.rows("spans", "trajectory_id", "span_index"):
        spans.setdefault(row["trajectory_id"], []).append(row)
    checked = 0
    for life in truth_of(folder):
        name = life["trajectory"] or life["engine_id"]
        trained = [version for version, _, loss in life["segments"] for _ in range(loss)]
        if not life["trained"] or name not in spans or any(row["tokens_lo"] != row["tokens_hi"] for row in spans[name]):
            continue
        bounds = [(row["version_lo"], row["version_hi"]) for row in spans[name] for _ in range(row["tokens_lo"])]
        assert len(bounds) == len(trained)
        assert all(low <= version <= high for version, (low, high) in zip(trained, bounds, strict=True))
        checked += len(trained)
    assert checked >= {"v1_colocate_drop_t2_dapo": 0}.get(folder.name, 800)


def test_named_rows_are_used_where_they_were(case: tuple[Path, Tables]) -> None:
    folder, tables = case
    truth = {
        (life["trajectory"] or life["engine_id"], use["step"]) for life in truth_of(folder) for use in life["trained"]
    }
    used = {(name, step) for name, _, step in tables.uses() if not name.startswith("anonymous:")}
    assert used <= truth
    if folder.name != "v1_colocate_drop_t2_dapo":
        assert used == truth


def test_fates_of_named_rows(case: tuple[Path, Tables]) -> None:
    folder, tables = case
    fates = {life["trajectory"]: (life["fate"], life["reason"]) for life in truth_of(folder)}
    for row in tables.rows("events"):
        if (
            row["kind"] == "dropped"
            and row["evidence"] == "derived"
            and not row["trajectory_id"].startswith("anonymous:")
        ):
            assert fates[row["trajectory_id"]] == ("dropped", row["reason"])

"""AReaL on a recorded run, token by token against what the engine noted while it made them.

The run has rejections, a workflow that raises, evaluation, a crash after step 4 with the last checkpoint after step 3,
and a resume that appends to the same files under ids from 0.
"""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from areal_run import codes, uses, versions
from helpers.cases import faults, run_audit

from staleness_audit.api import AuditResult, audit

CASE = Path(__file__).parents[2] / "sample_traces" / "areal" / "spmd_reject_fail_eval_resume"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    return audit(CASE / "run", tables=tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def truth() -> list[dict[str, Any]]:
    lives = [json.loads(line) for line in (CASE / "truth.jsonl").read_text().splitlines()]
    return [life for life in lives if life["role"] == "train" and life["trajectory"] is not None]


def test_every_trajectory_is_trained_where_the_engine_says(result: AuditResult, truth: list[dict[str, Any]]) -> None:
    told = {(name, step) for (_, step), names in uses(result).items() for name in names}
    assert told == {(life["trajectory"], use["step"]) for life in truth for use in life["trained"]}


def test_every_token_has_the_version_that_made_it(result: AuditResult, truth: list[dict[str, Any]]) -> None:
    told = versions(result)
    for life in truth:
        assert told[life["trajectory"]] == [(version, version, tokens) for version, tokens, _ in life["segments"]]


def test_every_rejection_is_a_drop(result: AuditResult, truth: list[dict[str, Any]]) -> None:
    dropped = {life["trajectory"] for life in truth if life["fate"] == "dropped"}
    events = result.rebuilt.dataset.scan("events").collect().to_dicts()
    assert {row["trajectory_id"] for row in events if row["kind"] == "dropped"} == dropped
    assert result.data["trajectories"]["dropped"] == {"filtered": {"lo": 22, "hi": 22}}
    assert codes(result) == set()


@pytest.mark.parametrize("gone", [("session_tracer", "perf_tracer"), ("main.log.gz",), ("rollout",)])
def test_without_some_of_its_files_the_truth_stays_inside(gone: tuple[str, ...], tmp_path: Path) -> None:
    case = tmp_path / "case"
    shutil.copytree(CASE, case)
    for name in gone:
        for path in list(case.rglob(name)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    expected = json.loads((CASE / "expected.json").read_text())
    loose = {**expected, "bounds": expected["bounds"] + expected["exact"], "exact": [], "width": {}}
    assert list(faults(loose, run_audit(case, tmp_path))) == []


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_of_a_log_cut_short_the_truth_stays_inside(share: float, tmp_path: Path) -> None:
    """The other files go on: what finished after the cut may be in any later batch, however old it is.

    The cuts lie in the first launch, right before the second one, and inside the second.
    """
    case = tmp_path / "case"
    shutil.copytree(CASE, case)
    packed = next(case.rglob("main.log.gz"))
    log = gzip.decompress(packed.read_bytes())
    packed.unlink()
    packed.with_suffix("").write_bytes(log[: int(len(log) * share)])
    expected = json.loads((CASE / "expected.json").read_text())
    loose = {**expected, "bounds": expected["bounds"] + expected["exact"], "exact": [], "width": {}}
    found = run_audit(case, tmp_path)
    assert list(faults(loose, found)) == []
    dropped = found.document["trajectories"]["dropped"]
    assert dropped["unknown"] == {"lo": 0, "hi": None}, "a rejection after the cut may have left no record"

"""A folder in which runs lie side by side: each is judged by itself, whichever frameworks wrote them."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from helpers.cases import SAMPLES

from staleness_audit import plugins
from staleness_audit.discovery import discover
from staleness_audit.several import each

CASES = {
    "areal": "spmd_straggler_metrics_only",
    "dressage": "partial_keep2_preempt2",
    "dryrun": "roll-lognormal",
    "events": "straggler_bound1",
    "nemo-rl": "sc-ready_first-violation",
    "openrlhf": "q1-normal",
    "prime-rl": "queue_unenforced_bound1",
    "psrl": "multiturn-violation",
    "roll": "rlvr_freq3",
    "skyrl": "straggler_s1_tb",
    "slime": "fully_async_longtail_console_only",
    "trl": "fixed-ga1-s1",
    "verl": "v1_colocate_drop_t2_dapo",
}
HARD = {
    ("dressage", "slime"),  # Dressage writes slime's formats, and more
    ("psrl", "verl"),  # PSRL stands on verl
    ("prime-rl", "trl"),  # TRL's files have names that others use, too
}


def judged(folder: Path) -> dict[str, str]:
    """Parsers by the run below the folder that each of them reads."""

    def parser(path: Path, _: bool) -> str:
        return plugins.choose(discover(path)).parser.name

    return {str(path.relative_to(folder)): str(name) for path, name in each([folder], parser, lambda *_: None)}


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, marks=[] if pair in HARD else pytest.mark.slow, id="-".join(pair))
        for pair in itertools.combinations(CASES, 2)
    ],
)
def test_runs_of_two_frameworks_side_by_side(tmp_path: Path, pair: tuple[str, str]) -> None:
    for name, framework in zip(("one", "other"), pair, strict=True):
        shutil.copytree(SAMPLES / framework / CASES[framework] / "run", tmp_path / "runs" / name)
    assert judged(tmp_path / "runs") == dict(zip(("one", "other"), pair, strict=True))


def test_parts_of_one_run_beside_another_framework_are_not_judged_one_by_one(tmp_path: Path) -> None:
    """A slime run's rollouts and training data are folders of different names: parts, whoever lies beside them."""
    run = SAMPLES / "slime" / "fully_async_balanced" / "run"
    for part in ("rollout_data", "train_data"):
        shutil.copytree(run / part, tmp_path / "runs" / part)
    shutil.copytree(SAMPLES / "openrlhf" / "q1-normal" / "run", tmp_path / "runs" / "other")
    assert "files of several frameworks" in judged(tmp_path / "runs")["."]

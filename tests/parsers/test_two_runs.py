"""Two runs of one framework in one folder, of which no file has the name of another: times tell them apart."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers.cases import SAMPLES

from staleness_audit.api import audit
from staleness_audit.readers.agreement import strangers

HOUR = 3600.0


def test_a_file_that_dates_the_same_steps_hours_apart_is_of_the_same_run() -> None:
    """A console of local time, two hours east, beside event files of two launches, the second of which went back."""
    console = {1: [100.0 + 2 * HOUR], 2: [160.0 + 2 * HOUR, 400.0 + 2 * HOUR], 3: [460.0 + 2 * HOUR]}
    files = {"first": {1: [101.0], 2: [161.0]}, "second": {2: [401.0], 3: [461.0]}}
    assert strangers(console, files, in_turn=True) == set()


def test_a_file_that_dates_the_same_steps_otherwise_is_not() -> None:
    """Three and a half minutes beside a quarter of an hour are no time zone; neither are steps that take longer."""
    console = {1: [100.0], 2: [200.0], 3: [300.0]}
    files = {"later": {1: [1210.0], 2: [1310.0]}, "slower": {1: [100.0], 2: [400.0], 3: [700.0]}, "other": {9: [0.0]}}
    assert strangers(console, files, in_turn=True) == {"later", "slower"}


def test_no_launch_does_steps_while_another_does() -> None:
    """Without a console: the second file begins its step 1 while the first one is at it; the third later."""
    files = {"a": {1: [0.0], 2: [200.0]}, "b": {1: [100.0], 2: [300.0]}, "c": {2: [500.0]}}
    assert strangers({}, files, in_turn=True) == {"b"}
    assert strangers({}, files, in_turn=False) == set()


@pytest.mark.parametrize(
    ("logs", "events"),
    [
        ("skyrl/eval_window_s2/run/console.log*", "skyrl/straggler_s1_tb/run/**/events.*"),
        ("areal/spmd_reject_fail_eval_resume/run/**/main.log*", "areal/spmd_straggler_metrics_only/run/**/events.*"),
    ],
)
def test_event_files_of_one_run_beside_the_log_of_another(tmp_path: Path, logs: str, events: str) -> None:
    """The event file is named and left out: nothing passes, and what the log alone proves is what is proven."""
    for pattern, folder in ((logs, "one"), (events, "other")):
        (tmp_path / "run" / folder).mkdir(parents=True)
        for file in SAMPLES.glob(pattern):
            shutil.copy(file, tmp_path / "run" / folder)
    both = audit(tmp_path / "run", 1, tables=tmp_path / "both").data
    (left,) = [item for item in both["diagnostics"]["items"] if item["code"] == "several-runs"]
    assert left["source"].startswith("other/") and "another run than one/" in left["message"]
    alone = audit(tmp_path / "run" / "one", 1, tables=tmp_path / "alone").data
    assert both["verdict"] in ("fail", "inconclusive")
    assert both["violations"]["trajectories"]["lo"] == alone["violations"]["trajectories"]["lo"]
    assert both["run"]["steps"]["lo"] == alone["run"]["steps"]["lo"]

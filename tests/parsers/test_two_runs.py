"""Two runs of one framework in one folder, of files of different names: what they say of the same steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers.cases import SAMPLES

from staleness_audit.api import audit
from staleness_audit.readers.agreement import same_figures, strangers

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


def test_of_the_same_steps_most_figures_are_the_same() -> None:
    """A damaged figure, one that a file lacks, or one of single precision is no other run's; other figures are."""
    told = {1: [{"reward": 0.25, "tokens": 100.0}], 2: [{"reward": 0.1}, {"reward": 0.5}], 3: [{"reward": 1.0}]}
    assert same_figures(told, {1: [{"tokens": 100.0}], 2: [{"reward": 0.5000000001}], 3: [{"reward": 7.0}]})
    assert not same_figures(told, {1: [{"tokens": 101.0}], 2: [{"reward": 0.5}], 3: [{"reward": 7.0}]})
    assert same_figures(told, {9: [{"tokens": 0.0}]})


@pytest.mark.parametrize(
    ("logs", "metrics", "violating", "steps"),
    [
        ("skyrl/eval_window_s2/run/console.log*", "skyrl/straggler_s1_tb/run/**/events.*", 14, 12),
        (
            "areal/spmd_reject_fail_eval_resume/run/**/main.log*",
            "areal/spmd_straggler_metrics_only/run/**/events.*",
            1,
            9,
        ),
        ("openrlhf/q1-oversample/run/console.log*", "openrlhf/q1-normal/run/**/events.*", 48, 16),
        ("verl/v1_sep_drop_t4/run/console.log*", "verl/v1_colocate_drop_t2_dapo/run/demo/*.jsonl*", 24, 9),
    ],
)
def test_metrics_of_one_run_beside_the_log_of_another(
    tmp_path: Path, logs: str, metrics: str, violating: int, steps: int
) -> None:
    """The file of metrics is named and left out: proven is what the log alone proves, and the rest stays open."""
    for pattern, folder in ((logs, "one"), (metrics, "other")):
        (tmp_path / "run" / folder).mkdir(parents=True)
        for file in SAMPLES.glob(pattern):
            shutil.copy(file, tmp_path / "run" / folder)
    both = audit(tmp_path / "run", 1, tables=tmp_path / "both").data
    (left,) = [item for item in both["diagnostics"]["items"] if item["code"] == "several-runs"]
    assert left["source"].startswith("other/") and "another run than one/" in left["message"]
    assert both["violations"]["trajectories"] == {"lo": violating, "hi": None}
    assert both["run"]["steps"] == {"lo": steps, "hi": None}

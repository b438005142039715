"""Metrics by step are the same whichever tracker wrote them: recorded runs whose event files become W&B's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.cases import SAMPLES
from helpers.wandb_log import history, run_record, wandb_file

from staleness_audit.api import audit
from staleness_audit.discovery import discover
from staleness_audit.readers.records import CONFIG, DamagedRecords, Scalar, Text
from staleness_audit.readers.scalars import read_scalars, read_values, scalar_files

KEYS = ("verdict", "guarantee", "staleness", "violations", "trajectories", "tokens", "coverage")
RUNS = {
    # framework and case: what is kept of it beside the event files, and the metric that holds W&B's step
    "areal/spmd_straggler_metrics_only": ((".yaml",), {}),
    "nemo-rl/sc-windowed-strict": ((), {}),
    "openrlhf/q1-oversample": ((), {"train/": "train/global_step", "eval/": "eval/global_step"}),
    "skyrl/straggler_s1_tb": ((), {}),
    "slime/fully_async_longtail_console_only": ((), {"train/": "train/step", "": "rollout/step"}),
    "trl/fixed-ga1-s1": ((), {"train/": "train/global_step"}),
}


def as_offline(folder: Path, steps: dict[str, str]) -> None:
    """Replace each event file by an offline file with the same numbers, a row for each step and kind of metric."""
    run = discover(folder)
    for number, file in enumerate(scalar_files(run)):
        rows: dict[tuple[int, str, float], dict[str, Any]] = {}
        records = []
        for value in read_values(run, run.whole(file.source)):
            if isinstance(value, Text):
                if value.tag == "args/text_summary":
                    records.append(run_record(json.loads(value.text)))
                continue
            step_key = next((key for prefix, key in steps.items() if value.tag.startswith(prefix)), "_step")
            row = rows.setdefault((value.step, step_key, value.wall_time), {})
            row[value.tag] = value.value
        for at, ((step, key, wall), row) in enumerate(rows.items()):
            records.append(history({**row, "_step": at, key: step, "_timestamp": wall}))
        target = folder / f"wandb/offline-run-20261129_15000{number}-abc{number}/run-abc{number}.wandb"
        target.parent.mkdir(parents=True)
        target.write_bytes(wandb_file(records))
    for file in run.files:
        if "tfevents" in file.name:
            file.path.unlink()


@pytest.mark.parametrize("case", RUNS)
def test_w_and_b_tells_what_tensorboard_does(case: str, tmp_path: Path) -> None:
    kept, steps = RUNS[case]
    folder = tmp_path / "run"
    shutil.copytree(SAMPLES / case / "run", folder)
    for path in folder.rglob("*"):
        if path.is_file() and "tfevents" not in path.name and path.suffix not in kept:
            path.unlink()
    of_events = audit(folder, bound=1, tables=tmp_path / "events").data
    as_offline(folder, steps)
    of_offline = audit(folder, bound=1, tables=tmp_path / "offline").data
    assert of_offline["run"]["framework"] == of_events["run"]["framework"] == case.split("/", maxsplit=1)[0]
    worst = [data["violations"].pop("worst") for data in (of_events, of_offline)]
    assert [use["staleness"] for use in worst[0]] == [use["staleness"] for use in worst[1]]
    assert {key: of_offline[key] for key in KEYS} == {key: of_events[key] for key in KEYS}
    assert of_events["run"]["steps"]["lo"]  # and it told something at all


def test_prime_rl_gives_w_and_b_the_rows_of_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(SAMPLES / "prime-rl/race_bound1/run", folder)
    of_file = audit(folder, tables=tmp_path / "file").data
    run = discover(folder)
    (metrics,) = run.match("metrics.jsonl")
    with run.open(metrics.source) as stream:
        rows = [json.loads(line) for line in stream]
    metrics.path.unlink()
    timed = [{"_timestamp": row.pop("time"), "_step": at, **row} for at, row in enumerate(rows)]
    other = {"_timestamp": 1.8e9, "_step": len(rows), "dispatcher/inflight/train": 3}
    (folder / "run-x.wandb").write_bytes(wandb_file([history(row) for row in [*timed, other]]))
    of_offline = audit(folder, tables=tmp_path / "offline").data
    for data in (of_file, of_offline):
        for use in data["violations"]["worst"]:
            use.pop("evidence")
    assert {key: of_offline[key] for key in KEYS} == {key: of_file[key] for key in KEYS}
    assert of_offline["reported"] and len(of_offline["reported"]) == len(of_file["reported"])


def test_rows_without_a_step_or_a_time_tell_nothing(tmp_path: Path) -> None:
    rows = [
        {"a": 1, "_step": 0, "_timestamp": 10.5},
        {"a": 2.5, "trainer/step": 7, "_step": 1, "_timestamp": 11},
        {"a": 3, "trainer/step": "x", "_timestamp": 12},
        {"a": 4, "_step": 3},
        {"a": True, "b": "text", "c": None, "_step": 4, "_timestamp": 14},
    ]
    (tmp_path / "run-x.wandb").write_bytes(wandb_file([run_record({"bound": 1}), *map(history, rows)]))
    run = discover(tmp_path)
    assert list(read_values(run, run.whole("run-x.wandb"), ("trainer/step",))) == [
        Text(CONFIG, '{"bound":1}', 1),
        Scalar("a", 0, 1, 10.5, 2),
        Scalar("a", 7, 2.5, 11.0, 3),
        Scalar("trainer/step", 7, 7, 11.0, 3),
    ]
    assert [scalar.step for scalar in read_scalars(run, run.whole("run-x.wandb"))] == [0, 1, 1]


@pytest.mark.parametrize("damaged", [{"_step": 2**31}, {"_step": -1}, {"_timestamp": 1e15}])
def test_a_step_or_time_that_is_none_ends_what_is_believed(damaged: dict[str, Any], tmp_path: Path) -> None:
    """After such a record nothing says that the next ones are whole."""
    rows = [{"a": 1, "_step": 0, "_timestamp": 1.0}, {"a": 2, "_step": 1, "_timestamp": 2.0, **damaged}]
    (tmp_path / "run-x.wandb").write_bytes(wandb_file(list(map(history, [*rows, rows[0]]))))
    run = discover(tmp_path)
    values = read_values(run, run.whole("run-x.wandb"))
    assert next(values) == Scalar("a", 0, 1, 1.0, 1)
    with pytest.raises(DamagedRecords, match="record 2 is of"):
        next(values)


def test_offline_files_count_where_there_are_no_event_files(tmp_path: Path) -> None:
    (tmp_path / "run-x.wandb").write_bytes(wandb_file([]))
    assert [file.name for file in scalar_files(discover(tmp_path))] == ["run-x.wandb"]
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"")
    assert [file.name for file in scalar_files(discover(tmp_path))] == ["events.out.tfevents.1.host"]

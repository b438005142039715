"""Losses that something else in the run betrays: each is said, with the file, and opens what it may have held."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.cases import SAMPLES

from faults.damage import plain_name, replace, unpack
from faults.judge import Case
from staleness_audit.api import audit, load

Change = Callable[[bytes], bytes]


def first_part(share: float) -> Change:
    """Keep the first lines."""

    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        return b"".join(lines[: int(len(lines) * share)])

    return change


def without(*words: str) -> Change:
    """Lose the lines that hold one of these words."""

    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        kept = [line for line in lines if not any(word.encode() in line for word in words)]
        assert len(kept) < len(lines)
        return b"".join(kept)

    return change


def cut(data: bytes) -> bytes:
    """End inside the last line."""
    return data[:-20]


def lose_last_line(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[:-1])


def instead(old: str, new: str) -> Change:
    """The first ``old`` becomes ``new``."""
    return lambda data: data.replace(old.encode(), new.encode(), 1)


BETRAYED: list[tuple[str, str, Change, str, str | None]] = [
    # Later steps were collected, so the file of step 5 had been finished.
    ("prime-rl/strict_bound2", "step_5/train/effective/traces.jsonl", cut, "trace-file-cut", "training"),
    ("prime-rl/strict_bound2", "step_5/train/all/traces.jsonl", cut, "trace-file-cut", "fates"),
    # "Step 5 | .. | Trainable 8/8".
    ("prime-rl/strict_bound2", "step_5/train/effective/traces.jsonl", lose_last_line, "traces-missing", "fates"),
    # metrics.jsonl has a row for each step, the log a line.
    ("prime-rl/strict_bound2", "orchestrator.log", first_part(0.5), "log-incomplete", "fates"),
    # Every other step trained 8 requests.
    ("psrl/default-level", "rollout_data/4.jsonl", lose_last_line, "members-unknown", "training"),
    ("psrl/default-level", "route_trace.log", first_part(0.5), "trace-incomplete", "fates"),
    # The event files go on to the last step.
    ("slime/fully_async_longtail_console_only", "console.log", first_part(0.5), "console-ends-early", "training"),
    ("openrlhf/q2-eval-filter", "console.log", first_part(0.6), "log-ends-early", "fates"),
    ("nemo-rl/sc-windowed-strict", "ray-driver.log", first_part(0.6), "log-ends-early", "fates"),
    # Optimizer steps 3 and 5 are told of, 4 is not.
    ("dressage/partial_keep2_preempt2", "console.log", without("step 4:"), "console-lines-lost", "fates"),
    # "staleness/dropped_groups" of rollout 4 is 1.
    ("dressage/partial_keep2_preempt2", "console.log", without("dropping stale"), "drops-not-logged", "fates"),
    # 16 requests were under way or ready at the end of the step, and one more by what is left.
    ("dryrun/roll-lognormal", "request.jsonl", without('"drop", "rid": 152,'), "requests-unaccounted", "fates"),
    # Of the batch's prompts one was used up for no group that was kept.
    (
        "openrlhf/q2-eval-filter",
        "console.log",
        without("16:03:09 samples_generator.py:174"),
        "groups-not-logged",
        "fates",
    ),
    # The agentic pipeline prints every field of its configuration.
    ("roll/agentic_native", "console.log", without("async_generation_ratio:"), "settings-torn", None),
    # The header of the other file says that it is of attempt 1.
    ("events/restarted_bound1", "first.staleness.jsonl", lambda data: b"", "attempt-missing", "training"),
    # Without its own file nothing tells of training.
    ("events/straggler_bound1", "trainer.staleness.jsonl", lambda data: b"", "no-training-recorded", "training"),
    # One digit too many: no run has a million steps of which all others lack a record.
    ("verl/fa_theta0.5_trig2_partial", "console.log", instead("step:9 ", "step:987654 "), "step-damaged", "training"),
    (
        "psrl/default-level",
        "route_trace.log",
        instead("version_tag=7", "version_tag=98765"),
        "step-damaged",
        "training",
    ),
    ("openrlhf/q1-normal", "console.log", instead("Global step 4:", "Global step 987654:"), "step-damaged", "training"),
    ("nemo-rl/sc-windowed-strict", "ray-driver.log", instead("step 7/8", "step 987654/8"), "step-damaged", "training"),
    (
        "areal/spmd_reject_fail_eval_resume",
        "mixed/main.log",
        instead("Train step 9/", "Train step 987654/"),
        "step-damaged",
        "training",
    ),
    ("trl/old-format-1.10.0-s1", "console.log", instead("[RANK 0]", "[RANK 99999999]"), "console-damaged", "fates"),
    # Text by its name; these bytes are none.
    ("trl/fixed-ga1-s1", "console.log", lambda data: data.decode().encode("utf-16"), "file-garbled", "training"),
    ("slime/fully_async_balanced", "console.log", lambda data: data[:900] + b"\0" * 99, "console-damaged", "training"),
]


@pytest.mark.parametrize(
    ("name", "file", "change", "code", "opens"), BETRAYED, ids=[f"{row[0]}-{row[3]}" for row in BETRAYED]
)
def test_a_loss_is_betrayed(name: str, file: str, change: Change, code: str, opens: str | None, tmp_path: Path) -> None:
    run = Case(SAMPLES / name, tmp_path).copy()
    (path,) = (path for path in run.rglob("*") if plain_name(path).as_posix().endswith(f"/{file}"))
    if path.name.endswith(".staleness.jsonl"):
        path.unlink()
    else:
        replace(path, change(unpack(path)), packed=True)
    rows = load(run, tables=tmp_path / "tables").scan("diagnostics").collect().to_dicts()
    assert (code, opens) in {(row["code"], row["opens"]) for row in rows}


def test_damage_inside_a_gzip_file_is_damage_and_no_crash(tmp_path: Path) -> None:
    """zlib notices another kind of damage than gzip does: a length that no data precede."""
    run = Case(SAMPLES / "dressage/partial_keep2_preempt2", tmp_path).copy()
    path = min(run.rglob("session.json.gz"))
    data = bytearray(gzip.compress(path.read_bytes(), 9))
    data[12:16] = b"\xff\xff\xff\xff"
    replace(path, bytes(data), packed=False)
    rows = load(run, tables=tmp_path / "tables").scan("diagnostics").collect().to_dicts()
    assert {row["source"] for row in rows if row["code"] == "payload-unreadable"} == {path.relative_to(run).as_posix()}


def test_who_was_trained_unseen_is_not_counted_beside_who_is_left_over(tmp_path: Path) -> None:
    """Who the lost rows say was trained is otherwise known as left over: still 104 requests and 14536 tokens in all."""
    run = Case(SAMPLES / "dryrun/areal-bimodal", tmp_path).copy()
    path = run / "logs/request.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    consumed = [at for at, line in enumerate(lines) if b'"consume"' in line]
    replace(path, b"".join(line for at, line in enumerate(lines) if at not in consumed[8:16]), packed=False)
    data = audit(run, tables=tmp_path / "tables").data
    assert data["trajectories"]["trained"]["lo"] == 80
    assert data["trajectories"]["seen"]["lo"] == 104
    assert data["tokens"]["generated"]["lo"] <= 14536


@pytest.mark.parametrize(
    ("name", "file"), [("skyrl/straggler_s1_tb", "events.out*"), ("dryrun/areal-bimodal", "train.jsonl")]
)
def test_a_copy_of_a_file_is_no_second_launch(name: str, file: str, tmp_path: Path) -> None:
    run = Case(SAMPLES / name, tmp_path).copy()
    (path,) = run.rglob(file)
    copy = run / "backup" / path.relative_to(run)
    copy.parent.mkdir(parents=True)
    copy.write_bytes(path.read_bytes())
    assert len(load(run, tables=tmp_path / "tables").facts["attempts"]) == 1


def test_metrics_in_another_order_are_no_second_launch(tmp_path: Path) -> None:
    """verl's metrics file is overwritten by every launch, so in one file each step comes once, in whatever order."""
    run = Case(SAMPLES / "verl/v1_sep_drop_t4", tmp_path).copy()
    (path,) = run.glob("demo/*.jsonl.gz")
    lines = unpack(path).splitlines(keepends=True)
    replace(path, b"".join([lines[0], *lines[2:4], lines[1], *lines[4:]]), packed=True)
    attempts = load(run, tables=tmp_path / "tables").facts["attempts"]
    assert len(attempts) == 1


def test_a_lost_training_does_not_shift_the_ones_after_it(tmp_path: Path) -> None:
    """Optimizer step 5 is of rollout 5 (one step each), although the lines of rollout 4 are lost."""
    run = Case(SAMPLES / "dressage/partial_keep2_preempt2", tmp_path).copy()
    path = run / "console.log"
    lines = path.read_bytes().splitlines(keepends=True)
    begin = next(at for at, line in enumerate(lines) if b"step 4:" in line)
    end = next(at for at, line in enumerate(lines) if at > begin and b"Timer train start" in line)
    replace(path, b"".join([*lines[:begin], *lines[end + 1 :]]), packed=False)
    steps = load(run, tables=tmp_path / "tables").scan("steps").collect()
    assert sorted(steps["step"]) == list(range(8))
    assert steps["completed"].all()

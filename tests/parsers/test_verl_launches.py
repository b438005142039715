"""verl V1 over several launches: crash, resume, what was rolled back, what a checkpoint no longer proves."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl_run import Buffer, Run, Tables, console_record, figure, key, read, record, v1_config

FRESH = [(0, 0)] * 4


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path / "run")
    made.config(v1_config(strategy="wait"))
    return made


def load(run: Run, name: str = "tables") -> Tables:
    return read(run.root, run.root.parent / name)


def resumed(run: Run) -> None:
    """Steps 1 to 3, a crash, resumed after step 2: steps 3 and 4 (again) by the second launch."""
    run.console(
        *(console_record(record(s, FRESH)) for s in (1, 2, 3)),
        "INFO:2026-11-29 16:33:34,731:Saving checkpoint to /data/checkpoints/global_step_2",
    )
    run.console(
        "INFO:2026-11-29 17:00:00,000:Resuming from /data/checkpoints/global_step_2, setting global step to 2",
        "INFO:2026-11-29 17:00:01,000:Re-issued 1 in-flight prompts for step 3; cleared 1 old trajectories from "
        "partition train",
        *(console_record(record(s, FRESH)) for s in (3, 4)),
        path="console2.log",
        actor="TaskRunnerV1 pid=200",
    )
    run.metrics(record(3, FRESH), record(4, FRESH))
    for step in range(1, 5):
        run.members(step, 2 * step, 2 * step + 1)


def test_steps_after_the_resumed_one_are_superseded(run: Run) -> None:
    resumed(run)
    tables = load(run)
    assert [(item["attempt"], item["resumed_after"]) for item in tables.facts["attempts"]] == [(0, None), (1, 2)]
    assert [(row["attempt"], row["step"]) for row in tables.rows("steps", "attempt", "step")] == [
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 3),
        (1, 4),
    ]
    # The dump of step 3 was overwritten, so its rows are of the second launch.
    assert {(attempt, step) for name, attempt, step in tables.uses() if name == key(6)} == {(1, 3)}
    audit = tables.audit()
    assert figure(audit["run"]["steps"]) == (4, 4)
    assert figure(audit["trajectories"]["trained"]) == (16, 16)


def test_one_console_holds_both_launches(run: Run) -> None:
    resumed(run)
    joined = (run.root / "console.log").read_text() + (run.root / "console2.log").read_text()
    (run.root / "console2.log").unlink()
    run.write("console.log", joined)
    tables = load(run)
    assert [item["resumed_after"] for item in tables.facts["attempts"]] == [None, 2]
    assert figure(tables.audit()["trajectories"]["trained"]) == (16, 16)


def test_the_metrics_file_alone_tells_where_the_last_launch_began(run: Run) -> None:
    """It was overwritten: what trained before its first step is another launch, of which only dumps are left."""
    resumed(run)
    for path in ("console.log", "console2.log"):
        (run.root / path).unlink()
    tables = load(run)
    assert [item["resumed_after"] for item in tables.facts["attempts"]] == [None, 2]
    assert [(row["attempt"], row["step"]) for row in tables.rows("steps", "attempt", "step")] == [
        (0, 1),
        (0, 2),
        (1, 3),
        (1, 4),
    ]
    assert figure(tables.audit()["trajectories"]["trained"]) == (16, 16)


def test_a_damaged_first_record_is_no_resume(run: Run) -> None:
    path = run.metrics(record(1, FRESH), record(2, FRESH))
    path.write_text("{garbage\n" + path.read_text().split("\n", 1)[1])
    for step in (1, 2):
        run.members(step, 2 * step, 2 * step + 1)
    tables = load(run)
    assert len(tables.facts["attempts"]) == 1
    assert tables.audit()["verdict"] == "inconclusive"


def test_groups_in_flight_at_the_resume_are_made_again(run: Run) -> None:
    """Section 5 D: checkpoint 2 holds a row (0, 0) of a running group; step 3 trained the same key at version 2."""
    resumed(run)
    running = Buffer().prompt(6, "running", 1).row(key(6, 0), 1, (0, 0))
    waiting = Buffer().prompt(7, "finished", 1).group(7, 1, (0, 0))
    run.checkpoint(
        2,
        Buffer({**running.tags, **waiting.tags}, {**running.masks, **waiting.masks})
        .group(4, 2, (1, 1))
        .group(5, 2, (1, 1)),
    )
    tables = load(run)
    # Group 6 is only dated by the metrics; group 7 was finished, so its rows were kept.
    assert tables.versions(key(7)) == [(10, 0, 0)]
    assert all(version != (10, 0, 0) for version in tables.versions(key(6)))
    run.checkpoint(3, Buffer().group(6, 3, (2, 2)).group(7, 1, (0, 0)))
    assert load(run, "again").versions(key(6)) == [(10, 2, 2)]


def test_rows_trained_in_the_resumed_step_stay_in_later_checkpoints(run: Run) -> None:
    """Pitfall 7: they are restored and never removed; without dumps only the first checkpoint counts."""
    run.metrics(*(record(s, FRESH) for s in (1, 2)))
    old = Buffer().group(2, 1, (0, 0)).group(3, 1, (0, 0))
    run.checkpoint(1, old)
    run.checkpoint(2, Buffer(dict(old.tags), dict(old.masks)).group(4, 2, (1, 1)).group(5, 2, (1, 1)))
    tables = load(run)
    assert {name for name, _, step in tables.uses() if step == 2} == {key(g, s) for g in (4, 5) for s in (0, 1)}


def test_leftovers_of_a_deleted_checkpoint_are_not_taken_for_the_step(run: Run) -> None:
    """Resumed after step 2, whose checkpoint and dump are gone: whose the orphans of the next one are, is open."""
    run.metrics(record(3, FRESH))
    run.checkpoint(3, Buffer().group(2, 1, (0, 0)).group(6, 3, (2, 2)).group(7, 3, (2, 2)))
    tables = load(run)
    assert tables.classes(3) == [(0, 0, 0), (2, 0, 0)]
    assert tables.audit()["verdict"] == "inconclusive"


def test_files_beyond_the_last_launch_may_be_of_it(run: Run) -> None:
    """The first launch came to step 4; the second resumed after 1, last heard of at 2: step 3 is perhaps its own."""
    run.console(*(console_record(record(s, FRESH)) for s in (1, 2, 3, 4)))
    run.console(
        "INFO:2026-11-29 17:00:00,000:Resuming from /data/checkpoints/global_step_1, setting global step to 1",
        console_record(record(2, FRESH)),
        path="console2.log",
        actor="TaskRunnerV1 pid=200",
    )
    for step in range(1, 5):
        run.members(step, 2 * step, 2 * step + 1)
    audit = load(run).audit()
    low, high = figure(audit["trajectories"]["trained"])
    assert low == 8
    assert high is None
    assert figure(audit["run"]["steps"])[0] == 2
    assert audit["verdict"] == "inconclusive"


def test_a_fresh_start_over_the_same_folders_supersedes_all(run: Run) -> None:
    run.console(*(console_record(record(s, FRESH)) for s in (1, 2, 3)))
    run.console(*(console_record(record(s, FRESH)) for s in (1, 2)), path="console2.log", actor="TaskRunnerV1 pid=200")
    for step in range(1, 4):
        run.members(step, 2 * step, 2 * step + 1)
    tables = load(run)
    assert [item["resumed_after"] for item in tables.facts["attempts"]] == [None, 0]
    audit = tables.audit()
    assert figure(audit["run"]["steps"])[0] == 2


def test_times_of_files_and_their_order_say_nothing(run: Run) -> None:
    import os

    resumed(run)
    before = load(run).audit()
    for at, file in enumerate(sorted(run.root.rglob("*"), reverse=True)):
        os.utime(file, (at, at))
    after = load(run, "again").audit()
    assert after["trajectories"] == before["trajectories"]
    assert after["staleness"] == before["staleness"]


def test_the_last_configuration_is_in_force(run: Run) -> None:
    run.config(v1_config(strategy="drop", threshold=5), start="2026-11-30/09-00-00")
    run.metrics(record(1, FRESH))
    tables = load(run)
    assert tables.facts["bound"]["value"] == 4
    assert tables.codes()["settings-changed"] == 1

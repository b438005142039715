"""verl on damaged input: nothing is skipped silently, nothing is believed that the damage may hide."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from staleness_parsers.verl import PARSER
from verl_run import Buffer, Run, Tables, console_record, dump_row, figure, key, read, record, v1_config

from staleness_audit.discovery import discover

FRESH = [(0, 0)] * 4


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path / "run")
    made.config(v1_config())
    made.metrics(record(1, FRESH), record(2, FRESH))
    made.members(1, 2, 3)
    made.members(2, 4, 5)
    return made


def load(run: Run, name: str = "tables") -> Tables:
    return read(run.root, run.root.parent / name)


def test_a_cut_dump_leaves_the_rows_to_the_metrics(run: Run) -> None:
    """Pitfall 16. The rows were trained all the same: a whole number of rows is no longer claimed."""
    path = run.root / "rollout_data/2.jsonl"
    path.write_text(path.read_text()[:-20])
    tables = load(run)
    assert tables.codes() == {"rollout-row-damaged": 1}
    audit = tables.audit()
    low, high = figure(audit["trajectories"]["trained"])
    assert low <= 8 <= high
    assert audit["verdict"] == "pass"


def test_a_cut_dump_is_made_up_for_by_the_checkpoint(run: Run) -> None:
    path = run.root / "rollout_data/2.jsonl"
    path.write_text(path.read_text()[:-20])
    run.checkpoint(2, Buffer().group(4, 2, (1, 1)).group(5, 2, (1, 1)))
    assert figure(load(run).audit()["trajectories"]["trained"]) == (8, 8)


@pytest.mark.parametrize("text", ["", "{not json}\n", '{"input": 1, "output": [], "step": "x"}\n'])
def test_bad_lines_and_empty_dumps(run: Run, text: str) -> None:
    path = run.root / "rollout_data/2.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:3]) + "\n" + text if text else "")
    tables = load(run)
    low, high = figure(tables.audit()["trajectories"]["trained"])
    assert low <= 8
    assert high is None or high >= 8
    assert sum(tables.codes().values()) > 0 or not text


def test_without_metrics_a_damaged_dump_leaves_the_step_open(run: Run) -> None:
    (run.root / "demo/run.jsonl").unlink()
    path = run.root / "rollout_data/2.jsonl"
    path.write_text(path.read_text()[:-20])
    tables = load(run)
    assert tables.codes()["rows-uncounted"] == 1
    assert tables.audit()["verdict"] == "inconclusive"


def test_a_cut_record_did_not_happen_but_its_dump_did(run: Run) -> None:
    path = run.root / "demo/run.jsonl"
    path.write_text(path.read_text()[:-30])
    tables = load(run)
    assert tables.codes() == {"metrics-cut": 1}
    assert figure(tables.audit()["run"]["steps"]) == (2, 2)
    assert tables.classes(2) == [(1, 0, 1)] * 4


@pytest.mark.parametrize(
    "line", ["garbage\n", '{"step": 2, "data": {"training/global_step": "two"}}\n', '{"step": 2, "data": 7}\n']
)
def test_a_bad_record_opens_the_run(run: Run, line: str) -> None:
    path = run.root / "demo/run.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n" + line)
    tables = load(run)
    assert tables.codes()["metrics-damaged"] == 1
    assert tables.audit()["verdict"] == "inconclusive"


def test_records_without_their_fields_only_widen(run: Run) -> None:
    run.metrics({"step": 1, "data": {"training/global_step": 1}}, {"step": 2, "data": {"training/global_step": 2}})
    tables = load(run)
    assert tables.classes(2) == [(1, 0, 1)] * 4
    assert tables.opened() == set()


def test_a_lost_step_is_betrayed_by_its_neighbours(run: Run) -> None:
    run.metrics(record(1, FRESH), record(3, FRESH))
    (run.root / "rollout_data/2.jsonl").unlink()
    run.members(3, 6, 7)
    tables = load(run)
    assert tables.codes()["step-unread"] == 1
    assert (tables.audit()["verdict"], tables.opened()) == ("inconclusive", {"training"})


@pytest.mark.parametrize("harm", ["cut", "garbage", "empty", "hostile", "other"])
def test_a_damaged_checkpoint_is_passed_over(run: Run, harm: str) -> None:
    import pickle

    path = run.checkpoint(2, Buffer().group(4, 2, (1, 1)).group(5, 2, (1, 1)))
    whole = path.read_bytes()
    path.write_bytes(
        {
            "cut": whole[: len(whole) // 2],
            "garbage": b"\x80\x05" + b"\xff" * 50,
            "empty": b"",
            "hostile": b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00echoR.",
            "other": pickle.dumps({"partitions": {"val": {}}}),
        }[harm]
    )
    tables = load(run)
    assert "checkpoint-unreadable" in tables.codes()
    assert figure(tables.audit()["trajectories"]["trained"]) == (8, 8)


def test_a_damaged_storage_unit_leaves_response_lengths(run: Run) -> None:
    run.checkpoint(2, Buffer().group(4, 2, (1, 1)).group(5, 2, (1, 1)))
    path = run.root / "checkpoints/global_step_2/transfer_queue/simple_storage/su_0_TQ.pkl"
    path.write_bytes(path.read_bytes()[:100])
    tables = load(run)
    assert tables.codes() == {"storage-unreadable": 1}
    # The metrics say that no row had several turns, so every response token is in the loss.
    assert figure(tables.audit()["tokens"]["trained"]) == (80, 80)


def test_damaged_groups_and_batches_are_reported(run: Run) -> None:
    run.write("dump/exp/GBS1_N2/1/0/tq_batch.pt", b"PK\x03\x04broken")
    assert "batch-unreadable" in load(run).codes()
    run.write("dump/exp/GBS1_N2/3/gen_batch.dp", b"\x80\x05broken")
    assert "group-unreadable" in load(run, "again").codes()


def test_a_damaged_configuration_states_no_bound(run: Run) -> None:
    run.write("outputs/2026-11-29/16-00-00/.hydra/config.yaml", "actor_rollout_ref: [\n")
    tables = load(run)
    assert tables.codes()["config-unreadable"] == 1
    assert tables.audit()["verdict"] == "no-bound"


def test_a_console_in_a_broken_archive(run: Run) -> None:
    import random

    noise = "\n".join(str(random.Random(1).random()) for _ in range(20000))
    text = f"(TaskRunnerV1 pid=1) {console_record(record(1, FRESH))}\n{noise}"
    packed = gzip.compress(text.encode())
    run.write("console.log.gz", packed[:-100])
    assert load(run).codes()["console-damaged"] == 1
    run.write("console.log.gz", packed[:5])
    assert load(run, "again").codes()["file-unreadable"] == 1


def test_foreign_files_are_not_taken(tmp_path: Path) -> None:
    made = Run(tmp_path / "other")
    made.write("notes.txt", "step by step")
    made.write("data/1.jsonl", '{"question": "x"}\n')
    made.write("events.jsonl", '{"step": 1}\n')
    made.write("empty.jsonl", "")
    assert PARSER.detect(discover(made.root)) is None


def test_dumps_alone_are_a_weak_clue(tmp_path: Path) -> None:
    made = Run(tmp_path / "dumps")
    made.dump(1, dump_row(1, key(1)))
    found = PARSER.detect(discover(made.root))
    assert found is not None
    assert not found.strong


def test_a_lost_row_is_betrayed_by_the_tokens_of_its_step(run: Run) -> None:
    path = run.root / "rollout_data/2.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[1:]) + "\n")
    tables = load(run)
    assert tables.codes() == {"rows-missing": 1}
    assert figure(tables.audit()["trajectories"]["trained"]) == (7, 8)


def test_a_lost_row_is_restored_by_the_checkpoint(run: Run) -> None:
    path = run.root / "rollout_data/2.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[1:]) + "\n")
    run.checkpoint(2, Buffer().group(4, 2, (1, 1)).group(5, 2, (1, 1)))
    tables = load(run)
    assert tables.codes() == {"members-differ": 1}
    assert figure(tables.audit()["trajectories"]["trained"]) == (8, 8)


def test_a_repeated_line_is_one_row(run: Run) -> None:
    path = run.root / "rollout_data/2.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    assert figure(load(run).audit()["trajectories"]["trained"]) == (8, 8)

"""prime-rl on damaged and rearranged files: nothing raises, nothing is silent, nothing changes by packing."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import zstandard
from prime_rl_run import Run, episode, read, simple, step_line, trace


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path / "run")
    made.root.mkdir()
    made.config()
    made.traces(1, "all", simple("a", "g", 0, 0, 1, 2), simple("b", "g", 0, 0, 1, 3, reward=0.0))
    made.traces(1, "effective", simple("a", "g", 0, 0, 1, 2), simple("b", "g", 0, 0, 1, 3, reward=0.0))
    made.shipped(1, 5)
    made.trained(1, 7)
    made.save_metrics()
    made.log((0, "INFO", "Starting orchestrator loop (max_steps=1)"), (5, "SUCCESS", step_line(1, 2, 0)))
    return made


EFFECTIVE = "rollouts/step_1/train/effective/traces.jsonl"
ALL = "rollouts/step_1/train/all/traces.jsonl"


def test_a_cut_last_line_did_not_happen(run: Run, tmp_path: Path) -> None:
    path = run.root / EFFECTIVE
    path.write_bytes(path.read_bytes()[:-40])
    tables = read(run.root, tmp_path / "tables")
    assert tables.uses() == {("a", 1, 1)}
    # ... as a record; the line of its step says all the same that the trace was shipped.
    assert tables.codes() == {"line-cut": 1, "traces-missing": 1}
    assert tables.opened() == {"fates"}
    # The step line still says that two were shipped.
    assert [row["value"] for row in tables.rows("constraints") if row["quantity"] == "trajectories"] == [2]


@pytest.mark.parametrize(
    "garbage", [b"\x00\xff garbage\n", b"[1, 2]\n", b'"text"\n', b'{"id": "x", "traces": 5}\n', b"{}{}\n"]
)
def test_garbage_in_effective_may_have_been_training_data(run: Run, tmp_path: Path, garbage: bytes) -> None:
    path = run.root / EFFECTIVE
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + garbage + second)
    tables = read(run.root, tmp_path / "tables")
    assert tables.uses() == {("a", 1, 1), ("b", 1, 1)}
    assert tables.opened() == {"training"}
    (row,) = tables.rows("diagnostics")
    assert (row["source"], row["line"]) == (EFFECTIVE, 2)
    assert next(row["line"] for row in tables.rows("uses") if row["trajectory_id"] == "b") == 3


def test_garbage_in_all_may_have_been_fates(run: Run, tmp_path: Path) -> None:
    path = run.root / ALL
    path.write_bytes(b"garbage\n" + path.read_bytes())
    assert read(run.root, tmp_path / "tables").opened() == {"fates"}


def test_absence_proves_nothing_once_a_line_is_lost(run: Run, tmp_path: Path) -> None:
    """c and d are missing from the damaged file of shipped traces: that they were pruned is no longer certain."""
    run.traces(1, "all", *(simple(name, "z", 0, 0, 1, 2) for name in "cd"), simple("a", "g", 0, 0, 1, 2))
    path = run.root / EFFECTIVE
    path.write_bytes(path.read_bytes() + b"garbage\n")
    assert {fate[2] for fate in read(run.root, tmp_path / "tables").fates("c")} == {"inferred"}


def test_wrong_types_widen_and_never_raise(run: Run, tmp_path: Path) -> None:
    odd = simple("odd", "g", 0, 0, 1, 2)
    odd["run"] = {"work": {"policy": {"start": "zero", "end": []}, "step": None}}
    odd["env"], odd["errors"], odd["task"] = 3, "none", None
    bad = trace("bad", [(1, 2, 10)])
    bad["nodes"] = [{"mask": "true"}, 7]
    bare = {"id": "bare", "traces": [{"id": "bare"}]}
    nameless = episode("n", "g", 0, 0, [{"nodes": [], "calls": []}])
    run.traces(1, "effective", odd, episode("e", "g", 0, 0, [bad, "not a trace"]), bare, nameless)  # type: ignore[list-item]
    tables = read(run.root, tmp_path / "tables")
    assert {"odd", "bad", "bare"} <= {name for name, _, _ in tables.uses()}
    assert tables.versions("odd") == [(0, 0)], "only v0 can have made batch 1"
    assert [row["tokens_hi"] for row in tables.rows("spans") if row["trajectory_id"] == "bad"] == [None]
    assert tables.opened() == {"training"}


@pytest.mark.parametrize(
    "path", [EFFECTIVE, ALL, "metrics.jsonl", "logs/attempt_1/orchestrator.log", "configs/orchestrator.json"]
)
@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe\x00", b"null\n", b"{\n"])
def test_no_content_of_any_file_raises(run: Run, tmp_path: Path, path: str, content: bytes) -> None:
    (run.root / path).write_bytes(content)
    read(run.root, tmp_path / "tables")


@pytest.mark.parametrize(
    "path", [EFFECTIVE, ALL, "metrics.jsonl", "logs/attempt_1/orchestrator.log", "configs/orchestrator.json"]
)
def test_a_broken_zip_is_said_to_be_broken(run: Run, tmp_path: Path, path: str) -> None:
    file = run.root / path
    packed = gzip.compress(file.read_bytes())
    file.with_name(file.name + ".gz").write_bytes(packed[: len(packed) // 2])
    file.unlink()
    tables = read(run.root, tmp_path / "tables")
    assert set(tables.codes()) & {"trace-line-damaged", "metrics-damaged", "log-damaged", "config-unreadable"}


def test_an_empty_file_of_a_trained_step_is_missing_data(run: Run, tmp_path: Path) -> None:
    run.traces(2, "effective", simple("c", "h", 0, 0, 8, 9))
    (run.root / EFFECTIVE).write_bytes(b"")
    tables = read(run.root, tmp_path / "tables")
    # The log has no line of that step either.
    assert tables.codes() == {"batch-missing": 1, "log-incomplete": 1}
    assert tables.opened() == {"training", "fates"}


def test_two_processes_may_write_one_line(run: Run, tmp_path: Path) -> None:
    path = run.root / "metrics.jsonl"
    path.write_text(path.read_text().replace("}\n{", "}{"))
    assert read(run.root, tmp_path / "tables").rows("steps")[0]["completed"] is True
    path.write_text(path.read_text()[:50] + "\n" + path.read_text()[60:])
    tables = read(run.root, tmp_path / "tables2")
    assert tables.opened() == {"training"}


def test_a_record_of_another_kind_of_work_is_left_out(run: Run, tmp_path: Path) -> None:
    stray = simple("stray", "g", 0, 0, 1, 2)
    stray["run"]["work"]["type"] = "eval"
    run.traces(1, "effective", stray)
    tables = read(run.root, tmp_path / "tables")
    assert tables.uses() == set()
    assert "trace-line-damaged" in tables.codes()


def test_an_absurd_version_invents_no_steps(run: Run, tmp_path: Path) -> None:
    run.traces(1, "all", simple("x", "h", 0, 1_000_000_000, 1, 2))
    assert len(read(run.root, tmp_path / "tables").rows("steps")) <= 3


def shape(root: Path, tables: Path) -> list[object]:
    found = read(root, tables)
    order = ("trajectory_id", "span_index")
    spans = [
        [row[key] for key in (*order, "version_lo", "version_hi", "tokens_lo", "line")]
        for row in found.rows("spans", *order)
    ]
    events = sorted(json.dumps([row["kind"], row["trajectory_id"], row["reason"]]) for row in found.rows("events"))
    steps = [
        [row[key] for key in ("attempt", "step", "completed", "started", "line")] for row in found.rows("steps", "step")
    ]
    return [spans, events, sorted(found.uses()), steps, found.facts["bound"], found.facts["guarantee"]]


def test_packing_and_nesting_change_nothing(run: Run, tmp_path: Path) -> None:
    plain = shape(run.root, tmp_path / "plain")
    nested = tmp_path / "outputs"
    nested.mkdir()
    run.root.rename(nested / "run")
    assert shape(nested, tmp_path / "nested") == plain
    for number, file in enumerate(sorted(nested.rglob("*.*"))):
        if file.is_file():
            pack, suffix = (gzip.compress, ".gz") if number % 2 else (zstandard.ZstdCompressor().compress, ".zst")
            file.with_name(file.name + suffix).write_bytes(pack(file.read_bytes()))
            file.unlink()
    assert shape(nested, tmp_path / "packed") == plain


def test_a_file_beside_its_compressed_copy_is_read_once(run: Run, tmp_path: Path) -> None:
    plain = shape(run.root, tmp_path / "plain")
    for path in (EFFECTIVE, "metrics.jsonl"):
        file = run.root / path
        file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
    assert shape(run.root, tmp_path / "twice") == plain


def test_a_second_run_in_the_directory_is_pointed_out(run: Run, tmp_path: Path) -> None:
    other = Run(run.root / "other")
    other.traces(1, "effective", simple("x", "g", 0, 0, 1, 2))
    tables = read(run.root, tmp_path / "tables")
    assert tables.codes() == {"several-runs": 1}
    assert tables.uses() == {("a", 1, 1), ("b", 1, 1)}


@pytest.mark.parametrize("bound", [-9, (1 << 31) - 1])
def test_an_absurd_bound_raises_nothing(run: Run, tmp_path: Path, bound: int) -> None:
    """A trace that waits is swept by its version and the bound, and an absurd version goes with an absurd bound."""
    run.config(max_off_policy_steps=bound)
    run.traces(1, "all", *(simple(f"x{start}", "h", start, start, 1, 2) for start in (0, (1 << 31) - 1)))
    assert read(run.root, tmp_path / "tables").uses() == {("a", 1, 1), ("b", 1, 1)}

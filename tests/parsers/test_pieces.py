"""Logs of lines are read in pieces: into how many must not be seen in what is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.cases import SAMPLES

from staleness_audit import plugins
from staleness_audit.discovery import RunFiles, discover
from staleness_audit.ingest import Dataset, ingest
from staleness_audit.tables import SCHEMAS

WHOLE = 1 << 30


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Read a run in pieces of at least so many bytes; returns its tables, facts, and the number of pieces."""

    def read(path: Path, size: int) -> tuple[dict[str, list[Any]], Any, int]:
        monkeypatch.setattr(RunFiles.split, "__defaults__", (size,))
        run = discover(path)
        dataset = ingest(run, plugins.choose(run), tmp_path / str(size), workers=1)
        pieces = sum(len(entry["pieces"]) for entry in dataset.manifest["inputs"].values())
        return {table: _rows(dataset, table) for table in SCHEMAS}, dataset.facts, pieces

    return read


def _rows(dataset: Dataset, table: str) -> list[Any]:
    """Rows in an order of their own: the table's is that of its parts."""
    return sorted(dataset.scan(table).collect().rows(), key=repr)


def unpacked(run: Path, target: Path) -> Path:
    """Copy a run; its compressed logs, which are one piece each, as they were before."""
    found = discover(run)
    for file in found.files:
        (target / file.name).parent.mkdir(parents=True, exist_ok=True)
        with found.open(file.source) as stream:
            (target / file.name).write_bytes(stream.read())
    return target


@pytest.mark.parametrize(
    "case",
    [
        "nemo-rl/async_grpo-age1-drain",
        pytest.param("nemo-rl/sc-ready_first-violation", marks=pytest.mark.slow),
        pytest.param("areal/spmd_reject_fail_eval_resume", marks=pytest.mark.slow),
        pytest.param("verl/v1_sep_drop_t4", marks=pytest.mark.slow),
        pytest.param("verl/fa_theta0.5_trig2_partial", marks=pytest.mark.slow),
        pytest.param("trl/budget-ga1-s2", marks=pytest.mark.slow),
        pytest.param("prime-rl/strict_bound2", marks=pytest.mark.slow),
        pytest.param("psrl/multiturn-violation", marks=pytest.mark.slow),
        pytest.param("openrlhf/q1-normal", marks=pytest.mark.slow),
        pytest.param("slime/fully_async_balanced", marks=pytest.mark.slow),
        pytest.param("dressage/partial_keep2_preempt2", marks=pytest.mark.slow),
        pytest.param("dryrun/roll-lognormal", marks=pytest.mark.slow),
        pytest.param("roll/rlvr_extra", marks=pytest.mark.slow),
    ],
)
def test_the_same_tables_from_one_piece_and_from_many(in_pieces: Any, tmp_path: Path, case: str) -> None:
    run = unpacked(SAMPLES / case / "run", tmp_path / "run")
    expected, facts, one = in_pieces(run, WHOLE)
    found, same_facts, many = in_pieces(run, 256)
    assert many > one + 4
    assert found == expected
    assert same_facts == facts

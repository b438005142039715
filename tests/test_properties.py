"""Random runs, audited and compared with a judge that walks them token by token (tests/oracle)."""

from __future__ import annotations

import gzip
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from oracle import compare, hide, logs, strategies, truth
from oracle.lives import Run

from staleness_audit import rebuild
from staleness_audit.api import audit
from staleness_audit.discovery import RunFiles

THOROUGH = int(os.environ.get("STALENESS_AUDIT_THOROUGH", "0"))
"""How many times as many random runs as by default, drawn anew each time; 0 = the default ones, always the same."""

# An example costs a whole audit: the default suite shows the first one that fails as it is, unshrunk.
common = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=not THOROUGH,
    phases=[Phase.generate, Phase.shrink] if THOROUGH else [Phase.generate],
    database=None,
)


def examples(few: int) -> Any:
    return settings(common, max_examples=few * max(THOROUGH, 1))


def written(files: dict[str, bytes], folder: Path) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def audited(files: dict[str, bytes], bound: int | None, worst: int = 0) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = written(files, Path(folder) / "run")
        return audit(run, bound, tables=Path(folder) / "tables", worst=worst).data


def files_of(log: logs.Log) -> dict[str, bytes]:
    return {name: logs.dump(lines) for name, lines in log.items()}


bounds = st.sampled_from((None, 0, 1, 2))


@examples(14)
@given(run=strategies.runs(), bound=bounds)
def test_complete_logs_are_audited_exactly(run: Run, bound: int | None) -> None:
    document = audited(files_of(logs.log_of(run)), bound)
    assert compare.differences(document, truth.figures(run, run.bound if bound is None else bound)) == []
    assert compare.unaccounted(document) == []


# ------------------------------------------------------------------------------------------------- order and packaging


def shuffled(run: Run, rng: random.Random, split: Callable[[str, logs.Line], int]) -> dict[str, bytes]:
    """Lines after the header in any order; they keep their numbers."""
    log = logs.log_of(run)
    for lines in log.values():
        body = lines[1:]
        rng.shuffle(body)
        lines[1:] = body
    return files_of(log)


def several_writers(run: Run, rng: random.Random, split: Callable[[str, logs.Line], int]) -> dict[str, bytes]:
    """Every attempt written by up to three processes, each with files and numbers of its own, in nested folders."""
    return files_of(logs.log_of(run, split, name="node{writer}/logs/a{attempt}"))


def zipped(run: Run, rng: random.Random, split: Callable[[str, logs.Line], int]) -> dict[str, bytes]:
    """Some files gzipped, the others compressed by Zstandard."""
    return {
        name + suffix: gzip.compress(data) if suffix == ".gz" else zstandard.compress(data)
        for name, data in files_of(logs.log_of(run, split)).items()
        for suffix in [rng.choice((".gz", ".zst"))]
    }


@pytest.mark.parametrize("packaging", [shuffled, several_writers, zipped])
@examples(6)
@given(run=strategies.runs(), seed=st.integers(0, 2**16))
def test_neither_order_nor_packaging_matters(packaging: Any, run: Run, seed: int) -> None:
    rng = random.Random(seed)

    # Without times nothing orders the lines of two files, so a trajectory's lines stay in one.
    def deal(trajectory: str, line: logs.Line) -> int:
        return rng.randrange(3) if run.timed else sum(trajectory.encode()) % 3

    document = audited(packaging(run, rng, deal), 1)
    assert compare.differences(document, truth.figures(run, 1)) == []


@examples(6)
@given(run=strategies.runs(), seed=st.integers(0, 2**16), size=st.sampled_from((80, 200, 500)))
def test_nor_does_the_size_of_the_pieces(run: Run, seed: int, size: int) -> None:
    files = shuffled(run, random.Random(seed), lambda trajectory, line: 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFiles.split, "__defaults__", (size,))
        document = audited(files, 1)
    assert compare.differences(document, truth.figures(run, 1)) == []


@examples(4)
@given(run=strategies.runs(), seed=st.integers(0, 2**20), way=st.sampled_from(hide.ALL))
def test_nor_does_rebuilding_it_in_partitions(run: Run, seed: int, way: hide.Hiding) -> None:
    """Of complete logs and of others: the same document to the last figure, however the trajectories are divided."""
    files = files_of(way(logs.log_of(run), random.Random(seed)))
    documents = []
    for count in (1, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rebuild, "count_partitions", lambda *_, count=count: count)
            documents.append({**audited(files, 1, worst=3), "run": None})
    assert documents[0] == documents[1]


# ------------------------------------------------------------------------------------------------- what is hidden


@examples(14)
@given(
    run=strategies.runs(), bound=st.sampled_from((0, 1, 2)), seed=st.integers(0, 2**20), way=st.sampled_from(hide.ALL)
)
def test_hiding_only_widens(run: Run, bound: int, seed: int, way: hide.Hiding) -> None:
    """Whatever is taken from a log: every interval still holds the truth, and no verdict claims more than is so."""
    document = audited(files_of(way(logs.log_of(run), random.Random(seed))), bound, worst=3)
    assert compare.escapes(document, truth.figures(run, bound)) == []
    assert compare.unaccounted(document) == []

"""Rows that a framework dumps step by step: a look writes those of steps of which something changed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers.states import figures

from staleness_audit import audit
from staleness_audit.parser import Era, Sink
from staleness_audit.watch import blocks
from staleness_audit.watch.blocks import BlockWriter
from staleness_audit.watch.follow import Follower

sys.path.insert(0, str(Path(__file__).parents[1] / "parsers"))
import nemo_rl_run as nemo
import verl_run as verl

Look = Callable[[], list[int]]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Look at the run in ``tmp_path / "run"``, in blocks of a step; returns the steps whose rows were written."""
    monkeypatch.setattr(blocks, "BLOCK", 1)
    written: list[int] = []
    write_eras = BlockWriter.write_eras

    def spy(self: BlockWriter, eras: Sequence[Era], write: Callable[[Sequence[int], Sink], None]) -> None:
        def noted(numbers: Sequence[int], into: Sink) -> None:
            written.extend(numbers)
            write(numbers, into)

        write_eras(self, eras, noted)

    monkeypatch.setattr(BlockWriter, "write_eras", spy)
    watching = Follower(tmp_path / "run", None, framework=None, folder=tmp_path / "watching")

    def look() -> list[int]:
        written.clear()
        state = watching.refresh()
        assert figures(state.data) == figures(audit(tmp_path / "run", tables=tmp_path / "fresh").data)
        return list(written)

    return look


def test_a_step_of_verl_is_written_again_if_its_rows_are_dated(tmp_path: Path, look: Look) -> None:
    """A step trains two groups of two rows; the buffer of step 1 holds one of those that step 2 trains."""
    run = verl.Run(tmp_path / "run")
    run.config(verl.v1_config())
    records = []
    for step in (1, 2):
        run.members(step, 2 * step, 2 * step + 1)
        records.append(verl.record(step, [(0, step - 1)] * 4))
    run.metrics(*records)
    assert look() == [1, 2]
    run.members(3, 6, 7)
    run.metrics(*records, verl.record(3, [(0, 2)] * 4))
    assert look() == [3]
    run.checkpoint(1, verl.Buffer().prompt(4, "finished", 1).group(4, 1, (0, 0)))
    assert look() == [2]


def test_only_new_steps_of_nemo_rl_are_written(tmp_path: Path, look: Look) -> None:
    """A step takes two groups of two trajectories, of the version before its own; its results end it."""
    folder = tmp_path / "run/logs/exp_001"
    folder.mkdir(parents=True)
    console = tmp_path / "run/ray-driver.log"
    console.write_text(nemo.AG_CONFIG + nemo.AG_START.format(age=1) + nemo.DRAIN)
    buffer = nemo.Buffer()

    def train(step: int) -> None:
        buffer.lines.clear()
        buffer.insert(max(step - 2, 0), step - 1).insert(max(step - 2, 0), step - 1).take(step - 1)
        with console.open("a") as log:
            log.write("".join(buffer.lines) + nemo.ag_step(step, 1.0))
        (folder / f"train_data_step{step}.jsonl").write_text(nemo.dump([(3, False), (2, False)] * 2))

    for step in (1, 2):
        train(step)
    assert look() == [1, 2]
    train(3)
    assert look() == [3]

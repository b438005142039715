"""Which blocks are set aside, and how often that is asked of one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from staleness_audit.watch import blocks, divided
from staleness_audit.watch.follow import Follower

sys.path.insert(0, str(Path(__file__).parents[1] / "parsers"))
import areal_run as areal


def test_a_block_that_is_still_open_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks 0 to 7 make a block that task 8 leaves as it is; task 2 is trained in step 3, which is told at 47 s.

    Until then it is open. Task 8 begins at 38 s and is ready at 39 s.
    """
    monkeypatch.setattr(blocks, "BLOCK", 2)
    read: list[int] = []
    keys_of = divided.keys_of

    def spy(tables: Mapping[str, Sequence[Path]]) -> str | None:
        read.append(len(tables))
        return keys_of(tables)

    monkeypatch.setattr(divided, "keys_of", spy)
    story = areal.straggler()
    watching = Follower(tmp_path / "run", None, framework=None, folder=tmp_path / "watching")
    found = []
    for second in (38.5, 39.5, 99.0):
        lines = [(at, line) for at, line in story.console if at < second]
        areal.Trial(story.config, lines).write(tmp_path / "run")
        watching.refresh()
        before = len(read)
        watching.settle()
        found.append(len(read) - before)
    # It is another block once step 3 is done, and over.
    assert found == [1, 0, 1]
    assert isinstance(watching._growing, divided.DividedRun)
    assert len(watching._growing._sealed) == 1

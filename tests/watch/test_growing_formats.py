"""Genuine runs of every framework, written again line by line and file by file: each look is a fresh audit's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.cases import SAMPLES
from helpers.states import figures

from staleness_audit import audit, discovery
from staleness_audit.discovery import discover
from staleness_audit.errors import AuditError
from staleness_audit.watch import blocks
from staleness_audit.watch.follow import Follower

LINES = (".log", ".jsonl", ".txt", ".out")
FRAMEWORKS = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())
LOOKS = 4


def grow(sample: Path, run: Path, rng: random.Random, *, cut: bool) -> Iterator[None]:
    """Write a sample's files again in ``LOOKS`` portions: of a log some more lines, of all others some more files.

    ``cut``: the last line of a portion may be half written.
    """
    files = discover(sample)
    logs, others = {}, []
    for file in files.files:
        with files.open(file.source) as stream:
            content = stream.read()
        if file.name.endswith(LINES):
            logs[run / file.name] = content.splitlines(keepends=True)
        elif "tfevents" in file.name:  # ends within a record
            logs[run / file.name] = [content[at : at + 997] for at in range(0, len(content), 997)]
        else:
            others.append((run / file.name, content))
    for look in range(1, LOOKS + 1):
        for path, lines in logs.items():
            count = len(lines) if look == LOOKS else rng.randint(0, 2 * len(lines) // LOOKS)
            portion, lines[:] = b"".join(lines[:count]), lines[count:]
            half = len(lines[0]) // 2 if cut and lines and rng.random() < 0.5 else 0
            if half:
                portion, lines[0] = portion + lines[0][:half], lines[0][half:]
            if portion:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("ab") as stream:
                    stream.write(portion)
        count = len(others) if look == LOOKS else len(others) // (LOOKS + 1 - look)
        for path, content in others[:count]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        del others[:count]
        yield


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_look_at_a_growing_run_is_what_an_audit_says(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files come in the order of their names: what is seen meanwhile need not make sense, only be the same.

    Where lines stand alone, a watch says nothing of half a line: it reads it when its end is there. Blocks
    are small, so that some are full, kept and set aside; of all but the smallest files only new bytes are read.
    """
    monkeypatch.setattr(blocks, "BLOCK", 6)
    monkeypatch.setattr(discovery, "_TAIL_FROM", 4096)
    sample = next(iter(sorted(SAMPLES.glob(f"{framework}/*/run"))))
    run = tmp_path / "run"
    run.mkdir()
    watching = Follower(run, None, framework=None, folder=tmp_path / "watching")
    compared = 0
    for look, _ in enumerate(grow(sample, run, random.Random(framework), cut=framework != "events")):
        try:
            fresh = audit(run, tables=tmp_path / f"fresh-{look}").data
        except AuditError:  # nothing yet by which the framework is recognised
            assert compared == 0
            continue
        state = watching.refresh()
        watching.settle()
        assert state.trouble is None
        assert figures(state.data) == figures(fresh)
        compared += 1
    assert compared > 1

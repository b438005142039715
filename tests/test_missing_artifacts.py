"""What is missing proves nothing: with any artifact of a recorded run gone or cut, the truth stays in every interval.

The truth is what the engine that made the tokens wrote down, whatever the logs can tell of it.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.cases import cases
from helpers.soundness import kind_of, unsound

from staleness_audit.api import load
from staleness_audit.errors import NothingRecognised
from staleness_audit.rebuild import rebuild

APPENDED = {".log", ".jsonl", ".txt"}
Files = dict[str, list[Path]]


def kinds(run: Path) -> Files:
    found: Files = defaultdict(list)
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        found[kind_of(path.relative_to(run))].append(path)
    return found


def variants(files: Files) -> Iterator[tuple[str, Callable[[Files], object], bool]]:
    """Yield the name of a change, what it does, and whether it is a log that ends early (rather than a missing one)."""
    for gone in files:
        if len(files) > 1:
            yield f"without {gone}", lambda found, gone=gone: remove(found[gone]), False
            yield f"only {gone}", lambda found, kept=gone: [remove(found[one]) for one in found if one != kept], False
        if len(files[gone]) > 2:
            yield f"one missing of {gone}", lambda found, one=gone: found[one][len(found[one]) // 2].unlink(), False
    yield "the last 30 % of every file", lambda found: [shorten(path) for one in found.values() for path in one], True


def remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


def shorten(path: Path) -> None:
    if path.suffix in APPENDED or "tfevents" in path.name:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) * 7 // 10])


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_is_missing_proves_nothing(case: Path, tmp_path: Path) -> None:
    truth = json.loads((case / "expected.json").read_text())["truth"]
    for index, (name, change, early) in enumerate(list(variants(kinds(case / "run")))):
        run = tmp_path / str(index) / "run"
        shutil.copytree(case / "run", run)
        change(kinds(run))
        try:
            built = rebuild(load(run, tables=tmp_path / str(index) / "tables"))
            assert list(unsound(built, truth, early=early)) == [], name
        except NothingRecognised:
            assert not name.startswith("the last")
        shutil.rmtree(tmp_path / str(index))

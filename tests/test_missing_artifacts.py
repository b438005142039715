"""What is missing proves nothing: with any artifact of a recorded run gone or cut, the truth stays in every interval.

The truth is what the engine that made the tokens wrote down, whatever the logs can tell of it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.cases import WHERE, cases

from staleness_audit.api import load
from staleness_audit.check.checker import check
from staleness_audit.errors import NothingRecognised
from staleness_audit.rebuild import rebuild

APPENDED = {".log", ".jsonl", ".txt"}
VIOLATIONS = {"tokens": "token_histogram", "trajectories": "trajectory_histogram"}
Files = dict[str, list[Path]]


def kind_of(path: Path) -> str:
    """Name of a class of files: what differs only in numbers and identifiers is one."""
    name = re.sub(r"\d+", "N", re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{24,}", "U", str(path)))
    return name if path.suffix in {".log", ".yaml", ".json"} and "N/" not in name else f"{Path(name).parent}/*"


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


def pair(interval: Any) -> tuple[float, float]:
    if isinstance(interval, Mapping) and not {"lo", "hi"} >= set(interval):
        parts = [pair(part) for part in interval.values()]
        return sum(part[0] for part in parts), sum(part[1] for part in parts)
    if not isinstance(interval, Mapping):
        return (0, float("inf")) if interval is None else (interval, interval)
    low, high = interval.get("lo"), interval.get("hi")
    return (-float("inf") if low is None else low, float("inf") if high is None else high)


def counted(data: Mapping[str, Any], truth: Mapping[str, Any]) -> Iterator[tuple[str, tuple[float, float], float]]:
    """Yield what the audit says and what is true of each thing that is known."""
    for name, (part, key) in WHERE.items():
        if name not in truth or name.startswith("violating"):
            continue
        if not name.endswith("histogram"):
            yield name, (0, 0) if data[part][key] == {} else pair(data[part][key]), truth[name]
            continue
        unit = name.removesuffix("_histogram") + "s" if name == "token_histogram" else "trajectories"
        true = {int(age): count for age, count in truth[name].items()}
        said = {row["staleness"]: row for row in data[part][key]}
        for age in sorted(said.keys() | true.keys()):
            if any(row.get("or_more") and row["staleness"] <= age for row in said.values()):
                continue
            yield f"{name}[{age}]", pair(said[age][unit]) if age in said else (0, 0), true.get(age, 0)


def unsound(run: Path, tables: Path, truth: Mapping[str, Any], *, early: bool) -> Iterator[str]:
    """Yield what the audit gets wrong; of a log that ends early only lower ends can be."""
    built = rebuild(load(run, tables=tables))
    for name, (low, high), true in counted(check(built, None), truth):
        if low > true or (high < true and not early):
            yield f"{name}: {true} is outside of {low} to {high}"
    for bound in range(3):
        data = check(built, bound)
        for unit, histogram in VIOLATIONS.items():
            true = sum(count for age, count in truth.get(histogram, {}).items() if int(age) > bound)
            low, high = pair(data["violations"][unit])
            if histogram in truth and (low > true or (high < true and not early)):
                yield f"{true} violating {unit} of bound {bound} are outside of {low} to {high}"


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_is_missing_proves_nothing(case: Path, tmp_path: Path) -> None:
    truth = json.loads((case / "expected.json").read_text())["truth"]
    for index, (name, change, early) in enumerate(list(variants(kinds(case / "run")))):
        run = tmp_path / str(index) / "run"
        shutil.copytree(case / "run", run)
        change(kinds(run))
        try:
            assert list(unsound(run, tmp_path / str(index) / "tables", truth, early=early)) == [], name
        except NothingRecognised:
            assert not name.startswith("the last")
        shutil.rmtree(tmp_path / str(index))

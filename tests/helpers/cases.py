"""Recorded cases: a folder with `run/` (what the framework left) and `expected.json` (what is known to be true of it).

`expected.json` names the arguments of the audit, the verdicts and exit codes that are right, the `truth`, and which of
it the logs determine (`exact`) or merely enclose (`bounds`, no wider than `width`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from staleness_audit.cli import app

SAMPLES = Path(__file__).parents[2] / "sample_traces"
Range = tuple[float, float]
WHERE: dict[str, tuple[str, str]] = {
    "steps": ("run", "steps"),
    "trained_trajectories": ("trajectories", "trained"),
    "trained_tokens": ("tokens", "trained"),
    "max_staleness": ("staleness", "max"),
    "violating_trajectories": ("violations", "trajectories"),
    "violating_groups": ("violations", "groups"),
    "violating_tokens": ("violations", "tokens"),
    "dropped_trajectories": ("trajectories", "dropped"),
    "cancelled_trajectories": ("trajectories", "cancelled"),
    "token_histogram": ("staleness", "token_histogram"),
    "trajectory_histogram": ("staleness", "trajectory_histogram"),
}
"""Where the audit says what a case calls by this name."""


def cases() -> list[Path]:
    """All sample cases, in order."""
    return sorted(path.parent for path in SAMPLES.glob("*/*/expected.json"))


@dataclass(frozen=True)
class Outcome:
    """What the command did: its exit code and the document it printed."""

    exit_code: int
    document: dict[str, Any]


def run_audit(case: Path, tables: Path, argv: list[str] | None = None) -> Outcome:
    """Audit a case through the command line; `argv` replaces the arguments that the case names."""
    arguments = json.loads((case / "expected.json").read_text())["argv"] if argv is None else argv
    result = CliRunner().invoke(
        app, ["audit", str(case / "run"), "--format", "json", "--tables", str(tables), *arguments]
    )
    assert result.stdout, f"no document (exit code {result.exit_code}): {result.stderr} {result.exception!r}"
    return Outcome(result.exit_code, json.loads(result.stdout))


def audit_document(case: Path, tables: Path, argv: list[str] | None = None) -> dict[str, Any]:
    """Return only the document of `run_audit`."""
    return run_audit(case, tables, argv).document


def faults(expected: dict[str, Any], outcome: Outcome) -> Iterator[str]:
    """Say, one sentence each, where an audit contradicts what is known of the case or knows less than its logs tell."""
    if outcome.document["verdict"] not in expected["verdict"]:
        yield f"verdict {outcome.document['verdict']}, not {expected['verdict']}"
    if outcome.exit_code not in expected["exit"]:
        yield f"exit code {outcome.exit_code}, not {expected['exit']}"
    for name in [*expected["exact"], *expected["bounds"]]:
        room = 0 if name in expected["exact"] else expected["width"].get(name, float("inf"))
        for what, (low, high), truth in _compared(name, outcome.document, expected["truth"][name]):
            if not low <= truth <= high:
                yield f"{what}: the truth {truth} is outside of {low} to {high}"
            elif high - low > room:
                yield f"{what}: {low} to {high} is wider than {room}"


def _compared(name: str, document: dict[str, Any], truth: Any) -> Iterator[tuple[str, Range, float]]:
    station, key = WHERE[name]
    found = document[station][key]
    if isinstance(found, list):
        counts = "tokens" if name == "token_histogram" else "trajectories"
        bars = {str(row["staleness"]): _range(row[counts]) for row in found}
        for staleness in sorted({*bars, *truth}, key=int):
            yield f"{name}[{staleness}]", bars.get(staleness, (0, 0)), truth.get(staleness, 0)
    elif set(found) == {"lo", "hi"}:
        yield name, _range(found), truth
    else:
        ranges = [_range(interval) for interval in found.values()]
        yield name, (sum(low for low, _ in ranges), sum(high for _, high in ranges)), truth


def _range(interval: dict[str, float | None]) -> Range:
    low, high = interval["lo"], interval["hi"]
    return (float("-inf") if low is None else low, float("inf") if high is None else high)

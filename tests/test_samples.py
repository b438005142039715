"""Every recorded case, through the command line, against what is known to be true of it."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard
from helpers.cases import SAMPLES, cases, faults, run_audit
from rich.console import Console

from staleness_audit.api import audit
from staleness_audit.report.terminal import render_audit
from staleness_audit.report.terminal.cost import REASONS
from staleness_audit.report.terminal.words import interval, is_zero


@pytest.mark.parametrize("case", cases(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_audit_says_what_is_true(case: Path, tmp_path: Path) -> None:
    expected = json.loads((case / "expected.json").read_text())
    outcome = run_audit(case, tmp_path)
    assert list(faults(expected, outcome)) == []
    _caps(outcome.document)
    # The document at hand is shown at once: to audit every case again would take as long as all of the above.
    for width in (60, 80, 120):
        _fits(outcome.document, width)


def _caps(document: Mapping[str, Any]) -> None:
    """No class of a histogram beyond the bound holds more than may violate it."""
    bound = document["bound"]["value"]
    for name, unit in (("token_histogram", "tokens"), ("trajectory_histogram", "trajectories")):
        if bound is None or (most := document["violations"][unit]["hi"]) is None:
            continue
        beyond = [row[unit] for row in document["staleness"][name] if row["staleness"] > bound]
        assert all(count["lo"] <= count["hi"] <= most for count in beyond)


def _fits(document: Mapping[str, Any], width: int) -> None:
    """No line is longer than the terminal, and of where the tokens went each label and figure stands whole."""
    file = io.StringIO()
    render_audit(document, Console(file=file, width=width, highlight=False))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    title = "Where the generated tokens went"
    if title not in lines:
        assert is_zero(document["tokens"]["generated"])
        return
    table = lines[lines.index(title) + 1 :]
    table = table[: table.index("")]
    tokens = document["tokens"]
    shown = {"trained": tokens["trained_distinct"], "generated in all": tokens["generated"]}
    shown |= {"masked out of the loss": tokens["masked"], "pending at the end": tokens["pending"]}
    shown |= {
        f"{kind} ({REASONS[reason]})": value
        for kind in ("dropped", "cancelled", "lost")
        for reason, value in tokens[kind].items()
        if reason in REASONS
    }
    for label, value in shown.items():
        if not is_zero(value) and interval(value) != "unknown":
            whole = re.compile(rf"  {re.escape(label)} +{re.escape(interval(value))}(  .*)?")
            assert any(whole.fullmatch(line) for line in table), (label, table)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_packing_nesting_order_and_times_of_files_say_nothing(case: Path, tmp_path: Path) -> None:
    """Text logs compressed (in turns by gzip and Zstandard), two folders deeper, written in reverse, with odd times."""
    moved = tmp_path / "moved/deeper/still"
    for number, path in enumerate(sorted((path for path in (case / "run").rglob("*") if path.is_file()), reverse=True)):
        target = moved / path.relative_to(case / "run")
        target.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        if path.suffix in {".log", ".jsonl", ".txt"}:
            pack, suffix = (gzip.compress, ".gz") if number % 2 else (zstandard.compress, ".zst")
            data, target = pack(data), target.with_name(target.name + suffix)
        target.write_bytes(data)
        os.utime(target, (1e9 + number * 977 % 5000, 1e9 - number * 31))
    plain = audit(case / "run", bound=1, tables=tmp_path / "plain").data
    packed = audit(tmp_path / "moved", bound=1, tables=tmp_path / "packed").data
    for data in (plain, packed):
        for use in data["violations"]["worst"] or []:
            del use["evidence"]
    same = ("verdict", "bound", "guarantee", "staleness", "violations", "trajectories", "tokens", "waste", "throughput")
    assert {key: packed[key] for key in same} == {key: plain[key] for key in same}


def test_the_samples_cover_every_verdict_of_every_kind() -> None:
    verdicts = {verdict for case in cases() for verdict in json.loads((case / "expected.json").read_text())["verdict"]}
    assert verdicts == {"pass", "fail", "inconclusive"}
    assert {case.parent.name for case in cases()} >= {"dryrun", "events", "prime-rl", "slime"}


def test_the_comparison_notices_what_is_wrong(tmp_path: Path) -> None:
    """Each of these lies about `straggler_bound1` is found: a comparison that finds nothing would prove nothing."""
    case = SAMPLES / "events" / "straggler_bound1"
    outcome = run_audit(case, tmp_path)
    true = json.loads((case / "expected.json").read_text())

    def told(**changes: object) -> list[str]:
        return list(faults({**true, **changes}, outcome))

    assert told(verdict=["pass"]) == ["verdict fail, not ['pass']"]
    assert told(exit=[0, 3]) == ["exit code 1, not [0, 3]"]
    assert told(truth={**true["truth"], "violating_tokens": 7}) == [
        "violating_tokens: the truth 7 is outside of 8 to 8"
    ]
    histogram = {**true["truth"]["trajectory_histogram"], "9": 1}
    lie = {**true["truth"], "trajectory_histogram": histogram, "dropped_trajectories": 2}
    assert told(truth=lie) == [
        "trajectory_histogram[9]: the truth 1 is outside of 0 to 0",
        "dropped_trajectories: the truth 2 is outside of 1 to 1",
    ]
    vague = copy.deepcopy(outcome)
    vague.document["staleness"]["max"] = {"lo": 0, "hi": None}
    assert list(faults(true, vague)) == ["max_staleness: 0 to inf is wider than 0"]

"""The published JSON Schemas accept what the tool reads and writes, and reject what is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helpers import command
from helpers.cases import audit_document, cases

ROOT = Path(__file__).parents[2]


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / "docs" / "schema" / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


EVENTS = validator("staleness-events-1")
AUDIT = validator("staleness-audit-1")
COMPARISON = validator("staleness-compare-1")
LOGS = sorted((ROOT / "sample_traces" / "events").glob("*/run/*.jsonl"))


@pytest.mark.parametrize("log", LOGS, ids=lambda path: f"{path.parts[-3]}/{path.name}")
def test_every_line_of_the_sample_logs_is_valid(log: Path) -> None:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert "format" in lines[0]
    for line in lines:
        EVENTS.validate(line)


SPAN = {"kind": "span", "n": 1, "trajectory_id": "g7/0", "tokens": 128, "version": 3}


@pytest.mark.parametrize(
    "line",
    [
        SPAN,
        {**SPAN, "mine": "unknown fields are ignored"},
        {"kind": "span", "n": 2, "trajectory_id": "a", "versions": [3, 3, 4]},
        {
            "kind": "span",
            "n": 2,
            "trajectory_id": "a",
            "tokens_lo": 1,
            "tokens_hi": 9,
            "version_lo": 1,
            "version_hi": 4,
        },
        {"kind": "dropped", "n": 3, "group_id": "g7", "reason": "other:dedup", "step": 4},
        {"kind": "trained", "n": 4, "trajectory_id": "a", "step": 9},
        {"kind": "step", "n": 5, "step": 9, "version": 8},
        {"format": "staleness-events/1", "bound": None, "attempt": 1, "resumed_after": 40},
    ],
)
def test_good_lines(line: dict[str, Any]) -> None:
    EVENTS.validate(line)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({}, "format"),
        ({"format": "staleness-events/2"}, "staleness-events/1"),
        ({"format": "staleness-events/1", "bound": 1.5}, "integer"),
        ({key: value for key, value in SPAN.items() if key != "n"}, "'n' is a required"),
        ({key: value for key, value in SPAN.items() if key != "tokens"}, "not valid under any"),
        ({**SPAN, "tokens": -1}, "minimum"),
        ({**SPAN, "tokens": 5.7}, "integer"),
        ({**SPAN, "version": 2**31}, "maximum"),
        ({**SPAN, "kind": "spann"}, "not one of"),
        ({"kind": "trained", "n": 4, "trajectory_id": "a"}, "'step' is a required"),
        ({"kind": "dropped", "n": 3, "trajectory_id": "a", "reason": "because"}, "not valid under any"),
        ({"kind": "dropped", "n": 3, "reason": "stale"}, "not valid under any"),
        ({"kind": "sync", "n": 3}, "not valid under any"),
        ({"kind": "span", "n": 2, "trajectory_id": "a", "versions": [3, -1]}, "minimum"),
    ],
)
def test_broken_lines(line: dict[str, Any], why: str) -> None:
    messages = " ".join(error.message for error in EVENTS.iter_errors(line))
    assert why in messages


@pytest.mark.parametrize("case", cases(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_audits_of_all_samples_are_valid(case: Path, tmp_path: Path) -> None:
    AUDIT.validate(audit_document(case, tmp_path))


def test_conditions_baselines_and_comparisons_are_valid(two_step_run, tmp_path: Path) -> None:
    path = two_step_run("run", bound=1)
    command.run("audit", path, "--output", "json:old.json")
    options = ("--baseline", "old.json", "--fail-if", "staleness.max > 1", "--fail-if", "verdict == fail")
    document = json.loads(command.run("audit", path, *options, "--format", "json").stdout)
    assert [row["kind"] for row in document["gate"]["conditions"]] == ["violations", "fail-if", "fail-if"]
    AUDIT.validate(document)
    document["gate"]["conditions"][0]["fails"] = True
    assert not AUDIT.is_valid(document)
    comparison = json.loads(command.run("compare", path, two_step_run("other"), "--format", "json").stdout)
    COMPARISON.validate(comparison)
    comparison["figures"][0]["differs"][1] = "perhaps"
    assert not COMPARISON.is_valid(comparison)


def test_an_audit_without_a_bound_is_valid(tmp_path: Path) -> None:
    case = ROOT / "sample_traces" / "slime" / "fully_async_longtail_console_only"
    document = audit_document(case, tmp_path, argv=[])
    assert document["verdict"] == "no-bound"
    AUDIT.validate(document)


BREAKS: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("'verdict' is a required", lambda document: document.pop("verdict")),
    ("not one of", lambda document: document.update(verdict="ok")),
    ("not of type 'object'", lambda document: document["staleness"].update(max=3)),
    ("'hi' is a required", lambda document: document["tokens"]["trained"].pop("hi")),
    ("not of type 'object'", lambda document: document["trajectories"]["dropped"].update(stale=4)),
    ("not one of", lambda document: document["violations"]["worst"][0].update(stoppable_at=["L4"])),
    ("greater than the maximum", lambda document: document["coverage"].update(tokens_exact=1.2)),
]


@pytest.mark.parametrize(("why", "damage"), BREAKS)
def test_broken_audits(why: str, damage: Callable[[dict[str, Any]], Any], tmp_path: Path) -> None:
    document = audit_document(ROOT / "sample_traces" / "events" / "straggler_bound1", tmp_path)
    damage(document)
    assert why in " ".join(error.message for error in AUDIT.iter_errors(document))

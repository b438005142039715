"""SARIF 2.1.0, for code scanning and editors: one SARIF run per audited run, a result per finding.

A result's first location is the log line that proves it; further evidence stands in ``relatedLocations``. Fingerprints
depend on the rule and on what was found, not on lines, so that the same violation is recognised in a later audit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from staleness_audit.report.findings import RULES, WORDS, Data, Finding, Rule, file_of, findings, run_name

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
MOST_RESULTS = 5000
"""Results per run that GitHub keeps."""
_ROOT = "%SRCROOT%"
_INDEX = {rule.id: index for index, rule in enumerate(RULES)}


def sarif(documents: Sequence[Data], base: Path) -> dict[str, Any]:
    """Return the SARIF log of any number of audits. Paths below ``base`` are written relative to it."""
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(data, base) for data in documents]}


def _run(data: Data, base: Path) -> dict[str, Any]:
    results = [_result(data, finding, base) for finding in findings(data)]
    left_out = max(len(results) - MOST_RESULTS, 0)
    return {
        "tool": {
            "driver": {
                "name": "staleness-audit",
                "version": data["tool"]["version"],
                "semanticVersion": data["tool"]["version"],
                "shortDescription": {"text": "Audits the staleness of trained tokens from the logs of a run."},
                "rules": [_rule(rule) for rule in RULES],
            }
        },
        "automationDetails": {"id": f"staleness-audit/{_uri(run_name(data, base))}/"},
        "originalUriBaseIds": {
            _ROOT: {"description": {"text": "The folder in which the audit was started."}},
        },
        "invocations": [
            {
                "executionSuccessful": True,
                "exitCode": data["gate"]["exit"],
                "toolExecutionNotifications": [_note(data, item, base) for item in _notes(data)],
            }
        ],
        "columnKind": "unicodeCodePoints",
        "results": results[:MOST_RESULTS],
        "properties": {
            "verdict": data["verdict"],
            "bound": data["bound"]["value"],
            "framework": _line(data["run"]["framework"]),
            "violations": {unit: data["violations"][unit] for unit in ("trajectories", "groups", "tokens")},
            "resultsLeftOut": left_out,
        },
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.meaning},
        "help": {
            "text": f"{rule.meaning} {rule.remedy}",
            "markdown": f"**{rule.summary}**\n\n{rule.meaning}\n\n{rule.remedy}",
        },
        "defaultConfiguration": {"level": rule.level},
        "properties": {"tags": ["staleness", "reinforcement-learning"]},
    }


def _result(data: Data, finding: Finding, base: Path) -> dict[str, Any]:
    places = finding.places or ({"source": None, "line": None, "locator": None},)
    chief = _location(data, places[0], base)
    if finding.subject is not None:
        chief["logicalLocations"] = [
            {"kind": "resource", "name": _line(finding.subject), "fullyQualifiedName": _line(_named(finding))}
        ]
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": _INDEX[finding.rule],
        "level": finding.level,
        "kind": "fail",
        # Braces and brackets would be read as placeholders and links.
        "message": {"text": _message(finding.message)},
        "locations": [chief],
        "partialFingerprints": {"finding/v1": _fingerprint(finding)},
    }
    if len(places) > 1:
        result["relatedLocations"] = [
            {
                "id": number,
                **_location(data, place, base),
                "message": {"text": _message(str(place.get("what", "evidence")))},
            }
            for number, place in enumerate(places[1:], 1)
        ]
    return result


def _named(finding: Finding) -> str:
    return f"step {finding.step[1]}/{finding.subject}" if finding.step else str(finding.subject)


def _location(data: Data, place: Mapping[str, Any], base: Path) -> dict[str, Any]:
    path = file_of(data, place.get("source"), base)
    artifact: dict[str, Any] = {"uri": _uri(path)}
    if not path.startswith("/"):
        artifact["uriBaseId"] = _ROOT
    physical: dict[str, Any] = {"artifactLocation": artifact}
    line, locator = place.get("line"), place.get("locator")
    if isinstance(line, int) and line >= 1:
        physical["region"] = {"startLine": line}
    location: dict[str, Any] = {"physicalLocation": physical}
    if locator:
        location["message"] = {"text": _message(WORDS.plain(locator, 200))}
    return location


def _uri(path: str) -> str:
    quoted = quote(path, errors="replace")
    return f"file://{quoted}" if path.startswith("/") else quoted


def _message(text: str) -> str:
    """Text that SARIF viewers show as it is."""
    plain = _line(text).replace("\\", "\\\\")
    for mark in "[]":
        plain = plain.replace(mark, f"\\{mark}")
    return plain.replace("{", "{{").replace("}", "}}")


def _line(text: str) -> str:
    return WORDS.plain(text, 4000)


def _fingerprint(finding: Finding) -> str:
    return hashlib.sha256("\0".join((finding.rule, *finding.identity)).encode("utf-8", "surrogatepass")).hexdigest()


def _notes(data: Data) -> Iterable[Mapping[str, Any]]:
    return [item for item in data["diagnostics"]["items"] if item["severity"] == "note"][:MOST_RESULTS]


def _note(data: Data, item: Mapping[str, Any], base: Path) -> dict[str, Any]:
    note: dict[str, Any] = {
        "level": "note",
        "message": {"text": _message(item["message"])},
        "descriptor": {"id": _line(item["code"])},
    }
    if item["source"] is not None:
        note["locations"] = [_location(data, item, base)]
    return note

"""JUnit XML, as CI servers read it: a suite per audited run, a test case per claim.

Claims are: the run keeps its bound, each step keeps it, and each condition of the gate. A claim that is disproved is a
failure; one that the logs can't decide is skipped, or a failure too where the gate is strict. A run that could not be
read is an error.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from staleness_audit.report.findings import WORDS, Data, run_name, run_story, violation_lines
from staleness_audit.report.terminal.conditions import condition_words
from staleness_audit.report.terminal.verdict import bound_line, why

Outcome = Literal["passed", "failure", "skipped", "error"]
STORIES_PER_STEP = 10


@dataclass(frozen=True)
class Claim:
    """One test case: what is claimed, how it came out, one line and a longer story about it, seconds it took."""

    name: str
    outcome: Outcome
    message: str = ""
    story: str = ""
    seconds: float | None = None


def junit(documents: Sequence[Data], unreadable: Sequence[tuple[str, str]], base: Path, *, strict: bool) -> str:
    """Return the XML of any number of audits.

    Args:
        documents: audits; the suites are named after their runs.
        unreadable: runs that could not be audited, each with the reason.
        base: paths of runs below it are written relative to it.
        strict: what the logs can't decide is a failure.
    """
    root = ET.Element("testsuites", name="staleness-audit")
    for data in documents:
        _suite(root, run_name(data, base), list(_claims(data, strict)), _properties(data))
    for name, reason in unreadable:
        _suite(root, name, [Claim("the run can be audited", "error", reason, reason)], {})
    for total in ("tests", "failures", "errors", "skipped"):
        root.set(total, str(sum(int(suite.get(total, 0)) for suite in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(root: ET.Element, name: str, claims: Sequence[Claim], properties: Mapping[str, str]) -> None:
    counts = {outcome: sum(claim.outcome == outcome for claim in claims) for outcome in ("failure", "error", "skipped")}
    suite = ET.SubElement(
        root,
        "testsuite",
        name=_xml(name),
        tests=str(len(claims)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time=f"{sum(claim.seconds or 0 for claim in claims):.3f}",
    )
    if properties:
        listed = ET.SubElement(suite, "properties")
        for key, value in properties.items():
            ET.SubElement(listed, "property", name=key, value=_xml(value))
    for claim in claims:
        case = ET.SubElement(
            suite, "testcase", classname=_xml(name), name=_xml(claim.name), time=f"{claim.seconds or 0:.3f}"
        )
        if claim.outcome != "passed":
            result = ET.SubElement(case, claim.outcome, message=_xml(claim.message))
            if claim.outcome != "skipped":
                result.set("type", "staleness-audit")
            result.text = _xml(claim.story or claim.message)


def _properties(data: Data) -> dict[str, str]:
    return {
        "framework": " ".join(filter(None, (data["run"]["framework"], data["run"]["framework_version"]))),
        "verdict": data["verdict"],
        "bound": bound_line(data, WORDS),
        "largest staleness": WORDS.interval(data["staleness"]["max"]),
        "staleness-audit": data["tool"]["version"],
    }


def _claims(data: Data, strict: bool) -> Iterator[Claim]:
    unknown: Outcome = "failure" if strict else "skipped"
    yield from _conditions(data, unknown)
    if data["bound"]["value"] is not None:
        yield from _steps(data, unknown)


def _conditions(data: Data, unknown: Outcome) -> Iterator[Claim]:
    """Claim what the gate asks for; without a gate over a run that has no bound, that nothing was judged."""
    conditions = data["gate"]["conditions"]
    if not any(condition["kind"] == "violations" for condition in conditions):
        yield Claim("the run keeps its bound", "skipped", why(data, WORDS))
    for condition in conditions:
        outcome: Outcome = {"no": "passed", "yes": "failure", "unknown": unknown}[condition["fails"]]  # type: ignore[assignment]
        if condition["kind"] == "violations":
            yield Claim(_bound_claim(data), outcome, why(data, WORDS), "\n".join(run_story(data)))
        else:
            name = WORDS.plain(condition["condition"], 200)
            yield Claim(f"not {name}", outcome, f"{name}: {condition_words(condition, WORDS)}")


def _bound_claim(data: Data) -> str:
    gate, bound = data["gate"], data["bound"]["value"]
    allowed = f"at most {gate['max_violations']}" if gate["max_violations"] else "no"
    since = " more than the baseline" if gate["baseline"] and gate["baseline"]["found"] else ""
    return f"{allowed} {gate['count']} beyond the bound{'' if bound is None else f' {bound}'}{since}"


def _steps(data: Data, unknown: Outcome) -> Iterator[Claim]:
    """Claim of each step that it keeps the bound; what the gate tolerates is no failure, but not passed over either."""
    failing = next(condition["fails"] for condition in data["gate"]["conditions"] if condition["kind"] == "violations")
    violated: Outcome = "failure" if failing == "yes" else "skipped"
    if failing == "no":
        unknown = "skipped"
    several = len({row["attempt"] for row in data["per_step"]}) > 1
    bound = data["bound"]["value"]
    by_step: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for row in data["violations"]["worst"] or ():
        by_step.setdefault((row["attempt"], row["step"]), []).append(row)
    for row in data["per_step"]:
        name = f"step {row['step']}" + (f" of attempt {row['attempt']}" if several else "")
        violations, seconds = row["violations"], row["duration_s"]
        told = by_step.get((row["attempt"], row["step"]), [])[:STORIES_PER_STEP]
        story = "\n".join(line for each in told for line in violation_lines(each, bound))
        claim = f"{name} keeps the bound {bound}"
        if not row.get("certain", True):
            yield Claim(claim, unknown, f"{name} is not known to have completed.", story, seconds)
        elif violations["lo"]:
            count = WORDS.count(violations, "trajectory")
            verb = "is" if count.startswith("1 ") else "are"
            all_, worst = WORDS.interval(row["trajectories"]), WORDS.interval(row["max"])
            message = f"{count} of {all_} {verb} beyond the bound {bound}; the worst is {worst}."
            yield Claim(claim, violated, message, story or message, seconds)
        elif violations["hi"] != 0:
            message = f"The logs don't tell: its largest staleness is {WORDS.interval(row['max'])}."
            yield Claim(claim, unknown, message, story, seconds)
        else:
            yield Claim(claim, "passed", seconds=seconds)


def _xml(text: object) -> str:
    """Only characters that XML 1.0 may hold and that are seen, whatever a log holds."""
    return "".join(
        character if character in "\t\n" or character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in str(text)
    )

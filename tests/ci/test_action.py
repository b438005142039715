"""The action and the hook do what docs/ci.md says: their own shell is run, in a fake environment of a workflow."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@dataclass
class Workflow:
    """A job that uses the action: runs its steps as the runner does, with `${{ }}` filled in."""

    folder: Path
    inputs: dict[str, str]
    github: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)

    def expression(self, text: str) -> str:
        values = {
            **{f"inputs.{name}": value for name, value in self.filled().items()},
            **{f"steps.audit.outputs.{name}": value for name, value in self.outputs.items()},
            **{f"github.{name}": value for name, value in self.github.items()},
        }
        return re.sub(r"\$\{\{\s*([\w.-]+)\s*\}\}", lambda found: values.get(found[1], ""), text)

    def filled(self) -> dict[str, str]:
        defaults = {name: given.get("default", "") for name, given in ACTION["inputs"].items()}
        return {**defaults, "token": "secret", **self.inputs}

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        step, temp = STEPS[name], self.folder / "temp"
        temp.mkdir(exist_ok=True)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")},
            **{key: self.expression(value) for key, value in step.get("env", {}).items()},
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "RUNNER_TEMP": str(temp),
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_REPOSITORY": "owner/name",
            "GITHUB_OUTPUT": str(temp / "output"),
            "GITHUB_STEP_SUMMARY": str(temp / "summary"),
        }
        assert "${{" not in step["run"], "text of inputs must not become code"
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]],
            cwd=self.folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        written = temp / "output"
        lines = written.read_text().splitlines() if written.exists() else []
        self.outputs = dict(line.split("=", 1) for line in lines)
        return done

    def summary(self) -> str:
        return (self.folder / "temp" / "summary").read_text()


@pytest.fixture
def workflow(tmp_path):
    """A function that makes a workflow with the given inputs, in whose environment the tool is installed already."""
    installed = tmp_path / "temp" / "staleness-audit-venv" / "bin"
    path = shlex.quote(os.pathsep.join(filter(None, sys.path)))
    script(installed / "python", f'#!/bin/sh\nPYTHONPATH={path} exec {shlex.quote(sys.executable)} "$@"\n')
    script(installed / "staleness-audit", f'#!/bin/sh\nexec {installed}/python -m staleness_audit "$@"\n')
    return lambda **inputs: Workflow(tmp_path, {name.replace("_", "-"): value for name, value in inputs.items()})


def test_the_action_is_valid():
    file = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "github-actions.json"
    jsonschema.validators.validator_for(schema := json.loads(file.read_text()))(schema).validate(ACTION)
    assert list(STEPS) == ["Install", "Audit", "Comment", "Gate"]


def test_a_violating_run_is_told_everywhere_and_stops_the_job(workflow, two_step_run):
    two_step_run("run", bound=1)
    job = workflow(runs="run")
    audit = job.run("Audit")
    assert audit.returncode == 0, audit.stderr  # so that the steps after it run
    assert job.outputs["exit-code"] == "1" and job.outputs["verdict"] == "fail"
    before, _, after = audit.stdout.partition("::stop-commands::")
    token = after.split("\n", 1)[0]
    shown, _, annotations = after.partition(f"\n::{token}::\n")
    assert before == "" and len(token) == 32
    assert "FAIL" in shown and "\n::error" not in shown
    assert annotations.startswith("::error title=FAIL%3A run (bound 1)::")
    assert job.summary().startswith("<!-- staleness-audit: ") and "### ❌ FAIL" in job.summary()
    assert json.loads((job.folder / job.outputs["json"]).read_text())["verdict"] == "fail"
    assert json.loads((job.folder / job.outputs["sarif"]).read_text())["version"] == "2.1.0"
    assert "<testsuites" in (job.folder / job.outputs["junit"]).read_text()
    assert job.run("Gate").returncode == 1


def test_inputs_reach_the_tool(workflow, two_step_run):
    two_step_run("one", bound=1)
    two_step_run("two words; touch owned", bound=2)
    job = workflow(
        runs="one\n\ntwo words; touch owned\n", bound="2", fail_if="waste.ratio > 0.2\nstaleness.max >= 2\n",
        max_violations="3", count="tokens", steps="0:5", strict="true", summary="false", output="out put",
    )  # fmt: skip
    job.run("Audit")
    documents = json.loads((job.folder / "out put" / "audit.json").read_text())
    assert [Path(document["run"]["path"]).name for document in documents] == ["one", "two words; touch owned"]
    gate = documents[0]["gate"]
    assert (gate["count"], gate["max_violations"], gate["exit"]) == ("tokens", 3, 1)
    assert [row["condition"] for row in gate["conditions"][1:]] == ["waste.ratio > 0.2", "staleness.max >= 2"]
    assert job.outputs["verdict"] == "pass pass"
    assert not (job.folder / "temp" / "summary").exists()
    assert not (job.folder / "owned").exists()


def test_a_run_within_the_bound_passes(workflow, two_step_run):
    two_step_run("run", bound=2)
    job = workflow(runs="run")
    assert job.run("Audit").stdout.rstrip().splitlines()[-1].startswith("::notice title=PASS%3A run")
    assert job.run("Gate").returncode == 0


def test_an_audit_that_cannot_run_is_an_error(workflow):
    job = workflow(runs="nowhere")
    audit = job.run("Audit")
    assert "::error title=staleness-audit%3A nowhere::" in audit.stdout
    assert job.run("Gate").returncode == 2
    wrong = workflow(runs="nowhere", fail_if="no such thing")
    assert "::error title=staleness-audit::The audit could not run" in wrong.run("Audit").stdout
    assert wrong.run("Gate").returncode == 2


GH = """#!/bin/sh
# A stand-in for GitHub's own command: notes what it is asked, and finds the comment in the file `comments`.
printf '%s\\n' "$*" >> calls
case "$*" in *--paginate*) cat comments ;; esac
"""


@pytest.mark.parametrize(
    ("comments", "call"),
    [
        ("", "api --method POST repos/owner/name/issues/7/comments -F body=@staleness-audit/audit.md"),
        ("12\n34\n", "api --method PATCH repos/owner/name/issues/comments/12 -F body=@staleness-audit/audit.md"),
    ],
)
def test_one_comment_is_updated(workflow, two_step_run, tmp_path, comments, call):
    two_step_run("run", bound=1)
    script(tmp_path / "bin" / "gh", GH)
    (tmp_path / "comments").write_text(comments)
    job = workflow(runs="run", comment="true")
    job.github = {"event.pull_request.number": "7"}
    job.run("Audit")
    done = job.run("Comment")
    assert done.returncode == 0, done.stderr
    asked, wrote = (tmp_path / "calls").read_text().splitlines()
    marker = (tmp_path / "staleness-audit" / "audit.md").read_text().splitlines()[0]
    assert asked == (
        f'api --paginate repos/owner/name/issues/7/comments --jq .[] | select(.body | startswith("{marker}")) | .id'
    )
    assert wrote == call


@pytest.mark.slow
def test_the_install_step_installs_the_tool(tmp_path):
    job = Workflow(tmp_path, {"runs": "x", "python": sys.executable})
    done = job.run("Install")
    assert done.returncode == 0, done.stderr
    shown = subprocess.check_output(
        [tmp_path / "temp/staleness-audit-venv/bin/staleness-audit", "--version"], text=True
    )
    assert shown.startswith("staleness-audit ")


def test_the_hook_audits_the_files_it_is_for(two_step_run, tmp_path):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    two_step_run("kept", bound=2)
    two_step_run("broken", bound=1)
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    wanted = [file for file in files if re.search(hook["files"], file)]
    assert wanted == ["broken/run.staleness.jsonl", "kept/run.staleness.jsonl"]
    program, *arguments = shlex.split(hook["entry"])
    assert program == "staleness-audit"

    def call(*more: str) -> Any:
        command = [sys.executable, "-m", "staleness_audit", *arguments, *more]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert call(*wanted).returncode == 1
    assert call(wanted[1]).returncode == 0
    assert call("--bound", "2", *wanted).returncode == 0

"""`verify`: an audit is derived again from the run, and what differs is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.command import run, sentence

from staleness_audit.api import verify


def recorded(folder: Path, *options: Any) -> Path:
    """Audit a run, and return the file with its audit."""
    file = folder.parent / "audit.json"
    assert run("audit", folder, "--format", "json", "--output", file, *options).exit_code in {0, 1, 3}
    return file


def edited(file: Path, change: Any) -> Path:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    return file


def test_an_audit_can_be_derived_again(two_step_run):
    folder = two_step_run("run")
    result = run("verify", recorded(folder, "--bound", 1), folder)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("same: derived again from 1 file, ")
    assert "verdict fail, bound 1" in result.stdout


def test_the_options_are_those_of_the_audit_and_the_run_may_be_moved(two_step_run):
    """Bound 1 is broken in step 2 only, so an audit of step 0 alone passes."""
    folder = two_step_run("run")
    file = recorded(folder, "--bound", 1, "--steps", "0:0", "--worst", 3)
    document = json.loads(file.read_text())
    assert document["options"] == {"bound": 1, "steps": [0, 0], "assume": {}, "worst": 3}
    assert document["verdict"] == "pass"
    moved = folder.rename(folder.with_name("moved"))
    assert verify(file, moved).same


def test_a_changed_input_is_named_with_what_it_changes(two_step_run):
    folder = two_step_run("run", bound=2)
    file = recorded(folder)
    log = folder / "run.staleness.jsonl"
    # Trajectory b trained by step 2 has 9 tokens instead of 10, and the file another digest.
    log.write_text(log.read_text().replace('"b", "tokens": 10', '"b", "tokens": 9'))
    result = run("verify", file, folder)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("differs: read 1 file")
    assert lines[1].startswith("  input run.staleness.jsonl: recorded sha256:")
    assert "  figure tokens.trained: recorded 20, now 19" in lines
    assert not any("verdict" in line for line in lines)


def test_an_older_document_that_does_not_say_what_its_digests_are_of_is_compared_too(two_step_run):
    folder = two_step_run("run", bound=2)
    file = edited(recorded(folder), lambda document: document["inputs"].pop("of"))
    log = folder / "run.staleness.jsonl"
    log.write_text(log.read_text().replace('"b", "tokens": 10', '"b", "tokens": 9'))
    result = run("verify", file, folder)
    assert result.exit_code == 1, result.output
    assert "  input run.staleness.jsonl: recorded sha256:" in result.stdout


def test_a_lost_input_is_named(event_log, two_step_run):
    folder = two_step_run("run")
    other = event_log("other", writer="second")
    other.add("admitted", trajectory_id="c")
    other.close().joinpath("run.staleness.jsonl").rename(folder / "second.staleness.jsonl")
    file = recorded(folder, "--bound", 2)
    (folder / "second.staleness.jsonl").unlink()
    differences = json.loads(run("verify", file, folder, "--format", "json").stdout)["differences"]
    assert [(row["kind"], row["what"], row["derived"]) for row in differences][:1] == [
        ("input", "second.staleness.jsonl", None)
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(verdict="pass"), "figure verdict: recorded pass, now fail"),
        (lambda data: data["violations"]["worst"].pop(), "figure violations.worst[0]: recorded nothing, now {"),
        (
            lambda data: data["staleness"]["max"].update(hi=None),
            "figure staleness.max: recorded 2 to ∞, now 2",
        ),
        (lambda data: data["diagnostics"].update(errors=1), "figure diagnostics.errors: recorded 1, now 0"),
    ],
)
def test_an_edited_audit_does_not_hold(two_step_run, change, said):
    folder = two_step_run("run")
    result = run("verify", edited(recorded(folder, "--bound", 1), change), folder)
    assert result.exit_code == 1
    assert said in result.stdout


def test_another_version_of_the_tool_is_said_but_harmless(two_step_run):
    folder = two_step_run("run")
    file = edited(recorded(folder, "--bound", 1), lambda data: data["tool"].update(version="0.0.9"))
    result = run("verify", file, folder)
    assert result.exit_code == 0
    assert "version staleness-audit: recorded 0.0.9, now " in result.stdout


def test_of_several_audits_the_one_of_this_run_is_derived(two_step_run):
    first, second = two_step_run("first"), two_step_run("second", end=False)
    file = first.parent / "both.json"
    run("audit", first, second, "--bound", 1, "--format", "json", "--output", file)
    assert run("verify", file, second).exit_code == 0
    assert "holds 0 audits" in sentence(run("verify", file, first.parent / "third"))


def test_what_is_no_audit_is_refused_in_one_sentence(two_step_run):
    folder = two_step_run("run")
    file = recorded(folder, "--bound", 1)
    assert "not an audit" in sentence(run("verify", folder / "run.staleness.jsonl", folder))
    assert "cannot be read" in sentence(run("verify", folder / "nothing.json", folder))
    edited(file, lambda data: data["options"].update(steps=["a", "b"]))
    assert "its run.parser, bound or options" in sentence(run("verify", file, folder))


def test_a_copy_of_objects_is_compared_by_names_sizes_and_figures(two_step_run):
    """What a store says of an object is no digest of its bytes: that contents were not compared is said."""
    folder = two_step_run("run")
    size = (folder / "run.staleness.jsonl").stat().st_size

    def at_a_url(data: dict[str, Any], size: int = size) -> None:
        data["inputs"].update(of="listing", digest="sha256:0", bytes=size)
        data["inputs"]["listed"][0].update(digest="object:0", bytes=size)

    file = edited(recorded(folder, "--bound", 1), at_a_url)
    result = run("verify", file, folder)
    assert result.exit_code == 0
    assert "unchecked contents of the inputs: recorded by their listing, now by their bytes" in result.stdout
    result = run("verify", edited(file, lambda data: at_a_url(data, size + 1)), folder)
    assert result.exit_code == 1
    assert f"input run.staleness.jsonl: recorded {size + 1}, now {size}" in result.stdout


def test_a_long_list_of_inputs_has_one_digest(two_step_run, monkeypatch):
    monkeypatch.setattr("staleness_audit.check.provenance.MOST_LISTED", 0)
    folder = two_step_run("run")
    file = recorded(folder, "--bound", 1)
    assert json.loads(file.read_text())["inputs"]["listed"] is None
    assert run("verify", file, folder).exit_code == 0
    with (folder / "run.staleness.jsonl").open("a") as log:
        log.write("\n")
    assert "  inputs: recorded sha256:" in run("verify", file, folder).stdout

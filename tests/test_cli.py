"""The command line: exit codes, messages, output formats, defaults from files (DESIGN section 5)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cases import SAMPLES
from helpers.command import run, sentence

from staleness_audit import __version__, cli, plugins
from staleness_audit.cli.options import AuditFormat

COMMANDS = ("audit", "ingest", "explain", "compare", "sql", "export", "frameworks")


# ------------------------------------------------------------------------------------------------- the gate


@pytest.mark.parametrize(
    ("options", "code"),
    [
        # `b` violates bound 1 with its 10 tokens: [lo, hi] is [1, 1] trajectories, [10, 10] tokens, [1, 1] groups.
        (["--bound", "1"], 1),
        (["--bound", "1", "--max-violations", "1"], 0),
        (["--bound", "1", "--count", "groups"], 1),
        (["--bound", "1", "--count", "tokens", "--max-violations", "9"], 1),
        (["--bound", "1", "--count", "tokens", "--max-violations", "10"], 0),
        (["--bound", "1", "--exit-zero"], 0),
        (["--bound", "1", "--allow-inconclusive"], 1),
        (["--bound", "2"], 0),
        (["--bound", "2", "--strict"], 0),
        # Without a bound there is nothing to gate, unless a gate was asked for.
        ([], 0),
        (["--max-violations", "0"], 3),
        (["--count", "tokens"], 3),
        (["--strict"], 3),
        (["--max-violations", "0", "--exit-zero"], 0),
    ],
)
def test_gate_on_a_complete_log(two_step_run, options, code):
    assert run("audit", two_step_run("run"), *options).exit_code == code


@pytest.mark.parametrize(
    ("options", "code"),
    [
        # The end line is missing, so any number more is possible: [1, open] for bound 1, [0, open] for 2.
        (["--bound", "1"], 1),
        (["--bound", "1", "--max-violations", "1"], 3),
        (["--bound", "2"], 3),
        (["--bound", "2", "--strict"], 1),
        (["--bound", "2", "--allow-inconclusive"], 0),
        (["--bound", "2", "--exit-zero"], 0),
        (["--bound", "2", "--strict", "--exit-zero"], 0),
    ],
)
def test_gate_on_a_log_without_its_end(two_step_run, options, code):
    assert run("audit", two_step_run("run", end=False), *options).exit_code == code


def test_possible_violations_within_the_allowance_are_still_not_known(event_log):
    """A trajectory of v0 to v2, trained from v2: [0, 1] violations of bound 1. Allowing one changes nothing."""
    log = event_log("run", bound=1)
    log.add("span", trajectory_id="t", tokens=5, version_lo=0, version_hi=2).add("trained", trajectory_id="t", step=2)
    path = log.add("step", step=2, version=2).close()
    assert run("audit", path).exit_code == 3
    assert run("audit", path, "--max-violations", "1").exit_code == 3
    assert run("audit", path, "--bound", "2").exit_code == 0


def test_nothing_trained_is_not_a_pass(event_log):
    path = event_log("run", bound=1).add("span", trajectory_id="t", tokens=5, version=0).close()
    result = run("audit", path)
    assert result.exit_code == 3
    assert "No training step completed" in result.stdout


def test_several_runs_exit_with_the_gravest_code(two_step_run):
    kept, broken = two_step_run("kept", bound=2), two_step_run("broken", bound=1)
    cut = two_step_run("cut", bound=2, end=False)
    assert run("audit", kept, kept).exit_code == 0
    assert run("audit", kept, cut).exit_code == 3
    assert run("audit", cut, broken, kept).exit_code == 1
    result = run("audit", broken, "nowhere", kept)
    assert result.exit_code == 2
    assert "nowhere" in result.stderr
    # The readable ones are reported all the same, and summed up.
    assert "FAIL" in result.stdout and "PASS" in result.stdout and "Summary" in result.stdout


def test_several_runs_in_one_folder_are_not_taken_for_one(tmp_path):
    """Both console logs would be read as those of one run, whose verdict neither deserves: each has its own."""
    for name in ("q1-normal", "q1-oversample"):
        shutil.copytree(SAMPLES / "openrlhf" / name / "run", tmp_path / "runs" / name)
    (tmp_path / "runs" / "notes.txt").write_text("what was changed in between")
    done = run("audit", tmp_path / "runs", "--format", "json")
    documents = json.loads(done.stdout)
    assert [Path(document["run"]["path"]).name for document in documents] == ["q1-normal", "q1-oversample"]
    assert done.exit_code == max(document["gate"]["exit"] for document in documents)
    said = " ".join(done.stderr.split())
    assert "2 runs side by side, each judged by itself" in said and "not read: notes.txt" in said
    # A command about one run does not choose among them.
    refused = sentence(run("explain", tmp_path / "runs", "--worst"))
    assert "q1-normal, q1-oversample each hold openrlhf logs of the same names" in refused
    assert "No parser is called 'nosuch'" in sentence(run("audit", tmp_path / "runs", "--framework", "nosuch"))
    assert run("audit", tmp_path / "runs" / "q1-normal").exit_code == 0
    # Rollouts here and training there, both numbered from 0, are one run.
    assert run("audit", SAMPLES / "slime" / "fully_async_balanced" / "run", "--bound", "3").exit_code == 0


@pytest.mark.parametrize(
    ("framework", "cases"),
    [
        # A simulator never resumes; launches of NeMo-RL that both train step 0 in an exp_001 are no restarts.
        ("dryrun", ("areal-bimodal", "roll-lognormal")),
        ("nemo-rl", ("sc-ready_first-violation", "sc-windowed-strict")),
        ("nemo-rl", ("async_grpo-age1-drain", "sc-windowed-strict")),
    ],
)
def test_runs_of_frameworks_whose_launches_have_folders_are_told_apart(framework, cases, tmp_path):
    for name in cases:
        shutil.copytree(SAMPLES / framework / name / "run", tmp_path / "runs" / name)
    done = run("audit", tmp_path / "runs", "--format", "json")
    assert [Path(document["run"]["path"]).name for document in json.loads(done.stdout)] == list(cases)
    refused = sentence(run("explain", tmp_path / "runs", "--worst"))
    assert f"{cases[0]}, {cases[1]} each hold {framework} logs" in refused
    assert run("audit", tmp_path / "runs" / cases[1], "--bound", "9").exit_code == 0


def test_a_pattern_names_the_runs_it_matches(two_step_run, tmp_path):
    """`runs/*` in quotes, as from a configuration: natural order, one exit code, the gravest."""
    for name, bound in (("seed-2", 2), ("seed-10", 1), ("other", 2)):
        two_step_run(f"runs/{name}", bound=bound)
    done = run("audit", tmp_path / "runs" / "seed-*", "--format", "json")
    assert done.exit_code == 1
    assert [Path(document["run"]["path"]).name for document in json.loads(done.stdout)] == ["seed-2", "seed-10"]
    assert "nothing matches this pattern" in sentence(run("audit", tmp_path / "runs" / "speed-*"))
    # What exists is no pattern, whatever it looks like.
    two_step_run("runs/lr=[1,2]", bound=2)
    assert run("audit", tmp_path / "runs" / "lr=[1,2]").exit_code == 0


def test_folders_of_tables_side_by_side(two_step_run, tmp_path):
    """What was ingested elsewhere, one folder a run, is audited and compared like the runs."""
    for name, bound in (("before", 2), ("after", 1)):
        assert run("ingest", two_step_run(name, bound=bound), "--tables", tmp_path / "tables" / name).exit_code == 0
    done = run("audit", tmp_path / "tables", "--format", "json")
    assert done.exit_code == 1
    assert [document["verdict"] for document in json.loads(done.stdout)] == ["fail", "pass"]
    compared = json.loads(run("compare", tmp_path / "tables", "--format", "json").stdout)
    assert len(compared["runs"]) == 2
    assert "--html takes one RUN" in sentence(run("audit", tmp_path / "tables", "--html", "page.html"))


def test_folders_of_steps_are_one_run(tmp_path):
    """Nothing but the rollouts of a run was kept, a folder per step: what they prove is said."""
    shutil.copytree(SAMPLES / "prime-rl" / "strict_bound2" / "run" / "rollouts", tmp_path / "rollouts")
    done = run("audit", tmp_path, "--bound", "9", "--format", "json")
    assert json.loads(done.stdout)["run"]["framework"] == "prime-rl"


def test_event_logs_of_one_writer_that_begins_twice_are_two_runs(tmp_path):
    """Both files are the first of the writer "trainer"; a second attempt of it is of the same run."""
    header = '{"format": "staleness-events/1", "framework": "my-trainer", "bound": 1, "writer": "trainer"%s}'
    lines = [
        '{"kind": "span", "n": 1, "trajectory_id": "a", "tokens": 3, "version": 0}',
        '{"kind": "trained", "n": 2, "trajectory_id": "a", "step": %d}',
        '{"kind": "step", "n": 3, "step": %d, "version": %d}',
        '{"kind": "end", "n": 4}',
    ]

    def write(step: int, attempt: str) -> None:
        text = "\n".join([header % attempt, *lines, ""]).replace("%d", str(step)).replace('"a"', f'"a{step}"')
        (tmp_path / "runs" / f"part-{step}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / f"part-{step}" / "log.staleness.jsonl").write_text(text)

    write(0, "")
    write(1, "")
    assert len(json.loads(run("audit", tmp_path / "runs", "--format", "json").stdout)) == 2
    write(1, ', "attempt": 1, "resumed_after": 0')
    assert run("audit", tmp_path / "runs").exit_code == 0


def test_exit_zero_does_not_hide_unreadable_input(two_step_run):
    assert run("audit", two_step_run("kept", bound=2), "nowhere", "--exit-zero").exit_code == 2


# ------------------------------------------------------------------------------------------------- errors


def test_missing_path():
    assert (
        sentence(run("audit", "nowhere"))
        == "error: nowhere: No such file or directory; give the directory or file a run has written."
    )


def test_nothing_recognised_says_what_was_looked_for(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("hello\n")
    message = sentence(run("audit", "run"))
    assert "none of its files (1)" in message
    assert "known log format (areal, dressage, dryrun, events, " in message
    assert "`staleness-audit frameworks NAME` lists the files of one" in message
    assert "--framework" in message


def test_two_frameworks_at_once(two_step_run, monkeypatch):
    events = plugins.parsers()["events"]
    twin = type("Twin", (type(events),), {"name": "twin"})()
    monkeypatch.setattr(plugins, "parsers", lambda: {"events": events, "twin": twin})
    path = two_step_run("run", bound=2)
    message = sentence(run("audit", path))
    assert "files of several frameworks: events (" in message and "; twin (" in message and "--framework" in message
    assert run("audit", path, "--framework", "events").exit_code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser can read everything")
def test_unreadable_file(two_step_run):
    path = two_step_run("run", bound=2)
    (path / "run.staleness.jsonl").chmod(0)
    message = sentence(run("audit", path))
    assert "run.staleness.jsonl" in message and "permissions" in message


@pytest.mark.parametrize("steps", ["5", "a:b", "3:1", "1:2:3"])
def test_bad_steps(two_step_run, steps):
    assert "give two step numbers as A:B" in sentence(run("audit", two_step_run("run"), "--steps", steps))


def test_bad_steps_are_complained_about_once_for_several_runs(two_step_run):
    assert "A:B" in sentence(run("audit", two_step_run("one"), two_step_run("two"), "--steps", "x"))


def test_unknown_framework(two_step_run):
    message = sentence(run("audit", two_step_run("run"), "--framework", "nonsense"))
    assert "No parser is called 'nonsense'" in message and "events" in message
    assert "No parser is called 'nonsense'" in sentence(run("frameworks", "nonsense"))
    assert sentence(run("frameworks", "slmie")).endswith("verl. Did you mean slime?")


def test_tables_never_go_into_the_run(two_step_run):
    path = two_step_run("run")
    message = sentence(run("audit", path, "--tables", path / "tables"))
    assert "never written into the run directory" in message
    assert [entry.name for entry in path.iterdir()] == ["run.staleness.jsonl"]


def test_options_that_contradict_each_other(two_step_run):
    path = two_step_run("run")
    assert "--strict and --allow-inconclusive" in sentence(run("audit", path, "--strict", "--allow-inconclusive"))
    assert "--tables names one folder" in sentence(run("audit", path, path, "--tables", "tables"))
    assert "KEY=VALUE" in sentence(run("audit", path, "--assume", "nothing"))
    assert "knows no assumption colour" in sentence(run("audit", path, "--assume", "colour=red"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["audit"], "Missing argument 'RUN...'; see `staleness-audit audit --help`."),
        (["audit", "x", "--bound", "x"], "--bound x: give a whole number; see `staleness-audit audit --help`."),
        (["audit", "x", "--bound", "-1"], "--bound -1: give 0 or more; see `staleness-audit audit --help`."),
        (["prove", "trl", "--seconds", "x"], "--seconds x: give a number; see `staleness-audit prove --help`."),
        (["audit", "x", "--count", "steps"], "'steps' is not one of 'trajectories', 'tokens', 'groups'; see"),
        (["audit", "x", "--bounds", "1"], "No such option: --bounds"),
        (["audti"], "Did you mean 'audit'? See `staleness-audit --help`."),
    ],
)
def test_usage_errors_are_sentences_too(arguments, says):
    assert says in sentence(run(*arguments))


def test_steps_that_the_run_does_not_have(two_step_run):
    """It has steps 0 and 2; that nothing between them or behind them is stale is no verdict."""
    path = two_step_run("run", bound=1)
    for steps in ("3:", "1:1"):
        assert sentence(run("audit", path, "--steps", steps)) == (
            f"error: --steps {steps} selects no training step, so there is nothing to judge: "
            "the logs show steps 0 to 2."
        )


def test_a_folder_that_cannot_be_written(two_step_run, tmp_path):
    path = two_step_run("run")
    (tmp_path / "file").touch()
    for arguments in (["audit", path], ["ingest", path], ["sql", path, "SELECT 1"]):
        message = sentence(run(*arguments, "--tables", tmp_path / "file" / "tables"))
        assert message.endswith("file/tables: cannot be written (Not a directory); choose another --tables folder.")
    (tmp_path / ".staleness-audit").touch()
    assert "name a folder with --tables" in sentence(run("audit", path))


def test_an_empty_folder_is_called_empty(tmp_path):
    assert f"error: {tmp_path}: it holds no files" in sentence(run("audit", tmp_path))


def test_what_belongs_to_no_format_is_named_as_it_was_given(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing\n")
    assert f"error: {tmp_path}/notes.txt: it does not belong to" in sentence(run("audit", tmp_path / "notes.txt"))
    assert f"error: {tmp_path}: none of its files (1) belongs to" in sentence(run("audit", tmp_path))


def test_names_from_the_file_system_cannot_steer_the_terminal():
    message = run("audit", "[red]x[/]\x1b[31m").stderr
    assert "\x1b" not in message
    assert "[red]x[/]" in message


def test_output_that_cannot_be_written(two_step_run):
    path = two_step_run("run")
    for form in ("terminal", "json"):
        message = sentence(run("audit", path, "--format", form, "--output", "no/such/folder/out"))
        assert "no/such/folder/out: cannot be written (No such file or directory)" in message


# ------------------------------------------------------------------------------------------------- help and version


def test_version():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"staleness-audit {__version__}\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: staleness-audit {command}" in " ".join(result.stdout.split())


def test_help_lists_the_commands_and_the_exit_codes():
    text = " ".join(run("--help").stdout.split())
    assert all(command in text for command in COMMANDS)
    assert (
        "Exit codes: 0 within the bound, 1 violated, 2 usage error or unreadable input, 3 the logs can't tell." in text
    )


# ------------------------------------------------------------------------------------------------- defaults from files


def test_defaults_from_pyproject(tmp_path, two_step_run):
    path = two_step_run("run")
    (tmp_path / "pyproject.toml").write_text('[tool.staleness-audit]\nbound = 1\nmax-violations = 0\nformat = "json"\n')
    result = run("audit", path)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["bound"]["value"] == 1
    # What stands on the command line wins.
    assert run("audit", path, "--bound", "2").exit_code == 0


def test_own_file_goes_before_pyproject(tmp_path, two_step_run):
    (tmp_path / "pyproject.toml").write_text("[tool.staleness-audit]\nbound = 1\n")
    (tmp_path / "staleness-audit.toml").write_text("bound = 2\nstrict = true\n")
    assert run("audit", two_step_run("run")).exit_code == 0


def test_pyproject_of_others_is_left_alone(tmp_path, two_step_run):
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    assert run("audit", two_step_run("run")).exit_code == 0


def test_unknown_key_is_an_error_that_names_it(tmp_path, two_step_run):
    (tmp_path / "staleness-audit.toml").write_text("bounds = 1\n")
    message = sentence(run("audit", two_step_run("run")))
    assert message.startswith("error: staleness-audit.toml: unknown key 'bounds'; there are: ")
    assert " bound," in message and " max-violations," in message


def test_a_key_that_only_some_commands_have_does_not_disturb_the_others(tmp_path, two_step_run):
    (tmp_path / "staleness-audit.toml").write_text("bound = 1\nmax-violations = 3\nquiet = true\n")
    path = two_step_run("run")
    assert run("explain", path, "b").exit_code == 0
    assert run("sql", path, "SELECT 1").exit_code == 0


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("staleness-audit.toml", "bound = \n", "staleness-audit.toml: not valid TOML"),
        ("pyproject.toml", "tool = 3\n[x]\n", "not a table"),
        ("pyproject.toml", "[tool]\nstaleness-audit = 3\n", "tool.staleness-audit is not a table"),
    ],
)
def test_broken_defaults(tmp_path, two_step_run, name, text, says):
    (tmp_path / name).write_text(text)
    result = run("audit", two_step_run("run"))
    if says == "not a table":
        assert result.exit_code == 0  # somebody else's table
    else:
        assert says in sentence(result)


def test_default_of_a_wrong_type(tmp_path, two_step_run):
    (tmp_path / "staleness-audit.toml").write_text('bound = "three"\n')
    result = run("audit", two_step_run("run"))
    assert result.exit_code == 2
    assert sentence(result) == "error: --bound three: give a whole number; see `staleness-audit audit --help`."


# ------------------------------------------------------------------------------------------------- output


HOSTILE = "g\x1b[2J\x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\\a\r\u202eb\x9b31m\x7f\u2066\u200b"
"""Clears the screen, links, rings, returns, turns text around, colours, hides."""


HOSTILE_NAME = HOSTILE.replace("/", "")


def test_nothing_that_logs_hold_steers_a_terminal(event_log, tmp_path):
    """Ids, groups, workers, reasons, configuration, kinds of lines, names of files and of the run: all are hostile."""
    log = event_log(HOSTILE_NAME, bound=1, config={HOSTILE: HOSTILE}, framework=HOSTILE)
    for name in (HOSTILE, "other"):
        log.add("admitted", trajectory_id=name, group_id=HOSTILE, version=0)
        log.add("span", trajectory_id=name, tokens=2, version=0, worker=HOSTILE)
    log.add("dropped", trajectory_id="other", reason=f"other:{HOSTILE}").add(f"kind{HOSTILE}")
    log.add("trained", trajectory_id=HOSTILE, step=3).add("step", step=3, version=3)
    path = log.close()
    (path / "run.staleness.jsonl").rename(path / f"{HOSTILE_NAME}.staleness.jsonl")
    commands = [
        *(["audit", path, "--verbose", "--format", form] for form in AuditFormat),
        ["audit", path, tmp_path / HOSTILE],
        ["explain", path, "--worst"],
        ["compare", path, path],
        ["sql", path, "SELECT * FROM trajectories"],
        ["sql", path, f'SELECT 1 AS "{HOSTILE}"', "--format", "json"],
        ["export", path, "--output", tmp_path / f"{HOSTILE_NAME}.json"],
        ["ingest", path, "--tables", tmp_path / HOSTILE_NAME.replace("[", "")],
        ["audit", path, "--framework", HOSTILE],
        ["audit", path, "--bound", HOSTILE],
        ["audit", path, f"--{HOSTILE}"],
        [HOSTILE],
    ]
    for command in commands:
        shown = run(*command)
        assert shown.exit_code in (0, 1, 2, 3) and not isinstance(shown.exception, ValueError), shown.exception
        steering = {each for each in shown.output if not each.isprintable() and each not in "\n\t"}
        assert shown.output and not steering, (command, steering)


def test_json_of_one_run_and_of_several(two_step_run):
    one, other = two_step_run("one", bound=1), two_step_run("other", bound=2)
    document = json.loads(run("audit", one, "--format", "json").stdout)
    assert document["schema"] == "staleness-audit/1"
    assert document["verdict"] == "fail"
    assert document["violations"]["trajectories"] == {"lo": 1, "hi": 1}
    both = json.loads(run("audit", one, other, "--format", "json").stdout)
    assert [each["verdict"] for each in both] == ["fail", "pass"]


def test_output_file_instead_of_printing(tmp_path, two_step_run):
    path = two_step_run("run", bound=1)
    result = run("audit", path, "--output", "out.txt")
    assert (result.exit_code, result.stdout) == (1, "")
    text = (tmp_path / "out.txt").read_text()
    assert "FAIL" in text and "\x1b" not in text
    run("audit", path, "--format", "json", "--output", "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["gate"]["exit"] == 1


def test_quiet_prints_nothing_but_the_result(two_step_run):
    path = two_step_run("run", bound=1)
    result = run("audit", path, "--quiet")
    assert result.stderr == ""
    assert "FAIL" in result.stdout
    assert run("ingest", path, "--tables", "tables", "--quiet").output == ""


def test_steps_leave_out_the_others(two_step_run):
    """Only step 2 trains on old tokens, so without it the run keeps bound 1."""
    path = two_step_run("run", bound=1)
    assert run("audit", path, "--steps", "2:2").exit_code == 1
    assert run("audit", path, "--steps", ":1").exit_code == 0
    document = json.loads(run("audit", path, "--steps", "0:0", "--format", "json").stdout)
    assert document["run"]["steps"] == {"lo": 1, "hi": 1}
    assert document["tokens"]["trained"] == {"lo": 10, "hi": 10}
    assert [row["step"] for row in document["per_step"]] == [0]


def test_worst_limits_what_is_told_not_what_counts(event_log):
    log = event_log("run", bound=0)
    for name in ("a", "b", "c"):
        log.add("span", trajectory_id=name, tokens=5, version=0).add("trained", trajectory_id=name, step=1)
    path = log.add("step", step=1, version=1).close()
    for worst, told in ((0, 0), (2, 2), (10, 3)):
        violations = json.loads(run("audit", path, "--worst", worst, "--format", "json").stdout)["violations"]
        assert len(violations["worst"]) == told
        assert violations["trajectories"] == {"lo": 3, "hi": 3}


def test_ingest_then_audit_the_tables(two_step_run):
    result = run("ingest", two_step_run("run", bound=1), "--tables", "tables")
    assert result.exit_code == 0
    assert "trajectories 2" in " ".join(result.stdout.split())
    assert run("audit", "tables").exit_code == 1


# ------------------------------------------------------------------------------------------------- sql, explain


def test_sql_prints_tab_separated_rows_on_a_pipe(two_step_run):
    result = run("sql", two_step_run("run"), "SELECT trajectory_id, step, NULL AS nothing FROM uses ORDER BY step")
    assert result.exit_code == 0
    assert result.stdout == "trajectory_id\tstep\tnothing\na\t0\t\nb\t2\t\n"


def test_sql_as_json_lines(two_step_run):
    result = run("sql", two_step_run("run"), "SELECT step, v_train_lo FROM steps ORDER BY step", "--format", "json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"step": 0, "v_train_lo": 0},
        {"step": 2, "v_train_lo": 2},
    ]


@pytest.mark.parametrize(
    "query", ["SELEC 1", "SELECT * FROM nowhere", "SELECT CAST(trajectory_id AS INTEGER) FROM uses"]
)
def test_sql_that_fails(two_step_run, query):
    assert "The query failed: " in sentence(run("sql", two_step_run("run"), query))


def test_sql_passes_on_the_names_that_may_have_been_meant(two_step_run):
    path = two_step_run("run")
    assert 'Did you mean "named_uses"?' in sentence(run("sql", path, "SELECT * FROM named_use"))
    assert '"step"' in sentence(run("sql", path, "SELECT stp FROM steps"))


def test_sql_list_needs_no_run_and_the_rest_does():
    result = run("sql", "--list")
    assert result.exit_code == 0
    assert "use_lives" in result.stdout and "spans" in result.stdout
    assert "Give a RUN and a QUERY" in sentence(run("sql"))


def test_explain_one_and_the_worst(two_step_run):
    path = two_step_run("run", bound=1)
    by_name = run("explain", path, "b")
    assert by_name.exit_code == 0
    assert "2 - 0 = 2 > 1" in by_name.stdout
    assert run("explain", path, "--worst").stdout == by_name.stdout
    story = json.loads(run("explain", path, "b", "--format", "json").stdout)
    assert story["uses"][0]["staleness"] == {"lo": 2, "hi": 2}


def test_explain_names_the_same_controls_as_the_audit_of_any_violation(event_log):
    """Bound 0, a group to a step: ``b`` is admitted while ``a`` is untrained, so admission (L1) could have held it.

    ``a`` (staleness 3) is the worst, ``b`` (2) is not; ``a`` was admitted with nothing before it.
    """
    log = event_log("run", bound=0, groups_per_step=1)
    for name, moment in (("a", 1.0), ("b", 2.0)):
        log.add("admitted", trajectory_id=name, group_id=f"g{name}", version=0, ts=moment)
        log.add("span", trajectory_id=name, tokens=5, version=0, ts=moment + 2)
    for name, step in (("b", 2), ("a", 3)):
        log.add("trained", trajectory_id=name, step=step)
        log.add("step", step=step, version=step, started=10.0 + step, ended=10.5 + step)
    path = log.close()
    listed = json.loads(run("audit", path, "--format", "json").stdout)["violations"]["worst"]
    assert {row["trajectory_id"]: row["stoppable_at"] for row in listed} == {"a": ["L3"], "b": ["L1", "L3"]}
    assert "stopped at L3, dropping" in " ".join(run("explain", path, "a").stdout.split())
    assert "stopped at L1, holding" in " ".join(run("explain", path, "b").stdout.split())


def test_explain_puts_causes_before_effects(event_log):
    """The step's clock counts whole seconds: it says 7 for what happened after 7.4."""
    log = event_log("run", bound=0)
    log.add("span", trajectory_id="a", tokens=3, version=0, ts=6.1)
    log.add("span", trajectory_id="a", tokens=4, version=1, ts=7.4)
    log.add("enqueued", trajectory_id="a", ts=7.4)
    log.add("trained", trajectory_id="a", step=1, ts=7.0)
    log.add("step", step=1, version=1, started=7.0, ended=8.0)
    path = log.close()
    told = [entry["kind"] for entry in json.loads(run("explain", path, "a", "--format", "json").stdout)["entries"]]
    assert told.index("span") < told.index("enqueued") < told.index("trained")
    assert "comes from a coarser clock" in run("explain", path, "a").stdout


def test_explain_says_what_is_wrong(two_step_run):
    path = two_step_run("run", bound=2)
    assert "No training trajectory is called 'zz'" in sentence(run("explain", path, "zz"))
    assert "No trajectory exceeds the bound" in sentence(run("explain", path, "--worst"))
    assert "Without a bound no trajectory is the worst" in sentence(run("explain", two_step_run("free"), "--worst"))
    assert "Name a trajectory, or give --worst" in sentence(run("explain", path))
    assert "Name a trajectory, or give --worst" in sentence(run("explain", path, "b", "--worst"))


# ------------------------------------------------------------------------------------------------- as a process


def process(*arguments, **environment):
    command = [sys.executable, "-m", "staleness_audit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, env={**os.environ, **environment}, check=False)


def test_ascii_terminals_get_ascii(two_step_run):
    result = process("audit", two_step_run("run", bound=1), PYTHONIOENCODING="ascii")
    assert result.returncode == 1
    assert result.stdout.decode("ascii").count("FAIL") == 1
    assert result.stderr == b""  # and no library's advice


def test_a_reader_that_goes_away_does_not_change_the_exit_code(two_step_run):
    """``audit ... | head -0`` under pipefail: a kept bound must not look broken (nor a broken one kept)."""
    for bound, code in ((1, 1), (2, 0)):
        path = two_step_run(f"run{bound}", bound=bound)
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, "-m", "staleness_audit", "audit", str(path)],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
            # Unbuffered output fails while it is written, buffered output only when Python closes it.
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        )
        os.close(write)
        assert done.returncode == code
        assert b"Traceback" not in done.stderr and b"BrokenPipe" not in done.stderr


def test_a_defect_is_not_a_verdict(two_step_run, monkeypatch, capsys):
    """An unexpected exception would exit with 1, which means violated."""

    def explode(*_, **__):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("staleness_audit.api.audit", explode)
    monkeypatch.setattr(sys, "argv", ["staleness-audit", "audit", str(two_step_run("run"))])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 2
    message = capsys.readouterr().err
    assert "ZeroDivisionError: a defect" in message and "Traceback" not in message


def test_an_interrupt_is_not_a_verdict(two_step_run, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("staleness_audit.api.audit", interrupt)
    result = run("audit", two_step_run("run"))
    assert result.exit_code == 130
    assert "no verdict" in result.stderr

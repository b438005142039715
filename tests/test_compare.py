"""Runs side by side: what is proven to differ, what is the same, what can't be told, and what must not be compared."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from helpers.command import run, sentence
from rich.console import Console

from staleness_audit.check.compare import compare, differs
from staleness_audit.check.intervals import Interval
from staleness_audit.report.comparison import comparison_markdown
from staleness_audit.report.html import render_comparison_page
from staleness_audit.report.terminal import render_comparison
from staleness_audit.report.terminal.comparison import letters, value_words
from staleness_audit.report.terminal.words import Words


@pytest.mark.parametrize(
    ("one", "other", "answer"),
    [
        (Interval(2, 2), Interval(2, 2), "no"),
        (Interval(2, 2), Interval(3, 3), "yes"),
        (Interval(0, 2), Interval(3, None), "yes"),
        (Interval(3, None), Interval(0, 2), "yes"),
        (Interval(0, 3), Interval(3, None), "unknown"),
        (Interval(0, 3), Interval(0, 3), "unknown"),  # the same is known of both, which does not make them the same
        (Interval(None, None), Interval(3, 3), "unknown"),
        (Interval(0.1 + 0.2, 0.1 + 0.2), Interval(0.3, 0.3), "no"),
        ("pass", "pass", "no"),
        ("pass", "fail", "yes"),
        (None, "fail", "unknown"),
        (False, True, "yes"),
    ],
)
def test_figures_differ_only_if_that_is_proven(one, other, answer):
    assert differs(one, other) == answer


def compared(*arguments):
    result = run("compare", *arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    return document, {row["figure"]: row for row in document["figures"]}


def test_two_runs_of_which_one_was_cut(two_step_run):
    """The same log twice; the second one lacks its end, so that more may be missing from it."""
    document, rows = compared(two_step_run("whole"), two_step_run("cut", end=False), "--bound", "1")
    assert [each["verdict"] for each in document["runs"]] == ["fail", "fail"]
    assert rows["staleness.max"]["values"] == [{"lo": 2, "hi": 2}, {"lo": 2, "hi": None}]
    assert rows["staleness.max"]["differs"] == [None, "unknown"]
    assert rows["run.attempts"]["differs"] == [None, "no"]
    assert {caveat["code"]: caveat["runs"] for caveat in document["caveats"]} == {"unread": [1], "length": [0, 1]}


def test_violations_of_different_bounds_are_not_compared(two_step_run):
    document, rows = compared(two_step_run("one", bound=1), two_step_run("other", bound=2))
    assert rows["violations.tokens"]["values"] == [{"lo": 10, "hi": 10}, {"lo": 0, "hi": 0}]
    assert rows["violations.tokens"]["differs"] == [None, "incomparable"]
    assert rows["tokens.trained"]["differs"] == [None, "no"]
    assert [caveat["code"] for caveat in document["caveats"]] == ["bounds"]


def test_staleness_in_different_units_is_not_compared(two_step_run):
    document, rows = compared(two_step_run("one"), two_step_run("other", unit="weight syncs"), "--bound", "1")
    assert [each["unit"] for each in document["runs"]] == ["training steps", "weight syncs"]
    for figure in ("staleness.max", "staleness.token_mean", "violations.trajectories"):
        assert rows[figure]["differs"] == [None, "incomparable"]
    assert rows["tokens.trained"]["differs"] == [None, "no"]
    assert [caveat["code"] for caveat in document["caveats"]] == ["units"]


def test_what_is_known_of_one_run_only_is_not_compared(event_log, two_step_run):
    """One log has times and one has none: there is nothing to compare rates with. JSON keeps them."""
    untimed = event_log("untimed", bound=2)
    untimed.add("span", trajectory_id="a", tokens=4, version=0).add("trained", trajectory_id="a", step=1)
    path = untimed.add("step", step=1, version=0, trajectories=1).close()
    document, rows = compared(two_step_run("timed", bound=2), path)
    assert rows["throughput.trained_tokens_per_s"]["values"] == [{"lo": 2.5, "hi": 2.5}, None]
    text = text_of(document, 100)
    assert "tokens/s trained" not in text and "Throughput" not in text
    assert "– not known" in text and "known of fewer than two of the runs are left out" in " ".join(text.split())


def test_reasons_stand_behind_their_sum(event_log, two_step_run):
    """In one run five tokens are dropped as stale, in the other none are dropped."""
    log = event_log("dropping", bound=1)
    log.add("span", trajectory_id="d", tokens=5, version=0).add("dropped", trajectory_id="d", reason="stale")
    log.add("span", trajectory_id="t", tokens=2, version=0).add("trained", trajectory_id="t", step=0)
    path = log.add("step", step=0, version=0).close()
    _, rows = compared(path, two_step_run("other", bound=1))
    assert rows["tokens.dropped"]["values"] == [{"lo": 5, "hi": 5}, {"lo": 0, "hi": 0}]
    assert rows["tokens.dropped.stale"]["differs"] == [None, "yes"]
    names = list(rows)
    assert names[names.index("tokens.dropped") + 1] == "tokens.dropped.stale"


def test_saved_audits_can_be_compared_with_runs(two_step_run):
    one, other = two_step_run("one", bound=1), two_step_run("other", bound=2)
    run("audit", one, other, "--output", "json:both.json")
    document, _ = compared("both.json", one)
    assert [each["verdict"] for each in document["runs"]] == ["fail", "pass", "fail"]
    assert "is judged already" in sentence(run("compare", "both.json", one, "--bound", "1"))


def test_errors(two_step_run, tmp_path):
    assert "Name two runs or more" in sentence(run("compare", two_step_run("one")))
    assert "nowhere" in sentence(run("compare", two_step_run("one"), "nowhere"))
    (tmp_path / "x.json").write_text("{}")
    assert "x.json: not an audit" in sentence(run("compare", "x.json", "x.json"))


def text_of(document, width, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    render_comparison(document, Path.cwd(), Console(file=file, width=width, highlight=False))
    file.seek(0)
    text = file.read()
    assert max(map(len, text.splitlines())) <= width
    return text


def test_terminal(two_step_run):
    one = two_step_run("one", bound=1)
    document, _ = compared(one, two_step_run("other", bound=2), one)
    for width in (80, 120):
        text = text_of(document, width)
        lines = [line.split() for line in text.splitlines()]
        assert ["verdict", "FAIL", "PASS", "≠", "FAIL", "="] in lines
        assert ["violating", "tokens", "10", "0", "∦", "10", "="] in lines
        assert "They were judged by different bounds" in text
        assert text_of(document, width, "ascii").isascii()


def test_many_runs_take_several_tables_with_the_first_in_each(two_step_run):
    path = two_step_run("one", bound=1)
    data = json.loads(run("audit", path, "--format", "json").stdout)
    document = compare([data] * 7)
    lines = [line.split() for line in text_of(document, 80).splitlines()]
    assert lines.count(["verdict", "FAIL", "FAIL", "=", "FAIL", "="]) == 3  # three tables of A and two others
    heads = [line for line in lines if line[:1] == ["A"] and line[1:2] != ["one"]]
    assert {tuple(head) for head in heads} == {("A", "B", "C"), ("A", "D", "E"), ("A", "F", "G")}


def test_hostile_names_stay_text(two_step_run):
    document, _ = compared(two_step_run("one", bound=1), two_step_run("other", bound=1))
    document["runs"][0] |= {"path": "/a|b\x1b[31m\n<b>", "framework": "@x `|`", "unit": "[u](http://x)"}
    document["figures"][0]["values"][0] = "[red]\x1b"
    assert "\x1b" not in text_of(document, 80)
    text = comparison_markdown(document, Path.cwd())
    assert not any(mark in text for mark in ("\x1b", "<b>", "@x", "](", "`"))
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {7, 4}
    page = render_comparison_page(document, Path.cwd())
    assert not any(mark in page for mark in ("\x1b", "<b>", "<script"))
    assert "&lt;b&gt;" in page and "default-src &#39;none&#39;" in page


def test_page(two_step_run, tmp_path):
    run("compare", two_step_run("one", bound=1), two_step_run("other", bound=2), "--html", "page.html", "--quiet")
    page = (tmp_path / "page.html").read_text()
    assert "<title>2 runs compared: staleness audit</title>" in page
    assert "They were judged by different bounds" in page
    assert re.search(
        r'<td>violating tokens</td><td class="number">10</td><td class="number quiet">0 <span role="img"', page
    )
    assert not re.search(r'(?:src|href)="(?!#|data:)', page)  # nothing is fetched


def test_values_in_words():
    words = Words()
    assert value_words({"lo": 0.25, "hi": 0.25}, "share", words) == "25%"
    assert value_words({"lo": 75, "hi": 75}, "seconds", words) == "1 min 15 s"
    assert value_words({"lo": 0, "hi": None}, "count", words) == ""
    assert value_words(True, "word", words) == "yes"
    assert value_words("fail", "word", words) == "FAIL"
    assert letters(28)[-2:] == ["AA", "AB"]

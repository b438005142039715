"""What the terminal shows: right words, nothing raw, nothing that overflows, nothing that steers it."""

from __future__ import annotations

import io
import json
import re

import pytest
from conftest import EventLog, write_two_steps
from rich.console import Console

from staleness_audit import plugins
from staleness_audit.api import audit
from staleness_audit.check.gate import Gate
from staleness_audit.parser import Artifact, Card, Mode
from staleness_audit.rebuild import modules
from staleness_audit.report.terminal import (
    notebook_html,
    render_audit,
    render_frameworks,
    render_rows,
    render_schema,
    render_story,
    render_summary,
)
from staleness_audit.report.terminal.histogram import Bin, bar, bins, sparkline
from staleness_audit.report.terminal.page import Page
from staleness_audit.report.terminal.schema import COLUMNS, GRAINS
from staleness_audit.report.terminal.verdict import bound_line, promise_lines
from staleness_audit.report.terminal.words import (
    ASCII,
    UNICODE,
    duration,
    interval,
    moment,
    number,
    percent,
    percent_interval,
    place,
    plain,
    shorten,
)
from staleness_audit.tables import SCHEMAS


class AsciiFile(io.StringIO):
    """A file whose encoding has no characters beyond ASCII."""

    encoding = "ascii"


def shown(render, *arguments, width=80, ascii_only=False, **options) -> str:
    """What a renderer writes to a pipe of so many columns; checked to stay within them."""
    file = AsciiFile() if ascii_only else io.StringIO()
    render(*arguments, Console(file=file, width=width, highlight=False), **options)
    text = file.getvalue()
    assert all(len(line) <= width for line in text.splitlines()), max(text.splitlines(), key=len)
    assert not any(line.endswith(" ") for line in text.splitlines())
    assert not [character for character in text if not character.isprintable() and character != "\n"]
    return text


def flat(text: str) -> str:
    """Text without its line breaks and columns."""
    return " ".join(text.split())


# ------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(17, 17, "17"), (7, 30, "7–30"), (5, None, "≥ 5"), (0, None, "unknown"), (None, None, "unknown"),
     (None, 9, "≤ 9"), (0, 0, "0"), (-2, 3, "-2 to 3"),
     (20112, 20112, "20,112"), (0.25, 1.5, "0.25–1.50"), (2.0, 2, "2"), (1.001, 1.002, "1.00")],
)  # fmt: skip
def test_intervals(low, high, words):
    assert interval({"lo": low, "hi": high}) == words
    assert interval({"lo": low, "hi": high}, ASCII).isascii()


def test_other_values():
    assert [number(value) for value in (1234567, 2.345, 0.0042, 123.4)] == ["1,234,567", "2.35", "0.0042", "123"]
    assert [percent(share) for share in (0, 0.001, 0.5, 0.995, 1)] == ["0%", "<1%", "50%", ">99%", "100%"]
    assert percent_interval({"lo": 0.25, "hi": 0.5}) == "25–50%"
    assert percent_interval({"lo": 0.25, "hi": None}) == "≥ 25%"
    assert percent_interval({"lo": 0, "hi": 1}) == "unknown"
    assert percent_interval({"lo": 0.0029, "hi": None}) == "≥ 0.29%"
    assert percent_interval({"lo": 0.003, "hi": 0.004}) == "<1%"
    assert [duration(seconds) for seconds in (0.44, 59, 273, 7500, 90000)] == [
        "0.4 s",
        "59 s",
        "4 min 33 s",
        "2 h 5 min",
        "1 d 1 h",
    ]
    assert moment("2025-10-09T08:53:36+00:00") == "2025-10-09 08:53:36 UTC"
    assert moment("1970-01-01T00:00:09.500000+00:00") == "9.5 s by the logs' own clock"
    assert place({"source": "a.log", "line": 3, "locator": "samples[2]"}) == "a.log:3 samples[2]"
    assert place({"source": None, "line": None, "locator": "step 4"}) == "step 4"
    assert shorten("a-very-long-name", 9, UNICODE) == "a-ve…name"


def test_text_from_logs_is_made_harmless():
    assert plain("a\x1b[31mb\nc\u202ed") == "a\ufffd[31mb c\ufffdd"
    assert plain("naïve", ASCII) == "na?ve"
    assert len(plain("x" * 10**7)) == 500


# ------------------------------------------------------------------------------------------------- bars


def rows_of(*counts):
    return [{"staleness": value, "tokens": {"lo": low, "hi": high}} for value, low, high in counts]


def test_bins_of_a_short_histogram_are_its_rows():
    found = bins(rows_of((0, 5, 5), (1, 3, 3), (2, 1, 1)), "tokens", 1, {"lo": 9, "hi": 9})
    assert found == [Bin(0, 0, 5, 5), Bin(1, 1, 3, 3), Bin(2, 2, 1, 1)]


@pytest.mark.parametrize("bound", [None, 0, 3, 19, 150, 1000])
def test_bins_of_a_long_histogram_lose_nothing_and_respect_the_bound(bound):
    found = bins(rows_of(*((value, 1, 1) for value in range(200))), "tokens", bound, {"lo": 200, "hi": 200})
    assert len(found) <= 18
    assert sum(each.low for each in found) == 200
    assert (found[0].first, found[-1].last) == (0, 199)
    assert [each.first for each in found[1:]] == [each.last + 1 for each in found[:-1]]
    if bound is not None:
        assert all(each.last <= bound or each.first > bound for each in found)


def test_joined_bins_do_not_count_uncertain_tokens_twice():
    """Ten tokens somewhere in 0–99, five certainly at 0: no bin can hold more than the ten beside those five."""
    found = bins(rows_of((0, 5, 15), *((value, 0, 10) for value in range(1, 100))), "tokens", 200, {"lo": 15, "hi": 15})
    assert (found[0].low, found[0].high) == (5, 15)
    assert {each.high for each in found[1:]} == {10}


def test_joined_bins_beyond_the_bound_hold_no_more_than_can_violate_it():
    """Of 30 tokens at most 12 lie beyond 0, one of them at 3 for certain: 11 are left for any other bin beyond it."""
    rows = rows_of((0, 0, 30), *((value, 0, 12) for value in (1, 2)), (3, 1, 12), *((v, 0, 12) for v in range(4, 21)))
    found = bins(rows, "tokens", 0, {"lo": 30, "hi": 30}, {"lo": 1, "hi": 12})
    assert [(each.first, each.last, each.low, each.high) for each in found[:4]] == [
        (0, 0, 0, 29),
        (1, 2, 0, 11),
        (3, 4, 1, 12),
        (5, 6, 0, 11),
    ]
    assert {each.high for each in found[4:]} == {11}


def test_bars_show_what_is_certain_and_what_is_possible():
    assert bar((5, 10), 10, UNICODE, "green", 10).plain == "█████░░░░░"
    assert bar((5, None), 10, UNICODE, "green", 10).plain == "█████→"
    assert bar((99, None), 10, UNICODE, "green", 10).plain == "█████████→"  # never longer than its place
    assert bar((5, 99), 10, UNICODE, "green", 10).plain == "█████░░░░░"
    assert bar((5, 10), 10, UNICODE, "green", 0).plain == ""
    assert bar((1, 1), 1000, UNICODE, "green", 10).plain == "▏"
    assert bar((0, 1), 1000, UNICODE, "green", 10).plain == "░"
    assert bar((5, 10), 10, ASCII, "green", 10).plain == "#####....."
    assert sparkline([0, 4, None, 8], 4, UNICODE).plain == "▁▅ █"
    assert len(sparkline(range(1000), None, UNICODE)) <= 60


# ------------------------------------------------------------------------------------------------- the audit


def test_pass(two_step_run):
    text = shown(render_audit, audit(two_step_run("run", bound=2)).data)
    assert text.split()[0] == "PASS"
    words = flat(text)
    assert "Every trained token was within the bound of 2: the largest staleness is 2." in words
    assert "bound 2, from the run's configuration: bound = 2" in words
    assert "violations none, and none possible" in words
    assert "This run kept the bound; whether the mechanism guarantees it is not known" in words
    assert "steps 2 steps completed" in words
    assert "trained 2 trajectories of 2 seen, 20 tokens" in words
    assert "Worst violations" not in words


def test_fail(two_step_run):
    words = flat(shown(render_audit, audit(two_step_run("run"), 1).data))
    assert words.startswith("FAIL toy")
    assert (
        "1 of 2 trained trajectories is proven to hold tokens staler than the bound of 1 allows; the worst is 2."
        in words
    )
    assert "bound 1, given with --bound" in words
    assert "largest 2, 1 beyond the bound (the run satisfies every bound from 2 on)" in words
    assert "proven 1 trajectory, 1 group, 10 tokens, in 1 step (2)" in words
    assert "possible none beside these" in words
    assert "gate exit code 1: refused" in words
    # Half the tokens at 0, half at 2, on either side of the line.
    assert "0 10 50% ████████████████████████████████ bound 1 ──────" in words
    # The header is line 1, then come four events of a, and of b its admission and, on line 7, its span.
    assert "The worst: b of group group-b, trained by step 2." in words
    assert "oldest trained tokens run.staleness.jsonl:7" in words
    assert "2 versions old: 0 in flight, 2 in the queue; the bound is 1." in words


def test_inconclusive_for_want_of_the_end_line(two_step_run):
    words = flat(shown(render_audit, audit(two_step_run("run", bound=2, end=False)).data))
    assert words.startswith("INCONCLUSIVE")
    assert "a part of the logs is missing, damaged or contradicts itself" in words
    assert "largest ≥ 2" in words
    assert "proven none possible an unknown number" in words
    assert "warning run.staleness.jsonl:13 Writer main of attempt 0 has no end line" in words
    assert "not known: masked out of the loss, dropped (reason unknown)" in words


def test_inconclusive_for_want_of_exact_versions(event_log):
    log = event_log("run", bound=1)
    log.add("span", trajectory_id="t", tokens=5, version_lo=0, version_hi=2).add("trained", trajectory_id="t", step=2)
    words = flat(shown(render_audit, audit(log.add("step", step=2, version=2).close()).data))
    assert "up to 1 trained trajectory may exceed the bound of 1" in words
    assert "largest 0–2" in words
    assert "possible up to 1 trajectory, 1 group, 5 tokens" in words
    assert "staleness of trained tokens known: 100% within limits" in words
    assert "Trajectories that may violate the bound" in words
    assert "█ certain ░ possible" in words


@pytest.mark.parametrize("width", [80, 100])
def test_long_names_are_shortened_rather_than_broken(event_log, width):
    """Names of 40 characters, one of them marked: each row stays one line, whatever stands beside it."""
    log = event_log("run", bound=0)
    for name, newest in (("a", 0), ("b", 1)):
        log.add("span", trajectory_id=name * 40, tokens=5, version_lo=0, version_hi=newest)
        log.add("trained", trajectory_id=name * 40, step=1)
    log.add("step", step=1, version=1, trajectories=2)
    text = shown(render_audit, audit(log.close()).data, width=width)
    table = text[text.index("Worst violations") : text.index("?: possible")]
    rows = [line for line in table.splitlines() if line.startswith(("  aaaa", "  bbbb"))]
    assert len(rows) == 2 and "…" in rows[0] and "… " not in rows[0]
    assert rows[1].split()[1:3] == ["?", "1"]


def test_the_worst_is_the_same_however_many_are_listed(event_log):
    """Ten trajectories that are equally stale."""
    log = event_log("run", bound=0)
    for name in "abcdefghij":
        log.add("span", trajectory_id=name, tokens=5, version=0).add("trained", trajectory_id=name, step=1)
    path = log.add("step", step=1, version=1, trajectories=10).close()
    listed = [row["trajectory_id"] for row in audit(path).data["violations"]["worst"]]
    assert [row["trajectory_id"] for row in audit(path, worst=3).data["violations"]["worst"]] == listed[:3]
    assert audit(path).explain().trajectory_id == listed[0]


def test_a_long_dialect_stands_on_a_line_of_its_own(two_step_run):
    data = audit(two_step_run("run", bound=2)).data
    data["run"]["dialect"] = "with versions of every token, stamped before generation; one process"
    lines = shown(render_audit, data).splitlines()
    assert lines[1].endswith(data["run"]["framework"]) and lines[2] == f"  {data['run']['dialect']}"
    data["run"]["dialect"] = data["run"]["framework_version"] = "1.16 or later"
    assert shown(render_audit, data).splitlines()[1].endswith(f"{data['run']['framework']} 1.16 or later")


def test_no_bound(two_step_run):
    words = flat(shown(render_audit, audit(two_step_run("run")).data))
    assert words.startswith("NO BOUND")
    assert "The largest staleness is 2. Whether that is too much is not judged" in words
    assert "exit code 0: no bound to judge by" in words
    assert "What the logs could not tell, and what to switch on" in words
    assert '→ write "bound" into the header, or give --bound' in words


def test_nothing_trained(event_log):
    log = event_log("run", bound=1).add("admitted", trajectory_id="t").add("step", step=1, version=1, completed=False)
    words = flat(shown(render_audit, audit(log.close()).data))
    assert "No training step completed, so there is nothing to judge." in words
    assert "largest nothing was trained on" in words


def test_waste_adds_up_and_is_named_by_reason(event_log):
    """40 tokens: 10 trained, 20 dropped as stale, 6 lost to an error, 4 left over."""
    log = event_log("run", bound=1)
    for name, tokens in (("t", 10), ("d", 20), ("l", 6), ("p", 4)):
        log.add("span", trajectory_id=name, tokens=tokens, version=0).add("finished", trajectory_id=name)
    log.add("dropped", trajectory_id="d", reason="stale", step=1).add("lost", trajectory_id="l", reason="error")
    log.add("trained", trajectory_id="t", step=1).add("step", step=1, version=1)
    words = flat(shown(render_audit, audit(log.close()).data, width=100))
    assert "trained 10 25% ██████" in words
    assert "dropped (too stale) 20 50% ████████████" in words
    assert "lost (error) 6 15%" in words
    assert "pending at the end 4 10%" in words
    assert "generated in all 40" in words
    assert "wasted 75% of the generated tokens were never trained on" in words


@pytest.mark.parametrize(
    ("verdict", "strict", "limit", "words"),
    [
        ("pass", True, 1, "This run kept the bound, and the mechanism guarantees it (its limit is 1)"),
        ("pass", False, "none", "This run kept the bound, but the mechanism does not guarantee it (it sets no limit)"),
        ("pass", None, None, "This run kept the bound; whether the mechanism guarantees it is not known"),
        (
            "fail",
            True,
            1,
            "This run broke the bound although the mechanism guarantees it: something did not work as designed "
            "(its limit is 1)",
        ),
        ("fail", False, 2, "This run broke the bound, and the mechanism does not guarantee it (its limit is 2)"),
        (
            "inconclusive",
            False,
            2,
            "Whether this run kept the bound is not known, and the mechanism does not guarantee it (its limit is 2)",
        ),
        ("no-bound", None, 4, "The mechanism limits staleness to 4"),
        ("no-bound", False, "none", "The mechanism sets no limit to staleness"),
    ],
)
def test_what_is_observed_is_told_apart_from_what_is_promised(verdict, strict, limit, words):
    data = {"verdict": verdict, "guarantee": {"strict": strict, "limit": limit, "reason": "so it is"}}
    assert promise_lines(data, Page(Console(file=io.StringIO()))) == (words, "so it is.")


def test_the_bound_says_where_it_comes_from():
    page = Page(Console(file=io.StringIO()))
    bound = {
        "value": 2,
        "source": "config",
        "key": "max_staleness",
        "configured": 1,
        "conversion": "one more in flight",
    }
    assert (
        bound_line({"bound": bound}, page) == "2, from the run's configuration: max_staleness = 1 (one more in flight)"
    )
    assert (
        bound_line({"bound": {**bound, "source": "cli"}}, page)
        == "2, given with --bound (the run's configuration says 1)"
    )
    nothing = {"value": None, "source": None, "key": None, "configured": None, "conversion": None}
    assert bound_line({"bound": nothing}, page) == "none"


def test_health_says_since_when_and_what_it_waited_for(two_step_run):
    data = audit(two_step_run("run", bound=2)).data
    data["run"]["health"] = {"state": "stuck", "since": "2026-01-02T03:04:05+00:00", "waiting_for": "a straggler"}
    assert "health stuck since 2026-01-02 03:04:05 UTC, waiting for a straggler" in flat(shown(render_audit, data))
    data["run"]["health"] = {"state": "crashed", "since": None, "waiting_for": None}
    assert "health crashed" in flat(shown(render_audit, data))


def test_own_figures_of_the_framework_that_disagree(two_step_run):
    data = audit(two_step_run("run", bound=2)).data
    row = {
        "name": "step.staleness_max",
        "raw_name": "lag/max",
        "attempt": 0,
        "source": "m.log",
        "line": 9,
        "rebuilt": {"lo": 2, "hi": 2},
    }
    data["reported"] = [
        {**row, "step": 1, "reported": 2.0, "agrees": True},
        {**row, "step": 2, "reported": 1.0, "agrees": False},
    ]
    words = flat(shown(render_audit, data))
    assert "lag/max (largest token staleness in the step): 1 of 2 differ step 2: reported 1, rebuilt 2 m.log:9" in words
    close = {"step": 3, "reported": 0.8062, "rebuilt": {"lo": 0.8103, "hi": 0.8103}, "agrees": False}
    data["reported"] = [{**row, **close}]
    assert "step 3: reported 0.8062, rebuilt 0.8103" in flat(shown(render_audit, data))


def test_few_diagnostics_unless_verbose(two_step_run):
    data = audit(two_step_run("run", bound=2)).data
    item = {"source": "a.log", "line": 1, "locator": None, "severity": "warning", "code": "odd", "opens": None}
    data["diagnostics"] = {
        "errors": 0,
        "warnings": 9,
        "items": [{**item, "message": f"Odd thing {n}."} for n in range(9)],
    }
    words = flat(shown(render_audit, data))
    assert "Odd thing 4." in words and "Odd thing 5." not in words and "4 more with --verbose" in words
    assert "Odd thing 8." in flat(shown(render_audit, data, verbose=True))


HOSTILE = "[bold red]x[/] \x1b[2J\u202e\x07" + "wide" * 80


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Documents of every verdict, and one in which all text is hostile."""
    folder = tmp_path_factory.mktemp("documents")

    def log_of(name, **header):
        return EventLog(folder / name / "run.staleness.jsonl", **header)

    log = log_of("hostile", framework=HOSTILE, unit=HOSTILE, bound=0)
    log.add("span", trajectory_id=HOSTILE, group_id=HOSTILE, tokens=5, version=0).add(
        "trained", trajectory_id=HOSTILE, step=1
    )
    log.add("step", step=1, version=1).add("dropped", trajectory_id="d", reason=f"other:{HOSTILE}").add(HOSTILE)
    runs = [
        write_two_steps(log_of("kept", bound=2)),
        write_two_steps(log_of("broken", bound=1)),
        write_two_steps(log_of("none")),
        write_two_steps(log_of("cut", bound=2), end=False),
        log.close(),
    ]
    return [audit(path, tables=folder / f"{path.name}-tables").data for path in runs]


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_every_document_fits_every_terminal(documents, width, ascii_only):
    """``shown`` checks the width and the characters; nothing raw stands anywhere, and markup of logs is only text."""
    for data in documents:
        text = shown(render_audit, data, width=width, ascii_only=ascii_only, verbose=True)
        assert "None" not in text and "null" not in text and "nan" not in text
        assert text.isascii() or not ascii_only
    assert "[bold red]x[/]" in text  # the last one is the hostile one
    summary = shown(lambda console: render_summary(documents, console), width=max(width, 80), ascii_only=ascii_only)
    assert summary.count("FAIL") == 2


def test_colour_only_where_wanted(documents, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = io.StringIO()
    render_audit(documents[1], Console(file=coloured, force_terminal=True, color_system="truecolor", width=80))
    assert "\x1b[1;37;41m FAIL \x1b[0m" in coloured.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    bare = io.StringIO()
    render_audit(documents[1], Console(file=bare, force_terminal=True, color_system="truecolor", width=80))
    assert ";41m" not in bare.getvalue() and " FAIL " in bare.getvalue()


# ------------------------------------------------------------------------------------------------- stories


def test_story_of_a_violation(event_log):
    """T: 4 tokens of v3, 6 of v5; step 9 trains it from v8. 8 - 3 = 5: 2 in flight (v3 to v5), 3 in the queue."""
    log = event_log("run", bound=3)
    log.add("admitted", trajectory_id="g7/0", group_id="g7", version=3, ts=100.0)
    log.add("span", trajectory_id="g7/0", tokens=4, version=3, ts=102.0).add(
        "span", trajectory_id="g7/0", tokens=6, version=5, ts=104.5
    )
    log.add("finished", trajectory_id="g7/0", ts=105.0).add("enqueued", trajectory_id="g7/0", ts=105.0)
    log.add("trained", trajectory_id="g7/0", step=9, ts=110.0).add(
        "step", step=9, version=8, started=110.0, ended=111.0
    )
    text = shown(render_story, audit(log.close()).explain("g7/0"))
    words = flat(text)
    assert (
        "Let T be trajectory g7/0. T belongs to group g7; attempt 0 of the run admitted it; it has 10 sampled tokens."
        in words
    )
    assert "Its fate: trained." in words
    lines = [line.strip() for line in text.splitlines()]
    drawing = lines[lines.index("Its life over policy versions") + 1 :][:6]
    assert [line.split(" ")[0] for line in drawing] == ["v3", "v4", "v5", "v6–v7", "v8", "age:"]
    assert drawing[0].endswith("4 tokens  age 5") and drawing[2].endswith("6 tokens  age 3")
    assert "no token sampled" in drawing[1] and "waits in the queue" in drawing[3]
    assert "2.0 v3 generated: 4 tokens run.staleness.jsonl:3" in words
    assert "10.0 v8 trained by step 9: 10 tokens run.staleness.jsonl:7" in words
    assert (
        "Step 9 trains from v8; the oldest trained token of T is v3. 8 - 3 = 5 > 3, beyond the bound: "
        "2 in flight, 3 in the queue." in words
    )
    assert "Could have been stopped at L3" in words and "L2" not in words
    assert "L1, holding it back" in flat(
        shown(render_story, audit(log.path.parent).explain("g7/0"), stoppable={9: ["L1", "L3"]})
    )
    assert "Evidence: of 6 lines, 6 recorded." in words


def test_story_without_training(event_log):
    log = event_log("run", bound=1).add("span", trajectory_id="t", tokens=4, version=0)
    log.add("dropped", trajectory_id="t", reason="zero_advantage")
    words = flat(shown(render_story, audit(log.close()).explain("t")))
    assert "No group of T is logged" in words
    assert "Its fate: dropped (no advantage)." in words
    assert "No step that counts trained on T, so it has no staleness and violates nothing." in words


def test_story_with_intervals_claims_no_more_than_they_do(event_log):
    log = event_log("run", bound=1)
    log.add("span", trajectory_id="t", tokens=5, version_lo=0, version_hi=2).add("trained", trajectory_id="t", step=2)
    words = flat(shown(render_story, audit(log.add("step", step=2, version=2).close()).explain("t")))
    assert "the oldest trained token of T is v0–v2. Its staleness is 0–2, which may exceed the bound of 1" in words
    assert "beyond" not in words and "Could have been stopped" not in words


def test_story_of_hostile_names(documents, event_log):
    log = event_log("other", bound=0)
    log.add("span", trajectory_id=HOSTILE, group_id=HOSTILE, tokens=5, version=0).add(
        "trained", trajectory_id=HOSTILE, step=1
    )
    result = audit(log.add("step", step=1, version=1).close())
    for width in (40, 80):
        assert "[bold red]x[/]" in shown(render_story, result.explain(HOSTILE), width=width, ascii_only=width == 40)


# ------------------------------------------------------------------------------------------------- the rest


def card(name, modes):
    artifacts = (Artifact("dumps/*.pt", "--dump", "every version"),)
    return type(
        "Fake",
        (),
        {"name": name, "version": "3", "card": Card(f"{name}'s logs", "steps", artifacts, modes, "Gaps are.")},
    )()


def test_frameworks_in_one_table_and_one_in_full():
    strict = Mode("sync", "max_lag", "as it is", True, "1", "it waits")
    loose = Mode("async", None, "none", False, "none", "nothing is checked")
    parsers = {"alpha": card("alpha", (strict, loose)), "beta": card("beta", (loose,))}
    text = shown(render_frameworks, parsers)
    rows = [line.split() for line in text.splitlines()]
    assert rows[5:] == [
        ["alpha", "max_lag"],
        ["sync", "yes", "1"],
        ["no", "key"],
        ["async", "no", "unbounded"],
        [],
        ["beta", "no", "key"],
        ["async", "no", "unbounded"],
        *rows[12:],
    ]
    full = flat(shown(render_frameworks, {"alpha": parsers["alpha"]}))
    for words in (
        "dumps/*.pt switch on --dump proves every version",
        "sync bound key max_lag",
        "because it waits",
        "Gaps are.",
    ):
        assert words in full


def test_installed_frameworks_can_be_shown():
    known = plugins.parsers()
    assert "events" in shown(render_frameworks, known)
    for name, parser in known.items():
        assert parser.card.title.split()[0] in shown(render_frameworks, {name: parser})


def test_schema_explains_every_table_product_and_column():
    text = shown(render_schema)
    assert set(GRAINS) == set(SCHEMAS)
    assert {column.name for schema in SCHEMAS.values() for column in schema} == set(COLUMNS)
    assert all(f"  {name}  " in text for name in SCHEMAS)
    assert all(f"  {module.product}  " in text for module in modules() if module.published)


def test_rows_on_a_pipe_are_whole_and_escaped():
    assert (
        shown_raw(["a", "b"], [(1, None), ("x\ty\nz\\", "…" * 300)]) == "a\tb\n1\t\nx\\ty\\nz\\\\\t" + "…" * 300 + "\n"
    )


def shown_raw(names, rows, **options) -> str:
    file = io.StringIO()
    render_rows(names, rows, Console(file=file, **options))
    return file.getvalue()


def test_rows_on_a_terminal_are_cut_and_counted():
    text = shown_raw(["n"], ((number,) for number in range(250)), force_terminal=True, width=80, color_system=None)
    assert "99" in text and "100" not in text.replace("first 100 rows", "")
    assert "first 100 rows of 250" in text
    assert "NULL" in shown_raw(["n"], [(None,)], force_terminal=True, width=80, color_system=None)


def test_wide_rows_on_a_terminal_stand_below_each_other():
    names = [f"column_{index}" for index in range(12)]
    text = shown_raw(
        names, [tuple(f"value {index}" for index in range(12))], force_terminal=True, width=80, color_system=None
    )
    assert "row 1" in text
    assert all(f"column_{index}" in text and f"value {index}" in text for index in range(12))
    assert max(len(line) for line in text.splitlines()) <= 80


def test_notebooks_show_the_report_and_run_nothing_of_it(documents):
    broken = documents[1]
    shown_there = notebook_html({**broken, "run": {**broken["run"], "framework": "<i onclick=x>"}})
    assert "FAIL" in shown_there
    assert "&lt;i onclick=x&gt;" in shown_there
    assert set(re.findall(r"<(\w+)", shown_there)) <= {"pre", "span"}


def test_document_is_not_changed_by_showing_it(documents):
    before = json.dumps(documents[1], default=str)
    shown(render_audit, documents[1])
    assert json.dumps(documents[1], default=str) == before


def test_gate_line_counts_what_the_gate_counts(two_step_run):
    data = audit(two_step_run("run"), 1, gate=Gate(count="tokens", max_violations=10)).data
    assert "exit code 0: accepted (at most 10 violating tokens allowed)" in flat(shown(render_audit, data))

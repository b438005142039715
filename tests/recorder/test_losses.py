"""What a recorder could not write shows: in its counts, in the numbers of the log, and in the verdict."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from helpers.recording import one_step, soak

from staleness_audit import audit
from staleness_audit.recorder import Recorder, Stats, files

ROOT = Path(__file__).parents[2]


def events(folder: Path) -> list[dict[str, Any]]:
    """All events of all files that are not compressed, in the order of the files' names."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]
    return [event for line in lines if "kind" in (event := json.loads(line))]


WRITER = """
import sys, time
from staleness_audit.recorder import Recorder
record = Recorder(sys.argv[1], durable=sys.argv[2] == "durable", bound=2)
for number in range(10**9):
    record.span("a", tokens=1, version=0, number=number)
    sys.stdout.write(f"{number} {time.time()}\\n")
    sys.stdout.flush()
    time.sleep(0.001)
"""


@pytest.mark.parametrize(("mode", "events_lost", "seconds_lost"), [("buffered", 10**9, 0.1), ("durable", 1, 0.1)])
def test_kill_takes_the_last_moment_only(tmp_path: Path, mode: str, events_lost: int, seconds_lost: float) -> None:
    """A process says what it has recorded, and is killed: the log lacks at most the last 100 ms, or a line.

    The machine may be busy: what counts is the best of three.
    """
    lost: list[tuple[int, float]] = []
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        command = [sys.executable, "-c", WRITER, str(folder), mode]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        ) as worker:
            assert worker.stdout is not None
            said = [worker.stdout.readline() for _ in range(300)]
            worker.send_signal(signal.SIGKILL)
            said += [line for line in worker.stdout if line.endswith("\n")]
        number, moment = said[-1].split()
        written = events(folder)
        assert [event["number"] for event in written] == list(range(len(written)))  # whole lines, none missing between
        lost.append((int(number) + 1 - len(written), float(moment) - written[-1]["ts"]))
        if lost[-1][0] <= events_lost and lost[-1][1] <= seconds_lost:
            break
    assert min(count for count, _ in lost) <= events_lost
    assert min(seconds for _, seconds in lost) <= seconds_lost
    assert audit(folder).verdict == "inconclusive"  # it has no end line


def test_a_full_buffer_drops_counts_and_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """The disk hangs while 10 events come and 4 have room: the caller does not wait, and 6 numbers are missing."""
    record = Recorder(tmp_path / "run", capacity=4, bound=2)
    with record._writing:  # what the flusher holds while a write hangs
        for number in range(10):
            record.span("a", tokens=number, version=0)
    record.close()
    assert record.stats == Stats(written=4, dropped=6, failed=0)
    assert events(tmp_path / "run")[-1] == {"kind": "end", "n": 11, "unwritten": 6}
    assert len(caplog.records) == 1
    result = audit(tmp_path / "run")
    assert result.verdict == "inconclusive"
    assert result.data["tokens"]["trained"]["hi"] is None


class Disk:
    """``os.write`` of a disk with room for a number of bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self.write = os.write
        monkeypatch.setattr(files.os, "write", self)

    def __call__(self, descriptor: int, data: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.write(descriptor, bytes(data)[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("durable", [False, True], ids=["buffered", "durable"])
def test_a_full_disk_cuts_a_line_and_the_next_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    """Room for the header, one span and a piece of the next; then for all. What step 3 trained is proven."""
    record = Recorder(tmp_path / "run", durable=durable, bound=1)
    record.span("a", tokens=10, version=0)
    record.flush()
    disk = Disk(monkeypatch, room=20)
    record.span("b", tokens=10, version=0)
    record.flush()
    record.span("b", tokens=10, version=0)
    record.flush()
    assert record.stats == Stats(written=1, dropped=0, failed=2)
    disk.room = 10**6
    record.trained("a", step=3)
    record.step(3, version=2)
    record.close()
    assert record.stats == Stats(written=3, dropped=0, failed=2)
    raw = next((tmp_path / "run").iterdir()).read_text().splitlines()
    assert [json.loads(line).get("n") for number, line in enumerate(raw) if number != 2] == [None, 1, 4, 5, 6]
    assert len(raw[2]) == 20
    data = audit(tmp_path / "run").data
    assert data["verdict"] == "fail"  # 2 - 0 = 2 > 1, whatever is missing
    assert data["violations"]["tokens"] == {"lo": 10, "hi": None}


def test_no_room_for_the_header_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Recorder(tmp_path / "run", bound=2)
    disk = Disk(monkeypatch, room=30)
    one_step(record)
    record.flush()
    assert list((tmp_path / "run").iterdir()) == []
    disk.room = 10**6
    one_step(record, "b", step=4)
    record.close()
    assert [event["n"] for event in events(tmp_path / "run")] == [4, 5, 6, 7]
    assert audit(tmp_path / "run").verdict == "inconclusive"


def test_a_folder_that_cannot_be_made_stops_nothing(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").write_text("no folder")
    with Recorder(tmp_path / "file" / "run") as record:
        one_step(record)
    assert record.stats == Stats(written=0, dropped=0, failed=3)
    assert "Not a directory" in caplog.records[0].getMessage()


@pytest.mark.parametrize("durable", [False, True], ids=["buffered", "durable"])
def test_a_file_that_is_removed_is_missed(tmp_path: Path, caplog: Any, durable: bool) -> None:
    """Somebody clears the folder while the process records: a new file tells the audit that lines are missing."""
    with Recorder(tmp_path / "run", durable=durable, bound=2) as record:
        one_step(record)
        record.flush()
        shutil.rmtree(tmp_path / "run")
        one_step(record, "b", step=4)
    assert [line["n"] for line in events(tmp_path / "run")] == ([7] if durable else [4, 5, 6, 7])
    assert [line.getMessage() for line in caplog.records if "was removed" in line.getMessage()]
    result = audit(tmp_path / "run")
    assert (result.verdict, result.data["tokens"]["trained"]["hi"]) == ("inconclusive", None)
    # Closed meanwhile, it has no file open, and begins one as well.
    shutil.rmtree(tmp_path / "run")
    record.sync(5)
    record.close()
    assert [line["n"] for line in events(tmp_path / "run")] == [8, 9]


# -- rotation ----------------------------------------------------------------------------------------------------------


def test_rotated_files_are_one_log(tmp_path: Path) -> None:
    """40 steps over files of about 3000 bytes: the audit knows as much as of one file, unless one is gone."""
    with Recorder(tmp_path / "run", durable=True, bound=2, rotate_bytes=3000, compress=True) as record:
        for step in range(40):
            one_step(record, f"t{step}", step)
        record.dropped("x", "stale")
    wait_for_threads()
    name = f"writer-{socket.gethostname()}-{os.getpid()}-0"
    parts = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert len(parts) > 3
    assert [part for part in parts if not part.endswith(".zst")] == [f"{name}.{len(parts) - 1}.staleness.jsonl"]
    data = audit(tmp_path / "run").data
    assert (data["verdict"], data["diagnostics"]["items"]) == ("pass", [])
    assert data["trajectories"]["trained"] == {"lo": 40, "hi": 40}
    assert data["trajectories"]["dropped"] == {"stale": {"lo": 1, "hi": 1}}  # nothing opens a recorded fate
    assert data["run"]["health"]["state"] == "finished"
    (tmp_path / "run" / parts[1]).unlink()
    assert audit(tmp_path / "run").verdict == "inconclusive"


def test_a_file_that_cannot_be_compressed_is_whole_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The codec fails on every full file: all lines are there, and the end line says how many files were left."""

    def fails(path: Path) -> Any:
        raise MemoryError("no room for a window")

    monkeypatch.setattr(files, "_zstd", lambda: fails)
    with Recorder(tmp_path / "run", durable=True, bound=2, rotate_bytes=3000, compress=True) as record:
        for step in range(40):
            one_step(record, f"t{step}", step)
    left = len(list((tmp_path / "run").iterdir())) - 1
    assert left > 2
    assert record.stats == Stats(written=120, dropped=0, failed=0, uncompressed=left)
    assert sorted(event["n"] for event in events(tmp_path / "run")) == list(range(1, 122))
    (end,) = (event for event in events(tmp_path / "run") if event["kind"] == "end")
    assert end == {"kind": "end", "n": 121, "uncompressed": left}
    assert len(caplog.records) == 1
    assert "no room for a window" in caplog.records[0].getMessage()
    assert audit(tmp_path / "run").verdict == "pass"


def wait_for_threads() -> None:
    """Wait until full parts are compressed."""
    for thread in threading.enumerate():
        if thread.name == "staleness-recorder-zstd":
            thread.join(10)


# -- for long ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_eight_processes_lose_and_double_nothing(tmp_path: Path) -> None:
    record = Recorder(tmp_path / "run", "soak", bound=2, rotate_bytes=1 << 18)
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=soak, args=(record, number, 6.0)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 8
    recorded = sum(line["version"] for line in events(tmp_path / "run") if line["kind"] == "sync")
    data = audit(tmp_path / "run").data
    assert (data["verdict"], data["diagnostics"]["items"]) == ("pass", [])
    assert data["trajectories"]["trained"] == {"lo": recorded, "hi": recorded}
    assert data["tokens"]["trained"] == {"lo": 10 * recorded, "hi": 10 * recorded}

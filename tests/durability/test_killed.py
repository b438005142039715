"""Killed, out of space, not allowed, at the same time: whoever asks gets the old answer, the new one, or none."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from helpers.command import run, sentence

from staleness_audit.api import audit
from staleness_audit.ingest import Dataset

TOOL = [sys.executable, "-c", "from staleness_audit.cli import main; main()"]
LOGS = 12


def write(folder: Path, writer: int, name: str) -> None:
    """One log of a writer: a trajectory of 5 tokens, trained at staleness 0."""
    lines: list[dict[str, Any]] = [
        {"format": "staleness-events/1", "framework": "toy", "writer": f"w{writer}", "clock": "epoch", "bound": 1},
        {"kind": "span", "n": 1, "trajectory_id": name, "tokens": 5, "version": 0},
        {"kind": "trained", "n": 2, "trajectory_id": name, "step": writer},
        {"kind": "step", "n": 3, "step": writer, "version": 0},
        {"kind": "end", "n": 4},
    ]
    aside = folder / f".{writer}"
    aside.write_text("".join(json.dumps(line) + "\n" for line in lines))
    aside.replace(folder / f"w{writer:03}.staleness.jsonl")


def answer(data: dict[str, Any]) -> tuple[Any, ...]:
    return (data["verdict"], data["trajectories"]["trained"], data["tokens"]["trained"], data["violations"]["tokens"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of twelve logs that keeps its bound."""
    place = tmp_path / "run"
    place.mkdir()
    for writer in range(LOGS):
        write(place, writer, f"t{writer}")
    return place


def command(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*TOOL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **options
    )


def left_over(tables: Path) -> list[str]:
    """Temporary files of ingestions in a folder of tables."""
    known = {".parts", ".rebuilt", ".lock", ".readers", ".spill"}
    return [str(path) for path in tables.rglob(".*") if path.name not in known]


def kill_at_random(arguments: list[Any], check: Any, times: int, seed: int) -> int:
    """Start a command and kill it after a random part of the time it takes; return how often it was still at work."""
    chance = random.Random(seed)
    started = time.monotonic()
    command(*arguments).communicate()
    takes = time.monotonic() - started
    killed = 0
    for turn in range(times):
        arguments = check(turn)
        process = command(*arguments)
        try:
            process.wait(timeout=chance.uniform(0.2, 1.05) * takes)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        process.communicate()
    return killed


def kill_ingestions(folder: Path, tables: Path, times: int, seed: int) -> None:
    """The run changes before each ingestion; after each kill the tables hold the run as it was before, or as it is."""
    seen: list[tuple[Any, ...]] = [answer(audit(folder, tables=tables).data)]

    def check(turn: int) -> list[Any]:
        if turn:
            between = answer(audit(tables).data)
            assert between in seen[-2:], (turn, between, seen[-2:])
        # One more log, or one fewer.
        write(folder, LOGS, f"extra{turn}")
        if turn % 2:
            (folder / f"w{LOGS:03}.staleness.jsonl").unlink()
        trained = LOGS + (turn + 1) % 2
        both = {"lo": trained, "hi": trained}, {"lo": 5 * trained, "hi": 5 * trained}
        seen.append(("pass", *both, {"lo": 0, "hi": 0}))
        return ["audit", folder, "--tables", tables, "--format", "json"]

    killed = kill_at_random(["audit", folder, "--tables", tables], check, times, seed)
    assert killed
    # Locks are free, what was left over goes, and the answer is that of tables made anew.
    final = audit(folder, tables=tables).data
    assert answer(final) == seen[-1]
    write(folder, LOGS + 1, "last")
    assert audit(folder, tables=tables).data["trajectories"]["trained"]["lo"] > final["trajectories"]["trained"]["lo"]
    assert not left_over(tables)


def test_a_few_killed_ingestions(folder: Path, tmp_path: Path) -> None:
    kill_ingestions(folder, tmp_path / "tables", 2, seed=1)


@pytest.mark.slow
def test_two_hundred_killed_ingestions(folder: Path, tmp_path: Path) -> None:
    kill_ingestions(folder, tmp_path / "tables", 200, seed=2)


CHANGES = ("link", "mkdir", "rename", "replace", "rmdir", "unlink")


class Killed(BaseException):
    """In place of a signal; whoever has this at one change of a folder makes no other."""


def dies_at(calls: int, patch: pytest.MonkeyPatch) -> None:
    """Let the process make so many changes and no more."""

    def once(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls -= 1
            if calls < 0:
                raise Killed
            return real(*arguments, **options)

        return call

    for name in CHANGES:
        patch.setattr(os, name, once(getattr(os, name)))


@pytest.mark.parametrize("every", [pytest.param(11, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_an_ingestion_may_die_at_any_change(
    every: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log comes, its ingestion dies somewhere, and the log goes again: what is old, and perhaps half removed by then,
    is in demand once more."""
    tables, extra = tmp_path / "tables", folder / f"w{LOGS:03}.staleness.jsonl"
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    before = answer(audit(folder, tables=tables).data)
    died = True
    for calls in count(0, every):
        # This process lives on and holds what it has made for a while: a dead one would not.
        shutil.rmtree(tmp_path / "tmp")
        (tmp_path / "tmp").mkdir()
        write(folder, LOGS, f"extra{calls}")
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            dies_at(calls, patch)
            audit(folder, tables=tables)
            died = False
        assert answer(audit(tables).data)[1]["lo"] in (LOGS, LOGS + 1), calls
        extra.unlink()
        assert answer(audit(folder, tables=tables).data) == before, calls
        if not died:
            break
        assert calls < 200
    assert calls > 50
    assert not left_over(tables)


def kill_reports(folder: Path, tmp_path: Path, times: int, seed: int) -> None:
    """A report is the old file, the new one, or none; never a part of one."""
    page, tables = tmp_path / "report.html", tmp_path / "tables"
    audit(folder, tables=tables).write_html(page)
    whole = len(page.read_bytes())
    made = 0

    def check(turn: int) -> list[Any]:
        nonlocal made
        if page.exists():
            text = page.read_text()
            assert text.rstrip().endswith("</html>") and abs(len(text.encode()) - whole) < 2000
            made += 1
        if turn % 2:
            page.unlink(missing_ok=True)
        return ["report", tables, "--html", page]

    kill_at_random(["report", tables, "--html", page], check, times, seed)
    assert made
    assert run("report", tables, "--html", page).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "report.html", "tables", ".staleness-audit"}


def test_a_few_killed_reports(folder: Path, tmp_path: Path) -> None:
    kill_reports(folder, tmp_path, 2, seed=3)


@pytest.mark.slow
def test_two_hundred_killed_reports(folder: Path, tmp_path: Path) -> None:
    kill_reports(folder, tmp_path, 200, seed=4)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("only root mounts a small file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(bytes(4096)):
            pass


def test_a_full_disk_is_no_verdict_and_space_heals_it(folder: Path, small_disk: Path) -> None:
    tables = small_disk / "tables"
    filler = small_disk / "filler"
    for free in (0, 4, 16, 64, 128, 256):
        fill(filler)
        os.truncate(filler, max(0, filler.stat().st_size - (free << 10)))
        shown = run("audit", folder, "--tables", tables)
        if shown.exit_code:
            sentence(shown)
    filler.unlink()
    assert answer(audit(folder, tables=tables).data) == answer(audit(folder, tables=folder.parent / "roomy").data)
    assert not left_over(tables)


def test_a_full_disk_leaves_the_old_report(folder: Path, small_disk: Path, tmp_path: Path) -> None:
    page = small_disk / "report.html"
    page.write_text("the old one")
    fill(small_disk / "filler")
    assert "cannot be written" in sentence(run("report", folder, "--html", page, "--tables", tmp_path / "t"))
    assert page.read_text() == "the old one"
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "report.html"]


def test_a_limit_on_file_sizes_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    """As a quota would; the signal that comes with it is Python's to ignore."""
    done = subprocess.run(
        [*TOOL, "audit", str(folder), "--tables", str(tmp_path / "t")],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "Traceback" not in done.stderr
    assert answer(audit(folder, tables=tmp_path / "t").data)[0] == "pass"


MORTAL = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
"""Root to whom permissions apply, as to everybody else."""


@pytest.mark.skipif(bool(MORTAL) and not shutil.which("setpriv"), reason="root is above permissions here")
def test_a_run_and_a_cache_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    """Of a run nothing is needed but to read it; where the cache cannot be, the sentence names another place."""
    here, tables = tmp_path / "here", tmp_path / "tables"
    here.mkdir()
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    for place in (folder, here):
        place.chmod(0o555)

    def audited(*arguments: Any) -> tuple[int, bytes]:
        done = subprocess.run(
            [*MORTAL, *TOOL, "audit", *map(str, arguments)], cwd=here, capture_output=True, check=False
        )
        assert b"Traceback" not in done.stderr
        return done.returncode, done.stderr

    assert audited(folder, "--tables", tables) == (0, b"")
    for unwritable in ([], ["--tables", here / "t"]):
        code, said = audited(folder, *unwritable)
        assert code == 2 and said.startswith(b"error: ") and b"--tables" in said
    assert sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir()) == before
    # Tables that can only be read are enough, once they have been rebuilt.
    for path in [*tables.rglob("*"), tables]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert audited(tables) == (0, b"")
    for path in [folder, here, tables, *tables.rglob("*")]:
        path.chmod(0o755)


@pytest.mark.slow
def test_audits_at_the_same_time_of_a_run_that_grows(folder: Path, tmp_path: Path) -> None:
    """Each of them tells of some state that the run was in: as many trajectories as tokens, five each."""
    tables = tmp_path / "tables"
    audit(folder, tables=tables)
    for turn in range(3):
        running = [command("audit", folder, "--tables", tables, "--format", "json") for _ in range(2)]
        for more in range(4):
            write(folder, LOGS + 4 * turn + more, f"more{turn}-{more}")
            time.sleep(0.15)
        for process in running:
            out, said = process.communicate()
            data = json.loads(out)
            trained = data["trajectories"]["trained"]
            assert process.returncode == 0, said
            assert LOGS + 4 * turn <= trained["lo"] == trained["hi"] <= LOGS + 4 * turn + 4
            assert data["tokens"]["trained"] == {"lo": 5 * trained["lo"], "hi": 5 * trained["hi"]}
    assert not left_over(tables)


def test_nobody_drops_what_another_still_reads(folder: Path, tmp_path: Path) -> None:
    """An answer that is held stays whole while the run is read anew; the one after next drops its parts."""
    tables = tmp_path / "tables"
    first = audit(folder, tables=tables)
    parts = first.rebuilt.dataset.parts("uses")
    write(folder, LOGS, "new")
    second = audit(folder, tables=tables)
    assert all(part.exists() for part in parts)
    assert first.sql("SELECT count(DISTINCT trajectory_id) FROM uses").fetchall() == [(LOGS,)]
    assert second.sql("SELECT count(DISTINCT trajectory_id) FROM uses").fetchall() == [(LOGS + 1,)]
    old = first.rebuilt.folder
    assert old.exists()
    del first, second
    write(folder, LOGS + 1, "newer")
    audit(folder, tables=tables)
    assert not old.exists()
    assert {path.name for path in (tables / ".rebuilt").iterdir()} == {
        next((tables / ".rebuilt").glob(f"{Dataset.load(tables).key}-*")).name
    }


def test_workers_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    """A killed ingestion leaves no process that waits for work for ever."""
    code = (
        "import os, sys, time\n"
        "from staleness_audit.reading import processes\n"
        "if __name__ == '__main__':\n"
        "    pool = processes(None, 2)\n"
        "    print(*{pool.submit(os.getpid).result() for _ in range(8)}, flush=True)\n"
        "    pool.submit(time.sleep, 60)\n"
        "    time.sleep(60)\n"
    )
    script = tmp_path / "starts.py"
    script.write_text(code)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert workers
        parent.kill()
    deadline = time.monotonic() + 20
    while alive := [worker for worker in workers if _alive(worker)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"

"""Folders of dead processes go with the next one that makes some; those of the living stay, on whatever machine."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from helpers.command import run

from staleness_audit import scratch
from staleness_audit.discovery import discover
from staleness_audit.readers import sqlite
from staleness_audit.scratch import scratch_folder
from staleness_audit.whole import whole_file

KILLED = """
import os, signal, sys
from pathlib import Path
{begin}
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(begin: str) -> None:
    """Run a program to the point where it is killed."""
    done = subprocess.run([sys.executable, "-c", KILLED.format(begin=begin)], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr


def test_what_a_killed_process_left_goes_and_what_another_works_in_stays(tmp_path: Path) -> None:
    place = f"made = scratch_folder('x-', Path({str(tmp_path)!r}))\n"
    killed(
        "from staleness_audit.scratch import scratch_folder\n"
        + place
        + "(made.__enter__() / 'copy').write_bytes(bytes(1000))"
    )
    assert len(list(tmp_path.glob("x-*/*/copy"))) == 1
    (tmp_path / "x-not-ours" / "work").mkdir(parents=True)
    with scratch_folder("x-", tmp_path) as first, scratch_folder("x-", tmp_path) as second:
        assert first.is_dir() and second.is_dir() and not list(first.iterdir())
        assert len(list(tmp_path.iterdir())) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["x-not-ours"]


def _left_by(tmp_path: Path, call: str) -> None:
    """A process that makes a folder, and is killed at its first call of something, of which it only does a part."""
    killed(
        "from staleness_audit import scratch\n"
        f"def die(*_, **__):\n    os.kill(os.getpid(), signal.SIGKILL)\n{call} = die\n"
        f"with scratch.scratch_folder('x-', Path({str(tmp_path)!r})) as made:\n"
        "    (made / 'copy').write_bytes(bytes(1000))\n"
    )


@pytest.mark.parametrize("call", ["os.open", "scratch.fcntl.flock", "Path.mkdir", "Path.unlink", "Path.rmdir"])
def test_whoever_is_killed_while_a_folder_is_made_or_removed_leaves_it_to_the_next(call: str, tmp_path: Path) -> None:
    """Between any two steps: no lock yet, not yet locked, nothing in it yet, no contents any more, no lock any more."""
    _left_by(tmp_path, call)
    assert len(list(tmp_path.glob("x-*"))) == 1
    with scratch_folder("x-", tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_of_a_run_that_is_called_so_stays(tmp_path: Path) -> None:
    (tmp_path / "x-run-0123456789ab").mkdir()
    with scratch_folder("x-", tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["x-run-0123456789ab"]


def test_a_folder_that_was_taken_for_left_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process looks between the first two steps of making one, and before its lock."""
    took: list[str] = []

    def then_look(step: str, do: Any) -> Any:
        def stepped(*arguments: Any, **options: Any) -> Any:
            if step in took:
                return do(*arguments, **options)
            took.append(step)
            if step == "lock":
                scratch._remove_left(tmp_path, "x-")
            result = do(*arguments, **options)
            if step == "make":
                scratch._remove_left(tmp_path, "x-")
            return result

        return stepped

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", then_look("make", tempfile.mkdtemp))
    monkeypatch.setattr(scratch.fcntl, "flock", then_look("lock", scratch.fcntl.flock))
    with scratch_folder("x-", tmp_path) as made:
        assert took == ["make", "lock"]
        assert made.is_dir() and len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())


def test_a_link_that_looks_like_something_left_is_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / ".held").touch()
    (tmp_path / "x-link").symlink_to(mine)
    with scratch_folder("x-", tmp_path):
        assert (mine / ".held").exists()


def test_a_writer_on_another_machine_is_not_taken_for_dead(tmp_path: Path) -> None:
    """Its process number means nothing here: what counts is that it holds its lock. The last one to finish wins."""
    page = tmp_path / "report.html"
    begin = f"from staleness_audit.whole import whole_file\nmade = whole_file(Path({str(page)!r}))\n"
    killed(begin + "made.__enter__().write_text('half')")
    with whole_file(page) as slow:
        slow.write_text("slow")
        with whole_file(page) as quick:
            quick.write_text("quick")
        assert page.read_text() == "quick"
    assert page.read_text() == "slow"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_name_of_any_length_can_be_written(tmp_path: Path) -> None:
    name = "é" * 127
    with whole_file(tmp_path / name) as aside:
        aside.write_text("x")
    assert (tmp_path / name).read_text() == "x"


READING = {
    "a copy of a database": """
from staleness_audit.discovery import discover
from staleness_audit.readers.sqlite import open_database
made = open_database(discover(Path("db")), "x.db")
made.__enter__()
""",
    "lines of an event log": """
from staleness_audit.api import audit
from staleness_parsers.events import lines
lines._parse = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
audit("run")
""",
}


@pytest.mark.parametrize("what", READING)
def test_what_killed_readers_left_goes_with_the_next_run(
    what: str, two_step_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_step_run("run")
    database = tmp_path / "db" / "x.db"
    database.parent.mkdir()
    writer = sqlite3.connect(database, isolation_level=None)  # stays open, so that its log stays
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("CREATE TABLE metrics (id INTEGER)")
    here = tmp_path / "temporary"
    here.mkdir()
    monkeypatch.setenv("TMPDIR", str(here))
    killed(READING[what])
    (left,) = here.iterdir()
    assert any(path.stat().st_size for path in left.rglob("*"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert run("audit", "run").exit_code == 0
    with sqlite.open_database(discover(database.parent), "x.db") as opened:
        assert opened.columns("metrics") == ("id",)
    assert not list(here.iterdir())
    writer.close()

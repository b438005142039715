"""Who reads the units of a run: each exactly once, by this process and others, and an error stops them all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from helpers.cases import SAMPLES

from staleness_audit import plugins, reading
from staleness_audit.discovery import Piece, RunFiles, bundles, discover
from staleness_audit.errors import UnreadableInput
from staleness_audit.ingest import ingest
from staleness_audit.parser import Sink, Unit
from staleness_audit.store import FolderStore


class Lines:
    """A parser, as far as reading needs one: notes which unit was read by which thread."""

    uses_processes = False

    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad
        self.done: list[tuple[int, int]] = []
        self.both = threading.Barrier(2)

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        number = unit.options["number"]
        if number < 2:
            self.both.wait(10)  # nobody goes on before somebody else has begun, too
        if number == self.bad:
            raise UnreadableInput("unit of the test: it cannot be read.")
        self.done.append((number, threading.get_ident()))


def read(parser: Any, folder: Path, count: int) -> list[tuple[int, int]]:
    (folder / "run").mkdir()
    kept = FolderStore(folder / "tables")
    kept.begin()
    told: list[tuple[int, int]] = []
    counter = reading.Counter(lambda done, planned, _: told.append((done, planned)))
    units = [(f"{number:024x}", Unit("lines", (), {"number": number})) for number in range(count)]
    counter.planned = count
    work = reading.Work(parser, discover(folder / "run"), kept)
    reading.read_together(work, 2, iter(units), counter, at_once=False)
    return told


def test_every_unit_is_read_once_by_whoever_is_free(tmp_path: Path) -> None:
    parser = Lines()
    told = read(parser, tmp_path, 40)
    assert sorted(number for number, _ in parser.done) == list(range(40))
    assert len({thread for _, thread in parser.done}) == 2
    assert told == [(done, 40) for done in range(1, 41)]


def test_an_error_stops_whoever_reads(tmp_path: Path) -> None:
    """Unit 2 is bad: the other one reads what it has begun, and not the two thousand that are left."""
    parser = Lines(bad=2)
    with pytest.raises(UnreadableInput, match="it cannot be read"):
        read(parser, tmp_path, 2000)
    assert len(parser.done) < 1999


def test_processes_and_this_one_write_the_same_tables(tmp_path: Path) -> None:
    """A recorded run read by one process and by two: the same parts under the same names."""
    run = SAMPLES / "prime-rl" / "queue_unenforced_bound1" / "run"
    parts = []
    for workers in (1, 2):
        files = discover(run)
        ingest(files, plugins.choose(files), tmp_path / str(workers), workers=workers)
        parts.append({part.name for part in (tmp_path / str(workers) / ".parts").iterdir()})
    assert parts[0] == parts[1]


def test_bundles_do_not_change_when_files_are_added() -> None:
    """Files of 3 MiB each: three fill a bundle, later ones take more; what is left at the end is cut anew."""
    files = [Piece(f"{number}.jsonl", 0, 3 << 20, 1, str(number)) for number in range(400)]
    few, many = ([one for one in bundles(files[:count]) if len(one) > 2] for count in (100, 400))
    assert few == many[: len(few)]
    assert (len(few), len(few[-1])) == (33, 3)
    assert len(many[-1]) > 3
    assert [piece for bundle in bundles(files) for piece in bundle] == files

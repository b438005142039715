"""Ingestion remembers what it has read: never twice the same, never half of something, never an old answer."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard
from helpers.cases import SAMPLES
from hypothesis import given
from hypothesis import strategies as st
from oracle import compare, logs, strategies, truth
from oracle.lives import Run
from oracle.logs import Line, closed, dump
from staleness_parsers.events import EventsParser
from test_properties import examples, files_of, written

from staleness_audit import discovery
from staleness_audit import ingest as ingestion
from staleness_audit.api import audit
from staleness_audit.discovery import RunFiles
from staleness_audit.errors import UnreadableInput
from staleness_audit.ingest import StagedParts
from staleness_audit.store import FolderStore

LINES: list[Line] = closed(
    {"kind": "span", "trajectory_id": "a", "tokens": 10, "version": 2},
    {"kind": "span", "trajectory_id": "b", "tokens": 10, "version": 0},
    {"kind": "trained", "trajectory_id": "a", "step": 3},
    {"kind": "trained", "trajectory_id": "b", "step": 3},
    {"kind": "step", "step": 3, "version": 2},
    bound=1,
)
MORE = closed({"kind": "admitted", "trajectory_id": "c"}, writer="other")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "w.staleness.jsonl").write_bytes(dump(LINES))
    (folder / "x.staleness.jsonl").write_bytes(dump(MORE))
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The pieces that were parsed, as (file, first line, bytes), in the order of reading."""
    pieces: list[tuple[str, int, int]] = []
    genuine = EventsParser.read

    def counting(self: EventsParser, unit: Any, files: RunFiles, sink: Any) -> None:
        pieces.extend((piece.source, piece.first_line, piece.end - piece.start) for piece in unit.pieces)
        genuine(self, unit, files, sink)

    monkeypatch.setattr(EventsParser, "read", counting)
    return pieces


def answer(run: Path) -> dict[str, Any]:
    """The audit with tables beside the run, kept from one call to the next."""
    return audit(run, 1, tables=run.parent / "tables", worst=0).data


def test_an_unchanged_run_is_not_read_again(run: Path, read: list[Any]) -> None:
    first = answer(run)
    assert sorted(source for source, _, _ in read) == ["w.staleness.jsonl", "x.staleness.jsonl"]
    read.clear()
    assert answer(run) == first
    assert read == []


def test_new_times_on_old_bytes_are_no_change(run: Path, read: list[Any]) -> None:
    first = answer(run)
    read.clear()
    for file in run.iterdir():
        os.utime(file, (1_000_000_000, 1_000_000_000))
    assert answer(run) == first
    assert read == []


def test_of_a_grown_file_only_the_new_lines_are_read(run: Path, read: list[Any]) -> None:
    log = run / "w.staleness.jsonl"
    log.write_bytes(dump(LINES[:-1]))
    assert answer(run)["tokens"]["trained"] == {"lo": 20, "hi": None}
    read.clear()
    with log.open("ab") as stream:
        stream.write(dump(LINES[-1:]))
    assert answer(run)["tokens"]["trained"] == {"lo": 20, "hi": 20}
    assert read == [("w.staleness.jsonl", len(LINES), len(dump(LINES[-1:])))]


def test_a_file_that_has_grown_often_is_not_kept_in_ever_more_pieces(
    run: Path, read: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line after line, each a piece of its own; from the sixth on, the old ones are joined, and read once more."""
    monkeypatch.setattr(discovery, "MANY_PIECES", 4)
    log = run / "w.staleness.jsonl"
    log.write_bytes(dump(LINES[:1]))
    for line in LINES[1:]:
        with log.open("ab") as stream:
            stream.write(dump([line]))
        result = answer(run)
    assert result["tokens"]["trained"] == {"lo": 20, "hi": 20}
    assert result == answer(run)
    firsts = [first for source, first, _ in read if source == log.name]
    # Two lines at first, then one after the other; with the last one, lines 1 to 4 were joined and read anew.
    assert sorted(firsts) == [1, 1, 3, 4, 5, 6, 7]


def test_a_line_that_was_half_written_is_read_when_it_is_whole(run: Path) -> None:
    log = run / "w.staleness.jsonl"
    whole = dump(LINES)
    cut = len(dump(LINES[:3])) + 25
    log.write_bytes(whole[:cut])
    codes = [item["code"] for item in answer(run)["diagnostics"]["items"]]
    assert codes == ["no-end-line", "no-training-recorded", "cut-line"]
    log.write_bytes(whole)
    assert answer(run)["diagnostics"]["items"] == []
    assert answer(run)["violations"]["tokens"] == {"lo": 10, "hi": 10}


@pytest.mark.parametrize("same_times", [True, False], ids=["times put back", "new times"])
def test_changed_bytes_of_the_same_length_are_read_again(run: Path, read: list[Any], same_times: bool) -> None:
    log = run / "w.staleness.jsonl"
    assert answer(run)["staleness"]["max"] == {"lo": 2, "hi": 2}
    times = log.stat()
    read.clear()
    log.write_bytes(log.read_bytes().replace(b'"tokens": 10, "version": 0', b'"tokens": 10, "version": 1'))
    if same_times:
        os.utime(log, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert answer(run)["staleness"]["max"] == {"lo": 1, "hi": 1}
    assert [source for source, _, _ in read] == ["w.staleness.jsonl"]


def test_files_that_come_and_go(run: Path, read: list[Any]) -> None:
    assert answer(run)["trajectories"]["seen"] == {"lo": 3, "hi": 3}
    (run / "x.staleness.jsonl").unlink()
    assert answer(run)["trajectories"]["seen"] == {"lo": 2, "hi": 2}
    (run / "deeper").mkdir()
    (run / "deeper" / "x.staleness.jsonl").write_bytes(dump(MORE))
    assert answer(run)["trajectories"]["seen"] == {"lo": 3, "hi": 3}


def test_files_come_in_natural_order(tmp_path: Path) -> None:
    """Numbers count as numbers, whatever zeros they begin with, and come before all else."""
    names = ["ab", "a10/1", "a02.log", "a10", "a3", "a-", "a1", "a2b", "a"]
    in_order = ["a", "a1", "a02.log", "a2b", "a3", "a10", "a10/1", "a-", "ab"]
    assert sorted(names, key=discovery.natural) == in_order


def test_a_later_listing_makes_new_entries_only_for_what_has_changed(tmp_path: Path) -> None:
    """Of four files one is written anew with as many bytes, one grows, one goes, and one comes."""
    for name in ("same", "anew", "grown", "gone"):
        (tmp_path / name).write_text("1")
    before = discovery.discover(tmp_path)
    aside = tmp_path / "aside"
    aside.write_text("2")
    aside.replace(tmp_path / "anew")
    (tmp_path / "grown").write_text("12")
    (tmp_path / "gone").unlink()
    (tmp_path / "come").write_text("1")
    now = discovery.discover(tmp_path, before)
    assert now == discovery.discover(tmp_path)
    assert [file.source for file in now.files] == ["anew", "come", "grown", "same"]
    assert [file.source for file in now.files if file in before.files] == ["same"]
    assert now.file("same") is before.file("same")


def test_tables_are_never_written_into_the_run(run: Path) -> None:
    with pytest.raises(UnreadableInput, match="never written into the run directory"):
        audit(run, 1, tables=run / "tables")


def test_the_cache_below_a_run_is_no_part_of_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    first = audit(".", 1).data
    assert (run / ".staleness-audit").is_dir()
    assert audit(".", 1).data == first


class Killed(Exception):
    """Stands for a process that ends here."""


def _at_call(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The function, that dies when it is called for the number-th time (after its work if the number is negative)."""
    calls = 0

    def dying(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise Killed
        value = function(*args, **more)
        if calls == -number:
            raise Killed
        return value

    return dying


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        (EventsParser, "plan", 1),
        (EventsParser, "read", 1),
        (EventsParser, "read", -1),
        (EventsParser, "finish", 1),
        (EventsParser, "finish", -1),
        (FolderStore, "show", 1),
        (FolderStore, "show", -2),
        (ingestion, "_sources", 1),
        (FolderStore, "publish", 1),
        (FolderStore, "publish", -1),
        (FolderStore, "clean", 1),
    ],
)
def test_an_interrupted_ingestion_leaves_old_or_new_tables(
    run: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int
) -> None:
    tables = run.parent / "tables"
    old = answer(run)
    (run / "y.staleness.jsonl").write_bytes(dump(closed({"kind": "admitted", "trajectory_id": "d"}, writer="third")))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, _at_call(getattr(owner, name), number))
        with pytest.raises(Killed):
            answer(run)
    # Whoever opens the tables now sees a whole run: the one before, or the one after.
    between = audit(tables, 1, worst=0).data
    assert between["trajectories"]["seen"] in ({"lo": 3, "hi": 3}, {"lo": 4, "hi": 4})
    assert between["tokens"] == old["tokens"]
    assert answer(run)["trajectories"]["seen"] == {"lo": 4, "hi": 4}
    # What is left over goes with the next change.
    (run / "y.staleness.jsonl").unlink()
    answer(run)
    kept = {path.name for path in (tables / ".parts").iterdir()}
    assert len(kept) == len(manifest(run)["inputs"]) + 1


def test_linking_never_takes_a_part_away(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that old and new tables share stay in place while they are linked anew."""
    answer(run)
    (run / "y.staleness.jsonl").write_bytes(dump(closed({"kind": "admitted", "trajectory_id": "d"}, writer="third")))
    named = [run.parent / "tables" / part for parts in manifest(run)["tables"].values() for part in parts]
    genuine = Path.hardlink_to

    def watching(self: Path, target: Path) -> None:
        assert all(part.exists() for part in named)
        genuine(self, target)

    monkeypatch.setattr(Path, "hardlink_to", watching)
    assert answer(run)["trajectories"]["seen"] == {"lo": 4, "hi": 4}


def manifest(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.parent / "tables" / "run.json").read_text())
    return found


@examples(4)
@given(lived=strategies.runs(), seed=st.integers(0, 2**16), size=st.sampled_from((150, 1 << 20)))
def test_growing_in_steps_ends_where_reading_at_once_does(
    tmp_path_factory: pytest.TempPathFactory, lived: Run, seed: int, size: int
) -> None:
    rng = random.Random(seed)
    folder = tmp_path_factory.mktemp("growing")
    files = files_of(logs.log_of(lived))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFiles.split, "__defaults__", (size,))
        for share in sorted(rng.random() for _ in range(2)):
            written({name: data[: int(len(data) * share)] for name, data in files.items()}, folder / "run")
            halfway = answer(folder / "run")
            assert compare.escapes(halfway, truth.figures(lived, 1)) == []
        written(files, folder / "run")
        assert compare.differences(answer(folder / "run"), truth.figures(lived, 1)) == []


def test_a_log_beside_its_compressed_copy_is_read_once(run: Path, read: list[Any]) -> None:
    log = run / "w.staleness.jsonl"
    alone = answer(run)
    (run / "w.staleness.jsonl.gz").write_bytes(gzip.compress(log.read_bytes()))
    (run / "w.staleness.jsonl.zst").write_bytes(zstandard.compress(log.read_bytes()[:100]))  # made while it grew
    read.clear()
    document = answer(run)
    assert read == []
    notes = {item["source"]: item["message"] for item in document["diagnostics"]["items"]}
    assert "only repeats w.staleness.jsonl" in notes["w.staleness.jsonl.gz"]
    assert "only repeats w.staleness.jsonl" in notes["w.staleness.jsonl.zst"]
    assert document["violations"] == alone["violations"]


def test_of_two_files_with_one_name_the_one_left_unread_is_named(tmp_path: Path) -> None:
    """Nothing tells which of them the run wrote, so what it would have said is missing."""
    shutil.copytree(SAMPLES / "prime-rl" / "queue_unenforced_bound1" / "run", tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 99}\n')
    document = answer(tmp_path / "run")
    (found,) = [item for item in document["diagnostics"]["items"] if item["code"] == "one-name-two-files"]
    assert {found["source"], found["message"].split()[2]} == {"metrics.jsonl", "metrics.jsonl.zst"}
    assert document["violations"]["trajectories"]["hi"] is None


def test_a_longer_compressed_copy_is_the_one_that_is_read(run: Path) -> None:
    log = run / "w.staleness.jsonl"
    whole = log.read_bytes()
    alone = answer(run)
    (run / "w.staleness.jsonl.gz").write_bytes(gzip.compress(whole))
    log.write_bytes(whole[: len(whole) // 2])
    document = answer(run)
    assert [item["source"] for item in document["diagnostics"]["items"]] == ["w.staleness.jsonl"]
    assert document["violations"]["trajectories"] == alone["violations"]["trajectories"]


@pytest.mark.parametrize("folder", ["lr=[1,2]*?", "step=7", "{a,b}"])
def test_a_path_is_only_a_path(folder, two_step_run, tmp_path, monkeypatch):
    """Sweeps name folders after settings: those are no patterns, and no columns of every row."""
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    result = audit(two_step_run(f"{folder}/run", bound=1))
    assert (result.verdict, result.data["staleness"]["max"]) == ("fail", {"lo": 2, "hi": 2})
    assert result.table("steps").collect()["step"].sort().to_list() == [0, 2]
    assert result.sql("SELECT step FROM steps ORDER BY step").fetchall() == [(0,), (2,)]


def test_staged_rows_are_those_of_all_units_or_of_some(tmp_path: Path) -> None:
    """Each unit's parts are in a folder of its name."""
    for unit, numbers in (("first", [1, 2]), ("second", [3])):
        (tmp_path / unit).mkdir()
        pl.DataFrame({"x": numbers}).write_parquet(tmp_path / unit / "seen.parquet")
    staged = StagedParts(tmp_path, {"seen": [tmp_path / unit / "seen.parquet" for unit in ("first", "second")]})
    assert staged.scan("seen").collect()["x"].to_list() == [1, 2, 3]
    assert staged.scan("seen", units={"second"}).collect()["x"].to_list() == [3]
    assert staged.scan("seen", named=True).collect().rows() == [(1, "first"), (2, "first"), (3, "second")]
    assert staged.scan("seen", units=(), named=True).collect().shape == (0, 2)
    assert staged.scan("spans", named=True).collect().columns[-1] == "unit"


@pytest.mark.parametrize("begins", [None, re.compile(rb"\{")], ids=["lines alone", "lines with earlier ones"])
def test_a_file_that_goes_on_is_cut_as_one_that_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: re.Pattern[bytes] | None
) -> None:
    """A log grows by some lines, perhaps half ones, and is once in a while cut short or written anew.

    Who has kept how far it was read gets the same pieces as who hashes it from its beginning, and hashes less.
    """
    monkeypatch.setattr(discovery, "MANY_PIECES", 6)
    monkeypatch.setattr(discovery, "GUARD", 16)
    monkeypatch.setattr(discovery, "_TAIL_FROM", 1)
    starts: list[int] = []
    chunks = discovery._chunks
    monkeypatch.setattr(discovery, "_chunks", lambda file, start=0: starts.append(start) or chunks(file, start))
    chance = random.Random(7)
    log = tmp_path / "x.log"
    tails: dict[str, discovery.Tail] = {}
    known: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    content = b""
    skipped = 0
    for look in range(200):
        change = chance.random()
        if change < 0.05:
            content = bytes(chance.choices(b"ab\n{", k=chance.randrange(60)))
        elif change < 0.1:
            content = content[: chance.randrange(len(content) + 1)]
        else:
            content += bytes(chance.choices(b"ab\n{", k=chance.randrange(40)))
        if change < 0.08:
            log.unlink(missing_ok=True)
        log.write_bytes(content)
        os.utime(log, (look, look))
        found = []
        for before, kept in zip(known, (tails, None), strict=True):
            run = dataclasses.replace(discovery.discover(tmp_path), known=before, tails=kept)
            starts.clear()
            found.append(list(run.split("x.log", 24, begins=begins)))
            if kept is not None:
                skipped += starts[-1]
        assert found[0] == found[1]
        ends = [piece.end for piece in found[0]]
        assert [piece.start for piece in found[0]] == [0, *ends[:-1]] and ends[-1] == len(content)
        for piece in found[0]:
            assert piece.digest == hashlib.sha256(content[: piece.end]).hexdigest()
            assert piece.first_line == content[: piece.start].count(b"\n") + 1
    assert skipped > 20_000

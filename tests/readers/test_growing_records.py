"""A tracker's file that grows: what a watch reads of it piece by piece is what it would read of the whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from helpers.event_file import records
from helpers.wandb_log import history, run_record, wandb_file

from staleness_audit import discovery
from staleness_audit.discovery import Piece, RunFiles, Tail, discover
from staleness_audit.readers.records import DamagedRecords, Scalar, Text
from staleness_audit.readers.scalars import read_values, scalar_pieces

NAMES = ("events.out.tfevents.1.host", "run-x.wandb")
COUNT = 40


def content(name: str, rng: random.Random) -> bytes:
    """A file of ``COUNT`` records of some hundred bytes, some of W&B's longer than its blocks."""
    if name.endswith(".wandb"):
        rows = [
            history({"a": step / 2, "text": "x" * rng.choice((200, 9_000)), "_step": step, "_timestamp": 1e9 + step})
            for step in range(COUNT - 1)
        ]
        return wandb_file([run_record({"lr": 1}), *rows])
    event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2")
    events = []
    for step in range(COUNT):
        event = event_pb2.Event(step=step, wall_time=1e9 + step)
        event.summary.value.add(tag="a" * rng.choice((1, 400)), simple_value=step / 2)
        events.append(event)
    return records(events)


class Watch:
    """Reads a folder's one tracker file again and again, and of it only pieces that it has not read."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.tails: dict[str, Tail] = {}
        self.known: dict[str, tuple[str, tuple[Piece, ...]]] = {}
        self.read: dict[Piece, tuple[list[Scalar | Text], str | None]] = {}
        self.new: list[Piece] = []

    def look(self) -> tuple[list[Scalar | Text], list[str]]:
        """All values, and what of damage is said."""
        run = discover(self.folder)
        run.tails, run.known = self.tails, self.known
        pieces = list(scalar_pieces(run, self.name))
        self.known, self.new = run.known, [piece for piece in pieces if piece not in self.read]
        self.read = {piece: self.read.get(piece) or told(run, piece) for piece in pieces}
        values = [value for found, _ in self.read.values() for value in found]
        return values, [damage for _, damage in self.read.values() if damage]


def told(run: RunFiles, piece: Piece) -> tuple[list[Scalar | Text], str | None]:
    found: list[Scalar | Text] = []
    try:
        for value in read_values(run, piece):
            found.append(value)
    except DamagedRecords as damage:
        return found, f"{damage} ({damage.cut})"
    return found, None


def told_at_once(folder: Path, name: str) -> tuple[list[Scalar | Text], list[str]]:
    run = discover(folder)
    found, damage = told(run, run.whole(name))
    return found, [damage] if damage else []


@pytest.mark.parametrize("name", NAMES)
def test_only_what_was_appended_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look ends within a record. The next one reads on from that record's beginning, and nothing before."""
    monkeypatch.setattr(discovery, "_TAIL_FROM", 1)
    whole = content(name, random.Random(name))
    path, half = tmp_path / name, len(whole) // 2
    path.write_bytes(whole[:half])
    watching = Watch(tmp_path, name)
    values, damage = watching.look()
    assert (values, damage) == told_at_once(tmp_path, name) and "ends inside record" in damage[0]
    sound, rest = watching.new
    assert (sound.start, sound.end, rest.end) == (0, rest.start, half)
    with path.open("ab") as stream:
        stream.write(whole[half:])
    monkeypatch.setattr(discovery, "_chunks", None)  # nobody hashes the file from its beginning
    values, damage = watching.look()
    assert len(values) == COUNT and not damage
    assert [(piece.start, piece.end) for piece in watching.new] == [(sound.end, len(whole))]
    watching.look()
    assert not watching.new


@pytest.mark.parametrize("tails_from", [1, 1 << 20])
@pytest.mark.parametrize("name", NAMES)
def test_each_look_tells_what_is_in_the_file(
    name: str, tails_from: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files grow by any number of bytes; in half of them a byte is wrong, and what is behind it is not believed."""
    monkeypatch.setattr(discovery, "_TAIL_FROM", tails_from)
    monkeypatch.setattr(discovery, "_RECORDS_BYTES", 4_000)
    monkeypatch.setattr(discovery, "MANY_PIECES", 8)
    path = tmp_path / name
    for seed in range(4):
        rng = random.Random(f"{name} {seed}")
        whole = bytearray(content(name, rng))
        if seed % 2:
            whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        ends = [*sorted(rng.randrange(len(whole)) for _ in range(7)), len(whole)]
        path.unlink(missing_ok=True)
        watching = Watch(tmp_path, name)
        for start, end in zip([0, *ends], ends, strict=False):
            with path.open("ab") as stream:
                stream.write(whole[start:end])
            assert watching.look() == told_at_once(tmp_path, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_is_none_ends_what_is_believed_in_later_pieces_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum is right. Records behind it stay unbelieved when they come at a later look."""
    monkeypatch.setattr(discovery, "_TAIL_FROM", 1)
    if name.endswith(".wandb"):
        rows = [history({"a": 1.0, "_step": step, "_timestamp": 1e9}) for step in (0, 1, -1, 2)]
        contents = [wandb_file(rows[:count]) for count in (2, 3, 4)]
    else:
        event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2")
        events = [event_pb2.Event(step=step, wall_time=1e9) for step in (0, 1, -1, 2)]
        for event in events:
            event.summary.value.add(tag="a", simple_value=1.0)
        contents = [records(events[:count]) for count in (2, 3, 4)]
    watching, before = Watch(tmp_path, name), b""
    for each in contents:
        with (tmp_path / name).open("ab") as stream:
            stream.write(each[len(before) :])
        before = each
        values, damage = watching.look()
    assert [value.record for value in values] == [1, 2]
    assert damage == ["record 3 is of step -1 (False)"]


@pytest.mark.parametrize("name", NAMES)
def test_another_file_in_its_place_is_read_from_its_beginning(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_TAIL_FROM", 1)
    (tmp_path / name).write_bytes(content(name, random.Random("one")))
    watching = Watch(tmp_path, name)
    watching.look()
    (tmp_path / "new").write_bytes(content(name, random.Random("other")))
    (tmp_path / "new").replace(tmp_path / name)
    assert watching.look() == told_at_once(tmp_path, name)
    (tmp_path / name).write_bytes(content(name, random.Random("shorter"))[:3_000])
    assert watching.look() == told_at_once(tmp_path, name)

"""What files of records have in common: how they end early, and what a tracker's records hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from staleness_audit.discovery import Piece, Read, RunFiles, Tail

Told = TypeVar("Told")
Records = Callable[[Read, int, int], Iterator[Told]]
"""Reads records, given what reads the file's bytes on, at which byte that is, and the number of the first record.

Yields once for each record, whatever it tells. Raises ``DamagedRecords``.
"""


@dataclass(frozen=True)
class Scalar:
    """One point. ``record`` counts the file's records from 1, ``wall_time`` is in seconds since 1970.

    ``value`` is an ``int`` where the file says that it is a whole number.
    """

    tag: str
    step: int
    value: float
    wall_time: float
    record: int


@dataclass(frozen=True)
class Text:
    """A text, for instance a configuration a trainer noted down; what W&B keeps of one is JSON under ``CONFIG``."""

    tag: str
    text: str
    record: int


CONFIG = "config"


class DamagedRecords(Exception):
    """The file is unreadable from ``record`` on. ``cut``: it merely ends inside a record, which then did not happen."""

    def __init__(self, message: str, record: int, *, cut: bool) -> None:
        super().__init__(message)
        self.record = record
        self.cut = cut


def record_pieces(run: RunFiles, source: str, records: Records[object]) -> Iterator[Piece]:
    """Cut a file of records, so that a watch reads what was appended; ``read_records`` tells the same of the pieces.

    Raises:
        UnreadableInput: the file cannot be opened.
    """

    def sound(read: Read, tail: Tail) -> Iterator[object]:
        try:
            yield from records(read, tail.end, tail.lines + 1)
        except DamagedRecords:
            return  # who reads the piece will say it

    yield from run.split_records(source, sound)


def read_records(run: RunFiles, piece: Piece, records: Records[Told]) -> Iterator[Told]:
    """Read the records of a piece.

    Raises:
        DamagedRecords: after the last sound record of a cut or damaged file.
        UnreadableInput: the file cannot be opened.
    """
    with run.open_piece(piece) as stream:
        yield from islice(records(stream.read, piece.start, piece.first_line), piece.lines or None)


def take(read: Read, size: int, record: int) -> bytes:
    """Return up to ``size`` bytes, fewer only at the end; raises ``DamagedRecords`` for broken compressed data."""
    parts = b""
    try:
        while len(parts) < size and (part := read(size - len(parts))):
            parts += part
    except (OSError, EOFError) as error:
        raise DamagedRecords(f"the compressed data is damaged or cut ({error})", record, cut=False) from error
    return parts

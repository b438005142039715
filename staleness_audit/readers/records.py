"""What files of records have in common: how they end early, and what a tracker's records hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO


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


def take(stream: IO[bytes], size: int, record: int) -> bytes:
    """Return up to ``size`` bytes, fewer only at the end; raises ``DamagedRecords`` for broken compressed data."""
    parts = b""
    try:
        while len(parts) < size and (part := stream.read(size - len(parts))):
            parts += part
    except (OSError, EOFError) as error:
        raise DamagedRecords(f"the compressed data is damaged or cut ({error})", record, cut=False) from error
    return parts

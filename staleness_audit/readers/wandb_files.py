"""Offline files of Weights & Biases (``run-<id>.wandb``): history rows and configuration, without the package.

The file is a header of seven bytes and a log of blocks of 32 KiB that hold checksummed pieces of records; a record is a
protobuf message, of which only the few fields that matter are decoded.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from staleness_audit.discovery import Read
from staleness_audit.readers.records import DamagedRecords, take

HEADER: Final = b":W&B\xe1\xbe\x00"
_BLOCK: Final = 32768
_PIECE: Final = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _CONFIG, _RUN, _RUN_CONFIG, _ITEM = 2, 5, 17, 4, 1
_KEY, _NESTED, _JSON = 1, 2, 16
MAX_RECORD_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class WandbRecord:
    """A history row or an update of the configuration. ``record`` counts the file's records from 1."""

    kind: Literal["history", "config"]
    values: dict[str, Any]
    record: int


def read_wandb(read: Read, at: int, first: int) -> Iterator[list[WandbRecord]]:
    """Read the history rows and configuration updates of each record (``records.Records``); most others tell none.

    Keys of nested values are joined by dots; values are plain JSON (one that is none is left out).

    Raises:
        DamagedRecords: after the last sound record of a cut or damaged file, or at once if it is no such file.
    """
    for record, message in enumerate(_messages(read, at, first), first):
        try:
            yield list(_decode(message, record))
        except (IndexError, ValueError, UnicodeDecodeError) as error:
            raise DamagedRecords(f"record {record} is no message ({error})", record, cut=False) from error


def _decode(message: bytes, record: int) -> Iterator[WandbRecord]:
    for number, value in _fields(message):
        if number == _HISTORY:
            yield WandbRecord("history", _items(value), record)
        elif number == _CONFIG:
            yield WandbRecord("config", _items(value), record)
        elif number == _RUN:
            for inner, config in _fields(value):
                if inner == _RUN_CONFIG:
                    yield WandbRecord("config", _items(config), record)


def _items(message: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, item in _fields(message):
        if number != _ITEM:
            continue
        key, nested, text = "", [], ""
        for inner, value in _fields(item):
            if inner == _KEY:
                key = value.decode()
            elif inner == _NESTED:
                nested.append(value.decode())
            elif inner == _JSON:
                text = value.decode()
        try:
            found[key or ".".join(nested)] = json.loads(text)
        except ValueError:
            continue
    return found


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of the fields of a message that have a length; pass over numbers."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 2:
            size, at = _varint(message, at)
            if at + size > len(message):
                raise ValueError("a field is longer than its message")
            yield tag >> 3, message[at : at + size]
            at += size
        elif kind == 0:
            _, at = _varint(message, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number that is too long")


def _messages(read: Read, at: int, record: int) -> Iterator[bytes]:
    """Yield the records from a byte on, put together from their pieces."""
    if at == 0:
        if take(read, len(HEADER), record) != HEADER:
            raise DamagedRecords("it does not begin as such a file does", record, cut=False)
        at = len(HEADER)
    parts: list[bytes] = []
    while True:
        room = _BLOCK - at % _BLOCK
        if room < _PIECE.size:
            at += len(take(read, room, record))
            continue
        head = take(read, _PIECE.size, record)
        if not head:
            break
        check, size, kind = _PIECE.unpack(head) if len(head) == _PIECE.size else (0, 0, 0)
        body = take(read, size, record) if kind else b""
        if not kind or len(body) < size:
            raise DamagedRecords(f"the file ends inside record {record}", record, cut=True)
        at += _PIECE.size + size
        if zlib.crc32(body, zlib.crc32(bytes([kind]))) != check:
            raise DamagedRecords(f"record {record} does not match its checksum", record, cut=False)
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or (kind in (_FULL, _FIRST)) == bool(parts):
            raise DamagedRecords(f"the pieces of record {record} do not fit together", record, cut=False)
        parts.append(body)
        if sum(map(len, parts)) > MAX_RECORD_BYTES:
            raise DamagedRecords(f"record {record} is larger than {MAX_RECORD_BYTES >> 20} MiB", record, cut=False)
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
            parts = []
            record += 1
    if parts:
        raise DamagedRecords(f"the file ends inside record {record}", record, cut=True)

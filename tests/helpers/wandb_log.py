"""Writes offline files of W&B by hand: protobuf fields in a log of checksummed pieces."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

from staleness_audit.readers.wandb_files import HEADER


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def items(values: dict[str, Any], *, nested: bool = True) -> bytes:
    """Items as histories and configurations hold them."""
    parts = b""
    for key, value in values.items():
        parts += field(1, field(2 if nested else 1, key.encode()) + field(16, json.dumps(value).encode()))
    return parts


def history(values: dict[str, Any]) -> bytes:
    return varint(1 << 3) + varint(7) + field(2, items(values))


def run_record(config: dict[str, Any]) -> bytes:
    return field(17, field(1, b"abc") + field(4, items(config, nested=False)))


def wandb_file(records: list[bytes]) -> bytes:
    """The log format: pieces with checksums in blocks of 32 KiB."""
    out = bytearray(HEADER)
    for record in records:
        left, first = record, True
        while True:
            room = 32768 - len(out) % 32768
            if room < 7:
                out += b"\0" * room
                continue
            part, left = left[: room - 7], left[room - 7 :]
            kind = (1 if not left else 2) if first else (4 if not left else 3)
            out += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
            first = False
            if not left:
                break
    return bytes(out)

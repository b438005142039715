"""Records of TensorBoard's event files and of W&B's logs: taken apart, and framed anew with the right checksums."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from google_crc32c import value as crc32c

from staleness_audit.readers.wandb_files import HEADER

_BLOCK = 32768


def event_records(data: bytes) -> Iterator[bytes]:
    """Yield whole records of an event file, frames included, up to what is none."""
    at = 0
    while at + 16 <= len(data):
        end = at + 16 + struct.unpack_from("<Q", data, at)[0]
        if end > len(data):
            return
        yield data[at:end]
        at = end


def event_record(body: bytes) -> bytes:
    """Frame a message of an event file."""
    size = struct.pack("<Q", len(body))
    return size + struct.pack("<I", _masked(size)) + body + struct.pack("<I", _masked(body))


def _masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def wandb_messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a W&B log whose pieces lie in one block, up to what is none."""
    at = len(HEADER)
    while at + 7 <= len(data):
        size, kind = struct.unpack_from("<HB", data, at + 4)
        if kind != 1:
            return
        yield data[at + 7 : at + 7 + size]
        at += 7 + size


def wandb_record(body: bytes) -> bytes:
    """Frame a short message of a W&B log as one piece."""
    return struct.pack("<IHB", zlib.crc32(body, zlib.crc32(b"\x01")), len(body), 1) + body

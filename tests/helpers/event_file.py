"""Writes TensorBoard event files: messages in the framing of the record format."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any


def records(events: Iterable[Any]) -> bytes:
    """Frame ``Event`` messages with their lengths and checksums."""
    return b"".join(framed(event.SerializeToString()) for event in events)


def framed(body: bytes) -> bytes:
    """One record; the checksum is TensorBoard's own."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    size = struct.pack("<Q", len(body))
    return size + struct.pack("<I", masked_crc32c(size)) + body + struct.pack("<I", masked_crc32c(body))

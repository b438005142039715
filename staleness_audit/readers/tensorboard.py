"""Scalars and texts of TensorBoard event files.

The records' framing (length, checksum, message, checksum) is read here, so that compressed files and cut ends need no
special case; the messages are decoded by the ``tensorboard`` package, an optional extra that is imported only when
an event file is met.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from staleness_audit.discovery import Read
from staleness_audit.errors import OptionalReaderMissing
from staleness_audit.readers.records import DamagedRecords, Records, Scalar, Text, take

MAX_RECORD_BYTES: Final = 1 << 20
"""Larger records (images, histograms, graphs) are passed over: a scalar is some hundred bytes."""

Checksum = Callable[[bytes], int]


def event_reader() -> Records[list[Scalar | Text]]:
    """Return what reads the scalars and texts of each record of an event file.

    Raises:
        OptionalReaderMissing: the ``tensorboard`` extra is not installed.
    """
    decode, checksum = _decoder()

    def read_events(read: Read, _: int, first: int) -> Iterator[list[Scalar | Text]]:
        for record, message in enumerate(_messages(read, checksum, first), first):
            try:
                event = decode(message)
            except Exception as error:  # protobuf has no common base for what damage makes it raise
                raise DamagedRecords(f"record {record} is not an event ({error})", record, cut=False) from error
            yield list(_told(event, record))

    return read_events


def _told(event: Any, record: int) -> Iterator[Scalar | Text]:
    for value in event.summary.value:
        number = _number(value)
        if number is not None:
            yield Scalar(value.tag, event.step, number, event.wall_time, record)
        elif value.WhichOneof("value") == "tensor" and value.tensor.string_val:
            text = value.tensor.string_val[0].decode("utf-8", errors="replace")
            yield Text(value.tag, text, record)


def _decoder() -> tuple[Callable[[bytes], Any], Checksum]:
    """Return what decodes a message, and the CRC-32C of bytes; both come with the extra."""
    try:
        from google_crc32c import value  # noqa: PLC0415 - an optional extra
        from tensorboard.compat.proto import event_pb2  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise OptionalReaderMissing(
            "TensorBoard event files need an extra: pip install 'staleness-audit[tensorboard]'."
        ) from error
    return event_pb2.Event.FromString, value


def _number(value: Any) -> float | None:
    """Return a scalar summary's number in its older or newer form; None for anything else."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor" or value.tensor.tensor_shape.dim:
        return None
    tensor = value.tensor
    for numbers in (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val):
        if len(numbers) == 1:
            return float(numbers[0])
    layout = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}.get(tensor.dtype)
    if layout and len(tensor.tensor_content) == struct.calcsize(layout):
        return float(struct.unpack(layout, tensor.tensor_content)[0])
    return None


def _messages(read: Read, checksum: Checksum, record: int) -> Iterator[bytes]:
    """Yield the messages from a record on; those beyond ``MAX_RECORD_BYTES`` as empty ones."""
    while header := _take(read, 12, record):
        (size, check) = struct.unpack("<QI", header)
        if _masked(checksum(header[:8])) != check:
            raise DamagedRecords(f"the length of record {record} does not match its checksum", record, cut=False)
        if size > MAX_RECORD_BYTES:
            _skip(read, size + 4, record)
            yield b""
        else:
            body = _take(read, size + 4, record, inside=True)
            if _masked(checksum(body[:size])) != int.from_bytes(body[size:], "little"):
                raise DamagedRecords(f"record {record} does not match its checksum", record, cut=False)
            yield body[:size]
        record += 1


def _take(read: Read, size: int, record: int, *, inside: bool = False) -> bytes:
    parts = take(read, size, record)
    if len(parts) < size and (parts or inside):
        raise DamagedRecords(f"the file ends inside record {record}", record, cut=True)
    return parts


def _skip(read: Read, size: int, record: int) -> None:
    while size > 0:
        size -= len(_take(read, min(size, MAX_RECORD_BYTES), record, inside=True))


def _masked(crc: int) -> int:
    """Return a CRC-32C rotated and shifted as the record format has it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

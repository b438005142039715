"""Blocks of whole lines from a piece of a file, decompressed as they stream, with absolute line numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from staleness_audit.discovery import Piece, RunFiles, read_fully

BLOCK_BYTES = 16 << 20
MAX_LINE_BYTES = 256 << 20
LONG_LINE_BYTES = 1 << 20
"""No message is longer. Polars holds what is alone in its frame, as a long line is, several times over."""


@dataclass(frozen=True)
class Block:
    """Whole lines. ``first_line`` numbers the first of them (from 1); ``cut`` = the last one lacks its newline."""

    data: bytes
    first_line: int
    cut: bool


class DamagedStream(Exception):
    """A compressed file ended early or is corrupt after ``line``; what was read before it is good."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class GarbledText(DamagedStream):
    """All was read, but from ``line`` on some lines hold bytes that are no text, and may have said anything."""


def blocks(run: RunFiles, piece: Piece, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield a piece as blocks of about ``block_bytes``; a line longer than that makes a block as long as itself.

    Raises:
        DamagedStream: after the last good line of a broken compressed file, or at a line beyond ``MAX_LINE_BYTES``.
        UnreadableInput: the file cannot be opened.
    """
    compressed = run.file(piece.source).compressed
    line = piece.first_line
    rest = b""
    with run.open_piece(piece) as stream:
        left = None if compressed else piece.end - piece.start
        while True:
            size = block_bytes if left is None else min(block_bytes, left)
            try:
                chunk = read_fully(stream, size)
            except (OSError, EOFError) as error:
                if rest:
                    yield Block(rest, line, cut=True)
                raise DamagedStream(f"the compressed data is damaged or cut ({error})", line) from error
            if left is not None:
                left -= len(chunk)
            if not chunk:
                break
            at = chunk.rfind(b"\n")
            if at < 0:
                rest += chunk
                if len(rest) > MAX_LINE_BYTES:
                    raise DamagedStream(f"a line is longer than {MAX_LINE_BYTES >> 20} MiB", line)
                continue
            data = rest + chunk[: at + 1]
            rest = chunk[at + 1 :]
            yield Block(data, line, cut=False)
            line += data.count(b"\n")
    if rest:
        yield Block(rest, line, cut=True)


def numbered_lines(run: RunFiles, piece: Piece) -> Iterator[tuple[int, str, bool]]:
    """Yield ``(line number, text without line end, cut)`` for each line; undecodable bytes become U+FFFD.

    Raises:
        DamagedStream: as ``blocks``; ``GarbledText`` after the last line if some were no text.
    """
    decoder = _Decoder()
    for block in blocks(run, piece):
        lines = decoder.text(block).split("\n")
        if not block.cut:
            lines.pop()
        for index, text in enumerate(lines):
            yield block.first_line + index, text.rstrip("\r"), block.cut and index == len(lines) - 1
    decoder.close()


def telling_lines(run: RunFiles, piece: Piece, pattern: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the lines of ``numbered_lines`` in which ``pattern`` is found; it raises the same.

    The search runs over a whole block at once, outside the interpreter; ``pattern`` is a regular expression of Rust's
    ``regex`` (no look-around, no back-references), best an alternation of words.
    """
    decoder = _Decoder()
    for block in blocks(run, piece):
        texts = _without_ends(decoder.lines(block))
        told = texts.str.contains(pattern).arg_true()
        last = len(texts) - 1
        for index, text in zip(told.to_list(), texts.gather(told).to_list(), strict=True):
            yield block.first_line + index, text, block.cut and index == last
    decoder.close()


def line_frames(run: RunFiles, piece: Piece) -> Iterator[pl.DataFrame]:
    """Yield the lines of ``numbered_lines`` as frames, one a block: ``line``, ``text``, ``cut``, ``long``.

    Of a ``long`` line, of more than ``LONG_LINE_BYTES``, the text is its beginning. Raises as ``numbered_lines``.
    """
    decoder = _Decoder()
    for block in blocks(run, piece):
        lines, long = _shortened(decoder.lines(block))
        frame = pl.DataFrame({"text": _without_ends(lines), "long": pl.Series(long)})
        frame = frame.with_row_index("line", block.first_line).with_columns(pl.col("line").cast(pl.Int64))
        last = block.first_line + len(frame) - 1
        yield frame.with_columns(cut=block.cut & (pl.col("line") == last))
    decoder.close()


class _Decoder:
    """Turns blocks into text, and remembers lines with bytes that no writer of text leaves."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._count = 0

    def text(self, block: Block) -> str:
        try:
            text = block.data.decode()
        except UnicodeDecodeError:
            self._note(block)
            return block.data.decode(errors="replace")
        if "\0" in text:
            self._note(block)
        return text

    def lines(self, block: Block) -> pa.Array:
        """The lines of a block with their ends; they lie in its bytes, for one of 100 MB should not be copied."""
        lines = _split(block.data)
        if b"\0" in block.data or not _is_text(lines):
            lines = _split(self.text(block).encode())
        return lines

    def close(self) -> None:
        if self._first is not None:
            raise GarbledText(f"{self._count} of its lines hold bytes that are no text", self._first)

    def _note(self, block: Block) -> None:
        lines = block.data.split(b"\n")
        # A cut last line is a record that did not happen, whatever it holds; zeros are room for records that did.
        bad = [at for at, line in enumerate(lines) if (is_garbled(line) if at < len(lines) - 1 else b"\0" in line)]
        if bad:
            self._first = block.first_line + bad[0] if self._first is None else self._first
            self._count += len(bad)


def _split(data: bytes) -> pa.Array:
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    last = [] if data.endswith(b"\n") else [len(data)]
    offsets = np.concatenate(([0], ends, last)).astype(np.int64)
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))


def _without_ends(lines: pa.Array) -> pl.Series:
    return pl.Series("text", lines).str.strip_chars_end("\r\n")


def _shortened(lines: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Cut lines that are longer than ``LONG_LINE_BYTES``, and return which were."""
    long = pc.greater(pc.binary_length(lines), LONG_LINE_BYTES)
    if pc.any(long).as_py():
        lines = pa.array([line.as_py()[:LONG_LINE_BYTES] for line in lines], pa.large_string())
    return lines, long


def _is_text(lines: pa.Array) -> bool:
    try:
        lines.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def is_garbled(line: bytes) -> bool:
    """Whether bytes are no text: zeros among them, or no UTF-8 but for a character cut at their end."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return b"\0" in line or error.reason != "unexpected end of data"
    return b"\0" in line

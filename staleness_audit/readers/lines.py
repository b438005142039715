"""Blocks of whole lines from a piece of a file, decompressed as they stream, with absolute line numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
import zstandard

from staleness_audit.discovery import Piece, RunFiles, read_fully

BLOCK_BYTES = 16 << 20
MAX_LINE_BYTES = 256 << 20


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


def blocks(run: RunFiles, piece: Piece, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Yield a piece as blocks of about ``block_bytes``; a line longer than that makes a block as long as itself.

    Raises:
        DamagedStream: after the last good line of a broken compressed file, or at a line beyond ``MAX_LINE_BYTES``.
        UnreadableInput: the file cannot be opened.
    """
    compressed = run.file(piece.source).compressed
    line = piece.first_line
    rest = b""
    with run.open(piece.source) as stream:
        if not compressed:
            stream.seek(piece.start)
        left = None if compressed else piece.end - piece.start
        while True:
            size = block_bytes if left is None else min(block_bytes, left)
            try:
                chunk = read_fully(stream, size)
            except (OSError, EOFError, zstandard.ZstdError) as error:
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
    """Yield ``(line number, text without line end, cut)`` for each line; undecodable bytes become U+FFFD."""
    for block in blocks(run, piece):
        lines = block.data.decode("utf-8", errors="replace").split("\n")
        if not block.cut:
            lines.pop()
        for index, text in enumerate(lines):
            yield block.first_line + index, text.rstrip("\r"), block.cut and index == len(lines) - 1


def telling_lines(run: RunFiles, piece: Piece, pattern: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the lines of ``numbered_lines`` in which ``pattern`` is found.

    The search runs over a whole block at once, outside the interpreter; ``pattern`` is a regular expression of Rust's
    ``regex`` (no look-around, no back-references), best an alternation of words.
    """
    for block in blocks(run, piece):
        texts = _texts(block)
        told = texts.str.contains(pattern).arg_true()
        last = len(texts) - 1
        for index, text in zip(told.to_list(), texts.gather(told).to_list(), strict=True):
            yield block.first_line + index, text.rstrip("\r"), block.cut and index == last


def line_frames(run: RunFiles, piece: Piece) -> Iterator[pl.DataFrame]:
    """Yield the lines of ``numbered_lines`` as frames of a block each: ``line``, ``text``, ``cut``."""
    for block in blocks(run, piece):
        lines = _texts(block).str.strip_chars_end("\r").to_frame().with_row_index("line", block.first_line)
        last = block.first_line + len(lines) - 1
        yield lines.select(pl.col("line").cast(pl.Int64), "text", cut=block.cut & (pl.col("line") == last))


def _texts(block: Block) -> pl.Series:
    data = block.data if block.cut else block.data.removesuffix(b"\n")
    return pl.Series("text", [data.decode("utf-8", errors="replace")]).str.split("\n").explode()

"""JSON lines as Arrow tables: fast where the lines are sound, line by line only around those that are not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import orjson
import pyarrow as pa
import pyarrow.json

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.readers.lines import BLOCK_BYTES, Block, DamagedStream, blocks

LINE = "line"

_CHANGED = re.compile(r"JSON parse error: Column\(/(?P<key>.+)\) changed from (?P<wanted>\w+) to (?P<found>\w+)")


@dataclass(frozen=True)
class BadLine:
    """A line that is not a JSON object of the wanted shape.

    ``cut``: the unterminated end of the file, a record that did not happen. ``rest``: everything from this line on is
    unreadable (a damaged compressed file).
    """

    line: int
    why: str
    text: str
    cut: bool = False
    rest: bool = False


def read_json_lines(
    run: RunFiles,
    piece: Piece,
    schema: pa.Schema,
    on_bad: Callable[[BadLine], None],
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[pa.Table]:
    """Yield the objects of a piece as tables of ``schema`` plus ``line`` (int64, from 1), about a block at a time.

    Keys outside the schema are ignored and missing ones are null. A line that is no object, has a key twice, or a
    value of another type goes to ``on_bad`` and is left out. Blank lines are passed over.
    """
    options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        for block in blocks(run, piece, block_bytes):
            yield from _parse_block(block, schema, options, on_bad)
    except DamagedStream as damage:
        on_bad(BadLine(damage.line, str(damage), "", rest=True))


def _parse_block(
    block: Block, schema: pa.Schema, options: pa.json.ParseOptions, on_bad: Callable[[BadLine], None]
) -> Iterator[pa.Table]:
    if block.cut and (lines := block.data.splitlines(keepends=True)) and not _sound(lines[-1], options):
        last = block.first_line + len(lines) - 1
        on_bad(BadLine(last, "the line is cut", _excerpt(lines[-1]), cut=True))
        block = Block(b"".join(lines[:-1]), block.first_line, cut=False)
    if not block.data:
        return
    count = block.data.count(b"\n") + (not block.data.endswith(b"\n"))
    try:
        table = _parse(block.data, options)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        table = None
    if table is not None and table.num_rows == count:
        yield _number(table, schema, pa.array(range(block.first_line, block.first_line + count), pa.int64()))
        return
    # Some line is blank or bad: narrow down to those, keeping the numbers of all others.
    lines = block.data.split(b"\n")
    numbered = [(block.first_line + index, line) for index, line in enumerate(lines) if line.strip()]
    good = list(_good_lines(numbered, options, on_bad))
    if good:
        table = _parse(b"\n".join(line for _, line in good) + b"\n", options)
        yield _number(table, schema, pa.array([number for number, _ in good], pa.int64()))


def _good_lines(
    lines: list[tuple[int, bytes]], options: pa.json.ParseOptions, on_bad: Callable[[BadLine], None]
) -> Iterator[tuple[int, bytes]]:
    """Split in halves until a half is sound or is one bad line."""
    if not lines:
        return
    try:
        if all(line.lstrip().startswith(b"{") for _, line in lines):
            table = _parse(b"\n".join(line for _, line in lines) + b"\n", options)
            if table.num_rows == len(lines):
                yield from lines
                return
        why = "not one JSON object" if len(lines) == 1 else ""
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        why = _in_words(str(error).split(" in row")[0])
    if len(lines) == 1:
        on_bad(BadLine(lines[0][0], why, _excerpt(lines[0][1])))
        return
    middle = len(lines) // 2
    yield from _good_lines(lines[:middle], options, on_bad)
    yield from _good_lines(lines[middle:], options, on_bad)


def _in_words(message: str) -> str:
    """Arrow's word on one bad line, as a sentence about the line: ``version is not a number but a string``."""
    changed = _CHANGED.fullmatch(message)
    if not changed:
        return message
    wanted, found = (f"{'an' if kind[0] in 'ao' else 'a'} {kind}" for kind in (changed["wanted"], changed["found"]))
    return f"{changed['key'].replace('/', '.')} is not {wanted} but {found}"


_NULL = re.compile(rb"null(?<![:,[]null)(?<![:,[] null)")
"""A null that is not plainly a value in an object or a list; begins with what is quickly searched for."""


def _null_for_object(data: bytes) -> bool:
    """Whether a null may stand where an object should: Arrow's parser ends the process there instead of complaining."""
    for found in _NULL.finditer(data):
        before = data[max(0, found.start() - 64) : found.start()].rstrip(b" \t\r")
        if not before or before[-1:] in (b"}", b"\n"):
            return True
    return False


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _parse(data: bytes, options: pa.json.ParseOptions) -> pa.Table:
    if _null_for_object(data) and not all(_is_object(line) for line in data.split(b"\n") if line.strip()):
        raise pa.ArrowInvalid("not one JSON object")
    # One Arrow block per quarter of ours lets two threads work; a line must fit into a block.
    longest = len(data) if len(data) < (1 << 20) else max(len(data) // 4, _longest_line(data) + 1)
    table = pa.json.read_json(
        pa.BufferReader(data), parse_options=options, read_options=pa.json.ReadOptions(block_size=max(longest, 1024))
    )
    table.validate(full=True)  # bytes that are not UTF-8 pass the JSON parser but not this
    return table


def _longest_line(data: bytes) -> int:
    """Upper estimate by probing: exact only where lines are longer than a sixteenth of the data."""
    probe = max(len(data) // 16, 1)
    longest = probe
    at = 0
    while at < len(data):
        end = data.find(b"\n", at + probe)
        if end < 0:
            return max(longest, len(data) - at)
        longest = max(longest, end - at)
        at = end + 1
    return longest


def _sound(line: bytes, options: pa.json.ParseOptions) -> bool:
    try:
        return bool(line.lstrip().startswith(b"{")) and _parse(line + b"\n", options).num_rows == 1
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False


def _number(table: pa.Table, schema: pa.Schema, lines: pa.Array) -> pa.Table:
    return table.select(schema.names).append_column(LINE, lines)


def _excerpt(line: bytes) -> str:
    return line[:120].decode("utf-8", errors="replace")

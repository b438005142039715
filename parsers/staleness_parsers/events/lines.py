"""From a piece of a log to the DuckDB view ``events_``: usable events, each number once; the rest becomes diagnostics."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import IO, Any, BinaryIO, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.engine import literal
from staleness_audit.parser import Sink
from staleness_audit.readers.json_lines import BadLine, read_json_lines
from staleness_audit.scratch import scratch_folder
from staleness_parsers.events.columns import ARROW, COLUMNS, KIND, KINDS, LIFECYCLE, WHOLE, header_of, words


def load_events(run: RunFiles, piece: Piece, connection: duckdb.DuckDBPyConnection, sink: Sink) -> None:
    """Make the view ``events_``: the columns of ``COLUMNS`` and ``line``, of the usable events, each number once.

    Everything else is diagnosed and left out.
    """
    usable = None if run.file(piece.source).compressed else _load_plain(run, piece, connection)
    if usable is None:
        _load_careful(run, piece, connection, sink)
    if usable:
        connection.execute("CREATE TEMP VIEW events_ AS SELECT * FROM lines")
    else:
        _drop_unusable(connection, piece, sink)


def _load_plain(run: RunFiles, piece: Piece, connection: duckdb.DuckDBPyConnection) -> bool | None:
    """Make ``lines`` by DuckDB's own reader; say whether all can be used, or None if some are no plain lines."""
    with (
        run.open_piece(piece) as stream,
        scratch_folder("staleness-audit-lines-") as folder,
        (folder / "part.jsonl").open("w+b") as part,
    ):
        first = stream.readline(piece.end - piece.start) if piece.first_line == 1 else b""
        # The header's keys are its own; without it most pieces need few columns.
        headed = header_of(first) is not None
        first_line = piece.first_line + headed
        size = piece.end - piece.start - (len(first) if headed else 0)
        values = _survey_bytes(_copied(b"" if headed else first, stream, size, part))
        part.flush()
        lines = piece.lines - headed if piece.lines else values.lines
        if values.spaced:
            return None
        # Most logs use few of the columns, and every column costs; all are read only where more appear.
        for columns in (values.columns, COLUMNS):
            with suppress(duckdb.Error):  # some line is bad: the careful reader finds and names it
                _parse(connection, part.name, columns)
                _name_columns(connection, columns, first_line)
                survey = _survey(connection, columns)
                if not survey.whole or survey.lines != lines:
                    return None
                if columns is COLUMNS or survey.values == values.given:
                    return None if _converted(part, values, survey) else survey.usable
    return None


def _load_careful(run: RunFiles, piece: Piece, connection: duckdb.DuckDBPyConnection, sink: Sink) -> None:
    """Make ``lines`` line by line. Bad lines are diagnosed and left out."""
    connection.execute("DROP VIEW IF EXISTS lines; DROP TABLE IF EXISTS parsed")
    schema = pa.schema([(name, ARROW[kind]) for name, kind in COLUMNS.items()])
    tables = list(read_json_lines(run, piece, schema, lambda bad: _diagnose_bad(bad, piece.source, sink)))
    whole = pa.concat_tables(tables) if tables else schema.append(pa.field("line", pa.int64())).empty_table()
    connection.register("careful", whole)
    connection.execute("CREATE TEMP TABLE lines AS SELECT * FROM careful")


def _parse(connection: duckdb.DuckDBPyConnection, path: str, columns: dict[str, str]) -> None:
    types = "{" + ", ".join(f"{name}: {literal(kind)}" for name, kind in columns.items()) + "}"
    # A small limit on lines makes small buffers, which all cores can share; longer lines take the careful path.
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE parsed AS SELECT * FROM read_ndjson({literal(path)}, columns = {types}, "
        f"maximum_object_size = {4 << 20})"
    )


_FAULT = f"""
    CASE WHEN kind IS NULL THEN 'it has no kind'
         WHEN kind NOT IN ({words(KINDS)}) THEN 'unknown-kind'
         WHEN kind IN ('span', 'trained') AND trajectory_id IS NULL THEN 'it has no trajectory_id'
         WHEN kind IN ({words(LIFECYCLE)}) AND trajectory_id IS NULL AND group_id IS NULL
              THEN 'it names no trajectory and no group'
         WHEN kind IN ('trained', 'step') AND step IS NULL THEN 'it has no step'
         WHEN kind = 'span' AND versions IS NULL AND tokens IS NULL AND tokens_lo IS NULL THEN 'it has no tokens'
         WHEN least(tokens, tokens_lo, tokens_hi, loss_tokens, loss_tokens_lo, loss_tokens_hi, version, version_lo,
                    version_hi, step, attempt, trajectories, multiplicity, multiplicity_lo, multiplicity_hi) < 0 THEN 'a count or version is negative'
         WHEN tokens_lo > tokens_hi OR loss_tokens_lo > loss_tokens_hi OR version_lo > version_hi
              OR staleness_lo > staleness_hi THEN 'an interval has its ends exchanged'
         WHEN greatest(version, version_lo, version_hi, step, attempt, abs(resumed_after), abs(staleness_lo),
                       abs(staleness_hi)) > 2147483647
              OR greatest(tokens, tokens_lo, tokens_hi, loss_tokens, loss_tokens_lo, loss_tokens_hi, abs(n), trajectories,
                          multiplicity, multiplicity_lo, multiplicity_hi, abs(prompt_tokens), abs(waited_us),
                          abs(updates)) > 9e15
              THEN 'a number is too large'
         WHEN loss_tokens > coalesce(len(versions), tokens, tokens_hi) AND kind = 'span' THEN 'more loss tokens than tokens'
         WHEN versions IS NOT NULL AND tokens IS NOT NULL AND tokens <> len(versions) THEN 'tokens is not the length of versions'
         WHEN NOT abs(ts) <= 1e11 OR NOT abs(started) <= 1e11 OR NOT abs(ended) <= 1e11 THEN 'a time is impossible'
    END"""
"""SQL that says what makes a line of whole numbers unusable (null = nothing)."""


def _fractions(columns: Iterable[str]) -> str:
    """SQL that says whether a number that must be whole is not."""
    return " OR ".join(f"{name} <> floor({name})" for name in columns if name in WHOLE)


class _Survey(NamedTuple):
    """What one look at all lines tells: how many, how many values, texts and truths, whole numbers whole, all usable."""

    lines: int
    values: int
    texts: int
    truths: int
    whole: bool
    usable: bool


def _survey(connection: duckdb.DuckDBPyConnection, columns: dict[str, str]) -> _Survey:
    """Look at ``lines`` once.

    Every key ends in ``":``, so if there are as many of these as values, all keys are among the columns. A string that
    holds the two characters or an unknown key makes the counts differ, which only costs time. Numbers that follow the
    lines one by one do not repeat; where they don't follow, it is worth looking.
    """
    counted = {name: f"count({name})" for name in columns}
    texts = [count for name, count in counted.items() if columns[name] not in ("DOUBLE", "BOOLEAN", "INTEGER[]")]
    truths = [count for name, count in counted.items() if columns[name] == "BOOLEAN"]
    sums = ", ".join(" + ".join(counts) or "0" for counts in (counted.values(), texts, truths))
    row = connection.execute(
        f"SELECT count(*), {sums}, count(*) FILTER ({_fractions(columns)}) = 0, "
        f"count(*) FILTER ({_FAULT} IS NOT NULL) = 0 AND (count(n) = 0 OR min(n - line) = max(n - line) AND count(n) = count(*)) "
        "FROM lines"
    ).fetchone()
    assert row is not None
    return _Survey(*row)


class _Values(NamedTuple):
    """What the bytes tell of the lines of a piece, where every ``":`` is taken for the end of a key.

    How many lines there are; how many values are given (not null), are texts, truths, lists; whether there are quotes
    besides those of keys and texts; whether a space may lie between a key and its colon, so that these figures miss it;
    whether ``true`` or ``false`` may be in a list. ``columns``: those of the keys that a sample of the lines has, and
    the kind.
    """

    lines: int
    given: int
    texts: int
    truths: int
    lists: int
    other_quotes: bool
    spaced: bool
    words_in_lists: bool
    columns: dict[str, str]


_BLOCK = 1 << 19
_SAMPLE = 1 << 12
_FEW_KEYS = 1 << 13
_END = 4
_BEFORE_ITEM = np.frombuffer(b"[, \t", dtype=np.uint8)


def _ends_of(window: np.ndarray[Any, np.dtype[np.uint8]], keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The last characters of keys, which end before these places, each as one number."""
    ends = np.zeros(len(keys), dtype=np.uint32)
    for back in range(_END, 0, -1):
        ends = ends << 8 | window[keys - back]
    return ends


_ENDS = {f'"{name}":'.encode(): int.from_bytes(name[-_END:].encode(), "big") for name in COLUMNS if len(name) >= _END}


def _copied(begun: bytes, stream: BinaryIO, size: int, copy: IO[bytes]) -> Iterator[bytes]:
    """Copy ``size`` bytes, those begun and the next of a stream, in blocks that the processor's cache holds meanwhile."""
    block = begun or stream.read(min(size, _BLOCK))
    while block:
        copy.write(block)
        yield block
        size -= len(block)
        block = stream.read(min(size, _BLOCK))


def _survey_bytes(blocks: Iterable[bytes]) -> _Values:
    """Look at all bytes once."""
    starts = np.zeros(256, dtype=np.int64)
    lines = quotes = 0
    spaced = words_in_lists = False
    unseen = {f'"{name}":'.encode(): name for name in COLUMNS if name != "kind"}
    seen = {"kind"}
    last = b"   "
    for number, block in enumerate(chain(blocks, (b"   ",))):
        # A key is looked at with the block that holds the three characters after it.
        joined = last + block
        last = joined[-3:]
        window = np.frombuffer(joined, dtype=np.uint8)
        lines += block.count(b"\n")
        quotes += int(np.count_nonzero(window[:-3] == ord('"')))
        colons = np.flatnonzero(window[1:-2] == ord(":"))
        before = window[colons]
        spaced = spaced or bool((before <= ord(" ")).any())
        keys = colons[before == ord('"')]
        sample = block[:_SAMPLE] if number else block
        found = [key for key in unseen if key in sample]
        if len(keys) <= _FEW_KEYS and number % 4 == 0:
            # Long lines: a part of the block would miss the kinds that are rare, and all keys are quickly looked at.
            ends = set(np.unique(_ends_of(window, keys[keys > _END])).tolist())
            found = [key for key in unseen if key in found or _ENDS.get(key) in ends]
        for key in found:
            seen.add(unseen.pop(key))
        first = window[keys + 2]
        starts += np.bincount(np.where(first == ord(" "), window[keys + 3], first), minlength=256)
        if starts[ord("[")]:
            items = np.flatnonzero((window[1:-2] == ord("t")) | (window[1:-2] == ord("f")))
            words_in_lists = words_in_lists or bool(np.isin(window[items], _BEFORE_ITEM).any())
    texts, true, false, lists, null = (int(starts[ord(start)]) for start in '"tf[n')
    return _Values(
        lines=lines,
        given=int(starts.sum()) - null,
        texts=texts,
        truths=true + false,
        lists=lists,
        other_quotes=quotes != 2 * (int(starts.sum()) + texts),
        spaced=spaced,
        words_in_lists=words_in_lists,
        columns={name: KIND if name == "kind" else kind for name, kind in COLUMNS.items() if name in seen},
    )


def _converted(copy: IO[bytes], values: _Values, survey: _Survey) -> bool:
    """Whether DuckDB may have converted values to the type of their column ("7" to 7, true to 1, 5.7 to 6).

    Texts with escaped quotes, and spaces that no writer puts before a value, only cost time.
    """
    # More values than keys: some key is written so that what follows it was not seen.
    if survey.values > values.given or (values.texts, values.truths) != (survey.texts, survey.truths):
        return True
    if not values.lists or values.other_quotes:
        return values.lists > 0
    with mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _FRACTION_IN_LIST.search(data) is not None or (
            values.words_in_lists and _TRUTH_IN_LIST.search(data) is not None
        )


_FRACTION_IN_LIST = re.compile(rb"\.[0-9eE+-]*\s*(?:\]|,\s*[-0-9])")
"""A fraction followed by the end of a list or by another number; in an object a key would follow the comma."""

_TRUTH_IN_LIST = re.compile(rb"[\[,]\s*(?:true|false)")


def _name_columns(connection: duckdb.DuckDBPyConnection, columns: dict[str, str], first_line: int) -> None:
    absent = "".join(f"NULL::{kind} AS {name}, " for name, kind in COLUMNS.items() if name not in columns)
    connection.execute(
        f"CREATE OR REPLACE TEMP VIEW lines AS SELECT *, {absent}rowid + {first_line} AS line FROM parsed"
    )


def _diagnose_bad(bad: BadLine, source: str, sink: Sink) -> None:
    if bad.cut:
        sink.diagnose(
            "note", "cut-line", "The last line is cut: a record that did not happen.", source=source, line=bad.line
        )
    elif bad.rest:
        sink.diagnose(
            "error",
            "damaged-file",
            f"Unreadable from here on: {bad.why}.",
            source=source,
            line=bad.line,
            opens="training",
        )
    else:
        sink.diagnose(
            "error",
            "bad-line",
            f"Not an event ({bad.why}); it was skipped.",
            source=source,
            line=bad.line,
            opens="training",
        )


def diagnose_event(fault: str, source: str, line: int, sink: Sink) -> None:
    """Say that an event was skipped; what it would have said of training is not known."""
    sink.diagnose(
        "error",
        "bad-event",
        f"The event cannot be used: {fault}; it was skipped.",
        source=source,
        line=line,
        opens="training",
    )


def _drop_unusable(connection: duckdb.DuckDBPyConnection, piece: Piece, sink: Sink) -> None:
    """Leave in ``events_`` what can be used: known kinds with their ids, sane versions and counts, each number once."""
    header = "line = 1 AND kind IS NULL" if piece.first_line == 1 else "false"
    fault = f"CASE WHEN {_fractions(COLUMNS)} THEN 'a count, version or step is not a whole number' ELSE {_FAULT} END"
    connection.execute(f"CREATE TEMP VIEW judged AS SELECT *, {fault} AS fault FROM lines WHERE NOT ({header})")
    rows = connection.execute("SELECT line, fault, kind FROM judged WHERE fault IS NOT NULL ORDER BY line").fetchall()
    for line, fault, kind in rows:
        if fault == "unknown-kind":
            # A later format may add kinds; what they would have said about training is not known.
            sink.diagnose(
                "warning",
                "unknown-kind",
                f"Events of kind {str(kind)[:40]!r} are not known to this version; the line was skipped.",
                source=piece.source,
                line=line,
                opens="training",
            )
        else:
            diagnose_event(fault, piece.source, line, sink)
    usable = (
        "SELECT * EXCLUDE (fault) FROM judged WHERE fault IS NULL"
        if rows
        else f"SELECT * FROM lines WHERE NOT ({header})"
    )
    connection.execute(f"CREATE TEMP VIEW usable AS {usable}")
    if _has_repeats(connection):
        _drop_repeated(connection, piece, sink)
    else:
        connection.execute("CREATE TEMP VIEW events_ AS SELECT * FROM usable")


def _has_repeats(connection: duckdb.DuckDBPyConnection) -> bool:
    row = connection.execute("SELECT count(n) > count(DISTINCT n) FROM usable").fetchone()
    return bool(row and row[0])


def _drop_repeated(connection: duckdb.DuckDBPyConnection, piece: Piece, sink: Sink) -> None:
    """Keep the first line of each number. Copies are harmless; different lines of one number are damage."""
    columns = ", ".join(COLUMNS)
    repeats = connection.execute(
        f"SELECT n, min(line), max(line), count(DISTINCT ({columns})) FROM usable WHERE n IS NOT NULL "
        "GROUP BY n HAVING count(*) > 1 ORDER BY 2"
    ).fetchall()
    for number, first, last, variants in repeats:
        if variants > 1:
            sink.diagnose(
                "error",
                "number-reused",
                f"Lines {first} and {last} both have the number {int(number)} and differ; the first was used.",
                source=piece.source,
                line=last,
                opens="training",
            )
        else:
            sink.diagnose(
                "note",
                "repeated-line",
                f"A copy of line {first} (number {int(number)}); it counts once.",
                source=piece.source,
                line=last,
            )
    connection.execute(
        "CREATE TEMP TABLE events_ AS SELECT DISTINCT ON (coalesce(n, -line)) * FROM usable ORDER BY coalesce(n, -line), line"
    )

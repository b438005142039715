"""From a piece of a log to the DuckDB view ``events_``: usable events, each number once; the rest becomes diagnostics."""

from __future__ import annotations

from tempfile import NamedTemporaryFile

import duckdb
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.engine import literal
from staleness_audit.parser import Sink
from staleness_audit.readers.json_lines import BadLine, read_json_lines
from staleness_parsers.events.columns import ARROW, COLUMNS, COMMON, KINDS, LIFECYCLE, WHOLE, header_of


def load_lines(run: RunFiles, piece: Piece, connection: duckdb.DuckDBPyConnection, sink: Sink) -> None:
    """Make the view ``lines``: the columns of ``COLUMNS`` and ``line``. Bad lines are diagnosed and left out."""
    if not run.file(piece.source).compressed:
        with run.open(piece.source) as stream, NamedTemporaryFile(suffix=".jsonl") as part:
            stream.seek(piece.start)
            data = stream.read(piece.end - piece.start)
            first_line = piece.first_line
            if first_line == 1 and header_of(data) is not None:
                # The header's keys are its own; without it most pieces need only the common columns.
                data, first_line = data[data.find(b"\n") + 1 :] if b"\n" in data else b"", 2
            part.write(data)
            part.flush()
            try:
                # Most logs use few of the columns, and every column costs; all are read only where more appear.
                for columns in (COMMON, COLUMNS):
                    _parse(connection, part.name, columns)
                    if _is_plain(connection, data, columns):
                        _name_columns(connection, columns, first_line)
                        return
            except duckdb.Error:
                pass  # some line is bad: the careful reader below finds and names it
        connection.execute("DROP TABLE IF EXISTS parsed")
    schema = pa.schema([(name, ARROW[kind]) for name, kind in COLUMNS.items()])
    tables = list(read_json_lines(run, piece, schema, lambda bad: _diagnose_bad(bad, piece.source, sink)))
    whole = pa.concat_tables(tables) if tables else schema.append(pa.field("line", pa.int64())).empty_table()
    connection.register("careful", whole)
    connection.execute("CREATE TEMP TABLE lines AS SELECT * FROM careful")


def _parse(connection: duckdb.DuckDBPyConnection, path: str, columns: dict[str, str]) -> None:
    types = "{" + ", ".join(f"{name}: '{kind}'" for name, kind in columns.items()) + "}"
    # A small limit on lines makes small buffers, which all cores can share; longer lines take the careful path.
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE parsed AS SELECT * FROM read_ndjson({literal(path)}, columns = {types}, "
        f"maximum_object_size = {4 << 20})"
    )


def _is_plain(connection: duckdb.DuckDBPyConnection, data: bytes, columns: dict[str, str]) -> bool:
    """Whether rows are lines one to one, whole numbers are whole, and no key was left out.

    Every key ends in ``":``, so if there are as many of these as values, all keys are among the columns. A string that
    holds the two characters, a null, or an unknown key makes the counts differ, which only costs time.
    """
    wholes = [name for name in columns if name in WHOLE]
    fractions = " OR ".join(f"{name} <> floor({name})" for name in wholes)
    values = " + ".join(f"count({name})" for name in columns)
    row = connection.execute(f"SELECT count(*), count(*) FILTER ({fractions}), {values} FROM parsed").fetchone()
    assert row is not None
    rows, fractional, found = row
    if rows != data.count(b"\n") + (not data.endswith(b"\n") and bool(data)) or fractional or _has_fractions(data):
        raise duckdb.InvalidInputException("blank lines or fractions")
    return columns is COLUMNS or found == data.count(b'":')


def _has_fractions(data: bytes) -> bool:
    """Whether a list of versions may hold a fraction, which DuckDB would round."""
    at = data.find(b'"versions"') if b"." in data else -1
    while at >= 0:
        end = data.find(b"]", at)
        if data.find(b".", at, end) >= 0:
            return True
        at = data.find(b'"versions"', end)
    return False


def _name_columns(connection: duckdb.DuckDBPyConnection, columns: dict[str, str], first_line: int) -> None:
    absent = "".join(f"NULL::{kind} AS {name}, " for name, kind in COLUMNS.items() if name not in columns)
    connection.execute(f"CREATE TEMP VIEW lines AS SELECT *, {absent}rowid + {first_line} AS line FROM parsed")


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


def drop_unusable(connection: duckdb.DuckDBPyConnection, piece: Piece, sink: Sink) -> None:
    """Leave in ``events_`` what can be used: known kinds with their ids, sane versions and counts, each number once."""
    known = ", ".join(f"'{kind}'" for kind in KINDS)
    fractions = " OR ".join(f"{name} <> floor({name})" for name in WHOLE)
    lifecycle = ", ".join(f"'{kind}'" for kind in LIFECYCLE)
    bad = f"""
        CASE WHEN kind IS NULL THEN 'it has no kind'
             WHEN kind NOT IN ({known}) THEN 'unknown-kind'
             WHEN kind IN ('span', 'trained') AND trajectory_id IS NULL THEN 'it has no trajectory_id'
             WHEN kind IN ({lifecycle}) AND trajectory_id IS NULL AND group_id IS NULL
                  THEN 'it names no trajectory and no group'
             WHEN kind IN ('trained', 'step') AND step IS NULL THEN 'it has no step'
             WHEN kind = 'span' AND versions IS NULL AND tokens IS NULL AND tokens_lo IS NULL THEN 'it has no tokens'
             WHEN least(tokens, tokens_lo, tokens_hi, loss_tokens, loss_tokens_lo, loss_tokens_hi, version, version_lo,
                        version_hi, step, attempt, trajectories) < 0 THEN 'a count or version is negative'
             WHEN tokens_lo > tokens_hi OR loss_tokens_lo > loss_tokens_hi OR version_lo > version_hi
                  OR staleness_lo > staleness_hi THEN 'an interval has its ends exchanged'
             WHEN greatest(version, version_lo, version_hi, step, attempt) > 2147483647
                  OR greatest(tokens, tokens_lo, tokens_hi, loss_tokens, loss_tokens_lo, loss_tokens_hi, n, trajectories) > 9e15
                  THEN 'a number is too large'
             WHEN loss_tokens > coalesce(len(versions), tokens, tokens_hi) AND kind = 'span' THEN 'more loss tokens than tokens'
             WHEN versions IS NOT NULL AND tokens IS NOT NULL AND tokens <> len(versions) THEN 'tokens is not the length of versions'
             WHEN {fractions} THEN 'a count, version or step is not a whole number'
             WHEN isinf(ts) OR isnan(ts) OR abs(ts) > 1e11 OR abs(started) > 1e11 OR abs(ended) > 1e11 THEN 'a time is impossible'
        END"""
    header = "line = 1 AND kind IS NULL" if piece.first_line == 1 else "false"
    connection.execute(f"CREATE TEMP VIEW judged AS SELECT *, {bad} AS fault FROM lines WHERE NOT ({header})")
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
    # Numbers that follow the lines one by one cannot repeat; only if they don't is it worth counting.
    row = connection.execute("SELECT max(n - line) = min(n - line) AND count(n) = count(*) FROM usable").fetchone()
    assert row is not None
    if row[0] is False and _has_repeats(connection):
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
        f"SELECT n, min(line), max(line), count(DISTINCT hash({columns})) FROM usable WHERE n IS NOT NULL "
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

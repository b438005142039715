"""The canonical event log: ``*.staleness.jsonl`` (DESIGN section 6, ``docs/events.md``).

Versions in it *are* policy versions: ``version`` of a span is ``v_gen``, of a step ``v_train``, of a sync the version
published. No off-by-one anywhere.

What betrays a loss: every line of a writer carries its number ``n``, and the last line is ``{"kind": "end"}``. A gap in
the numbers or a missing end means that lines are missing which may have held anything, so the upper ends open. A step
line's ``trajectories`` and ``loss_tokens`` betray lost ``trained`` lines even where the writer's tail is gone. Nothing
betrays the loss of a whole file.

A file is cut into pieces of lines that DuckDB parses and sorts into the tables; a piece it objects to is read again
line by line with the same queries, so that only the bad lines are lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import NamedTemporaryFile
from typing import Any

import duckdb
import orjson
import polars as pl
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFile, RunFiles
from staleness_audit.engine import connect, literal
from staleness_audit.errors import AuditError
from staleness_audit.parser import (
    Artifact,
    Attempt,
    Bound,
    Card,
    Detection,
    Guarantee,
    Hint,
    Mode,
    RunFacts,
    Sign,
    Sink,
    Staged,
    Unit,
)
from staleness_audit.readers.json_lines import BadLine, read_json_lines

FORMAT = "staleness-events/1"
PATTERN = "*.staleness.jsonl"
SPANS_PER_LINE = 1 << 20
"""Room in ``span_index`` for the runs of one ``versions`` list."""

_NUMBERS = (
    "n",
    "attempt",
    "step",
    "multiplicity",
    "prompt_tokens",
    "waited_us",
    "updates",
    "trajectories",
    "resumed_after",
)
_INTERVALS = ("version", "tokens", "loss_tokens", "multiplicity", "staleness")
_ENDS = tuple(f"{name}_{end}" for name in _INTERVALS for end in ("lo", "hi"))
_WORDS = ("kind", "trajectory_id", "group_id", "role", "reason", "worker")
_TIMES = ("ts", "started", "ended")
# Whole numbers are read as doubles and checked: DuckDB would silently round 5.7 tokens to 6.
_COLUMNS: dict[str, str] = {
    **dict.fromkeys(_WORDS, "VARCHAR"),
    **dict.fromkeys((*_NUMBERS, *_INTERVALS[:3], *_ENDS, *_TIMES), "DOUBLE"),
    **dict.fromkeys(("completed", "monotone"), "BOOLEAN"),
    "versions": "INTEGER[]",
}
_COMMON = {
    name: _COLUMNS[name]
    for name in (
        "kind", "n", "trajectory_id", "group_id", "version", "ts", "tokens", "step", "reason", "loss_tokens", "trajectories",
        "started", "ended", "versions",
    )
}  # fmt: skip
_ARROW = {"VARCHAR": pa.string(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(), "INTEGER[]": pa.list_(pa.int32())}
_WHOLE = (*_NUMBERS, *_INTERVALS[:3], *_ENDS)

_LIFECYCLE = (
    "admitted",
    "started",
    "paused",
    "resumed",
    "finished",
    "enqueued",
    "sampled",
    "dropped",
    "cancelled",
    "requeued",
    "lost",
)
_KINDS = (*_LIFECYCLE, "span", "trained", "step", "sync", "end")


class EventsParser:
    """Reads canonical event logs; see the module's docstring."""

    name = "events"
    version = "1"
    uses_processes = False  # DuckDB already works on all cores
    card = Card(
        title="Canonical event log",
        unit="as the writer states it (training steps by default)",
        artifacts=(
            Artifact(
                "*.staleness.jsonl",
                "written by the recorder, the simulator, or your own code (docs/events.md)",
                "every token's version, every use, every fate: exact, as far as it was written",
            ),
        ),
        modes=(
            Mode(
                "any",
                "bound (header)",
                "v_train - v_gen <= bound, as written",
                None,
                "not known",
                "an event log says what happened, not which mechanism was at work",
            ),
        ),
        betrays="gaps in the line numbers of a writer and a missing end line; step lines that count more than was "
        "recorded. The loss of a writer's whole file is betrayed by nothing.",
    )

    def detect(self, run: RunFiles) -> Detection | None:
        """Any ``*.staleness.jsonl``."""
        found = run.match(PATTERN)
        if not found:
            return None
        return Detection(tuple(f"{file.source} is a canonical event log" for file in found[:3]), dialect=FORMAT)

    def plan(self, run: RunFiles) -> Sequence[Unit]:
        """One unit per piece of lines; a file that repeats another byte for byte is read once."""
        units = []
        seen: set[str] = set()
        for file in run.match(PATTERN):
            pieces = run.split(file.source)
            if pieces[-1].digest in seen and file.bytes:
                continue
            seen.add(pieces[-1].digest)
            header, _ = _header(run, file)
            clock = "relative" if header and header.get("clock") == "relative" else "epoch"
            options = {"attempt": _whole(header.get("attempt")) if header else None, "clock": clock}
            units += [Unit("lines", (piece,), options) for piece in pieces]
        return units

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Sort the lines of one piece into the event tables, and stage the range of its line numbers."""
        piece = unit.pieces[0]
        with connect() as connection:
            _load_lines(run, piece, connection, sink)
            connection.execute(f"CREATE TYPE source_word AS ENUM ({literal(piece.source)})")
            connection.execute("CREATE TYPE evidence_word AS ENUM ('recorded')")
            connection.execute("SET VARIABLE source = ?", [piece.source])
            connection.execute("SET VARIABLE attempt = ?", [unit.options.get("attempt") or 0])
            _drop_unusable(connection, piece, sink)
            _stage_numbering(connection, sink)
            for table, query in _QUERIES:
                sink.write_query(table, connection, query)
            _write_version_lists(connection, sink)

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Check the numbering of every writer; take bound, configuration and attempts from the headers."""
        headers = []
        files = run.match(PATTERN)
        for file in files:
            header, line = _header(run, file)
            if header is None:
                sink.diagnose(
                    "error",
                    "bad-header",
                    f"The first line is not a header with format {FORMAT}; the writer's first line is lost or not of this format.",
                    source=file.source,
                    line=line,
                    opens="training",
                )
            else:
                headers.append((file, header))
        _report_repeats(run, files, sink)
        _check_numbering(staged, headers, files, sink)
        return _facts(staged, headers, len(files), sink)


PARSER = EventsParser()


# ---------------------------------------------------------------------------------------------- reading a piece


def _header(run: RunFiles, file: RunFile) -> tuple[dict[str, Any] | None, int]:
    """Return the header object (None if the first line is none) and its line number."""
    return _header_of(run.head(file.source, 1 << 20)), 1


def _header_of(data: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(data[: data.find(b"\n")] if b"\n" in data else data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict) or not str(value.get("format", "")).startswith("staleness-events/"):
        return None
    return value


def _load_lines(run: RunFiles, piece: Piece, connection: duckdb.DuckDBPyConnection, sink: Sink) -> None:
    """Make the view ``lines``: the columns of ``_COLUMNS`` and ``line``. Bad lines are diagnosed and left out."""
    if not run.file(piece.source).compressed:
        with run.open(piece.source) as stream, NamedTemporaryFile(suffix=".jsonl") as part:
            stream.seek(piece.start)
            data = stream.read(piece.end - piece.start)
            first_line = piece.first_line
            if first_line == 1 and _header_of(data) is not None:
                # The header's keys are its own; without it most pieces need only the common columns.
                data, first_line = data[data.find(b"\n") + 1 :] if b"\n" in data else b"", 2
            part.write(data)
            part.flush()
            try:
                # Most logs use few of the columns, and every column costs; all are read only where more appear.
                for columns in (_COMMON, _COLUMNS):
                    _parse(connection, part.name, columns)
                    if _is_plain(connection, data, columns):
                        _name_columns(connection, columns, first_line)
                        return
            except duckdb.Error:
                pass  # some line is bad: the careful reader below finds and names it
        connection.execute("DROP TABLE IF EXISTS parsed")
    schema = pa.schema([(name, _ARROW[kind]) for name, kind in _COLUMNS.items()])
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
    wholes = [name for name in columns if name in _WHOLE]
    fractions = " OR ".join(f"{name} <> floor({name})" for name in wholes)
    values = " + ".join(f"count({name})" for name in columns)
    row = connection.execute(f"SELECT count(*), count(*) FILTER ({fractions}), {values} FROM parsed").fetchone()
    assert row is not None
    rows, fractional, found = row
    if rows != data.count(b"\n") + (not data.endswith(b"\n") and bool(data)) or fractional or _has_fractions(data):
        raise duckdb.InvalidInputException("blank lines or fractions")
    return columns is _COLUMNS or found == data.count(b'":')


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
    absent = "".join(f"NULL::{kind} AS {name}, " for name, kind in _COLUMNS.items() if name not in columns)
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


def _diagnose_event(fault: str, source: str, line: int, sink: Sink) -> None:
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
    known = ", ".join(f"'{kind}'" for kind in _KINDS)
    fractions = " OR ".join(f"{name} <> floor({name})" for name in _WHOLE)
    lifecycle = ", ".join(f"'{kind}'" for kind in _LIFECYCLE)
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
            _diagnose_event(fault, piece.source, line, sink)
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
    columns = ", ".join(_COLUMNS)
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


def _stage_numbering(connection: duckdb.DuckDBPyConnection, sink: Sink) -> None:
    sink.write(
        "numbering",
        connection.sql(
            "SELECT getvariable('source') AS source, min(line) AS first_line, max(line) AS last_line, "
            "min(n) AS n_min, max(n) AS n_max, count(n) AS numbers, "
            "count(*) FILTER (n IS NULL) AS unnumbered, max(n) FILTER (kind = 'end') AS n_end "
            "FROM events_"
        ).to_arrow_table(),
    )
    # Only a piece with holes in it can lie between the lines of another; its numbers are kept one by one.
    sink.write(
        "loose_numbers",
        connection.sql(
            "SELECT getvariable('source') AS source, line, n FROM events_ WHERE n IS NOT NULL "
            "AND (SELECT max(n) - min(n) + 1 > count(n) FROM events_)"
        ).to_arrow_table(),
    )
    sink.write(
        "attempt_steps",
        connection.sql(
            "SELECT coalesce(attempt, getvariable('attempt'))::INTEGER AS attempt, min(step)::INTEGER AS first_step, "
            "min(coalesce(started, ended, ts)) AS started, max(coalesce(ended, ts)) AS ended "
            "FROM events_ WHERE kind IN ('step', 'trained') GROUP BY 1"
        ).to_arrow_table(),
    )


# Constants as enumerations: a word that is the same in every row is then written without hashing it every time.
_PLACE = "'recorded'::evidence_word AS evidence, getvariable('source')::source_word AS source, line"
_ATTEMPT = "coalesce(attempt, getvariable('attempt')) AS attempt"


def _time(name: str) -> str:
    return f"make_timestamptz(CAST(round({name} * 1e6) AS BIGINT))"


# A line that states a multiplicity speaks of a class of trajectories without names of their own.
_CLASS = "(coalesce(multiplicity, multiplicity_lo, multiplicity_hi) IS NOT NULL)"
_TS, _STARTED, _ENDED = (f"{_time(name)} AS {name}" for name in _TIMES)


def _ends(name: str) -> str:
    return f"coalesce({name}, {name}_lo) AS {name}_lo, coalesce({name}, {name}_hi) AS {name}_hi"


_QUERIES = (
    (
        "trajectories",
        # An id that no line describes needs no row: the core takes it for one trajectory of the policy.
        f"""SELECT trajectory_id, group_id, {_ATTEMPT}, coalesce(role, 'train') AS role, {_CLASS} AS anonymous,
                   coalesce(multiplicity, multiplicity_lo, CASE WHEN {_CLASS} THEN 0 ELSE 1 END) AS multiplicity_lo,
                   coalesce(multiplicity, multiplicity_hi, CASE WHEN NOT {_CLASS} THEN 1 END) AS multiplicity_hi, prompt_tokens, {_PLACE}
            FROM events_ WHERE trajectory_id IS NOT NULL
              AND (kind = 'admitted' OR group_id IS NOT NULL OR role IS NOT NULL OR prompt_tokens IS NOT NULL OR {_CLASS})""",
    ),
    (
        "spans",
        # An empty list is what a call without tokens looks like.
        f"""SELECT trajectory_id, n * {SPANS_PER_LINE} AS span_index, coalesce(len(versions), tokens, tokens_lo) AS tokens_lo,
                   coalesce(len(versions), tokens, tokens_hi) AS tokens_hi, {_ends("loss_tokens")}, {_ends("version")},
                   monotone, {_STARTED}, coalesce({_time("ended")}, {_time("ts")}) AS ended, worker, {_PLACE}
            FROM events_ WHERE kind = 'span' AND (versions IS NULL OR len(versions) = 0)""",
    ),
    (
        "uses",
        f"""SELECT trajectory_id, {_ATTEMPT}, step, {_ends("loss_tokens")}, staleness_lo, staleness_hi, {_PLACE}
            FROM events_ WHERE kind = 'trained'""",
    ),
    (
        "events",
        f"""SELECT n AS seq, {_TS}, kind, trajectory_id, group_id, {_ATTEMPT}, step, {_ends("version")},
                   multiplicity, CASE WHEN kind IN ('dropped', 'cancelled', 'lost') THEN coalesce(reason, 'unknown') ELSE reason END
                   AS reason, {_PLACE}
            FROM events_ WHERE kind IN ({", ".join(f"'{kind}'" for kind in _LIFECYCLE)})""",
    ),
    (
        "steps",
        f"""SELECT {_ATTEMPT}, step, coalesce(version, version_lo) AS v_train_lo, coalesce(version, version_hi) AS v_train_hi,
                   {_STARTED}, coalesce({_time("ended")}, {_time("ts")}) AS ended, waited_us, updates,
                   coalesce(completed, true) AS completed, {_PLACE}
            FROM events_ WHERE kind = 'step'""",
    ),
    (
        "syncs",
        f"""SELECT {_ATTEMPT}, {_ends("version")}, {_STARTED}, coalesce({_time("ended")}, {_time("ts")}) AS ended, worker, {_PLACE}
            FROM events_ WHERE kind = 'sync'""",
    ),
    (
        "constraints",
        f"""SELECT {_ATTEMPT}, step, quantity, 'eq' AS op, value, quantity AS unit, {_PLACE}
            FROM (UNPIVOT (SELECT attempt, step, line, trajectories, loss_tokens FROM events_ WHERE kind = 'step')
                  ON trajectories, loss_tokens INTO NAME quantity VALUE value)""",
    ),
)
"""Which rows of which table a line becomes. ``span_index`` follows the writer's line numbers: it orders, with gaps."""


def _write_version_lists(connection: duckdb.DuckDBPyConnection, sink: Sink) -> None:
    """Write spans given as one version per token, as runs of equal versions.

    A version that returns makes a new span. With ``loss_tokens`` given, only their number over all runs is known, so it
    is an interval on each run and exact in the constraint that the trajectory's use carries.
    """
    rows = connection.sql(
        f"SELECT trajectory_id, n, versions, loss_tokens, {_ENDED}, {_TS}, worker, line "
        "FROM events_ WHERE kind = 'span' AND versions IS NOT NULL AND len(versions) > 0"
    ).to_arrow_table()
    if not rows.num_rows:
        return
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    source = _source(connection)
    runs = _runs(frame["versions"])
    bad = runs.filter(pl.col("version").is_null() | (pl.col("version") < 0))["row"].unique()
    for line in frame[bad.to_list()]["line"].to_list():
        _diagnose_event("a version in its list is null or negative", source, line, sink)
    lengths = frame.select(pl.col("versions").list.len().cast(pl.Int64).alias("all_tokens"))["all_tokens"]
    spans = runs.filter(~pl.col("row").is_in(bad.implode())).join(
        frame.drop("versions").with_columns(lengths).with_row_index("row"), on="row", how="left", maintain_order="left"
    )
    others = pl.col("all_tokens") - pl.col("tokens")
    counted = pl.when(pl.col("loss_tokens").is_not_null())
    sink.write(
        "spans",
        spans.select(
            "trajectory_id",
            # Lists take one number of the writer for many spans, so their spans are numbered finer than lines are.
            (pl.col("n").fill_null(0).cast(pl.Int64) * SPANS_PER_LINE + pl.col("nth")).alias("span_index"),
            pl.col("tokens").alias("tokens_lo"),
            pl.col("tokens").alias("tokens_hi"),
            counted.then(pl.max_horizontal(pl.col("loss_tokens") - others, pl.lit(0)))
            .cast(pl.Int64)
            .alias("loss_tokens_lo"),
            counted.then(pl.min_horizontal(pl.col("loss_tokens"), pl.col("tokens")))
            .cast(pl.Int64)
            .alias("loss_tokens_hi"),
            pl.col("version").alias("version_lo"),
            pl.col("version").alias("version_hi"),
            pl.coalesce("ended", "ts").alias("ended"),
            "worker",
            pl.lit("recorded").alias("evidence"),
            pl.lit(source).alias("source"),
            "line",
        ),
    )


def _runs(lists: pl.Series) -> pl.DataFrame:
    """Return runs of equal values inside each list: ``row``, ``version``, ``tokens`` (its length), ``nth`` (within the row)."""
    ends = lists.list.len().cast(pl.Int64).cum_sum()
    values = lists.explode(empty_as_null=False)
    changes = values.ne_missing(values.shift(1)).arg_true().cast(pl.Int64)
    starts = pl.concat([changes, pl.Series([0]), ends[:-1]]).unique().sort()
    rows = ends.search_sorted(starts, side="right").cast(pl.UInt32)
    return pl.DataFrame({"row": rows, "version": values.gather(starts), "start": starts}).select(
        "row",
        "version",
        (pl.col("start").shift(-1, fill_value=len(values)) - pl.col("start")).alias("tokens"),
        (pl.int_range(pl.len(), dtype=pl.Int64) - pl.int_range(pl.len(), dtype=pl.Int64).min().over("row")).alias(
            "nth"
        ),
    )


def _source(connection: duckdb.DuckDBPyConnection) -> str:
    row = connection.execute("SELECT getvariable('source')").fetchone()
    assert row is not None
    return str(row[0])


# ---------------------------------------------------------------------------------------------- the run as a whole


def _report_repeats(run: RunFiles, files: list[RunFile], sink: Sink) -> None:
    first: dict[str, str] = {}
    for file in files:
        digest = run.split(file.source)[-1].digest
        if file.bytes and digest in first:
            sink.diagnose(
                "note", "repeated-file", f"The same bytes as {first[digest]}; it counts once.", source=file.source
            )
        first.setdefault(digest, file.source)


def _check_numbering(
    staged: Staged, headers: list[tuple[RunFile, dict[str, Any]]], files: list[RunFile], sink: Sink
) -> None:
    """Every writer's lines must be numbered without gaps from 1 (or 0) to the number of its end line."""
    if not staged.has("numbering"):
        return
    # A writer may start counting anew in every attempt.
    writers = {
        file.source: f"{header['writer']} of attempt {_whole(header.get('attempt')) or 0}"
        for file, header in headers
        if header.get("writer")
    }
    pieces = staged.scan("numbering").sort("source", "first_line").collect()
    for (writer,), own in pieces.with_columns(
        pl.col("source").replace_strict(writers, default=pl.col("source")).alias("writer")
    ).group_by("writer", maintain_order=True):
        ranges = own.filter(pl.col("n_min").is_not_null()).sort("n_min")
        source, last_line = own["source"][-1], own["last_line"].max()
        if (ranges["n_min"] <= ranges["n_max"].shift(1)).any() and (repeat := _first_repeat(staged, ranges)):
            raise AuditError(
                f"{source}: line number n = {repeat} of writer {writer} occurs in more than one file or far apart in one; "
                "remove the copy (or give each writer a name of its own)."
            )
        _diagnose_numbering(str(writer), str(source), last_line, own, sink)


def _first_repeat(staged: Staged, ranges: pl.DataFrame) -> int | None:
    """Return a number that occurs in two of the pieces whose ranges overlap, if any does."""
    whole = ranges.filter(pl.col("n_max") - pl.col("n_min") + 1 == pl.col("numbers"))
    numbers = [pl.int_ranges(pl.col("n_min").cast(pl.Int64), pl.col("n_max").cast(pl.Int64) + 1).alias("n")]
    every = whole.select(numbers).explode("n")
    if whole.height < ranges.height:
        loose = staged.scan("loose_numbers").filter(pl.col("source").is_in(ranges["source"].unique().to_list()))
        every = pl.concat([every, loose.select(pl.col("n").cast(pl.Int64)).collect()])
    repeated = every.filter(pl.col("n").is_duplicated())["n"]
    return None if repeated.is_empty() else int(repeated.min())  # type: ignore[arg-type]


def _diagnose_numbering(writer: str, source: str, last_line: Any, own: pl.DataFrame, sink: Sink) -> None:
    unnumbered = int(own["unnumbered"].sum())
    if unnumbered:
        sink.diagnose(
            "warning",
            "unnumbered-lines",
            f"{unnumbered} lines of writer {writer} have no number n, so that lost lines could not be noticed.",
            source=source,
            opens="training",
        )
    if own["n_max"].max() is None:
        missing = 0
    else:
        low, high = int(own["n_min"].min()), int(own["n_max"].max())  # type: ignore[arg-type]
        missing = high - min(low, 1) + 1 - int(own["numbers"].sum())
    if missing > 0:
        sink.diagnose(
            "error",
            "lines-missing",
            f"{missing} lines of writer {writer} are missing (its numbers n have gaps); what they said is not known.",
            source=source,
            opens="training",
        )
    end = own["n_end"].max()
    if end is None or end < own["n_max"].max():  # type: ignore[operator]
        sink.diagnose(
            "warning",
            "no-end-line",
            f"Writer {writer} has no end line: it was stopped, or its last lines are lost.",
            source=source,
            line=last_line,
            opens="training",
        )


def _facts(staged: Staged, headers: list[tuple[RunFile, dict[str, Any]]], files: int, sink: Sink) -> RunFacts:
    first = headers[0][1] if headers else {}
    bounds = {header["bound"] for _, header in headers if _whole(header.get("bound")) is not None}
    if len(bounds) > 1:
        sink.diagnose(
            "warning", "bounds-differ", f"The headers state different bounds {sorted(bounds)}; the smallest is used."
        )
    bound = min(bounds, default=None)
    framework = str(first.get("framework") or "events")
    config = first.get("config") if isinstance(first.get("config"), dict) else {}
    whole = len(headers) == files and _intact(staged)
    attempts = _attempts(staged, headers, whole)
    if len(headers) < files:
        # The file may be that of another attempt, which would have rolled back any step.
        attempts.append(Attempt(max(attempt.attempt for attempt in attempts) + 1, None, -1))
    return RunFacts(
        framework=framework,
        unit=str(first.get("unit") or "training steps"),
        dialect=str(first.get("format") or FORMAT),
        config=config or {},
        bound=Bound(
            bound,
            "bound" if bound is not None else None,
            bound,
            "as stated: v_train - v_gen <= bound" if bound is not None else None,
        ),
        guarantee=Guarantee(None, "an event log says what happened, not which mechanism was at work"),
        attempts=attempts,
        signs=_signs(staged),
        undone=not whole,
        hints=[Hint("which bound was wanted", 'write "bound" into the header, or give --bound')]
        if bound is None
        else [],
        groups_per_step=_whole(first.get("groups_per_step")),
        replay=True,
    )


def _attempts(staged: Staged, headers: list[tuple[RunFile, dict[str, Any]]], whole: bool) -> list[Attempt]:
    """Attempts by the headers (``attempt``, ``resumed_after``), else by the first step that each one is seen to take."""
    stated = {
        attempt: _whole(header.get("resumed_after"))
        for _, header in headers
        if (attempt := _whole(header.get("attempt"))) is not None
    }
    seen: dict[int, tuple[int | None, float | None, float | None]] = {}
    if staged.has("attempt_steps"):
        frame = (
            staged.scan("attempt_steps")
            .group_by("attempt")
            .agg(pl.col("first_step").min(), pl.col("started").min(), pl.col("ended").max())
        )
        seen = {row[0]: (row[1], row[2], row[3]) for row in frame.collect().iter_rows()}
    attempts = []
    for number in sorted({0, *stated, *seen}):
        first_step, started, ended = seen.get(number, (None, None, None))
        resumed = stated.get(number)
        certain = resumed
        if resumed is None and number > 0 and first_step is not None:
            # The first step seen proves that the attempt resumed before it, however many lines are missing.
            resumed, certain = first_step - 1, (first_step - 1 if whole else -1)
        attempts.append(
            Attempt(number, resumed, certain if certain != resumed else None, _moment(started), _moment(ended))
        )
    return attempts


def _intact(staged: Staged) -> bool:
    """Whether no line is missing anywhere, so that the first step seen of an attempt is its first step."""
    if not staged.has("numbering"):
        return True
    pieces = staged.scan("numbering").collect()
    per_file = pieces.group_by("source").agg(
        pl.col("n_min").min(), pl.col("n_max").max(), pl.col("n_end").max(), pl.col("numbers").sum()
    )
    whole = (pl.col("n_max") - pl.min_horizontal("n_min", 1.0) + 1 == pl.col("numbers")) & (
        pl.col("n_end") == pl.col("n_max")
    )
    return bool(per_file.select(whole.fill_null(False).all()).item())


def _signs(staged: Staged) -> list[Sign]:
    pieces = (
        staged.scan("numbering").filter(pl.col("n_end").is_not_null()).collect() if staged.has("numbering") else None
    )
    files = staged.scan("numbering").select(pl.col("source").n_unique()).collect().item() if pieces is not None else 0
    if pieces is None or not files or pieces["source"].n_unique() < files:
        return []
    last = pieces.row(-1, named=True)
    return [Sign("finished", None, "every writer closed its log with an end line", last["source"], last["last_line"])]


def _moment(seconds: float | None) -> Any:
    return None if seconds is None else pl.Series([round(seconds * 1e6)]).cast(pl.Datetime("us", "UTC")).item()


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

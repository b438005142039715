"""From the view ``events_`` to the event tables: which line becomes which row."""

from __future__ import annotations

import duckdb
import polars as pl

from staleness_audit.parser import Sink
from staleness_parsers.events.columns import KINDS, LIFECYCLE, SPANS_PER_LINE, TIMES
from staleness_parsers.events.lines import diagnose_event


def stage_numbering(connection: duckdb.DuckDBPyConnection, sink: Sink) -> None:
    """Stage the range of line numbers and the steps of a piece, from which ``finish`` tells what is missing."""
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


_TS, _STARTED, _ENDED = (f"{_time(name)} AS {name}" for name in TIMES)


# A line that states a multiplicity speaks of a class of trajectories without names of their own.
_CLASS = "(coalesce(multiplicity, multiplicity_lo, multiplicity_hi) IS NOT NULL)"


def _ends(name: str) -> str:
    return f"coalesce({name}, {name}_lo) AS {name}_lo, coalesce({name}, {name}_hi) AS {name}_hi"


QUERIES = (
    (
        "trajectories",
        KINDS,
        # An id that no line describes needs no row: the core takes it for one trajectory of the policy.
        f"""SELECT trajectory_id, group_id, {_ATTEMPT}, coalesce(role, 'train') AS role, {_CLASS} AS anonymous,
                   coalesce(multiplicity, multiplicity_lo, CASE WHEN {_CLASS} THEN 0 ELSE 1 END) AS multiplicity_lo,
                   coalesce(multiplicity, multiplicity_hi, CASE WHEN NOT {_CLASS} THEN 1 END) AS multiplicity_hi, prompt_tokens, {_PLACE}
            FROM events_ WHERE trajectory_id IS NOT NULL
              AND (kind = 'admitted' OR group_id IS NOT NULL OR role IS NOT NULL OR prompt_tokens IS NOT NULL OR {_CLASS})""",
    ),
    (
        "spans",
        ("span",),
        # An empty list is what a call without tokens looks like.
        f"""SELECT trajectory_id, n * {SPANS_PER_LINE} AS span_index, coalesce(len(versions), tokens, tokens_lo) AS tokens_lo,
                   coalesce(len(versions), tokens, tokens_hi) AS tokens_hi, {_ends("loss_tokens")}, {_ends("version")},
                   monotone, {_STARTED}, coalesce({_time("ended")}, {_time("ts")}) AS ended, worker, {_PLACE}
            FROM events_ WHERE kind = 'span' AND (versions IS NULL OR len(versions) = 0)""",
    ),
    (
        "uses",
        ("trained",),
        f"""SELECT trajectory_id, {_ATTEMPT}, step, {_ends("loss_tokens")}, staleness_lo, staleness_hi, {_PLACE}
            FROM events_ WHERE kind = 'trained'""",
    ),
    (
        "events",
        LIFECYCLE,
        f"""SELECT n AS seq, {_TS}, kind, trajectory_id, group_id, {_ATTEMPT}, step, {_ends("version")},
                   multiplicity, CASE WHEN kind IN ('dropped', 'cancelled', 'lost') THEN coalesce(reason, 'unknown') ELSE reason END
                   AS reason, {_PLACE}
            FROM events_ WHERE kind IN ({", ".join(f"'{kind}'" for kind in LIFECYCLE)})""",
    ),
    (
        "steps",
        ("step",),
        f"""SELECT {_ATTEMPT}, step, coalesce(version, version_lo) AS v_train_lo, coalesce(version, version_hi) AS v_train_hi,
                   {_STARTED}, coalesce({_time("ended")}, {_time("ts")}) AS ended, waited_us, updates,
                   coalesce(completed, true) AS completed, {_PLACE}
            FROM events_ WHERE kind = 'step'""",
    ),
    (
        "syncs",
        ("sync",),
        f"""SELECT {_ATTEMPT}, {_ends("version")}, {_STARTED}, coalesce({_time("ended")}, {_time("ts")}) AS ended, worker, {_PLACE}
            FROM events_ WHERE kind = 'sync'""",
    ),
    (
        "constraints",
        ("step",),
        f"""SELECT {_ATTEMPT}, step, quantity, 'eq' AS op, value, quantity AS unit, {_PLACE}
            FROM (UNPIVOT (SELECT attempt, step, line, trajectories, loss_tokens FROM events_ WHERE kind = 'step')
                  ON trajectories, loss_tokens INTO NAME quantity VALUE value)""",
    ),
)
"""Table, kinds of lines that it is made from, and the query. ``span_index`` follows the writer's line numbers: it orders, with gaps."""


def write_version_lists(connection: duckdb.DuckDBPyConnection, sink: Sink) -> None:
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
    bad = runs.filter(pl.col("version").is_null() | (pl.col("version") < 0))["row"].unique().sort()
    for line in frame[bad.to_list()]["line"].to_list():
        diagnose_event("a version in its list is null or negative", source, line, sink)
    if len(bad):
        runs = runs.filter(~pl.col("row").is_in(bad.implode()))
    lines = frame.with_columns(pl.col("versions").list.len().cast(pl.Int64).alias("all_tokens")).drop("versions")
    spans = pl.concat([runs, lines[runs["row"]]], how="horizontal")
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
    begins = pl.concat([pl.Series([0]), ends[:-1]])
    starts = pl.concat([changes, begins]).unique().sort()
    rows = ends.search_sorted(starts, side="right").cast(pl.UInt32)
    firsts = starts.search_sorted(begins)
    return pl.DataFrame({"row": rows, "version": values.gather(starts), "start": starts}).select(
        "row",
        "version",
        (pl.col("start").shift(-1, fill_value=len(values)) - pl.col("start")).alias("tokens"),
        (pl.int_range(pl.len(), dtype=pl.Int64) - firsts[rows].cast(pl.Int64)).alias("nth"),
    )


def _source(connection: duckdb.DuckDBPyConnection) -> str:
    row = connection.execute("SELECT getvariable('source')").fetchone()
    assert row is not None
    return str(row[0])

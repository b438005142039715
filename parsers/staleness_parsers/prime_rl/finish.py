"""Joining what the units left: attempts, steps, updates, lives, fates, and what holds for the run as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import duckdb
import orjson
import polars as pl
import pyarrow as pa

from staleness_audit.parser import Attempt, RunFacts, Sink, Staged
from staleness_audit.readers.numbers import micros
from staleness_parsers.prime_rl import fates, lives
from staleness_parsers.prime_rl.build import Build, recognise
from staleness_parsers.prime_rl.facts import Known, facts
from staleness_parsers.prime_rl.launches import Apply, Launch, applies, launches
from staleness_parsers.prime_rl.settings import Settings, settings_from
from staleness_parsers.prime_rl.steps import Batch, write_steps
from staleness_parsers.prime_rl.story import Cancelled, Story, tell
from staleness_parsers.prime_rl.traces import DAMAGE, TRACES, TURNS

NAMES = {
    "off_policy/max": "step.staleness_max",
    "off_policy/mean": "step.staleness_trajectory_mean",
    "off_policy/in_flight/mean": "step.in_flight_mean",
    "off_policy/in_queue/mean": "step.in_queue_mean",
}
"""Canonical names of what the orchestrator's rows say about staleness: over shipped episodes, by recorded versions.

``off_policy/dropped`` counts sweeps of the queue only, which is not all that was dropped: it has no such name.
"""

ASSUMPTIONS = {
    "start-versions": "`exact`: the code counts a version only once the engines have it (since PR #3385)",
    "seq-len": "tokens after which a branch is cut for training, where no configuration is left",
}
"""What ``--assume`` may tell: keys and meanings."""

_SCHEMAS = {"prime_traces": TRACES, "prime_turns": TURNS, "prime_damage": DAMAGE}


def finish_run(staged: Staged, sink: Sink, assume: Mapping[str, str]) -> RunFacts:
    """Write the event tables of a run from its staged ones and return its facts.

    ``assume``: see ``ASSUMPTIONS``.
    """
    settings = _assume(_settings(staged), assume, sink)
    log = _rows(staged, "prime_log", "source", "line")
    metrics = _rows(staged, "prime_metrics", "source", "line")
    if settings.bound is None:
        settings = _bound_from_log(settings, log)
    with staged.connect() as connection:
        for table, schema in _SCHEMAS.items():
            if not staged.has(table):
                connection.register(f"no_{table}", schema.empty_table())
                connection.execute(f"CREATE VIEW {table} AS SELECT * FROM no_{table}")  # noqa: S608 - our names
        lives.place(connection)
        connection.execute("CREATE TEMP TABLE prime_damage AS SELECT * FROM prime_damage")
        found = launches(log, metrics, settings.shown.get("resume.step"))
        build = recognise(*_forms(connection), found, labels_assumed_exact=assume.get("start-versions") == "exact")
        stories = [tell(launch, build) for launch in found]
        updates = {launch.number: applies(launch) for launch in found}
        envs = [
            row[0] for row in connection.sql("SELECT DISTINCT env FROM prime_traces WHERE role = 'train'").fetchall()
        ]
        lives.load(connection, found, updates, settings, build, envs)
        _judge_cuts(connection, found, sink)
        batches = _batches(connection, found)
        _tell_gaps(found, batches, sink)
        steps, lost = write_steps(sink, found, build, batches, updates, settings)
        if not (log or metrics or envs):
            sink.diagnose(
                "warning",
                "no-records",
                "There are no metrics, logs or traces of training, so nothing is known of it; restore them.",
                opens="training",
            )
        _write_updates(sink, updates)
        _write_numbers(staged, sink, found)
        # A shipped trace without a record of its arrival: files of `all` are gone.
        missing = bool(connection.sql("SELECT 1 FROM main WHERE shipped AND arrived_in IS NULL LIMIT 1").fetchall())
        missing = _tell_short_batches(connection, found, sink) or missing
        _write_lives_and_fates(connection, sink, settings, build, stories, batches, envs, lost, missing)
        _note_untrainable(connection, sink)
        known = Known(
            settings, build, stories, steps, _attempts(found, steps), staged.has("prime_traces"), bool(metrics), missing
        )
    return facts(known)


def _rows(staged: Staged, table: str, *order: str) -> list[dict[str, Any]]:
    return staged.scan(table).sort(order).collect().to_dicts() if staged.has(table) else []


def _settings(staged: Staged) -> Settings:
    for row in _rows(staged, "prime_config", "source"):
        return settings_from(row["source"], orjson.loads(row["document"]))
    return Settings()


def _assume(settings: Settings, assume: Mapping[str, str], sink: Sink) -> Settings:
    """Take from the user where branches were cut, if the configuration does not say it."""
    given = assume.get("seq-len")
    if given is None or settings.seq_len is not None:
        return settings
    if not given.isdigit():
        sink.diagnose("warning", "assumption-unusable", f"--assume seq-len={given}: give a number of tokens.")
        return settings
    return replace(settings, seq_len=int(given), seq_len_assumed=True)


def _bound_from_log(settings: Settings, log: Iterable[dict[str, Any]]) -> Settings:
    """Without a configuration the warnings still name the bound in force."""
    for row in log:
        if row["kind"] in ("cancelled", "swept") and row["number"] is not None:
            shown = {**settings.shown, "max_off_policy_steps": row["number"]}
            return replace(settings, bound=row["number"], shown=shown, found_in=row["source"])
    return settings


def _forms(connection: duckdb.DuckDBPyConnection) -> tuple[set[str], list[str]]:
    forms = {row[0] for row in connection.sql("SELECT DISTINCT form FROM prime_traces").fetchall()}
    query = "SELECT DISTINCT error FROM prime_traces WHERE starts_with(error, 'Cancelled:') LIMIT 20"
    return forms, [row[0] for row in connection.sql(query).fetchall()]


def _batches(connection: duckdb.DuckDBPyConnection, found: Sequence[Launch]) -> dict[int, Batch]:
    """Per attempt: the steps whose shipped traces are on disk, the last step collected, the newest version named."""
    batches = {launch.number: Batch() for launch in found}
    query = """SELECT attempt, part, list(DISTINCT step), max(greatest(coalesce(v_end, v_start), v_start))
               FROM seen GROUP BY ALL"""
    for attempt, part, steps, newest in connection.sql(query).fetchall():
        batch = batches[attempt]
        if part == "effective":
            batch.shipped |= set(steps)
        batch.collected = max(batch.collected, *steps)
        batch.newest = max(batch.newest, newest if newest is not None else 0)
    damage = connection.sql("SELECT DISTINCT step FROM prime_damage WHERE part = 'effective'").fetchall()
    for batch in batches.values():
        batch.damaged = {row[0] for row in damage}
    return batches


def _judge_cuts(connection: duckdb.DuckDBPyConnection, found: Sequence[Launch], sink: Sink) -> None:
    """Tell cut files of traces that the run went on after from one it ended with: that record was never finished.

    A file is complete once a later step was collected, or the run came to its end.
    """
    (row,) = connection.sql("SELECT max(step) FROM prime_traces").fetchall()
    latest = max([row[0] or 0, *(step for launch in found for step in launch.steps)])
    over = any(
        row["kind"] in ("final", "finished") for launch in found for rows in launch.logs.values() for row in rows
    )
    cuts = "SELECT source, line, step, part FROM prime_damage WHERE cut ORDER BY source, line"
    for source, line, step, part in connection.sql(cuts).fetchall():
        if step < latest or over:
            sink.diagnose(
                "error",
                "trace-file-cut",
                "The file ends inside a record, though the run went on; restore it from a copy.",
                source=source,
                line=line,
                opens="training" if part == "effective" else "fates",
            )
        else:
            sink.diagnose(
                "note", "line-cut", "The last line is cut: the record was never finished.", source=source, line=line
            )
    connection.execute("DELETE FROM prime_damage WHERE cut AND step >= ? AND NOT ?", [latest, over])


def _tell_gaps(found: Sequence[Launch], batches: Mapping[int, Batch], sink: Sink) -> None:
    """Say where an orchestrator's log lacks the line of a step that its files tell of: more of it may be lost."""
    for launch in found:
        log = launch.log("orchestrator")
        logged = {row["number"] for row in log if row["kind"] == "step"}
        known = {row["step"] for row in launch.metrics("orchestrator")} | batches[launch.number].shipped
        missing = sorted(step for step in known - logged if logged and step > min(logged))
        if log and missing:
            sink.diagnose(
                "warning",
                "log-incomplete",
                f"The log lacks the line of {len(missing)} steps, the first of them {missing[0]}; drops and "
                "cancellations that it told of may be lost with it. Restore the log.",
                source=log[0]["source"],
                opens="fates",
            )


def _tell_short_batches(connection: duckdb.DuckDBPyConnection, found: Sequence[Launch], sink: Sink) -> bool:
    """Say where fewer traces of a step are on disk than its line says were shipped, and return whether any are.

    The step's own numbers stay right; but who is missing looks as if it had been dropped.
    """
    query = "SELECT attempt, step, count(DISTINCT trajectory) FROM seen WHERE part = 'effective' GROUP BY ALL"
    kept = {(attempt, step): count for attempt, step, count in connection.sql(query).fetchall()}
    lines = [(launch.number, row) for launch in found for row in launch.log("orchestrator") if row["kind"] == "step"]
    short = [
        (row, row["count"] - kept[attempt, row["number"]])
        for attempt, row in lines
        if row["count"] is not None and row["count"] > kept.get((attempt, row["number"]), row["count"])
    ]
    for row, lost in short:
        sink.diagnose(
            "error",
            "traces-missing",
            f"Step {row['number']} shipped {lost} traces more than its file has; restore it from a copy.",
            source=row["source"],
            line=row["line"],
            opens="fates",
        )
    return bool(short)


def _write_updates(sink: Sink, updates: dict[int, list[Apply]]) -> None:
    rows = [
        {
            "attempt": attempt,
            "version_lo": one.version,
            "version_hi": one.version,
            "started": micros(one.begin),
            "ended": micros(one.end),
            "evidence": "derived",
            "source": one.source,
            "line": one.line,
        }
        for attempt, found in updates.items()
        for one in found
    ]
    _write(sink, "syncs", rows)


def _write_numbers(staged: Staged, sink: Sink, found: Sequence[Launch]) -> None:
    """Copy what the framework says about itself, with the attempt that the row of that step and line belongs to."""
    if not staged.has("prime_numbers"):
        return
    # A process writes the row that tells its step apart last, so a figure belongs to the next such row's attempt.
    marks = sorted(
        (row["source"], row["line"], launch.number) for launch in found for rows in launch.rows.values() for row in rows
    )
    schema = {"source": pl.String, "line": pl.Int64, "attempt": pl.Int32}
    attempts = pl.DataFrame(marks, schema=schema, orient="row").sort("source", "line").lazy()
    numbers = (
        staged.scan("prime_numbers")
        .sort("source", "line")
        .join_asof(attempts, on="line", by="source", strategy="forward", check_sortedness=False)
        .with_columns(
            attempt=pl.col("attempt").fill_null(found[-1].number),
            ts=(pl.col("ts") * 1e6).round().cast(pl.Int64),
            name=pl.col("raw_name").replace_strict(NAMES, default=None, return_dtype=pl.String),
            evidence=pl.lit("recorded"),
        )
        .drop("family")
    )
    sink.write("reported", numbers.collect())


def _write_lives_and_fates(
    connection: duckdb.DuckDBPyConnection,
    sink: Sink,
    settings: Settings,
    build: Build,
    stories: Sequence[Story],
    batches: dict[int, Batch],
    envs: Sequence[str | None],
    lost: bool,
    missing: bool,
) -> None:
    watches = []
    for story in stories:
        batch = batches[story.launch.number]
        # Batch M ships only when v{M-2} is in force, which was adopted after batch M-2 had shipped.
        by_ships = max(batch.shipped) - 1 if batch.shipped and build.dialect == "episodes" else None
        adopted = max((at for at in (story.adopted_at, by_ships) if at is not None), default=None)
        last_step = max(batch.collected, story.collecting, max(batch.shipped, default=0) + 1)
        watches.append(
            fates.Watch(
                story.launch.number,
                story.names_groups,
                story.overload or not story.has_log,
                story.rejects or not story.names_groups,
                adopted,
                last_step,
                story is stories[-1],
            )
        )
    fates.prepare(
        connection,
        [drop for story in stories for drop in story.drops],
        [sweep for story in stories for sweep in story.sweeps()],
        watches,
    )
    unscheduled = _unscheduled(connection, stories, settings, envs)
    lives.divide(connection)
    damaged = bool(connection.sql("SELECT 1 FROM prime_damage LIMIT 1").fetchall())
    whole = not (lost or missing or damaged)
    became = fates.find_fates(connection, settings, build, whole=whole, batches_whole=not (lost or damaged))
    lives.write_lives(connection, sink, settings, build, became)
    _write_cancelled(connection, sink, [*(one for story in stories for one in story.cancelled), *unscheduled], build)


def _unscheduled(
    connection: duckdb.DuckDBPyConnection, stories: Sequence[Story], settings: Settings, envs: Sequence[str | None]
) -> list[Cancelled]:
    """Find cancelled members of the older code that may never have been dispatched.

    Its `all` lists every member of a dropped group; only the DEBUG line says how many were running. Where it does not
    say "all", which of them ran is unknown: they become a class. At least one member of a group is dispatched first.
    """
    connection.execute("CREATE TEMP TABLE unscheduled (trajectory VARCHAR)")
    query = """SELECT attempt, grp, any_value(env), count(*), min(source), min(line) FROM main
               WHERE NOT named AND starts_with(error, 'Cancelled: Off-policy cancel') AND grp IS NOT NULL
               GROUP BY ALL"""
    found = []
    for attempt, group, env, listed, source, line in connection.sql(query).fetchall():
        drains = [
            drain
            for story in stories
            if story.launch.number == attempt
            for drain in story.drains
            if group.startswith(drain.prefix)
        ]
        ran = sum(drain.running for drain in drains)
        if drains and ran == listed == sum(drain.cancelled for drain in drains):
            continue
        size = settings.source(env).group_size
        least = ran if drains else max(0, listed - (size - 1)) if size else 0
        most = min(ran, listed) if drains else listed
        row = {"source": source, "line": line, "lo": None, "kind": "all"}
        found.append(Cancelled(attempt, "stale", min(least, most), most, None, group, row))
        connection.execute(
            "INSERT INTO unscheduled SELECT trajectory FROM main WHERE NOT named AND grp = ? "
            "AND starts_with(error, 'Cancelled: Off-policy cancel')",
            [group],
        )
    return found


def _write_cancelled(
    connection: duckdb.DuckDBPyConnection, sink: Sink, cancelled: Sequence[Cancelled], build: Build
) -> None:
    """Members that were cancelled in flight leave no record: classes with the log's numbers and unknown tokens."""
    trajectories, spans, events = [], [], []
    for index, one in enumerate(cancelled):
        identity = f"anonymous:a{one.attempt}/{one.reason or 'cut at the end'}/{index}"
        place = {
            "evidence": "derived" if one.least == one.most else "inferred",
            "source": one.row["source"],
            "line": one.row["line"],
        }
        group = _group(connection, one.prefix)
        trajectories.append(
            {
                "trajectory_id": identity,
                "group_id": group,
                "attempt": one.attempt,
                "role": "train",
                "anonymous": True,
                "multiplicity_lo": one.least,
                "multiplicity_hi": one.most,
                **place,
            }
        )
        spans.append(
            {
                "trajectory_id": identity,
                "span_index": 0,
                "tokens_lo": 0,
                "version_lo": 0,
                "version_hi": one.version,
                **place,
            }
        )
        if one.reason is not None:
            events.append(
                {
                    "seq": one.row["line"],
                    "ts": micros(one.row["lo"]),
                    "kind": "cancelled",
                    "trajectory_id": identity,
                    "group_id": group,
                    "attempt": one.attempt,
                    "version_lo": one.version,
                    "version_hi": one.version,
                    "multiplicity": one.least if one.least == one.most else None,
                    "reason": one.reason if one.reason in ("stale", "overload") else f"other:{one.reason}",
                    **place,
                    # The cancellation is certain; how many it struck stands in the class's multiplicity.
                    "evidence": "derived",
                }
            )
    _write(sink, "trajectories", trajectories)
    _write(sink, "spans", spans)
    _write(sink, "events", events)


def _group(connection: duckdb.DuckDBPyConnection, prefix: str | None) -> str | None:
    if prefix is None:
        return None
    found = connection.execute("SELECT DISTINCT grp FROM main WHERE starts_with(grp, ?) LIMIT 2", [prefix]).fetchall()
    return found[0][0] if len(found) == 1 else None


def _note_untrainable(connection: duckdb.DuckDBPyConnection, sink: Sink) -> None:
    query = "SELECT count(*), min(source) FROM seen WHERE trainable IS FALSE AND part = 'all'"
    (row,) = connection.sql(query).fetchall()
    if row[0]:
        sink.diagnose(
            "note",
            "untrainable-agents",
            f"{row[0]} traces of agents that never train (judges, users) are left out.",
            source=row[1],
        )


def _attempts(found: Sequence[Launch], steps: dict[int, set[int]]) -> list[Attempt]:
    highest = max((step for known in steps.values() for step in known), default=0)
    attempts = []
    for launch in found:
        # An attempt that left neither a step nor a word where it started from may have gone back anywhere.
        resumed, lowest = (highest, 0) if launch.origin_unknown else (launch.resumed_after, None)
        times = [None if time is None else datetime.fromtimestamp(time, UTC) for time in (launch.started, launch.ended)]
        attempts.append(Attempt(launch.number, resumed, lowest, *times))
    return attempts


def _write(sink: Sink, table: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        sink.write(table, pa.Table.from_pylist(rows))

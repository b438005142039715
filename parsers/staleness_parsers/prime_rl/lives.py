"""From staged traces to trajectories, spans and uses, in SQL so that memory stays bounded (guide sections 3 to 6).

The version interval of a turn is what three things leave of it: the recorded span of its episode (whose start may be
one update too new, section 4.5), the updates whose begin or end is dated against the turn's request, and that nothing
newer than v_train of the step being collected can have been served at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import duckdb

from staleness_audit.parser import Sink
from staleness_parsers.prime_rl.build import Build
from staleness_parsers.prime_rl.launches import Apply, Launch, replaced
from staleness_parsers.prime_rl.settings import Settings


def load(
    connection: duckdb.DuckDBPyConnection,
    launches: Sequence[Launch],
    updates: dict[int, list[Apply]],
    settings: Settings,
    build: Build,
    envs: Iterable[str | None],
) -> None:
    """Create the small tables the queries join: ``launches``, ``begins``, ``ends``, ``envs``; then rank occurrences."""
    connection.execute("CREATE TEMP TABLE launches (attempt INTEGER, resumed INTEGER, started DOUBLE)")
    _fill(connection, "launches", [(one.number, one.resumed_after, one.started) for one in launches])
    connection.execute("CREATE TEMP TABLE counts (attempt INTEGER, step INTEGER, traces INTEGER)")
    _fill(connection, "counts", [(one.number, step, count) for one in launches for step, count in one.shipped.items()])
    connection.execute("CREATE TEMP TABLE begins (attempt INTEGER, at_time DOUBLE, version INTEGER)")
    connection.execute("CREATE TEMP TABLE ends (attempt INTEGER, at_time DOUBLE, version INTEGER)")
    connection.execute("CREATE TEMP TABLE replaced (attempt INTEGER, version INTEGER, older INTEGER)")
    for attempt, found in updates.items():
        _fill(connection, "replaced", [(attempt, version, older) for version, older in replaced(found).items()])
        _fill(connection, "begins", [(attempt, one.begin, one.version) for one in found if one.begin is not None])
        _fill(connection, "ends", [(attempt, one.end, one.version) for one in found if one.end is not None])
    connection.execute(
        "CREATE TEMP TABLE envs (env VARCHAR, group_size INTEGER, frozen BOOLEAN, exact BOOLEAN, curriculum BOOLEAN)"
    )
    rows = []
    for env in {*envs, None}:
        source = settings.source(env)
        rows.append((env, source.group_size, source.policy is False, source.exact_advantage, source.curriculum))
    _fill(connection, "envs", rows)
    connection.execute(_SEEN)
    connection.execute(_MAIN.format(zero=int(build.zero_based)))


def _fill(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[object, ...]]) -> None:
    if rows:
        marks = ", ".join("?" for _ in rows[0])
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608 - names are ours


_SEEN = """
CREATE TEMP TABLE seen AS
-- One row per occurrence of a train trace in a file, with the attempt that wrote it: the last one that could have.
-- Attempts append to the same files, so where no date tells the last traces of a batch are the last attempt's, as many
-- as its step line says.
WITH placed AS (
    SELECT t.*, row_number() OVER (
        PARTITION BY t.step, t.part ORDER BY t.source DESC, t.line DESC, t.ordinal DESC) AS from_end
    FROM prime_traces t WHERE t.role = 'train'),
reached AS (
    SELECT attempt, step, sum(traces) OVER (PARTITION BY step ORDER BY attempt DESC) AS so_far FROM counts)
SELECT t.* EXCLUDE (from_end), coalesce(
    (SELECT max(r.attempt) FROM reached r
     WHERE r.step = t.step AND t.part = 'effective' AND t.from_end <= r.so_far
       AND EXISTS (SELECT 1 FROM launches WHERE started IS NULL AND attempt > (SELECT min(attempt) FROM launches))),
    (SELECT max(l.attempt) FROM launches l
     WHERE coalesce(l.resumed, -1) < t.step
       AND (l.started IS NULL OR coalesce(t.began, t.scored) IS NULL OR l.started <= coalesce(t.began, t.scored))),
    (SELECT min(attempt) FROM launches)) AS attempt
FROM placed t
"""

_MAIN = """
CREATE TEMP TABLE main AS
-- One row per trajectory: its best occurrence (shipped before arrived, then the first), and when it arrived.
WITH ranked AS (
    SELECT *, row_number() OVER (
        PARTITION BY trajectory ORDER BY part = 'effective' DESC, step, source, line, ordinal) AS place
    FROM seen),
bounds AS (
    SELECT trajectory, min(step) FILTER (part = 'all') AS arrived_in, min(step) - 1 + {zero} AS newest,
           bool_or(part = 'effective' AND filtered IS NOT TRUE) AS shipped
    FROM seen GROUP BY trajectory)
SELECT r.* EXCLUDE (place), b.arrived_in, b.newest, b.shipped,
       r.v_start IS NULL AND coalesce(e.frozen, false) AS frozen,
       -- the weights an attempt starts from are loaded before its first group opens: no label is early there
       CASE WHEN l.resumed < r.step THEN greatest(l.resumed, 0) ELSE 0 END AS first_version
FROM ranked r JOIN bounds b USING (trajectory)
LEFT JOIN envs e ON e.env IS NOT DISTINCT FROM r.env
LEFT JOIN launches l ON l.attempt = r.attempt
WHERE r.place = 1 AND (b.shipped OR r.trainable IS NOT FALSE)
"""

_TURN_VERSIONS = """
CREATE TEMP VIEW turn_versions AS
WITH turns AS (
    SELECT n.*, m.attempt, m.v_start, m.v_end, m.newest, m.frozen, m.first_version, m.form, m.shipped, m.clean,
           coalesce(n.call_start, m.began) AS since,
           coalesce(n.call_end, m.scored) AS until
    FROM prime_turns n JOIN main m ON n.trajectory = m.trajectory AND n.source = m.source AND n.line = m.line
         AND n.ordinal = m.ordinal),
dated AS (
    SELECT t.*, e.version AS served, b.version - 1 AS unserved, r.older
    FROM turns t
    LEFT JOIN replaced r ON t.attempt = r.attempt AND t.v_start = r.version
    ASOF LEFT JOIN ends e ON t.attempt = e.attempt AND t.since >= e.at_time
    ASOF LEFT JOIN begins b ON t.attempt = b.attempt AND t.until < b.at_time),
recorded AS (
    SELECT *,
        -- An early label's first tokens are of the weights that its version replaced, which may be several older.
        CASE WHEN {early_label} AND v_start > 0 AND v_start <> first_version
             THEN greatest(first_version, coalesce(older, v_start - {most_skipped}))
             ELSE coalesce(v_start, first_version) END AS rec_lo,
        greatest(least(coalesce(v_end, newest), newest), coalesce(v_start, first_version)) AS rec_hi
    FROM dated)
SELECT *,
    greatest(rec_lo, coalesce(served, rec_lo)) AS tight_lo,
    least(rec_hi, coalesce(unserved, rec_hi)) AS tight_hi,
    tight_lo <= tight_hi AS consistent
FROM recorded
"""

_SPANS = """
SELECT trajectory AS trajectory_id, node AS span_index, token_start,
    -- A rollout of v0.6.0 that was neither filtered nor failed has at least one token in the loss.
    CASE WHEN frozen THEN 0 ELSE coalesce(tokens, CAST(form = 'rollout' AND shipped AND clean AS INTEGER)) END
        AS tokens_lo,
    CASE WHEN frozen THEN 0 ELSE tokens END AS tokens_hi,
    CASE WHEN frozen THEN 0
         WHEN tokens IS NULL THEN CAST(form = 'rollout' AND shipped AND clean AS INTEGER)
         WHEN kept_lo IS NULL THEN 0
         ELSE greatest(0, kept_lo - (tokens - coalesce(weighted, tokens))) END AS loss_tokens_lo,
    CASE WHEN frozen THEN 0 ELSE coalesce(kept_hi, tokens) END AS loss_tokens_hi,
    CASE WHEN frozen THEN NULL WHEN consistent THEN tight_lo ELSE rec_lo END AS version_lo,
    CASE WHEN frozen THEN NULL WHEN consistent THEN tight_hi ELSE rec_hi END AS version_hi,
    form = 'episode' OR form = 'trace' AS monotone,
    make_timestamp(CAST(round(call_start * 1e6) AS BIGINT)) AS started,
    make_timestamp(CAST(round(call_end * 1e6) AS BIGINT)) AS ended,
    CASE WHEN {assumed_cut}
           OR ({assumed_start} AND v_start > 0 AND v_start <> first_version AND coalesce(served, -1) < v_start)
         THEN 'assumed' WHEN v_start IS NULL THEN 'inferred' ELSE 'derived' END AS evidence,
    source, line,
    CASE WHEN form = 'rollout' THEN NULL WHEN form = 'episode' THEN 'traces[' || ordinal || '].nodes[' || node || ']'
         ELSE 'nodes[' || node || ']' END AS locator
FROM (
    SELECT *,
        -- What is left of a node when its branch is cut at seq_len; exact where its sampled tokens are consecutive.
        CASE WHEN room IS NULL THEN NULL
             WHEN contiguous THEN least(greatest(room - head, 0), tokens)
             ELSE greatest(0, tokens - (length - least(greatest(room, 0), length))) END AS kept_lo,
        CASE WHEN room IS NULL THEN NULL
             WHEN contiguous THEN least(greatest(room - head, 0), tokens)
             ELSE least(tokens, greatest(room, 0)) END AS kept_hi
    FROM (SELECT *, CASE WHEN length IS NULL THEN NULL ELSE CAST({seq_len} AS BIGINT) - position END AS room
          FROM turn_versions))
"""

_TRAJECTORIES = """
SELECT trajectory AS trajectory_id, grp AS group_id, attempt, 'train' AS role,
    false AS anonymous, 1 AS multiplicity_lo, 1 AS multiplicity_hi, prompt AS prompt_tokens,
    CASE WHEN named THEN 'recorded' ELSE 'derived' END AS evidence, source, line,
    CASE WHEN form = 'episode' AND named THEN 'traces[' || ordinal || ']' END AS locator
FROM main WHERE NOT {unscheduled}
UNION ALL
SELECT trajectory, grp, min(attempt), 'eval', false, 1, 1, NULL, 'recorded',
    min(source), min(line), NULL
FROM (SELECT t.*, (SELECT max(attempt) FROM launches) AS attempt FROM prime_traces t WHERE role = 'eval')
GROUP BY trajectory, grp, episode
"""

_USES = """
SELECT trajectory AS trajectory_id, attempt, step, 'recorded' AS evidence, arg_min(source, line) AS source,
    min(line) AS line, CASE WHEN any_value(form) = 'episode' THEN 'traces[' || min(ordinal) || ']' END AS locator
FROM seen WHERE part = 'effective' AND filtered IS NOT TRUE
GROUP BY trajectory, attempt, step
"""

_GROUPS = """
-- Members that were cancelled or never dispatched left no record: the group size is their upper limit.
SELECT grp AS group_id, min(attempt) AS attempt, count(DISTINCT episode) AS members_lo,
    CASE WHEN max(e.group_size) IS NOT NULL THEN greatest(max(e.group_size), count(DISTINCT episode)) END AS members_hi,
    1 AS multiplicity_lo, 1 AS multiplicity_hi,
    'derived' AS evidence, min(source) AS source, arg_min(line, source) AS line
FROM main m LEFT JOIN envs e ON e.env IS NOT DISTINCT FROM m.env WHERE grp IS NOT NULL GROUP BY grp
"""

_EVENTS = """
SELECT line AS seq, make_timestamp(CAST(round(ts * 1e6) AS BIGINT)) AS ts, kind, trajectory AS trajectory_id,
    grp AS group_id, attempt, v_start AS version_lo, v_start AS version_hi, 'derived' AS evidence, source, line
FROM (
    SELECT line, began AS ts, 'admitted' AS kind, trajectory, grp, attempt, v_start, source FROM main
    WHERE began IS NOT NULL
    UNION ALL
    SELECT line, generated, 'finished', trajectory, grp, attempt, NULL, source FROM main WHERE generated IS NOT NULL
    UNION ALL
    SELECT line, scored, 'enqueued', trajectory, grp, attempt, NULL, source FROM main
    WHERE scored IS NOT NULL AND clean AND arrived_in IS NOT NULL)
"""


def write_lives(
    connection: duckdb.DuckDBPyConnection, sink: Sink, settings: Settings, build: Build, unscheduled: str
) -> None:
    """Write trajectories, groups, spans, uses and their first and last moments.

    ``unscheduled``: an SQL condition on ``main`` for recorded members that may never have been dispatched (older code).
    """
    seq_len = "NULL" if settings.seq_len is None else str(settings.seq_len)
    connection.execute(
        _TURN_VERSIONS.format(early_label=str(build.early_label).lower(), most_skipped=settings.most_skipped)
    )
    sink.write_query("trajectories", connection, _TRAJECTORIES.format(unscheduled=unscheduled))
    sink.write_query("groups", connection, _GROUPS)
    spans = _SPANS.format(
        seq_len=seq_len,
        assumed_cut=str(settings.seq_len_assumed).lower(),
        assumed_start=str(build.label_assumed).lower(),
    )
    sink.write_query("spans", connection, spans)
    sink.write_query("uses", connection, _USES)
    sink.write_query("events", connection, _EVENTS)
    query = "SELECT count(*), any_value(source), any_value(line) FROM turn_versions WHERE NOT consistent"
    (row,) = connection.sql(query).fetchall()
    if row[0]:
        sink.diagnose(
            "warning",
            "clocks-disagree",
            f"{row[0]} turns lie outside the updates that their versions allow; their log times are not used. "
            "Were the environment servers' clocks set?",
            source=row[1],
            line=row[2],
        )

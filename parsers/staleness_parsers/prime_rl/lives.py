"""From staged traces to trajectories, spans and uses, in SQL so that memory stays bounded (guide sections 3 to 6).

The version interval of a turn is what three things leave of it: the recorded span of its episode (whose start may be
one update too new, section 4.5), the updates whose begin or end is dated against the turn's request, and that nothing
newer than v_train of the step being collected can have been served at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import duckdb
import pyarrow as pa

from staleness_audit.parser import Sink
from staleness_parsers.prime_rl.build import Build
from staleness_parsers.prime_rl.launches import Apply, Launch, replaced
from staleness_parsers.prime_rl.settings import Settings


def place(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the table ``prime_traces`` of the view of that name: it is asked many times, and would be read each time."""
    connection.execute(_PLACED)


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
    earliest = min(one.number for one in launches)
    undated = any(one.started is None and one.number > earliest for one in launches)
    connection.execute((_SEEN_UNDATED if undated else _SEEN).format(attempt=_writer(launches)))
    connection.execute(_BOUNDS.format(zero=int(build.zero_based)))
    connection.execute(_MAIN)


def _writer(launches: Sequence[Launch]) -> str:
    """SQL of the attempt that wrote an occurrence: the last one that could have, else the first."""
    cases = "".join(
        f" WHEN {-1 if one.resumed_after is None else int(one.resumed_after)} < step AND "
        f"{'true' if one.started is None else f'coalesce(began >= {one.started!r}, scored >= {one.started!r}, true)'} "
        f"THEN {int(one.number)}"
        for one in sorted(launches, key=lambda one: -one.number)
    )
    return f"CAST(CASE{cases} ELSE {min(int(one.number) for one in launches)} END AS INTEGER)"


def _fill(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[object, ...]]) -> None:
    if not rows:
        return
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    connection.register("filling", pa.table(columns, names=[f"c{at}" for at in range(len(columns))]))
    connection.execute(f"INSERT INTO {table} SELECT * FROM filling")  # noqa: S608 - names are ours
    connection.unregister("filling")


_PLACED = """
CREATE TEMP TABLE prime_traces AS
-- All traces, with a number that grows by step, file and line (`nth`; `fates` takes the step from it), and another for
-- the group: families that share one by chance only share an era.
WITH files AS (
    SELECT step, source, row_number() OVER (ORDER BY step, source) AS file
    FROM (SELECT DISTINCT step, source FROM prime_traces))
SELECT t.* EXCLUDE (agent, dispatch_step, commit), hash(coalesce(grp, trajectory)) AS family,
    (step::HUGEINT << 95) + (file::HUGEINT << 64) + (line::HUGEINT << 32) + ordinal AS nth
FROM prime_traces t JOIN files USING (step, source)
"""

_SEEN = """
CREATE TEMP VIEW seen AS
-- One row per occurrence of a train trace in a file, with the attempt that wrote it: the last one that could have.
SELECT *, {attempt} AS attempt, false AS writer_open FROM prime_traces WHERE role = 'train'
"""

_SEEN_UNDATED = """
CREATE TEMP TABLE seen AS
-- The same, where attempts append to the same files and no date tells: then the last traces of a batch are the last
-- attempt's, as many as its step line says; without such a line they may be of an attempt before.
WITH placed AS (
    SELECT *, row_number() OVER (
        PARTITION BY step, part ORDER BY source DESC, line DESC, ordinal DESC) AS from_end
    FROM prime_traces WHERE role = 'train'),
reached AS (
    SELECT attempt, step, sum(traces) OVER (PARTITION BY step ORDER BY attempt DESC) AS so_far FROM counts),
told AS (
    SELECT *, {attempt} AS latest,
        (SELECT max(r.attempt) FROM reached r
         WHERE r.step = t.step AND t.part = 'effective' AND t.from_end <= r.so_far) AS counted
    FROM placed t)
SELECT * EXCLUDE (from_end, latest, counted), coalesce(counted, latest) AS attempt,
    counted IS NULL AND latest > (SELECT min(attempt) FROM launches) AS writer_open
FROM told
"""

_BOUNDS = """
CREATE TEMP TABLE bounds AS
-- Per trajectory: its best occurrence (shipped before arrived, then the first) and its first arrival, by their numbers.
SELECT trajectory, min(step) FILTER (part = 'all') AS arrived_in, min(step) - 1 + {zero} AS newest,
    bool_or(part = 'effective' AND filtered IS NOT TRUE) AS shipped,
    coalesce(min(nth) FILTER (part = 'effective'), min(nth)) AS best, min(nth) FILTER (part = 'all') AS arrival
FROM seen GROUP BY trajectory
"""

_MAIN = """
CREATE TEMP TABLE main AS
-- One row per trajectory: its best occurrence, and when it arrived.
SELECT r.* EXCLUDE (nth), b.arrived_in, b.newest, b.shipped,
       r.v_start IS NULL AND coalesce(e.frozen, false) AS frozen,
       -- the weights an attempt starts from are loaded before its first group opens: no label is early there
       CASE WHEN l.resumed < r.step THEN greatest(l.resumed, 0) ELSE 0 END AS first_version
FROM seen r JOIN bounds b ON r.nth = b.best
LEFT JOIN envs e ON e.env IS NOT DISTINCT FROM r.env
LEFT JOIN launches l ON l.attempt = r.attempt
WHERE (b.shipped OR r.trainable IS NOT FALSE)
"""

_TURN_VERSIONS = """
WITH turns AS (
    SELECT n.*, m.attempt, m.v_start, m.v_end, m.newest, m.frozen, m.first_version, m.form, m.shipped, m.clean, m.older,
           coalesce(n.call_start, m.began) AS since,
           coalesce(n.call_end, m.scored) AS until
    -- Of other steps, whole files of turns need not be opened.
    FROM prime_turns n JOIN block_lives m ON n.trajectory = m.trajectory AND n.source = m.source AND n.line = m.line
         AND n.ordinal = m.ordinal AND n.step = m.step),
dated AS (
    SELECT t.*, e.version AS served, b.version - 1 AS unserved
    FROM turns t
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
          FROM ({versions})))
"""

_OUTSIDE = """
SELECT count(*), min(source), arg_min(line, (source, line)) FROM ({versions}) WHERE NOT consistent
"""

_TRAJECTORIES = """
SELECT trajectory AS trajectory_id, grp AS group_id, attempt, 'train' AS role,
    false AS anonymous, 1 AS multiplicity_lo, 1 AS multiplicity_hi, prompt AS prompt_tokens,
    CASE WHEN named THEN 'recorded' ELSE 'derived' END AS evidence, source, line,
    CASE WHEN form = 'episode' AND named THEN 'traces[' || ordinal || ']' END AS locator
FROM block_lives WHERE NOT unscheduled
"""

_EVALUATED = """
SELECT trajectory AS trajectory_id, grp AS group_id, min(attempt) AS attempt, 'eval' AS role, false AS anonymous,
    1 AS multiplicity_lo, 1 AS multiplicity_hi, 'recorded' AS evidence, min(source) AS source, min(line) AS line
FROM (SELECT t.*, (SELECT max(attempt) FROM launches) AS attempt FROM prime_traces t WHERE role = 'eval')
GROUP BY trajectory, grp, episode
"""

_USES = """
SELECT trajectory AS trajectory_id, attempt, step, 'recorded' AS evidence, arg_min(source, line) AS source,
    min(line) AS line, CASE WHEN any_value(form) = 'episode' THEN 'traces[' || min(ordinal) || ']' END AS locator,
    NOT bool_and(writer_open) AS member
FROM block_shipments GROUP BY trajectory, attempt, step
"""

_GROUPS = """
-- Members that were cancelled or never dispatched left no record: the group size is their upper limit.
SELECT grp AS group_id, min(attempt) AS attempt, count(DISTINCT episode) AS members_lo,
    CASE WHEN max(e.group_size) IS NOT NULL THEN greatest(max(e.group_size), count(DISTINCT episode)) END AS members_hi,
    1 AS multiplicity_lo, 1 AS multiplicity_hi,
    'derived' AS evidence, min(source) AS source, arg_min(line, source) AS line
FROM block_lives m LEFT JOIN envs e ON e.env IS NOT DISTINCT FROM m.env WHERE grp IS NOT NULL GROUP BY grp
"""

_EVENTS = """
SELECT line AS seq, make_timestamp(CAST(round(ts * 1e6) AS BIGINT)) AS ts, kind, trajectory AS trajectory_id,
    grp AS group_id, attempt, v_start AS version_lo, v_start AS version_hi, 'derived' AS evidence, source, line
FROM (
    SELECT line, began AS ts, 'admitted' AS kind, trajectory, grp, attempt, v_start, source FROM block_lives
    WHERE began IS NOT NULL
    UNION ALL
    SELECT line, generated, 'finished', trajectory, grp, attempt, NULL, source FROM block_lives
    WHERE generated IS NOT NULL
    UNION ALL
    SELECT line, scored, 'enqueued', trajectory, grp, attempt, NULL, source FROM block_lives
    WHERE scored IS NOT NULL AND clean AND arrived_in IS NOT NULL)
"""


_LIVES = """
-- Trajectories and their shipments by era: the first step in which one of their group was seen. A group of which one
-- waits, or may have, has one below zero, as what became of it may be told much later.
CREATE TEMP TABLE eras AS
SELECT s.family,
    CASE WHEN bool_and(coalesce(m.shipped OR NOT m.clean, false)) THEN min(s.step) ELSE -1 - min(s.step) END AS era
FROM seen s LEFT JOIN main m USING (trajectory) GROUP BY s.family;
CREATE TEMP VIEW lives AS
SELECT m.*, r.older, era, trajectory IN (SELECT trajectory FROM unscheduled) AS unscheduled
FROM main m JOIN eras USING (family)
LEFT JOIN replaced r ON r.attempt = m.attempt AND r.version = m.v_start;
CREATE TEMP VIEW shipments AS
SELECT trajectory, attempt, step, source, line, ordinal, form, writer_open, era FROM seen JOIN eras USING (family)
WHERE part = 'effective' AND filtered IS NOT TRUE;
CREATE TEMP VIEW updates_around AS
-- The updates among which the turns of an era lie: from the last end before them to the first begin after them.
WITH lying AS (
    SELECT era, attempt, min(least(first_call, began)) AS since, max(greatest(last_call, scored)) AS until
    FROM lives GROUP BY ALL),
around AS (
    SELECT lying.era, lying.attempt, coalesce(max(e.at_time), '-infinity'::DOUBLE) AS first
    FROM lying LEFT JOIN ends e ON e.attempt = lying.attempt AND e.at_time <= since GROUP BY ALL),
until AS (
    SELECT lying.era, lying.attempt,
        coalesce(min(b.at_time), CASE WHEN until IS NULL THEN '-infinity' ELSE 'infinity' END::DOUBLE) AS last
    FROM lying LEFT JOIN begins b ON b.attempt = lying.attempt AND b.at_time > until
    GROUP BY lying.era, lying.attempt, until)
SELECT era, u.*
FROM around JOIN until USING (era, attempt)
JOIN (SELECT *, 'begin' AS what FROM begins UNION ALL SELECT *, 'end' FROM ends) u
    ON u.attempt = around.attempt AND u.at_time BETWEEN first AND last;
"""


def divide(connection: duckdb.DuckDBPyConnection) -> None:
    """Make ``lives``, ``shipments`` and ``updates_around``, with eras; needs the table ``unscheduled``."""
    connection.execute(_LIVES)


def write_lives(
    connection: duckdb.DuckDBPyConnection,
    sink: Sink,
    settings: Settings,
    build: Build,
    fates: Sequence[tuple[str, str]],
) -> None:
    """Write trajectories, groups, spans, uses and their first and last moments; needs ``divide``.

    ``fates``: queries of further events, over ``block_lives`` and ``block_possible``.
    """
    seq_len = "NULL" if settings.seq_len is None else str(settings.seq_len)
    versions = _TURN_VERSIONS.format(early_label=str(build.early_label).lower(), most_skipped=settings.most_skipped)
    spans = _SPANS.format(
        seq_len=seq_len,
        assumed_cut=str(settings.seq_len_assumed).lower(),
        assumed_start=str(build.label_assumed).lower(),
        versions=versions,
    )
    sink.write_query("trajectories", connection, _EVALUATED)
    found = sink.write_blocks(
        connection,
        ("lives", "shipments", "possible", "updates_around"),
        (
            ("trajectories", _TRAJECTORIES),
            ("groups", _GROUPS),
            ("spans", spans),
            ("uses", _USES),
            ("events", _EVENTS),
            *fates,
        ),
        beside=("envs",),
        tally=_OUTSIDE.format(versions=versions),
    )
    outside = [row for row in found if row[0]]
    if outside:
        first = min(row[1:] for row in outside)
        sink.diagnose(
            "warning",
            "clocks-disagree",
            f"{sum(row[0] for row in outside)} turns lie outside the updates that their versions allow; their log "
            "times are not used. Were the environment servers' clocks set?",
            source=first[0],
            line=first[1],
        )

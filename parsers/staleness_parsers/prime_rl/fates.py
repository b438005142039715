"""What became of a trace that arrived and was never shipped: the files don't mark it (guide section 6, rules 1 to 5).

Each such trace gets the set of fates the rules leave open. One is a fact (``derived``); several are alternatives
(``inferred``), of which at most one is true. Beyond the rules this uses that the queue is first in, first out: once a
trace of a later group was shipped, an earlier one was selected or voided before; and per step the number of voided
traces, which the framework counts.

Letters below: B = ``max_off_policy_steps``, s = step being collected, c = s when the trace's group was complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import duckdb

from staleness_parsers.prime_rl.build import Build
from staleness_parsers.prime_rl.lives import _fill
from staleness_parsers.prime_rl.settings import Settings


@dataclass(frozen=True)
class GroupDrop:
    """A DEBUG line that a group was dropped while ``step`` was collected; ``prefix`` = 8 characters of its id."""

    attempt: int
    prefix: str
    reason: str
    step: int | None
    cancelled: int
    running: int


@dataclass(frozen=True)
class Sweeps:
    """Queued traces voided while ``step`` was collected, by the framework's count."""

    attempt: int
    step: int
    voided: int


@dataclass(frozen=True)
class Watch:
    """What the logs of one attempt allow to conclude from silence.

    ``names_groups``: its log is whole and at level DEBUG, so a group without a drop line was not dropped.
    ``overload``: groups may have been cut for overload; ``gates``: a curriculum may have rejected some. ``adopted_at``:
    a version was certainly adopted while this step or a later one was collected. ``last_step``: highest step that may
    have been collected. ``last``: no attempt follows.
    """

    attempt: int
    names_groups: bool
    overload: bool
    gates: bool
    adopted_at: int | None
    last_step: int
    last: bool


def prepare(
    connection: duckdb.DuckDBPyConnection,
    drops: Iterable[GroupDrop],
    sweeps: Iterable[Sweeps],
    watches: Sequence[Watch],
) -> None:
    """Create the small tables the rules join."""
    connection.execute(
        "CREATE TEMP TABLE drops (attempt INTEGER, prefix VARCHAR, reason VARCHAR, step INTEGER, cancelled INTEGER, "
        "running INTEGER)"
    )
    _fill(connection, "drops", [(d.attempt, d.prefix, d.reason, d.step, d.cancelled, d.running) for d in drops])
    connection.execute("CREATE TEMP TABLE sweeps (attempt INTEGER, step INTEGER, voided INTEGER)")
    _fill(connection, "sweeps", [(s.attempt, s.step, s.voided) for s in sweeps])
    connection.execute(
        "CREATE TEMP TABLE watches (attempt INTEGER, names_groups BOOLEAN, overload BOOLEAN, gates BOOLEAN, "
        "adopted_at INTEGER, "
        "last_step INTEGER, is_last BOOLEAN)"
    )
    _fill(
        connection,
        "watches",
        [(w.attempt, w.names_groups, w.overload, w.gates, w.adopted_at, w.last_step, w.last) for w in watches],
    )


def find_fates(
    connection: duckdb.DuckDBPyConnection,
    settings: Settings,
    build: Build,
    *,
    whole: bool,
    batches_whole: bool,
) -> Sequence[tuple[str, str]]:
    """Make the table ``possible`` and return the queries of the terminal events of all traces that were not shipped.

    ``whole``: no trace file and no line of one was lost; otherwise absence proves nothing. ``batches_whole``: this
    holds for the files of shipped traces; otherwise any trace may have been trained.
    """
    connection.execute(_ARRIVALS)
    connection.execute(_GROUPS)
    connection.execute(
        _OPEN.format(
            bound="NULL" if settings.bound is None else settings.bound,
            enforces="NULL" if build.enforces is None else str(build.enforces).lower(),
            filters=str(settings.filters_zero).lower(),
        )
    )
    connection.execute(_POSSIBLE.format(whole=str(whole).lower()))
    if whole:
        _reconcile(connection)
    return (
        ("events", _FAILED),
        ("events", _FATES.format(whole=str(whole).lower(), all_known=str(batches_whole).lower())),
    )


def _reconcile(connection: duckdb.DuckDBPyConnection) -> None:
    """Let the counted sweeps of a step decide between "voided in the queue" and its alternatives, where they can."""
    connection.execute(_SETTLE)


_ARRIVALS = """
CREATE TEMP TABLE arrivals AS
-- Records of `all`, with a number that grows with their arrival.
SELECT s.attempt, s.grp, s.episode, s.env, s.step, s.form, s.reward, s.named, s.clean, s.trainable, s.tokens,
    s.nth AS seq
FROM seen s JOIN bounds b ON b.arrival = s.nth
"""

_GROUPS = """
CREATE TEMP TABLE finalized AS
-- Groups as far as they arrived: complete or not, when, the mean reward of their clean traces, and the first batch
-- that took a trace of a group completed later (`overtaken`): by then the queue had passed this group.
WITH arrived AS (
    SELECT a.attempt, coalesce(a.grp, a.episode) AS grp, max(e.group_size) AS size,
        count(DISTINCT a.episode) AS members,
        max(a.seq) AS done, max(a.step) AS done_in, bool_or(a.form = 'trace') AS failures_unseen,
        avg(a.reward) FILTER (survives) AS mean_reward,
        count(*) FILTER (survives AND a.reward IS NULL) > 0 AS rewards_missing,
        count(*) FILTER (a.named) > count(DISTINCT a.episode) FILTER (a.named) AS several_agents
    FROM (SELECT *, clean AND trainable IS NOT FALSE AND tokens > 0 AS survives FROM arrivals) a
    LEFT JOIN envs e ON e.env IS NOT DISTINCT FROM a.env GROUP BY ALL),
shipped AS (
    SELECT attempt, coalesce(grp, episode) AS grp, min(step) AS first_step
    FROM seen WHERE part = 'effective' GROUP BY ALL)
SELECT a.*, coalesce(a.members >= a.size, false) AS complete,
    min(s.first_step) OVER (
        PARTITION BY a.attempt ORDER BY a.done DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS overtaken
FROM arrived a LEFT JOIN shipped s ON s.attempt = a.attempt AND s.grp = a.grp
"""

_OPEN = """
CREATE TEMP TABLE waiting AS
-- Clean traces that were never shipped, with everything the rules ask for.
WITH clean AS (
    SELECT m.era, m.trajectory, m.grp, m.attempt, m.source, m.line, m.ordinal, m.form, m.v_start, m.tokens,
        f.complete, f.done, f.done_in, f.failures_unseen, f.size IS NULL AS size_unknown, f.overtaken,
        w.* EXCLUDE (attempt),
        coalesce(e.curriculum AND w.gates, true) AS gated,
        CASE WHEN NOT {filters} THEN 'no'
             WHEN NOT coalesce(e.exact, false) OR f.several_agents OR f.rewards_missing OR m.reward IS NULL THEN 'maybe'
             WHEN abs(m.reward - f.mean_reward) <= 1e-9 * greatest(1, abs(f.mean_reward)) THEN 'yes' ELSE 'no' END
            AS zero,
        d.reason AS drop_reason, d.step AS drop_step,
        CAST({enforces} AS BOOLEAN) AS enforces,
        CAST({bound} AS INTEGER) AS bound,
        m.v_start + CAST({bound} AS BIGINT) + 2 AS stale_from
    FROM lives m
    LEFT JOIN finalized f ON f.attempt = m.attempt AND f.grp = coalesce(m.grp, m.episode)
    LEFT JOIN watches w ON w.attempt = m.attempt
    LEFT JOIN envs e ON e.env IS NOT DISTINCT FROM m.env
    LEFT JOIN (SELECT attempt, prefix, min(reason) AS reason, min(step) AS step FROM drops GROUP BY ALL
               HAVING count(DISTINCT reason) = 1) d ON d.attempt = m.attempt AND starts_with(m.grp, d.prefix)
    WHERE NOT m.shipped AND m.clean AND NOT m.unscheduled),
dated AS (
    -- The last arrival before any by which a complete group that came later sweeps the trace.
    SELECT *, CASE WHEN done IS NOT NULL AND stale_from IS NOT NULL
                   THEN greatest(done, least(stale_from, 2147483647) * (1::HUGEINT << 95) - 1) END AS kept_until
    FROM clean)
SELECT d.* EXCLUDE (kept_until), g.done_in AS swept_in
FROM dated d
ASOF LEFT JOIN (SELECT attempt, done, done_in FROM finalized WHERE complete) g
    ON d.attempt = g.attempt AND d.kept_until < g.done
"""

_POSSIBLE = """
CREATE TEMP TABLE possible AS
WITH facts AS (
    SELECT *,
        -- stale by the sweep at its own group's completion, whatever its advantage
        coalesce(enforces AND complete AND stale_from <= done_in, false) AS stale_at_once,
        -- the files of an earlier attempt's last steps are deleted, and with them who was swept there
        enforces IS NOT FALSE AND (bound IS NULL OR v_start IS NULL OR swept_in IS NOT NULL
            OR (NOT is_last AND stale_from <= last_step)) AS sweepable,
        bound IS NULL OR v_start IS NULL AS undated,
        coalesce(stale_from <= adopted_at, false) AS certainly_old,
        coalesce(stale_from <= last_step, true) AS maybe_old,
        coalesce(complete OR drop_reason = 'overload', false) AS queued,
        -- whether the group was complete can't be told: its size is not known, or members may have left no record
        NOT complete AND drop_reason IS NULL AND (size_unknown OR failures_unseen OR NOT {whole}) AS unsure
    FROM waiting),
rules AS (
    SELECT *,
        CASE WHEN form = 'rollout' OR tokens = 0 THEN false
             WHEN queued THEN false
             WHEN enforces IS FALSE THEN false
             WHEN drop_reason = 'stale' THEN true
             WHEN names_groups THEN false
             ELSE maybe_old END AS may_group,
        CASE WHEN form = 'rollout' OR tokens = 0 THEN false
             WHEN stale_at_once THEN true
             WHEN queued AND NOT complete THEN enforces IS NOT FALSE AND maybe_old
             WHEN queued THEN sweepable AND (zero <> 'yes' OR undated OR overtaken IS NULL
                 OR coalesce(swept_in, stale_from) <= overtaken)
             ELSE enforces IS NOT FALSE AND drop_reason IS NULL AND (overload OR unsure) AND maybe_old END AS may_stale,
        CASE WHEN form = 'rollout' OR tokens = 0 OR stale_at_once OR zero = 'no' THEN false
             WHEN queued THEN true
             ELSE unsure OR (enforces IS NOT FALSE AND drop_reason IS NULL AND overload) END AS may_zero,
        CASE WHEN form = 'rollout' OR tokens = 0 THEN true
             -- a trace of nonzero advantage that the queue passed by was never in it
             WHEN unsure THEN gated
             WHEN queued THEN gated OR (NOT stale_at_once AND complete AND zero = 'no' AND overtaken IS NOT NULL
                 AND swept_in IS NULL)
             ELSE false END AS may_filter,
        CASE WHEN form = 'rollout' OR tokens = 0 OR stale_at_once OR drop_reason = 'stale' THEN false
             WHEN complete AND zero = 'yes' AND overtaken IS NOT NULL THEN false
             WHEN complete AND enforces AND swept_in IS NOT NULL THEN false
             WHEN queued OR unsure THEN true
             ELSE NOT (enforces IS NOT DISTINCT FROM true AND certainly_old) OR names_groups END AS may_wait
    FROM facts)
SELECT era, trajectory, grp, attempt, source, line, ordinal, form, is_last,
    -- known from what is there, not from what is missing: a line in the log, or a group that was too old when complete
    coalesce(drop_reason = 'stale' OR stale_at_once, false) AS shown,
    may_group, may_stale, may_zero, may_filter,
    may_wait AND is_last AS may_pend,
    -- What an earlier attempt left over is lost; what it shipped after the step that the next one went back to, too.
    NOT is_last AND (may_wait
        OR CAST(may_group AS INTEGER) + CAST(may_stale AS INTEGER) + CAST(may_zero AS INTEGER) > 1) AS may_lose,
    CASE WHEN may_group THEN coalesce(drop_step, stale_from) WHEN stale_at_once THEN done_in
         WHEN may_stale AND complete THEN swept_in END AS at_step,
    CASE WHEN stale_at_once THEN done_in WHEN complete THEN swept_in END AS void_step
FROM rules
"""

_SETTLE = """
-- Sweeps of a step: if the certain ones are all there were, no other trace was voided in it; if all possible ones are
-- needed to reach the number, all were.
CREATE TEMP TABLE settled AS
WITH counts AS (
    SELECT attempt, void_step AS step,
        count(*) FILTER (may_stale AND NOT (may_group OR may_zero OR may_filter OR may_pend OR may_lose)) AS certain,
        count(*) FILTER (may_stale) AS most
    FROM possible WHERE void_step IS NOT NULL GROUP BY ALL)
SELECT c.attempt, c.step, s.voided = c.certain AS none_else, s.voided = c.most AS all_of_them
FROM counts c JOIN sweeps s USING (attempt, step)
WHERE NOT EXISTS (SELECT 1 FROM possible p WHERE p.attempt = c.attempt AND p.may_stale AND p.void_step IS NULL);
UPDATE possible SET may_stale = false FROM settled
WHERE settled.attempt = possible.attempt AND settled.step = possible.void_step AND settled.none_else
    AND may_stale AND (may_group OR may_zero OR may_filter OR may_pend OR may_lose);
UPDATE possible SET may_group = false, may_zero = false, may_filter = false, may_pend = false, may_lose = false,
    at_step = void_step FROM settled
WHERE settled.attempt = possible.attempt AND settled.step = possible.void_step
    AND settled.all_of_them AND NOT settled.none_else AND may_stale
"""

_FAILED = """
SELECT line AS seq, CASE WHEN cancelled THEN 'cancelled' ELSE 'lost' END AS kind, trajectory AS trajectory_id,
    grp AS group_id, attempt, arrived_in AS step, CASE WHEN cancelled THEN 'stale' ELSE 'error' END AS reason,
    'recorded' AS evidence, source, line, CASE WHEN named THEN 'traces[' || ordinal || ']' END AS locator
FROM (SELECT *, coalesce(starts_with(error, 'Cancelled: Off-policy cancel'), false) AS cancelled FROM block_lives)
WHERE NOT shipped AND NOT clean AND NOT unscheduled
"""

_FATES = """
WITH counted AS (
    SELECT *, CAST(may_group AS INTEGER) + CAST(may_stale AS INTEGER) + CAST(may_zero AS INTEGER)
        + CAST(may_filter AS INTEGER) + CAST(may_pend AS INTEGER) + CAST(may_lose AS INTEGER) AS ways
    FROM block_possible),
fates AS (
    SELECT *, 'dropped' AS kind, 'group' AS reason FROM counted WHERE may_group
    UNION ALL SELECT *, 'dropped', 'stale' FROM counted WHERE may_stale
    UNION ALL SELECT *, 'dropped', 'zero_advantage' FROM counted WHERE may_zero
    UNION ALL SELECT *, 'dropped', 'filtered' FROM counted WHERE may_filter
    UNION ALL SELECT *, 'pending', NULL FROM counted WHERE may_pend AND (ways > 1 OR NOT {whole})
        -- shipped, for all that is left of the batches: a trace that no rule needs to have dropped
        OR (NOT {all_known} AND NOT shown AND form <> 'rollout')
    UNION ALL SELECT *, 'lost', 'unknown' FROM counted WHERE may_lose
    UNION ALL SELECT *, 'lost', 'rolled_back' FROM counted WHERE may_lose)
SELECT line AS seq, kind, trajectory AS trajectory_id, grp AS group_id, attempt,
    CASE WHEN kind = 'dropped' THEN at_step END AS step, reason,
    CASE WHEN form = 'rollout' THEN 'recorded' WHEN ways = 1 AND NOT may_lose AND (shown OR {whole}) THEN 'derived'
         ELSE 'inferred' END AS evidence,
    source, line, CASE WHEN form = 'episode' THEN 'traces[' || ordinal || ']' END AS locator
FROM fates
"""

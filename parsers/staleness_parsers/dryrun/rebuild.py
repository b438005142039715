"""Joining the streams: which version made which tokens (guide 3), as SQL over the staged tables.

Each constant below is one query; its comment says what a row is. They build on each other in the order of ``STEPS``:

    part, simulation -> request, train -> step -> req -> cand -> inside -> wanted, last_place
    (the instance rows wanted are read here) state, last_state -> point -> chunk -> span_row
"""

from __future__ import annotations

from typing import Final

REQUEST: Final = """
CREATE TEMP VIEW request AS
SELECT r.*, p.attempt
FROM dryrun_request r ASOF JOIN (FROM part WHERE kind = 'request') p ON r.source = p.source AND r.line >= p.first_line
"""
"""A row of ``request.jsonl`` with the attempt it belongs to."""

TRAIN: Final = """
CREATE TEMP TABLE train AS
SELECT r.*, r.version - 1 AS k, p.attempt
FROM dryrun_train r ASOF JOIN (FROM part WHERE kind = 'train') p ON r.source = p.source AND r.line >= p.first_line
"""
"""A completed step; ``k`` = the version it started from."""

INSTANCE: Final = """
CREATE TEMP VIEW instance AS
SELECT r.*, p.attempt, TRY_CAST(regexp_extract(r.source, '(\\d+)\\.jsonl(\\.gz|\\.zst)?$', 1) AS BIGINT) AS instance_id
FROM dryrun_instance r ASOF JOIN (FROM part WHERE kind = 'instance') p ON r.source = p.source AND r.line >= p.first_line
"""
"""Time and place of an occupancy row."""

STEP: Final = """
CREATE TEMP TABLE step AS
WITH consumed AS (
    SELECT attempt, consume_version AS k, min(t) AS t, min(line) AS first_line, count(*) AS members,
        arg_min(source, line) AS source, sum(prompt_len) AS prompts, max(staleness_true) AS reported_true,
        max(staleness_reported) AS reported_last, bool_and(prompt_len IS NOT NULL) AS prompts_known
    FROM request WHERE event = 'consume' GROUP BY ALL
), served AS (  -- versions given to requests admitted between this update and the next: what the engines served
    SELECT a.attempt, c.k, min(a.v_traj) AS lo, max(a.v_traj) AS hi
    FROM (FROM request WHERE event = 'admit') a ASOF JOIN consumed c ON a.attempt = c.attempt AND a.line > c.first_line
    GROUP BY ALL
), known AS (
    SELECT coalesce(c.attempt, tr.attempt) AS attempt, coalesce(c.k, tr.k) AS k, coalesce(c.t, tr.start) AS t, c.first_line,
        coalesce(c.members, 0) AS members, c.prompts, c.prompts_known, c.reported_true, c.reported_last,
        coalesce(c.source, tr.source) AS source, coalesce(c.first_line, tr.line) AS line,
        tr."end" AS ended, tr.n_reqs, tr.total_tokens, tr.n_dropped_step, tr.source AS train_source, tr.line AS train_line
    FROM consumed c FULL JOIN train tr ON c.attempt = tr.attempt AND c.k = tr.k
), whole AS (  -- steps follow each other without gaps: one that left no row at all happened nevertheless
    SELECT attempt, unnest(generate_series(0, max(k))) AS k FROM known GROUP BY attempt
)
SELECT w.attempt, w.k, known.* EXCLUDE (attempt, k), served.lo AS served_lo, served.hi AS served_hi,
    CASE WHEN s.push_interval IS NULL THEN w.k + 1 ELSE w.k // s.push_interval * s.push_interval END AS rule,
    coalesce(served.lo, CASE WHEN s.policy IS NOT NULL THEN rule ELSE 0 END) AS v_lo,
    coalesce(served.hi, rule) AS v_hi,
    CASE WHEN train_line IS NOT NULL OR w.k < max(w.k) OVER (PARTITION BY w.attempt) OR w.k < s.announced THEN true
        WHEN s.train_whole THEN false END AS completed
FROM whole w JOIN simulation s USING (attempt) LEFT JOIN known USING (attempt, k) LEFT JOIN served USING (attempt, k)
"""
"""A step: ``t`` = update instant T_k (from the consume rows; the last train row may be missing), ``members`` = its consume
rows, ``v_lo``/``v_hi`` = version the engines serve from T_k on: what admissions show, else the policy's rule (without a
policy anything up to k + 1; slime serves ``k // N * N``, all others k + 1). ``completed``: its train row says so, or a later
step, or the summary; without any of them it was cut short, unless train rows may be lost (then null)."""

REQ: Final = """
CREATE TEMP TABLE req AS
SELECT attempt, rid, any_value(source) AS source, min(line) AS first_line, min(line) FILTER (event = 'admit') AS admit_line,
    coalesce(min(admit_time), min(t) FILTER (event = 'admit')) AS admit_time, min(v_traj) AS v_traj,
    max(instance_id) AS instance_id, max(prompt_len) AS prompt_len, max(target_len) AS target_len,
    min(line) FILTER (event IN ('complete', 'drop')) AS end_line,
    coalesce(min(complete_time), min(t) FILTER (event = 'complete'), min(t) FILTER (event = 'drop')) AS end_t,
    bool_or(complete_time IS NOT NULL OR event IN ('complete', 'consume')) AS completed,
    bool_or(event = 'drop') AS discarded, bool_or(event <> 'admit') AS final,
    max(consume_version) AS consume_version, max(line) FILTER (event <> 'admit') AS final_line,
    min(generated) FILTER (event <> 'admit') AS generated_lo, max(generated) FILTER (event <> 'admit') AS generated_hi,
    min(v_min) FILTER (event <> 'admit') AS v_min, max(v_max) FILTER (event <> 'admit') AS v_max
FROM request GROUP BY attempt, rid
"""
"""A request. ``final``: a row tells its final ``generated``, ``v_min``, ``v_max`` (which agree between its rows)."""

CAND: Final = """
CREATE TEMP TABLE cand AS
SELECT r.*, coalesce(before.k, -1) AS k_hi
FROM req r ASOF LEFT JOIN step before ON r.attempt = before.attempt AND coalesce(r.end_t, 'infinity'::DOUBLE) >= before.t
WHERE (NOT r.final OR r.v_min IS DISTINCT FROM r.v_max OR r.v_min IS NULL OR r.generated_hi IS NULL)
    AND (r.generated_hi IS NULL OR r.generated_hi > 0)
"""
"""A request whose versions need the instance streams: of several versions, or unfinished. ``k_hi`` = last update it saw."""

INSIDE: Final = """
CREATE TEMP TABLE inside AS
SELECT c.attempt, c.rid, c.instance_id, u.k, u.t, u.v_lo, u.v_hi
FROM (SELECT *, unnest(generate_series(coalesce(v_traj, 0)::BIGINT, k_hi)) AS k FROM cand) c JOIN step u USING (attempt, k)
WHERE u.t IS NOT NULL
    AND CASE WHEN c.admit_line IS NOT NULL AND u.first_line IS NOT NULL THEN u.first_line > c.admit_line
        ELSE u.t >= c.admit_time END
    AND CASE WHEN c.end_line IS NOT NULL AND u.first_line IS NOT NULL THEN u.first_line < c.end_line
        WHEN c.end_t IS NOT NULL THEN u.t < c.end_t ELSE true END
"""
"""A weight update that a request lived through: its first consume row lies between admission and completion (in file order;
a completion at T_k itself comes before). Under the rules k >= v_traj."""

WANTED: Final = """
CREATE TEMP TABLE wanted AS
WITH instant AS (SELECT DISTINCT attempt, t, k, instance_id FROM inside)
SELECT i.source, i.attempt, n.k, min(i.line) AS line, arg_min(i."start", i.line) AS "start", arg_min(i.size, i.line) AS size
FROM (FROM instance WHERE t IN (SELECT t FROM instant)) i
JOIN instant n ON n.attempt = i.attempt AND n.t = i.t AND (n.instance_id = i.instance_id OR n.instance_id IS NULL)
GROUP BY ALL
"""
"""An occupancy row to read: the first at T_k of an instance that has a candidate in flight (several there agree)."""

LAST_PLACE: Final = """
CREATE TEMP TABLE last_place AS
SELECT source, attempt, max(line) AS line, max_by("start", line) AS "start", max_by(size, line) AS size, max_by(t, line) AS t
FROM instance WHERE attempt IN (SELECT attempt FROM cand WHERE NOT final) GROUP BY ALL
"""
"""The last occupancy row of an instance: what unfinished requests have made."""

STATE: Final = """
CREATE TEMP TABLE state (attempt INTEGER, rid BIGINT, k BIGINT, generated BIGINT, source VARCHAR, line BIGINT)
"""
"""Tokens a candidate had made at T_k, and the occupancy row that says so."""

LAST_STATE: Final = """
CREATE TEMP TABLE last_state (attempt INTEGER, rid BIGINT, generated BIGINT, t DOUBLE, covers BOOLEAN)
"""
"""Tokens an unfinished candidate had made at its instance's last row. ``covers``: that row is as late as all else in the
simulation and the stream is undamaged, so no later row can have existed."""

ADD_LAST_STATE: Final = """
INSERT INTO last_state
SELECT b.attempt, b.rid, b.generated, l.t, l.t >= sim.finish AND NOT EXISTS (FROM dryrun_damage d WHERE d.source = b.source AND NOT cut)
FROM batch b JOIN last_place l USING (attempt, source) JOIN simulation sim USING (attempt)
SEMI JOIN (FROM cand WHERE NOT final) c ON b.attempt = c.attempt AND b.rid = c.rid
"""

POINT: Final = """
CREATE TEMP TABLE point AS
WITH last AS (
    SELECT attempt, rid, max(generated) AS generated, max_by(t, generated) AS t, max_by(covers, generated) AS covers
    FROM last_state GROUP BY ALL
), seen AS (SELECT attempt, rid, max(generated) AS generated FROM state GROUP BY ALL)
SELECT attempt, rid, -1 AS pos, admit_time AS t, 0 AS g_lo, 0 AS g_hi, true AS known, coalesce(v_traj, v_min, 0) AS v_lo,
    coalesce(v_traj, v_max, k_hi + 1) AS v_hi, NULL AS source, NULL AS line
FROM cand
UNION ALL
SELECT i.attempt, i.rid, i.k, i.t, s.generated, s.generated, s.generated IS NOT NULL, i.v_lo, i.v_hi, s.source, s.line
FROM inside i LEFT JOIN state s USING (attempt, rid, k)
UNION ALL
SELECT c.attempt, c.rid, 1099511627776, coalesce(c.end_t, last.t),
    CASE WHEN c.final THEN coalesce(c.generated_lo, CASE WHEN c.completed THEN c.target_len END, seen.generated, 0)
        ELSE greatest(last.generated, seen.generated, 0) END,
    CASE WHEN c.final THEN coalesce(c.generated_hi, c.target_len) WHEN last.covers THEN last.generated ELSE c.target_len END,
    true, NULL, NULL, c.source, coalesce(c.final_line, c.first_line)
FROM cand c LEFT JOIN last USING (attempt, rid) LEFT JOIN seen USING (attempt, rid)
"""
"""A moment in a candidate's life at which its count of tokens may be known: admission (0), each update, the end (``pos`` orders
them). ``v_lo``/``v_hi`` = version served from then on. An unfinished one ends with the last row of its instance, exactly
if that row is as late as the last event of the run, else anywhere up to its target length."""

CHUNK: Final = """
CREATE TEMP TABLE chunk AS
WITH run AS (
    SELECT *, sum(known::INTEGER) OVER (PARTITION BY attempt, rid ORDER BY pos) AS number FROM point
), merged AS (  -- updates at which the count is unknown are swallowed: their versions widen the interval
    SELECT attempt, rid, number, min(pos) AS pos, min(t) AS t, max(g_lo) AS g_lo, max(g_hi) AS g_hi, bool_or(g_hi IS NULL) AS
        open_end, min(v_lo) AS v_lo, max(v_hi) AS v_hi, max(source) FILTER (known) AS source, max(line) FILTER (known) AS line
    FROM run GROUP BY attempt, rid, number
), cut AS (
    SELECT attempt, rid, number, pos, t AS started, lead(t) OVER life AS ended, v_lo, v_hi,
        lead(g_lo) OVER life - g_lo AS lo, lead(g_hi) OVER life - g_lo AS hi, lead(number) OVER life IS NOT NULL AS real,
        lead(source) OVER life AS source, lead(line) OVER life AS line
    FROM merged WINDOW life AS (PARTITION BY attempt, rid ORDER BY number)
), clipped AS (
    SELECT cut.*, c.final, c.v_min, c.v_max, greatest(cut.v_lo, CASE WHEN c.final THEN c.v_min END) AS version_lo,
        least(cut.v_hi, CASE WHEN c.final THEN c.v_max END) AS version_hi
    FROM cut JOIN cand c USING (attempt, rid) WHERE real AND (hi IS NULL OR hi <> 0 OR lo <> 0)
), judged AS (
    SELECT attempt, rid, bool_or(lo < 0 OR version_lo > version_hi)
        OR (bool_and(version_lo = version_hi) AND bool_and(final)
            AND (min(version_lo) <> any_value(v_min) OR max(version_hi) <> any_value(v_max))) AS bad
    FROM clipped GROUP BY attempt, rid
), whole AS (
    SELECT attempt, rid, 0 AS pos, c.admit_time AS started, c.end_t AS ended, p.g_lo AS lo, p.g_hi AS hi, p.source, p.line,
        c.final, c.v_min, c.v_max, CASE WHEN c.final THEN c.v_min ELSE c.v_traj END AS version_lo,
        CASE WHEN c.final THEN c.v_max ELSE c.k_hi + 1 END AS version_hi, true AS bad
    FROM judged JOIN cand c USING (attempt, rid) JOIN point p USING (attempt, rid) WHERE judged.bad AND p.pos = 1099511627776
)
SELECT attempt, rid, pos, started, ended, greatest(lo, 0) AS lo, hi, source, line, final, v_min, v_max, version_lo, version_hi, bad
FROM clipped JOIN judged USING (attempt, rid) WHERE NOT coalesce(bad, false)
UNION ALL BY NAME SELECT * FROM whole
"""
"""Tokens between two known moments of a candidate, none where no token was made. ``bad``: the streams contradict each other
(guide 3, self-check), and only what the request's own row says is kept."""

SPAN_ROW: Final = """
CREATE TEMP TABLE span_row AS
WITH placed AS (
    SELECT *, row_number() OVER life = 1 AND final AND hi = lo AND version_lo = v_min AND version_lo < version_hi AS head,
        lead(pos) OVER life IS NULL AND final AND hi = lo AND version_hi = v_max AND version_lo < version_hi AS tail
    FROM chunk WINDOW life AS (PARTITION BY attempt, rid ORDER BY pos)
), pieces AS (  -- versions never decrease, so the first token of all has v_min and the last one v_max
    SELECT *, 0 AS piece, CASE WHEN head AND lo > tail::INTEGER THEN 1 ELSE 0 END AS first_tokens,
        CASE WHEN tail AND lo > head::INTEGER THEN 1 ELSE 0 END AS last_tokens
    FROM placed
), flat AS (
    SELECT attempt, rid, pos, 0 AS piece, 1 AS lo, 1 AS hi, v_min AS version_lo, v_min AS version_hi, started, NULL AS ended,
        source, line FROM pieces WHERE first_tokens = 1
    UNION ALL
    SELECT attempt, rid, pos, 1, lo - first_tokens - last_tokens, hi - first_tokens - last_tokens, version_lo, version_hi,
        started, ended, source, line FROM pieces WHERE hi IS NULL OR hi > first_tokens + last_tokens
    UNION ALL
    SELECT attempt, rid, pos, 2, 1, 1, v_max, v_max, NULL, ended, source, line FROM pieces WHERE last_tokens = 1
), marked AS (
    SELECT *, (version_lo = version_hi AND version_lo = lag(version_lo) OVER life AND version_hi = lag(version_hi) OVER life)
        IS NOT true AS fresh
    FROM flat WINDOW life AS (PARTITION BY attempt, rid ORDER BY pos, piece)
), islands AS (
    SELECT *, count(*) FILTER (fresh) OVER (PARTITION BY attempt, rid ORDER BY pos, piece) AS island FROM marked
), joined AS (
    SELECT attempt, rid, island, sum(lo)::BIGINT AS lo, CASE WHEN bool_and(hi IS NOT NULL) THEN sum(hi)::BIGINT END AS hi,
        any_value(version_lo) AS version_lo, any_value(version_hi) AS version_hi, min(started) AS started, max(ended) AS ended,
        max_by(source, (pos, piece)) AS source, max_by(line, (pos, piece)) AS line
    FROM islands GROUP BY attempt, rid, island
), joint AS (
    SELECT *, CASE WHEN version_lo = version_hi AND lo = hi THEN 'derived' ELSE 'inferred' END AS evidence FROM joined
    UNION ALL BY NAME
    SELECT attempt, rid, 0 AS island, generated_lo AS lo, generated_hi AS hi, v_min AS version_lo, v_max AS version_hi,
        admit_time AS started, end_t AS ended, source, final_line AS line, 'recorded' AS evidence
    FROM req WHERE final AND v_min = v_max AND generated_hi > 0
)
SELECT *, row_number() OVER life - 1 AS span_index, CASE WHEN coalesce(bool_and(lo = hi) OVER before, true)
    THEN coalesce(sum(lo) OVER before, 0)::BIGINT END AS token_start
FROM joint WINDOW life AS (PARTITION BY attempt, rid ORDER BY island),
    before AS (PARTITION BY attempt, rid ORDER BY island ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""
"""A run of tokens of one version (interval): the rows of ``spans``."""

BEFORE_READING: Final = (STEP, REQ, CAND, INSIDE, WANTED, LAST_PLACE)
AFTER_READING: Final = (POINT, CHUNK, SPAN_ROW)

_ID: Final = "CASE WHEN (SELECT count(*) FROM simulation) > 1 THEN attempt || '/' || rid ELSE rid::VARCHAR END"


def _time(seconds: str) -> str:
    """Simulated seconds, shifted past earlier simulations, as a UTC time from the epoch on."""
    return f"make_timestamptz((round({seconds} * 1e6) + sim.shift * 1000000)::BIGINT)"


TABLES: Final = {
    "trajectories": f"""
        SELECT {_ID} AS trajectory_id, attempt, 'train' AS role, false AS anonymous, 1 AS multiplicity_lo, 1 AS multiplicity_hi,
            prompt_len AS prompt_tokens, 'recorded' AS evidence, source, first_line AS line
        FROM req""",
    "spans": f"""
        SELECT {_ID} AS trajectory_id, span_index, token_start, s.lo AS tokens_lo, s.hi AS tokens_hi, s.version_lo, s.version_hi,
            true AS monotone, {_time("s.started")} AS started, {_time("s.ended")} AS ended,
            'instance ' || r.instance_id AS worker, s.evidence, s.source, s.line,
            CASE WHEN s.source <> r.source THEN 'request ' || rid END AS locator
        FROM span_row s JOIN req r USING (attempt, rid) JOIN simulation sim USING (attempt)""",
    "uses": f"""
        WITH used AS (
            SELECT *, consume_version - v_min AS lag FROM request WHERE event = 'consume'
        )
        SELECT {_ID} AS trajectory_id, attempt, consume_version + 1 AS step, generated AS loss_tokens_lo,
            generated AS loss_tokens_hi, least(lag, staleness_true) AS staleness_lo, greatest(lag, staleness_true) AS staleness_hi,
            'recorded' AS evidence, source, line
        FROM used""",
    "events": f"""
        WITH told AS (
            SELECT r.*, q.discarded, q.completed AS was_complete, s.k AS updated, sim.policy, sim.shift, sim.drop_reason,
                sim.cancel_reason
            FROM request r JOIN req q USING (attempt, rid) JOIN simulation sim USING (attempt)
            ASOF LEFT JOIN (FROM step WHERE first_line IS NOT NULL) s ON r.attempt = s.attempt AND r.line > s.first_line
        ), kinds AS (
            SELECT *, unnest(CASE event WHEN 'admit' THEN ['admitted'] WHEN 'consume' THEN ['sampled']
                WHEN 'complete' THEN CASE WHEN discarded THEN ['finished'] ELSE ['finished', 'enqueued'] END
                ELSE CASE WHEN was_complete THEN ['dropped'] ELSE ['cancelled'] END END) AS kind
            FROM told
        )
        SELECT 2 * line + (kind = 'enqueued')::INTEGER AS seq, {_time("t").replace("sim.", "")} AS ts, kind,
            {_ID} AS trajectory_id, attempt,
            CASE kind WHEN 'sampled' THEN consume_version + 1 WHEN 'dropped' THEN coalesce(updated, -1) + 2
                WHEN 'cancelled' THEN coalesce(updated, -1) + 2 END AS step,
            CASE kind WHEN 'admitted' THEN v_traj ELSE v_max END AS version_lo,
            CASE kind WHEN 'admitted' THEN v_traj ELSE v_max END AS version_hi, 1 AS multiplicity,
            CASE kind WHEN 'dropped' THEN drop_reason WHEN 'cancelled' THEN cancel_reason END AS reason,
            CASE WHEN kind IN ('dropped', 'cancelled', 'enqueued') THEN 'derived' ELSE 'recorded' END AS evidence, source, line
        FROM kinds""",
    "steps": f"""
        SELECT attempt, k + 1 AS step, k AS v_train_lo, k AS v_train_hi, {_time("t")} AS started, {_time("ended")} AS ended,
            (round(t * 1e6) - round(lag(ended) OVER (PARTITION BY attempt ORDER BY k) * 1e6))::BIGINT AS waited_us, 1 AS updates,
            completed,
            CASE WHEN train_line IS NOT NULL THEN 'recorded' ELSE 'derived' END AS evidence,
            coalesce(train_source, source) AS source, coalesce(train_line, line) AS line
        FROM step JOIN simulation sim USING (attempt)""",
    "syncs": f"""
        SELECT attempt, v_lo AS version_lo, v_hi AS version_hi, {_time("t")} AS started, {_time("t")} AS ended,
            CASE WHEN v_lo = v_hi THEN 'derived' ELSE 'inferred' END AS evidence, source, line
        FROM step JOIN simulation sim USING (attempt)
        WHERE t IS NOT NULL
        QUALIFY v_hi > coalesce(lag(v_lo) OVER (PARTITION BY attempt ORDER BY k), 0)""",
    "constraints": """
        SELECT attempt, k + 1 AS step, 'trajectories' AS quantity, 'eq' AS op, n_reqs::DOUBLE AS value, 'requests' AS unit,
            'recorded' AS evidence, train_source AS source, train_line AS line
        FROM step WHERE n_reqs IS NOT NULL
        UNION ALL
        SELECT attempt, k + 1, 'loss_tokens', CASE WHEN sim.fixed_prompt IS NULL THEN 'le' ELSE 'eq' END,
            (total_tokens - n_reqs * coalesce(sim.fixed_prompt, 0))::DOUBLE, 'tokens', 'derived', train_source, train_line
        FROM step JOIN simulation sim USING (attempt) WHERE members < n_reqs AND total_tokens IS NOT NULL""",
    "reported": f"""
        WITH figures AS (
            SELECT attempt, k, t, 'step.staleness_max' AS name, 'staleness_true' AS raw_name, reported_true AS value, source, line
            FROM step
            UNION ALL SELECT attempt, k, t, 'step.staleness_max_last_token', 'staleness_reported', reported_last, source, line
            FROM step
            UNION ALL SELECT attempt, k, ended, 'step.trajectories', 'n_reqs', n_reqs, train_source, train_line FROM step
            UNION ALL SELECT attempt, k, ended, 'step.cancelled', 'n_dropped_step', n_dropped_step, train_source, train_line
            FROM step
            UNION ALL SELECT attempt, k, ended, NULL, 'total_tokens', total_tokens, train_source, train_line FROM step
        )
        SELECT attempt, k + 1 AS step, {_time("t")} AS ts, name, raw_name, value::DOUBLE AS value, 'recorded' AS evidence,
            source, line
        FROM figures JOIN simulation sim USING (attempt) WHERE value IS NOT NULL""",
}
"""Rows of each event table."""

LEFT_OVER: Final = f"""
    SELECT 1099511627776 AS seq, {_time("sim.finish")} AS ts, 'lost' AS kind, {_ID} AS trajectory_id, attempt, 1 AS multiplicity,
        'other:simulation_ended' AS reason, 'derived' AS evidence, source, coalesce(final_line, first_line) AS line
    FROM req JOIN simulation sim USING (attempt)
    WHERE attempt < (SELECT max(attempt) FROM simulation) AND NOT discarded
        AND NOT EXISTS (FROM step WHERE step.attempt = req.attempt AND k = consume_version AND completed IS NOT false)"""
"""Requests an earlier simulation left unused when it ended, while the audited folder went on to the next."""

PERHAPS_USED: Final = f"""
    SELECT 1099511627776 AS seq, unnest(['pending', 'lost']) AS kind, {_ID} AS trajectory_id, attempt, 1 AS multiplicity,
        'unknown' AS reason, 'inferred' AS evidence, source, coalesce(final_line, first_line) AS line
    FROM req
    WHERE final AND NOT discarded AND consume_version IS NULL AND attempt = (SELECT max(attempt) FROM simulation)
        AND attempt IN (SELECT attempt FROM step WHERE members < n_reqs)"""
"""Finished requests that may be the ones whose consume rows are lost: left over is only an alternative (the other is to have
been trained among those a step counts and nobody names)."""

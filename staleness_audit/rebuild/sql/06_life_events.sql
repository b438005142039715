-- Product: life_events
-- Stage: part
-- Grain: one row per trajectory that lifecycle events speak of (an event of a group speaks of all its members).
-- From: events, described.
-- Columns:
--   key, twin_lo, twin_hi   of the trajectory
--   admitted, started, finished, enqueued, sampled, ended   microseconds since 1970 of the first (finished, enqueued, ended: last) such event
--   last_attempt        the last attempt in which anything was heard of it
--   has_finished        generation is known to be over
--   fate, reason        its last certain fatal event (dropped, cancelled, lost) if nothing took it up again; else null
--   fate_attempt, fate_step   the step then being collected, as logged
--   fate_v_lo, fate_v_hi  versions logged with it
--   options             its alternative fates from inferred fatal events, in the form of trajectory_lives.fates; else null
WITH own AS NOT MATERIALIZED (
    SELECT
        key_of(trajectory_id) AS key, twin_of(trajectory_id) AS twin,
        kind, attempt, reason, step, version_lo, version_hi, evidence, epoch_us(ts) AS moment, seq
    FROM events
    WHERE trajectory_id IS NOT NULL
    UNION ALL
    SELECT
        described.key, described.twin,
        kind, events.attempt, reason, step, version_lo, version_hi, events.evidence, epoch_us(ts), seq
    FROM (SELECT * FROM events WHERE trajectory_id IS NULL AND group_id IS NOT NULL) AS events
    JOIN described ON events.group_id = described.group_id
),
fatal AS (
    SELECT
        key,
        arg_max(kind, position) FILTER (evidence <> 'inferred') AS last_kind,
        arg_max(coalesce(reason, 'unknown'), position) FILTER (evidence <> 'inferred') AS reason,
        arg_max(attempt, position) FILTER (evidence <> 'inferred' AND kind <> 'requeued') AS fate_attempt,
        arg_max(step, position) FILTER (evidence <> 'inferred' AND kind <> 'requeued') AS fate_step,
        arg_max(version_lo, position) FILTER (evidence <> 'inferred' AND kind <> 'requeued') AS fate_v_lo,
        arg_max(version_hi, position) FILTER (evidence <> 'inferred' AND kind <> 'requeued') AS fate_v_hi,
        max(moment) FILTER (kind <> 'requeued') AS ended,
        string_agg(
            DISTINCT kind || ':' || CASE WHEN kind = 'pending' THEN '' ELSE replace(coalesce(reason, 'unknown'), chr(31), ' ') END, chr(31)
        ) FILTER (evidence = 'inferred') AS options
    FROM (
        SELECT *, coalesce(moment, 0)::HUGEINT * 9223372036854775808 + coalesce(seq, 0) AS position
        FROM own
        WHERE kind IN ('dropped', 'cancelled', 'lost', 'requeued', 'pending')
    )
    GROUP BY key
),
times AS (
    SELECT
        key,
        min(twin) AS twin_lo,
        max(twin) AS twin_hi,
        max(attempt) AS last_attempt,
        min(CASE WHEN kind = 'admitted' THEN moment END) AS admitted,
        min(CASE WHEN kind = 'started' THEN moment END) AS started,
        max(CASE WHEN kind = 'finished' THEN moment END) AS finished,
        max(CASE WHEN kind = 'enqueued' THEN moment END) AS enqueued,
        min(CASE WHEN kind = 'sampled' THEN moment END) AS sampled,
        bool_or(kind IN ('finished', 'enqueued')) AS has_finished
    FROM own
    GROUP BY key
)
SELECT
    times.*,
    fatal.ended,
    CASE WHEN fatal.last_kind <> 'requeued' THEN fatal.last_kind END AS fate,
    replace(fatal.reason, chr(31), ' ') AS reason,
    fatal.fate_attempt, fatal.fate_step, fatal.fate_v_lo, fatal.fate_v_hi,
    fatal.options
FROM times LEFT JOIN fatal USING (key)

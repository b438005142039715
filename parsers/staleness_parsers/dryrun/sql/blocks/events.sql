-- One row per lifecycle event. `complete` then `drop` of one request is a drop, `drop` alone a cancellation (guide 6);
-- its step is the one being collected then: after the start of step k (number k + 1) that is number k + 2.
WITH told AS (
    SELECT r.*, q.discarded, q.completed, coalesce(s.k, -1) AS k, sim.shift, sim.drop_reason, sim.cancel_reason
    FROM request r
    JOIN block_lives q USING (attempt, rid)
    JOIN simulation sim USING (attempt)
    ASOF LEFT JOIN (FROM step WHERE first_line IS NOT NULL) s ON r.attempt = s.attempt AND r.line > s.first_line
),
kinds AS (
    SELECT *, unnest(CASE
        WHEN event = 'admit' THEN ['admitted']
        WHEN event = 'consume' THEN ['sampled']
        WHEN event = 'complete' AND discarded THEN ['finished']
        WHEN event = 'complete' THEN ['finished', 'enqueued']
        WHEN completed THEN ['dropped']
        ELSE ['cancelled']
    END) AS kind
    FROM told
)
SELECT
    2 * line + (kind = 'enqueued')::INTEGER AS seq, moment(t, shift) AS ts, kind,
    trajectory_name(attempt, rid) AS trajectory_id, attempt,
    CASE WHEN kind = 'sampled' THEN consume_version + 1 WHEN kind IN ('dropped', 'cancelled') THEN k + 2 END AS step,
    CASE WHEN kind = 'admitted' THEN v_traj ELSE v_max END AS version_lo,
    CASE WHEN kind = 'admitted' THEN v_traj ELSE v_max END AS version_hi,
    1 AS multiplicity,
    CASE kind WHEN 'dropped' THEN drop_reason WHEN 'cancelled' THEN cancel_reason END AS reason,
    CASE WHEN kind IN ('dropped', 'cancelled', 'enqueued') THEN 'derived' ELSE 'recorded' END AS evidence,
    source, line
FROM kinds

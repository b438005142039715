-- Grain: a moment in a candidate's life at which its count of tokens may be known: admission, updates, the end.
--   pos          orders them: -1, k, a number beyond all k
--   g_lo, g_hi   tokens made so far. An unfinished request ends with the last row of its instance, or, where later rows
--                may be lost, anywhere up to its target length
--   known        false at an update of which no occupancy row was found
--   v_lo, v_hi   version served from then on
CREATE OR REPLACE TEMP TABLE point AS
WITH last_seen AS (
    SELECT state.attempt, rid, max(generated) AS generated, max(t) AS t, bool_or(covers) AS covers
    FROM state
    JOIN last_place USING (attempt, source)
    WHERE k IS NULL
    GROUP BY state.attempt, rid
),
seen AS (
    SELECT attempt, rid, max(generated) AS generated FROM state GROUP BY attempt, rid
)
SELECT
    c.attempt, c.rid, -1 AS pos, c.admit_time AS t, 0 AS g_lo, 0 AS g_hi, true AS known,
    coalesce(c.v_traj, c.v_min, 0) AS v_lo,
    -- Updates whose time is unknown may follow the admission before the next known one.
    greatest(coalesce(c.v_traj, c.v_max, c.k_hi + 1), served_hi, undated_hi) AS v_hi,
    NULL AS source, NULL AS line
FROM block_cands c
UNION ALL
SELECT
    i.attempt, i.rid, i.k, i.t, s.generated, s.generated, s.generated IS NOT NULL, i.v_lo, i.v_hi, s.source, s.line
FROM block_insides i
LEFT JOIN state s USING (attempt, rid, k)
UNION ALL
SELECT
    c.attempt, c.rid, 1099511627776, coalesce(c.end_t, last_seen.t),
    CASE
        WHEN NOT c.final THEN coalesce(seen.generated, 0)
        ELSE coalesce(c.generated_lo, CASE WHEN c.completed THEN c.target_len END, seen.generated, 0)
    END,
    CASE
        WHEN c.final THEN coalesce(c.generated_hi, c.target_len)
        WHEN last_seen.covers THEN last_seen.generated
        ELSE c.target_len
    END,
    true, NULL, NULL, c.source, coalesce(c.final_line, c.first_line)
FROM block_cands c
LEFT JOIN last_seen USING (attempt, rid)
LEFT JOIN seen USING (attempt, rid)

-- Product: members
-- Publish: yes
-- Grain: one row per trajectory (or anonymous class), described or only mentioned.
-- From: described, span_sums, use_rows, life_events, spans, uses, events.
-- Columns:
--   key              stands for it in the other products
--   trajectory_id
--   group_id         its group; a trajectory without one is its own group, named by its id
--   grouped          whether the log names a group
--   attempt          the attempt that admitted it
--   training         false for evaluation rollouts, which count nowhere
--   anonymous        a class without identity
--   multiplicity_lo, multiplicity_hi   how many trajectories the row stands for (hi null = open)
--   prompt_tokens
--   twin             a second hash of the id, see described
WITH strays AS (
    SELECT DISTINCT key
    FROM (SELECT key FROM span_sums UNION ALL SELECT key FROM use_rows UNION ALL SELECT key FROM life_events) AS mentioned
    WHERE key NOT IN (SELECT key FROM described)
),
named AS (
    SELECT key, min(trajectory_id) AS trajectory_id
    FROM (
        SELECT hash(trajectory_id) AS key, trajectory_id FROM spans WHERE EXISTS (SELECT 1 FROM strays)
        UNION ALL SELECT hash(trajectory_id), trajectory_id FROM uses WHERE EXISTS (SELECT 1 FROM strays)
        UNION ALL SELECT hash(trajectory_id), trajectory_id FROM events WHERE EXISTS (SELECT 1 FROM strays)
    )
    WHERE key IN (SELECT key FROM strays)
    GROUP BY key
)
SELECT
    key,
    trajectory_id,
    coalesce(group_id, trajectory_id) AS group_id,
    group_id IS NOT NULL AS grouped,
    coalesce(attempt, 0) AS attempt,
    NOT eval AS training,
    anonymous,
    coalesce(multiplicity_lo, CASE WHEN anonymous THEN 0 ELSE 1 END) AS multiplicity_lo,
    coalesce(multiplicity_hi, CASE WHEN anonymous THEN NULL ELSE 1 END) AS multiplicity_hi,
    prompt_tokens,
    twin
FROM described
UNION ALL
SELECT key, trajectory_id, trajectory_id, false, 0, true, false, 1, 1, NULL, hash(trajectory_id || chr(1))
FROM named

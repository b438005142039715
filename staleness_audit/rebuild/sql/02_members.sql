-- Product: members
-- Grain: one row per trajectory; several rows of the table `trajectories` for one id are merged.
-- From: ids, trajectories.
-- Columns:
--   key, trajectory_id
--   group_id         its group; a trajectory without one is its own group, named by its id
--   grouped          whether the log names a group
--   attempt          the attempt that admitted it
--   training         false for evaluation rollouts, which count nowhere
--   anonymous        a class without identity
--   multiplicity_lo, multiplicity_hi   how many trajectories the row stands for
--   prompt_tokens
WITH merged AS (
    SELECT
        trajectory_id,
        min(group_id) AS group_id,
        min(attempt) AS attempt,
        bool_or(role = 'eval') AS eval,
        bool_or(anonymous) AS anonymous,
        max(multiplicity_lo) AS multiplicity_lo,
        max(multiplicity_hi) AS multiplicity_hi,
        count(*) AS descriptions,
        count(multiplicity_hi) AS closed,
        max(prompt_tokens) AS prompt_tokens
    FROM trajectories
    WHERE trajectory_id IS NOT NULL
    GROUP BY trajectory_id
)
SELECT
    ids.key,
    ids.trajectory_id,
    coalesce(merged.group_id, ids.trajectory_id) AS group_id,
    merged.group_id IS NOT NULL AS grouped,
    coalesce(merged.attempt, 0) AS attempt,
    NOT coalesce(merged.eval, false) AS training,
    coalesce(merged.anonymous, false) AS anonymous,
    coalesce(merged.multiplicity_lo, CASE WHEN merged.anonymous THEN 0 ELSE 1 END) AS multiplicity_lo,
    CASE
        WHEN merged.closed > 0 THEN merged.multiplicity_hi
        WHEN NOT coalesce(merged.anonymous, false) THEN 1
    END AS multiplicity_hi,
    merged.prompt_tokens
FROM ids LEFT JOIN merged USING (trajectory_id)

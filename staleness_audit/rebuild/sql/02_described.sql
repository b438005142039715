-- Product: described
-- Stage: part
-- Grain: one row per trajectory that the table `trajectories` describes; several rows of one id are merged.
-- From: trajectories.
-- Columns:
--   key              hash of the id: stands for the trajectory in the products below
--   twin             a second, independent hash, by which two ids with one key would be noticed
--   trajectory_id, group_id, attempt, eval, anonymous, multiplicity_lo, multiplicity_hi, prompt_tokens   as in the table
SELECT key, twin_of(trajectory_id) AS twin, * EXCLUDE (key)
FROM (
    SELECT
        key_of(trajectory_id) AS key,
        min(trajectory_id) AS trajectory_id,
        min(group_id) AS group_id,
        min(attempt) AS attempt,
        coalesce(bool_or(role = 'eval'), false) AS eval,
        coalesce(bool_or(anonymous), false) AS anonymous,
        max(multiplicity_lo) AS multiplicity_lo,
        max(multiplicity_hi) AS multiplicity_hi,
        max(prompt_tokens) AS prompt_tokens
    FROM trajectories
    WHERE trajectory_id IS NOT NULL
    GROUP BY key
)

-- Product: members
-- Publish: yes
-- Kind: view
-- Stage: part
-- Grain: one row per trajectory (or anonymous class), described or only mentioned.
-- From: described, strays.
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
SELECT key, trajectory_id, trajectory_id, false, 0, true, false, 1, 1, NULL, twin_of(trajectory_id)
FROM strays

-- Product: group_users
-- Kind: view
-- Stage: part
-- Grain: one row per trajectory (or anonymous class) that was, or may have been, trained with a loss token.
-- From: trajectory_lives, members.
-- Columns:
--   group_id, grouped, anonymous, multiplicity_lo, multiplicity_hi   as in members
--   staleness_lo, staleness_hi, staleness_sure, worst_sure_lo        as in trajectory_lives
SELECT
    group_id, grouped, trajectory_lives.anonymous, trajectory_lives.multiplicity_lo, trajectory_lives.multiplicity_hi,
    staleness_lo, staleness_hi, staleness_sure, worst_sure_lo
FROM trajectory_lives JOIN members USING (key)
WHERE (trained OR maybe_trained) AND (trained_hi IS NULL OR trained_hi > 0)

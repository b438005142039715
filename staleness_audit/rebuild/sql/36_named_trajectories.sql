-- Product: named_trajectories
-- Publish: yes
-- Kind: lens
-- Stage: whole
-- Grain: one row per training trajectory, with its names.
-- From: trajectory_lives, members.
-- Columns:
--   trajectory_id, group_id, grouped, attempt, prompt_tokens   as in members
--   fates                                                      possible fates as `kind:reason`, a list; one alone is certain
--   key, multiplicity_lo, multiplicity_hi, anonymous, tokens_lo, tokens_hi, oldest_lo, oldest_hi, v_end_lo, v_end_hi, trained, maybe_trained, staleness_lo, staleness_hi, staleness_sure, worst_sure_lo, trained_lo, trained_hi, has_finished, admitted, started, finished, enqueued, sampled, ended, collides, fate_attempt, fate_step, fate_v_lo, fate_v_hi   as in trajectory_lives
SELECT
    members.trajectory_id, members.group_id, members.grouped, members.attempt, members.prompt_tokens,
    string_split(trajectory_lives.fates, chr(31)) AS fates,
    trajectory_lives.* EXCLUDE (fates)
FROM trajectory_lives
JOIN members USING (key)

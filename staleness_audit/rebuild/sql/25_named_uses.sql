-- Product: named_uses
-- Publish: yes
-- Kind: lens
-- Grain: one row per use that counts or may count, with the names of everything.
-- From: use_lives, members, step_lives.
-- Columns:
--   trajectory_id, group_id, grouped, anonymous   as in members
--   attempt, step, v_train_lo, v_train_hi         as in step_lives
--   key, step_key, certain, loss_lo, loss_hi, staleness_lo, staleness_hi, flight_lo, flight_hi, queue_lo, queue_hi, impossible   as in use_lives
SELECT
    members.trajectory_id, members.group_id, members.grouped, members.anonymous,
    step_lives.attempt, step_lives.step, step_lives.v_train_lo, step_lives.v_train_hi,
    use_lives.*
FROM use_lives
JOIN members USING (key)
JOIN step_lives USING (step_key)

-- Product: named_uses
-- Publish: yes
-- Kind: lens
-- Stage: whole
-- Grain: one row per use that counts or may count, with the names of everything.
-- From: use_lives, members, step_lives.
-- Columns:
--   trajectory_id, group_id, grouped, anonymous   as in members
--   multiplicity_lo, multiplicity_hi              as in members
--   attempt, step                                 as in step_lives
--   first_step                                    trained in some of the steps from this one to `step` (null = in `step` itself)
--   v_train_lo, v_train_hi                        version that the weights of these steps start from
--   key, step_key, certain, loss_lo, loss_hi, staleness_lo, staleness_hi, flight_lo, flight_hi, queue_lo, queue_hi, impossible   as in use_lives
SELECT
    members.trajectory_id, members.group_id, members.grouped, members.anonymous, members.multiplicity_lo, members.multiplicity_hi,
    step_lives.attempt, step_lives.step, CASE WHEN first_step < step_lives.step THEN first_step END AS first_step,
    step_lives.v_first_lo AS v_train_lo, step_lives.v_train_hi,
    use_lives.*
FROM use_lives
JOIN members USING (key)
JOIN step_lives USING (step_key)

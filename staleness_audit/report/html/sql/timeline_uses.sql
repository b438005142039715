-- Query: the training of the trajectories on the timeline.
-- Grain: one row per trajectory and step.
-- From: use_lives, step_lives.
-- Parameters: keys (of the chosen trajectories).
-- Columns:
--   key, attempt, step, certain, staleness_lo, staleness_hi
--   v_train_lo, v_train_hi
--   started, ended   microseconds since 1970
SELECT
    use_lives.key, step_lives.attempt, step_lives.step, use_lives.certain, staleness_lo, staleness_hi,
    v_train_lo, v_train_hi, epoch_us(step_lives.started) AS started, epoch_us(step_lives.ended) AS ended
FROM use_lives JOIN step_lives USING (step_key)
WHERE key IN (SELECT unnest($keys::UBIGINT[]))
ORDER BY key, attempt, step

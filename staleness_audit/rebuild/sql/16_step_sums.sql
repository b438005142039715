-- Product: step_sums
-- Stage: part
-- Grain: one row per training step with a use: what its identified uses add up to.
-- From: use_sums.
-- Sums: uses_lo, uses_hi, loss_lo, loss_hi.
-- Columns:
--   step_key
--   uses_lo, uses_hi      trajectories (hi null = open)
--   loss_lo, loss_hi      loss tokens (hi null = open)
SELECT
    step_key,
    sum(CASE WHEN certain THEN uses_lo ELSE 0 END) AS uses_lo,
    CASE WHEN count(uses_hi) = count(*) THEN sum(uses_hi) END AS uses_hi,
    sum(CASE WHEN certain THEN loss_lo ELSE 0 END) AS loss_lo,
    CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi) END AS loss_hi
FROM use_sums
GROUP BY step_key

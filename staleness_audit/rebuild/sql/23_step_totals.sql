-- Product: step_totals
-- Stage: whole
-- Grain: one row per training step with a use: what its identified uses add up to.
-- From: step_sums.
-- Columns:
--   step_key, uses_lo, uses_hi, loss_lo, loss_hi   as in step_sums
SELECT
    step_key,
    sum(uses_lo) AS uses_lo,
    CASE WHEN count(uses_hi) = count(*) THEN sum(uses_hi) END AS uses_hi,
    sum(loss_lo) AS loss_lo,
    CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi) END AS loss_hi
FROM step_sums
GROUP BY step_key

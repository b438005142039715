-- Product: use_classes
-- Publish: yes
-- Stage: whole
-- Grain: one row per training step and staleness interval of trajectories.
-- From: use_sums, step_lives, residual_uses.
-- Sums: uses_lo, uses_hi, loss_lo, loss_hi, identified.
-- Columns:
--   attempt, step, certain
--   sure                         each of them surely has a loss token
--   possible                     each of them may have one (false = all tokens masked)
--   staleness_lo, staleness_hi
--   uses_lo, uses_hi             trajectories (hi null = open)
--   loss_lo, loss_hi             their loss tokens (hi null = open)
--   identified                   how many of them have an identity
SELECT
    attempt, step, use_sums.certain, sure, use_sums.possible, staleness_lo, staleness_hi,
    sum(uses_lo)::BIGINT AS uses_lo,
    CASE WHEN count(uses_hi) = count(*) THEN sum(uses_hi)::BIGINT END AS uses_hi,
    sum(loss_lo)::BIGINT AS loss_lo,
    CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END AS loss_hi,
    sum(identified)::BIGINT AS identified
FROM use_sums JOIN step_lives USING (step_key)
GROUP BY attempt, step, use_sums.certain, sure, use_sums.possible, staleness_lo, staleness_hi
UNION ALL
SELECT
    attempt, step, certain, trajectories_hi = 1 AND loss_lo > 0, loss_hi IS NULL OR loss_hi > 0, staleness_lo, staleness_hi,
    trajectories_lo, trajectories_hi, loss_lo, loss_hi, 0
FROM residual_uses

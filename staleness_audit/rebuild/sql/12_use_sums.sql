-- Product: use_sums
-- Stage: part
-- Grain: one row per training step and staleness interval of the trajectories of identified uses.
-- From: use_lives, members.
-- Columns:
--   step_key, certain, sure, possible, staleness_lo, staleness_hi, uses_lo, uses_hi, loss_lo, loss_hi, identified   as in use_classes
SELECT
    step_key, use_lives.certain,
    loss_lo > 0 AS sure,
    loss_hi IS NULL OR loss_hi > 0 AS possible,
    CASE WHEN loss_hi = 0 THEN NULL ELSE staleness_lo END AS staleness_lo,
    CASE WHEN loss_hi = 0 THEN NULL ELSE staleness_hi END AS staleness_hi,
    sum(multiplicity_lo)::BIGINT AS uses_lo,
    CASE WHEN count(multiplicity_hi) = count(*) THEN sum(multiplicity_hi)::BIGINT END AS uses_hi,
    sum(loss_lo)::BIGINT AS loss_lo,
    CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END AS loss_hi,
    count(*) FILTER (NOT anonymous)::BIGINT AS identified
FROM use_lives JOIN members USING (key)
GROUP BY ALL

-- Product: use_classes
-- Publish: yes
-- Grain: one row per training step and staleness interval of trajectories.
-- From: use_lives, members, step_lives, residual_uses.
-- Columns:
--   attempt, step, certain
--   sure                         each of them surely has a loss token
--   possible                     each of them may have one (false = all tokens masked)
--   staleness_lo, staleness_hi
--   uses_lo, uses_hi             trajectories (hi null = open)
--   loss_lo, loss_hi             their loss tokens (hi null = open)
--   identified                   how many of them have an identity
SELECT
    step_lives.attempt, step, use_lives.certain,
    loss_lo > 0 AS sure,
    loss_hi IS NULL OR loss_hi > 0 AS possible,
    CASE WHEN loss_hi = 0 THEN NULL ELSE staleness_lo END AS staleness_lo,
    CASE WHEN loss_hi = 0 THEN NULL ELSE staleness_hi END AS staleness_hi,
    sum(multiplicity_lo)::BIGINT AS uses_lo,
    CASE WHEN count(multiplicity_hi) = count(*) THEN sum(multiplicity_hi)::BIGINT END AS uses_hi,
    sum(loss_lo)::BIGINT AS loss_lo,
    CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END AS loss_hi,
    count(*) FILTER (NOT anonymous)::BIGINT AS identified
FROM use_lives JOIN members USING (key) JOIN step_lives USING (step_key)
GROUP BY ALL
UNION ALL
SELECT
    attempt, step, certain, trajectories_hi = 1 AND loss_lo > 0, loss_hi IS NULL OR loss_hi > 0, staleness_lo, staleness_hi,
    trajectories_lo, trajectories_hi, loss_lo, loss_hi, 0
FROM residual_uses

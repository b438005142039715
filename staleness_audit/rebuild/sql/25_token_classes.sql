-- Product: token_classes
-- Publish: yes
-- Stage: whole
-- Grain: one row per training step and staleness interval of loss tokens.
-- From: token_sums, step_lives, residual_uses.
-- Sums: tokens_lo, tokens_hi.
-- Columns:
--   attempt, step, certain
--   staleness_lo, staleness_hi   (hi null = open)
--   tokens_lo, tokens_hi         loss tokens, per use (hi null = open)
SELECT
    attempt, step, token_sums.certain, staleness_lo, staleness_hi,
    sum(tokens_lo)::BIGINT AS tokens_lo,
    CASE WHEN count(tokens_hi) = count(*) THEN sum(tokens_hi)::BIGINT END AS tokens_hi
FROM token_sums JOIN step_lives USING (step_key)
GROUP BY attempt, step, token_sums.certain, staleness_lo, staleness_hi
UNION ALL
SELECT attempt, step, certain, staleness_lo, staleness_hi, loss_lo, loss_hi
FROM residual_uses
WHERE loss_hi IS NULL OR loss_hi > 0

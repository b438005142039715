-- Product: token_sums
-- Stage: part
-- Grain: one row per training step and staleness interval of the loss tokens of identified uses.
-- From: token_uses.
-- Columns:
--   step_key, certain
--   staleness_lo, staleness_hi   (hi null = open)
--   tokens_lo, tokens_hi         loss tokens, per use (hi null = open)
SELECT
    step_key, certain, staleness_lo, staleness_hi,
    sum(loss_lo)::BIGINT AS tokens_lo,
    CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END AS tokens_hi
FROM token_uses
WHERE loss_hi IS NULL OR loss_hi > 0
GROUP BY step_key, certain, staleness_lo, staleness_hi

-- Product: token_classes
-- Publish: yes
-- Grain: one row per training step and staleness interval of loss tokens.
-- From: token_uses, step_lives, residual_uses.
-- Columns:
--   attempt, step, certain
--   staleness_lo, staleness_hi   (hi null = open)
--   tokens_lo, tokens_hi         loss tokens, per use (hi null = open)
SELECT
    attempt, step, classes.certain, staleness_lo, staleness_hi,
    tokens_lo, tokens_hi
FROM (
    SELECT
        step_key, certain, staleness_lo, staleness_hi,
        sum(loss_lo)::BIGINT AS tokens_lo,
        CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END AS tokens_hi
    FROM token_uses
    WHERE loss_hi IS NULL OR loss_hi > 0
    GROUP BY step_key, certain, staleness_lo, staleness_hi
) AS classes
JOIN step_lives USING (step_key)
UNION ALL
SELECT attempt, step, certain, staleness_lo, staleness_hi, loss_lo, loss_hi
FROM residual_uses
WHERE loss_hi IS NULL OR loss_hi > 0

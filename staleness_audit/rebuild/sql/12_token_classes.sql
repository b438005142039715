-- Product: token_classes
-- Publish: yes
-- Grain: one row per training step and staleness interval of loss tokens.
-- From: token_uses, members, residual_uses.
-- Columns:
--   attempt, step, certain
--   staleness_lo, staleness_hi   (hi null = open)
--   tokens_lo, tokens_hi         loss tokens, per use (hi null = open)
SELECT
    token_uses.attempt, step, certain, staleness_lo, staleness_hi,
    sum(loss_lo * CASE WHEN anonymous THEN least(multiplicity_lo, 1) ELSE 1 END)::BIGINT AS tokens_lo,
    CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END AS tokens_hi
FROM token_uses JOIN members USING (key)
WHERE loss_hi IS NULL OR loss_hi > 0
GROUP BY token_uses.attempt, step, certain, staleness_lo, staleness_hi
UNION ALL
SELECT attempt, step, certain, 0, staleness_hi, loss_lo, loss_hi
FROM residual_uses
WHERE loss_hi IS NULL OR loss_hi > 0

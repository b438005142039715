-- Product: flight_classes
-- Publish: yes
-- Grain: one row per combination of in-flight and in-queue intervals of loss tokens.
-- From: token_uses, residual_uses.
-- Columns:
--   certain, flight_lo, flight_hi, queue_lo, queue_hi
--   tokens_lo, tokens_hi         loss tokens, per use (hi null = open)
SELECT
    certain, flight_lo, flight_hi, queue_lo, queue_hi,
    sum(loss_lo)::BIGINT AS tokens_lo,
    CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END AS tokens_hi
FROM token_uses
WHERE loss_hi IS NULL OR loss_hi > 0
GROUP BY ALL
UNION ALL
SELECT certain, NULL, staleness_hi, 0, staleness_hi, sum(loss_lo)::BIGINT, CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END
FROM residual_uses
GROUP BY ALL

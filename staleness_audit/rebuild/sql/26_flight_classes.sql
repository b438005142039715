-- Product: flight_classes
-- Publish: yes
-- Stage: whole
-- Grain: one row per combination of in-flight and in-queue intervals of loss tokens.
-- From: flight_sums, residual_uses.
-- Sums: tokens_lo, tokens_hi.
-- Columns:
--   certain, flight_lo, flight_hi, queue_lo, queue_hi
--   tokens_lo, tokens_hi         loss tokens, per use (hi null = open)
SELECT
    certain, flight_lo, flight_hi, queue_lo, queue_hi,
    sum(tokens_lo)::BIGINT AS tokens_lo,
    CASE WHEN count(tokens_hi) = count(*) THEN sum(tokens_hi)::BIGINT END AS tokens_hi
FROM flight_sums
GROUP BY ALL
UNION ALL
SELECT certain, flight_lo, flight_hi, queue_lo, queue_hi, sum(loss_lo)::BIGINT, CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END
FROM residual_uses
GROUP BY ALL

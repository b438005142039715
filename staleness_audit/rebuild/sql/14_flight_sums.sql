-- Product: flight_sums
-- Stage: part
-- Grain: one row per combination of in-flight and in-queue intervals of the loss tokens of identified uses.
-- From: token_uses.
-- Columns:
--   certain, flight_lo, flight_hi, queue_lo, queue_hi
--   tokens_lo, tokens_hi         loss tokens, per use (hi null = open)
-- The two parts of a token add up to its staleness, which the log may know better than either of them.
WITH narrowed AS (
    SELECT
        certain, loss_lo, loss_hi,
        CASE WHEN NOT whole OR staleness_lo - queue_hi IS NULL THEN flight_lo ELSE greatest(flight_lo, staleness_lo - queue_hi) END AS flight_lo,
        CASE WHEN NOT whole OR staleness_hi - queue_lo IS NULL THEN flight_hi ELSE least(flight_hi, staleness_hi - queue_lo) END AS flight_hi,
        CASE WHEN NOT whole OR staleness_lo - flight_hi IS NULL THEN queue_lo ELSE greatest(queue_lo, staleness_lo - flight_hi) END AS queue_lo,
        CASE WHEN NOT whole OR staleness_hi - flight_lo IS NULL THEN queue_hi ELSE least(queue_hi, staleness_hi - flight_lo) END AS queue_hi
    FROM token_uses
    WHERE loss_hi IS NULL OR loss_hi > 0
)
SELECT
    certain, flight_lo, flight_hi, queue_lo, queue_hi,
    sum(loss_lo)::BIGINT AS tokens_lo,
    CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END AS tokens_hi
FROM narrowed
GROUP BY ALL

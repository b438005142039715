-- Product: span_sums
-- Grain: one row per training trajectory that has spans.
-- From: token_spans.
-- Columns:
--   key
--   tokens_lo, tokens_hi     sampled tokens of the trajectory (hi null = open)
--   loss_lo, loss_hi         unmasked ones by the mask logged with the tokens
--   oldest_lo, oldest_hi     version of its oldest unmasked token; null/null = it has none for certain
--   v_end_lo, v_end_hi       version of its last sampled token
SELECT
    key,
    sum(tokens_lo)::BIGINT AS tokens_lo,
    CASE WHEN count(tokens_hi) = count(*) THEN sum(tokens_hi)::BIGINT END AS tokens_hi,
    sum(loss_lo)::BIGINT AS loss_lo,
    CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END AS loss_hi,
    min(version_lo) FILTER (loss_hi IS NULL OR loss_hi > 0) AS oldest_lo,
    min(version_hi) FILTER (loss_lo > 0) AS oldest_hi,
    -- The last span that surely has tokens ends the trajectory, unless one that may be empty comes after it.
    least(
        arg_max(version_lo, exact_order) FILTER (tokens_lo > 0),
        min(version_lo) FILTER (tokens_lo = 0 AND (tokens_hi IS NULL OR tokens_hi > 0))
    ) AS v_end_lo,
    CASE WHEN count(*) FILTER ((tokens_hi IS NULL OR tokens_hi > 0) AND version_hi IS NULL) = 0 THEN greatest(
        arg_max(version_hi, exact_order) FILTER (tokens_lo > 0),
        max(version_hi) FILTER (tokens_lo = 0 AND (tokens_hi IS NULL OR tokens_hi > 0))
    ) END AS v_end_hi
FROM token_spans
GROUP BY key

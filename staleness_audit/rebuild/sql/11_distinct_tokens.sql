-- Product: distinct_tokens
-- Stage: part
-- Grain: one row per trajectory with at least one use that counts or may count.
-- From: use_lives, token_uses, token_spans.
-- Columns:
--   key
--   trained                       some use counts for certain
--   staleness_lo, staleness_hi    of its worst use, whichever of them count (hi null = open)
--   staleness_sure                some use that counts for certain surely has a loss token
--   worst_sure_lo                 largest lower end over the uses that count for certain and surely have loss tokens
--   trained_lo, trained_hi        sampled tokens that took part in training at least once
WITH per_use AS (
    SELECT
        key,
        count(*) AS uses,
        bool_or(certain) AS trained,
        min(staleness_lo) AS staleness_lo,
        CASE WHEN count(*) FILTER ((loss_hi IS NULL OR loss_hi > 0) AND staleness_hi IS NULL) = 0 THEN max(staleness_hi) END AS staleness_hi,
        bool_or(certain AND loss_lo > 0) AS staleness_sure,
        max(staleness_lo) FILTER (certain AND loss_lo > 0) AS worst_sure_lo,
        coalesce(max(loss_lo) FILTER (certain), 0) AS trained_lo,
        CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END AS trained_hi
    FROM use_lives
    GROUP BY key
),
-- A token used in several steps counts once: within a span at least the largest use, at most all of them, where uses
-- without a mask of their own share that of the span.
per_span AS (
    SELECT
        key, span_index,
        coalesce(max(loss_lo) FILTER (certain), 0) AS trained_lo,
        CASE WHEN count(loss_hi) = count(*)
            THEN coalesce(sum(loss_hi) FILTER (own_mask), 0)::BIGINT + coalesce(max(loss_hi) FILTER (NOT own_mask), 0)
        END AS trained_hi
    FROM token_uses
    WHERE key IN (SELECT key FROM per_use WHERE uses > 1)
    GROUP BY key, span_index
),
repeated AS (
    SELECT
        per_span.key,
        sum(per_span.trained_lo)::BIGINT AS trained_lo,
        CASE WHEN count(least(per_span.trained_hi, tokens_hi)) = count(*) THEN sum(least(per_span.trained_hi, tokens_hi))::BIGINT END AS trained_hi
    FROM per_span
    LEFT JOIN token_spans ON per_span.key = token_spans.key AND per_span.span_index = token_spans.span_index
    GROUP BY per_span.key
)
SELECT
    per_use.* EXCLUDE (uses, trained_lo, trained_hi),
    greatest(per_use.trained_lo, repeated.trained_lo) AS trained_lo,
    least(per_use.trained_hi, repeated.trained_hi) AS trained_hi
FROM per_use LEFT JOIN repeated USING (key)

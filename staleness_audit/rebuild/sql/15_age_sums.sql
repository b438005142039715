-- Product: age_sums
-- Stage: part
-- Grain: one row per interval of token age inside its trajectory: how many versions a token is newer than the oldest unmasked one.
-- From: token_spans, span_sums, members.
-- Columns:
--   age_lo, age_hi        v_gen - oldest unmasked v_gen of the trajectory (hi null = open)
--   tokens_lo, tokens_hi  sampled tokens (hi null = open)
SELECT
    greatest(coalesce(version_lo, 0) - coalesce(oldest_hi, version_lo, 0), 0) AS age_lo,
    -- Every token of a span lies within its versions; a trajectory of one version has age 0 throughout.
    CASE WHEN version_hi IS NOT NULL THEN greatest(version_hi - coalesce(oldest_lo, version_lo, 0), 0) END AS age_hi,
    sum(token_spans.tokens_lo)::BIGINT AS tokens_lo,
    CASE WHEN count(token_spans.tokens_hi) = count(*) THEN sum(token_spans.tokens_hi)::BIGINT END AS tokens_hi
FROM token_spans JOIN span_sums USING (key)
WHERE (token_spans.tokens_hi IS NULL OR token_spans.tokens_hi > 0)
  AND key NOT IN (SELECT key FROM members WHERE NOT training)
GROUP BY ALL

-- Query: what the document leaves out of its steps.
-- Grain: one row per training step that counts or may count and holds loss tokens.
-- From: token_classes.
-- Parameters: bound (null = none).
-- Columns:
--   attempt, step
--   min_lo, min_hi   smallest staleness of its loss tokens (hi null = open)
--   in_bound         loss tokens that are certainly within the bound
SELECT
    attempt, step,
    min(staleness_lo) AS min_lo,
    -- The least token is no older than any class of which a member is certain.
    min(staleness_hi) FILTER (WHERE certain AND tokens_lo > 0) AS min_hi,
    coalesce(sum(tokens_lo) FILTER (WHERE certain AND staleness_hi <= $bound), 0)::BIGINT AS in_bound
FROM token_classes
WHERE tokens_hi IS NULL OR tokens_hi > 0
GROUP BY attempt, step
ORDER BY attempt, step

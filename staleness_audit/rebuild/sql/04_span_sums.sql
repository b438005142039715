-- Product: span_sums
-- Stage: part
-- Grain: one row per trajectory that has spans.
-- From: token_spans.
-- Columns:
--   key, twin_lo, twin_hi    of the trajectory; two twins are two trajectories with one key
--   tokens_lo, tokens_hi     sampled tokens of the trajectory (hi null = open)
--   oldest_lo, oldest_hi     version of its oldest unmasked token; null/null = it has none for certain
--   v_end_lo, v_end_hi       version of its last sampled token
--   rises                    no token is newer than the last one: all lie in one span whose versions never decrease
SELECT
    key,
    min(twin) AS twin_lo,
    max(twin) AS twin_hi,
    sum(tokens_lo)::BIGINT AS tokens_lo,
    CASE WHEN count(tokens_hi) = count(*) THEN sum(tokens_hi)::BIGINT END AS tokens_hi,
    min(CASE WHEN loss_hi = 0 THEN NULL ELSE version_lo END) AS oldest_lo,
    min(CASE WHEN loss_lo > 0 THEN version_hi END) AS oldest_hi,
    -- The last span that surely has tokens ends the trajectory, unless one that may be empty comes after it; any of
    -- them may be the last where only some have a time. Both ends of its version travel as one number.
    least(
        (arg_max(ends, exact_order) FILTER (tokens_lo > 0) >> 32)::INTEGER,
        CASE WHEN bool_or(timed) FILTER (tokens_lo > 0) <> bool_and(timed) FILTER (tokens_lo > 0) THEN
            min(version_lo) FILTER (tokens_lo > 0)
        END,
        min(CASE WHEN tokens_lo = 0 AND tokens_hi IS DISTINCT FROM 0 THEN version_lo END)
    ) AS v_end_lo,
    CASE WHEN NOT bool_or(version_hi IS NULL AND tokens_hi IS DISTINCT FROM 0) THEN greatest(
        (nullif(arg_max(ends, exact_order) FILTER (tokens_lo > 0) & 4294967295, 4294967295) - 2147483648)::INTEGER,
        CASE WHEN bool_or(timed) FILTER (tokens_lo > 0) <> bool_and(timed) FILTER (tokens_lo > 0) THEN
            max(version_hi) FILTER (tokens_lo > 0)
        END,
        max(CASE WHEN tokens_lo = 0 AND tokens_hi IS DISTINCT FROM 0 THEN version_hi END)
    ) END AS v_end_hi,
    count(*) FILTER (tokens_hi IS DISTINCT FROM 0) <= 1
        AND NOT coalesce(bool_or(tokens_hi IS DISTINCT FROM 0 AND NOT steady), false) AS rises
FROM (
    -- Versions of damaged logs can be negative; an open end is the largest number.
    SELECT *, version_lo * 4294967296 + coalesce(version_hi + 2147483648, 4294967295) AS ends FROM token_spans
)
GROUP BY key

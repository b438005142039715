-- Query: the generation of the trajectories on the timeline.
-- Grain: one row per trajectory and version (or interval of versions).
-- From: spans.
-- Parameters: keys (of the chosen trajectories).
-- Columns:
--   key, version_lo, version_hi (null = not known)
--   tokens_lo, tokens_hi   sampled tokens (hi null = open)
--   started, ended         microseconds since 1970 of the first and last of them
SELECT
    key_of(trajectory_id) AS key, version_lo, version_hi,
    sum(tokens_lo)::BIGINT AS tokens_lo,
    CASE WHEN count(tokens_hi) = count(*) THEN sum(tokens_hi)::BIGINT END AS tokens_hi,
    epoch_us(min(started)) AS started,
    epoch_us(max(ended)) AS ended
FROM spans
WHERE key_of(trajectory_id) IN (SELECT unnest($keys::UBIGINT[]))
GROUP BY ALL
ORDER BY key, min(coalesce(started, ended)), version_lo

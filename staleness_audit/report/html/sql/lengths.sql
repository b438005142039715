-- Query: how long finished trajectories are, and how many of each length were trained.
-- Grain: one row per bin of lengths, at most $bins of equal width.
-- From: length_classes.
-- Parameters: bins.
-- Columns:
--   first, last          sampled tokens of the shortest and longest that the bin may hold
--   finished, trained    trajectories
WITH reach AS (
    SELECT min(tokens) AS shortest, greatest(ceil((max(tokens) - min(tokens) + 1) / $bins)::BIGINT, 1) AS width FROM length_classes
)
SELECT
    shortest + (tokens - shortest) // width * width AS first,
    shortest + ((tokens - shortest) // width + 1) * width - 1 AS last,
    sum(finished)::BIGINT AS finished,
    sum(trained)::BIGINT AS trained
FROM length_classes CROSS JOIN reach
WHERE tokens IS NOT NULL
GROUP BY ALL
ORDER BY first

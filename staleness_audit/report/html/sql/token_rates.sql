-- Query: tokens generated and trained over time.
-- Grain: one row per bin of time that holds any.
-- From: spans, members, token_classes, step_lives.
-- Parameters: from, width (microseconds), bound (null = none).
-- Columns:
--   bin
--   generated   sampled tokens of training rollouts whose run of tokens ended in it (at least)
--   trained     loss tokens of steps that ended in it and count for certain (at least)
--   in_bound    those that are certainly within the bound
WITH made AS (
    SELECT (epoch_us(coalesce(ended, started)) - $from) // $width AS bin, sum(tokens_lo) AS generated
    FROM spans
    WHERE coalesce(ended, started) IS NOT NULL AND hash(trajectory_id) NOT IN (SELECT key FROM members WHERE NOT training)
    GROUP BY bin
),
used AS (
    SELECT
        (epoch_us(step_lives.ended) - $from) // $width AS bin,
        sum(tokens_lo) AS trained,
        coalesce(sum(tokens_lo) FILTER (WHERE staleness_hi <= $bound), 0) AS in_bound
    FROM token_classes JOIN step_lives ON token_classes.attempt = step_lives.attempt AND token_classes.step = step_lives.step
    WHERE token_classes.certain AND step_lives.ended IS NOT NULL
    GROUP BY bin
)
SELECT
    bin::BIGINT AS bin, coalesce(generated, 0)::BIGINT AS generated, coalesce(trained, 0)::BIGINT AS trained, coalesce(in_bound, 0)::BIGINT AS in_bound
FROM made FULL JOIN used USING (bin)
WHERE bin >= 0
ORDER BY bin

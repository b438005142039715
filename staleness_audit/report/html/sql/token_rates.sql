-- Query: tokens generated and trained over time.
-- Grain: one row per bin of time that holds any.
-- From: spans, members, token_classes, step_lives.
-- Parameters: from, width (microseconds), bound (null = none).
-- Columns:
--   bin
--   generated   sampled tokens of training rollouts whose run of tokens ended in it (at least)
--   trained     loss tokens of steps that count for certain (at least), each step's spread over the time since the one before
--   in_bound    those that are certainly within the bound
WITH made AS (
    SELECT (epoch_us(coalesce(ended, started)) - $from) // $width AS bin, sum(tokens_lo) AS generated
    FROM spans
    WHERE coalesce(ended, started) IS NOT NULL AND key_of(trajectory_id) NOT IN (SELECT key FROM members WHERE NOT training)
    GROUP BY bin
),
steps_ AS (
    -- A step's tokens were trained since the step before it ended.
    SELECT
        attempt, step, epoch_us(ended) AS until,
        greatest(coalesce(lag(epoch_us(ended)) OVER (ORDER BY ended, attempt, step), epoch_us(started), $from), $from) AS since
    FROM step_lives
    WHERE certain AND ended IS NOT NULL
),
sums AS (
    SELECT since, until, sum(tokens_lo) AS trained, coalesce(sum(tokens_lo) FILTER (WHERE staleness_hi <= $bound), 0) AS in_bound
    FROM token_classes JOIN steps_ USING (attempt, step)
    WHERE token_classes.certain
    GROUP BY attempt, step, since, until
),
pieces AS (
    SELECT
        unnest(range((since - $from) // $width, (until - $from) // $width + 1)) AS bin,
        since, until, trained, in_bound
    FROM sums
    WHERE until >= since
),
used AS (
    SELECT bin, sum(trained * share) AS trained, sum(in_bound * share) AS in_bound
    FROM (
        SELECT *, CASE WHEN until = since THEN 1.0
            ELSE (least(until, $from + (bin + 1) * $width) - greatest(since, $from + bin * $width)) / (until - since)::DOUBLE END AS share
        FROM pieces
    )
    GROUP BY bin
)
SELECT
    bin::BIGINT AS bin, coalesce(generated, 0)::BIGINT AS generated, coalesce(trained, 0) AS trained, coalesce(in_bound, 0) AS in_bound
FROM made FULL JOIN used USING (bin)
WHERE bin >= 0
ORDER BY bin

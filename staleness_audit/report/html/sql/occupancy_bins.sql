-- Query: trajectories being generated and waiting in the queue over time, and how long they waited.
-- Grain: one row per bin of time in which something changed.
-- From: trajectory_lives, use_lives, step_lives.
-- Parameters: from, until, width (microseconds).
-- Columns:
--   bin
--   flight_change, queue_change   how many more there are at its end than at its beginning
--   flight_part, queue_part       what the changes inside add to its average
--   left_queue                    trajectories taken from the queue in it
--   age_median, age_p90, age_max  how long these had waited, in microseconds
WITH taken AS (
    SELECT key, epoch_us(min(started)) AS moment FROM use_lives JOIN step_lives USING (step_key) GROUP BY key
),
lives AS (
    SELECT
        coalesce(started, admitted) AS born,
        coalesce(finished, enqueued, ended, CASE WHEN NOT has_finished THEN $until END) AS done,
        CASE WHEN has_finished THEN coalesce(enqueued, finished) END AS queued,
        coalesce(sampled, taken.moment, ended, $until) AS gone,
        coalesce(sampled, taken.moment) AS used
    FROM trajectory_lives LEFT JOIN taken USING (key)
    WHERE NOT anonymous
),
changes AS (
    SELECT greatest(born, $from) AS moment, 1 AS flight, 0 AS queue, NULL::BIGINT AS age FROM lives WHERE born IS NOT NULL AND done >= born
    UNION ALL SELECT done, -1, 0, NULL FROM lives WHERE born IS NOT NULL AND done >= born
    UNION ALL SELECT greatest(queued, $from), 0, 1, NULL FROM lives WHERE queued IS NOT NULL AND gone >= queued
    UNION ALL SELECT gone, 0, -1, CASE WHEN used IS NOT NULL THEN gone - queued END FROM lives WHERE queued IS NOT NULL AND gone >= queued
)
SELECT
    ((moment - $from) // $width)::BIGINT AS bin,
    sum(flight)::BIGINT AS flight_change,
    sum(queue)::BIGINT AS queue_change,
    -- A change in the middle of a bin counts for the part of it that is left.
    sum(flight * (1 - (moment - $from) % $width / $width::DOUBLE)) AS flight_part,
    sum(queue * (1 - (moment - $from) % $width / $width::DOUBLE)) AS queue_part,
    count(age) AS left_queue,
    quantile_cont(age, 0.5) AS age_median, quantile_cont(age, 0.9) AS age_p90, max(age) AS age_max
FROM changes
WHERE moment < $until
GROUP BY bin
ORDER BY bin

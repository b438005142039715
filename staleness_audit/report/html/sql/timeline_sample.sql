-- Query: the trajectories that the timeline shows: the listed violations, their neighbours, and others evenly spread.
-- Grain: one row per chosen trajectory, in the order in which they began.
-- From: trajectory_lives, members.
-- Parameters: worst (ids), near and spread (how many neighbours, how many others), timed (order by times, else by versions).
-- Columns:
--   key, trajectory_id, fates
--   chosen               'worst', 'near' or 'spread'
--   admitted, started, finished, enqueued, sampled, ended   microseconds since 1970
--   oldest_lo, v_end_lo, v_end_hi                           versions
--   nth, everyone, timed   its place among all, how many there are, how many of these have times
WITH lives AS (
    SELECT
        *,
        CASE WHEN $timed THEN coalesce(started, admitted, finished, enqueued) ELSE coalesce(oldest_lo, 0) * 1000000 + coalesce(v_end_lo, 0) END AS born
    FROM trajectory_lives
    WHERE NOT anonymous
),
ordered AS (
    SELECT
        key, row_number() OVER (ORDER BY born, key) AS nth, count(*) OVER () AS everyone,
        key IN (SELECT key_of(id) FROM (SELECT unnest($worst::VARCHAR[]) AS id)) AS is_worst,
        staleness_lo
    FROM lives
    WHERE born IS NOT NULL
),
focus AS (
    -- The first of the listed violations; without any, the most stale trajectory.
    SELECT coalesce(
        min(nth) FILTER (WHERE key = key_of(list_extract($worst::VARCHAR[], 1))),
        arg_max(nth, coalesce(staleness_lo, -1)),
        1
    ) AS nth
    FROM ordered
),
picked AS (
    SELECT
        key, ordered.nth, everyone,
        CASE WHEN is_worst THEN 'worst' WHEN abs(ordered.nth - focus.nth) <= $near // 2 THEN 'near' ELSE 'spread' END AS chosen
    FROM ordered CROSS JOIN focus
    WHERE is_worst
       OR abs(ordered.nth - focus.nth) <= $near // 2
       OR (ordered.nth - 1) % greatest(ceil(everyone / $spread)::BIGINT, 1) = 0
)
SELECT
    picked.key, members.trajectory_id, lives.fates, chosen,
    lives.admitted, lives.started, lives.finished, lives.enqueued, lives.sampled, lives.ended,
    lives.oldest_lo, lives.v_end_lo, lives.v_end_hi, picked.nth, everyone
FROM picked
JOIN lives ON lives.key = picked.key
JOIN members ON members.key = picked.key
ORDER BY picked.nth

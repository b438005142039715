-- Product: occupancy
-- Publish: yes
-- Grain: one row.
-- From: trajectory_lives, use_lives, step_lives.
-- Columns:
--   wall_started, wall_ended   start of the first and end of the last step that counts, microseconds since 1970
--   busy_us                    sum of the durations of those steps
--   waited_us                  sum of their waits, but the first's, which came before (null if not logged for all)
--   in_flight_us, queued_us    trajectory-microseconds inside that time (null if no times are logged)
--   timed, trajectories        trajectories with times, and all
WITH wall AS (
    SELECT
        epoch_us(min(started)) AS wall_started,
        epoch_us(max(ended)) AS wall_ended,
        CASE WHEN count(started) = count(*) AND count(ended) = count(*) THEN sum(epoch_us(ended) - epoch_us(started))::BIGINT END AS busy_us,
        -- The wait before the first step lies before the time that is looked at.
        CASE WHEN count(waited_us) > 0 AND count(*) - count(waited_us) <= 1
            THEN coalesce(sum(waited_us) FILTER (started IS NULL OR started > first_started), 0)::BIGINT END AS waited_us
    FROM (SELECT *, min(started) OVER () AS first_started FROM step_lives WHERE certain)
),
taken AS (
    SELECT key, epoch_us(min(started)) AS moment
    FROM use_lives JOIN step_lives USING (step_key)
    GROUP BY key
),
lives AS (
    SELECT
        coalesce(trajectory_lives.started, trajectory_lives.admitted) AS born,
        coalesce(trajectory_lives.finished, trajectory_lives.enqueued, trajectory_lives.ended, CASE WHEN NOT has_finished THEN wall_ended END) AS done,
        has_finished,
        coalesce(trajectory_lives.enqueued, trajectory_lives.finished) AS queued,
        coalesce(trajectory_lives.sampled, taken.moment, trajectory_lives.ended, wall_ended) AS gone,
        wall_started, wall_ended
    FROM trajectory_lives CROSS JOIN wall LEFT JOIN taken USING (key)
    WHERE NOT anonymous
)
SELECT
    any_value(wall.wall_started) AS wall_started,
    any_value(wall.wall_ended) AS wall_ended,
    any_value(busy_us) AS busy_us,
    any_value(waited_us) AS waited_us,
    sum(greatest(least(done, lives.wall_ended) - greatest(born, lives.wall_started), 0))::BIGINT AS in_flight_us,
    -- greatest() passes over nulls: who never waited must not wait from the start.
    coalesce(sum(greatest(least(gone, lives.wall_ended) - greatest(queued, lives.wall_started), 0))
        FILTER (has_finished AND queued IS NOT NULL), 0)::BIGINT AS queued_us,
    count(born) FILTER (done IS NOT NULL AND (queued IS NOT NULL OR NOT has_finished)) AS timed,
    count(lives.wall_started) AS trajectories
FROM wall LEFT JOIN lives ON true

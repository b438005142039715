-- Product: occupancy_sums
-- Stage: part
-- Grain: one row.
-- From: trajectory_lives, use_lives, step_lives.
-- Columns:
--   in_flight_us, queued_us, timed, trajectories   as in occupancy
WITH wall AS (
    SELECT epoch_us(min(started)) AS wall_started, epoch_us(max(ended)) AS wall_ended FROM step_lives WHERE certain
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
    sum(greatest(least(done, wall_ended) - greatest(born, wall_started), 0))::BIGINT AS in_flight_us,
    -- greatest() passes over nulls: who never waited must not wait from the start.
    coalesce(sum(greatest(least(gone, wall_ended) - greatest(queued, wall_started), 0))
        FILTER (has_finished AND queued IS NOT NULL), 0)::BIGINT AS queued_us,
    count(born) FILTER (done IS NOT NULL AND (queued IS NOT NULL OR NOT has_finished)) AS timed,
    count(wall_started) AS trajectories
FROM lives

-- Product: occupancy
-- Publish: yes
-- Stage: whole
-- Grain: one row.
-- From: occupancy_sums, step_lives.
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
lives AS (
    SELECT
        sum(in_flight_us)::BIGINT AS in_flight_us, sum(queued_us)::BIGINT AS queued_us,
        sum(timed)::BIGINT AS timed, sum(trajectories)::BIGINT AS trajectories
    FROM occupancy_sums
)
SELECT * FROM wall CROSS JOIN lives

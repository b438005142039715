-- Product: ids
-- Grain: one row per trajectory (or anonymous class) that any table names.
-- From: trajectories, spans, uses, events.
-- Columns:
--   key            number that stands for the trajectory in the products below
--   trajectory_id  its name
SELECT row_number() OVER () AS key, trajectory_id
FROM (
    SELECT DISTINCT trajectory_id
    FROM (
        SELECT trajectory_id FROM trajectories
        UNION ALL SELECT trajectory_id FROM spans
        UNION ALL SELECT trajectory_id FROM uses
        UNION ALL SELECT trajectory_id FROM events
    )
    WHERE trajectory_id IS NOT NULL
)

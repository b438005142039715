-- Product: strays
-- Stage: part
-- Grain: one row per trajectory that spans, uses or events mention and no row of `trajectories` describes.
-- From: described, span_sums, use_rows, life_events, spans, uses, events.
-- Columns:
--   key, trajectory_id
WITH mentioned AS (
    SELECT DISTINCT key
    FROM (SELECT key FROM span_sums UNION ALL SELECT key FROM use_rows UNION ALL SELECT key FROM life_events)
    ANTI JOIN described USING (key)
)
SELECT key, min(trajectory_id) AS trajectory_id
FROM (
    SELECT key_of(trajectory_id) AS key, trajectory_id FROM spans WHERE EXISTS (SELECT 1 FROM mentioned)
    UNION ALL SELECT key_of(trajectory_id), trajectory_id FROM uses WHERE EXISTS (SELECT 1 FROM mentioned)
    UNION ALL SELECT key_of(trajectory_id), trajectory_id FROM events WHERE EXISTS (SELECT 1 FROM mentioned)
)
WHERE key IN (SELECT key FROM mentioned)
GROUP BY key

-- Grain: one request.
--   final                 a row after its admission tells its final generated, v_min, v_max
--   generated_lo/hi       equal, unless its rows contradict each other
--   completed, discarded  it reached its target length; it has a drop row
--   rows, last_line       how many rows it has, and the last of them: as a stream only grows, they tell all of its rows
--   end_line, end_t       its complete row, or its drop row if it was cancelled
CREATE TEMP TABLE req AS
SELECT
    attempt, rid, any_value(source) AS source,
    count(*) AS rows, min(line) AS first_line, max(line) AS last_line,
    min(line) FILTER (event = 'admit') AS admit_line,
    min(line) FILTER (event IN ('complete', 'drop')) AS end_line,
    max(line) FILTER (event <> 'admit') AS final_line,
    coalesce(min(admit_time), min(t) FILTER (event = 'admit')) AS admit_time,
    coalesce(
        min(complete_time), min(t) FILTER (event = 'complete'), min(t) FILTER (event = 'drop')
    ) AS end_t,
    min(v_traj) AS v_traj, max(instance_id) AS instance_id,
    max(prompt_len) AS prompt_len, max(target_len) AS target_len,
    bool_or(complete_time IS NOT NULL OR event IN ('complete', 'consume')) AS completed,
    bool_or(event = 'drop') AS discarded,
    bool_or(event <> 'admit') AS final,
    max(consume_version) AS consume_version,
    min(generated) FILTER (event <> 'admit') AS generated_lo,
    max(generated) FILTER (event <> 'admit') AS generated_hi,
    min(v_min) FILTER (event <> 'admit') AS v_min,
    max(v_max) FILTER (event <> 'admit') AS v_max
FROM request
GROUP BY attempt, rid

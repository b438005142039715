-- What the simulator says of itself, per step. n_dropped_step counts requests that expire at the update, which are here
-- called cancelled; drops at completion are not in it. total_tokens includes prompts.
WITH figures AS (
    SELECT attempt, k, t, 'step.staleness_max' AS name, 'staleness_true' AS raw_name, reported_true AS value,
        source, line
    FROM step
    UNION ALL
    SELECT attempt, k, t, 'step.in_queue_max', 'staleness_reported', reported_last, source, line
    FROM step
    UNION ALL
    SELECT attempt, k, ended, 'step.trajectories', 'n_reqs', n_reqs, train_source, train_line
    FROM step
    UNION ALL
    SELECT attempt, k, ended, 'step.cancelled', 'n_dropped_step', n_dropped_step, train_source, train_line
    FROM step
    UNION ALL
    SELECT attempt, k, ended, NULL, 'total_tokens', total_tokens, train_source, train_line
    FROM step
)
SELECT
    attempt, k + 1 AS step, moment(t, sim.shift) AS ts, name, raw_name, value::DOUBLE AS value,
    'recorded' AS evidence, source, line
FROM figures
JOIN simulation sim USING (attempt)
WHERE value IS NOT NULL

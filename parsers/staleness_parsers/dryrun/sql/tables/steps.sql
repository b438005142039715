-- One row per training step; its number is the `version` of its train row, k + 1. The trainer waits for data from the
-- end of one step to the start of the next; a later simulation's trainer waits for its first step from time 0 on.
SELECT
    attempt, k + 1 AS step, k AS v_train_lo, k AS v_train_hi,
    moment(t, sim.shift) AS started, moment(step.ended, sim.shift) AS ended,
    (round(t * 1e6) - round(CASE
        WHEN k > 0 THEN lag(step.ended) OVER (PARTITION BY attempt ORDER BY k)
        WHEN attempt > 0 THEN 0
    END * 1e6))::BIGINT AS waited_us,
    1 AS updates, completed,
    CASE WHEN train_line IS NOT NULL THEN 'recorded' ELSE 'derived' END AS evidence,
    coalesce(train_source, source) AS source, coalesce(train_line, line) AS line
FROM step
JOIN simulation sim USING (attempt)

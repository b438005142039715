-- Finished requests among which those must be that a step counts and no consume row names: to be left over is only one
-- of their possible fates. (The other is to have been trained; the step's count stands for it.)
SELECT
    1099511627776 AS seq, unnest(['pending', 'lost']) AS kind, trajectory_name(attempt, rid) AS trajectory_id, attempt,
    1 AS multiplicity, 'unknown' AS reason, 'inferred' AS evidence, source, coalesce(final_line, first_line) AS line
FROM block_lives
WHERE perhaps_used

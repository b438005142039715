-- What an earlier simulation left unused when it ended, while the folder went on to the next one.
SELECT
    1099511627776 AS seq, moment(sim.finish, sim.shift) AS ts, 'lost' AS kind,
    trajectory_name(attempt, rid) AS trajectory_id, attempt, 1 AS multiplicity,
    'other:simulation_ended' AS reason, 'derived' AS evidence, source, coalesce(final_line, first_line) AS line
FROM block_lives
JOIN simulation sim USING (attempt)
WHERE left_over

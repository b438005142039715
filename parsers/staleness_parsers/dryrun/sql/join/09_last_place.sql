-- Grain: the last occupancy row of an instance, which tells what unfinished requests have made.
--   covers    it is as late as all else in the simulation and the stream is undamaged: no later row has been lost
CREATE TEMP TABLE last_place AS
SELECT
    source, attempt, max(line) AS line, max_by("start", line) AS "start", max_by(size, line) AS size,
    max_by(t, line) AS t, max_by(t, line) >= any_value(simulation.finish)
        AND source NOT IN (SELECT source FROM dryrun_damage WHERE NOT cut) AS covers
FROM instance
JOIN simulation USING (attempt)
WHERE attempt IN (SELECT attempt FROM cand WHERE NOT final)
GROUP BY source, attempt

-- Grain: one request, with what else its rows of the event tables depend on. Requests of neighbouring numbers are of one
-- era.
--   left_over       an earlier simulation left it unused when it ended, at ended_at
--   perhaps_used    finished and unused, while steps count more members than consume rows name
CREATE TEMP VIEW lives AS
SELECT flagged.*, CASE WHEN left_over THEN sim.finish END AS ended_at, era_of(attempt, rid) AS era
FROM (
    SELECT
        req.*,
        attempt < (SELECT max(attempt) FROM simulation) AND NOT discarded AND NOT EXISTS (
            FROM step WHERE step.attempt = req.attempt AND k = consume_version AND completed IS NOT false
        ) AS left_over,
        final AND NOT discarded AND consume_version IS NULL AND attempt = (SELECT max(attempt) FROM simulation)
            AND attempt IN (SELECT attempt FROM step WHERE members < n_reqs) AS perhaps_used
    FROM req
) flagged
JOIN simulation sim USING (attempt)

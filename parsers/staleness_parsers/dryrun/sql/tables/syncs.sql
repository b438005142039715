-- One row per update at which the engines take a newer version.
SELECT
    attempt, v_lo AS version_lo, v_hi AS version_hi,
    moment(t, sim.shift) AS started, moment(t, sim.shift) AS ended,
    CASE WHEN v_lo = v_hi THEN 'derived' ELSE 'inferred' END AS evidence, source, line
FROM step
JOIN simulation sim USING (attempt)
WHERE t IS NOT NULL
QUALIFY v_hi > coalesce(lag(v_lo) OVER (PARTITION BY attempt ORDER BY k), 0)

-- Query: what was thrown away, by reason, over training steps.
-- Grain: one row per (attempt, step) then being collected and fate; step null where the logs don't tell.
-- From: trajectory_lives, step_lives.
-- Columns:
--   attempt, step
--   fate                kind:reason, of trajectories whose fate is certain
--   trajectories, tokens   how many, and their sampled tokens (at least)
WITH gone AS (
    SELECT key, fates AS fate, fate_attempt, fate_step, ended, multiplicity_lo, tokens_lo
    FROM trajectory_lives
    WHERE NOT contains(fates, chr(31)) AND (starts_with(fates, 'dropped:') OR starts_with(fates, 'cancelled:') OR starts_with(fates, 'lost:'))
)
SELECT
    CASE WHEN gone.fate_step IS NOT NULL THEN gone.fate_attempt ELSE next.attempt END AS attempt,
    coalesce(gone.fate_step, next.step) AS step,
    gone.fate,
    sum(multiplicity_lo)::BIGINT AS trajectories,
    sum(tokens_lo)::BIGINT AS tokens
FROM gone
-- The step being collected is the logged one, else the first that began after it was gone.
ASOF LEFT JOIN (SELECT epoch_us(started) AS moment, attempt, step FROM step_lives WHERE started IS NOT NULL AND possible) AS next
    ON gone.ended <= next.moment
GROUP BY ALL
ORDER BY attempt, step, fate

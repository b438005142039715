-- Product: drop_sums
-- Stage: part
-- Grain: one row per reason and age interval of trajectories that were, or may have been, dropped as stale or with their group.
-- From: trajectory_lives, step_lives.
-- Columns:
--   certain, age_lo, age_hi, trajectories_lo, trajectories_hi, tokens_lo, tokens_hi   as in drop_classes
WITH dropped AS (
    SELECT *, fates IN ('dropped:stale', 'dropped:group') AS certain
    FROM trajectory_lives
    -- A reason that is not known may be one of the two.
    WHERE list_has_any(string_split(fates, chr(31)), ['dropped:stale', 'dropped:group', 'dropped:unknown'])
),
-- The step being collected is the logged one, else the first that began after the drop.
collected AS (
    SELECT
        dropped.key,
        max(coalesce(logged.v_train_lo, dropped.fate_v_lo, next.v_train_lo)) AS v_lo,
        max(coalesce(logged.v_train_hi, dropped.fate_v_hi, next.v_train_hi)) AS v_hi
    FROM dropped
    LEFT JOIN step_lives AS logged ON logged.step = dropped.fate_step AND logged.attempt = dropped.fate_attempt
    ASOF LEFT JOIN (SELECT epoch_us(started) AS moment, v_train_lo, v_train_hi FROM step_lives WHERE started IS NOT NULL) AS next
        ON dropped.ended <= next.moment
    GROUP BY dropped.key
)
SELECT
    certain,
    CASE WHEN v_lo IS NOT NULL AND oldest_hi IS NOT NULL THEN v_lo - oldest_hi END AS age_lo,
    CASE WHEN v_hi IS NOT NULL AND oldest_lo IS NOT NULL THEN v_hi - oldest_lo END AS age_hi,
    sum(multiplicity_lo)::BIGINT AS trajectories_lo,
    CASE WHEN count(multiplicity_hi) = count(*) THEN sum(multiplicity_hi)::BIGINT END AS trajectories_hi,
    sum(tokens_lo)::BIGINT AS tokens_lo,
    CASE WHEN count(tokens_hi) = count(*) THEN sum(tokens_hi)::BIGINT END AS tokens_hi
FROM dropped JOIN collected USING (key)
GROUP BY ALL

-- Query: what the trainer did and when weights were published.
-- Grain: one row per training step that counts or may count, and one per publication; at most $most of each, those
--   between from and until first, then others evenly spread.
-- From: step_lives, syncs.
-- Parameters: most, from, until (microseconds since 1970).
-- Columns:
--   lane               'step' or 'sync'
--   attempt, step      of a training step
--   version_lo, version_hi   that it starts from, or that is published
--   started, ended, waited_us   microseconds since 1970; how long the trainer waited before it
--   everyone           how many there are
WITH rows_ AS (
    SELECT 'step' AS lane, attempt, step, v_train_lo AS version_lo, v_train_hi AS version_hi,
        epoch_us(started) AS started, epoch_us(ended) AS ended, waited_us
    FROM step_lives WHERE possible
    UNION ALL
    SELECT 'sync', coalesce(attempt, 0), NULL, version_lo, version_hi, epoch_us(min(started)), epoch_us(max(ended)), NULL
    FROM syncs
    GROUP BY coalesce(attempt, 0), version_lo, version_hi, CASE WHEN version_lo IS NULL THEN coalesce(started, ended) END
),
numbered AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY lane ORDER BY coalesce(started, ended), attempt, step) AS nth,
        count(*) OVER (PARTITION BY lane) AS everyone
    FROM rows_
    WHERE coalesce(started, ended) IS NOT NULL OR $from IS NULL
)
SELECT * EXCLUDE (nth)
FROM numbered
WHERE everyone <= $most
   OR coalesce(ended, started) BETWEEN $from AND $until
   OR nth % ceil(everyone / $most)::BIGINT = 0
ORDER BY lane, coalesce(started, ended), attempt, step
LIMIT 4 * $most

-- Grain: one row of `spans`: neighbouring pieces of one version are one; requests of a single version are one anyway.
--   evidence    recorded: the request's own row says it; derived: by the join; inferred: an interval
CREATE OR REPLACE TEMP TABLE span AS
WITH marked AS (
    SELECT
        *,
        coalesce(version_lo = version_hi, false) AND coalesce(lag(version_lo) OVER life = version_lo, false)
            AND coalesce(lag(version_hi) OVER life = version_hi, false) AS same
    FROM piece
    WINDOW life AS (PARTITION BY attempt, rid ORDER BY pos, side)
),
numbered AS (
    SELECT *, count(*) FILTER (NOT same) OVER (PARTITION BY attempt, rid ORDER BY pos, side) AS island FROM marked
),
joined AS (
    SELECT
        attempt, rid, island, sum(lo)::BIGINT AS lo,
        CASE WHEN bool_and(hi IS NOT NULL) THEN sum(hi)::BIGINT END AS hi,
        any_value(version_lo) AS version_lo, any_value(version_hi) AS version_hi,
        min(started) AS started, max(ended) AS ended,
        max_by(source, (pos, side)) AS source, max_by(line, (pos, side)) AS line,
        CASE WHEN bool_and(version_lo = version_hi AND lo = hi) THEN 'derived' ELSE 'inferred' END AS evidence
    FROM numbered
    GROUP BY attempt, rid, island
    UNION ALL BY NAME
    SELECT
        attempt, rid, 0 AS island, generated_lo AS lo, generated_hi AS hi, v_min AS version_lo, v_max AS version_hi,
        admit_time AS started, end_t AS ended, source, final_line AS line, 'recorded' AS evidence
    FROM block_lives
    WHERE final AND v_min = v_max AND generated_hi > 0
)
SELECT
    *,
    row_number() OVER (PARTITION BY attempt, rid ORDER BY island) - 1 AS span_index,
    CASE WHEN coalesce(bool_and(hi IS NOT DISTINCT FROM lo) OVER earlier, true)
        THEN coalesce(sum(lo) OVER earlier, 0)::BIGINT END AS token_start
FROM joined
WINDOW earlier AS (PARTITION BY attempt, rid ORDER BY island ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)

-- Grain: tokens a candidate made between two moments at which its count is known (guide 3, rule 4).
--   lo, hi                    how many (hi null = open)
--   version_lo, version_hi    versions served in between, within the request's own v_min and v_max
--   bad                       the streams contradict each other (rule 5): one chunk holds only what its own rows say
CREATE OR REPLACE TEMP TABLE chunk AS
WITH numbered AS (
    SELECT *, sum(known::INTEGER) OVER (PARTITION BY attempt, rid ORDER BY pos) AS number FROM point
),
moment AS (  -- an update with an unknown count is swallowed: its version widens the interval of the moment before
    SELECT
        attempt, rid, number, min(pos) AS pos, min(t) AS t, max(g_lo) AS g_lo, max(g_hi) AS g_hi,
        min(v_lo) AS v_lo, max(v_hi) AS v_hi,
        max(source) FILTER (known) AS source, max(line) FILTER (known) AS line
    FROM numbered
    GROUP BY attempt, rid, number
),
cut AS (
    SELECT
        attempt, rid, pos, t AS started, v_lo, v_hi,
        lead(pos) OVER life AS next_pos, lead(t) OVER life AS ended,
        lead(g_lo) OVER life - g_lo AS lo, lead(g_hi) OVER life - g_lo AS hi,
        lead(source) OVER life AS source, lead(line) OVER life AS line
    FROM moment
    WINDOW life AS (PARTITION BY attempt, rid ORDER BY number)
    QUALIFY lead(number) OVER life IS NOT NULL
),
clipped AS (
    SELECT
        cut.*, c.final, c.v_min, c.v_max,
        greatest(cut.v_lo, CASE WHEN c.final THEN c.v_min END) AS version_lo,
        CASE
            WHEN c.final THEN least(cut.v_hi, c.v_max)
            WHEN next_pos < 1099511627776 OR attempt NOT IN (SELECT attempt FROM torn) THEN cut.v_hi
        END AS version_hi
    FROM cut
    JOIN block_cands c USING (attempt, rid)
    WHERE lo <> 0 OR hi IS NULL OR hi <> 0
),
judged AS (
    SELECT
        attempt, rid,
        coalesce(bool_or(lo < 0 OR hi < 0 OR version_lo > version_hi), false) OR coalesce(
            bool_and(final) AND (min(version_lo) <> any_value(v_min) OR max(version_hi) <> any_value(v_max)), false
        ) AS bad
    FROM clipped
    GROUP BY attempt, rid
),
blunt AS (
    SELECT
        attempt, rid, 0 AS pos, c.admit_time AS started, c.end_t AS ended, p.g_lo AS lo, p.g_hi AS hi,
        p.source, p.line, c.final, c.v_min, c.v_max, true AS bad,
        coalesce(CASE WHEN c.final THEN c.v_min END, c.v_traj) AS version_lo,
        CASE
            WHEN c.final THEN coalesce(c.v_max, c.k_hi + 1)
            WHEN attempt NOT IN (SELECT attempt FROM torn) THEN c.k_hi + 1
        END AS version_hi
    FROM judged
    JOIN block_cands c USING (attempt, rid)
    JOIN point p USING (attempt, rid)
    WHERE judged.bad AND p.pos = 1099511627776
)
SELECT * EXCLUDE (v_lo, v_hi, next_pos) FROM clipped JOIN judged USING (attempt, rid) WHERE NOT bad
UNION ALL BY NAME
SELECT * FROM blunt

-- Grain: a chunk, or its first or last token where that is known better than the rest: versions never decrease inside a
-- request, so the first token of all is of v_min and the last one of v_max.
CREATE OR REPLACE TEMP TABLE piece AS
WITH placed AS (
    SELECT
        *,
        final AND hi = lo AND version_lo < version_hi AS wide,
        wide AND version_lo = v_min AND row_number() OVER life = 1 AS head,
        wide AND version_hi = v_max AND lead(pos) OVER life IS NULL AS tail
    FROM chunk
    WINDOW life AS (PARTITION BY attempt, rid ORDER BY pos)
),
counted AS (
    SELECT
        *,
        CASE WHEN head AND lo > coalesce(tail, false)::INTEGER THEN 1 ELSE 0 END AS first_tokens,
        CASE WHEN tail AND lo > coalesce(head, false)::INTEGER THEN 1 ELSE 0 END AS last_tokens
    FROM placed
)
SELECT
    attempt, rid, pos, 0 AS side, 1 AS lo, 1 AS hi, v_min AS version_lo, v_min AS version_hi, started,
    NULL::DOUBLE AS ended, source, line
FROM counted
WHERE first_tokens = 1
UNION ALL
SELECT
    attempt, rid, pos, 1, lo - first_tokens - last_tokens, hi - first_tokens - last_tokens, version_lo, version_hi,
    started, ended, source, line
FROM counted
WHERE hi IS NULL OR hi > first_tokens + last_tokens
UNION ALL
SELECT attempt, rid, pos, 2, 1, 1, v_max, v_max, NULL, ended, source, line
FROM counted
WHERE last_tokens = 1

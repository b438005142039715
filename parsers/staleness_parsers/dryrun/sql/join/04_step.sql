-- Grain: one training step of a simulation, also one that left no row but must have been, because a later one did.
--   k                 version it started from
--   t, first_line     update instant T_k and first line of its consume rows (t from the train row if there are none)
--   members           its consume rows; prompts = their prompt tokens
--   served_lo/hi      versions given to requests admitted between this update and the next: what the engines served
--   rule              what the policy's rule says they serve: slime the last multiple of its interval N, others k + 1
--   v_lo, v_hi        what is taken: admissions first, then the rule. Of an unknown policy, anything up to k + 1,
--                     unless k + 1 itself was seen once: slime never serves it, and all others always do. v_hi also
--                     covers steps right after it whose time is unknown
--   completed         its train row, a later step or the summary on stdout says so; without any of them it was cut
--                     short, unless train rows may be lost (then null)
CREATE TEMP TABLE step AS
WITH consumed AS (
    SELECT
        attempt, consume_version AS k, min(t) AS t, min(line) AS first_line, arg_min(source, line) AS source,
        count(*) AS members, sum(prompt_len) AS prompts,
        max(staleness_true) AS reported_true, max(staleness_reported) AS reported_last
    FROM request
    WHERE event = 'consume'
    GROUP BY attempt, consume_version
),
served AS (
    SELECT a.attempt, c.k, min(a.v_traj) AS lo, max(a.v_traj) AS hi
    FROM (FROM request WHERE event = 'admit') a
    ASOF JOIN consumed c ON a.attempt = c.attempt AND a.line > c.first_line
    GROUP BY a.attempt, c.k
),
known AS (
    SELECT
        coalesce(c.attempt, w.attempt) AS attempt, coalesce(c.k, w.k) AS k, coalesce(c.t, w."start") AS t,
        c.first_line, coalesce(c.members, 0) AS members, coalesce(c.prompts, 0) AS prompts,
        c.reported_true, c.reported_last,
        coalesce(c.source, w.source) AS source, coalesce(c.first_line, w.line) AS line,
        w."end" AS ended, w.n_reqs, w.total_tokens, w.n_dropped_step, w.source AS train_source, w.line AS train_line
    FROM consumed c
    FULL JOIN train w ON c.attempt = w.attempt AND c.k = w.k
),
whole AS (
    SELECT attempt, unnest(generate_series(0, max(k))) AS k FROM known GROUP BY attempt
),
dated AS (
    SELECT
        whole.attempt, whole.k, known.* EXCLUDE (attempt, k),
        count(known.t) OVER (PARTITION BY whole.attempt ORDER BY whole.k) AS dated
    FROM whole
    LEFT JOIN known USING (attempt, k)
)
SELECT
    step.* EXCLUDE (dated), served.lo AS served_lo, served.hi AS served_hi,
    CASE WHEN s.push_interval > 0 THEN step.k // s.push_interval * s.push_interval ELSE step.k + 1 END AS rule,
    coalesce(
        served.lo,
        CASE WHEN s.rule_known OR bool_or(served.hi > step.k) OVER (PARTITION BY step.attempt) THEN rule ELSE 0 END
    ) AS v_lo,
    max(coalesce(served.hi, rule)) OVER (PARTITION BY step.attempt, step.dated) AS v_hi,
    CASE
        WHEN train_line IS NOT NULL OR step.k < s.announced THEN true
        WHEN step.k < max(step.k) OVER (PARTITION BY step.attempt) THEN true
        WHEN s.train_whole THEN false
    END AS completed
FROM dated step
JOIN simulation s USING (attempt)
LEFT JOIN served USING (attempt, k)

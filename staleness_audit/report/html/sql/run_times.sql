-- Query: between which moments anything is logged, and how much of it.
-- Grain: one row.
-- From: trajectory_lives, step_lives, spans.
-- Columns:
--   first, last            microseconds since 1970 (null = no times)
--   steps, timed_steps     training steps that count for certain, and those of them with an end
--   spans, timed_spans     runs of tokens, and those with a time
--   lives, timed_lives     named trajectories, and those whose beginning and end are known
WITH lives AS (
    SELECT
        coalesce(started, admitted) AS born,
        coalesce(finished, enqueued, ended) AS done,
        has_finished
    FROM trajectory_lives WHERE NOT anonymous
),
moments AS (
    SELECT least(min(born), min(done)) AS first, greatest(max(born), max(done)) AS last,
        count(*) AS lives, count(born) FILTER (WHERE done IS NOT NULL OR NOT has_finished) AS timed_lives
    FROM lives
),
steps_ AS (
    SELECT epoch_us(min(coalesce(started, ended))) AS first, epoch_us(max(coalesce(ended, started))) AS last,
        count(*) AS steps, count(ended) AS timed_steps
    FROM step_lives WHERE certain
),
spans_ AS (SELECT count(*) AS spans, count(coalesce(ended, started)) AS timed_spans FROM spans)
SELECT
    least(moments.first, steps_.first) AS first, greatest(moments.last, steps_.last) AS last,
    steps, timed_steps, spans, timed_spans, lives, timed_lives
FROM moments, steps_, spans_

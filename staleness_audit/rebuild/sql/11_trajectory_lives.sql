-- Product: trajectory_lives
-- Publish: yes
-- Grain: one row per training trajectory (or anonymous class).
-- From: members, span_sums, distinct_tokens, life_events, attempts, use_rows, step_lives, uses.
-- Columns:
--   key, trajectory_id, group_id, grouped, attempt, anonymous, multiplicity_lo, multiplicity_hi, prompt_tokens
--   tokens_lo, tokens_hi        sampled tokens (hi null = open)
--   oldest_lo, oldest_hi        version of its oldest unmasked token
--   v_end_lo, v_end_hi          version of its last sampled token
--   trained                     took part in a step that counts for certain
--   maybe_trained               only in steps that may count
--   staleness_lo, staleness_hi, staleness_sure, worst_sure_lo   of its worst use
--   trained_lo, trained_hi      tokens trained at least once
--   fates                       possible fates as `kind:reason`; one = certain. `trained:` never stands beside a certain training
--   has_finished, admitted, started, finished, enqueued, sampled, ended   microseconds since 1970
--   fate_step, fate_v_lo, fate_v_hi
WITH rolled AS (
    SELECT DISTINCT members.key
    FROM uses
    JOIN step_lives ON coalesce(uses.attempt, 0) = step_lives.attempt AND uses.step = step_lives.step AND step_lives.rolled_back
    JOIN members USING (trajectory_id)
),
elsewhere AS (
    -- An audit of some steps leaves out what was trained in others.
    SELECT DISTINCT members.key
    FROM uses JOIN members USING (trajectory_id)
    WHERE uses.step NOT BETWEEN getvariable('first_step') AND getvariable('last_step')
),
last_attempt AS (SELECT max(attempt) AS attempt FROM attempts)
SELECT
    members.* EXCLUDE (training),
    coalesce(span_sums.tokens_lo, 0) AS tokens_lo,
    CASE WHEN span_sums.key IS NOT NULL THEN span_sums.tokens_hi WHEN distinct_tokens.key IS NULL THEN 0 END AS tokens_hi,
    span_sums.oldest_lo, span_sums.oldest_hi, span_sums.v_end_lo, span_sums.v_end_hi,
    coalesce(distinct_tokens.trained, false) AS trained,
    distinct_tokens.key IS NOT NULL AND NOT distinct_tokens.trained AS maybe_trained,
    distinct_tokens.staleness_lo, distinct_tokens.staleness_hi,
    coalesce(distinct_tokens.staleness_sure, false) AS staleness_sure,
    distinct_tokens.worst_sure_lo,
    coalesce(distinct_tokens.trained_lo, 0) AS trained_lo,
    CASE WHEN distinct_tokens.key IS NULL THEN 0 ELSE distinct_tokens.trained_hi END AS trained_hi,
    CASE
        WHEN distinct_tokens.trained THEN ['trained:']
        ELSE list_concat(
            CASE WHEN distinct_tokens.key IS NOT NULL THEN ['trained:'] ELSE [] END,
            CASE
                WHEN life_events.fate IS NOT NULL THEN [life_events.fate || ':' || life_events.reason]
                WHEN life_events.options IS NOT NULL THEN life_events.options
                WHEN rolled.key IS NOT NULL THEN ['lost:rolled_back']
                WHEN members.attempt < last_attempt.attempt THEN ['lost:unknown']
                ELSE ['pending:']
            END
        )
    END AS fates,
    coalesce(life_events.has_finished, false) OR distinct_tokens.key IS NOT NULL OR coalesce(life_events.fate = 'dropped', false) AS has_finished,
    life_events.admitted, life_events.started, life_events.finished, life_events.enqueued, life_events.sampled, life_events.ended,
    life_events.fate_step, life_events.fate_v_lo, life_events.fate_v_hi
FROM members
CROSS JOIN last_attempt
LEFT JOIN span_sums ON members.key = span_sums.key
LEFT JOIN distinct_tokens ON members.key = distinct_tokens.key
LEFT JOIN life_events ON members.key = life_events.key
LEFT JOIN rolled ON members.key = rolled.key
WHERE members.training
  AND (distinct_tokens.key IS NOT NULL OR members.key NOT IN (SELECT key FROM elsewhere))

-- Product: trajectory_lives
-- Publish: yes
-- Stage: part
-- Joins: as written
-- Grain: one row per training trajectory (or anonymous class).
-- From: members, span_sums, distinct_tokens, life_events, attempts, uses, step_lives.
-- Columns:
--   key                         the trajectory (see members)
--   multiplicity_lo, multiplicity_hi, anonymous   as in members
--   tokens_lo, tokens_hi        sampled tokens (hi null = open)
--   oldest_lo, oldest_hi        version of its oldest unmasked token
--   v_end_lo, v_end_hi          version of its last sampled token
--   trained                     took part in a step that counts for certain
--   maybe_trained               only in steps that may count
--   staleness_lo, staleness_hi, staleness_sure, worst_sure_lo   of its worst use
--   trained_lo, trained_hi      tokens trained at least once
--   fates                       possible fates as `kind:reason`, separated by character 31; one alone is certain
--   has_finished                generation is known to be over
--   admitted, started, finished, enqueued, sampled, ended   microseconds since 1970
--   collides                    another trajectory has the same key
--   fate_attempt, fate_step, fate_v_lo, fate_v_hi   the step then being collected and its versions, as logged with the fate
WITH rolled AS (
    SELECT DISTINCT key_of(trajectory_id) AS key
    FROM uses
    JOIN (SELECT attempt, step FROM step_lives WHERE rolled_back) AS back ON coalesce(uses.attempt, 0) = back.attempt AND uses.step = back.step
),
unfinished AS (
    -- Taken by a step that did not complete and that nothing rolled back: still there when the run ended.
    SELECT DISTINCT key_of(trajectory_id) AS key
    FROM uses
    JOIN (SELECT attempt, step FROM step_lives WHERE NOT possible AND NOT rolled_back) AS broken
        ON coalesce(uses.attempt, 0) = broken.attempt AND uses.step = broken.step
),
elsewhere AS (
    -- An audit of some steps leaves out what was trained in others.
    SELECT DISTINCT key_of(trajectory_id) AS key
    FROM uses
    WHERE step NOT BETWEEN getvariable('first_step') AND getvariable('last_step')
),
last_attempt AS (SELECT max(attempt) AS attempt FROM attempts)
SELECT
    members.key, members.multiplicity_lo, members.multiplicity_hi, members.anonymous,
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
        WHEN distinct_tokens.trained THEN 'trained:'
        ELSE CASE WHEN distinct_tokens.key IS NOT NULL THEN 'trained:' || chr(31) ELSE '' END || CASE
            WHEN life_events.fate IS NOT NULL THEN life_events.fate || ':' || life_events.reason
            WHEN life_events.options IS NOT NULL THEN life_events.options
            WHEN unfinished.key IS NOT NULL THEN 'pending:'
            WHEN rolled.key IS NOT NULL THEN 'lost:rolled_back'
            WHEN greatest(members.attempt, life_events.last_attempt) < last_attempt.attempt THEN 'lost:unknown'
            ELSE 'pending:'
        END
    END AS fates,
    coalesce(life_events.has_finished, false) OR distinct_tokens.key IS NOT NULL OR coalesce(life_events.fate = 'dropped', false) AS has_finished,
    life_events.admitted, life_events.started, life_events.finished, life_events.enqueued, life_events.sampled, life_events.ended,
    coalesce(life_events.fate_attempt, members.attempt) AS fate_attempt, life_events.fate_step, life_events.fate_v_lo, life_events.fate_v_hi,
    coalesce(span_sums.twin_lo <> members.twin OR span_sums.twin_hi <> members.twin, false)
        OR coalesce(life_events.twin_lo <> members.twin OR life_events.twin_hi <> members.twin, false) AS collides
FROM members
CROSS JOIN last_attempt
LEFT JOIN span_sums ON members.key = span_sums.key
LEFT JOIN distinct_tokens ON members.key = distinct_tokens.key
LEFT JOIN life_events ON members.key = life_events.key
LEFT JOIN rolled ON members.key = rolled.key
LEFT JOIN unfinished ON members.key = unfinished.key
LEFT JOIN elsewhere ON members.key = elsewhere.key
WHERE members.training AND (distinct_tokens.key IS NOT NULL OR elsewhere.key IS NULL)

-- Product: use_rows
-- Stage: part
-- Grain: one row per use in a step that counts or may count, per span where the log says so; no evaluation rollouts.
-- From: uses, described, step_lives.
-- Columns:
--   key                        of the trajectory, see described
--   step_key, span_index (null = all spans)
--   loss_lo, loss_hi           loss tokens as logged with the use (null = as the spans say)
--   lag_lo, lag_hi             staleness as logged, where it is known better than by version arithmetic
--   v_train_lo, v_train_hi     of the step (lo: of the first of the steps it may have been in)
--   stated_max_hi              largest staleness the log allows in the step
--   stated_min_lo              smallest staleness the log allows in the step
--   contradicts                two lines of the use exclude each other; its loss tokens are between the fewest and the sum of both
--   certain                    the step counts for certain, and the trajectory was in it for certain (uses.member)
WITH merged AS (
    -- A repeated line is one use. Lines that differ narrow each other down, unless they can't both be true, or one of
    -- them leaves to the spans what the other states.
    SELECT
        key_of(trajectory_id) AS key,
        coalesce(attempt, 0) AS attempt, step, span_index,
        coalesce(max(loss_tokens_lo) > min(loss_tokens_hi), false) AS contradicts,
        CASE WHEN contradicts OR count(loss_tokens_lo) < count(*) THEN min(loss_tokens_lo) ELSE max(loss_tokens_lo) END AS loss_lo,
        CASE
            WHEN contradicts THEN sum(loss_tokens_hi)::BIGINT
            WHEN count(loss_tokens_hi) = count(*) THEN min(loss_tokens_hi)
        END AS loss_hi,
        max(staleness_lo) AS lag_lo, min(staleness_hi) AS lag_hi,
        bool_or(member IS DISTINCT FROM false) AS member
    FROM uses
    WHERE trajectory_id IS NOT NULL AND step BETWEEN getvariable('first_step') AND getvariable('last_step')
    GROUP BY key, coalesce(attempt, 0), step, span_index
)
SELECT
    merged.* EXCLUDE (attempt, step, member),
    step_key, v_first_lo AS v_train_lo, v_train_hi, stated_max_hi, stated_min_lo,
    certain AND member AS certain
FROM merged
JOIN step_lives ON merged.attempt = step_lives.attempt AND merged.step = step_lives.step AND step_lives.possible
WHERE key NOT IN (SELECT key FROM described WHERE eval)

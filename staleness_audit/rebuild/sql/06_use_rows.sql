-- Product: use_rows
-- Grain: one row per use of a training trajectory in a step that counts or may count, per span where the log says so.
-- From: uses, members, step_lives.
-- Columns:
--   key, attempt, step, span_index (null = all spans)
--   loss_lo, loss_hi           loss tokens as logged with the use (null = as the spans say)
--   staleness_lo, staleness_hi lag as logged, where it is known better than by version arithmetic
--   v_train_lo, v_train_hi     of the step
--   stated_max_hi              largest staleness the log allows in the step
--   certain                    the step counts for certain
SELECT
    members.key, uses.attempt, uses.step, uses.span_index,
    max(uses.loss_tokens_lo) AS loss_lo,
    min(uses.loss_tokens_hi) AS loss_hi,
    max(uses.staleness_lo) AS staleness_lo,
    min(uses.staleness_hi) AS staleness_hi,
    max(step_lives.v_train_lo) AS v_train_lo,
    min(step_lives.v_train_hi) AS v_train_hi,
    min(step_lives.stated_max_hi) AS stated_max_hi,
    bool_and(step_lives.certain) AS certain
FROM (SELECT * REPLACE (coalesce(attempt, 0) AS attempt) FROM uses) AS uses
JOIN step_lives ON uses.attempt = step_lives.attempt AND uses.step = step_lives.step AND step_lives.possible
JOIN members USING (trajectory_id)
WHERE members.training AND uses.step BETWEEN getvariable('first_step') AND getvariable('last_step')
GROUP BY members.key, uses.attempt, uses.step, uses.span_index

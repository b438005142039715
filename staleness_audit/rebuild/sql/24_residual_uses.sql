-- Product: residual_uses
-- Publish: yes
-- Stage: whole
-- Grain: one row per step that says it trained more than is identified: the anonymous rest.
-- From: step_lives, step_totals, facts.
-- Columns:
--   attempt, step, certain
--   trajectories_lo, trajectories_hi   how many uses are missing
--   distinct_lo                        how many of them are trajectories trained in no other step
--   loss_lo, loss_hi                   their loss tokens (hi null = open)
--   staleness_lo, staleness_hi         the newest and oldest they can be
--   flight_lo, flight_hi               their part in flight; below 0 only where a trajectory can end on older weights than it began with
--   queue_lo, queue_hi                 their part in the queue
WITH compared AS (
    SELECT
        step_lives.attempt, step_lives.step, certain, v_train_hi, greatest(stated_min_lo, 0) AS staleness_lo, least(v_train_hi, stated_max_hi) AS staleness_hi,
        stated_hi - coalesce(uses_lo, 0) AS missing_hi,
        greatest(coalesce(stated_lo, 0) - CASE WHEN step_totals.step_key IS NULL THEN 0 ELSE uses_hi END, 0) AS missing_lo,
        stated_loss_hi - coalesce(loss_lo, 0) AS tokens_hi,
        greatest(coalesce(stated_loss_lo, 0) - CASE WHEN step_totals.step_key IS NULL THEN 0 ELSE loss_hi END, 0) AS tokens_lo
    FROM step_lives LEFT JOIN step_totals USING (step_key)
    WHERE possible AND step_lives.step BETWEEN getvariable('first_step') AND getvariable('last_step')
      AND (stated_hi IS NOT NULL OR stated_loss_hi IS NOT NULL OR stated_lo IS NOT NULL)
)
SELECT
    attempt, step, certain,
    coalesce(missing_lo, 0)::BIGINT AS trajectories_lo,
    -- Tokens without a number of trajectories: each trajectory has at least one of them.
    -- greatest() passes over nulls, and an open end must stay open.
    CASE WHEN coalesce(missing_hi, tokens_hi) IS NOT NULL THEN greatest(coalesce(missing_hi, tokens_hi), 0) END::BIGINT AS trajectories_hi,
    CASE WHEN facts.replay THEN 0 ELSE coalesce(missing_lo, 0) END::BIGINT AS distinct_lo,
    coalesce(tokens_lo, 0)::BIGINT AS loss_lo,
    CASE WHEN tokens_hi IS NOT NULL THEN greatest(tokens_hi, 0) END::BIGINT AS loss_hi,
    staleness_lo, staleness_hi,
    -- At worst it ended on the first weights and its token is as new as the step allows.
    CASE WHEN facts.ascending THEN 0 ELSE staleness_lo - v_train_hi END AS flight_lo,
    staleness_hi AS flight_hi,
    0 AS queue_lo,
    CASE WHEN facts.ascending THEN staleness_hi ELSE v_train_hi END AS queue_hi
FROM compared CROSS JOIN facts
WHERE coalesce(missing_hi, tokens_hi, 1) > 0

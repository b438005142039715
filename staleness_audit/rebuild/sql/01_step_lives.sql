-- Product: step_lives
-- Publish: yes
-- Stage: run
-- Grain: one row per training step of an attempt, also of steps that only a use mentions.
-- From: steps, uses, constraints, attempts.
-- Columns:
--   step_key                 number that stands for the step in the products below
--   attempt, step            the step, in the framework's numbering
--   v_train_lo, v_train_hi   version its weights start from (null = not known)
--   started, ended           times
--   waited_us                how long the trainer waited for data before it, in microseconds
--   updates                  optimizer steps inside it
--   certain                  it completed, no later attempt can have rolled it back, and it is among the steps asked for
--   possible                 it may count: among the steps asked for, and not known to be incomplete or rolled back
--   rolled_back              a later attempt resumed before it
--   stated_lo, stated_hi     trajectories the log says it trained (null = not said)
--   stated_loss_lo, stated_loss_hi       loss tokens the log says it trained
--   first_step               what is written for this step took place in some of the steps from this one on (null = in itself)
--   v_first_lo               version the weights of that step start from, else v_train_lo
--   stated_min_lo                        staleness that the log says no token of it is below
--   stated_max_lo, stated_max_hi         largest token staleness the log proves for it
WITH merged AS (
    SELECT
        attempt,
        step,
        max(v_train_lo) AS v_train_lo,
        min(v_train_hi) AS v_train_hi,
        min(started) AS started,
        max(ended) AS ended,
        max(waited_us) AS waited_us,
        max(updates) AS updates,
        -- Two rows that contradict each other leave it open whether the step completed.
        CASE WHEN bool_and(completed) = bool_or(completed) THEN bool_and(completed) END AS completed,
        coalesce(bool_or(superseded), false) AS superseded
    FROM (
        SELECT coalesce(attempt, 0) AS attempt, step, v_train_lo, v_train_hi, started, ended, waited_us, updates, completed, superseded
        FROM steps
        UNION ALL
        SELECT DISTINCT coalesce(attempt, 0), step, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM uses
    )
    WHERE step IS NOT NULL
    GROUP BY attempt, step
),
stated AS (
    SELECT
        coalesce(attempt, 0) AS attempt,
        step,
        try_cast(max(value) FILTER (quantity = 'trajectories' AND op IN ('eq', 'ge')) AS BIGINT) AS stated_lo,
        try_cast(min(value) FILTER (quantity = 'trajectories' AND op IN ('eq', 'le')) AS BIGINT) AS stated_hi,
        try_cast(max(value) FILTER (quantity = 'loss_tokens' AND op IN ('eq', 'ge')) AS BIGINT) AS stated_loss_lo,
        try_cast(min(value) FILTER (quantity = 'loss_tokens' AND op IN ('eq', 'le')) AS BIGINT) AS stated_loss_hi,
        try_cast(max(value) FILTER (quantity = 'staleness_max' AND op IN ('eq', 'ge')) AS INTEGER) AS stated_max_lo,
        try_cast(min(value) FILTER (quantity = 'staleness_max' AND op IN ('eq', 'le')) AS INTEGER) AS stated_max_hi,
        try_cast(max(value) FILTER (quantity = 'staleness_min' AND op IN ('eq', 'ge')) AS INTEGER) AS stated_min_lo,
        try_cast(min(value) FILTER (quantity = 'first_step' AND op = 'eq') AS INTEGER) AS first_step
    FROM constraints
    GROUP BY ALL
),
judged AS (
    SELECT
        merged.*,
        merged.superseded OR EXISTS (
            SELECT 1 FROM attempts AS later WHERE later.attempt > merged.attempt AND later.resumed_after < merged.step
        ) AS rolled_back,
        EXISTS (
            SELECT 1 FROM attempts AS later WHERE later.attempt > merged.attempt AND later.resumed_after_lo < merged.step
        ) AS perhaps_rolled_back,
        merged.step BETWEEN getvariable('first_step') AND getvariable('last_step') AS wanted
    FROM merged
)
SELECT
    row_number() OVER (ORDER BY judged.attempt, judged.step)::INTEGER AS step_key,
    judged.attempt, judged.step, judged.v_train_lo, judged.v_train_hi, judged.started, judged.ended, judged.waited_us, judged.updates,
    coalesce(judged.completed, false) AND NOT rolled_back AND NOT perhaps_rolled_back AND wanted AS certain,
    coalesce(judged.completed, true) AND NOT rolled_back AND wanted AS possible,
    rolled_back,
    stated_lo, stated_hi, stated_loss_lo, stated_loss_hi, stated_max_lo, stated_max_hi, stated_min_lo,
    first_step,
    CASE WHEN first_step IS NULL THEN judged.v_train_lo ELSE coalesce(earliest.v_train_lo, 0) END AS v_first_lo
FROM judged
LEFT JOIN stated ON judged.attempt = stated.attempt AND judged.step = stated.step
LEFT JOIN merged AS earliest ON earliest.attempt = judged.attempt AND earliest.step = stated.first_step

-- Product: use_lives
-- Publish: yes
-- Grain: one row per use: one trajectory in one training step that counts or may count.
-- From: token_uses, members.
-- Columns:
--   key, trajectory_id, group_id, grouped, anonymous
--   attempt, step
--   certain                     the step counts for certain
--   multiplicity_lo, multiplicity_hi   trajectories the row stands for
--   loss_lo, loss_hi            tokens that take part in training (hi null = open); 0, 0 = all masked
--   staleness_lo, staleness_hi  staleness of the trajectory: its largest token staleness, if it has loss tokens
--   flight_lo, flight_hi        its largest in-flight part
--   queue_lo, queue_hi          its in-queue part
--   impossible                  some version in it is newer than the weights that trained it
WITH summed AS (
    SELECT
        key, attempt, step,
        bool_and(certain) AS certain,
        greatest(sum(loss_lo)::BIGINT, max(use_loss_lo)) AS loss_lo,
        least(CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END, min(use_loss_hi)) AS loss_hi,
        coalesce(
            max(staleness_lo) FILTER (loss_lo > 0),
            min(staleness_lo) FILTER (loss_hi IS NULL OR loss_hi > 0)
        ) AS staleness_lo,
        CASE
            WHEN count(*) FILTER ((loss_hi IS NULL OR loss_hi > 0) AND staleness_hi IS NULL) = 0
            THEN max(staleness_hi) FILTER (loss_hi IS NULL OR loss_hi > 0)
        END AS staleness_hi,
        max(flight_lo) FILTER (loss_lo > 0) AS flight_lo,
        CASE
            WHEN count(*) FILTER ((loss_hi IS NULL OR loss_hi > 0) AND flight_hi IS NULL) = 0
            THEN max(flight_hi) FILTER (loss_hi IS NULL OR loss_hi > 0)
        END AS flight_hi,
        max(queue_lo) AS queue_lo,
        min(queue_hi) AS queue_hi,
        max(use_lag_lo) AS use_lag_lo,
        CASE WHEN count(use_lag_hi) = count(*) THEN max(use_lag_hi) END AS use_lag_hi,
        bool_or(impossible) AS impossible
    FROM token_uses
    GROUP BY key, attempt, step
)
SELECT
    summed.key, trajectory_id, group_id, grouped, anonymous, summed.attempt, step, certain, multiplicity_lo, multiplicity_hi,
    loss_lo, loss_hi,
    greatest(staleness_lo, use_lag_lo) AS staleness_lo,
    CASE WHEN staleness_hi IS NULL THEN use_lag_hi ELSE least(staleness_hi, use_lag_hi) END AS staleness_hi,
    coalesce(flight_lo, 0) AS flight_lo, flight_hi, queue_lo, queue_hi, impossible
FROM summed JOIN members USING (key)

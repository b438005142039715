-- Product: use_lives
-- Publish: yes
-- Stage: part
-- Grain: one row per use: one trajectory in one training step that counts or may count.
-- From: token_uses, use_rows.
-- Columns:
--   key                         the trajectory (see members)
--   step_key                    the step (see step_lives)
--   certain                     the step counts for certain
--   loss_lo, loss_hi            tokens that take part in training (hi null = open); 0, 0 = all masked
--   staleness_lo, staleness_hi  staleness of the trajectory: its largest token staleness, if it has loss tokens
--   flight_lo, flight_hi        its largest in-flight part
--   queue_lo, queue_hi          its in-queue part
--   impossible                  some version in it is newer than the weights that trained it
WITH summed AS (
    SELECT
        key,
        step_key,
        bool_or(certain) AS certain,
        sum(loss_lo)::BIGINT AS loss_lo,
        CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END AS loss_hi,
        max(CASE WHEN loss_lo > 0 THEN staleness_lo END) AS sure_staleness_lo,
        min(CASE WHEN loss_hi = 0 THEN NULL ELSE staleness_lo END) AS some_staleness_lo,
        max(CASE WHEN loss_hi = 0 THEN NULL ELSE staleness_hi END) AS staleness_hi,
        bool_or(staleness_hi IS NULL AND loss_hi IS DISTINCT FROM 0) AS staleness_open,
        max(CASE WHEN loss_lo > 0 THEN flight_lo END) AS sure_flight_lo,
        CASE WHEN count(flight_lo) = count(*) THEN min(CASE WHEN loss_hi = 0 THEN NULL ELSE flight_lo END) END AS some_flight_lo,
        max(CASE WHEN loss_hi = 0 THEN NULL ELSE flight_hi END) AS flight_hi,
        bool_or(flight_hi IS NULL AND loss_hi IS DISTINCT FROM 0) AS flight_open,
        max(queue_lo) AS queue_lo,
        min(queue_hi) AS queue_hi,
        bool_and(whole) AS whole,
        bool_or(impossible) AS impossible
    FROM token_uses
    GROUP BY key, step_key
),
-- What the log says of a use as a whole; few logs say anything.
told AS (
    SELECT
        key,
        step_key,
        max(CASE WHEN span_index IS NULL THEN loss_lo END) AS loss_lo,
        min(CASE WHEN span_index IS NULL THEN loss_hi END) AS loss_hi,
        max(lag_lo) AS lag_lo,
        CASE WHEN count(lag_hi) = count(*) THEN max(lag_hi) END AS lag_hi
    FROM use_rows
    WHERE (key, step_key) IN (
        SELECT (key, step_key) FROM use_rows
        WHERE loss_lo IS NOT NULL OR loss_hi IS NOT NULL OR lag_lo IS NOT NULL OR lag_hi IS NOT NULL
    )
    GROUP BY key, step_key
),
joined AS (
    SELECT
        summed.key, summed.step_key, certain, greatest(summed.loss_lo, told.loss_lo) AS loss_lo, least(summed.loss_hi, told.loss_hi) AS loss_hi,
        greatest(sure_staleness_lo, CASE WHEN sure_staleness_lo IS NULL THEN some_staleness_lo END, lag_lo) AS staleness_lo,
        CASE WHEN staleness_open THEN lag_hi ELSE least(staleness_hi, lag_hi) END AS staleness_hi,
        coalesce(sure_flight_lo, some_flight_lo) AS flight_lo,
        CASE WHEN NOT flight_open THEN flight_hi END AS flight_hi,
        queue_lo, queue_hi, whole, impossible
    FROM summed LEFT JOIN told ON summed.key = told.key AND summed.step_key = told.step_key
)
-- The oldest token has the largest part in flight, and all wait equally long: the two parts add up to the staleness,
-- which the log may know better than either of them.
SELECT
    key, step_key, certain, loss_lo, loss_hi, staleness_lo, staleness_hi,
    CASE WHEN NOT whole OR staleness_lo - queue_hi IS NULL THEN flight_lo ELSE greatest(flight_lo, staleness_lo - queue_hi) END AS flight_lo,
    CASE WHEN NOT whole OR staleness_hi - queue_lo IS NULL THEN flight_hi ELSE least(flight_hi, staleness_hi - queue_lo) END AS flight_hi,
    CASE WHEN NOT whole OR staleness_lo - flight_hi IS NULL THEN queue_lo ELSE greatest(queue_lo, staleness_lo - flight_hi) END AS queue_lo,
    CASE WHEN NOT whole OR staleness_hi - flight_lo IS NULL THEN queue_hi ELSE least(queue_hi, staleness_hi - flight_lo) END AS queue_hi,
    impossible
FROM joined

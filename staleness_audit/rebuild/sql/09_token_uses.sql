-- Product: token_uses
-- Stage: part
-- Grain: one row per span and use: the tokens of one version interval in one training step.
-- From: use_rows, token_spans, span_sums, facts.
-- Columns:
--   key, step_key, span_index, certain
--   loss_lo, loss_hi            its tokens that take part in training there (hi null = open)
--   staleness_lo, staleness_hi  staleness of each of them, v_train - v_gen (hi null = open)
--   flight_lo, flight_hi        its part in flight, v_end - v_gen; below 0 if the trajectory ended on older weights (null = open)
--   queue_lo, queue_hi          its part in the queue, v_train - v_end
--   own_mask                    the use states its own mask, so that it may differ from that of other uses
--   whole                       the step takes the whole trajectory, which ended before it: both parts add up to the staleness
--   impossible                  the log says a token is newer than the weights that trained it, or staler than its step allows
WITH joined AS (
    SELECT
        use_rows.key, use_rows.step_key, token_spans.span_index, use_rows.certain, lag_hi,
        v_train_lo, v_train_hi, stated_max_hi, stated_min_lo, coalesce(version_lo, 0) AS version_lo, version_hi, v_end_lo, v_end_hi, rises,
        use_rows.loss_lo IS NOT NULL OR use_rows.loss_hi IS NOT NULL AS own_mask,
        use_rows.span_index IS NULL AS all_spans,
        -- A logged total over several spans leaves each span what the others can't hold.
        CASE
            WHEN use_rows.loss_lo IS NULL THEN coalesce(token_spans.loss_lo, 0)
            WHEN token_spans.key IS NULL OR use_rows.span_index IS NOT NULL THEN use_rows.loss_lo
            WHEN span_sums.tokens_hi IS NULL THEN 0
            ELSE greatest(0, use_rows.loss_lo - (span_sums.tokens_hi - token_spans.tokens_hi))
        END AS loss_lo,
        CASE
            WHEN use_rows.loss_hi IS NULL THEN coalesce(token_spans.loss_hi, token_spans.tokens_hi)
            ELSE least(use_rows.loss_hi, token_spans.tokens_hi)
        END AS loss_hi
    FROM use_rows
    LEFT JOIN token_spans ON use_rows.key = token_spans.key
        AND (use_rows.span_index IS NULL OR use_rows.span_index = token_spans.span_index)
    LEFT JOIN span_sums ON use_rows.key = span_sums.key
)
SELECT
    key, step_key, span_index, certain, loss_lo, loss_hi,
    -- What the log says excludes itself: nothing is known of it. Of a use that may not be one, it says that it is none.
    CASE WHEN staleness_lo > staleness_hi THEN 0 ELSE staleness_lo END AS staleness_lo,
    CASE WHEN staleness_lo > staleness_hi THEN NULL ELSE staleness_hi END AS staleness_hi,
    flight_lo, flight_hi, queue_lo, queue_hi, own_mask, whole,
    impossible OR coalesce(staleness_lo > staleness_hi, false) AS impossible
FROM (
SELECT
    key, step_key, span_index, certain,
    CASE WHEN loss_hi < loss_lo THEN loss_hi ELSE loss_lo END AS loss_lo,
    loss_hi,
    greatest(v_train_lo - coalesce(version_hi, v_train_lo), stated_min_lo, 0) AS staleness_lo,
    -- Nothing is older than the first policy; a span newer than its step is nonsense that proves nothing.
    CASE WHEN version_lo > v_train_hi THEN v_train_hi ELSE least(v_train_hi - version_lo, lag_hi, stated_max_hi) END AS staleness_hi,
    greatest(
        CASE
            WHEN rises THEN greatest(coalesce(v_end_lo, 0) - coalesce(version_hi, v_end_lo, 0), 0)
            ELSE coalesce(v_end_lo, 0) - coalesce(version_hi, v_train_hi)
        END,
        CASE WHEN facts.ascending THEN 0 END
    ) AS flight_lo,
    coalesce(v_end_hi, v_train_hi) - version_lo AS flight_hi,
    greatest(v_train_lo - coalesce(v_end_hi, v_train_lo), 0) AS queue_lo,
    CASE WHEN v_train_hi IS NOT NULL THEN greatest(v_train_hi - coalesce(v_end_lo, 0), 0) END AS queue_hi,
    own_mask,
    all_spans AND NOT coalesce(greatest(version_lo, v_end_lo) > v_train_hi, false) AS whole,
    coalesce(version_lo > v_train_hi, false) AS impossible
FROM joined CROSS JOIN facts
)
WHERE certain OR staleness_hi IS NULL OR staleness_lo <= staleness_hi

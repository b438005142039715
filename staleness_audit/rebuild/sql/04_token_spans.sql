-- Product: token_spans
-- Grain: one row per span of a training trajectory.
-- From: spans, members.
-- Columns:
--   key, span_index
--   tokens_lo, tokens_hi   sampled tokens (hi null = open)
--   loss_lo, loss_hi       those the mask logged with them lets count (all, if none was logged)
--   version_lo, version_hi v_gen of its tokens; unknown versions are [0, null]
--   exact_order            position among the spans of its trajectory: time first, then index
SELECT
    members.key,
    span_index,
    coalesce(tokens_lo, 0) AS tokens_lo,
    tokens_hi,
    least(coalesce(loss_tokens_lo, CASE WHEN loss_tokens_hi IS NULL THEN tokens_lo END, 0), coalesce(tokens_hi, loss_tokens_lo, tokens_lo, 0)) AS loss_lo,
    least(loss_tokens_hi, tokens_hi) AS loss_hi,
    greatest(coalesce(version_lo, 0), 0) AS version_lo,
    version_hi,
    coalesce(epoch_us(coalesce(ended, started)), 0)::HUGEINT * 1099511627776 + coalesce(span_index, 0) AS exact_order
FROM spans JOIN members USING (trajectory_id)
WHERE members.training

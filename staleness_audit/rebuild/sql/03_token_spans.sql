-- Product: token_spans
-- Kind: view
-- Stage: part
-- Grain: one row per span.
-- From: spans.
-- Columns:
--   key, twin              of its trajectory, see described
--   span_index
--   tokens_lo, tokens_hi   sampled tokens (hi null = open)
--   loss_lo, loss_hi       those the mask logged with them lets count (all, if none was logged)
--   version_lo, version_hi   v_gen of its tokens; unknown versions are [0, null]
--   steady                 versions inside never decrease
--   exact_order            position among the spans of its trajectory: time first, then index
--   timed                  it has a time; among timed spans the place of one without is not known
SELECT
    key_of(trajectory_id) AS key,
    twin_of(trajectory_id) AS twin,
    span_index,
    coalesce(tokens_lo, 0) AS tokens_lo,
    tokens_hi,
    CASE
        WHEN loss_tokens_lo IS NULL THEN CASE WHEN loss_tokens_hi IS NULL THEN coalesce(tokens_lo, 0) ELSE 0 END
        ELSE least(loss_tokens_lo, tokens_hi)
    END AS loss_lo,
    least(loss_tokens_hi, tokens_hi) AS loss_hi,
    greatest(version_lo, 0) AS version_lo,
    version_hi,
    coalesce(monotone, false) OR coalesce(version_lo = version_hi, false) AS steady,
    coalesce(epoch_us(coalesce(ended, started)), 0)::HUGEINT * 9223372036854775808 + coalesce(span_index, 0) AS exact_order,
    coalesce(ended, started) IS NOT NULL AS timed
FROM spans
WHERE trajectory_id IS NOT NULL

-- One row per consume row. staleness_true is exactly the largest token staleness (guide 3); where it differs from
-- consume_version - v_min, both are kept as ends.
SELECT
    trajectory_name(attempt, rid) AS trajectory_id, attempt, consume_version + 1 AS step,
    generated AS loss_tokens_lo, generated AS loss_tokens_hi,
    least(consume_version - v_min, staleness_true) AS staleness_lo,
    greatest(consume_version - v_min, staleness_true) AS staleness_hi,
    'recorded' AS evidence, source, line
FROM request
SEMI JOIN block_lives USING (attempt, rid)
WHERE event = 'consume'

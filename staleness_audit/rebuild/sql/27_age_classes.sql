-- Product: age_classes
-- Publish: yes
-- Stage: whole
-- Grain: one row per interval of token age inside its trajectory, see age_sums.
-- From: age_sums.
-- Sums: tokens_lo, tokens_hi.
-- Columns:
--   age_lo, age_hi        v_gen - oldest unmasked v_gen of the trajectory (hi null = open)
--   tokens_lo, tokens_hi  sampled tokens (hi null = open)
SELECT
    age_lo, age_hi,
    sum(tokens_lo)::BIGINT AS tokens_lo,
    CASE WHEN count(tokens_hi) = count(*) THEN sum(tokens_hi)::BIGINT END AS tokens_hi
FROM age_sums
GROUP BY ALL

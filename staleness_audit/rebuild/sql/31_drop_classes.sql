-- Product: drop_classes
-- Publish: yes
-- Stage: whole
-- Grain: one row per reason and age interval of trajectories that were, or may have been, dropped as stale or with their group.
-- From: drop_sums.
-- Sums: trajectories_lo, trajectories_hi, tokens_lo, tokens_hi.
-- Columns:
--   certain                the fate and its reason are certain
--   age_lo, age_hi         v_train of the step then being collected minus the oldest unmasked v_gen (hi null = open)
--   trajectories_lo, trajectories_hi, tokens_lo, tokens_hi
SELECT
    certain, age_lo, age_hi,
    sum(trajectories_lo)::BIGINT AS trajectories_lo,
    CASE WHEN count(trajectories_hi) = count(*) THEN sum(trajectories_hi)::BIGINT END AS trajectories_hi,
    sum(tokens_lo)::BIGINT AS tokens_lo,
    CASE WHEN count(tokens_hi) = count(*) THEN sum(tokens_hi)::BIGINT END AS tokens_hi
FROM drop_sums
GROUP BY ALL

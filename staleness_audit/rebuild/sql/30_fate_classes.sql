-- Product: fate_classes
-- Publish: yes
-- Stage: whole
-- Grain: one row per set of possible fates.
-- From: trajectory_lives, residual_uses.
-- Sums: trajectories_lo, trajectories_hi, tokens_lo, tokens_hi, trained_lo, trained_hi.
-- Columns:
--   fates                                   possible fates as `kind:reason`, separated by character 31; one alone is certain
--   trajectories_lo, trajectories_hi        how many (hi null = open)
--   tokens_lo, tokens_hi                    sampled tokens
--   trained_lo, trained_hi                  those trained at least once
SELECT
    fates,
    sum(multiplicity_lo)::BIGINT AS trajectories_lo,
    CASE WHEN count(multiplicity_hi) = count(*) THEN sum(multiplicity_hi)::BIGINT END AS trajectories_hi,
    sum(tokens_lo)::BIGINT AS tokens_lo,
    CASE WHEN count(tokens_hi) = count(*) THEN sum(tokens_hi)::BIGINT END AS tokens_hi,
    sum(trained_lo)::BIGINT AS trained_lo,
    CASE WHEN count(least(trained_hi, tokens_hi)) = count(*) THEN sum(least(trained_hi, tokens_hi))::BIGINT END AS trained_hi
FROM trajectory_lives
GROUP BY fates
UNION ALL
SELECT
    CASE WHEN certain THEN 'trained:' ELSE 'trained:' || chr(31) || 'unknown:' END,
    sum(distinct_lo)::BIGINT,
    CASE WHEN count(trajectories_hi) = count(*) THEN sum(trajectories_hi)::BIGINT END,
    -- Whether the missing tokens were sampled by trajectories of this run that count elsewhere is open only with replay.
    CASE WHEN bool_or(distinct_lo > 0) THEN sum(loss_lo) ELSE 0 END::BIGINT,
    NULL,
    CASE WHEN bool_or(distinct_lo > 0) THEN sum(loss_lo) ELSE 0 END::BIGINT,
    CASE WHEN count(loss_hi) = count(*) THEN sum(loss_hi)::BIGINT END
FROM residual_uses
GROUP BY certain

-- Product: life_findings
-- Stage: part
-- Grain: one row per kind of contradiction between lives and what they were made of.
-- From: trajectory_lives, members, spans.
-- Columns:
--   code, severity, message, opens, cases, source, line, locator   as in findings
SELECT 'tokens-not-conserved' AS code, 'error' AS severity,
    'The tokens of the trajectories do not add up to the tokens of the spans.' AS message,
    'training' AS opens, 1::BIGINT AS cases, NULL::VARCHAR AS source, NULL::BIGINT AS line, NULL::VARCHAR AS locator
FROM (SELECT sum(tokens_lo) AS tokens FROM spans WHERE trajectory_id IS NOT NULL AND key_of(trajectory_id) NOT IN (SELECT key FROM members WHERE NOT training)) AS all_spans, (SELECT sum(tokens_lo) AS tokens FROM trajectory_lives) AS lives
WHERE all_spans.tokens <> lives.tokens AND getvariable('first_step') < -1000000000 AND getvariable('last_step') > 1000000000
UNION ALL
SELECT 'ids-collide', 'error',
    'Two trajectory ids have the same hash, so that their lives are mixed up; rename one of them.', 'training', count(*), NULL, NULL, min(key::VARCHAR)
FROM trajectory_lives WHERE collides HAVING count(*) > 0

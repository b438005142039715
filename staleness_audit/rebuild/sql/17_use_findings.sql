-- Product: use_findings
-- Stage: part
-- Grain: one row per kind of contradiction in what the logs say of uses.
-- From: use_lives, use_rows, uses, members, span_sums.
-- Columns:
--   code, severity, message, opens, cases, source, line, locator   as in findings
SELECT 'newer-than-training' AS code, 'error' AS severity,
    'Tokens are logged with a version newer than the weights that trained them, or staler than their step says any is; their version was taken as unknown.' AS message,
    'training' AS opens, count(*) AS cases, NULL::VARCHAR AS source, NULL::BIGINT AS line, min(trajectory_id) AS locator
FROM use_lives JOIN members USING (key) WHERE impossible HAVING count(*) > 0
UNION ALL
SELECT 'use-contradicts-itself', 'error',
    'Two log records of one trajectory in one step state numbers of loss tokens that can''t both be true.', 'training', count(*), NULL, NULL, min(trajectory_id)
FROM use_rows JOIN members USING (key) WHERE contradicts HAVING count(*) > 0
UNION ALL
SELECT 'evaluation-trained', 'error',
    'Trajectories that the log calls evaluation rollouts are logged as trained; they were left out.', 'training', count(DISTINCT trajectory_id),
    min(source), min(line), min(trajectory_id)
FROM uses WHERE key_of(trajectory_id) IN (SELECT key FROM members WHERE NOT training) HAVING count(*) > 0
UNION ALL
SELECT 'trained-without-tokens', 'warning',
    'Trajectories were trained of which no tokens are logged; how many and how old they are is not known.', NULL, count(*), NULL, NULL, min(trajectory_id)
FROM use_lives JOIN members USING (key) WHERE loss_hi IS NULL AND key NOT IN (SELECT key FROM span_sums) HAVING count(*) > 0

-- Product: findings
-- Publish: yes
-- Grain: one row per kind of contradiction between what different rows of the logs say.
-- From: use_lives, steps, members, spans, attempts.
-- Columns:
--   code, severity, message, opens   as in the table diagnostics
--   cases                            how often
--   source, line, locator            the first of them
SELECT 'newer-than-training' AS code, 'error' AS severity,
    'Tokens are logged with a version newer than the weights that trained them; their version was taken as unknown.' AS message,
    'training' AS opens, count(*) AS cases, NULL::VARCHAR AS source, NULL::BIGINT AS line, min(trajectory_id) AS locator
FROM use_lives WHERE impossible HAVING count(*) > 0
UNION ALL
SELECT 'step-contradicts-itself', 'error',
    'Two log records of one step contradict each other (its version, or whether it completed).', 'training', count(*), min(source), min(line), NULL
FROM (
    SELECT attempt, step, min(source) AS source, min(line) AS line FROM steps WHERE step IS NOT NULL
    GROUP BY attempt, step
    HAVING max(v_train_lo) > min(v_train_hi) OR bool_and(completed) <> bool_or(completed)
) HAVING count(*) > 0
UNION ALL
SELECT 'trained-without-tokens', 'warning',
    'Trajectories were trained of which no tokens are logged; how many and how old they are is not known.', NULL, count(*), NULL, NULL, min(trajectory_id)
FROM use_lives WHERE loss_hi IS NULL AND NOT EXISTS (SELECT 1 FROM token_spans WHERE token_spans.key = use_lives.key) HAVING count(*) > 0

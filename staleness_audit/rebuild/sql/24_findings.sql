-- Product: findings
-- Publish: yes
-- Grain: one row per kind of contradiction between what different rows of the logs say.
-- From: use_lives, use_rows, uses, members, step_lives, step_sums, steps, spans, events, span_sums, trajectory_lives.
-- Columns:
--   code, severity, message, opens   as in the table diagnostics
--   cases                            how often
--   source, line, locator            the first of them
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
FROM uses WHERE hash(trajectory_id) IN (SELECT key FROM members WHERE NOT training) HAVING count(*) > 0
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
FROM use_lives JOIN members USING (key) WHERE loss_hi IS NULL AND key NOT IN (SELECT key FROM span_sums) HAVING count(*) > 0
UNION ALL
SELECT 'more-trained-than-stated', 'error',
    'More trajectories are logged as trained in a step than the step says it trained.', 'training', count(*), NULL, NULL, 'step ' || min(step)
FROM step_lives JOIN step_sums USING (step_key) WHERE uses_lo > stated_hi HAVING count(*) > 0
UNION ALL
SELECT 'tokens-do-not-add-up', 'error',
    'The loss tokens logged for the trajectories of a step are not as many as the step says it trained.', 'training', count(*), NULL, NULL, 'step ' || min(step)
FROM step_lives JOIN step_sums USING (step_key)
WHERE loss_lo > stated_loss_hi OR (uses_lo = stated_hi AND loss_hi < stated_loss_lo) HAVING count(*) > 0
UNION ALL
SELECT 'tokens-not-conserved', 'error',
    'The tokens of the trajectories do not add up to the tokens of the spans.', 'training', 1, NULL, NULL, NULL
FROM (SELECT sum(tokens_lo) AS tokens FROM spans WHERE trajectory_id IS NOT NULL AND hash(trajectory_id) NOT IN (SELECT key FROM members WHERE NOT training)) AS all_spans, (SELECT sum(tokens_lo) AS tokens FROM trajectory_lives) AS lives
WHERE all_spans.tokens <> lives.tokens AND getvariable('first_step') < -1000000000 AND getvariable('last_step') > 1000000000
UNION ALL
SELECT 'ids-collide', 'error',
    'Two trajectory ids have the same hash, so that their lives are mixed up; rename one of them.', 'training', count(*), NULL, NULL, min(key::VARCHAR)
FROM trajectory_lives WHERE collides HAVING count(*) > 0
UNION ALL
SELECT 'group-without-members', 'warning',
    'An event speaks of a group of which no trajectory is described; how many it speaks of is not known.', 'fates', count(*),
    min(source), min(line), min(group_id)
FROM events
WHERE trajectory_id IS NULL AND group_id IS NOT NULL AND group_id NOT IN (SELECT group_id FROM members WHERE grouped)
HAVING count(*) > 0

-- Product: findings
-- Publish: yes
-- Stage: whole
-- Grain: one row per kind of contradiction between what different rows of the logs say.
-- From: use_findings, life_findings, members, step_lives, step_totals, steps, events.
-- Columns:
--   code, severity, message, opens   as in the table diagnostics
--   cases                            how often
--   source, line, locator            the first of them
SELECT code, any_value(severity) AS severity, any_value(message) AS message, any_value(opens) AS opens, sum(cases)::BIGINT AS cases,
    min(source) AS source, min(line) AS line, min(locator) AS locator
FROM (SELECT * FROM use_findings UNION ALL SELECT * FROM life_findings)
GROUP BY code
UNION ALL
SELECT 'step-contradicts-itself', 'error',
    'Two log records of one step contradict each other (its version, or whether it completed).', 'training', count(*), min(source), min(line), NULL
FROM (
    SELECT attempt, step, min(source) AS source, min(line) AS line FROM steps WHERE step IS NOT NULL
    GROUP BY attempt, step
    HAVING max(v_train_lo) > min(v_train_hi) OR bool_and(completed) <> bool_or(completed)
) HAVING count(*) > 0
UNION ALL
SELECT 'more-trained-than-stated', 'error',
    'More trajectories are logged as trained in a step than the step says it trained.', 'training', count(*), NULL, NULL, 'step ' || min(step)
FROM step_lives JOIN step_totals USING (step_key) WHERE uses_lo > stated_hi HAVING count(*) > 0
UNION ALL
SELECT 'tokens-do-not-add-up', 'error',
    'The loss tokens logged for the trajectories of a step are not as many as the step says it trained.', 'training', count(*), NULL, NULL, 'step ' || min(step)
FROM step_lives JOIN step_totals USING (step_key)
WHERE loss_lo > stated_loss_hi OR (uses_lo = stated_hi AND loss_hi < stated_loss_lo) HAVING count(*) > 0
UNION ALL
SELECT 'group-without-members', 'warning',
    'An event speaks of a group of which no trajectory is described; how many it speaks of is not known.', 'fates', count(*),
    min(source), min(line), min(group_id)
FROM events
WHERE trajectory_id IS NULL AND group_id IS NOT NULL AND group_id NOT IN (SELECT group_id FROM members WHERE grouped)
HAVING count(*) > 0

-- How many requests a completed step trained; where some of them have no consume row, also how many response tokens
-- (no more than what is left of all tokens, unless the length of every prompt is known).
SELECT
    attempt, k + 1 AS step, 'trajectories' AS quantity, 'eq' AS op, n_reqs::DOUBLE AS value, 'requests' AS unit,
    'recorded' AS evidence, train_source AS source, train_line AS line
FROM step
WHERE n_reqs IS NOT NULL
UNION ALL
SELECT
    attempt, k + 1, 'loss_tokens', CASE WHEN fixed IS NULL THEN 'le' ELSE 'eq' END,
    (total_tokens - coalesce(n_reqs * fixed, prompts))::DOUBLE, 'tokens', 'derived', train_source, train_line
FROM (
    -- A configuration under which the prompts alone are more than all tokens is not this simulation's own.
    SELECT step.*, CASE WHEN n_reqs * sim.fixed_prompt <= total_tokens THEN sim.fixed_prompt END AS fixed
    FROM step
    JOIN simulation sim USING (attempt)
)
WHERE members < n_reqs AND total_tokens IS NOT NULL

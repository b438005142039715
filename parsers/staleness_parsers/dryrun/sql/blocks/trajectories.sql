-- One row per request.
SELECT
    trajectory_name(attempt, rid) AS trajectory_id, attempt, 'train' AS role, false AS anonymous,
    1 AS multiplicity_lo, 1 AS multiplicity_hi, prompt_len AS prompt_tokens,
    'recorded' AS evidence, source, first_line AS line
FROM block_lives

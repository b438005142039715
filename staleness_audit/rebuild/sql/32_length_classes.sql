-- Product: length_classes
-- Publish: yes
-- Stage: whole
-- Grain: one row per response length of finished trajectories, and one for those of which length, number or fate is not exact.
-- From: trajectory_lives.
-- Sums: finished, trained.
-- Columns:
--   tokens               sampled tokens (null = not exact)
--   finished, trained    how many finished generation, how many of those were trained
SELECT
    CASE WHEN NOT anonymous AND tokens_lo = tokens_hi AND NOT maybe_trained AND NOT contains(fates, chr(31)) THEN tokens_lo END AS tokens,
    count(*) AS finished,
    count(*) FILTER (trained) AS trained
FROM trajectory_lives
WHERE has_finished
GROUP BY 1

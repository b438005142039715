-- Product: length_classes
-- Publish: yes
-- Grain: one row per response length of finished trajectories whose length and fate are exact.
-- From: trajectory_lives.
-- Columns:
--   tokens               sampled tokens
--   finished, trained    how many finished generation, how many of those were trained
SELECT
    tokens_lo AS tokens,
    count(*) AS finished,
    count(*) FILTER (trained) AS trained
FROM trajectory_lives
WHERE has_finished AND NOT anonymous AND tokens_lo = tokens_hi AND NOT maybe_trained
GROUP BY tokens_lo

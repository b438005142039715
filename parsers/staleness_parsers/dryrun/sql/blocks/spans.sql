-- One row per run of tokens of one version, placed at the occupancy row of the update that ended it or at the request.
SELECT
    trajectory_name(s.attempt, s.rid) AS trajectory_id, s.span_index, s.token_start,
    s.lo AS tokens_lo, s.hi AS tokens_hi, s.version_lo, s.version_hi, true AS monotone,
    moment(s.started, sim.shift) AS started, moment(s.ended, sim.shift) AS ended,
    'instance ' || r.instance_id AS worker, s.evidence, s.source, s.line,
    CASE WHEN s.source <> r.source THEN 'request ' || r.rid END AS locator
FROM span s
JOIN block_lives r USING (attempt, rid)
JOIN simulation sim USING (attempt)

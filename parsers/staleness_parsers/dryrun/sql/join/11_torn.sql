-- Grain: a simulation whose request stream has lost rows: updates after the last known one may be among them.
CREATE TEMP TABLE torn AS
SELECT attempt FROM step WHERE members < n_reqs
UNION
SELECT attempt FROM part JOIN dryrun_damage USING (source) WHERE NOT cut AND part.kind = 'request'
UNION
SELECT attempt FROM req GROUP BY attempt HAVING max(rid) + 1 > count(*)

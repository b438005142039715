-- Grain: one row of train.jsonl, that is, one completed step.
--   k    the version it started from (one less than the row's own `version`)
CREATE TEMP TABLE train AS
SELECT r.*, r.version - 1 AS k, p.attempt
FROM dryrun_train r
ASOF JOIN (FROM part WHERE kind = 'train') p ON r.source = p.source AND r.line >= p.first_line

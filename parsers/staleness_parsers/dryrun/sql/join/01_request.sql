-- Grain: one row of request.jsonl, with the attempt it belongs to.
CREATE TEMP VIEW request AS
SELECT r.*, p.attempt
FROM dryrun_request r
ASOF JOIN (FROM part WHERE kind = 'request') p ON r.source = p.source AND r.line >= p.first_line

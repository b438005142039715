-- Grain: one occupancy row of an instance: its time and its place in the file.
CREATE TEMP VIEW instance AS
SELECT
    r.*, p.attempt,
    TRY_CAST(regexp_extract(r.source, '(\d+)\.jsonl(\.gz|\.zst)?$', 1) AS BIGINT) AS instance_id
FROM dryrun_instance r
ASOF JOIN (FROM part WHERE kind = 'instance') p ON r.source = p.source AND r.line >= p.first_line

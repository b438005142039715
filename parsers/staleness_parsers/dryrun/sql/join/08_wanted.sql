-- Grain: one occupancy row to read: the first at T_k of an instance with a candidate in flight (several there agree).
CREATE TEMP TABLE wanted AS
WITH instant AS (SELECT DISTINCT attempt, t, k, instance_id FROM inside)
SELECT
    i.source, i.attempt, n.k,
    min(i.line) AS line, arg_min(i."start", i.line) AS "start", arg_min(i.size, i.line) AS size
FROM (FROM instance WHERE t IN (SELECT t FROM instant)) i
JOIN instant n ON n.attempt = i.attempt AND n.t = i.t AND (n.instance_id = i.instance_id OR n.instance_id IS NULL)
GROUP BY i.source, i.attempt, n.k

-- Grain: something that findings count or list, of one block.
--   what    blurred: requests with an interval of versions; untold: updates of which no occupancy row tells (`updates`)
--           how far `requests` were; contradicted: a request whose streams disagree; unreadable: an occupancy row
SELECT
    'blurred' AS what, NULL::INTEGER AS attempt, NULL::BIGINT AS rid, count(DISTINCT (attempt, rid)) AS requests,
    NULL::BIGINT[] AS updates, NULL::VARCHAR AS source, NULL::BIGINT AS line, NULL::VARCHAR AS why
FROM span
WHERE version_lo IS DISTINCT FROM version_hi
UNION ALL
SELECT 'untold', attempt, NULL, count(DISTINCT rid), list(DISTINCT k), NULL, NULL, NULL
FROM block_insides
ANTI JOIN state USING (attempt, rid, k)
GROUP BY attempt
UNION ALL
SELECT 'contradicted', attempt, rid, NULL, NULL, source, line, NULL
FROM chunk
WHERE bad
UNION ALL
SELECT 'unreadable', NULL, NULL, NULL, NULL, source, line, why
FROM unreadable

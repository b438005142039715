-- Product: worst_classes
-- Publish: yes
-- Stage: whole
-- Grain: one row per staleness interval of trajectories (by their worst use) and of groups (by their worst member).
-- From: group_users, groups, residual_uses.
-- Sums: members_lo, members_hi.
-- Columns:
--   of                           'trajectories' or 'groups'
--   sure                         surely trained with a loss token
--   sure_lo                      staleness surely reached by a use that counts for certain (null if not sure)
--   staleness_lo, staleness_hi   over the uses that count or may count (hi null = open)
--   members_lo, members_hi       how many (hi null = open)
WITH users AS (SELECT * FROM group_users),
-- How many groups an id stands for, where the log says so.
stated AS (
    SELECT group_id, max(multiplicity_lo) AS groups_lo, min(multiplicity_hi) AS groups_hi
    FROM groups
    GROUP BY group_id
)
SELECT
    'trajectories' AS "of", staleness_sure AS sure, worst_sure_lo AS sure_lo, staleness_lo, staleness_hi,
    sum(multiplicity_lo)::BIGINT AS members_lo,
    CASE WHEN count(multiplicity_hi) = count(*) THEN sum(multiplicity_hi)::BIGINT END AS members_hi
FROM users
GROUP BY ALL
UNION ALL
SELECT 'groups', sure, sure_lo, staleness_lo, staleness_hi, sum(members_lo)::BIGINT, CASE WHEN count(members_hi) = count(*) THEN sum(members_hi)::BIGINT END
FROM (
    SELECT
        bool_or(staleness_sure) AS sure,
        max(worst_sure_lo) AS sure_lo,
        max(staleness_lo) AS staleness_lo,
        CASE WHEN count(staleness_hi) = count(*) THEN max(staleness_hi) END AS staleness_hi,
        -- Anonymous classes of one group id hold between one and as many groups as trajectories, unless `groups` says how many.
        -- One without a group may hold only members of groups that are counted elsewhere.
        CASE
            WHEN count(*) = 1 THEN min(CASE WHEN anonymous AND NOT grouped AND groups_lo IS NULL THEN 0 WHEN anonymous THEN least(multiplicity_lo, coalesce(groups_lo, 1)) ELSE least(coalesce(groups_lo, 1), 1) END)
            ELSE min(CASE WHEN anonymous AND NOT grouped AND groups_lo IS NULL THEN 0 WHEN anonymous THEN least(multiplicity_lo, 1) ELSE least(coalesce(groups_lo, 1), 1) END)
        END AS members_lo,
        least(
            CASE WHEN count(multiplicity_hi) = count(*) THEN greatest(
                -- Identified ones are of one group, unless `groups` says that theirs are not known.
                sum(CASE WHEN anonymous OR groups_hi > 1 THEN multiplicity_hi ELSE 0 END), max(CASE WHEN anonymous THEN 0 ELSE 1 END)
            )::BIGINT END,
            min(groups_hi)
        ) AS members_hi
    FROM users LEFT JOIN stated USING (group_id)
    GROUP BY group_id
)
GROUP BY sure, sure_lo, staleness_lo, staleness_hi
UNION ALL
-- Missing uses: as many trajectories at most, and as many groups.
SELECT
    "of", false, NULL, staleness_lo, staleness_hi,
    CASE WHEN "of" = 'trajectories' THEN sum(distinct_lo) ELSE 0 END::BIGINT,
    CASE WHEN count(trajectories_hi) = count(*) THEN sum(trajectories_hi)::BIGINT END
FROM residual_uses CROSS JOIN (VALUES ('trajectories'), ('groups')) AS kinds("of")
WHERE loss_hi IS NULL OR loss_hi > 0
GROUP BY "of", staleness_lo, staleness_hi

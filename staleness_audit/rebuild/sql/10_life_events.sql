-- Product: life_events
-- Grain: one row per trajectory that lifecycle events speak of (an event of a group speaks of all its members).
-- From: events, ids, members.
-- Columns:
--   key
--   admitted, started, finished, enqueued, sampled, ended   microseconds since 1970 of the first (ended: last fatal) such event
--   has_finished        generation is known to be over
--   fate, reason        its last certain fatal event (dropped, cancelled, lost) if nothing took it up again; else null
--   fate_step           the step then being collected, as logged
--   fate_v_lo, fate_v_hi  versions logged with it
--   options             its alternative fates as `kind:reason`, from inferred fatal events, without repeats; else null
WITH named AS (
    SELECT ids.key, events.* EXCLUDE (trajectory_id)
    FROM events JOIN ids USING (trajectory_id)
    UNION ALL
    SELECT members.key, events.* EXCLUDE (trajectory_id)
    FROM events JOIN members ON events.group_id = members.group_id AND members.grouped
    WHERE events.trajectory_id IS NULL AND events.group_id IS NOT NULL
),
ordered AS (
    SELECT
        key, kind, reason, step, version_lo, version_hi, evidence,
        epoch_us(ts) AS moment,
        coalesce(epoch_us(ts), 0)::HUGEINT * 1099511627776 + coalesce(seq, 0) AS position
    FROM named
),
fatal AS (
    SELECT
        key,
        arg_max(kind, position) FILTER (evidence <> 'inferred') AS last_kind,
        arg_max(reason, position) FILTER (evidence <> 'inferred') AS reason,
        arg_max(step, position) FILTER (evidence <> 'inferred') AS fate_step,
        arg_max(version_lo, position) FILTER (evidence <> 'inferred') AS fate_v_lo,
        arg_max(version_hi, position) FILTER (evidence <> 'inferred') AS fate_v_hi,
        max(moment) FILTER (kind <> 'requeued') AS ended,
        list_sort(list_distinct(list(kind || ':' || coalesce(reason, 'unknown')) FILTER (evidence = 'inferred'))) AS options
    FROM ordered
    WHERE kind IN ('dropped', 'cancelled', 'lost', 'requeued', 'pending')
    GROUP BY key
),
times AS (
    SELECT
        key,
        min(moment) FILTER (kind = 'admitted') AS admitted,
        min(moment) FILTER (kind = 'started') AS started,
        max(moment) FILTER (kind = 'finished') AS finished,
        max(moment) FILTER (kind = 'enqueued') AS enqueued,
        min(moment) FILTER (kind = 'sampled') AS sampled,
        bool_or(kind IN ('finished', 'enqueued')) AS has_finished
    FROM ordered
    GROUP BY key
)
SELECT
    times.*,
    fatal.ended,
    CASE WHEN fatal.last_kind <> 'requeued' THEN fatal.last_kind END AS fate,
    coalesce(fatal.reason, 'unknown') AS reason,
    fatal.fate_step, fatal.fate_v_lo, fatal.fate_v_hi,
    CASE WHEN len(fatal.options) > 0 THEN fatal.options END AS options
FROM times LEFT JOIN fatal USING (key)

-- What the timeline of a run is drawn from. Each view below is read once, row by row, in the order it is drawn in.
-- Reads: named_trajectories, named_uses, step_lives, spans, syncs, and `wanted` (trajectory_id, why) with the
-- trajectories to be drawn. Times are microseconds since 1970.

-- Training steps: when they ran, and when the trainer waited for data before.
CREATE TEMP VIEW drawn_steps AS
SELECT
    attempt, step, v_train_lo, v_train_hi, certain, updates,
    epoch_us(started) AS started,
    epoch_us(ended) AS ended,
    epoch_us(started) - waited_us AS waiting_since
FROM step_lives
WHERE possible AND started IS NOT NULL
ORDER BY started, attempt, step;

-- Weight publications. One that is known only by its end is a moment.
CREATE TEMP VIEW drawn_syncs AS
SELECT
    CASE WHEN getvariable('each_worker') THEN coalesce(worker, 'all workers') ELSE 'all workers' END AS worker,
    version_lo, version_hi, attempt,
    epoch_us(coalesce(min(started), min(ended))) AS started,
    epoch_us(max(ended)) AS ended
FROM syncs
WHERE coalesce(started, ended) IS NOT NULL
GROUP BY ALL
ORDER BY started, worker, version_lo;

-- Phases of the trajectories to be drawn: pieces of generation, waiting in the queue, training.
CREATE TEMP TABLE phases AS
WITH
life AS (
    SELECT named_trajectories.*
    FROM named_trajectories JOIN wanted USING (trajectory_id)
    WHERE NOT anonymous
),
pieces AS (
    SELECT
        trajectory_id, 'generate' AS phase,
        epoch_us(spans.started) AS since, epoch_us(spans.ended) AS until,
        version_lo, version_hi, tokens_lo AS tokens, worker, NULL::INTEGER AS attempt, NULL::INTEGER AS step
    FROM spans JOIN wanted USING (trajectory_id)
    WHERE spans.started IS NOT NULL AND spans.ended IS NOT NULL
),
-- Where pieces have no times, the whole generation is one piece.
whole AS (
    SELECT
        trajectory_id, 'generate' AS phase,
        coalesce(started, admitted) AS since, coalesce(finished, enqueued, ended) AS until,
        oldest_lo AS version_lo, v_end_hi AS version_hi, tokens_lo AS tokens, NULL AS worker, NULL AS attempt, NULL AS step
    FROM life
    WHERE trajectory_id NOT IN (SELECT trajectory_id FROM pieces)
),
training AS (
    SELECT
        trajectory_id, 'train' AS phase,
        epoch_us(started) AS since, epoch_us(ended) AS until,
        step_lives.v_train_lo AS version_lo, step_lives.v_train_hi AS version_hi, loss_lo AS tokens, NULL AS worker,
        named_uses.attempt, named_uses.step
    FROM named_uses JOIN wanted USING (trajectory_id) JOIN step_lives USING (step_key)
    WHERE started IS NOT NULL AND ended IS NOT NULL
),
queued AS (
    SELECT
        trajectory_id, 'queue' AS phase,
        coalesce(enqueued, finished) AS since,
        coalesce(sampled, first_trained, ended) AS until,
        NULL AS version_lo, NULL AS version_hi, NULL AS tokens, NULL AS worker, NULL AS attempt, NULL AS step
    FROM life LEFT JOIN (SELECT trajectory_id, min(since) AS first_trained FROM training GROUP BY ALL) USING (trajectory_id)
    WHERE has_finished
),
every_phase AS (
    SELECT * FROM pieces
    UNION ALL BY NAME SELECT * FROM whole
    UNION ALL BY NAME SELECT * FROM queued
    UNION ALL BY NAME SELECT * FROM training
)
SELECT
    * REPLACE (
        -- A row shows one thing at a time: where logged times overlap, a phase is drawn until the next one begins.
        least(until, coalesce(lead(since) OVER (PARTITION BY trajectory_id ORDER BY since, until, step), until)) AS until
    ),
    until AS logged_until
FROM every_phase
WHERE since IS NOT NULL AND until >= since;

-- The trajectories to be drawn, each from its admission to the last thing that is known of it.
CREATE TEMP VIEW drawn_trajectories AS
SELECT
    trajectory_id, group_id, life.attempt, why,
    oldest_lo, oldest_hi, v_end_lo, v_end_hi, tokens_lo, staleness_lo, staleness_hi,
    list_aggregate(fates, 'string_agg', ' or ') AS fate,
    least(coalesce(admitted, started), born) AS since,
    gone AS until
FROM named_trajectories AS life
JOIN wanted USING (trajectory_id)
JOIN (SELECT trajectory_id, min(since) AS born, max(until) AS gone FROM phases GROUP BY ALL) USING (trajectory_id)
WHERE NOT anonymous
ORDER BY since, trajectory_id;

CREATE TEMP VIEW drawn_phases AS
SELECT * FROM phases WHERE until > since OR phase = 'train' ORDER BY trajectory_id, since, until;

-- Trajectories in flight and queued, of all that have times, whether they are drawn or not. Of a partial rollout the
-- batch may be logged before its generation is over: it never waited.
CREATE TEMP VIEW lives AS
SELECT
    coalesce(named_trajectories.started, admitted) AS born,
    coalesce(finished, enqueued, named_trajectories.ended) AS done,
    CASE WHEN has_finished THEN coalesce(enqueued, finished) END AS queued,
    CASE WHEN has_finished THEN coalesce(sampled, taken, named_trajectories.ended) END AS gone
FROM named_trajectories
LEFT JOIN (
    SELECT trajectory_id, epoch_us(min(started)) AS taken
    FROM named_uses JOIN step_lives USING (step_key)
    GROUP BY ALL
) USING (trajectory_id)
WHERE NOT anonymous;

CREATE TEMP VIEW changes AS
SELECT 'in flight' AS counter, unnest([born, done]) AS moment, unnest([1, -1]) AS change
FROM lives WHERE born <= coalesce(done, born)
UNION ALL
SELECT 'queued', unnest([queued, gone]), unnest([1, -1])
FROM lives WHERE queued <= coalesce(gone, queued);

-- At most `most_points` moments of each counter, each with the largest value since the one before.
CREATE TEMP VIEW drawn_counters AS
WITH
levels AS (
    SELECT counter, moment, sum(sum(change)) OVER (PARTITION BY counter ORDER BY moment) AS level
    FROM changes
    WHERE moment IS NOT NULL
    GROUP BY counter, moment
),
placed AS (
    SELECT *, ntile(getvariable('most_points')) OVER (PARTITION BY counter ORDER BY moment) AS bin FROM levels
)
SELECT counter, min(moment) AS moment, max(level)::BIGINT AS level
FROM placed
GROUP BY counter, bin
ORDER BY moment, counter;

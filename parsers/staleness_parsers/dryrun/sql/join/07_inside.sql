-- Grain: one weight update that a candidate lived through (guide 3, rule 3): the first consume row lies between its
-- admission and its completion in the file; a completion at T_k itself stands before. By the rules k >= v_traj.
CREATE TEMP TABLE inside AS
SELECT c.attempt, c.rid, c.instance_id, u.k, u.t, u.v_lo, u.v_hi
FROM (SELECT *, unnest(generate_series(coalesce(v_traj, 0)::BIGINT, k_hi)) AS k FROM cand) c
JOIN step u USING (attempt, k)
WHERE u.t IS NOT NULL
    AND CASE
        WHEN c.admit_line IS NOT NULL AND u.first_line IS NOT NULL THEN u.first_line > c.admit_line
        ELSE u.t >= c.admit_time
    END
    AND CASE
        WHEN c.end_line IS NOT NULL AND u.first_line IS NOT NULL THEN u.first_line < c.end_line
        WHEN c.end_t IS NOT NULL THEN u.t < c.end_t
        ELSE true
    END

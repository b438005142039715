-- Grain: one candidate, with what is known of the steps around its admission.
--   served_hi, undated_hi    newest version served after the step before it, and after one at its version without a time
--   latest                   of one that needs the last rows of the instances: what tells them from others
CREATE TEMP VIEW cands AS
SELECT
    c.*, served.v_hi AS served_hi, undated.v_hi AS undated_hi,
    CASE WHEN NOT final OR generated_lo IS NULL THEN (SELECT sum(hash(place)) FROM last_place AS place) END AS latest,
    era_of(c.attempt, c.rid) AS era
FROM cand c
LEFT JOIN step served ON c.attempt = served.attempt AND c.v_traj - 1 = served.k
LEFT JOIN (FROM step WHERE t IS NULL) undated ON c.attempt = undated.attempt AND c.v_traj = undated.k

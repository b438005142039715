-- Grain: one request whose versions need the instance streams: made by several versions, or unfinished.
--   k_hi    the last update it can have lived through (-1: none)
CREATE TEMP TABLE cand AS
SELECT req.*, coalesce(latest.k, -1) AS k_hi
FROM req
ASOF LEFT JOIN (FROM step WHERE t IS NOT NULL) latest
    ON req.attempt = latest.attempt AND coalesce(req.end_t, 'infinity'::DOUBLE) >= latest.t
WHERE (NOT final OR v_min IS NULL OR v_max IS NULL OR v_min <> v_max OR generated_hi IS NULL)
    AND (generated_hi IS NULL OR generated_hi > 0)

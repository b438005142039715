-- Grain: one simulation, with what holds for all of its requests.
CREATE TEMP VIEW rules AS
SELECT attempt, shift, rule_known, drop_reason, cancel_reason FROM simulation

-- Grain: one weight update that a candidate lived through.
CREATE TEMP VIEW insides AS
SELECT *, era_of(attempt, rid) AS era FROM inside

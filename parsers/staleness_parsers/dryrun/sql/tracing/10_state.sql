-- Grain: one candidate at one update (k), or at its instance's last row (k null): tokens made, and the row to prove it.
-- Filled while the instance streams are read.
CREATE OR REPLACE TEMP TABLE state (attempt INTEGER, rid BIGINT, k BIGINT, generated BIGINT, source VARCHAR, line BIGINT)

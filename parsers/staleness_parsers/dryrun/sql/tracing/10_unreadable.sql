-- Grain: an occupancy row that should tell of the block and cannot be read. Filled while the instance streams are read.
CREATE OR REPLACE TEMP TABLE unreadable (source VARCHAR, line BIGINT, why VARCHAR)

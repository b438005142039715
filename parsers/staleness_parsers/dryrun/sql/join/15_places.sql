-- Grain: one occupancy row that an era needs.
CREATE TEMP VIEW places AS
SELECT wanted.*, era FROM (SELECT DISTINCT era, attempt, k FROM insides) JOIN wanted USING (attempt, k)

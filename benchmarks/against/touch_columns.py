"""DuckDB merely touching every column of the same files: a count per column."""

import sys

import duckdb

source = f"read_ndjson('{sys.argv[1]}')"
columns = [row[0] for row in duckdb.sql(f"DESCRIBE SELECT * FROM {source}").fetchall()]
counts = ", ".join(f'count("{column}")' for column in columns)
print(duckdb.sql(f"SELECT {counts} FROM {source}").fetchall())

"""Dividing a run by trajectory, so that what is rebuilt at a time stays small however long the run is.

Everything that is said of one trajectory lands in one partition; steps, attempts and constraints are few and are seen by
all of them, and so are events that speak of a whole group. What partitions yield adds up: sums of whole numbers.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from staleness_audit.engine import create_view, write_parquet
from staleness_audit.ingest import Dataset
from staleness_audit.limits import limits

BYTES_PER_ROW = 150
"""Memory that rebuilding takes per row of the divided tables: 100 measured (benchmarks/RESULTS.md), and room to spare."""

DIVIDED = ("trajectories", "spans", "uses", "events")


def count_partitions(connection: duckdb.DuckDBPyConnection) -> int:
    """Say into how many partitions of similar size the run should be divided for each to fit into memory."""
    counts = " + ".join(f"(SELECT count(*) FROM {table})" for table in DIVIDED)
    row = connection.execute(f"SELECT {counts}").fetchone()
    assert row is not None
    return max(1, -(-int(row[0]) * BYTES_PER_ROW // limits().memory))


class Partitions:
    """The divided tables of a dataset as Parquet files below ``folder``, which the caller removes."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, dataset: Dataset, folder: Path, count: int) -> None:
        self._connection = connection
        self._dataset = dataset
        self._folder = folder
        self.count = count
        folder.mkdir()
        for table in DIVIDED:
            if dataset.parts(table):
                self._divide(table)

    def select(self, number: int) -> None:
        """Make the views of the divided tables show one partition."""
        for table in DIVIDED:
            files = sorted((self._folder / table / f"partition={number}").glob("*.parquet"))
            create_view(self._connection, table, [*files, *(self._folder / table).glob("groups.parquet")])

    def select_all(self) -> None:
        """Make the views show everything again."""
        for table in DIVIDED:
            create_view(self._connection, table, self._dataset.parts(table))

    def _divide(self, table: str) -> None:
        target = self._folder / table
        target.mkdir(parents=True)
        numbered = (
            f"SELECT *, hash(trajectory_id) % {self.count} AS partition FROM {table} WHERE trajectory_id IS NOT NULL"
        )
        write_parquet(self._connection, numbered, target, "PARTITION_BY (partition)", "OVERWRITE_OR_IGNORE")
        if table == "events":  # the others say nothing without a trajectory
            of_groups = "SELECT * FROM events WHERE trajectory_id IS NULL"
            write_parquet(self._connection, of_groups, target / "groups.parquet")

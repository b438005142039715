"""Dividing a run by trajectory, so that what is rebuilt at a time stays small however long the run is.

Everything that is said of one trajectory lands in one partition; steps, attempts and constraints are few and are seen by
all of them, and so are events that speak of a whole group. What partitions yield adds up: sums of whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import duckdb

from staleness_audit.engine import connect, create_view, write_parquet
from staleness_audit.ingest import Dataset
from staleness_audit.limits import limits
from staleness_audit.store import Store

BYTES_PER_ROW = 150
"""Memory that rebuilding takes per row of the divided tables: 100 measured (benchmarks/RESULTS.md), and room to spare."""
ROWS_PER_WORKER = 1_000_000
"""Rows of the divided tables from which another worker of a cluster is worth its while."""

DIVIDED = ("trajectories", "spans", "uses", "events")
_ALL = "all"

Divided = Mapping[str, Sequence[Path]]
"""The files of one partition, by table."""


def count_partitions(connection: duckdb.DuckDBPyConnection, width: int = 1) -> int:
    """Say into how many partitions of similar size the run should be divided for each to fit into memory.

    ``width``: how many can be rebuilt at a time.
    """
    counts = " + ".join(f"(SELECT count(*) FROM {table})" for table in DIVIDED)
    ((rows,),) = connection.execute(f"SELECT {counts}").fetchall()
    return max(1, -(-int(rows) * BYTES_PER_ROW // limits().memory), min(width, int(rows) // ROWS_PER_WORKER))


def shares(dataset: Dataset, width: int) -> list[tuple[str, list[Path]]]:
    """Return what can be divided at a time: parts of one table, about ``width`` shares of each."""
    found = []
    for table in DIVIDED:
        parts = dataset.parts(table)
        size = max(1, -(-len(parts) // width))
        found += [(table, parts[at : at + size]) for at in range(0, len(parts), size)]
    return found


def divide(shared: tuple[Dataset, int, Store], table: str, parts: Sequence[Path], unit: str) -> None:
    """Divide parts of a table; the files are called ``<partition>.*.parquet``, those for all partitions ``all.*``.

    ``shared``: the dataset, the number of partitions, and where the files are kept as those of ``unit``.
    """
    dataset, count, kept = shared
    with kept.fresh(unit, anew=True) as folder, connect(dataset.work) as connection:
        create_view(connection, table, parts)
        numbered = (
            f"SELECT *, key_of(trajectory_id) % {count} AS partition FROM {table} WHERE trajectory_id IS NOT NULL"
        )
        write_parquet(connection, numbered, folder / "divided", "PARTITION_BY (partition)")
        for file in folder.glob("divided/partition=*/*.parquet"):
            file.rename(folder / f"{file.parent.name.removeprefix('partition=')}.{file.name}")
        if table == "events":  # the others say nothing without a trajectory
            of_groups = "SELECT * FROM events WHERE trajectory_id IS NULL"
            write_parquet(connection, of_groups, folder / f"{_ALL}.parquet")


def by_partition(divided: Iterable[tuple[str, Sequence[Path]]], count: int) -> list[Divided]:
    """Sort the files that were divided, of several units and with their table, by partition."""
    found: list[dict[str, list[Path]]] = [{} for _ in range(count)]
    for table, files in divided:
        for file in files:
            number = file.name.split(".", 1)[0]
            for partition in found if number == _ALL else [found[int(number)]]:
                partition.setdefault(table, []).append(file)
    return list(found)


def select(connection: duckdb.DuckDBPyConnection, partition: Divided) -> None:
    """Make the views of the divided tables show one partition."""
    for table in DIVIDED:
        create_view(connection, table, partition.get(table, []))

"""DuckDB as every station opens it: bounded memory, spilling to disk, UTC, no extension fetched from anywhere."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

from staleness_audit.limits import limits
from staleness_audit.places import files_at, is_url, ranged, reaching
from staleness_audit.tables import SCHEMAS, duckdb_type

MACROS = """
CREATE MACRO key_of(id) AS hash(id, '....' || id);
CREATE MACRO twin_of(id) AS hash('..' || id)
"""
"""What stands for an id in 64 bits, and a second hash that tells two ids of one key apart.

DuckDB takes in eight bytes at a time, and of two numbers that end where eight bytes do, it sees little but what they
make together: by ``hash`` alone, one in thirty names like ``group_0000000011_seed_0000001011_episode_0`` is another
one's. What meets in one alignment is apart in the other.
"""


def connect(spill: Path | None = None) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB within ``limits()`` that spills below the folder ``spill``, if no other is set."""
    allowed = limits()
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{allowed.memory}B",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    if allowed.threads is not None:
        config["threads"] = allowed.threads
    spill = allowed.spill or (spill and spill / ".spill")
    if spill is not None:
        config["temp_directory"] = str(spill)
    connection = _settled(duckdb.connect(config=config))
    connection.execute(MACROS)
    return connection


def session() -> duckdb.DuckDBPyConnection:
    """Open a connection to the process's one DuckDB, for work that makes nothing but temporary things.

    It costs next to nothing, and all who work at the same time share one memory limit.
    """
    return _settled(_shared(os.getpid()).cursor())


def _settled(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Set what each connection has to be told anew."""
    # In what DuckDB takes for an interactive session it would draw a bar over our output.
    connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
    return connection


@cache
def _shared(process: int) -> duckdb.DuckDBPyConnection:
    """The DuckDB of a process (one that was forked must not use its parent's)."""
    return connect()


def literal(text: str) -> str:
    """Quote text as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def scan(parts: Path | list[Path], **options: Any) -> pl.LazyFrame:
    """Scan Parquet files with Polars: these files, whatever their paths look like, and nothing read out of a path.

    A folder may be called ``lr=[1,2]`` or ``step=7``, which would be a pattern, or a column of every row.
    """
    first = parts[0] if isinstance(parts, list) else parts
    if is_url(first):
        return _scan_objects(parts if isinstance(parts, list) else [parts])
    return pl.scan_parquet(parts, glob=False, hive_partitioning=False, **options)


def _scan_objects(parts: list[Path]) -> pl.LazyFrame:
    """Scan the Parquet files that URLs name: the columns and row groups that are wanted, a missing column as null."""
    from pyarrow import dataset  # noqa: PLC0415 - only tables at a URL need it

    system = ranged(parts[0])
    names = [files_at(part)[1] for part in parts]
    with reaching(parts[0]):
        schemas = [dataset.dataset(name, filesystem=system, format="parquet").schema for name in names]
        schema = pa.unify_schemas(schemas, promote_options="permissive")
        return pl.scan_pyarrow_dataset(dataset.dataset(names, schema=schema, filesystem=system, format="parquet"))


def _exactly(path: Path) -> str:
    """Quote a path as a literal in which DuckDB finds no pattern."""
    return literal(glob.escape(str(path)))


def read_parquet(parts: Iterable[Path], **options: bool) -> str:
    """SQL that reads these files, whatever their paths look like, as ``scan`` does."""
    settings = "".join(f", {name} = {str(value).lower()}" for name, value in options.items())
    return f"read_parquet([{', '.join(map(_exactly, parts))}], hive_partitioning = false{settings})"


def write_parquet(connection: duckdb.DuckDBPyConnection, query: str, target: Path, *options: str) -> int:
    """Write the rows of a query into a Parquet file (with ``PARTITION_BY ..`` a folder); return how many there are."""
    # Dictionaries pay for words of which there are a few; of other columns they cost time and save nothing.
    settings = ", ".join(
        (
            "FORMAT parquet, PARQUET_VERSION v2, COMPRESSION zstd, COMPRESSION_LEVEL 1",
            "DICTIONARY_SIZE_LIMIT 64, WRITE_BLOOM_FILTER false",
            *options,
        )
    )
    row = connection.execute(f"COPY ({query}) TO {literal(str(target))} ({settings})").fetchone()
    assert row is not None
    return int(row[0])


def create_view(
    connection: duckdb.DuckDBPyConnection, name: str, parts: Sequence[Path], *, temporary: bool = False
) -> None:
    """Define a view over Parquet parts; an event table without parts is an empty view with its columns."""
    view = f'CREATE OR REPLACE {"TEMP " if temporary else ""}VIEW "{name}"'
    if parts:
        if is_url(parts[0]):
            _register(connection, parts[0])
        files = read_parquet(parts, union_by_name=True)
        connection.execute(f"{view} AS SELECT * FROM {files}")
    else:
        columns = ", ".join(f'NULL::{duckdb_type(column.type)} AS "{column.name}"' for column in SCHEMAS[name])
        connection.execute(f"{view} AS SELECT {columns} WHERE false")


def _register(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Let a connection read what URLs of this kind name."""
    system = ranged(path)
    protocols = [system.protocol] if isinstance(system.protocol, str) else list(system.protocol)
    if protocols[0] not in connection.list_filesystems():
        connection.register_filesystem(system)

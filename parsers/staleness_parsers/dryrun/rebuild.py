"""Joining the streams: which version made which tokens (guide 3), as SQL over the staged tables.

The queries are files, each headed by what a row of its product is, and build on each other:

* ``sql/join``: from rows to steps and requests, and to the occupancy rows that have to be read;
* ``sql/tracing``: from the token counts read there to runs of tokens of one version;
* ``sql/tables``: rows of the event tables; what stands before ``_`` in a file's name is the table.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

    from staleness_audit.parser import Sink

_MACROS = (
    # Ids restart with every simulation, so they bear its number where there are several.
    """
    CREATE TEMP MACRO trajectory_name(attempt, rid) AS
        CASE WHEN (SELECT count(*) FROM simulation) > 1 THEN attempt || '/' || rid ELSE rid::VARCHAR END
    """,
    # Simulated seconds as a UTC time from the epoch on, behind the simulations before.
    """
    CREATE TEMP MACRO moment(seconds, shift) AS make_timestamptz((round(seconds * 1e6) + shift * 1000000)::BIGINT)
    """,
)


def prepare(connection: duckdb.DuckDBPyConnection) -> None:
    """Define the streams by attempt (``request``, ``train``, ``instance``); needs table ``part``."""
    for query in _queries("join")[:3]:
        connection.execute(query)


def join(connection: duckdb.DuckDBPyConnection) -> None:
    """Find steps, requests and the occupancy rows to read (``wanted``, ``last_place``); needs table ``simulation``."""
    for query in (*_MACROS, *_queries("join")[3:]):
        connection.execute(query)


def trace(connection: duckdb.DuckDBPyConnection) -> None:
    """Derive the runs of tokens (``span``) once ``state`` is filled."""
    for query in _queries("tracing"):
        connection.execute(query)


def write(connection: duckdb.DuckDBPyConnection, sink: Sink) -> None:
    """Write all event tables."""
    for name, query in zip(_names("tables"), _queries("tables"), strict=True):
        sink.write_query(name.removesuffix(".sql").split("_")[0], connection, query)


@cache
def _names(folder: str) -> tuple[str, ...]:
    files = (resources.files("staleness_parsers.dryrun") / "sql" / folder).iterdir()
    return tuple(sorted(file.name for file in files if file.name.endswith(".sql")))


@cache
def _queries(folder: str) -> tuple[str, ...]:
    root = resources.files("staleness_parsers.dryrun") / "sql" / folder
    return tuple((root / name).read_text() for name in _names(folder))

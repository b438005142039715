"""Joining the streams: which version made which tokens (guide 3), as SQL over the staged tables.

The queries are files, each headed by what a row of its product is, and build on each other:

* ``sql/join``: from rows to steps and requests, and to the occupancy rows that have to be read;
* ``sql/tracing``: from the token counts read there to runs of tokens of one version, for the requests of a block;
* ``sql/blocks``: rows of the event tables that tell of single requests, for those of a block, and ``sql/tally``, what
  is found out about them; ``sql/tables``: all other rows. What stands before ``_`` in a file's name is the table.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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
    # Where in the run a request belongs: its number, after those of earlier simulations.
    """
    CREATE TEMP MACRO era_of(attempt, rid) AS
        attempt::BIGINT * 1099511627776 + greatest(least(rid // 32, 1099511627775), 0)
    """,
)


def prepare(connection: duckdb.DuckDBPyConnection) -> None:
    """Define the streams by attempt (``request``, ``train``, ``instance``); needs table ``part``."""
    for query in _queries("join")[:3]:
        connection.execute(query)


def join(connection: duckdb.DuckDBPyConnection) -> None:
    """Find steps, requests and the occupancy rows to read (``wanted``, ``last_place``); needs table ``simulation``.

    What tells of single requests is in views by era: ``lives``, ``cands``, ``insides``, ``places``.
    """
    for query in (*_MACROS, *_queries("join")[3:]):
        connection.execute(query)


def trace(connection: duckdb.DuckDBPyConnection, read: Callable[[], None]) -> None:
    """Derive the runs of tokens (``span``) of a block; ``read`` fills ``state`` and ``unreadable``."""
    empty = 2
    for query in _queries("tracing")[:empty]:
        connection.execute(query)
    read()
    for query in _queries("tracing")[empty:]:
        connection.execute(query)


def write(connection: duckdb.DuckDBPyConnection, sink: Sink, read: Callable[[], None]) -> list[tuple[Any, ...]]:
    """Write all event tables; return the rows of ``sql/tally``. ``read``: see ``trace``."""
    for table, query in _tables("tables"):
        sink.write_query(table, connection, query)
    return sink.write_blocks(
        connection,
        ("lives", "cands", "insides", "places"),
        _tables("blocks"),
        beside=("rules", "part", "torn"),
        first=lambda: trace(connection, read),
        tally=(resources.files("staleness_parsers.dryrun") / "sql" / "tally.sql").read_text(),
    )


def _tables(folder: str) -> list[tuple[str, str]]:
    """Event tables and the queries of their rows."""
    names = [name.removesuffix(".sql").split("_")[0] for name in _names(folder)]
    return list(zip(names, _queries(folder), strict=True))


@cache
def _names(folder: str) -> tuple[str, ...]:
    files = (resources.files("staleness_parsers.dryrun") / "sql" / folder).iterdir()
    return tuple(sorted(file.name for file in files if file.name.endswith(".sql")))


@cache
def _queries(folder: str) -> tuple[str, ...]:
    root = resources.files("staleness_parsers.dryrun") / "sql" / folder
    return tuple((root / name).read_text() for name in _names(folder))

"""Ingestion without a disk: what a parser writes is held in memory, where it can be read again and looked at.

Parquet and a DuckDB of its own cost several times what a parser does with a small file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

from staleness_audit.discovery import RunFiles
from staleness_audit.engine import session
from staleness_audit.ingest import join_units
from staleness_audit.parser import RunFacts, Unit
from staleness_audit.plugins import Choice
from staleness_audit.sink import PartWriter, typed_query
from staleness_audit.tables import SCHEMAS, duckdb_type

Parts = Mapping[str, pl.DataFrame]
"""What one unit wrote, by table."""


class HeldSink(PartWriter):
    """Holds the tables of one unit, as reading their files again would show them."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.parts: dict[str, pl.DataFrame] = {}

    def write_query(self, table: str, connection: duckdb.DuckDBPyConnection, query: str) -> None:
        """See ``parser.Sink.write_query``."""
        self.write(table, connection.sql(typed_query(table, connection, query)).to_arrow_table())

    def _flush(self, table: str) -> None:
        parts = self._pending.pop(table, [])
        del self._pending_rows[table]
        data = pa.concat_tables(parts, promote_options="none" if table in SCHEMAS else "permissive")
        data.validate(full=True)
        frame = pl.from_arrow(data)
        assert isinstance(frame, pl.DataFrame)
        frame = frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
        self.parts[table] = pl.concat([self.parts[table], frame]) if table in self.parts else frame


@dataclass
class HeldParts:
    """Implements ``parser.Staged`` over the parts of all units; ``writers``: the unit of each row of a table."""

    tables: dict[str, pl.DataFrame]
    writers: dict[str, pl.Series]
    memory: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, units: list[Parts]) -> HeldParts:
        """Join the parts of units, which must agree on the types of a table's columns."""
        tables, writers = {}, {}
        for table in dict.fromkeys(table for unit in units for table in unit):
            parts = [unit[table] for unit in units if table in unit]
            types: dict[str, pl.DataType] = {}
            for part in parts:
                for column, kind in part.schema.items():
                    assert types.setdefault(column, kind) == kind, f"{table}.{column}: {types[column]} and {kind}"
            tables[table] = pl.concat(parts, how="diagonal")
            names = [name for name, unit in enumerate(units) if table in unit for _ in range(unit[table].height)]
            writers[table] = pl.Series("unit", names).cast(pl.String)
        return cls(tables, writers)

    def has(self, table: str) -> bool:
        """See ``parser.Staged.has``."""
        return table in self.tables

    def units(self, table: str) -> Collection[str]:
        """See ``parser.Staged.units``."""
        return set(self.writers.get(table, ()))

    def scan(self, table: str, *, units: Collection[str] | None = None, named: bool = False) -> pl.LazyFrame:
        """See ``parser.Staged.scan``."""
        rows = self.tables[table] if self.has(table) else _empty(table)
        writers = self.writers.get(table, pl.Series("unit", [], pl.String))
        rows = rows.with_columns(writers) if named else rows
        return (rows if units is None else rows.filter(writers.is_in(list(units)))).lazy()

    def connect(self) -> duckdb.DuckDBPyConnection:
        """See ``parser.Staged.connect``: a catalogue of its own in the one DuckDB of this process."""
        connection = session()
        connection.execute("USE memory; DETACH DATABASE IF EXISTS held; ATTACH ':memory:' AS held; USE held")
        for table in {*self.tables, *SCHEMAS}:
            if self.has(table):
                connection.register("held_rows", self.tables[table].to_arrow())
                connection.execute(f'CREATE TABLE "{table}" AS SELECT * FROM held_rows')
                connection.unregister("held_rows")
            else:
                columns = ", ".join(f'"{column.name}" {duckdb_type(column.type)}' for column in SCHEMAS[table])
                connection.execute(f'CREATE TABLE "{table}" ({columns})')
        return connection


def _empty(table: str) -> pl.DataFrame:
    frame = pl.from_arrow(SCHEMAS[table].empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


@dataclass(frozen=True)
class Told:
    """A run as it was read: the event tables with a row, and what holds for the whole run."""

    tables: Mapping[str, pl.DataFrame]
    facts: RunFacts


def read_run(run: RunFiles, choice: Choice, kept: dict[str, Parts], *, keep: bool = False) -> Told:
    """Do what ingestion does; units in ``kept`` are not read again, and with ``keep`` those that are read are kept."""
    units: list[Parts] = []
    read: set[str] = set()
    for unit in choice.parser.plan(run):
        read |= {piece.source for piece in unit.pieces}
        parts = kept.get(repr(unit))
        if parts is None:
            parts = _read_unit(unit, run, choice)
            if keep:
                kept[repr(unit)] = parts
        units.append(parts)
    with HeldSink() as sink:
        facts = join_units(run, choice, HeldParts.of(units), sink, read)
    written = HeldParts.of(
        [{table: part for table, part in each.items() if table in SCHEMAS} for each in [*units, sink.parts]]
    )
    return Told(written.tables, facts)


def _read_unit(unit: Unit, run: RunFiles, choice: Choice) -> Parts:
    with HeldSink() as sink:
        choice.parser.read(unit, run, sink)
    return sink.parts

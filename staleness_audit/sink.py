"""Writing tables: rows in, Parquet parts out, one file per table and unit (used by ingestion only)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from staleness_audit.engine import write_parquet
from staleness_audit.parser import Era, Sink
from staleness_audit.possible import Impossible, holds_impossible, possible, within_64_bits
from staleness_audit.tables import SCHEMAS, WORD, duckdb_type

ROW_GROUP_ROWS = 1 << 18
DIAGNOSTICS_PER_CODE = 100
_DICTIONARY_COLUMNS = {
    name: [column.name for column in schema if column.type == WORD] for name, schema in SCHEMAS.items()
}


def conform(table: str, rows: pl.DataFrame | pa.Table) -> pa.Table:
    """Bring rows into the schema of an event table: missing columns become null, types are cast without loss.

    Raises:
        ValueError: a column the table does not have, or a value that does not fit its type.
    """
    data = rows.to_arrow() if isinstance(rows, pl.DataFrame) else rows
    schema = SCHEMAS[table]
    if unknown := sorted(set(data.column_names) - set(schema.names)):
        raise ValueError(f"table {table} has no column {', '.join(unknown)}")
    columns = []
    for column in schema:
        if column.name not in data.column_names:
            columns.append(pa.nulls(data.num_rows, column.type))
            continue
        values = data.column(column.name)
        try:
            columns.append(values if values.type == column.type else _cast(values, column.type))
        except pa.ArrowInvalid as error:
            raise ValueError(f"{table}.{column.name}: {error}") from error
    return pa.table(columns, schema=schema)


def _cast(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_null(values.type):
        return pa.chunked_array([pa.nulls(len(values), target)])
    if target == WORD and not pa.types.is_dictionary(values.type):
        return values.cast(pa.string()).dictionary_encode()
    return values.cast(target)


def typed_query(table: str, connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """Return SQL that brings the rows of a query into the schema of an event table.

    Raises:
        ValueError: a column the table does not have.
    """
    schema = SCHEMAS[table]
    found = [column[0] for column in connection.execute(f"SELECT * FROM ({query}) LIMIT 0").description]
    if unknown := sorted(set(found) - set(schema.names)):
        raise ValueError(f"table {table} has no column {', '.join(unknown)}")
    columns = ", ".join(
        # A word may stay an enumeration, which is cheaper to write and reads back as text.
        f'{name} AS "{name}"'
        if name in found and column.type == WORD
        else f'CAST({name if name in found else "NULL"} AS {duckdb_type(column.type)}) AS "{name}"'
        for column in schema
        for name in [column.name]
    )
    return f"SELECT {columns} FROM ({query})"


class PartWriter:
    """Writes the tables of one unit into a folder, ``<table>.parquet`` each. Implements ``parser.Sink``.

    Use as a context manager; leaving it closes the files. ``rows`` counts them per table.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: Counter[str] = Counter()
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._pending: dict[str, list[pa.Table]] = {}
        self._pending_rows: Counter[str] = Counter()
        self._diagnostics: list[dict[str, object]] = []
        self._codes: Counter[str] = Counter()
        self._queries: Counter[str] = Counter()

    def write(self, table: str, rows: pl.DataFrame | pa.Table) -> None:
        """See ``parser.Sink.write``."""
        if not len(rows):
            return
        impossible: list[Impossible] = []
        if isinstance(rows, pl.DataFrame):
            rows, impossible = within_64_bits(rows)
            rows = rows.to_arrow()
        data = rows
        if table in SCHEMAS:
            data, more = possible(data)
            data, impossible = conform(table, data), [*impossible, *more]
        for row in impossible:
            message = f"Of {table}, {row.said}; restore the file."
            self.diagnose("error", "impossible", message, source=row.source, line=row.line, opens="training")
        self.rows[table] += data.num_rows
        self._pending.setdefault(table, []).append(data)
        self._pending_rows[table] += data.num_rows
        if self._pending_rows[table] >= ROW_GROUP_ROWS:
            self._flush(table)

    def write_query(self, table: str, connection: duckdb.DuckDBPyConnection, query: str) -> None:
        """See ``parser.Sink.write_query``."""
        typed = typed_query(table, connection, query)
        self._queries[table] += 1
        target = self.folder / f"{table}.{self._queries[table]}.parquet"
        rows = write_parquet(connection, typed, target)
        if rows and not holds_impossible(target):
            self.rows[table] += rows
            return
        with pq.ParquetFile(target) as written:
            for batch in written.iter_batches():
                self.write(table, pa.Table.from_batches([batch]))
        target.unlink()

    def write_blocks(
        self,
        connection: duckdb.DuckDBPyConnection,
        relations: Sequence[str],
        queries: Sequence[tuple[str, str]],
        *,
        beside: Sequence[str] = (),
        first: Callable[[], None] | None = None,
        tally: str | None = None,
    ) -> list[tuple[Any, ...]]:
        """See ``parser.Sink.write_blocks``: all rows are one block."""
        for relation in relations:
            connection.execute(f"CREATE OR REPLACE TEMP VIEW block_{relation} AS SELECT * FROM {relation}")
        if first is not None:
            first()
        for table, query in queries:
            self.write_query(table, connection, query)
        return connection.execute(tally).fetchall() if tally is not None else []

    def write_eras(self, eras: Sequence[Era], write: Callable[[Sequence[int], Sink], None]) -> None:
        """See ``parser.Sink.write_eras``: all at once."""
        if eras:
            write([era.number for era in eras], self)

    def diagnose(
        self,
        severity: Literal["error", "warning", "note"],
        code: str,
        message: str,
        *,
        source: str | None = None,
        line: int | None = None,
        locator: str | None = None,
        opens: Literal["training", "fates"] | None = None,
    ) -> None:
        """See ``parser.Sink.diagnose``."""
        self._codes[code] += 1
        if self._codes[code] <= DIAGNOSTICS_PER_CODE:
            self._diagnostics.append(
                {
                    "source": source,
                    "line": line,
                    "locator": locator,
                    "severity": severity,
                    "code": code,
                    "message": message,
                    "opens": opens,
                }
            )
        elif self._codes[code] == DIAGNOSTICS_PER_CODE + 1:
            # The summary row keeps what the unlisted ones open; its count is filled in on closing.
            self._diagnostics.append(
                {"severity": severity, "code": code, "source": source, "opens": opens, "message": None}
            )

    def _flush(self, table: str) -> None:
        parts = self._pending.pop(table, [])
        del self._pending_rows[table]
        if not parts:
            return
        data = pa.concat_tables(parts) if table in SCHEMAS else pa.concat_tables(parts, promote_options="permissive")
        writer = self._writers.get(table)
        if writer is None:
            dictionary = _DICTIONARY_COLUMNS.get(table, True)
            writer = pq.ParquetWriter(
                self.folder / f"{table}.parquet",
                data.schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=dictionary,
                # Without Arrow's own schema all parts read alike, whoever wrote them: words are plain text.
                store_schema=False,
            )
            self._writers[table] = writer
        writer.write_table(data, row_group_size=ROW_GROUP_ROWS)

    def __enter__(self) -> PartWriter:
        """Start writing."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close all parts (also on an error, so that no file handle is left)."""
        if kind is None:
            self._write_diagnostics()
            for table in list(self._pending):
                self._flush(table)
        for writer in self._writers.values():
            writer.close()

    def _write_diagnostics(self) -> None:
        for row in self._diagnostics:
            if row["message"] is None:
                more = self._codes[str(row["code"])] - DIAGNOSTICS_PER_CODE
                row["message"] = f"{more} more of {row['code']} are not listed one by one."
        if self._diagnostics:
            schema = SCHEMAS["diagnostics"]
            self.write("diagnostics", pa.Table.from_pylist(self._diagnostics, schema=schema))

"""Writing event-table rows: a builder that gives every row its provenance and hands tables on in batches."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

from staleness_audit.parser import Sink
from staleness_audit.readers.numbers import moment
from staleness_audit.tables import SCHEMAS


class Rows:
    """Collects rows per event table."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def add(self, table: str, place: Mapping[str, Any] | None, evidence: str = "derived", **row: object) -> None:
        """Take one row; ``place`` is anything with ``source`` and perhaps ``line`` and ``locator``."""
        where = {key: place.get(key) for key in ("source", "line", "locator")} if place else {}
        rows = self._rows.setdefault(table, [])
        rows.append({**where, "evidence": evidence, **row})
        if len(rows) >= 1 << 15:
            self._flush(table)

    def close(self) -> None:
        """Hand on everything."""
        for table in list(self._rows):
            self._flush(table)

    def _flush(self, table: str) -> None:
        rows = self._rows.pop(table, [])
        names = {name for row in rows for name in row}
        schema = pa.schema([column for column in SCHEMAS[table] if column.name in names])
        plain = pa.schema(
            [(column.name, pa.string() if pa.types.is_dictionary(column.type) else column.type) for column in schema]
        )
        self.sink.write(table, pa.Table.from_pylist(rows, schema=plain))


def time(seconds: float | None) -> datetime | None:
    """Return seconds since 1970 as a time."""
    return moment(seconds)

"""Rows of the event tables, gathered and written a block at a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from staleness_audit.parser import Sink
from staleness_audit.tables import SCHEMAS

_FLUSH: Final = 20_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Interval = tuple[int | None, int | None]


def moment(nanoseconds: int | None) -> datetime | None:
    """A time of a span (nanoseconds since 1970) as the tables have it; None where it is beyond all calendars."""
    try:
        return None if nanoseconds is None else _EPOCH + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        return None


class Rows:
    """Writes rows with the place that says so: ``place`` is any row with ``source``, ``line``, ``locator``."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._rows: dict[str, list[dict[str, Any]]] = {}

    def add(self, table: str, place: Mapping[str, Any], **cells: Any) -> None:
        """Add one row; evidence is ``derived`` unless said otherwise."""
        rows = self._rows.setdefault(table, [])
        where = {key: place.get(key) for key in ("source", "line", "locator")}
        rows.append({"evidence": "derived", **where, **cells})
        if len(rows) >= _FLUSH:
            self._write(table)

    def trajectory(self, place: Mapping[str, Any], key: str, group: str | None, attempt: int) -> None:
        """Add a trajectory that a record of its own names."""
        self.add(
            "trajectories",
            place,
            trajectory_id=key,
            group_id=group,
            attempt=attempt,
            role="train",
            anonymous=False,
            multiplicity_lo=1,
            multiplicity_hi=1,
            evidence="recorded",
        )

    def span(
        self, place: Mapping[str, Any], key: str, index: int, tokens: Interval, versions: Interval, **cells: Any
    ) -> None:
        """Add tokens of a version interval; weights only get newer."""
        self.add(
            "spans",
            place,
            trajectory_id=key,
            span_index=index,
            tokens_lo=tokens[0],
            tokens_hi=tokens[1],
            version_lo=versions[0],
            version_hi=versions[1],
            monotone=True,
            **cells,
        )

    def close(self) -> None:
        """Write what is left."""
        for table in list(self._rows):
            self._write(table)

    def _write(self, table: str) -> None:
        rows = self._rows.pop(table)
        kept = pa.schema([column for column in SCHEMAS[table] if any(column.name in row for row in rows)])
        self._sink.write(table, pa.Table.from_pylist(rows, schema=kept))

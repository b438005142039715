"""Rows of the event tables, collected and written together."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from staleness_audit.parser import Sink
from staleness_audit.tables import SCHEMAS

Row = dict[str, Any]
Interval = tuple[int, int | None]
_FLUSH: Final = 1 << 16


class Rows:
    """Buffers rows per table, so that Parquet is written in large pieces.

    While ``again`` is set, classes and their tokens may be none: a step that was rolled back took groups that the next
    launch found in the checkpoint's buffer and may have used once more, which must not count twice.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.again = False
        self._rows: dict[str, list[Row]] = {}

    def add(self, table: str, place: Row, /, **cells: Any) -> None:
        """Add a row that ``place`` (a staged line, scalar or row) says or implies."""
        where = {"source": place.get("source"), "line": place.get("line")}
        if place.get("record") is not None:
            where["locator"] = f"record {place['record']}"
        rows = self._rows.setdefault(table, [])
        rows.append({"evidence": "recorded", **where, **cells})
        if len(rows) >= _FLUSH:
            self._write(table)

    def close(self) -> None:
        """Write what is left."""
        for table in list(self._rows):
            self._write(table)

    def _write(self, table: str) -> None:
        rows = self._rows.pop(table)
        schema = SCHEMAS[table]
        kept = pa.schema([column for column in schema if any(column.name in row for row in rows)])
        self._sink.write(table, pa.Table.from_pylist(rows, schema=kept))

    def anonymous(self, place: Row, name: str, attempt: int, trajectories: Interval, groups: Interval) -> str:
        """Describe a class of trajectories without identity, and how many groups they make up; returns its id."""
        key = f"anonymous:{name}"
        self.add(
            "trajectories",
            place,
            trajectory_id=key,
            group_id=key,
            attempt=attempt,
            role="train",
            anonymous=True,
            multiplicity_lo=0 if self.again else trajectories[0],
            multiplicity_hi=trajectories[1],
        )
        self.add(
            "groups",
            place,
            group_id=key,
            attempt=attempt,
            multiplicity_lo=0 if self.again else groups[0],
            multiplicity_hi=groups[1],
        )
        return key

    def span(self, place: Row, key: str, index: int, tokens: Interval, versions: tuple[int | None, int | None]) -> None:
        """Add tokens of a version interval; inside it versions never decrease, as weights only get newer."""
        self.add(
            "spans",
            place,
            trajectory_id=key,
            span_index=index,
            tokens_lo=0 if self.again else tokens[0],
            tokens_hi=tokens[1],
            version_lo=versions[0],
            version_hi=versions[1],
            monotone=True,
        )

    def fate(self, place: Row, key: str, kind: str, *, attempt: int, step: int | None, reason: str, count: int) -> None:
        """Add the end of a class of untrained trajectories, of which no tokens are known."""
        self.add("spans", place, trajectory_id=key, span_index=0, tokens_lo=0, version_lo=0, monotone=True)
        self.add(
            "events",
            place,
            seq=place.get("line"),
            kind=kind,
            trajectory_id=key,
            attempt=attempt,
            step=step,
            multiplicity=count,
            reason=reason,
        )

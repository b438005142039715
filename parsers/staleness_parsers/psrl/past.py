"""What a look at a growing run keeps for the next one (``Staged.memory``), so that each costs what is new.

Staged rows stand for whole lines of files that are only appended to: a line that was followed stays as it is. In an
audit nothing is kept, and the same code goes over all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import polars as pl

from staleness_audit.parser import Staged
from staleness_audit.readers.units import Row, rows_of


class Followed(Protocol):
    """A state that goes on from where it is."""

    def follow(self, rows: Sequence[Row]) -> None:
        """Take further rows, in order."""


State = TypeVar("State", bound=Followed)


@dataclass
class _Past:
    """A state, what it was begun with, the last line taken of each source, and the last source of each author."""

    state: Any
    key: Hashable
    lines: dict[str, int] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


def follow(
    staged: Staged,
    table: str,
    begin: Callable[[], State],
    *,
    key: Hashable = None,
    author: str | None = None,
    told: pl.Expr | None = None,
) -> State:
    """Take a table's rows in the order of their sources and lines, from where the last look was.

    ``key``: what the state rests on beside the rows. Where rows come that belong before taken ones of the same
    ``author`` (another file, or an earlier one that grew), all are taken from the first on. Only rows that are ``told``
    are taken, none of which may stand for a line that is not yet whole.
    """
    past = staged.memory.get(table)
    if past is None or past.key != key:
        past = staged.memory[table] = _Past(begin(), key)
    state: State = past.state
    if not staged.has(table):
        return state
    rows = staged.scan(table) if told is None else staged.scan(table).filter(told)
    found = _beyond(rows, past.lines)
    authors = found.with_columns(author=pl.lit("") if author is None else pl.col(author)).group_by("author")
    ends = authors.agg(first=pl.col("source").min(), last=pl.col("source").max())
    if any(first < past.sources.get(name, "") for name, first, _ in ends.iter_rows()):
        del staged.memory[table]
        return follow(staged, table, begin, key=key, author=author, told=told)
    state.follow(rows_of(found))
    past.lines |= dict(found.group_by("source").agg(pl.col("line").max()).iter_rows())
    past.sources |= {name: last for name, _, last in ends.iter_rows()}
    return state


def _beyond(rows: pl.LazyFrame, lines: Mapping[str, int]) -> pl.DataFrame:
    """Rows of lines after these, in order. By comparisons, by which Parquet files are passed over without a look."""
    if lines:
        further = [(pl.col("source") == source) & (pl.col("line") > line) for source, line in lines.items()]
        rows = rows.filter(pl.any_horizontal(~pl.col("source").is_in(list(lines)), *further))
    return rows.sort("source", "line", maintain_order=True).collect()

"""What rows of event tables cannot say, whatever a log does: numbers below zero or beyond any run, crossed intervals.

A parser that read a damaged digit must not let it count as a fact, nor let it end the audit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_MOST: Final = (1 << 31) - 2
_NAMES: Final = frozenset({"step", "attempt"})
_VERSIONS: Final = frozenset({"version_lo", "version_hi", "v_train_lo", "v_train_hi"})
_LAGS: Final = frozenset({"staleness_lo", "staleness_hi"})
_COUNTS: Final = frozenset(
    {"tokens_lo", "tokens_hi", "loss_tokens_lo", "loss_tokens_hi", "multiplicity_lo", "multiplicity_hi", "members_lo"}
    | {"members_hi", "multiplicity", "prompt_tokens", "waited_us", "updates"}
)
_HELD: Final = _NAMES | _VERSIONS | _LAGS | _COUNTS


@dataclass(frozen=True)
class Impossible:
    """What a row said: the value, what became of it, and the row's place."""

    said: str
    source: str | None
    line: int | None


def within_64_bits(rows: pl.DataFrame) -> tuple[pl.DataFrame, list[Impossible]]:
    """Return rows in which integers beyond 64 bits are unknown, and the first row of each column that had one."""
    found: list[Impossible] = []
    for name in (name for name, kind in rows.schema.items() if kind == pl.Int128):
        narrow = rows[name].cast(pl.Int64, strict=False)
        beyond = rows.filter(narrow.is_null() & rows[name].is_not_null())
        if len(beyond):
            row = beyond.row(0, named=True)
            said = f"{name}: it says a number beyond 64 bits, which is impossible; it is unknown"
            found.append(Impossible(said, row.get("source"), row.get("line")))
        rows = rows.with_columns(narrow)
    return rows, found


def possible(rows: pa.Table) -> tuple[pa.Table, Sequence[Impossible]]:
    """Return rows without what is impossible, and the first row of each kind that said it.

    A row of an impossible step or attempt is left out; an impossible version, lag or count is unknown, but of a lower
    end that is a count, zero is known (the least that can be; a null would stand for "as many as there are"); ends of
    an interval that are crossed are put in order.
    """
    found: list[Impossible] = []
    for name in rows.column_names:
        if name in _HELD and pa.types.is_integer(rows.schema.field(name).type):
            rows = _within(rows, name, found)
    for low in rows.column_names:
        high = f"{low.removesuffix('_lo')}_hi"
        if low.endswith("_lo") and high in rows.column_names:
            rows = _in_order(rows, low, high, found)
    return rows, found


def holds_impossible(part: Path) -> bool:
    """Whether ``possible`` would change a Parquet file that DuckDB wrote.

    The file's statistics tell of numbers; only the ends of intervals are compared row by row.
    """
    with pq.ParquetFile(part) as rows:
        return any(_group_holds_impossible(rows, group) for group in range(rows.num_row_groups))


def _group_holds_impossible(rows: pq.ParquetFile, group: int) -> bool:
    told = rows.metadata.row_group(group)
    ends: dict[str, tuple[int, int]] = {}
    for column in (told.column(index) for index in range(told.num_columns)):
        name, known = column.path_in_schema, column.statistics
        if name not in _HELD:
            continue
        if known is not None and known.has_min_max:
            ends[name] = known.min, known.max
        elif known is None or known.null_count < told.num_rows:
            return True  # nothing is told: look at every row
    if any(not _is_within(name, low, high) for name, (low, high) in ends.items()):
        return True
    highs = {name: f"{name.removesuffix('_lo')}_hi" for name in ends if name.endswith("_lo")}
    pairs = [(low, high) for low, high in highs.items() if high in ends and ends[low][1] > ends[high][0]]
    if not pairs:
        return False
    read = rows.read_row_group(group, columns=[name for pair in pairs for name in pair], use_threads=False)
    return any(pc.any(pc.greater(read.column(low), read.column(high))).as_py() for low, high in pairs)


def _limits(name: str) -> tuple[int, int | None]:
    """The least and the greatest that a column can say."""
    return (-_MOST if name in _LAGS else 0), (None if name in _COUNTS else _MOST)


def _is_within(name: str, low: int, high: int) -> bool:
    least, most = _limits(name)
    return low >= least and (most is None or high <= most)


def _within(rows: pa.Table, name: str, found: list[Impossible]) -> pa.Table:
    column = rows.column(name)
    ends = pc.min_max(column)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is None or _is_within(name, low, high):
        return rows
    least, most = _limits(name)
    bad = pc.less(column, least)
    if most is not None:
        bad = pc.or_(bad, pc.greater(column, most))
    bad = pc.fill_null(bad, False)
    least_count = name in _COUNTS and name.endswith("_lo")
    then = "the record was left out" if name in _NAMES else "it counts as none" if least_count else "it is unknown"
    first = _first(rows, bad, (name,), "{}: it says {}, which is impossible; " + then)
    found.append(first)
    if name in _NAMES:
        return rows.filter(pc.invert(bad))
    instead = pa.scalar(0 if least_count else None, column.type)
    return rows.set_column(rows.column_names.index(name), name, pc.if_else(bad, instead, column))


def _in_order(rows: pa.Table, low: str, high: str, found: list[Impossible]) -> pa.Table:
    least, most = rows.column(low), rows.column(high)
    if pa.types.is_null(least.type) or pa.types.is_null(most.type):
        return rows
    crossed = pc.fill_null(pc.greater(least, most), False)
    if not pc.any(crossed).as_py():
        return rows
    first = _first(rows, crossed, (low, high), "{}: {} to {} exclude each other; all between was taken as possible")
    found.append(first)
    for name, value in ((low, pc.if_else(crossed, most, least)), (high, pc.if_else(crossed, least, most))):
        rows = rows.set_column(rows.column_names.index(name), name, value)
    return rows


def _first(rows: pa.Table, bad: pa.ChunkedArray, names: Sequence[str], words: str) -> Impossible:
    """Tell the first of some rows: the columns, what is in them, and the row's place."""
    row = rows.slice(pc.index(bad, True).as_py(), 1).to_pylist()[0]
    said = words.format(names[0].removesuffix("_lo").removesuffix("_hi"), *(row[name] for name in names))
    return Impossible(said, row.get("source"), row.get("line"))

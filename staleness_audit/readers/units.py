"""Staged rows by the unit that wrote them: a watch reads those of a unit, or takes them apart, only once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import polars as pl

from staleness_audit.parser import Staged

Row = dict[str, Any]
Made = TypeVar("Made")


def by_unit(staged: Staged, table: str, make: Callable[[list[Row]], Made], *, key: str = "") -> dict[str, Made]:
    """Return what ``make`` makes of the rows of each unit, by its name; nothing if nobody wrote to the table.

    A unit's name changes with its input, so what was made of one at an earlier look of a watch (``Staged.memory``)
    stays. ``key``: what else it depends on, as text.
    """
    name = f"{table} by unit {key}"
    known: dict[str, Made] = staged.memory.get(name, {})
    units = staged.units(table)
    found = {unit: made for unit, made in known.items() if unit in units}
    if new := set(units) - found.keys():
        rows = staged.scan(table, units=new, named=True).collect()
        several: dict[str, list[Row]] = {}
        for unit, row in zip(rows["unit"].to_list(), rows_of(rows.drop("unit")), strict=True):
            several.setdefault(unit, []).append(row)
        found |= {unit: make(each) for unit, each in several.items()}
    staged.memory[name] = found
    return found


def frame_of(staged: Staged, table: str) -> pl.DataFrame:
    """Return the rows of a table that each unit wrote some of, with a column ``unit``; in no order.

    A watch opens the parts of a unit only once (``Staged.memory``).
    """
    name = f"{table} as a frame"
    units = staged.units(table)
    known: pl.DataFrame | None = staged.memory.get(name)
    if known is None:
        found = staged.scan(table, named=True).collect()
    else:
        kept = known.filter(pl.col("unit").is_in(units))
        new = set(units) - set(kept["unit"])
        found = pl.concat([kept, staged.scan(table, units=new, named=True).collect()]) if new else kept
    staged.memory[name] = found
    return found


def rows_of(found: pl.DataFrame) -> list[Row]:
    """Take a frame apart, by columns: Polars makes the lists in cells many times faster so than row by row."""
    cells = zip(*(column.to_list() for column in found.iter_columns()), strict=True)
    names = found.columns
    return [dict(zip(names, row, strict=True)) for row in cells]

"""Rows of the big staged tables, which a watch collects once per unit: the name of a unit tells its input."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import polars as pl

from staleness_audit.parser import Staged
from staleness_parsers.areal.content import Group, groups_of
from staleness_parsers.areal.launches import Row


def sessions_of(staged: Staged) -> list[Row]:
    """All session records in the order of files and lines; a unit is a piece of one file."""
    units: list[list[Row]] = _by_unit(staged, "areal_sessions", "areal_sessions", list)
    units.sort(key=lambda rows: (rows[0]["source"], rows[0]["line"]))
    return [*chain.from_iterable(units)]


def dumps_of(staged: Staged, *, shared: bool) -> dict[int, list[Group]]:
    """All groups of dumped rows by task, in the order of files and lines; a unit has whole files. See ``groups_of``."""
    units: list[dict[int, list[Group]]] = _by_unit(
        staged, "areal_rows", f"areal_rows {shared}", lambda rows: groups_of(rows, shared=shared)
    )
    found: dict[int, list[Group]] = {}
    for unit in units:
        for task, groups in unit.items():
            several = found.setdefault(task, [])
            several += groups
            if len(several) > len(groups):
                several.sort(key=lambda group: (group.rows[0]["source"], group.rows[0]["line"]))
    return found


def _by_unit(staged: Staged, table: str, name: str, make: Callable[[list[Row]], Any]) -> list[Any]:
    """What ``make`` makes of the rows of each unit, in order of files and lines; kept under ``name``."""
    if not staged.has(table):
        return []
    units = staged.scan(table, named=True).select(pl.col("unit").unique(maintain_order=True)).collect()["unit"]
    known = staged.memory.get(name, {})
    new = {unit for unit in units if unit not in known}
    made = {}
    if new:
        rows = staged.scan(table, units=new, named=True).collect().sort("source", "line")
        parts = rows.partition_by("unit", as_dict=True, include_key=False)
        made = {unit: make(part.to_dicts()) for (unit,), part in parts.items()}
    staged.memory[name] = {unit: made[unit] if unit in new else known[unit] for unit in units}
    return [*staged.memory[name].values()]

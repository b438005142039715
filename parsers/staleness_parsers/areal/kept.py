"""Rows of the big staged tables, which a watch takes apart once per unit."""

from __future__ import annotations

from itertools import chain
from operator import itemgetter

from staleness_audit.parser import Staged
from staleness_audit.readers.units import by_unit
from staleness_parsers.areal.content import Group, groups_of
from staleness_parsers.areal.launches import Row

_PLACE = itemgetter("source", "line")


def log_of(staged: Staged) -> list[Row]:
    """All lines of the console, in order: copies, for they are put on the run's clock."""
    return [row.copy() for row in _in_order(staged, "areal_log")]


def sessions_of(staged: Staged) -> list[Row]:
    """All session records in the order of files and lines."""
    return _in_order(staged, "areal_sessions")


def _in_order(staged: Staged, table: str) -> list[Row]:
    """Rows of files of lines; a unit is a piece of one file."""
    units = [*by_unit(staged, table, list[Row]).values()]
    units.sort(key=lambda rows: _PLACE(rows[0]))
    return [*chain.from_iterable(units)]


def dumps_of(staged: Staged, *, shared: bool) -> dict[int, list[Group]]:
    """All groups of dumped rows by task, in the order of files and lines; a unit has whole files. See ``groups_of``."""
    units = by_unit(
        staged, "areal_rows", lambda rows: groups_of(sorted(rows, key=_PLACE), shared=shared), key=str(shared)
    )
    found: dict[int, list[Group]] = {}
    for unit in units.values():
        for task, groups in unit.items():
            found.setdefault(task, []).extend(groups)
    for several in found.values():
        several.sort(key=lambda group: _PLACE(group.rows[0]))
    return found

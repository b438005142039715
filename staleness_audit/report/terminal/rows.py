"""Rows of a query: a table on a terminal, tab-separated values on a pipe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from staleness_audit.report.terminal.page import Page

MOST_ROWS = 100
MOST_CHARACTERS = 200
NARROWEST = 14
_ESCAPED = re.compile(r"[^ -\[\]-~]")


def render_rows(names: Sequence[str], rows: Iterable[Sequence[Any]], console: Console) -> None:
    """Show the rows of a query.

    On a terminal: a table of at most ``MOST_ROWS`` rows, cells shortened. Elsewhere: every row in full, separated by
    tabs under a line of names; NULL is empty; tabs, line ends, backslashes and what cannot be printed are written as in
    a string of Python.
    """
    if console.is_terminal:
        _table(names, iter(rows), console)
        return
    _write(names, console)
    for row in rows:
        _write(row, console)


def _write(row: Sequence[Any], console: Console) -> None:
    console.file.write("\t".join("" if value is None else _ESCAPED.sub(_escaped, str(value)) for value in row) + "\n")


def _escaped(found: re.Match[str]) -> str:
    shown = found[0].isprintable() and found[0] != "\\"
    return found[0] if shown else found[0].encode("unicode_escape").decode()


def _table(names: Sequence[str], rows: Iterator[Sequence[Any]], console: Console) -> None:
    page = Page(console)
    titles = [page.plain(name, 80) for name in names]
    shown = list(islice(rows, MOST_ROWS))
    cells = [
        [Text("NULL", "dim") if value is None else Text(page.plain(value, MOST_CHARACTERS)) for value in row]
        for row in shown
    ]
    if _too_wide(titles, cells, console.width):
        _records(titles, cells, page)
    else:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for index, title in enumerate(titles):
            numeric = shown and all(isinstance(row[index], int | float) or row[index] is None for row in shown)
            table.add_column(Text(title), justify="right" if numeric else "left", overflow="fold")
        for row in cells:
            table.add_row(*row)
        console.print(table)
    hidden = sum(1 for _ in rows)
    counted = f"{len(shown)} row{'' if len(shown) == 1 else 's'}"
    more = f"first {counted} of {len(shown) + hidden}; on a pipe, or with --format json, all" if hidden else counted
    console.print(Text(more, "dim"))


def _too_wide(titles: Sequence[str], cells: Sequence[Sequence[Text]], width: int) -> bool:
    """Whether columns would have to be broken every few characters: few may be narrowed to ``NARROWEST``, not more."""
    widths = [max([len(title), *(len(row[index]) for row in cells)]) for index, title in enumerate(titles)]
    return sum(min(each, NARROWEST) + 2 for each in widths) > width


def _records(titles: Sequence[str], cells: Sequence[Sequence[Text]], page: Page) -> None:
    """Show rows one below the other, a line per column."""
    for number, row in enumerate(cells, 1):
        page.print(Text(f"row {number}", "bold"))
        page.facts(zip(titles, row, strict=True))

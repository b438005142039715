"""Rows of a query: a table on a terminal, tab-separated values on a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from staleness_audit.report.terminal.page import Page

MOST_ROWS = 100
MOST_CHARACTERS = 200
_ESCAPES = str.maketrans({"\t": r"\t", "\n": r"\n", "\r": r"\r", "\\": r"\\"})


def render_rows(names: Sequence[str], rows: Iterable[Sequence[Any]], console: Console) -> None:
    """Show the rows of a query.

    On a terminal: a table of at most ``MOST_ROWS`` rows, cells shortened. Elsewhere: every row in full, separated by
    tabs under a line of names; NULL is empty, and tabs, line ends and backslashes inside values are escaped by a backslash.
    """
    if console.is_terminal:
        _table(names, iter(rows), console)
        return
    _write(names, console)
    for row in rows:
        _write(row, console)


def _write(row: Sequence[Any], console: Console) -> None:
    console.file.write("\t".join("" if value is None else str(value).translate(_ESCAPES) for value in row) + "\n")


def _table(names: Sequence[str], rows: Iterable[Sequence[Any]], console: Console) -> None:
    page = Page(console)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shown = list(islice(rows, MOST_ROWS))
    for index, name in enumerate(names):
        numeric = all(isinstance(row[index], int | float) or row[index] is None for row in shown)
        table.add_column(Text(page.plain(name, 80)), justify="right" if numeric and shown else "left", overflow="fold")
    for row in shown:
        table.add_row(
            *(Text("NULL", "dim") if value is None else Text(page.plain(value, MOST_CHARACTERS)) for value in row)
        )
    console.print(table)
    hidden = sum(1 for _ in rows)
    counted = f"{len(shown)} row{'' if len(shown) == 1 else 's'}"
    more = f"first {counted} of {len(shown) + hidden}; on a pipe, or with --format json, all" if hidden else counted
    console.print(Text(more, "dim"))

"""Several audits side by side on a terminal: figures in rows, runs in columns, what is proven to differ marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from staleness_audit.report.terminal.comparison import (
    ASCII_MARKS,
    MARKS,
    apart,
    caveat_words,
    figure_words,
    legend,
    letters,
    names,
    sections,
    value_words,
)
from staleness_audit.report.terminal.page import Page
from staleness_audit.report.terminal.verdict import NAMES, STYLES
from staleness_audit.report.terminal.words import ASCII, shorten

Data = Mapping[str, Any]
TITLE = 32
"""Columns for the title of a figure."""
COLUMN = 16
"""Columns that a run needs."""


def render_comparison(comparison: Data, base: Path, console: Console) -> None:
    """Show a comparison (``check.compare``). Where there are too many runs for one table, the first stands in each."""
    page = Page(console)
    called = letters(len(comparison["runs"]))
    _runs(comparison, called, base, page)
    if comparison["caveats"]:
        page.print()
        page.items((page.glyphs.dot, Text(caveat_words(caveat, called), "yellow")) for caveat in comparison["caveats"])
    marks = ASCII_MARKS if page.glyphs is ASCII else MARKS
    each = max((page.table_width - TITLE) // COLUMN - 1, 1)
    others = list(range(1, len(called)))
    for start in range(0, len(others), each):
        _figures(comparison, [0, *others[start : start + each]], called, marks, page)
    page.print()
    page.print(Text(legend(page, marks), "dim"), 2)


def _runs(comparison: Data, called: Sequence[str], base: Path, page: Page) -> None:
    page.section("Runs compared")
    shared, paths = apart(names(comparison, base))
    if shared:
        page.print(Text(f"in {page.plain(shared)}", "dim"), 2)
    page.print()
    rows = [
        (
            Text(name, "bold"),
            shorten(page.plain(path), 60, page.glyphs),
            page.plain(run["framework"], 20),
            Text(NAMES[run["verdict"]], STYLES[run["verdict"]].rpartition(" ")[2]),
            "none" if run["bound"] is None else str(run["bound"]),
            page.plain(run["unit"], 30),
        )
        for name, path, run in zip(called, paths, comparison["runs"], strict=True)
    ]
    page.table(("", "run", "framework", ("verdict", "keep"), ("bound", "right"), "versions count"), rows)


def _figures(
    comparison: Data, shown: Sequence[int], called: Sequence[str], marks: Mapping[str | None, str], page: Page
) -> None:
    for title, rows in sections(comparison, shown):
        page.section(title)
        lines: list[tuple[str | Text, ...]] = [
            (figure_words(row, page), *(_cell(row, index, marks, page) for index in shown)) for row in rows
        ]
        page.table(("".ljust(TITLE - 2), *((called[index].rjust(COLUMN - 2), "right") for index in shown)), lines)


def _cell(row: Data, index: int, marks: Mapping[str | None, str], page: Page) -> Text:
    words, mark = value_words(row["values"][index], row["kind"], page), row["differs"][index]
    if not words:
        return Text(page.glyphs.dash, "dim")
    cell = Text(words)
    if mark:
        cell.append(f" {marks[mark]}", {"yes": "bold magenta", "no": "green"}.get(mark, "dim"))
    else:
        cell.append("  ")  # where others have a mark, so that numbers stand below each other
    return cell

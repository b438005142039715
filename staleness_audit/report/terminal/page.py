"""The page everything is written on: sections, facts, tables, at 80 columns and up, with or without colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from staleness_audit.report.terminal.words import ASCII, UNICODE, Words

WIDEST = 100
"""Columns beyond which lines of text get too long to read."""
WIDEST_TABLE = 160
"""Columns beyond which the cells of a table are too far apart."""
SHORTEST = 4
"""Columns below which a bar tells nothing."""

Cell = str | Text

# Rich's own substitute for its lines draws a grid.
_ASCII_HEAD = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


class Page(Words):
    """Writes to a console, in the characters that its encoding can show."""

    def __init__(self, console: Console) -> None:
        super().__init__(ASCII if console.options.ascii_only else UNICODE)
        self.console = console
        self.width = min(console.width, WIDEST)

    @property
    def table_width(self) -> int:
        """Columns that a table may take."""
        return min(self.console.width, WIDEST_TABLE)

    def print(self, renderable: RenderableType = "", indent: int = 0, width: int | None = None) -> None:
        """Write a renderable, indented by so many columns. A string is taken as it is, never as markup."""
        width = width or self.width
        shown = Text(renderable) if isinstance(renderable, str) else renderable
        if indent:
            shown = Padding(shown, (0, 0, 0, indent))
        if self.console.is_terminal:
            self.console.print(shown, width=width)
            return
        # In a file or on a pipe, lines end where their text ends.
        with self.console.capture() as captured:
            self.console.print(shown, width=width)
        for line in captured.get().splitlines():
            self.console.out(line.rstrip(), highlight=False)

    def room(self, wanted: int, rows: Iterable[Sequence[Cell]], indent: int = 2, gap: int = 2) -> int:
        """Columns that the cells of ``rows``, each followed by a ``gap``, leave for a bar: at most those ``wanted``.

        Words and figures come first: a page too narrow for a bar that could be read gets none (0).
        """
        widths = [max(cell_len(str(cell)) for cell in column) + gap for column in zip(*rows, strict=True)]
        left = min(wanted, self.width - indent - sum(widths))
        return left if left >= SHORTEST else 0

    def section(self, title: str) -> None:
        """Begin a section."""
        self.print()
        self.print(Text(title, "bold"))

    def facts(self, pairs: Iterable[tuple[str, Cell]], indent: int = 2) -> None:
        """Write lines of a name and what it is; empty ones are left out."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        for name, value in pairs:
            if value:
                grid.add_row(name, value if isinstance(value, Text) else Text(value))
        if grid.row_count:
            self.print(grid, indent)

    def items(self, lines: Iterable[tuple[str, Cell]], indent: int = 2, gap: int = 1) -> None:
        """Write lines, each of a mark or number and a text whose further lines stand below its first."""
        grid = Table.grid(padding=(0, gap, 0, 0))
        grid.add_column(no_wrap=True, justify="right")
        grid.add_column(overflow="fold")
        for mark, text in lines:
            grid.add_row(Text(mark), text if isinstance(text, Text) else Text(text))
        if grid.row_count:
            self.print(grid, indent)

    def table(self, columns: Sequence[str | tuple[str, str]], rows: Iterable[Sequence[Cell]], indent: int = 2) -> None:
        """Write a table. A column is its title; (title, "right") for numbers, (title, "keep") for unbroken words."""
        lines = _ASCII_HEAD if self.glyphs is ASCII else box.SIMPLE_HEAD
        table = Table(box=lines, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        for column in columns:
            title, kind = (column, "left") if isinstance(column, str) else column
            table.add_column(
                Text(title), justify="right" if kind == "right" else "left", no_wrap=kind == "keep", overflow="fold"
            )
        for row in rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
        self.print(table, indent, self.table_width)

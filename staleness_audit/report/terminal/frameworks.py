"""What is supported: one table of all formats, or one format in full."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from staleness_audit.parser import Mode, Parser
from staleness_audit.report.terminal.page import Page


def render_frameworks(parsers: Mapping[str, Parser], console: Console) -> None:
    """Show what each parser reads, what can be proven from it, and what each mode guarantees.

    Several: one table, a row per control mode. One: its whole card.
    """
    page = Page(console)
    if len(parsers) == 1:
        _card(*next(iter(parsers.items())), page)
        return
    page.section("Supported log formats, their control modes, and what these guarantee")
    names, strict = max(map(len, parsers)) + 2, 9
    half = (page.width - 4 - strict - 4) // 2
    columns = list(zip(("mode", "strict", "largest staleness"), (half, strict, half), strict=True))
    page.print()
    page.print(_row([(Text(title, "dim"), width) for title, width in columns]), 4)
    for name, parser in parsers.items():
        page.print()
        # A key, which may be longer than a column, stands once above the modes that it bounds.
        for index, (key, alike) in enumerate(groupby(parser.card.modes, key=lambda mode: mode.bound_key)):
            title = Text((name if index == 0 else "").ljust(names), "bold")
            page.print(title.append(key or "no key", "not bold dim"), 2)
            for mode in alike:
                page.print(_row([(mode.name, half), (_guaranteed(mode), strict), (_limit(mode), half)]), 4)
    page.print()
    page.print(
        "Beside each name stands the key of the configuration that states the bound of the modes below it. strict: "
        "whether the mechanism keeps the bound in every schedule, not only in a quiet run.",
        2,
    )
    page.print("One in full: staleness-audit frameworks NAME", 2)


def _row(cells: Sequence[tuple[str | Text, int]]) -> Table:
    """One row of cells with their widths; all rows of a page have the same."""
    row = Table.grid(padding=(0, 2, 0, 0))
    for _, width in cells:
        row.add_column(width=width, overflow="fold")
    row.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell, _ in cells))
    return row


def _guaranteed(mode: Mode) -> Text:
    if mode.strict is None:
        return Text("not known", "dim")
    return Text("yes", "green") if mode.strict else Text("no", "red")


def _limit(mode: Mode) -> str:
    return re.sub(r"\bnone\b", "unbounded", mode.limit)


def _card(name: str, parser: Parser, page: Page) -> None:
    card = parser.card
    page.print()
    page.print(Text.assemble((name, "bold"), f"  {card.title}"))
    page.facts(
        [
            ("versions count", card.unit),
            ("refines", ", ".join(card.refines)),
            ("parser", f"{parser.name} {parser.version}"),
        ]
    )
    page.section("Files it reads")
    for artifact in card.artifacts:
        page.print()
        page.print(Text(artifact.path, "bold"), 2)
        page.facts([("switch on", artifact.switch), ("proves", artifact.proves)], 4)
    page.section("Control modes")
    for mode in card.modes:
        page.print()
        page.print(Text(mode.name, "bold"), 2)
        page.facts(
            [
                ("bound key", mode.bound_key or "none"),
                ("as v_train - v_gen", mode.conversion),
                ("keeps the bound", _guaranteed(mode)),
                ("largest staleness", _limit(mode)),
                ("because", mode.reason),
            ],
            4,
        )
    if card.figures:
        page.section("What its own figures measure")
        page.facts([(figure.raw_name, figure.measures) for figure in card.figures])
    page.section("What betrays a loss of input")
    page.print(card.betrays, 2)
    assumptions: Mapping[str, str] = getattr(parser, "assumptions", {})
    if assumptions:
        page.section("What you may tell it with --assume")
        page.facts(assumptions.items())

"""What is supported: one table of all formats, or one format in full."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.console import Console
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
    page.print()
    rows: list[tuple[str | Text, ...]] = []
    for name, parser in parsers.items():
        for index, mode in enumerate(parser.card.modes):
            rows.append(
                (
                    Text(name, "bold") if index == 0 else "",
                    mode.name,
                    mode.bound_key or "",
                    _guaranteed(mode),
                    _limit(mode),
                )
            )
    page.table(("name", "mode", "bound key", ("strict", "keep"), "largest staleness"), rows)
    page.print(
        Text("strict: whether the mechanism keeps the bound in every schedule, not only in a quiet run.", "dim"), 2
    )
    page.print(Text("One in full: staleness-audit frameworks NAME", "dim"), 2)


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

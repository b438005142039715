"""What people see on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from staleness_audit.check.story import Story
from staleness_audit.parser import Parser


def render_audit(data: Mapping[str, Any], console: Console, *, verbose: bool = False) -> None:
    """Show one audit: verdict first, then the few figures that matter."""
    console.print(data["verdict"])


def render_story(story: Story, console: Console) -> None:
    """Show one trajectory's life."""
    console.print(story.json())


def render_frameworks(parsers: Mapping[str, Parser], console: Console) -> None:
    """Show what each parser reads, what can be proven from it, and what each mode guarantees."""
    for name in parsers:
        console.print(name)


def render_schema(console: Console) -> None:
    """List event tables and rebuilt products with their columns and meanings."""
    from staleness_audit.tables import SCHEMAS

    for name in SCHEMAS:
        console.print(name)


def render_rows(names: Sequence[str], rows: Sequence[Sequence[Any]], console: Console) -> None:
    """Show the rows of a query as a table."""
    console.print(names, rows)

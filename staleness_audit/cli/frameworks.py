# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`frameworks`: what is supported."""

from __future__ import annotations

from typing import Annotated

import typer

from staleness_audit.cli.console import errors, stdout
from staleness_audit.errors import AuditError, choices


def frameworks(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only this one, in full.")] = None,
) -> None:
    """Show what is supported: artifacts, what each can prove, bound keys, what each mode guarantees."""
    with errors():
        from staleness_audit import plugins
        from staleness_audit.report.terminal import render_frameworks

        known = plugins.parsers()
        if name is not None and name not in known:
            raise AuditError(f"No parser is called {name!r}; {choices(name, known)}")
        render_frameworks({name: known[name]} if name else known, stdout)

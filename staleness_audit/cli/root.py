"""The command without a sub-command: its own options, and defaults for all others."""

from __future__ import annotations

from typing import Annotated

import typer

from staleness_audit import __version__
from staleness_audit.cli.console import errors, stdout
from staleness_audit.cli.defaults import configured_defaults
from staleness_audit.cli.group import Commands

app = typer.Typer(
    name="staleness-audit",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Were the tokens of an asynchronous RL run trained within the staleness bound? "
    "Reads the run's logs and shows the lines that prove it.",
    epilog="Exit codes: 0 within the bound, 1 violated, 2 usage error or unreadable input, 3 the logs can't tell.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        stdout.print(f"staleness-audit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    with errors():
        ctx.default_map = configured_defaults(ctx.command)

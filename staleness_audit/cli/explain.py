# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`explain`: one trajectory's life."""

from __future__ import annotations

from typing import Annotated

import typer

from staleness_audit.cli.console import errors, json_text, stdout
from staleness_audit.cli.options import (
    AssumeOption,
    BoundOption,
    Format,
    FrameworkOption,
    QuietOption,
    RunArgument,
    TablesOption,
)
from staleness_audit.cli.runs import audited
from staleness_audit.errors import AuditError


def explain(
    run: RunArgument,
    trajectory: Annotated[str | None, typer.Argument(metavar="TRAJECTORY", help="Its id, as audit prints it.")] = None,
    worst: Annotated[bool, typer.Option("--worst", help="Explain the worst violation.")] = False,
    bound: BoundOption = None,
    framework: FrameworkOption = None,
    tables: TablesOption = None,
    assume: AssumeOption = None,
    format_: Annotated[Format, typer.Option("--format", help="How to print the story.")] = Format.terminal,
    quiet: QuietOption = False,
) -> None:
    """Tell one trajectory's life over policy versions, event by event, with the log line of each."""
    with errors():
        from staleness_audit.check.worst import stoppable_at
        from staleness_audit.report.terminal import render_story

        if (trajectory is None) != worst:
            raise AuditError("Name a trajectory, or give --worst to explain the worst violation.")
        result = audited(run, bound, framework=framework, tables=tables, worst=1, assume=assume, quiet=quiet)
        story = result.explain(trajectory)
        if format_ is Format.json:
            print(json_text(story.json(), indent=True))
        else:
            stoppable: dict[int, list[str]] = {}
            if story.bound is not None:
                stoppable = stoppable_at(result.rebuilt, story.trajectory_id, story.bound)
            render_story(story, stdout, stoppable=stoppable)

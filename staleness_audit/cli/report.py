# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`report`: the HTML report of a run, without the gate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from staleness_audit.cli.console import errors, plain, stdout, write_text
from staleness_audit.cli.options import (
    AssumeOption,
    BoundOption,
    FrameworkOption,
    MemoryOption,
    QuietOption,
    RunArgument,
    StepsOption,
    TablesOption,
    TempDirOption,
    ThreadsOption,
)
from staleness_audit.cli.runs import audited
from staleness_audit.limits import set_limits

if TYPE_CHECKING:
    from staleness_audit.api import AuditResult


def report(
    run: RunArgument,
    html: Annotated[Path, typer.Option("--html", metavar="FILE", help="Write the report to this file.")],
    bound: BoundOption = None,
    framework: FrameworkOption = None,
    steps: StepsOption = None,
    worst: Annotated[int, typer.Option("--worst", min=0, metavar="N", help="Tell the N worst violations.")] = 20,
    tables: TablesOption = None,
    assume: AssumeOption = None,
    quiet: QuietOption = False,
    memory: MemoryOption = None,
    threads: ThreadsOption = None,
    temp_dir: TempDirOption = None,
) -> None:
    """Write the HTML report: one file that opens offline, with figures, stories of violations, and what proves them.

    The exit code says only whether the report was written; `audit --html` writes the same and gates.
    """
    with errors():
        set_limits(memory, threads, temp_dir)
        result = audited(
            run, bound, framework=framework, steps=steps, tables=tables, worst=worst, assume=assume, quiet=quiet
        )
        write_html(result, html)
        if not quiet:
            stdout.print(f"{plain(str(html))}: {result.verdict}, {html.stat().st_size / 1e6:.1f} MB", soft_wrap=True)


def write_html(result: AuditResult, file: Path) -> None:
    """Write the report of an audit to the file that the user named."""
    from staleness_audit.report.html import render_report

    write_text(file, render_report(result), option="--html")

# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`audit`: judge runs; the exit code is the gate."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from staleness_audit.cli.console import (
    EXIT_ORDER,
    EXIT_USAGE,
    complain,
    drop_output,
    errors,
    json_text,
    progress_bar,
    stdout,
    write_text,
)
from staleness_audit.cli.options import (
    AssumeOption,
    BoundOption,
    Count,
    Format,
    FrameworkOption,
    QuietOption,
    StepsOption,
    TablesOption,
    VerboseOption,
    assumed_pairs,
    step_range,
)
from staleness_audit.errors import AuditError

if TYPE_CHECKING:
    from staleness_audit.api import AuditResult


def audit(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories or files that runs have written.")],
    bound: BoundOption = None,
    framework: FrameworkOption = None,
    max_violations: Annotated[
        int | None,
        typer.Option("--max-violations", min=0, metavar="N", help="Fail only beyond this many violations (default 0)."),
    ] = None,
    count: Annotated[
        Count | None, typer.Option("--count", help="What --max-violations counts (default trajectories).")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1, not 3, if the logs can't tell.")] = False,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit 0 also if violated or not known.")] = False,
    allow_inconclusive: Annotated[
        bool, typer.Option("--allow-inconclusive", help="Exit 0, not 3, if the logs can't tell.")
    ] = False,
    steps: StepsOption = None,
    worst: Annotated[int, typer.Option("--worst", min=0, metavar="N", help="Tell the N worst violations.")] = 10,
    format_: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.terminal,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the result here instead of printing it."),
    ] = None,
    tables: TablesOption = None,
    assume: AssumeOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Audit runs: verdict, violations with their log lines, cost, throughput; the exit code is the gate."""
    with errors():
        from staleness_audit.api import audit as run_audit
        from staleness_audit.check.gate import Gate

        if tables is not None and len(runs) > 1:
            raise AuditError("--tables names one folder, so it takes one RUN; leave it out to audit several.")
        if strict and allow_inconclusive:
            raise AuditError("--strict and --allow-inconclusive contradict each other; choose one.")
        gate = Gate(
            count=count.value if count else "trajectories",
            max_violations=max_violations or 0,
            strict=strict,
            allow_inconclusive=allow_inconclusive,
            exit_zero=exit_zero,
            given=max_violations is not None or count is not None or strict,
        )
        wanted_steps, pairs = step_range(steps), assumed_pairs(assume)
        results: list[AuditResult] = []
        codes: list[int] = []
        for run in runs:
            try:
                with progress_bar(quiet) as progress:
                    result = run_audit(
                        run,
                        bound,
                        framework=framework,
                        steps=wanted_steps,
                        tables=tables,
                        gate=gate,
                        worst=worst,
                        assume=pairs,
                        progress=progress,
                    )
            except AuditError as error:
                complain(error)
                codes.append(EXIT_USAGE)
                continue
            results.append(result)
            codes.append(result.exit_code)
        try:
            _print_audits(results, len(runs), format_, output, verbose)
            sys.stdout.flush()
        except BrokenPipeError:  # whoever stopped reading still gets the exit code
            drop_output()
    raise typer.Exit(next(code for code in EXIT_ORDER if code in codes))


def _print_audits(results: list[AuditResult], wanted: int, format_: Format, output: Path | None, verbose: bool) -> None:
    from staleness_audit.report.terminal import render_audit, render_summary

    if format_ is Format.json:
        documents = [result.data for result in results]
        if not documents:
            return
        text = json_text(documents[0] if wanted == 1 else documents, indent=2)
        if output is None:
            print(text)
        else:
            write_text(output, text + "\n")
        return
    buffer = io.StringIO()
    console = stdout if output is None else Console(file=buffer, width=100, highlight=False, no_color=True)
    for result in results:
        render_audit(result.data, console, verbose=verbose)
    if wanted > 1 and results:
        render_summary([result.data for result in results], console)
    if output is not None:
        write_text(output, buffer.getvalue())

# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`compare`: the same figures of several runs side by side."""

from __future__ import annotations

import io
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from staleness_audit.cli.console import errors, json_text, print_text, progress_bar, stdout, write_text
from staleness_audit.cli.options import (
    BoundOption,
    MemoryOption,
    QuietOption,
    StepsOption,
    TempDirOption,
    ThreadsOption,
    place_named,
    step_range,
)
from staleness_audit.cli.runs import each_run
from staleness_audit.errors import AuditError
from staleness_audit.limits import set_limits

if TYPE_CHECKING:
    from staleness_audit.api import Steps


class ComparisonFormat(StrEnum):
    """How ``compare`` tells its result."""

    terminal = "terminal"
    json = "json"
    markdown = "markdown"


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN RUN...",
            parser=place_named,
            help="Directories or files of runs, patterns of such, folders that hold runs side by side, or audits that "
            "--format json wrote.",
        ),
    ],
    bound: BoundOption = None,
    steps: StepsOption = None,
    format_: Annotated[
        ComparisonFormat, typer.Option("--format", help="How to print the result.")
    ] = ComparisonFormat.terminal,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it here instead of printing it.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write it as a page, one file, to this place.")
    ] = None,
    quiet: QuietOption = False,
    memory: MemoryOption = None,
    threads: ThreadsOption = None,
    temp_dir: TempDirOption = None,
) -> None:
    """Show the same figures of several runs, of any frameworks, and mark what is proven to differ from the first.

    The exit code says only whether all could be read; `audit --baseline` gates on what got worse.
    """
    with errors():
        set_limits(memory, threads, temp_dir)
        from staleness_audit.check.compare import compare as compare_documents
        from staleness_audit.report.comparison import comparison_markdown
        from staleness_audit.report.terminal import render_comparison

        wanted = step_range(steps)
        documents: list[dict[str, Any]] = []
        for _, found in each_run(runs, partial(_documents, bound, wanted, quiet), quiet=quiet):
            if isinstance(found, AuditError):
                raise found
            documents += found
        if len(documents) < 2:
            raise AuditError("Name two runs or more to compare.")
        comparison, base = compare_documents(documents), Path.cwd()
        if html is not None:
            from staleness_audit.report.html import render_comparison_page

            write_text(html, render_comparison_page(comparison, base), option="--html")
        if format_ is ComparisonFormat.terminal:
            if output is None:
                render_comparison(comparison, base, stdout)
                return
            buffer = io.StringIO()
            render_comparison(comparison, base, Console(file=buffer, width=100, highlight=False, no_color=True))
            text = buffer.getvalue()
        elif format_ is ComparisonFormat.json:
            text = json_text(comparison, indent=True) + "\n"
        else:
            text = comparison_markdown(comparison, base)
        if output is None:
            print_text(text)
        else:
            write_text(output, text)


def _documents(bound: int | None, steps: Steps, quiet: bool, run: Path, _: bool) -> list[dict[str, Any]]:
    """Return the audits in a JSON file, or the audit of a run."""
    from staleness_audit.api import audit
    from staleness_audit.check.baseline import read_documents

    if run.suffix == ".json" and run.is_file():
        if bound is not None or steps != (None, None):
            raise AuditError(f"{run}: an audit is judged already, so --bound and --steps need the run itself.")
        return read_documents(run)
    with progress_bar(quiet) as progress:
        return [audit(run, bound, steps=steps, worst=0, progress=progress).data]

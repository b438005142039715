# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`export`: a timeline for Perfetto, or every table and product as a file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from staleness_audit.cli.console import errors, plain, stdout
from staleness_audit.cli.options import (
    AssumeOption,
    BoundOption,
    FrameworkOption,
    QuietOption,
    RunArgument,
    StepsOption,
    TablesOption,
)
from staleness_audit.cli.runs import audited


class ExportFormat(StrEnum):
    """What ``export`` writes."""

    perfetto = "perfetto"
    csv = "csv"
    parquet = "parquet"


def export(
    run: RunArgument,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="PATH", help="File of the timeline (.json or .json.gz), or a folder."),
    ],
    format_: Annotated[
        ExportFormat,
        typer.Option("--format", help="perfetto: a timeline; csv, parquet: a file for each table and product."),
    ] = ExportFormat.perfetto,
    most: Annotated[
        int,
        typer.Option("--most", min=0, metavar="N", help="Draw at most N trajectories, the worst violations first."),
    ] = 20_000,
    bound: BoundOption = None,
    framework: FrameworkOption = None,
    steps: StepsOption = None,
    tables: TablesOption = None,
    assume: AssumeOption = None,
    quiet: QuietOption = False,
) -> None:
    """Hand a run on to other tools: a timeline that opens in Perfetto, or every table and product as a file."""
    with errors():
        listed = min(most, 100) if format_ is ExportFormat.perfetto else 0
        result = audited(
            run, bound, framework=framework, steps=steps, tables=tables, worst=listed, assume=assume, quiet=quiet
        )
        said: list[str] = []
        if format_ is ExportFormat.perfetto:
            from staleness_audit.export.timeline import write_trace

            drawn = write_trace(result, output, most)
            left_out = drawn.of_trajectories - drawn.trajectories
            why = "" if not left_out else f" (the others have no times, or are beyond --most {most})"
            said = [f"{output}: {drawn}{why}; open it at https://ui.perfetto.dev"]
        else:
            from staleness_audit.export.files import write_files

            form: Literal["csv", "parquet"] = "csv" if format_ is ExportFormat.csv else "parquet"
            said = [f"{path}: {rows:,} rows" for path, rows in write_files(result, output, form)]
        if not quiet:
            for line in said:
                stdout.print(plain(line), soft_wrap=True)

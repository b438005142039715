# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`audit`: judge runs; the exit code is the gate."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from staleness_audit.cli.console import (
    EXIT_ORDER,
    EXIT_USAGE,
    complain,
    drop_output,
    errors,
    progress_bar,
)
from staleness_audit.cli.options import (
    AssumeOption,
    AuditFormat,
    BoundOption,
    Count,
    Engine,
    EngineOption,
    FrameworkOption,
    MemoryOption,
    QuietOption,
    RayAddressOption,
    StepsOption,
    TablesOption,
    TempDirOption,
    ThreadsOption,
    VerboseOption,
    assumed_pairs,
    place_named,
    step_range,
    workers_of,
)
from staleness_audit.cli.outputs import Audits, outputs
from staleness_audit.cli.report import write_html
from staleness_audit.cli.runs import each_run
from staleness_audit.errors import AuditError
from staleness_audit.limits import set_limits

if TYPE_CHECKING:
    from staleness_audit.api import AuditResult
    from staleness_audit.pool import Pool


def audit(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            parser=place_named,
            help="Directories or files that runs have written, patterns of such, or folders with runs side by side.",
        ),
    ],
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
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="CONDITION",
            help="Fail also if this is true of a figure, for instance 'waste.ratio > 0.2'; repeatable.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            metavar="FILE",
            help="An earlier audit in JSON: fail only on what got worse since, by more than --max-violations.",
        ),
    ] = None,
    steps: StepsOption = None,
    worst: Annotated[int, typer.Option("--worst", min=0, metavar="N", help="Tell the N worst violations.")] = 10,
    format_: Annotated[AuditFormat, typer.Option("--format", help="How to print the result.")] = AuditFormat.terminal,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="[FORMAT:]FILE",
            help="Write the result here instead of printing it. With a format in front, another one beside it, "
            "as in --output sarif:audit.sarif; repeatable.",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write the HTML report, one file, to this place.")
    ] = None,
    tables: TablesOption = None,
    assume: AssumeOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    memory: MemoryOption = None,
    threads: ThreadsOption = None,
    temp_dir: TempDirOption = None,
    engine: EngineOption = Engine.local,
    ray_address: RayAddressOption = None,
) -> None:
    """Audit runs: verdict, violations with their log lines, cost, throughput; the exit code is the gate."""
    with errors(), _uncollected():
        set_limits(memory, threads, temp_dir)
        from staleness_audit.api import audit as run_audit
        from staleness_audit.check.baseline import Baseline
        from staleness_audit.check.gate import Gate
        from staleness_audit.check.threshold import Threshold

        if tables is not None and len(runs) > 1:
            raise AuditError("--tables names one folder, so it takes one RUN; leave it out to audit several.")
        if html is not None and len(runs) > 1:
            raise AuditError("--html names one file, so it takes one RUN; make the reports of others with `report`.")
        if strict and allow_inconclusive:
            raise AuditError("--strict and --allow-inconclusive contradict each other; choose one.")
        gate = Gate(
            count=count.value if count else "trajectories",
            max_violations=max_violations or 0,
            strict=strict,
            allow_inconclusive=allow_inconclusive,
            exit_zero=exit_zero,
            given=max_violations is not None or count is not None or strict,
            fail_if=tuple(Threshold.parse(text) for text in fail_if or ()),
            baseline=Baseline.read(baseline) if baseline else None,
        )
        wanted_outputs = outputs(format_, output or ())
        wanted_steps, pairs = step_range(steps), assumed_pairs(assume)

        def judge(pool: Pool | None, run: Path, alone: bool) -> AuditResult:
            with progress_bar(quiet) as progress:
                return run_audit(
                    run,
                    bound,
                    framework=framework,
                    steps=wanted_steps,
                    tables=tables,
                    gate=replace(gate, alone=alone),
                    worst=worst,
                    assume=pairs,
                    progress=progress,
                    pool=pool,
                )

        results: list[AuditResult] = []
        unreadable: list[tuple[str, str]] = []
        codes: list[int] = []
        single = "--tables" if tables is not None else "--html" if html is not None else None
        with workers_of(engine, ray_address) as pool:
            for run, result in each_run(runs, partial(judge, pool), single=single, framework=framework, quiet=quiet):
                if isinstance(result, AuditError):
                    complain(result)
                    unreadable.append((str(run), str(result)))
                    codes.append(EXIT_USAGE)
                    continue
                results.append(result)
                codes.append(result.exit_code)
                if html is not None:
                    write_html(result, html)
        try:
            audits = Audits(results, unreadable, max(len(codes), len(runs)), strict)
            # Files first: a reader of standard output may go away.
            for each in sorted(wanted_outputs, key=lambda each: each.file is None):
                audits.write(each, verbose=verbose)
            sys.stdout.flush()
        except BrokenPipeError:  # whoever stopped reading still gets the exit code
            drop_output()
    raise typer.Exit(next(code for code in EXIT_ORDER if code in codes))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Leave out the search for garbage in cycles: libraries make many objects, which stay, and an audit makes few."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

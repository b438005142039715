# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`sweep`: many simulated runs, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from staleness_audit.cli.console import errors, progress_bar, stdout
from staleness_audit.cli.options import Engine, EngineOption, QuietOption, RayAddressOption, workers_of
from staleness_audit.cli.policies import BatchOption, settings
from staleness_audit.errors import AuditError

if TYPE_CHECKING:
    import polars as pl


def sweep(
    policies: Annotated[list[str], typer.Argument(metavar="POLICY...", help="Names of staleness controls, or 'all'.")],
    bounds: Annotated[str, typer.Option("--bounds", metavar="N,N", help="Bounds to set.")] = "1,2,4",
    depths: Annotated[
        str,
        typer.Option(
            "--depths",
            metavar="N,N",
            help="Batches that admission leads by, beside the bound, for the policies that can tell the two apart.",
        ),
    ] = "",
    workloads: Annotated[
        list[str] | None,
        typer.Option("--workload", metavar="W", help="As for simulate; may be given several times."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=V,V", help="Values of a knob to try; may be given several times."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Runs of each with different seeds.")] = 1,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Training steps of each run.")] = 40,
    batch: BatchOption = None,
    cost: Annotated[list[str] | None, typer.Option("--cost", metavar="KEY=VALUE", help="As for simulate.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes; default: one per processor.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where results go; a sweep goes on where it was.")
    ] = Path("sweep"),
    engine: EngineOption = Engine.local,
    ray_address: RayAddressOption = None,
    quiet: QuietOption = False,
) -> None:
    """Simulate a grid of policies, bounds, workloads and knobs; write results.parquet and a page that compares them.

    All policies get equal resources and equal room: admission may lead by the bound.
    """
    with errors():
        from staleness_audit.simulate import sweep as grids
        from staleness_audit.simulate.page import write_page

        wanted, leads = _numbers("--bounds", bounds), _numbers("--depths", depths)
        points = list(
            grids.grid(
                grids.all_policies() if policies == ["all"] else policies,
                wanted,
                workloads or ["lognormal:sigma=1.2,group=4,longest=8192"],
                steps=steps,
                batch=32 if batch is None else batch,
                seeds=range(seeds),
                depths=leads,
                settings={knob: values.split(",") for knob, values in settings(set_).items()},
                costs=settings(cost, "--cost"),
            )
        )
        if not points:
            raise AuditError(
                "There is nothing to simulate: give --bounds that the policies can have, as in --bounds 1,4."
            )
        with workers_of(engine, ray_address) as pool, progress_bar(quiet, "simulating") as bar:
            table = grids.sweep(points, out, workers=workers, progress=bar, pool=pool)
        write_page(table, out / "sweep.html")
        _print_sweep(table, out)


def _numbers(option: str, text: str) -> list[int]:
    try:
        numbers = [int(number) for number in filter(None, text.split(","))]
    except ValueError as error:
        raise AuditError(f"{option} {text}: write numbers, as in 1,2,4.") from error
    if min(numbers, default=0) < 0:
        raise AuditError(f"{option} {text}: numbers are at least 0.")
    return numbers


def _print_sweep(table: pl.DataFrame, out: Path) -> None:
    from staleness_audit.report.terminal.page import Page
    from staleness_audit.report.terminal.words import percent
    from staleness_audit.simulate.page import means

    page, several = Page(stdout), _several(table)
    heads = ("bound", *(("leads",) if several else ()), "tokens/s", "waits", "wasted", "mean", "max", "beyond")
    rows = [
        (
            row["policy"] + (" (stalled)" if row["stalled"] else ""),
            str(row["bound"]),
            *((str(row["depth"]),) if several else ()),
            f"{row['trained_tokens_per_s']:,.0f}",
            *(percent(row[name]) for name in ("trainer_waiting_share", "wasted_share")),
            f"{row['staleness_mean']:.2f}",
            str(row["staleness_max"]),
            percent(row["beyond_share"]),
        )
        for row in means(table)
        .sort("workload", "bound", "trained_tokens_per_s", descending=[False, False, True])
        .iter_rows(named=True)
    ]
    page.table(("policy", *((head, "right") for head in heads)), rows, indent=0)
    page.print()
    page.print(f"{table.height} runs: {page.plain(out / 'results.parquet')} and {page.plain(out / 'sweep.html')}")


def _several(table: pl.DataFrame) -> bool:
    """Whether admission led by something else than the bound in some run."""
    return bool((table["depth"] != table["bound"]).any())

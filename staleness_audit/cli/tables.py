# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`ingest` and `sql`: the event tables and what is rebuilt from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from staleness_audit.cli.console import errors, json_text, plain, stdout
from staleness_audit.cli.options import (
    AssumeOption,
    Engine,
    EngineOption,
    Format,
    FrameworkOption,
    MemoryOption,
    QuietOption,
    RayAddressOption,
    RunArgument,
    TablesOption,
    TempDirOption,
    ThreadsOption,
    place_named,
    workers_of,
)
from staleness_audit.cli.runs import loaded, rebuilt
from staleness_audit.errors import AuditError
from staleness_audit.limits import set_limits

if TYPE_CHECKING:
    import duckdb

    from staleness_audit.ingest import Dataset


def ingest(
    run: RunArgument,
    tables: Annotated[
        Path, typer.Option("--tables", metavar="DIR", parser=place_named, help="Folder for the event tables.")
    ],
    framework: FrameworkOption = None,
    assume: AssumeOption = None,
    quiet: QuietOption = False,
    memory: MemoryOption = None,
    threads: ThreadsOption = None,
    temp_dir: TempDirOption = None,
    engine: EngineOption = Engine.local,
    ray_address: RayAddressOption = None,
) -> None:
    """Only write the event tables (Parquet), without judging."""
    with errors():
        set_limits(memory, threads, temp_dir)
        with workers_of(engine, ray_address) as pool:
            dataset = loaded(run, framework=framework, tables=tables, assume=assume, quiet=quiet, pool=pool)
        if not quiet:
            counts = ", ".join(f"{name} {_rows_of(dataset, name):,}" for name in dataset.manifest["tables"])
            stdout.print(f"{plain(str(dataset.folder))}: {counts}", soft_wrap=True)


def sql(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", parser=place_named, help="Directory or file a run has written, or a folder of tables."
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="DuckDB SQL over the tables and products.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List tables and products with their columns.")] = False,
    framework: FrameworkOption = None,
    tables: TablesOption = None,
    assume: AssumeOption = None,
    format_: Annotated[
        Format, typer.Option("--format", help="How to print the rows; json: one object a line.")
    ] = Format.terminal,
    quiet: QuietOption = False,
) -> None:
    """Query the event tables and the rebuilt products with DuckDB."""
    with errors():
        if list_:
            from staleness_audit.report.terminal import render_schema

            render_schema(stdout)
            return
        if run is None or query is None:
            raise AuditError("Give a RUN and a QUERY, or --list to see the tables.")
        import duckdb

        from staleness_audit.report.terminal import render_rows

        dataset = loaded(run, framework=framework, tables=tables, assume=assume, quiet=quiet)
        with rebuilt(dataset, quiet=quiet).connect() as connection:
            try:
                cursor = connection.execute(query)
                names = [column[0] for column in cursor.description or []]
                rows = _fetch(cursor)
                if format_ is Format.json:
                    for row in rows:
                        print(json_text(dict(zip(names, row, strict=True))))
                else:
                    render_rows(names, rows, stdout)
            except duckdb.Error as error:
                raise AuditError(f"The query failed: {_reason(error)} (--list shows the tables)") from error


def _reason(error: Exception) -> str:
    """What DuckDB says, with the names that it suggests, in one line; without the picture of the query below it."""
    return " ".join(str(error).partition("\nLINE ")[0].split())


def _fetch(cursor: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    """Rows of a query, a few at a time."""
    while cursor.description and (rows := cursor.fetchmany(10_000)):
        yield from rows


def _rows_of(dataset: Dataset, table: str) -> int:
    import polars as pl

    return int(dataset.scan(table).select(pl.len()).collect().item())

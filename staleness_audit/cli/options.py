"""Options that mean the same in every command, and the values that they take."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from staleness_audit.errors import AuditError
from staleness_audit.places import place

if TYPE_CHECKING:
    from staleness_audit.api import Steps
    from staleness_audit.pool import Pool


class Format(StrEnum):
    """How a command prints its result."""

    terminal = "terminal"
    json = "json"


class AuditFormat(StrEnum):
    """How ``audit`` tells its result."""

    terminal = "terminal"
    json = "json"
    junit = "junit"
    sarif = "sarif"
    github = "github"
    markdown = "markdown"


class Engine(StrEnum):
    """Who reads units and rebuilds partitions."""

    local = "local"
    ray = "ray"


class Count(StrEnum):
    """What the gate counts."""

    trajectories = "trajectories"
    tokens = "tokens"
    groups = "groups"


def place_named(text: str) -> Path:
    """Return the path, or what a URL names."""
    try:
        return place(text)
    except AuditError as error:
        raise typer.BadParameter(str(error)) from error


RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", parser=place_named, help="Directory or file a run has written, or a folder of tables; or a URL."
    ),
]
BoundOption = Annotated[
    int | None,
    typer.Option(
        "--bound",
        min=0,
        metavar="N",
        help="Largest allowed v_train - v_gen. Default: the bound in the run's configuration.",
    ),
]
FrameworkOption = Annotated[
    str | None, typer.Option("--framework", metavar="NAME", help="Read as this format instead of detecting it.")
]
TablesOption = Annotated[
    Path | None,
    typer.Option(
        "--tables",
        metavar="DIR",
        parser=place_named,
        help="Folder for the event tables. Default: a cache in .staleness-audit/ below the current directory.",
    ),
]
AssumeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--assume",
        metavar="KEY=VALUE",
        help="Tell the parser what the logs don't say; results that rest on it are marked 'assumed'.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no notes.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="List every diagnostic.")]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="What DuckDB may hold in memory, such as 4GB (default 1.2GB); beyond it, the run is divided and spilled.",
    ),
]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, metavar="N", help="Threads and parallel readers (default: all cores).")
]
TempDirOption = Annotated[
    Path | None,
    typer.Option("--temp-dir", metavar="DIR", help="Folder for what is spilled. Default: beside the tables."),
]
EngineOption = Annotated[
    Engine, typer.Option("--engine", help="Who does the work: this machine, or the workers of a Ray cluster.")
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="ADDRESS",
        help="The cluster, as Ray writes it. Default: RAY_ADDRESS, else a cluster started on this machine.",
    ),
]
StepsOption = Annotated[
    str | None, typer.Option("--steps", metavar="A:B", help="Only training steps A to B; either may be left out.")
]


@contextmanager
def workers_of(engine: Engine, address: str | None) -> Iterator[Pool | None]:
    """Yield the workers that ``--engine`` and ``--ray-address`` ask for; None for this machine.

    Ray reports on standard output, which is for results: what is printed meanwhile goes to standard error.
    """
    if engine is Engine.local:
        if address is not None:
            raise AuditError("--ray-address says where a Ray cluster is; give --engine ray too.")
        yield None
        return
    from staleness_audit.cluster import connected  # noqa: PLC0415 - only if it is asked for

    with redirect_stdout(sys.stderr), connected(address) as cluster:
        yield cluster


def step_range(text: str | None) -> Steps:
    """Return first and last step of ``A:B``; None = no limit."""
    if text is None:
        return (None, None)
    first, colon, last = text.partition(":")
    try:
        begin, end = (int(first) if first else None), (int(last) if last else None)
    except ValueError:
        begin, colon = None, ""
    if not colon or (begin is not None and end is not None and begin > end):
        raise AuditError(f"--steps {text}: give two step numbers as A:B, for instance 10:20, 10: or :20.")
    return (begin, end)


def assumed_pairs(assumptions: list[str] | None) -> dict[str, str]:
    """Return what ``--assume KEY=VALUE`` says, by key."""
    pairs = {}
    for text in assumptions or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise AuditError(f"--assume {text}: give it as KEY=VALUE.")
        pairs[key] = value
    return pairs

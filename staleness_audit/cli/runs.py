# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""A run as the options that all commands share ask for it, read behind a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from staleness_audit.cli.console import plain, progress_bar, stderr
from staleness_audit.cli.options import assumed_pairs, step_range
from staleness_audit.errors import AuditError

if TYPE_CHECKING:
    from staleness_audit.api import AuditResult
    from staleness_audit.ingest import Dataset
    from staleness_audit.pool import Pool
    from staleness_audit.rebuild import Rebuilt

Result = TypeVar("Result")


def each_run(
    runs: Sequence[Path],
    work: Callable[[Path, bool], Result],
    *,
    quiet: bool,
    single: str | None = None,
    framework: str | None = None,
) -> Iterator[tuple[Path, Result | AuditError]]:
    """Work on all runs that the arguments name, as ``several.each`` does, and say which folders hold several.

    ``single``: an option that was given and names one file or folder, so that there must be one run only.
    ``framework``: if it was named, so was what each path is: one run of it.
    """
    from staleness_audit import several

    def found(folder: Path, side: several.Side) -> None:
        if single is not None:
            raise AuditError(f"{single} takes one RUN, and {folder} holds {len(side.runs)} side by side; name one.")
        if quiet:
            return
        names = ", ".join(path.name for path in side.others[:4]) + (" ..." if len(side.others) > 4 else "")
        without = f" Without a known log format, so not read: {names}." if side.others else ""
        stderr.print(
            f"[bold]note[/]: {plain(str(folder))}: {len(side.runs)} runs side by side, each judged by itself. If they "
            f"are attempts of one run, say so with --framework.{plain(without)}",
            soft_wrap=True,
        )

    yield from several.each(runs, work, found if framework is None else None)


def audited(
    run: Path,
    bound: int | None,
    *,
    framework: str | None = None,
    steps: str | None = None,
    tables: Path | None = None,
    worst: int = 0,
    assume: list[str] | None = None,
    quiet: bool = False,
) -> AuditResult:
    """Audit it without a gate; ``steps`` and ``assume`` as they were typed."""
    from staleness_audit.api import audit

    wanted, pairs = step_range(steps), assumed_pairs(assume)
    with progress_bar(quiet) as progress:
        return audit(
            run,
            bound,
            framework=framework,
            steps=wanted,
            tables=tables,
            worst=worst,
            assume=pairs,
            progress=progress,
        )


def loaded(
    run: Path,
    *,
    framework: str | None,
    tables: Path | None,
    assume: list[str] | None,
    quiet: bool,
    pool: Pool | None = None,
) -> Dataset:
    """Only read its event tables."""
    from staleness_audit.api import load

    pairs = assumed_pairs(assume)
    with progress_bar(quiet) as progress:
        return load(run, framework=framework, tables=tables, assume=pairs, progress=progress, pool=pool)


def rebuilt(dataset: Dataset, *, quiet: bool) -> Rebuilt:
    """Rebuild the products of all steps."""
    from staleness_audit.rebuild import rebuild

    with progress_bar(quiet) as progress:
        return rebuild(dataset, progress=progress)

# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""A run as the options that all commands share ask for it, read behind a progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from staleness_audit.cli.console import progress_bar
from staleness_audit.cli.options import assumed_pairs, step_range

if TYPE_CHECKING:
    from staleness_audit.api import AuditResult
    from staleness_audit.ingest import Dataset
    from staleness_audit.rebuild import Rebuilt


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


def loaded(run: Path, *, framework: str | None, tables: Path | None, assume: list[str] | None, quiet: bool) -> Dataset:
    """Only read its event tables."""
    from staleness_audit.api import load

    pairs = assumed_pairs(assume)
    with progress_bar(quiet) as progress:
        return load(run, framework=framework, tables=tables, assume=pairs, progress=progress)


def rebuilt(dataset: Dataset, *, quiet: bool) -> Rebuilt:
    """Rebuild the products of all steps."""
    from staleness_audit.rebuild import rebuild

    with progress_bar(quiet) as progress:
        return rebuild(dataset, progress=progress)

# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`verify`: derive an audit again, and compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from staleness_audit.cli.console import errors, json_text, plain, progress_bar, stdout
from staleness_audit.cli.options import (
    Format,
    MemoryOption,
    QuietOption,
    RunArgument,
    TempDirOption,
    ThreadsOption,
    VerboseOption,
)
from staleness_audit.limits import set_limits

if TYPE_CHECKING:
    from staleness_audit.api import Verification

_SHOWN = 20


def verify(
    audit: Annotated[Path, typer.Argument(metavar="AUDIT.json", help="An audit that --format json wrote.")],
    run: RunArgument,
    format_: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.terminal,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    memory: MemoryOption = None,
    threads: ThreadsOption = None,
    temp_dir: TempDirOption = None,
) -> None:
    """Derive an audit again from the run's files, with the options it records, and say what differs.

    No cache is trusted. Exit codes: 0 the same, 1 something differs, 2 usage error or unreadable input.
    """
    with errors():
        set_limits(memory, threads, temp_dir)
        from staleness_audit.api import verify as verify_audit

        with progress_bar(quiet) as progress:
            result = verify_audit(audit, run, progress=progress)
        if format_ is Format.json:
            print(json_text(result.json(), indent=True))
        else:
            _print(result, len(result.differences) if verbose else _SHOWN)
    raise typer.Exit(0 if result.same else 1)


def _print(result: Verification, most: int) -> None:
    from staleness_audit.report.terminal.words import count

    new = result.derived
    inputs = new["inputs"] or {"files": 0, "bytes": 0}
    files, size = ({"lo": inputs[unit], "hi": inputs[unit]} for unit in ("files", "bytes"))
    read = f"{count(files, 'file')}, {count(size, 'byte')}"
    verdict = f"verdict {new['verdict']}, bound {new['bound']['value']}"
    stdout.print(
        f"[green]same[/]: derived again from {read}; {verdict}" if result.same else f"[red]differs[/]: read {read}",
        soft_wrap=True,
    )
    for difference in result.differences[:most]:
        values = f"recorded {_said(difference.recorded)}, now {_said(difference.derived)}"
        whole = difference.what == f"{difference.kind}s"
        name = difference.what if whole else f"{difference.kind} {plain(difference.what)}"
        stdout.print(f"  {name}: {plain(values)}", soft_wrap=True)
    if len(result.differences) > most:
        stdout.print(f"  and {len(result.differences) - most} more; --verbose lists them")


def _said(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict) and value.keys() == {"lo", "hi"}:
        low, high = value["lo"], value["hi"]
        return str(low) if low == high and low is not None else f"{low} to {'∞' if high is None else high}"
    text = value if isinstance(value, str) else json_text(value)
    return text if len(text) <= 100 else f"{text[:99]}…"

# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""What commands have in common on a terminal: streams, errors, progress, exit codes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

import orjson
import typer
from rich.console import Console

from staleness_audit.errors import AuditError
from staleness_audit.whole import whole_file

if TYPE_CHECKING:
    from staleness_audit.api import Progress


class _Console(Console):
    """A console whose reader may go away: Rich would exit with 1, which here means *violated*."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


stdout = _Console(highlight=False, soft_wrap=False)
stderr = Console(stderr=True, highlight=False)

_BEYOND_ASCII = re.compile(r"[^ -~\n]")
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_ORDER = (2, 1, 3, 0)


def json_text(value: object, indent: bool = False) -> str:
    """JSON text in characters that standard output can take, none of which could steer a terminal.

    ``indent``: on many lines, two spaces a level.
    """
    try:
        layout = orjson.OPT_INDENT_2 if indent else 0
        text = orjson.dumps(
            value, default=str, option=layout | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME
        ).decode()
    except TypeError:
        # Numbers of more than 64 bits, and names of files that are no text.
        text = json.dumps(value, indent=2 if indent else None, default=str)
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return _BEYOND_ASCII.sub(
        lambda found: found[0] if unicode and found[0].isprintable() else json.dumps(found[0])[1:-1], text
    )


def print_text(text: str) -> None:
    """Print text that is not for a terminal, in characters that standard output can take."""
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))


def write_text(path: Path, text: str, option: str = "--output") -> None:
    """Write a file that the user named, whole or not at all; ``AuditError`` if that is not possible."""
    try:
        with whole_file(path) as aside:
            aside.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise AuditError(f"{path}: cannot be written ({error.strerror}); choose another {option}.") from error


@contextmanager
def errors() -> Iterator[None]:
    """Turn what stops a command into one sentence and an exit code that is no verdict."""
    try:
        yield
        sys.stdout.flush()
    except AuditError as error:
        _fail(error)
    except BrokenPipeError:
        drop_output()
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        # Click would exit with 1, which here means *violated*.
        complain("interrupted, so there is no verdict.")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def drop_output() -> None:
    """Nobody reads on: what is still buffered must not make Python exit with a code of its own when it closes."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def complain(error: AuditError | str) -> None:
    """Print an error as the one sentence that it is."""
    stderr.print(f"[red]error[/]: {plain(str(error))}", soft_wrap=True)


def _fail(error: AuditError) -> NoReturn:
    complain(error)
    raise typer.Exit(EXIT_USAGE)


def plain(text: str) -> str:
    """Text from paths and logs, unable to speak to the terminal or to Rich."""
    from rich.markup import escape

    return escape("".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text))


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning like any other note of the tool, without the place in its code."""
    stderr.print(f"[yellow]warning[/]: {plain(str(message))}", soft_wrap=True)


@contextmanager
def progress_bar(quiet: bool, begins: str = "reading") -> Iterator[Progress | None]:
    """Show a progress bar on a terminal; nothing on a pipe. ``begins``: what is done before anything is told."""
    if quiet or not stderr.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task(begins, total=None)

        def step(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total or None, description=plain(what)[-40:])

        yield step

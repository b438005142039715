# Heavy imports wait until a command needs them, so that --help is quick; Typer takes options as parameters.
# ruff: noqa: PLC0415
"""The command line (DESIGN section 5): a thin layer over ``staleness_audit.api``.

Exit codes: 0 within the bound, 1 violated, 2 usage error or unreadable input, 3 not known.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console

from staleness_audit import __version__
from staleness_audit.errors import AuditError, BrokenPlugin

if TYPE_CHECKING:
    import duckdb

    from staleness_audit.api import AuditResult, Progress, Steps

app = typer.Typer(
    name="staleness-audit",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Were the tokens of an asynchronous RL run trained within the staleness bound? "
    "Reads the run's logs and shows the lines that prove it.",
    epilog="Exit codes: 0 within the bound, 1 violated, 2 usage error or unreadable input, 3 the logs can't tell.",
)


class _Console(Console):
    """A console whose reader may go away: Rich would exit with 1, which here means *violated*."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


stdout = _Console(highlight=False, soft_wrap=False)
stderr = Console(stderr=True, highlight=False)

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_ORDER = (2, 1, 3, 0)
COMMANDS = ("audit", "ingest", "explain", "sql")
"""Commands that take defaults from a file."""


class Format(StrEnum):
    """How ``audit`` prints its result."""

    terminal = "terminal"
    json = "json"


class Count(StrEnum):
    """What the gate counts."""

    trajectories = "trajectories"
    tokens = "tokens"
    groups = "groups"


RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Directory or file a run has written, or a folder of tables.")
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
StepsOption = Annotated[
    str | None, typer.Option("--steps", metavar="A:B", help="Only training steps A to B; either may be left out.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        stdout.print(f"staleness-audit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    with _errors():
        ctx.default_map = _configured_defaults()


@app.command(epilog="Example: staleness-audit audit runs/my-run --bound 3")
def audit(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories or files that runs have written.")],
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
    steps: StepsOption = None,
    worst: Annotated[int, typer.Option("--worst", min=0, metavar="N", help="Tell the N worst violations.")] = 10,
    format_: Annotated[Format, typer.Option("--format", help="How to print the result.")] = Format.terminal,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the result here instead of printing it."),
    ] = None,
    tables: TablesOption = None,
    assume: AssumeOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Audit runs: verdict, violations with their log lines, cost, throughput; the exit code is the gate."""
    with _errors():
        from staleness_audit.api import audit as run_audit
        from staleness_audit.check.gate import Gate

        if tables is not None and len(runs) > 1:
            raise AuditError("--tables names one folder, so it takes one RUN; leave it out to audit several.")
        if strict and allow_inconclusive:
            raise AuditError("--strict and --allow-inconclusive contradict each other; choose one.")
        gate = Gate(
            count=count.value if count else "trajectories",
            max_violations=max_violations or 0,
            strict=strict,
            allow_inconclusive=allow_inconclusive,
            exit_zero=exit_zero,
            given=max_violations is not None or count is not None or strict,
        )
        step_range, pairs = _step_range(steps), _pairs(assume)
        results: list[AuditResult] = []
        codes: list[int] = []
        for run in runs:
            try:
                with _progress(quiet) as progress:
                    result = run_audit(
                        run,
                        bound,
                        framework=framework,
                        steps=step_range,
                        tables=tables,
                        gate=gate,
                        worst=worst,
                        assume=pairs,
                        progress=progress,
                    )
            except AuditError as error:
                _complain(error)
                codes.append(EXIT_USAGE)
                continue
            results.append(result)
            codes.append(result.exit_code)
        try:
            _print_audits(results, len(runs), format_, output, verbose)
            sys.stdout.flush()
        except BrokenPipeError:  # whoever stopped reading still gets the exit code
            _drop_output()
    raise typer.Exit(next(code for code in EXIT_ORDER if code in codes))


@app.command(epilog="Example: staleness-audit ingest runs/my-run --tables my-tables")
def ingest(
    run: RunArgument,
    tables: Annotated[Path, typer.Option("--tables", metavar="DIR", help="Folder for the event tables.")],
    framework: FrameworkOption = None,
    assume: AssumeOption = None,
    quiet: QuietOption = False,
) -> None:
    """Only write the event tables (Parquet), without judging."""
    with _errors():
        from staleness_audit.api import load

        with _progress(quiet) as progress:
            dataset = load(run, framework=framework, tables=tables, assume=_pairs(assume), progress=progress)
        if not quiet:
            rows = {name: sum(_rows_in(part) for part in dataset.parts(name)) for name in dataset.manifest["tables"]}
            stdout.print(f"{dataset.folder}: " + ", ".join(f"{name} {count:,}" for name, count in rows.items()))


@app.command(
    epilog="Example: staleness-audit explain runs/my-run g7/0    or    staleness-audit explain runs/my-run --worst"
)
def explain(
    run: RunArgument,
    trajectory: Annotated[str | None, typer.Argument(metavar="TRAJECTORY", help="Its id, as audit prints it.")] = None,
    worst: Annotated[bool, typer.Option("--worst", help="Explain the worst violation.")] = False,
    bound: BoundOption = None,
    framework: FrameworkOption = None,
    tables: TablesOption = None,
    assume: AssumeOption = None,
    format_: Annotated[Format, typer.Option("--format", help="How to print the story.")] = Format.terminal,
    quiet: QuietOption = False,
) -> None:
    """Tell one trajectory's life over policy versions, event by event, with the log line of each."""
    with _errors():
        from staleness_audit.api import audit as run_audit
        from staleness_audit.report.terminal import render_story

        if (trajectory is None) != worst:
            raise AuditError("Name a trajectory, or give --worst to explain the worst violation.")
        with _progress(quiet) as progress:
            result = run_audit(
                run, bound, framework=framework, tables=tables, worst=1, assume=_pairs(assume), progress=progress
            )
        story = result.explain(trajectory)
        if format_ is Format.json:
            print(_json(story.json(), indent=2))
        else:
            worst_ones = result.data["violations"]["worst"] or []
            listed = {
                row["step"]: row["stoppable_at"] for row in worst_ones if row["trajectory_id"] == story.trajectory_id
            }
            render_story(story, stdout, stoppable=listed)


@app.command(epilog='Example: staleness-audit sql runs/my-run "SELECT step, count(*) FROM uses GROUP BY step"')
def sql(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Directory or file a run has written, or a folder of tables.")
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
    with _errors():
        if list_:
            from staleness_audit.report.terminal import render_schema

            render_schema(stdout)
            return
        if run is None or query is None:
            raise AuditError("Give a RUN and a QUERY, or --list to see the tables.")
        import duckdb

        from staleness_audit.api import load
        from staleness_audit.rebuild import rebuild
        from staleness_audit.report.terminal import render_rows

        with _progress(quiet) as progress:
            rebuilt = rebuild(
                load(run, framework=framework, tables=tables, assume=_pairs(assume), progress=progress),
                progress=progress,
            )
        with rebuilt.connect() as connection:
            try:
                cursor = connection.execute(query)
                names = [column[0] for column in cursor.description or []]
                rows = _fetch(cursor)
                if format_ is Format.json:
                    for row in rows:
                        print(_json(dict(zip(names, row, strict=True))))
                else:
                    render_rows(names, rows, stdout)
            except duckdb.Error as error:
                raise AuditError(f"The query failed: {str(error).splitlines()[0]}") from error


@app.command(epilog="Example: staleness-audit frameworks slime")
def frameworks(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only this one, in full.")] = None,
) -> None:
    """Show what is supported: artifacts, what each can prove, bound keys, what each mode guarantees."""
    with _errors():
        from staleness_audit import plugins
        from staleness_audit.report.terminal import render_frameworks

        known = plugins.parsers()
        if name is not None and name not in known:
            raise AuditError(f"No parser is called {name!r}; there are: {', '.join(known)}.")
        render_frameworks({name: known[name]} if name else known, stdout)


def main() -> None:
    """Entry point: every failure ends with one sentence and exit code 2, so that none can be taken for a verdict.

    ``STALENESS_AUDIT_TRACEBACK=1`` shows where an unexpected error comes from.
    """
    # What libraries warn their callers of is none of the user's business.
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", BrokenPlugin)
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        # Logs may hold characters that the terminal's encoding lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except Exception as error:
        if os.environ.get("STALENESS_AUDIT_TRACEBACK"):
            raise
        what = (
            f"{error.strerror}: {error.filename}"
            if isinstance(error, OSError) and error.filename
            else f"{type(error).__name__}: {error}"
        )
        _complain(
            f"unexpected, so there is no verdict: {what} (STALENESS_AUDIT_TRACEBACK=1 shows where; please report it)."
        )
        sys.exit(EXIT_USAGE)


# ---------------------------------------------------------------------------------------------------------------- parts


def _print_audits(results: list[AuditResult], wanted: int, format_: Format, output: Path | None, verbose: bool) -> None:
    from staleness_audit.report.terminal import render_audit, render_summary

    if format_ is Format.json:
        documents = [result.data for result in results]
        if not documents:
            return
        text = _json(documents[0] if wanted == 1 else documents, indent=2)
        if output is None:
            print(text)
        else:
            _write(output, text + "\n")
        return
    buffer = io.StringIO()
    console = stdout if output is None else Console(file=buffer, width=100, highlight=False, no_color=True)
    for result in results:
        render_audit(result.data, console, verbose=verbose)
    if wanted > 1 and results:
        render_summary([result.data for result in results], console)
    if output is not None:
        _write(output, buffer.getvalue())


def _json(value: object, indent: int | None = None) -> str:
    """JSON text in characters that standard output can take."""
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return json.dumps(value, indent=indent, ensure_ascii=not unicode, default=str)


def _fetch(cursor: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    """Rows of a query, a few at a time."""
    while cursor.description and (rows := cursor.fetchmany(10_000)):
        yield from rows


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise AuditError(f"{path}: cannot be written ({error.strerror}); choose another --output.") from error


def _step_range(text: str | None) -> Steps:
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


def _pairs(assumptions: list[str] | None) -> dict[str, str]:
    pairs = {}
    for text in assumptions or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise AuditError(f"--assume {text}: give it as KEY=VALUE.")
        pairs[key] = value
    return pairs


def _rows_in(part: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(part).num_rows)


def _configured_defaults() -> dict[str, dict[str, Any]]:
    """Defaults of all commands from ``staleness-audit.toml`` or ``[tool.staleness-audit]`` of ``pyproject.toml``.

    A key is the name of an option, and sets it for every command that has it.
    """
    for name, path in (("staleness-audit.toml", ()), ("pyproject.toml", ("tool", "staleness-audit"))):
        values = _toml_table(Path(name), path)
        if not values:
            continue
        options = {command: _option_parameters(command) for command in COMMANDS}
        known = sorted({option for own in options.values() for option in own})
        for key in values:
            if key not in known:
                raise AuditError(f"{name}: unknown key {key!r}; there are: {', '.join(known)}.")
        return {
            command: {own[key]: value for key, value in values.items() if key in own}
            for command, own in options.items()
        }
    return {}


def _toml_table(file: Path, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the table at ``path`` of a TOML file; empty if there is no such file or table."""
    if not file.is_file():
        return {}
    try:
        table: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AuditError(f"{file}: not valid TOML ({error}); mend or remove it.") from error
    except OSError as error:
        raise AuditError(f"{file}: cannot be read ({error.strerror}); check its permissions.") from error
    for key in path:
        table = table.get(key, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise AuditError(f"{file}: {'.'.join(path)} is not a table; write [{'.'.join(path)}].")
    return table


def _option_parameters(command: str) -> dict[str, str]:
    """Return option names without dashes in front, and the parameter that each one sets, of a command."""
    group = typer.main.get_command(app)
    parameters = group.commands[command].params  # type: ignore[attr-defined]
    return {
        parameter.opts[0].removeprefix("--"): parameter.name
        for parameter in parameters
        if parameter.param_type_name == "option" and parameter.opts[0] not in ("--help", "--list")
    }


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
        sys.stdout.flush()
    except AuditError as error:
        _fail(error)
    except BrokenPipeError:
        _drop_output()
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        # Click would exit with 1, which here means *violated*.
        _complain("interrupted, so there is no verdict.")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _drop_output() -> None:
    """Nobody reads on: what is still buffered must not make Python exit with a code of its own when it closes."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _complain(error: AuditError | str) -> None:
    stderr.print(f"[red]error[/]: {_plain(str(error))}", soft_wrap=True)


def _fail(error: AuditError) -> NoReturn:
    _complain(error)
    raise typer.Exit(EXIT_USAGE)


def _plain(text: str) -> str:
    """Text from paths and logs, unable to speak to the terminal or to Rich."""
    from rich.markup import escape

    return escape("".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text))


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning like any other note of the tool, without the place in its code."""
    stderr.print(f"[yellow]warning[/]: {_plain(str(message))}", soft_wrap=True)


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress | None]:
    """Show a progress bar on a terminal; nothing on a pipe."""
    if quiet or not stderr.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def step(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=_plain(what)[-40:])

        yield step

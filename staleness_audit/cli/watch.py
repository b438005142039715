# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""`watch`: audit a run while it goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from staleness_audit.cli.console import complain, errors, json_text, plain, progress_bar, stderr, stdout
from staleness_audit.cli.options import BoundOption, FrameworkOption, QuietOption, place_named
from staleness_audit.errors import AuditError
from staleness_audit.places import local_only

if TYPE_CHECKING:
    from staleness_audit.watch.loop import Show, Waits


class WatchFormat(StrEnum):
    """How `watch` tells what it sees."""

    terminal = "terminal"
    jsonl = "jsonl"


def watch(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", parser=place_named, help="Directory or file that a run is writing.")
    ],
    bound: BoundOption = None,
    every: Annotated[
        float, typer.Option("--every", min=0.05, max=86_400, metavar="S", help="Seconds between two looks at the run.")
    ] = 2.0,
    exec_: Annotated[
        str | None, typer.Option("--exec", metavar="CMD", help="Run this command once, on the first proven violation.")
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", min=0, max=65535, metavar="P", help="Serve OpenMetrics text on 127.0.0.1 (0: any port)."
        ),
    ] = None,
    format_: Annotated[
        WatchFormat, typer.Option("--format", help="A dashboard (lines, if not on a terminal), or JSON lines.")
    ] = WatchFormat.terminal,
    until_finished: Annotated[
        bool, typer.Option("--until-finished", help="End by itself when the logs say that the run has ended.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for a run that has not begun to write, instead of refusing it.")
    ] = False,
    framework: FrameworkOption = None,
    quiet: QuietOption = False,
) -> None:
    """Audit a run while it goes on; Ctrl-C ends with the summary of an audit, whose exit code is the gate."""
    with errors():
        from staleness_audit.api import audit
        from staleness_audit.report.terminal import render_audit
        from staleness_audit.watch.alert import Alert
        from staleness_audit.watch.follow import Follower
        from staleness_audit.watch.loop import stopping
        from staleness_audit.watch.loop import watch as take_turns

        local_only(run, "watch follows")
        as_json = format_ is WatchFormat.jsonl
        with ExitStack() as stack:
            stop = stack.enter_context(stopping())
            shows: list[Show] = []
            alert = Alert(exec_) if exec_ is not None else None
            if alert is not None:
                shows.append(alert)
            if metrics_port is not None:
                shows.append(_metrics(metrics_port, quiet, stack))
            follower = Follower(run, bound, framework=framework, folder=stack.enter_context(_own_folder()))
            with ExitStack() as screen:
                view, waits = _view(as_json, quiet, screen)
                shows.append(view)
                ready = waits if wait else None
                take_turns(follower, shows, stop, every=every, until_finished=until_finished, waits=ready)
            # What ends a watch is no shortcut: the same audit that anyone else can repeat.
            with progress_bar(quiet) as progress:
                result = audit(run, bound, framework=framework, progress=progress)
            if as_json:
                print(json_text({"schema": "staleness-watch/1", "final": True, "audit": result.data}), flush=True)
            else:
                render_audit(result.data, stdout)
            if alert is not None and (code := alert.wait(10.0)):
                complain(f"the command of --exec ended with exit code {code}.")
            sys.stdout.flush()
    raise typer.Exit(result.exit_code)


def _view(as_json: bool, quiet: bool, stack: ExitStack) -> tuple[Show, Waits]:
    """Return what shows states on standard output, and what says why there are none yet."""
    from staleness_audit.report.terminal.words import ASCII, UNICODE
    from staleness_audit.watch.lines import Lines

    if not as_json and stdout.is_terminal:
        from staleness_audit.watch.dashboard import Dashboard

        dashboard = stack.enter_context(Dashboard(stdout))
        return dashboard, dashboard.wait

    def write(line: str) -> None:
        print(line, flush=True)

    return Lines(write, as_json=as_json, glyphs=ASCII if stdout.options.ascii_only else UNICODE), _Waiting(quiet)


class _Waiting:
    """Says on standard error why there is nothing to watch yet; each reason once."""

    def __init__(self, quiet: bool) -> None:
        self._told = ""
        self._quiet = quiet

    def __call__(self, error: AuditError) -> None:
        """Say it, unless it was said last."""
        if str(error) != self._told and not self._quiet:
            stderr.print(plain(f"waiting: {error}"), soft_wrap=True)
        self._told = str(error)


def _metrics(port: int, quiet: bool, stack: ExitStack) -> Show:
    from staleness_audit.watch.metrics import MetricsServer

    server = MetricsServer(port)
    stack.callback(server.close)
    if not quiet:
        stderr.print(plain(f"metrics: http://127.0.0.1:{server.port}/metrics"), soft_wrap=True)
    return server


@contextmanager
def _own_folder() -> Iterator[Path]:
    """Yield a folder for the tables of this watch, on the disk that caches are on; it goes with the watch."""
    from staleness_audit.scratch import scratch_folder
    from staleness_audit.store import cache_folder

    with scratch_folder("watch-", cache_folder()) as folder:
        yield folder

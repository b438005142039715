"""The watch on a terminal: one screen that is drawn anew after every refresh."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from staleness_audit.errors import AuditError
from staleness_audit.report.terminal.histogram import sparkline
from staleness_audit.report.terminal.verdict import STYLES
from staleness_audit.report.terminal.words import (
    ASCII,
    UNICODE,
    Glyphs,
    count,
    duration,
    interval,
    percent_interval,
    place,
    plain,
    step_number,
)
from staleness_audit.watch.lines import verdict_words
from staleness_audit.watch.state import State

STEPS = 60
"""Steps that the figures over time reach back, if the terminal is wide enough."""
_NAMES = 14
"""Columns that the names of figures take, with the space behind them."""
_WORTH = 20
"""Steps that a figure should show before its explanation takes the room."""


class Dashboard:
    """Draws states on a console; a context manager, as the screen must be given back."""

    def __init__(self, console: Console) -> None:
        self._glyphs = ASCII if console.options.ascii_only else UNICODE
        # Drawn by us only: between two refreshes nothing moves.
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")

    def __enter__(self) -> Dashboard:
        self._live.__enter__()
        self._say("Reading what was written so far")  # the first look at a long run may take minutes
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def wait(self, error: AuditError) -> None:
        """Say why there is no run yet."""
        self._say(f"waiting: {plain(error, self._glyphs)}")

    def _say(self, words: str) -> None:
        self._live.update(Text(words, "dim"), refresh=True)

    def __call__(self, state: State) -> None:
        """Draw a state."""
        self._live.update(draw(state, self._glyphs, self._live.console.width), refresh=True)


def draw(state: State, glyphs: Glyphs = UNICODE, width: int = 100) -> RenderableType:
    """Return a state as something that Rich can print on ``width`` columns.

    Text from logs is shown as text, never as markup.
    """
    data = state.data
    title = Text(f" {verdict_words(state)} ", STYLES[data["verdict"]] if state.proven or state.over else "reverse")
    run = data["run"]
    title.append(f"  {plain(run['framework'], glyphs, 40)}  {plain(run['path'], glyphs, 100)}", "default")
    parts: list[RenderableType] = [title, Text(), _facts(state, glyphs), Text(), _over_time(state, glyphs, width)]
    if state.newest:
        parts += [Text(), Text("Newest violations", "bold"), _violations(state, glyphs, width)]
    if state.trouble is not None:
        parts += [Text(), Text(f"Not readable at the moment: {plain(state.trouble, glyphs)}", "yellow")]
    parts += [Text(), Text(_footer(state), "dim")]
    return Group(*parts)


def _facts(state: State, glyphs: Glyphs) -> Table:
    data, bound = state.data, state.data["bound"]["value"]
    steps = count(data["run"]["steps"], "step", glyphs)
    step = f"{data['per_step'][-1]['step']} ({steps} completed)" if data["per_step"] else "none yet"
    in_flight, queued = (interval(count, glyphs) for count in state.under_way)
    largest, limit = interval(data["staleness"]["max"], glyphs), "not known" if bound is None else str(bound)
    trained, generated = (data["tokens"][name] for name in ("trained", "generated"))
    trained_rate = _rate(state.trained_per_s, trained, glyphs)
    generated_rate = _rate(state.generated_per_s, generated, glyphs)
    pairs = [
        ("step", step),
        ("largest", f"{largest}, the bound is {limit}"),
        ("in flight", f"{in_flight} being generated, {queued} waiting to be trained"),
        ("trained", f"{count(trained, 'token', glyphs)} of {interval(generated, glyphs)}"),
        ("waste", percent_interval(data["waste"]["ratio"], glyphs)),
        ("speed", f"{generated_rate} generated, {trained_rate} trained (last minute)"),
    ]
    if bound is not None:
        proven = data["violations"]
        words = ", ".join(f"{interval(proven[unit], glyphs)} {unit}" for unit in ("trajectories", "groups", "tokens"))
        pairs.insert(2, ("violations", words))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(f"  {name}", Text(value))
    return grid


def _rate(per_second: float | None, tokens: Mapping[str, Any], glyphs: Glyphs) -> str:
    """What is known of a rate: at least so much where the tokens are open above."""
    if per_second is None:
        return "?"
    known = round(per_second)
    return f"{interval({'lo': known, 'hi': known if tokens['hi'] is not None else None}, glyphs)} tokens/s"


def _over_time(state: State, glyphs: Glyphs, width: int) -> Table:
    """Staleness, violations and duration of the last steps, a character each."""
    longest = "largest that is certain in each step"
    room = width - _NAMES
    explained = room - len(longest) - 2 >= _WORTH
    steps = max(1, min(STEPS, room - len(longest) - 2 if explained else room))
    rows = state.data["per_step"][-steps:]
    bound = state.data["bound"]["value"]
    grid = Table.grid(padding=(0, 2, 0, 0))

    def add(name: str, figure: Text, words: str) -> None:
        grid.add_row(Text(f"  {name}", "dim", no_wrap=True), figure, *[Text(words, "dim")] * explained)

    if rows:
        add("staleness", sparkline([row["max"]["lo"] for row in rows], bound, glyphs), longest)
        if bound is not None:
            broken = [(row["violations"] or {"lo": 0})["lo"] or 0 for row in rows]
            add("violations", sparkline(broken, 0, glyphs), "proven in each step")
        waits = [None if row["waited_s"] is None else round(row["waited_s"] * 1000) for row in rows]
        if any(wait is not None for wait in waits):
            add("waiting", sparkline(waits, None, glyphs), "of the trainer for data")
    return grid


def _violations(state: State, glyphs: Glyphs, width: int) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(4):
        table.add_column(no_wrap=True)
    longest = min(40, max(8, width - 60))  # on a narrow terminal, names and places give way to what was wrong
    for row in state.newest:
        where = place(row["evidence"][0], glyphs) if row["evidence"] and width >= 60 else ""
        table.add_row(
            Text(f"  {plain(row['trajectory_id'], glyphs, longest)}"),
            Text(f"step {step_number(row, glyphs)}"),
            Text(f"staleness {interval(row['staleness'], glyphs)}", "red"),
            Text(where, "dim"),
        )
    return table


def _footer(state: State) -> str:
    return f"refreshed in {duration(state.took)}; Ctrl-C ends with the summary"

"""Sixth question: how much was made and trained per second, who waited for whom, and how full was the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import duckdb

from staleness_audit.report.html.bars import Clock
from staleness_audit.report.html.figure import (
    Cell,
    Figure,
    Missing,
    StepNames,
    Table,
    axis,
    cells,
    columns,
    rounded,
    thinned,
)
from staleness_audit.report.html.queries import Rows, fetch
from staleness_audit.report.html.verdict import Tile
from staleness_audit.report.terminal.words import duration, is_exact, number, percent

Data = Mapping[str, Any]
Item = Figure | Missing

BINS = 120
"""Bins of time at most; fewer for runs of few steps, so that a bin holds a step."""
LISTED = 60
"""Rows of the tables at most."""


def tiles(data: Data) -> tuple[Tile, ...]:
    """The averages over the whole run that are known."""
    numbers = data["throughput"]
    rates = (
        ("generated_tokens_per_s", "Generated", "tokens per second"),
        ("trained_tokens_per_s", "Trained", "tokens per second"),
        ("in_bound_tokens_per_s", "Trained within the bound", "tokens per second"),
        ("mean_in_flight", "Being generated", "trajectories on average"),
        ("mean_queued", "Waiting in the queue", "trajectories on average"),
    )
    shown = [
        Tile(title, number(round(numbers[key], 2)), note) for key, title, note in rates if numbers[key] is not None
    ]
    for key, title, note in (
        ("trainer_busy", "Trainer busy", "of the time"),
        ("trainer_waiting", "Trainer waiting for data", "of the time"),
    ):
        if numbers[key] is not None:
            shown.append(Tile(title, percent(numbers[key]), note))
    return tuple(shown)


def throughput_figures(data: Data, connection: duckdb.DuckDBPyConnection) -> list[Item]:
    """Rates, trainer, occupancy and queue age over time, or what the logs lack for each."""
    times = fetch(connection, "run_times")[0]
    trainer = trainer_figure(data)
    if times["first"] is None or times["last"] <= times["first"]:
        why = "The logs hold no times of steps or trajectories, so nothing can be shown per second."
        return (
            [Missing("Tokens per second", why), trainer]
            if isinstance(trainer, Figure)
            else [Missing("Throughput over time", why)]
        )
    bins = min(BINS, max(10, times["steps"]))
    width = -(-(times["last"] - times["first"] + 1) // bins)
    clock = Clock.over([times["first"], times["last"]])
    middles = [clock.at(times["first"] + width * index + width // 2) or 0.0 for index in range(bins)]
    rates = fetch(connection, "token_rates", **{"from": times["first"]}, width=width, bound=data["bound"]["value"])
    occupancy = fetch(connection, "occupancy_bins", **{"from": times["first"]}, until=times["last"], width=width)
    return [
        _rates(data, times, rates, middles, width, clock),
        trainer,
        _occupancy(times, occupancy, middles, clock),
        _queue_age(times, occupancy, middles, clock),
    ]


def _rates(data: Data, times: Mapping[str, Any], rates: Rows, middles: list[float], width: int, clock: Clock) -> Item:
    title = "Tokens per second"
    series: list[tuple[str, str, str]] = []
    notes = []
    if times["timed_spans"]:
        series.append(("generated", "generated", "var(--muted)"))
        if times["timed_spans"] < times["spans"]:
            notes.append(
                f"Of {times['spans']:,} runs of tokens {times['timed_spans']:,} have a time; "
                "the others are not counted as generated."
            )
    if times["timed_steps"]:
        series.append(("trained", "trained", "var(--within)"))
        if data["bound"]["value"] is not None:
            series.append(("in_bound", "trained, certainly within the bound", "var(--flight)"))
        if times["timed_steps"] < times["steps"]:
            notes.append(
                f"Of {times['steps']:,} steps {times['timed_steps']:,} have an end; "
                "the others are not counted as trained."
            )
    if not series:
        return Missing(title, "The logs hold no times of tokens or of ends of training steps.")
    vague = [] if is_exact(data["tokens"]["trained"]) else ["trained"]
    vague += [] if is_exact(data["tokens"]["generated"]) else ["generated"]
    series = [
        (key, name + (" (at least)" if key in vague else ""), colour)
        for key, name, colour in series
        if any(row[key] for row in rates)
    ]
    if not series:
        return Missing(title, "The logs don't say how many tokens at least were generated or trained at which time.")
    values = {key: [0.0] * len(middles) for key, _, _ in series}
    for row in rates:
        if row["bin"] < len(middles):
            for key, heights in values.items():
                heights[row["bin"]] = row[key] * 1e6 / width
    traces = [
        _line(
            middles,
            values[key],
            name,
            colour,
            f"%{{y:,.4~g}} tokens per second {name}",
            shape="hvh",
            dash="dot" if key == "in_bound" else "solid",
        )
        for key, name, colour in series
    ]
    return _over_time(
        "rates",
        title,
        "tokens per second",
        clock,
        traces,
        _averaged(middles, list(values.values())),
        [name for _, name, _ in series],
        alt="On average over the run: " + (_averages(data) or "not known") + ".",
        caption=f"Averages over {duration(width / 1e6)}. Tokens count as generated when their run of one version "
        "ended; those of a training step are spread over the time since the step before it ended. " + " ".join(notes),
    )


def _line(
    x: Sequence[float], y: Sequence[float], name: str, colour: str, hover: str, *, mode: str = "lines", **line: Any
) -> dict[str, Any]:
    """One quantity over time."""
    return {
        "type": "scatter",
        "mode": mode,
        "line": {"width": 2, "color": colour, **line},
        "marker": {"size": 5, "color": colour},
        "x": rounded(x),
        "y": rounded(y, 4),
        "name": name,
        "hovertemplate": f"{hover}<extra></extra>",
    }


def _averaged(middles: Sequence[float], values: Sequence[Sequence[float]], digits: int = 2) -> list[tuple[Cell, ...]]:
    """Rows of the table below a figure: the time, and the mean of each quantity over the bins that a row joins."""
    return [
        cells(
            number(round(middles[run.start], 2)),
            *(number(round(sum(each[index] for index in run) / len(run), digits)) for each in values),
        )
        for run in thinned(len(middles), LISTED)
    ]


def _over_time(
    name: str,
    title: str,
    quantity: str,
    clock: Clock,
    traces: list[dict[str, Any]],
    rows: list[tuple[Cell, ...]],
    heads: list[str],
    *,
    alt: str,
    caption: str,
) -> Figure:
    """Return a figure of quantities over time, with its numbers."""
    heading = columns(f"{clock.unit}#", *(f"{head}#" for head in heads))
    return Figure(
        id=f"throughput-{name}",
        title=title,
        alt=alt,
        caption=caption,
        traces=traces,
        layout={
            "xaxis": axis(f"{clock.unit} since the first entry"),
            "yaxis": axis(quantity, rangemode="tozero"),
            "hovermode": "x unified",
            "showlegend": True,
        },
        table=Table(f"throughput-{name}-numbers", title, heading, tuple(rows)),
        height=280,
    )


def _averages(data: Data) -> str:
    numbers = data["throughput"]
    return ", ".join(
        f"{number(round(numbers[key], 2))} tokens per second {name}"
        for key, name in (
            ("generated_tokens_per_s", "generated"),
            ("trained_tokens_per_s", "trained"),
            ("in_bound_tokens_per_s", "trained within the bound"),
        )
        if numbers[key] is not None
    )


def trainer_figure(data: Data) -> Item:
    """How long each step trained, and how long the trainer waited before it."""
    title = "The trainer: busy and waiting"
    rows = data["per_step"]
    timed = [row for row in rows if row["duration_s"] is not None or row["waited_s"] is not None]
    if not timed:
        return Missing(
            title, "The logs don't say how long training steps took, nor how long the trainer waited for data."
        )
    runs, name = thinned(len(timed), 300), StepNames.of(data)
    names = [name(timed[run.start]) for run in runs]
    traces, numbers = [], {}
    for key, word, colour in (
        ("duration_s", "training", "var(--within)"),
        ("waited_s", "waiting for data before it", "var(--v1)"),
    ):
        values = [_mean([timed[index][key] for index in run]) for run in runs]
        if any(value is not None for value in values):
            numbers[word] = values
            traces.append(
                {
                    "type": "bar",
                    "x": names,
                    "y": rounded(values),
                    "name": word,
                    "marker": {"color": colour},
                    "hovertemplate": f"step %{{x}}: %{{y:,.4~g}} s {word}<extra></extra>",
                }
            )
    missing = [
        word
        for key, word in (("duration_s", "how long steps took"), ("waited_s", "how long the trainer waited"))
        if all(row[key] is None for row in timed)
    ]
    shares = [
        f"{word} {percent(data['throughput'][key])} of the time"
        for key, word in (("trainer_busy", "busy"), ("trainer_waiting", "waiting"))
        if data["throughput"][key] is not None
    ]
    listed = [
        cells(
            names[run.start],
            *("" if values[run.start] is None else duration(values[run.start] or 0) for values in numbers.values()),
        )
        for run in thinned(len(names), LISTED)
    ]
    return Figure(
        id="throughput-trainer",
        title=title,
        alt="The trainer was " + (" and ".join(shares) or "timed in some steps") + ".",
        caption=("Seconds per step" + (f", averages over up to {len(runs[0])} steps" if len(runs[0]) > 1 else "") + ".")
        + (f" The logs don't say {' nor '.join(missing)}." if missing else "")
        + _gaps(rows)
        + _coarse(timed),
        traces=traces,
        layout={
            "barmode": "stack",
            "xaxis": axis("training step", type="category", nticks=12),
            "yaxis": axis("seconds", rangemode="tozero"),
            "showlegend": True,
        },
        table=Table(
            "throughput-trainer-numbers", title, columns("step#", *(f"{word}#" for word in numbers)), tuple(listed)
        ),
        height=280,
    )


def _gaps(rows: list[Mapping[str, Any]]) -> str:
    """Say of how many steps one of the two is not logged although it is of others; their bars are shorter for it."""
    found = []
    for key, name in (("duration_s", "how long they took"), ("waited_s", "how long the trainer waited")):
        without = sum(row[key] is None for row in rows)
        if 0 < without < len(rows):
            found.append(f" Of {without:,} of the {len(rows):,} steps the logs don't say {name}.")
    return "".join(found)


def _coarse(rows: list[Mapping[str, Any]]) -> str:
    """Say so if steps seem to take no time at all because the clock of the logs only counts seconds."""
    found = [row["duration_s"] for row in rows if row["duration_s"] is not None]
    whole = all(float(value).is_integer() for value in found)
    return " The logs count whole seconds only, so a short step may seem to take none." if whole and 0 in found else ""


def _mean(values: list[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def _occupancy(times: Mapping[str, Any], rows: Rows, middles: list[float], clock: Clock) -> Item:
    title = "In flight and in the queue"
    if not times["timed_lives"]:
        return Missing(title, "The logs don't say when trajectories began and ended.")
    changes = {row["bin"]: row for row in rows}
    flight, queue, averages = 0, 0, []
    for index in range(len(middles)):
        row = changes.get(index)
        averages.append((flight + (row["flight_part"] if row else 0), queue + (row["queue_part"] if row else 0)))
        flight, queue = flight + (row["flight_change"] if row else 0), queue + (row["queue_change"] if row else 0)
    partly = (
        ""
        if times["timed_lives"] == times["lives"]
        else f" Only the {times['timed_lives']:,} of {times['lives']:,} trajectories with times are counted."
    )
    queued = any(value for _, value in averages)
    flights, queues = [max(pair[0], 0) for pair in averages], [max(pair[1], 0) for pair in averages]
    shown = [("being generated", flights, "var(--flight)")] + [
        ("waiting in the queue", queues, "var(--queue)")
    ] * queued
    return _over_time(
        "occupancy",
        title,
        "trajectories",
        clock,
        [_line(middles, level, name, colour, f"%{{y:,.4~g}} {name}", shape="hvh") for name, level, colour in shown],
        _averaged(middles, [level for _, level, _ in shown], 1),
        [name for name, _, _ in shown],
        alt=f"At most {number(round(max(flights), 1))} trajectories were being generated at a time"
        + (f" and {number(round(max(queues), 1))} waiting in the queue." if queued else "; none is logged as waiting."),
        caption="Trajectories, averaged over each bin of time."
        + partly
        + ("" if queued else " No time in the queue is logged."),
    )


def _queue_age(times: Mapping[str, Any], rows: Rows, middles: list[float], clock: Clock) -> Item:
    title = "Age in the queue"
    aged = [row for row in rows if row["left_queue"] and row["bin"] < len(middles)]
    if not any(row["age_max"] for row in aged):
        return Missing(
            title, "The logs don't say both when trajectories were queued and when they were taken for training."
        )
    x = [middles[row["bin"]] for row in aged]
    names = (
        ("age_median", "half waited at most", "var(--queue)"),
        ("age_p90", "90% waited at most", "var(--within)"),
        ("age_max", "longest", "var(--beyond)"),
    )
    seconds = {key: [(row[key] or 0) / 1e6 for row in aged] for key, _, _ in names}
    traces = [
        _line(x, seconds[key], name, colour, f"{name} %{{y:,.4~g}} s", mode="lines+markers")
        for key, name, colour in names
    ]
    listed = [
        cells(
            number(round(x[run.start], 2)),
            f"{aged[run.start]['left_queue']:,}",
            *(duration(seconds[key][run.start]) for key, _, _ in names),
        )
        for run in thinned(len(aged), LISTED)
    ]
    return _over_time(
        "age",
        title,
        "seconds",
        clock,
        traces,
        listed,
        ["taken", *(name for _, name, _ in names)],
        alt=f"The longest wait in the queue was {duration(max(seconds['age_max']))}.",
        caption="How long trajectories had waited when they were taken for training, by the time of that.",
    )

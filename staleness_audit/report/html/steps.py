"""Second question, step by step: how stale was what was trained, and where was the bound broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from staleness_audit.check.classes import sum_open
from staleness_audit.report.html.figure import (
    WORDS,
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
from staleness_audit.report.html.queries import Rows

Data = Mapping[str, Any]
Anchors = Mapping[tuple[int, int], str]

DRAWN = 1000
"""Steps, or runs of steps, that a figure shows at most."""
LISTED = 200
"""Rows of the table below it at most."""


def steps_figure(data: Data, extremes: Rows, anchors: Anchors) -> Figure | Missing:
    """Staleness over training steps: the band from least to largest, the mean, the bound, and the violations.

    Args:
        data: the document.
        extremes: rows of ``step_extremes``.
        anchors: by (attempt, step), the story of its worst violation.
    """
    rows = data["per_step"]
    if not rows or not any(row["max"]["lo"] is not None or row["max"]["hi"] is not None for row in rows):
        return Missing("Staleness over training steps", "No training step with trained tokens is in the logs.")
    least = {(row["attempt"], row["step"]): row for row in extremes}
    lost = any(item["opens"] == "training" for item in data["diagnostics"]["items"])
    name = StepNames.of(data)
    joined = [_joined([rows[index] for index in run], least, anchors, lost, name) for run in thinned(len(rows), DRAWN)]
    ordinal = any(later["step"] <= earlier["step"] for earlier, later in pairwise(rows))
    for position, row in enumerate(joined):
        row["x"] = position if ordinal else row["step"]
    bound = data["bound"]["value"]
    layout: dict[str, Any] = {
        "xaxis": axis("training step", **_ticks(joined, ordinal)),
        "yaxis": axis(
            "staleness (versions)",
            rangemode="tozero",
            tickformat=",d",
            **({"dtick": 1} if _highest(joined) < 8 else {}),
        ),
        "shapes": _bound_line(bound),
    }
    several = "" if len(joined) == len(rows) else f" Each point joins up to {-(-len(rows) // DRAWN)} steps."
    return Figure(
        id="staleness-steps",
        title="Staleness over training steps",
        alt=_steps_alt(data, rows),
        caption="Staleness of a token: how many policy versions older it is than the weights that train on it. Line: "
        "the largest of each step that is certain; light area: from the least to the largest that is possible; "
        f"narrow area: the mean.{several}"
        + (" Click a marked violation to read its story." if any(row["mark"] and row["href"] for row in joined) else "")
        + _unplaced(data),
        traces=_step_traces(joined),
        layout=layout,
        table=_steps_table(data, least, anchors, lost),
        height=360,
    )


def _joined(
    rows: Sequence[Mapping[str, Any]],
    least: Mapping[Any, Mapping[str, Any]],
    anchors: Anchors,
    lost: bool,
    name: StepNames,
) -> dict[str, Any]:
    """Join some steps to one point: what is certain of one of them, and what is possible in any."""
    first, last = rows[0], rows[-1]
    mins = [least.get((row["attempt"], row["step"]), {}) for row in rows]
    highs = [row["max"]["hi"] for row in rows]
    violations = [row["violations"] or {"lo": 0, "hi": 0} for row in rows]
    noun = "step" if first is last else "steps"
    mark = (
        "proven"
        if any(value["lo"] for value in violations)
        else "possible"
        if any(value["hi"] != 0 for value in violations)
        else ""
    )
    return {
        "step": first["step"],
        "attempt": first["attempt"],
        "name": f"{noun} {name(first, last)}",
        "tick": name(first),
        "max_lo": max((row["max"]["lo"] or 0 for row in rows), default=0),
        "max_hi": None if None in highs else max(highs),
        "min_lo": 0 if lost else min((row.get("min_lo", 0) or 0 for row in mins), default=0),
        "mean_lo": _end(rows, "lo", min),
        "mean_hi": _end(rows, "hi", max),
        "violations": {
            "lo": sum(value["lo"] or 0 for value in violations),
            "hi": sum_open(value["hi"] for value in violations),
        },
        "mark": mark,
        "href": next(
            (anchors[row["attempt"], row["step"]] for row in rows if (row["attempt"], row["step"]) in anchors), ""
        ),
    }


def _highest(rows: Sequence[Mapping[str, Any]]) -> int:
    return max((row["max_lo"] if row["max_hi"] is None else row["max_hi"] for row in rows), default=0)


def _end(rows: Sequence[Mapping[str, Any]], end: str, choose: Any) -> float | None:
    values = [row["mean"][end] for row in rows]
    return None if not values or None in values else float(choose(values))


def _step_traces(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    x = [row["x"] for row in rows]
    # Where no upper end is known the area ends at what is certain, and a mark says so.
    top = [row["max_lo"] if row["max_hi"] is None else row["max_hi"] for row in rows]
    words = [_hover(row) for row in rows]
    plain_line = {"width": 0}
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": [row["min_lo"] for row in rows],
            "line": plain_line,
            "hoverinfo": "skip",
            "showlegend": False,
        },
        {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": top,
            "line": plain_line,
            "fill": "tonexty",
            "fillcolor": "var(--band)",
            "hoverinfo": "skip",
            "name": "from least to largest",
        },
        {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": rounded(row["mean_lo"] for row in rows),
            "line": {"width": 1, "color": "var(--mean)"},
            "hoverinfo": "skip",
            "showlegend": False,
        },
        {
            "type": "scatter",
            "mode": "lines",
            "x": x,
            "y": rounded(row["mean_hi"] for row in rows),
            "line": {"width": 1, "color": "var(--mean)"},
            "fill": "tonexty",
            "fillcolor": "var(--meanband)",
            "hoverinfo": "skip",
            "name": "mean",
        },
        {
            "type": "scatter",
            "mode": "lines+markers" if len(rows) <= 150 else "lines",
            "x": x,
            "y": [row["max_lo"] for row in rows],
            "line": {"width": 2, "color": "var(--within)"},
            "marker": {"size": 5, "color": "var(--within)"},
            "text": words,
            "customdata": [_target(row) for row in rows],
            "hovertemplate": "%{text}<extra></extra>",
            "name": "largest",
        },
    ]
    open_ends = [row for row in rows if row["max_hi"] is None]
    if open_ends:
        traces.append(_marks(open_ends, "no upper end known", "triangle-up-open", "var(--muted)", 10))
    for kind, title, symbol, colour in (
        ("possible", "possible violation", "diamond-open", "var(--possible)"),
        ("proven", "proven violation", "diamond", "var(--beyond)"),
    ):
        if marked := [row for row in rows if row["mark"] == kind]:
            traces.append(_marks(marked, title, symbol, colour, 12 if len(marked) <= 150 else 5))
    return traces


def _marks(rows: list[dict[str, Any]], name: str, symbol: str, colour: str, size: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [row["x"] for row in rows],
        "y": [
            row["max_hi"] if row["mark"] == "possible" and row["max_hi"] is not None else row["max_lo"] for row in rows
        ],
        "marker": {"symbol": symbol, "size": size, "color": colour, "line": {"width": 2, "color": colour}},
        "text": [_hover(row) for row in rows],
        "customdata": [_target(row) for row in rows],
        "hovertemplate": "%{text}<extra></extra>",
        "name": name,
    }


def _target(row: Mapping[str, Any]) -> str:
    """Where a click on a step leads: the story of its worst violation, else its row in the table."""
    return str(row["href"]) or f"steps-{row['attempt']}-{row['step']}"


def _hover(row: Mapping[str, Any]) -> str:
    largest = WORDS.interval({"lo": row["max_lo"], "hi": row["max_hi"]})
    mean = WORDS.interval({"lo": row["mean_lo"], "hi": row["mean_hi"]})
    lines = [f"<b>{row['name']}</b>", f"largest {largest}", f"mean {mean}"]
    if row["mark"]:
        lines.append(f"violations {WORDS.interval(row['violations'])}")
    return "<br>".join(lines)


def _ticks(rows: list[dict[str, Any]], ordinal: bool) -> dict[str, Any]:
    if not ordinal:
        return {"tickformat": "d", **({"dtick": 1} if len(rows) < 8 and rows[-1]["x"] - rows[0]["x"] < 8 else {})}
    shown = [rows[run.start] for run in thinned(len(rows), 12)]
    return {
        "tickmode": "array",
        "tickvals": [row["x"] for row in shown],
        "ticktext": [row["tick"].replace(" (", "<br>(") for row in shown],
    }


def _bound_line(bound: int | None) -> list[dict[str, Any]]:
    if bound is None:
        return []
    line = {"color": "var(--bound)", "width": 2, "dash": "dash"}
    words = {"text": f"bound {bound}", "textposition": "end", "font": {"color": "var(--bound)", "size": 12}}
    return [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": bound, "y1": bound, "line": line, "label": words}]


def _steps_alt(data: Data, rows: Sequence[Mapping[str, Any]]) -> str:
    largest, bound = WORDS.interval(data["staleness"]["max"]), data["bound"]["value"]
    text = f"Staleness over {len(rows)} training steps; the largest in the run is {largest}."
    if bound is None:
        return text + " No bound is known."
    proven = sum(bool(row["violations"]["lo"]) for row in rows)
    possible = sum(row["violations"]["hi"] != 0 and not row["violations"]["lo"] for row in rows)
    text += f" The bound is {bound}: violations are proven in {proven} and possible in {possible} other steps."
    return text + _unplaced(data)


def _unplaced(data: Data) -> str:
    """Say of which violations no step can be marked as proven, since what the logs prove is of several together."""
    ranges = data["violations"].get("step_ranges") or []
    if not ranges:
        return ""
    name, listed = StepNames.of(data), ranges[:8]
    more = f" and {len(ranges) - len(listed)} more runs of steps" if len(ranges) > len(listed) else ""
    shown = ", ".join(map(name, listed))
    return (
        f" Violations are proven in the steps {shown}{more}, but in which of the steps of each is not known, so none "
        "is marked as proven."
    )


def _steps_table(data: Data, least: Mapping[Any, Mapping[str, Any]], anchors: Anchors, lost: bool) -> Table:
    rows, name = data["per_step"], StepNames.of(data)
    marked = [row for row in rows if row["violations"] and row["violations"]["hi"] != 0]
    # Links from the figure lead to marked steps, so these come first if not all can be listed.
    chosen = (
        rows
        if len(rows) <= LISTED
        else sorted(
            (marked + [row for row in rows if row not in marked])[:LISTED] if len(marked) < LISTED else marked[:LISTED],
            key=lambda row: (row["attempt"], row["step"]),
        )
    )
    listed = []
    for row in chosen:
        low = least.get((row["attempt"], row["step"]), {"min_lo": None, "min_hi": None})
        anchor = anchors.get((row["attempt"], row["step"]))
        violations = "–" if row["violations"] is None else WORDS.interval(row["violations"])
        style = (
            ""
            if row["violations"] is None
            else "fail"
            if row["violations"]["lo"]
            else "possible"
            if row["violations"]["hi"] != 0
            else ""
        )
        listed.append(
            cells(
                name(row),
                WORDS.interval(row["v_train"]),
                WORDS.interval({"lo": 0 if lost else low["min_lo"], "hi": low["min_hi"]}),
                WORDS.interval(row["mean"]),
                WORDS.interval(row["max"]),
                WORDS.interval(row["trajectories"]),
                WORDS.interval(row["tokens"]),
                Cell(violations, f"#{anchor}" if anchor else None, style),
            )
        )
    left = len(rows) - len(chosen)
    return Table(
        "steps",
        "Training steps: what each trained and how stale it was",
        columns(
            "step",
            "trains version#",
            "least#",
            "mean#",
            "largest#",
            "trajectories#",
            "tokens#",
            "violating trajectories#",
        ),
        tuple(listed),
        note=f"{len(chosen):,} of {len(rows):,} steps; those with violations come first." if left else "",
        anchors=tuple(f"steps-{row['attempt']}-{row['step']}" for row in chosen),
    )

"""Second question: how stale was what was trained, step by step and in all?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from staleness_audit.check.intervals import Class, histogram
from staleness_audit.report.html.figure import (
    WORDS,
    Cell,
    Figure,
    Missing,
    Table,
    axis,
    cells,
    columns,
    rounded,
    thinned,
)
from staleness_audit.report.html.queries import Rows
from staleness_audit.report.terminal.histogram import Bin, bins
from staleness_audit.report.terminal.words import is_exact, percent

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
    joined = [_joined([rows[index] for index in run], least, anchors, lost) for run in thinned(len(rows), DRAWN)]
    ordinal = any(later["step"] <= earlier["step"] for earlier, later in zip(rows, rows[1:], strict=False))
    for position, row in enumerate(joined):
        row["x"] = position if ordinal else row["step"]
    bound = data["bound"]["value"]
    layout: dict[str, Any] = {
        "xaxis": axis("training step", **_ticks(joined, ordinal)),
        "yaxis": axis("staleness (versions)", rangemode="tozero", tickformat=",d", **({"dtick": 1} if _highest(joined) < 8 else {})),
        "shapes": _bound_line(bound, "y"),
        "annotations": _bound_words(bound, "y"),
    }
    several = "" if len(joined) == len(rows) else f" Each point joins up to {-(-len(rows) // DRAWN)} steps."
    return Figure(
        id="staleness-steps",
        title="Staleness over training steps",
        alt=_steps_alt(data, rows),
        caption="Staleness of a token: how many policy versions older it is than the weights that train on it. Line: the "
        "largest of each step that is certain; light area: everything from the least to the largest that is possible; "
        f"narrow area: the mean.{several}"
        + (
            " Click a marked violation to read its story."
            if bound is not None and any(row["mark"] for row in joined)
            else ""
        ),
        traces=_step_traces(joined),
        layout=layout,
        table=_steps_table(data, least, anchors, lost),
        height=360,
    )


def _joined(
    rows: Sequence[Mapping[str, Any]], least: Mapping[Any, Mapping[str, Any]], anchors: Anchors, lost: bool
) -> dict[str, Any]:
    """Join some steps to one point: what is certain of one of them, and what is possible in any."""
    first, last = rows[0], rows[-1]
    mins = [least.get((row["attempt"], row["step"]), {}) for row in rows]
    highs = [row["max"]["hi"] for row in rows]
    violations = [row["violations"] or {"lo": 0, "hi": 0} for row in rows]
    name = f"step {first['step']}" + (f" of attempt {first['attempt']}" if first["attempt"] else "")
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
        "name": name if first is last else f"steps {first['step']}{WORDS.glyphs.to}{last['step']}",
        "max_lo": max((row["max"]["lo"] or 0 for row in rows), default=0),
        "max_hi": None if None in highs else max(highs),
        "min_lo": 0 if lost else min((row.get("min_lo", 0) or 0 for row in mins), default=0),
        "mean_lo": _end(rows, "lo", min),
        "mean_hi": _end(rows, "hi", max),
        "violations": {
            "lo": max(value["lo"] or 0 for value in violations) if len(rows) > 1 else violations[0]["lo"],
            "hi": None
            if any(value["hi"] is None for value in violations)
            else max(value["hi"] for value in violations),
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
        {"type": "scatter", "mode": "lines", "x": x, "y": [row["min_lo"] for row in rows], "line": plain_line, "hoverinfo": "skip", "showlegend": False},
        {"type": "scatter", "mode": "lines", "x": x, "y": top, "line": plain_line, "fill": "tonexty", "fillcolor": "var(--band)", "hoverinfo": "skip", "name": "from least to largest"},
        {"type": "scatter", "mode": "lines", "x": x, "y": rounded(row["mean_lo"] for row in rows), "line": {"width": 1, "color": "var(--mean)"}, "hoverinfo": "skip", "showlegend": False},
        {"type": "scatter", "mode": "lines", "x": x, "y": rounded(row["mean_hi"] for row in rows), "line": {"width": 1, "color": "var(--mean)"}, "fill": "tonexty", "fillcolor": "var(--meanband)", "hoverinfo": "skip", "name": "mean"},
        {
            "type": "scatter", "mode": "lines+markers" if len(rows) <= 150 else "lines", "x": x, "y": [row["max_lo"] for row in rows],
            "line": {"width": 2, "color": "var(--within)"}, "marker": {"size": 5, "color": "var(--within)"},
            "text": words, "hovertemplate": "%{text}<extra></extra>", "name": "largest",
        },
    ]  # fmt: skip
    open_ends = [row for row in rows if row["max_hi"] is None]
    if open_ends:
        traces.append(_marks(open_ends, "no upper end known", "triangle-up-open", "var(--muted)", 10))
    for kind, title, symbol, colour in (
        ("possible", "possible violation", "diamond-open", "var(--possible)"),
        ("proven", "proven violation", "diamond", "var(--beyond)"),
    ):
        if marked := [row for row in rows if row["mark"] == kind]:
            traces.append(_marks(marked, title, symbol, colour, 12))
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
        "customdata": [row["href"] or f"steps-{row['attempt']}-{row['step']}" for row in rows],
        "hovertemplate": "%{text}<extra></extra>",
        "name": name,
    }


def _hover(row: Mapping[str, Any]) -> str:
    largest = WORDS.interval({"lo": row["max_lo"], "hi": row["max_hi"]})
    mean = WORDS.interval({"lo": row["mean_lo"], "hi": row["mean_hi"]})
    lines = [f"<b>{row['name']}</b>", f"largest {largest}", f"mean {mean}"]
    if row["mark"]:
        lines.append(f"violating trajectories {WORDS.interval(row['violations'])}")
    return "<br>".join(lines)


def _ticks(rows: list[dict[str, Any]], ordinal: bool) -> dict[str, Any]:
    if not ordinal:
        return {"tickformat": "d"}
    shown = [rows[run.start] for run in thinned(len(rows), 12)]
    return {
        "tickmode": "array",
        "tickvals": [row["x"] for row in shown],
        "ticktext": [str(row["step"]) + (f"<br>attempt {row['attempt']}" if row["attempt"] else "") for row in shown],
    }


def _bound_line(bound: int | None, along: str) -> list[dict[str, Any]]:
    if bound is None:
        return []
    # Between the bound and the next whole number, so that no mark hides it.
    at, line = bound + 0.5, {"color": "var(--bound)", "width": 2, "dash": "dash"}
    if along == "y":
        return [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": bound, "y1": bound, "line": line}]
    return [{"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": at, "x1": at, "line": line}]


def _bound_words(bound: int | None, along: str) -> list[dict[str, Any]]:
    if bound is None:
        return []
    place = {"xref": "paper", "x": 1, "y": bound, "xanchor": "right", "yanchor": "bottom"}
    if along == "x":
        place = {"yref": "paper", "y": 1, "x": bound + 0.5, "xanchor": "left", "yanchor": "top", "xshift": 4}
    return [{**place, "text": f"bound {bound}", "showarrow": False, "font": {"color": "var(--bound)", "size": 12}}]


def _steps_alt(data: Data, rows: Sequence[Mapping[str, Any]]) -> str:
    largest, bound = WORDS.interval(data["staleness"]["max"]), data["bound"]["value"]
    text = f"Staleness over {len(rows)} training steps; the largest in the run is {largest}."
    if bound is None:
        return text + " No bound is known."
    proven = sum(bool(row["violations"]["lo"]) for row in rows)
    possible = sum(row["violations"]["hi"] != 0 and not row["violations"]["lo"] for row in rows)
    return text + f" The bound is {bound}: violations are proven in {proven} and possible in {possible} other steps."


def _steps_table(data: Data, least: Mapping[Any, Mapping[str, Any]], anchors: Anchors, lost: bool) -> Table:
    rows = data["per_step"]
    marked = [row for row in rows if row["violations"] and row["violations"]["hi"] != 0]
    # Links from the figure lead to marked steps, so these come first if not all can be listed.
    chosen = rows if len(rows) <= LISTED else sorted(
        (marked + [row for row in rows if row not in marked])[:LISTED] if len(marked) < LISTED else marked[:LISTED],
        key=lambda row: (row["attempt"], row["step"]),
    )  # fmt: skip
    listed = []
    for row in chosen:
        low = least.get((row["attempt"], row["step"]), {"min_lo": None, "min_hi": None})
        anchor = anchors.get((row["attempt"], row["step"]))
        name = str(row["step"]) + (f" (attempt {row['attempt']})" if row["attempt"] else "")
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
                name,
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


# ------------------------------------------------------------------------------------------------- histograms


def histogram_figure(data: Data, unit: str) -> Figure | Missing:
    """How many of ``unit`` (``tokens`` or ``trajectories``) had which staleness, the bound between the bars."""
    total = data["tokens" if unit == "tokens" else "trajectories"]["trained"]
    bound = data["bound"]["value"]
    found = bins(
        data["staleness"]["token_histogram" if unit == "tokens" else "trajectory_histogram"], unit, bound, total
    )
    title = "Trained tokens by staleness" if unit == "tokens" else "Trained trajectories by their oldest token"
    if not found:
        return Missing(title, f"The logs hold no trained {unit} whose staleness could be counted.")
    whole = total["lo"] if is_exact(total) else None
    rows = [
        cells(
            each.label().replace("..", WORDS.glyphs.to),
            WORDS.interval(_count(each)),
            percent(each.low / whole) if whole and each.low == each.high else "",
        )
        for each in found
    ]
    beyond = [each for each in found if bound is not None and each.first > bound]
    alt = f"Bars for {len(found)} classes of staleness from {found[0].first} to {found[-1].label()}."
    if bound is not None:
        alt += f" {sum(each.low for each in beyond):,} {unit} are certainly beyond the bound of {bound}."
    return Figure(
        id=f"staleness-{unit}",
        title=title,
        alt=alt,
        caption=_bars_caption(found)
        + ("" if unit == "tokens" else " A trajectory counts once, by its most stale trained token."),
        traces=_bars(found, bound),
        layout={
            "xaxis": axis("staleness (versions)", type="category"),
            "yaxis": axis(unit, rangemode="tozero"),
            "barmode": "stack",
            "shapes": _between(found, bound),
            "showlegend": True,
            "legend": {"y": 1.14},
        },
        table=Table(f"staleness-{unit}-numbers", title, columns("staleness#", f"{unit}#", "share#"), tuple(rows)),
        height=280,
    )


def _bars_caption(found: Sequence[Bin]) -> str:
    vague = any(each.high is None or each.high > each.low for each in found)
    return "Solid: certain. Hatched: possible besides." if vague else "Every count is exact."


def _count(each: Bin) -> dict[str, int | None]:
    return {"lo": each.low, "hi": each.high}


def _bars(
    found: Sequence[Bin],
    bound: int | None,
    colours: tuple[str, str] = ("var(--within)", "var(--beyond)"),
    names: tuple[str, str] = ("within the bound", "beyond the bound"),
) -> list[dict[str, Any]]:
    """Bars of what is certain and, on top, of what is possible; one pair of traces per side of the bound."""
    traces = []
    for side, colour in enumerate(colours):
        members = [each for each in found if (bound is not None and each.first > bound) == bool(side)]
        if not members:
            continue
        name = "trained" if bound is None else names[side]
        labels = [each.label().replace("..", WORDS.glyphs.to) for each in members]
        hover = [f"{text}: {WORDS.interval(_count(each))}" for text, each in zip(labels, members, strict=True)]
        base = {
            "type": "bar",
            "x": labels,
            "text": hover,
            "textposition": "none",
            "hovertemplate": "staleness %{text}<extra></extra>",
        }
        traces.append({**base, "y": [each.low for each in members], "name": name, "marker": {"color": colour}})
        more = [0 if each.high is None else each.high - each.low for each in members]
        if any(more):
            hatch = {"shape": "/", "fgcolor": colour, "bgcolor": "rgba(0,0,0,0)", "size": 6, "solidity": 0.35}
            traces.append(
                {
                    **base,
                    "y": more,
                    "name": f"possibly {name}",
                    "marker": {"color": "rgba(0,0,0,0)", "pattern": hatch, "line": {"width": 1, "color": colour}},
                }
            )
        open_ends = [text for text, each in zip(labels, members, strict=True) if each.high is None]
        if open_ends:
            lows = [each.low for each in members if each.high is None]
            traces.append(
                {"type": "scatter", "mode": "markers", "x": open_ends, "y": lows, "name": "no upper end known", "hoverinfo": "skip",
                 "marker": {"symbol": "triangle-up-open", "size": 11, "color": "var(--muted)", "line": {"width": 2}}}
            )  # fmt: skip
    # One entry in the legend is enough for what both sides share.
    seen: set[str] = set()
    for trace in traces:
        trace["showlegend"] = trace["name"] not in seen
        seen.add(trace["name"])
    return traces


def _between(found: Sequence[Bin], bound: int | None) -> list[dict[str, Any]]:
    """A line between the last bar within the bound and the first beyond it."""
    if bound is None:
        return []
    within = sum(each.first <= bound for each in found)
    at = within - 0.5
    return [
        {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1,
         "line": {"color": "var(--bound)", "width": 2, "dash": "dash"},
         "label": {"text": f"bound {bound}", "textposition": "end", "textangle": 0, "font": {"color": "var(--bound)", "size": 12}}}
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------- where it arose


def parts_figure(data: Data, flights: Rows) -> Figure | Missing:
    """How many versions passed while a token's trajectory was generated, and how many while it waited.

    ``flights``: rows of the product ``flight_classes``.
    """
    title = "Where staleness arose"
    parts = {
        "flight": ("in flight", "while the trajectory was still being generated", "var(--flight)"),
        "queue": ("in the queue", "from its last token until it was trained", "var(--queue)"),
    }
    total = data["tokens"]["trained"]
    lost = any(item["opens"] == "training" for item in data["diagnostics"]["items"])
    counted = {}
    for part in parts:
        classes = [
            Class(
                max(row[f"{part}_lo"] or 0, 0),
                row[f"{part}_hi"] if row[f"{part}_hi"] is None else max(row[f"{part}_hi"], 0),
                row["tokens_lo"] if row["certain"] else 0,
                row["tokens_hi"],
            )
            for row in flights
        ]
        counted[part] = bins(histogram(classes, "tokens", lost), "tokens", None, total)
    if not any(each.low for group in counted.values() for each in group):
        return Missing(
            title,
            "The logs don't tell which of the versions passed while a trajectory was generated and which while it waited.",
        )
    traces: list[dict[str, Any]] = []
    rows = []
    for part, (name, _, colour) in parts.items():
        for trace in _bars(counted[part], None, (colour, colour)):
            word = {"trained": name, "possibly trained": f"possibly {name}"}.get(trace["name"], trace["name"])
            traces.append({**trace, "name": word, "offsetgroup": part})
        rows += [
            cells(name, each.label().replace("..", WORDS.glyphs.to), WORDS.interval(_count(each)))
            for each in counted[part]
        ]
    means = {part: WORDS.interval(data["staleness"][f"in_{part}_mean"]) for part in parts}
    alt = f"On average {means['flight']} versions passed in flight and {means['queue']} in the queue."
    return Figure(
        id="staleness-parts",
        title=title,
        alt=alt,
        caption="A token grows older twice: in flight, " + parts["flight"][1] + ", and in the queue, " + parts["queue"][1]
        + ". Cancelling long generations helps against the first, a shorter queue against the second. " + _bars_caption(counted["flight"] + counted["queue"]),
        traces=traces,
        layout={"xaxis": axis("versions that passed", type="category", categoryorder="array", categoryarray=_labels(counted)), "yaxis": axis("tokens", rangemode="tozero"), "barmode": "stack"},
        table=Table("staleness-parts-numbers", title, columns("part", "versions#", "tokens#"), tuple(rows)),
        height=280,
    )  # fmt: skip


def _labels(counted: Mapping[str, Sequence[Bin]]) -> list[str]:
    """Labels of both histograms, in order of their numbers."""
    found = sorted({(each.first, each.last is None, each.label()) for group in counted.values() for each in group})
    return [text.replace("..", WORDS.glyphs.to) for _, _, text in found]

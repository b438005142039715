"""Second question, in all: how much was trained at which staleness, and where did staleness arise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from staleness_audit.check.intervals import Class, histogram
from staleness_audit.report.html.figure import WORDS, Figure, Missing, Table, axis, cells, columns
from staleness_audit.report.html.queries import Rows
from staleness_audit.report.terminal.histogram import Bin, bins
from staleness_audit.report.terminal.words import is_exact, percent

Data = Mapping[str, Any]
Side = tuple[str, str, str]
"""A colour, what is certain in it, and what is possible in it."""
WITHIN: Side = ("var(--within)", "within the bound", "possibly within the bound")
BEYOND: Side = ("var(--beyond)", "beyond the bound", "possibly beyond the bound")
KNOWN: Side = ("var(--within)", "certain", "possible")


def histogram_figure(data: Data, unit: str) -> Figure | Missing:
    """How many of ``unit`` (``tokens`` or ``trajectories``) had which staleness, the bound between the bars."""
    total = data["tokens" if unit == "tokens" else "trajectories"]["trained"]
    bound = data["bound"]["value"]
    histogram_rows = data["staleness"]["token_histogram" if unit == "tokens" else "trajectory_histogram"]
    found = _gapless(bins(histogram_rows, unit, bound, total, data["violations"][unit]), bound)
    title = "Trained tokens by staleness" if unit == "tokens" else "Trained trajectories by their oldest token"
    if not found:
        return Missing(title, f"The logs hold no trained {unit} whose staleness could be counted.")
    whole = total["lo"] if is_exact(total) else None
    rows = [
        cells(
            each.label(WORDS.glyphs),
            WORDS.interval(_count(each)),
            percent(each.low / whole) if whole and each.low == each.high else "",
        )
        for each in found
    ]
    beyond = [each for each in found if bound is not None and each.first > bound]
    alt = f"Bars for {len(found)} classes of staleness from {found[0].first} to {found[-1].label(WORDS.glyphs)}."
    if bound is not None:
        alt += f" {sum(each.low for each in beyond):,} {unit} are certainly beyond the bound of {bound}."
    return Figure(
        id=f"staleness-{unit}",
        title=title,
        alt=alt,
        caption=_bars_caption(found)
        + ("" if unit == "tokens" else " A trajectory counts once, by its most stale trained token."),
        traces=_named_once(_bars(found, bound, (WITHIN, BEYOND) if bound is not None else (KNOWN,))),
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


def _gapless(some: Sequence[Bin], bound: int | None) -> list[Bin]:
    """Bins of a histogram, with empty ones where nothing lies, so that bars stand where they belong."""
    found: list[Bin] = []
    for each in some:
        reached = -1 if not found or found[-1].last is None else found[-1].last
        first, last = reached + 1, each.first - 1
        if bound is not None and first <= bound < last:  # no bar lies on both sides of the bound
            found.append(Bin(first, bound, 0, 0))
            first = bound + 1
        if first <= last:
            found.append(Bin(first, last, 0, 0))
        found.append(each)
    return found


def _bars_caption(found: Sequence[Bin]) -> str:
    hatched = any(each.high is not None and each.high > each.low for each in found)
    words = "Solid: certain." + " Hatched: possible besides." * hatched
    if any(each.high is None for each in found):
        return words + " Triangle: there may be any number more, here or further to the right."
    return words if hatched else "Every count is exact."


def _count(each: Bin) -> dict[str, int | None]:
    return {"lo": each.low, "hi": each.high}


def _bars(
    found: Sequence[Bin],
    bound: int | None,
    sides: Sequence[Side] = (WITHIN, BEYOND),
    **more_of_all: Any,
) -> list[dict[str, Any]]:
    """Bars of what is certain and, on top, of what is possible; one pair of traces per side of the bound."""
    traces: list[dict[str, Any]] = []
    for side, (colour, certain, possible) in enumerate(sides):
        members = [each for each in found if (bound is not None and each.first > bound) == bool(side)]
        if not members:
            continue
        labels = [each.label(WORDS.glyphs) for each in members]
        hover = [f"{text}: {WORDS.interval(_count(each))}" for text, each in zip(labels, members, strict=True)]
        base = {
            "type": "bar",
            "x": labels,
            "text": hover,
            "textposition": "none",
            "hovertemplate": "staleness %{text}<extra></extra>",
            **more_of_all,
        }
        traces.append({**base, "y": [each.low for each in members], "name": certain, "marker": {"color": colour}})
        more = [0 if each.high is None else each.high - each.low for each in members]
        if any(more):
            hatch = {"shape": "/", "fgcolor": colour, "bgcolor": "rgba(0,0,0,0)", "size": 6, "solidity": 0.35}
            traces.append(
                {
                    **base,
                    "y": more,
                    "name": possible,
                    "marker": {"color": "rgba(0,0,0,0)", "pattern": hatch, "line": {"width": 1, "color": colour}},
                }
            )
        open_ends = [text for text, each in zip(labels, members, strict=True) if each.high is None]
        if open_ends:
            lows = [each.low for each in members if each.high is None]
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": open_ends,
                    "y": lows,
                    "name": "no upper end known",
                    "hoverinfo": "skip",
                    "marker": {"symbol": "triangle-up-open", "size": 11, "color": "var(--muted)", "line": {"width": 2}},
                    **more_of_all,
                }
            )
    return traces


def _named_once(traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry in the legend is enough for what several share."""
    titles = [trace["name"] for trace in traces]
    return [{**trace, "showlegend": trace["name"] not in titles[:index]} for index, trace in enumerate(traces)]


def _between(found: Sequence[Bin], bound: int | None) -> list[dict[str, Any]]:
    """A line between the last bar within the bound and the first beyond it."""
    if bound is None:
        return []
    within = sum(each.first <= bound for each in found)
    at = within - 0.5
    return [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": at,
            "x1": at,
            "y0": 0,
            "y1": 1,
            "line": {"color": "var(--bound)", "width": 2, "dash": "dash"},
            "label": {
                "text": f"bound {bound}",
                "textposition": "end",
                "textangle": 0,
                "xanchor": "right" if within == len(found) else "center",
                "font": {"color": "var(--bound)", "size": 12},
            },
        }
    ]


def parts_figure(data: Data, flights: Rows) -> Figure | Missing:
    """How many versions passed while a token's trajectory was generated, and how many while it waited.

    ``flights``: rows of the product ``flight_classes``.
    """
    title = "Where staleness arose"
    parts = {
        "flight": ("in flight", "while the trajectory was still being generated", "var(--flight)"),
        "queue": ("in the queue", "from its last token until it was trained", "var(--queue)"),
    }
    counted = _counted(data, {part: _classes(flights, part) for part in parts})
    if not any(each.low for group in counted.values() for each in group):
        return Missing(
            title,
            "The logs don't tell which versions passed while a trajectory was generated and which while it waited.",
        )
    traces: list[dict[str, Any]] = []
    rows = []
    for part, (name, _, colour) in parts.items():
        traces += _bars(counted[part], None, ((colour, name, f"possibly {name}"),), offsetgroup=part)
        rows += [cells(name, each.label(WORDS.glyphs), WORDS.interval(_count(each))) for each in counted[part]]
    means = {part: WORDS.interval(data["staleness"][f"in_{part}_mean"]) for part in parts}
    alt = f"On average {means['flight']} versions passed in flight and {means['queue']} in the queue."
    return Figure(
        id="staleness-parts",
        title=title,
        alt=alt,
        caption="A token grows older twice: in flight, "
        + parts["flight"][1]
        + ", and in the queue, "
        + parts["queue"][1]
        + ". Cancelling long generations helps against the first, a shorter queue against the second. "
        + _bars_caption(counted["flight"] + counted["queue"]),
        traces=_named_once(traces),
        layout={
            "xaxis": axis("versions that passed", type="category"),
            "yaxis": axis("tokens", rangemode="tozero"),
            "barmode": "stack",
            "scattermode": "group",  # marks stand above their own bar
        },
        table=Table("staleness-parts-numbers", title, columns("part", "versions#", "tokens#"), tuple(rows)),
        height=280,
    )


def _classes(flights: Rows, part: str) -> list[Class]:
    """Tokens by how many versions passed in one of the two parts."""
    return [
        Class(
            max(row[f"{part}_lo"] or 0, 0),
            row[f"{part}_hi"] if row[f"{part}_hi"] is None else max(row[f"{part}_hi"], 0),
            row["tokens_lo"] if row["certain"] else 0,
            row["tokens_hi"],
        )
        for row in flights
    ]


def _counted(data: Data, classes: Mapping[str, Sequence[Class]]) -> dict[str, list[Bin]]:
    """Bins of each part over one axis: both are cut alike, and each has a bin wherever the other has one."""
    lost = any(item["opens"] == "training" for item in data["diagnostics"]["items"])
    top = int(max((end or 0 for each in classes.values() for item in each for end in (item.lo, item.hi)), default=0))
    found = {
        part: bins(histogram(each, "tokens", lost, upto=top), "tokens", None, data["tokens"]["trained"], upto=top)
        for part, each in classes.items()
    }
    cuts = {(each.first, each.last) for group in found.values() for each in group}
    empty = _gapless([Bin(first, last, 0, 0) for first, last in sorted(cuts, key=lambda cut: cut[0])], None)
    return {
        part: [next((each for each in group if each.first == gap.first), gap) for gap in empty]
        for part, group in found.items()
    }

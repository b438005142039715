"""A page about a sweep: which policies lose nothing on both throughput and staleness, and what each one pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from staleness_audit.report.html.figure import (
    VERSION_COLOURS,
    Figure,
    Table,
    axis,
    cells,
    columns,
    label,
    version_colour,
)
from staleness_audit.report.html.page import assemble
from staleness_audit.report.terminal.words import percent

COSTS = (
    ("trainer_waiting_share", "trainer waits", "var(--v1)"),
    ("wasted_share", "tokens wasted", "var(--muted)"),
    ("beyond_share", "trained beyond the bound", "var(--beyond)"),
)
# With the six colours of versions: no two of 36 policies look alike.
SYMBOLS = ("circle-open", "square-open", "diamond-open", "cross-open", "triangle-up-open", "star-open")


def front(table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that no other row of their workload beats: more tokens per second at no more mean staleness.

    Columns of ``table``: those of ``sweep``; means over seeds are taken by ``means`` first.
    """
    ordered = table.sort("workload", "staleness_mean", "trained_tokens_per_s", descending=[False, False, True])
    best = pl.col("trained_tokens_per_s").cum_max().over("workload")
    return ordered.filter(
        (pl.col("trained_tokens_per_s") == best)
        & (best.shift(1).over("workload").is_null() | (best > best.shift(1).over("workload")))
    )


def means(table: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each policy, bound, workload and settings: means over the seeds, and the largest staleness."""
    inputs = ["policy", "bound", "workload", "settings"]
    averaged = ["trained_tokens_per_s", "staleness_mean", "length_ratio", *(name for name, _, _ in COSTS)]
    return (
        table.group_by(inputs, maintain_order=True)
        .agg(*(pl.col(name).mean() for name in averaged), pl.col("staleness_max").max(), pl.col("stalled").any())
        .sort("workload", "policy", "bound")
    )


def write_page(table: pl.DataFrame, path: Path) -> None:
    """Write one HTML file, in the clothes of the report and as sealed as it, about the results of a sweep."""
    rows = means(table)
    sections: list[dict[str, Any]] = []
    figures: list[Figure] = []
    for number, (workload,) in enumerate(rows.select("workload").unique(maintain_order=True).iter_rows(), start=1):
        part = rows.filter(pl.col("workload") == workload)
        drawn = [_pareto(part, number), _costs(part, number), _largest(part, number)]
        figures += drawn
        sections.append({"workload": workload, "figures": drawn, "table": _numbers(part, number)})
    runs = f"{table.height:,} simulated {'run' if table.height == 1 else 'runs'}"
    words = f"{runs}; each point is a policy at one bound, averaged over seeds. All have the same engines and trainer."
    page = assemble({"words": words, "sections": sections}, figures, "sweep.html.j2")
    path.write_text(page, encoding="utf-8")


def _looks(part: pl.DataFrame) -> list[tuple[str, pl.DataFrame, dict[str, Any]]]:
    """Each policy with its rows and how it is drawn, the same in all figures."""
    found = []
    for number, (name,) in enumerate(part.select("policy").unique(maintain_order=True).iter_rows()):
        colour = version_colour(number)
        look = {
            "color": colour,
            "symbol": SYMBOLS[number // VERSION_COLOURS % len(SYMBOLS)],
            "size": 10,
            "line": {"width": 2, "color": colour},
        }
        found.append((name, part.filter(pl.col("policy") == name), look))
    return found


def _points(part: pl.DataFrame, x: str, y: str) -> list[dict[str, Any]]:
    """Return the points of all policies, each with what it was set to."""
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": rows[x].to_list(),
            "y": rows[y].to_list(),
            "text": [
                label(f"{name}, bound {bound}{', ' * bool(settings)}{settings}", 300)
                for bound, settings in rows.select("bound", "settings").rows()
            ],
            "name": label(name),
            "marker": look,
            "hovertemplate": "%{text}<br>%{x:,.4~g}, %{y:,.4~g}<extra></extra>",
        }
        for name, rows, look in _looks(part)
    ]


def _pareto(part: pl.DataFrame, number: int) -> Figure:
    traces = _points(part, "staleness_mean", "trained_tokens_per_s")
    for title, rows, dash in (
        ("front of all", part, "dot"),
        ("front of those that keep the bound", part.filter(pl.col("beyond_share") == 0), "solid"),
    ):
        best = front(rows)
        line = {"dash": dash, "color": "var(--muted)", "shape": "hv", "width": 1}
        x, y = best["staleness_mean"].to_list(), best["trained_tokens_per_s"].to_list()
        traces.append(
            {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": title, "line": line, "hoverinfo": "skip"}
        )
    return Figure(
        id=f"sweep-pareto-{number}",
        title="Throughput against mean staleness",
        alt=f"{part.height} points: trained tokens per second over mean staleness, one for each policy and bound.",
        caption="Up and to the left is better. Lines: what no other policy beats on both, among all, and among those "
        "that trained nothing beyond their bound.",
        traces=traces,
        layout={
            "xaxis": axis("mean staleness of trained tokens (versions)", rangemode="tozero"),
            "yaxis": axis("trained tokens per second", rangemode="tozero"),
            "showlegend": True,
        },
        height=520,
    )


def _costs(part: pl.DataFrame, number: int) -> Figure:
    names = [label(f"{policy}, {bound}") for policy, bound in part.select("policy", "bound").rows()]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "x": part[name].to_list(),
            "y": names,
            "name": title,
            "marker": {"color": colour},
            "hovertemplate": f"%{{y}}: %{{x:.1%}} {title}<extra></extra>",
        }
        for name, title, colour in COSTS
    ]
    return Figure(
        id=f"sweep-costs-{number}",
        title="What it costs",
        alt="Bars for each policy and bound: the share of time the trainer waits, and of tokens wasted or too stale.",
        caption="Of each policy at each bound: the share of time that the trainer waits, of generated tokens that are "
        "never trained, and of trained tokens that are beyond the bound.",
        traces=traces,
        layout={
            "xaxis": axis("share", tickformat=".0%", rangemode="tozero"),
            "yaxis": axis("policy, bound", autorange="reversed", type="category"),
            "barmode": "group",
            "showlegend": True,
            "legend": {"y": 1.0},
        },
        height=140 + 44 * len(names),
    )


def _largest(part: pl.DataFrame, number: int) -> Figure:
    top = int(part["bound"].max() or 0)  # type: ignore[arg-type]
    line = {"dash": "dash", "color": "var(--bound)", "width": 2}
    bound = {"type": "scatter", "mode": "lines", "x": [0, top], "y": [0, top], "name": "the bound", "line": line}
    return Figure(
        id=f"sweep-largest-{number}",
        title="Largest staleness against the bound that was set",
        alt="A point for each policy and bound; those above the line trained tokens staler than the bound.",
        caption="Above the line, the bound was broken.",
        traces=[*_points(part, "bound", "staleness_max"), {**bound, "hoverinfo": "skip"}],
        layout={
            "xaxis": axis("bound", rangemode="tozero", tickformat="d"),
            "yaxis": axis("largest staleness trained", rangemode="tozero"),
            "showlegend": True,
        },
        height=440,
    )


def _numbers(part: pl.DataFrame, number: int) -> Table:
    rows = [
        cells(
            row["policy"] + (" (stalled)" if row["stalled"] else ""),
            row["settings"],
            str(row["bound"]),
            f"{row['trained_tokens_per_s']:,.0f}",
            *(percent(row[name]) for name, _, _ in COSTS),
            f"{row['staleness_mean']:.2f}",
            str(row["staleness_max"]),
        )
        for row in part.iter_rows(named=True)
    ]
    heads = ("policy", "settings", "bound#", "tokens per second#", *(f"{title}#" for _, title, _ in COSTS))
    return Table(
        f"sweep-numbers-{number}",
        "All numbers",
        columns(*heads, "mean staleness#", "largest#"),
        tuple(rows),
        filterable=True,
    )

"""A page about a sweep: which policies lose nothing on both throughput and staleness, and what each one pays."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.subplots import make_subplots

COSTS = (
    ("trainer_waiting_share", "trainer waits"),
    ("wasted_share", "tokens wasted"),
    ("beyond_share", "trained beyond the bound"),
)
# Six symbols and seven colours: no two of 42 policies look alike.
SYMBOLS = ("circle-open", "square-open", "diamond-open", "cross-open", "triangle-up-open", "star-open")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


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
    averaged = ["trained_tokens_per_s", "staleness_mean", "length_ratio", *(name for name, _ in COSTS)]
    return (
        table.group_by(inputs, maintain_order=True)
        .agg(*(pl.col(name).mean() for name in averaged), pl.col("staleness_max").max(), pl.col("stalled").any())
        .sort("workload", "policy", "bound")
    )


def write_page(table: pl.DataFrame, path: Path) -> None:
    """Write one HTML file, which needs no network, about the results of a sweep."""
    rows = means(table)
    parts = []
    for number, (workload,) in enumerate(rows.select("workload").unique(maintain_order=True).iter_rows()):
        part = rows.filter(pl.col("workload") == workload)
        parts.append(f"<h2>Workload <code>{escape(workload)}</code></h2>")
        for figure in (_pareto(part), _costs(part), _largest(part)):
            parts.append(figure.to_html(full_html=False, include_plotlyjs=number == 0 and not parts[1:]))
    style = "body{font:16px system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}"
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Sweep of staleness controls</title>'
        f"<style>{style}</style><h1>Staleness controls on equal resources</h1>"
        f"<p>{table.height} simulated runs; each point is a policy at one bound, averaged over seeds.</p>"
        + "".join(parts),
        encoding="utf-8",
    )


def _policies(part: pl.DataFrame) -> Sequence[tuple[str, pl.DataFrame, dict[str, Any]]]:
    """Each policy with its rows and how it is drawn, the same in all figures."""
    found = []
    for number, (name,) in enumerate(part.select("policy").unique(maintain_order=True).iter_rows()):
        look = {
            "color": COLOURS[number % len(COLOURS)],
            "symbol": SYMBOLS[number % len(SYMBOLS)],
            "size": 10,
            "line": {"width": 2},
        }
        found.append((name, part.filter(pl.col("policy") == name), look))
    return found


def _pareto(part: pl.DataFrame) -> go.Figure:
    figure = go.Figure()
    for name, rows, look in _policies(part):
        figure.add_scatter(
            x=rows["staleness_mean"].to_list(),
            y=rows["trained_tokens_per_s"].to_list(),
            text=[f"bound {bound}, {escape(settings)}" for bound, settings in rows.select("bound", "settings").rows()],
            name=name,
            mode="markers",
            marker=look,
        )
    for title, rows, dash in (
        ("front of all", part, "dot"),
        ("front of those that keep the bound", part.filter(pl.col("beyond_share") == 0), "solid"),
    ):
        best = front(rows)
        figure.add_scatter(
            x=best["staleness_mean"].to_list(),
            y=best["trained_tokens_per_s"].to_list(),
            name=title,
            mode="lines",
            line={"dash": dash, "color": "#777777", "shape": "hv", "width": 1},
            hoverinfo="skip",
        )
    figure.update_layout(
        title="Throughput against mean staleness: up and to the left is better",
        xaxis_title="mean staleness of trained tokens (versions)",
        yaxis_title="trained tokens per second",
        template="plotly_white",
        height=560,
    )
    return figure


def _costs(part: pl.DataFrame) -> go.Figure:
    figure = make_subplots(rows=1, cols=len(COSTS), subplot_titles=[title for _, title in COSTS], shared_yaxes=True)
    labels = [f"{policy}, {bound}" for policy, bound in part.select("policy", "bound").rows()]
    for column, (name, title) in enumerate(COSTS, start=1):
        bars = {"x": part[name].to_list(), "y": labels, "marker": {"color": COLOURS[0]}, "name": title}
        figure.add_bar(**bars, orientation="h", row=1, col=column, showlegend=False)
        figure.update_xaxes(tickformat=".0%", range=[0, 1], row=1, col=column)
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(
        title="What it costs (policy, bound)", template="plotly_white", height=180 + 18 * len(labels), bargap=0.25
    )
    return figure


def _largest(part: pl.DataFrame) -> go.Figure:
    figure = go.Figure()
    for name, rows, look in _policies(part):
        figure.add_scatter(
            x=rows["bound"].to_list(), y=rows["staleness_max"].to_list(), name=name, mode="markers", marker=look
        )
    top = int(part["bound"].max() or 0)  # type: ignore[arg-type]
    figure.add_scatter(x=[0, top], y=[0, top], name="the bound", mode="lines", line={"dash": "dot", "color": "#555555"})
    figure.update_layout(
        title="Largest staleness against the bound that was set",
        xaxis_title="bound",
        yaxis_title="largest staleness trained",
        template="plotly_white",
        height=480,
    )
    return figure

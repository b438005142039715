"""A page about a sweep, in the clothes of the audit's report: who loses nothing, what each control pays, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from staleness_audit.report.html.figure import Column, Figure, Table, cells
from staleness_audit.report.html.page import assemble
from staleness_audit.simulate import panels

INPUTS = ("policy", "bound", "depth", "workload", "settings")
MEASURES = (
    "trained_tokens_per_s",
    "trainer_waiting_share",
    "wasted_share",
    "beyond_share",
    "staleness_mean",
    "length_ratio",
)


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
    """Return a row for each policy, bound, depth, workload and settings: means over seeds, the largest staleness."""
    return (
        table.group_by(INPUTS, maintain_order=True)
        .agg(*(pl.col(name).mean() for name in MEASURES), pl.col("staleness_max").max(), pl.col("stalled").any())
        .sort("workload", "policy", "bound", "depth")
    )


def _varies(rows: pl.DataFrame, column: str) -> bool:
    return rows[column].n_unique() > 1


def write_page(table: pl.DataFrame, path: Path) -> None:
    """Write one HTML file, which needs no network, about the results of a sweep; raises ``OSError``."""
    rows = means(table)
    workloads = list(dict.fromkeys(table["workload"].to_list()))
    led = rows.filter(pl.col("depth") == pl.col("bound"))
    ordered = pl.concat([_of(led, name) for name in workloads])  # from the lightest tail to the heaviest, if so given
    looks = panels.looks(rows["policy"].unique(maintain_order=True).to_list())
    sections = {
        "front": [_front(rows, name, looks) for name in workloads],
        "equal": [panels.comparison(part, name) for name in workloads for part in _bounds(_of(led, name))],
        "bound": [panels.profile(_of(led, name), "bound", name, looks) for name in workloads if _varies(led, "bound")],
        "depth": [panels.profile(_of(part, name), "depth", name, looks) for part in _deep(rows) for name in workloads],
        "tail": [panels.profile(part, "workload", "", looks) for part in _bounds(ordered)] if workloads[1:] else [],
    }
    context = {"runs": table.height, "summary": _summary(rows), "sections": sections, "table": _table(rows)}
    figures = [figure for part in sections.values() for figure in part]
    path.write_text(assemble(context, figures, "sweep.html.j2"), encoding="utf-8")


def _of(rows: pl.DataFrame, workload: str) -> pl.DataFrame:
    return rows.filter(pl.col("workload") == workload)


def _bounds(rows: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the rows of each bound."""
    return rows.sort("bound", maintain_order=True).partition_by("bound", maintain_order=True)


def _deep(rows: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the rows of each bound for which admission led by several depths, of the policies that can."""
    told = rows.filter(pl.col("depth").n_unique().over("workload", "policy", "bound") > 1)
    return _bounds(told) if told.height else []


def _front(rows: pl.DataFrame, workload: str, looks: dict[str, panels.Look]) -> Figure:
    part = _of(rows, workload).filter(pl.col("staleness_mean").is_not_nan())
    return panels.pareto(part, front(part), front(part.filter(pl.col("beyond_share") == 0)), workload, looks)


def _summary(rows: pl.DataFrame) -> list[str]:
    """Say for each workload and bound which policy trained most, and which of those that kept the bound."""
    said = []
    for (workload, bound), part in rows.group_by("workload", "bound", maintain_order=True):
        kept = part.filter((pl.col("beyond_share") == 0) & ~pl.col("stalled"))
        best = _first(part)
        words = f"{workload}, bound {bound}: {_named(best)} trains most, {best['trained_tokens_per_s']:,.0f} tokens/s"
        if best["beyond_share"]:
            words += f", {best['beyond_share']:.0%} of them staler than the bound"
        if kept.height and (best["beyond_share"] or best["stalled"]):
            first = _first(kept)
            words += (
                f"; of those that keep it, {_named(first)} does, {first['trained_tokens_per_s']:,.0f} tokens/s "
                f"at a mean staleness of {first['staleness_mean']:.2f}"
            )
        said.append(f"{words}.")
    return said


def _named(row: dict[str, Any]) -> str:
    """Name a policy, with what its admission leads by where that isn't the bound."""
    return str(row["policy"]) + ("" if row["depth"] == row["bound"] else f" (admission leads by {row['depth']})")


def _first(rows: pl.DataFrame) -> dict[str, Any]:
    return rows.sort("trained_tokens_per_s", descending=True).row(0, named=True)


COLUMNS: Sequence[tuple[str, str, str]] = (
    ("bound", "bound", "d"),
    ("depth", "admission leads by", "d"),
    ("trained_tokens_per_s", "tokens/s", ",.0f"),
    ("trainer_waiting_share", "trainer waits", ".0%"),
    ("wasted_share", "wasted", ".0%"),
    ("staleness_mean", "mean staleness", ".2f"),
    ("staleness_max", "largest", "d"),
    ("beyond_share", "tokens beyond", ".0%"),
    ("length_ratio", "length", ".2f"),
)


def _table(rows: pl.DataFrame) -> Table:
    shown = []
    for row in rows.iter_rows(named=True):
        figures = (
            "none" if row[name] is None or row[name] != row[name] else format(row[name], how)
            for name, _, how in COLUMNS
        )
        shown.append(cells(row["policy"] + (" (stalled)" if row["stalled"] else ""), row["workload"], *figures))
    return Table(
        "runs",
        "Means over seeds, and the largest staleness of any",
        (Column("policy"), Column("workload"), *(Column(title, True) for _, title, _ in COLUMNS)),
        tuple(shown),
        note="Length: how long trained trajectories are compared with all that finished; below 1, long ones are lost.",
        filterable=True,
    )

"""Measures what docs/findings.md says: four sweeps, whose tables are written between its `measured` markers.

    python benchmarks/findings.py [--results DIR]

Some ten minutes on two cores. Finished runs are kept in DIR, so that an interrupted measurement goes on where it was.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl

from staleness_audit.simulate.page import means, write_page
from staleness_audit.simulate.sweep import Point, all_policies, fair, grid, sweep

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "findings.md"
DATA = HERE / "data" / "findings"
SHORT = "lognormal:mu=5,sigma=0.6,group=4,longest=8192"
LONG = "lognormal:mu=5,sigma=1.2,group=4,longest=8192"
HEAVY = "pareto:low=60,alpha=1.4,group=4,longest=8192"
NAMES = {SHORT: "light (lognormal, sigma 0.6)", LONG: "long (lognormal, sigma 1.2)", HEAVY: "heavy (Pareto, alpha 1.4)"}
COMMON = {"steps": 50, "batch": 32, "costs": {"train_s": "3"}}
SEEDS = (0, 1, 2)


def equal() -> list[Point]:
    """Every policy with the same engines, trainer and room."""
    return list(grid(all_policies(), [2, 8], [LONG], seeds=SEEDS, **COMMON))


def admission() -> list[Point]:
    """Admission as the only control."""
    return list(grid(["areal"], [0, 1, 2, 4, 8], [SHORT, LONG, HEAVY], seeds=SEEDS, **COMMON))


def depth() -> list[Point]:
    """How far admission leads, under a bound that is kept by dropping, by cancelling too, or by waiting."""
    return [
        Point(policy, bound, LONG, 50, 32, seed, fair(policy, bound, 32, lead), {"train_s": "3"}, lead)
        for lead in (1, 2, 4)
        for bound in (2, 4, 8)
        for policy in ("verl:drop", "nemo-rl:windowed", "verl:wait")
        for seed in SEEDS
    ]


def control() -> list[Point]:
    """Controls that neither drop nor, in runs that nothing interrupts, break the bound."""
    points = []
    for workload in (LONG, HEAVY):
        for bound in (2, 4, 8, 12):
            for lookahead in (1, 2, 3, None):
                if lookahead is None or lookahead < bound:
                    settings = {"lookahead": lookahead}
                    lead = bound if lookahead is None else lookahead
                    points += [
                        Point("deadline", bound, workload, 50, 32, seed, settings, {"train_s": "3"}, lead)
                        for seed in SEEDS
                    ]
            others = ["nemo-rl:weight_fifo", "nemo-rl:in_order", "psrl"]
            points += grid(others, [bound], [workload], seeds=SEEDS, **COMMON)
            for lead in (1, 2):
                room = fair("verl:wait", bound, 32, lead)
                points += [
                    Point("verl:wait", bound, workload, 50, 32, seed, room, {"train_s": "3"}, lead) for seed in SEEDS
                ]
    return points


def _rows(table: pl.DataFrame, columns: dict[str, Callable[[dict[str, object]], str]]) -> str:
    head = f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}\n"
    rows = ("| " + " | ".join(cell(row) for cell in columns.values()) + " |" for row in table.iter_rows(named=True))
    return head + "\n".join(rows) + "\n"


FIGURES: dict[str, Callable[[dict[str, object]], str]] = {
    "tokens/s": lambda row: f"{row['trained_tokens_per_s']:,.0f}",
    "trainer waits": lambda row: f"{row['trainer_waiting_share']:.0%}",
    "wasted": lambda row: f"{row['wasted_share']:.0%}",
    "mean staleness": lambda row: f"{row['staleness_mean']:.2f}",
    "max": lambda row: str(row["staleness_max"]),
    "tokens beyond": lambda row: f"{row['beyond_share']:.0%}",
    "length": lambda row: f"{row['length_ratio']:.2f}",
}


def _equal(table: pl.DataFrame) -> str:
    shown = table.sort("bound", "trained_tokens_per_s", "policy", descending=[False, True, False])
    return _rows(shown, {"bound": lambda row: str(row["bound"]), "policy": lambda row: f"`{row['policy']}`", **FIGURES})


def _admission(table: pl.DataFrame) -> str:
    kept = {name: FIGURES[name] for name in ("tokens/s", "trainer waits", "mean staleness", "max", "tokens beyond")}
    columns = {"lengths": lambda row: NAMES[str(row["workload"])], "admission leads by": lambda row: str(row["bound"])}
    return _rows(table.sort("workload", "bound"), columns | kept)


def _depth(table: pl.DataFrame) -> str:
    shown = table.sort("bound", "policy", "depth")
    columns = {
        "bound": lambda row: str(row["bound"]),
        "policy": lambda row: f"`{row['policy']}`",
        "admission leads by": lambda row: str(row["depth"]),
    }
    return _rows(shown, columns | FIGURES)


def _control(table: pl.DataFrame) -> str:
    shown = table.sort("workload", "bound", "trained_tokens_per_s", "policy", descending=[False, False, True, False])
    kept = {name: FIGURES[name] for name in ("tokens/s", "trainer waits", "mean staleness", "max", "length")}
    columns = {
        "lengths": lambda row: NAMES[str(row["workload"])],
        "bound": lambda row: str(row["bound"]),
        "policy": lambda row: f"`{row['policy']}`" + (f", lead {row['depth']}" if row["depth"] != row["bound"] else ""),
    }
    return _rows(shown, columns | kept)


SWEEPS = {
    "equal": (equal, _equal),
    "admission": (admission, _admission),
    "depth": (depth, _depth),
    "control": (control, _control),
}


def main() -> None:
    """Run the sweeps and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=DATA, help="where finished runs are kept")
    results = parser.parse_args().results
    page = PAGE.read_text(encoding="utf-8")
    for name, (points, render) in SWEEPS.items():
        table = sweep(points(), results / name)
        write_page(table, results / name / "sweep.html")
        part = re.compile(rf"(<!-- measured: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = render(means(table))
        page = part.sub(lambda found, text=text: f"{found[1]}\n{text}\n{found[2]}", page)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

"""The figures of a sweep's page: the front, a comparison at one bound, and six measures along one input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from staleness_audit.report.html.figure import AXIS, VERSION_COLOURS, Figure, axis, label, rounded

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


class Look(NamedTuple):
    """How a policy is drawn in all figures."""

    colour: str
    symbol: str
    dash: str


class Measure(NamedTuple):
    """A column of the results, and how it is shown."""

    column: str
    title: str
    format: str


MEASURES = (
    Measure("trained_tokens_per_s", "trained tokens per second", ",.0f"),
    Measure("trainer_waiting_share", "trainer waits", ".0%"),
    Measure("wasted_share", "tokens wasted", ".0%"),
    Measure("staleness_mean", "mean staleness", ".2f"),
    Measure("staleness_max", "largest staleness", ",d"),
    Measure("beyond_share", "trained beyond the bound", ".0%"),
)
TICKS = {",.0f": "~s", ".0%": ".0%"}
"""Formats of axes, by the format of their numbers; else as short as can be."""
SIX = 820
"""Pixels that six panels need."""
WORDS = {"bound": "the bound", "depth": "what admission leads by (batches)", "workload": "the workload"}


def looks(policies: Sequence[str]) -> dict[str, Look]:
    """Return a look for each policy: families share a colour, and up to six policies of one colour differ in symbol."""
    sizes = Counter(policy.partition(":")[0] for policy in policies)
    colours, used = {}, [0] * VERSION_COLOURS
    for family, size in sizes.most_common():
        # The colour that fewest policies have: so it has symbols left for all of the family.
        colours[family] = used.index(min(used))
        used[colours[family]] += size
    found: dict[str, Look] = {}
    for policy in policies:
        colour = f"var(--v{colours[policy.partition(':')[0]]})"
        mark = sum(look.colour == colour for look in found.values()) % len(SYMBOLS)
        found[policy] = Look(colour, SYMBOLS[mark], DASHES[mark])
    return found


def pareto(
    rows: pl.DataFrame, best: pl.DataFrame, kept: pl.DataFrame, workload: str, drawn: Mapping[str, Look]
) -> Figure:
    """Throughput against mean staleness, with the front of all and of those that keep the bound."""
    traces: list[dict[str, Any]] = [
        _front("front of all", best, "dot"),
        _front("front of those that keep the bound", kept, "solid"),
    ]
    for policy, part in rows.partition_by("policy", as_dict=True, maintain_order=True).items():
        look = drawn[str(policy[0])]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": label(policy[0]),
                "x": rounded(part["staleness_mean"].to_list()),
                "y": rounded(part["trained_tokens_per_s"].to_list()),
                "text": [_described(row) for row in part.iter_rows(named=True)],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {
                    "color": [look.colour if not beyond else "rgba(0,0,0,0)" for beyond in part["beyond_share"]],
                    "symbol": look.symbol,
                    "size": 9,
                    "line": {"width": 2, "color": look.colour},
                },
            }
        )
    return Figure(
        _id("front", workload),
        workload,
        f"Throughput against mean staleness of {rows.height} points; {best.height} of them are on the front.",
        "Up and to the left is better. Filled: kept the bound in these runs; hollow: trained tokens beyond it.",
        traces,
        {
            "xaxis": axis("mean staleness of trained tokens (versions)", rangemode="tozero"),
            "yaxis": axis("trained tokens per second", rangemode="tozero"),
        },
        height=540,
    )


def _front(name: str, rows: pl.DataFrame, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": rounded(rows["staleness_mean"].to_list()),
        "y": rounded(rows["trained_tokens_per_s"].to_list()),
        "line": {"dash": dash, "color": "var(--muted)", "shape": "hv", "width": 1.5},
        "hoverinfo": "skip",
    }


def _described(row: Mapping[str, Any]) -> str:
    return (
        f"{label(row['policy'])}, bound {row['bound']}, leads by {row['depth']}<br>"
        f"{row['trained_tokens_per_s']:,.0f} tokens/s, waits {row['trainer_waiting_share']:.0%}, "
        f"wasted {row['wasted_share']:.0%}<br>staleness {row['staleness_mean']:.2f}, at most {row['staleness_max']}, "
        f"{row['beyond_share']:.0%} beyond<br>{label(row['settings'], 120)}"
    )


def comparison(rows: pl.DataFrame, workload: str) -> Figure:
    """All policies at one bound, side by side, the one with most throughput first."""
    ordered = rows.sort("trained_tokens_per_s")
    bound = ordered["bound"][0]
    # Two policies of one name differ in their settings.
    names = [
        label(policy) + "\u200b" * again
        for policy, again in ordered.select("policy", again=pl.col("policy").cum_count().over("policy") - 1).rows()
    ]
    traces, layout = [], dict[str, Any]()
    for number, measure in enumerate(MEASURES):
        place = "" if number == 0 else str(number + 1)
        width = 1 / len(MEASURES)
        layout[f"xaxis{place}"] = {
            **AXIS,
            "domain": [number * width, (number + 0.76) * width],
            "title": {"text": _wrapped(measure.title), "font": {"size": 12}, "standoff": 4},
            "tickformat": TICKS.get(measure.format, "~g"),
            "nticks": 4,
            "rangemode": "tozero",
            **({"range": [0, 1], "tickvals": [0, 0.5, 1]} if "%" in measure.format else {}),
        }
        kept = [beyond == 0 for beyond in ordered["beyond_share"]]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "x": rounded(ordered[measure.column].to_list()),
                "y": names,
                "xaxis": f"x{place}",
                "showlegend": False,
                "marker": {"color": ["var(--within)" if one else "var(--beyond)" for one in kept]},
                "hovertemplate": f"%{{y}}: %{{x:{measure.format}}}<extra>{measure.title}</extra>",
            }
        )
    return Figure(
        _id("equal", f"{workload} {bound}"),
        f"{workload}, bound {bound}",
        f"Six measures of {ordered.height} policies at bound {bound}.",
        "The same engines, trainer and work for all, admission leads by the bound; most throughput first.",
        traces,
        {**layout, "yaxis": {**AXIS, "ticksuffix": " "}, "bargap": 0.3},
        height=110 + 21 * len(names),
        width=SIX,
        key=(("var(--within)", "kept the bound in these runs"), ("var(--beyond)", "trained tokens beyond it")),
    )


def profile(rows: pl.DataFrame, along: str, workload: str, drawn: Mapping[str, Look]) -> Figure:
    """Six measures of every policy along the bound, the depth of admission, or the workload."""
    traces, layout = [], dict[str, Any]()
    order = list(dict.fromkeys(rows[along].to_list()))
    for number, measure in enumerate(MEASURES):
        place = "" if number == 0 else str(number + 1)
        row, column = divmod(number, 3)
        layout[f"xaxis{place}"] = {
            **AXIS,
            "domain": [column * 0.345, column * 0.345 + 0.295],
            "anchor": f"y{place}",
            **({"type": "category"} if along == "workload" else {"dtick": 1 if max(order) < 12 else None}),
            **({"tickvals": order, "ticktext": [_short(name) for name in order]} if along == "workload" else {}),
        }
        layout[f"yaxis{place}"] = {
            **AXIS,
            "domain": [0.56, 0.96] if row == 0 else [0.0, 0.40],
            "anchor": f"x{place}",
            "tickformat": TICKS.get(measure.format, "~g"),
            "rangemode": "tozero",
        }
        for (policy,), part in rows.partition_by("policy", as_dict=True, maintain_order=True).items():
            look = drawn[str(policy)]
            line = part.sort(along) if along != "workload" else part
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": label(policy),
                    "legendgroup": label(policy),
                    "showlegend": number == 0,
                    "x": line[along].to_list(),
                    "y": rounded(line[measure.column].to_list()),
                    "xaxis": f"x{place}",
                    "yaxis": f"y{place}",
                    "line": {"color": look.colour, "dash": look.dash, "width": 1.5},
                    "marker": {"symbol": look.symbol, "color": look.colour, "size": 7},
                    "hovertemplate": f"{label(policy)}, {along} %{{x}}: %{{y:{measure.format}}}<extra></extra>",
                }
            )
    layout["annotations"] = [
        {
            "text": measure.title,
            "xref": "paper",
            "yref": "paper",
            "x": (number % 3) * 0.345,
            "y": 1.0 if number < 3 else 0.44,
            "xanchor": "left",
            "yanchor": "top",
            "showarrow": False,
            "font": {"size": 12, "color": "var(--muted)"},
        }
        for number, measure in enumerate(MEASURES)
    ]
    bounds = rows["bound"].unique().to_list()
    title = ", ".join(filter(None, [workload, f"bound {bounds[0]}" if len(bounds) == 1 and along != "bound" else ""]))
    return Figure(
        _id(along, title),
        title or "All workloads",
        f"Six measures of {rows['policy'].n_unique()} policies along {WORDS[along]}.",
        f"Along {WORDS[along]}. A click on a name in the legend hides it, a double click shows it alone.",
        traces,
        layout,
        height=640,
        width=SIX,
    )


def _wrapped(text: str) -> str:
    """Break a title in two."""
    words = text.split()
    middle = len(words) // 2
    return f"{' '.join(words[:middle])}<br>{' '.join(words[middle:])}" if middle else text


def _short(workload: str) -> str:
    """A workload's name and first parameter, in two lines."""
    name, _, rest = label(workload).partition(":")
    return f"{name}<br>{rest.split(',')[0]}"


def _id(kind: str, text: str) -> str:
    return f"{kind}-" + "".join(character if character.isalnum() else "-" for character in text).strip("-").lower()

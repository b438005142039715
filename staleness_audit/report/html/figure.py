"""Figures and tables as plain data: a Plotly description without colours, the words beside it, the numbers behind it.

Colours are names of CSS variables (``var(--proven)``), so that figures follow the theme; the page's script resolves
them. Plotly reads a small markup in every text, so text from logs goes through ``label`` first.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from staleness_audit.report.terminal.words import Words, reach, step_number, step_words

WORDS = Words()
"""How this page speaks: ``3–5``, ``≥ 3``."""

VERSION_COLOURS = 6
"""Versions have the colours ``--v0`` to ``--v5`` in turn, the same in every figure."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, where it links to within the page, and its CSS class."""

    text: str
    href: str | None = None
    style: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table; those of numbers are set to the right."""

    title: str
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """A table with its caption. ``anchors``: ids of rows that links lead to; ``note``: what was left out."""

    id: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    filterable: bool = False
    choices: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure: ``alt`` says in a sentence what is to be seen, ``caption`` how to read it."""

    id: str
    title: str
    alt: str
    caption: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    table: Table | None = None
    height: int = 320
    views: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Named excerpts that a button shows: changes of the layout."""
    key: tuple[tuple[str, str], ...] = ()
    """What colours stand for, where the legend can't say it."""
    width: int = 0
    """Pixels below which it is scrolled sideways instead of squeezed."""

    def spec(self) -> dict[str, Any]:
        """What the page's script hands to Plotly."""
        return {
            "data": self.traces,
            "layout": _merged(_LAYOUT, {"height": self.height, **self.layout}),
            "views": [change for _, change in self.views],
        }


@dataclass(frozen=True)
class Missing:
    """Stands where a figure can't be drawn: what the logs lack, and what would show it."""

    title: str
    why: str


AXIS: dict[str, Any] = {
    "gridcolor": "var(--grid)",
    "linecolor": "var(--line)",
    "zeroline": False,
    "automargin": True,
    "tickfont": {"size": 12},
    "title": {"font": {"size": 12}, "standoff": 8},
    "fixedrange": True,
}
"""How every axis looks; a figure with more than three lays it under those it adds."""
_LAYOUT: dict[str, Any] = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": "var(--ink)"},
    "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
    "hoverlabel": {
        "bgcolor": "var(--panel)",
        "bordercolor": "var(--line)",
        "font": {"color": "var(--ink)"},
        "align": "left",
    },
    "legend": {
        "orientation": "h",
        "x": 0,
        "y": 1.06,
        "yanchor": "bottom",
        "font": {"size": 12},
        "traceorder": "normal",
    },
    "xaxis": AXIS,
    "yaxis": AXIS,
    "yaxis2": AXIS,
    "bargap": 0.15,
    "hovermode": "closest",
    "separators": ".,",
}


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes`` laid over it, level by level."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def label(text: object, limit: int = 80) -> str:
    """Text from a log for a figure: harmless, one line, and without meaning in Plotly's markup."""
    return html.escape(WORDS.plain(text, limit), quote=False)


def version_colour(version: int | None) -> str:
    """Return the colour of a policy version; grey where it isn't known."""
    return "var(--muted)" if version is None else f"var(--v{version % VERSION_COLOURS})"


def version_key(versions: Iterable[int]) -> tuple[tuple[str, str], ...]:
    """Return which colour stands for which of the versions that are shown."""
    shown = sorted(set(versions))
    if len(shown) > 3 * VERSION_COLOURS:  # too many to name: the rule
        shown, more = list(range(2 * VERSION_COLOURS)), ", …"
    else:
        more = ""
    key = []
    for index in range(VERSION_COLOURS):
        names = [f"v{version}" for version in shown if version % VERSION_COLOURS == index]
        if names:
            key.append((version_colour(index), ", ".join(names) + more))
    return tuple(key)


@dataclass(frozen=True)
class StepNames:
    """Names training steps: by their number, and by their attempt too if the run has several."""

    several: bool

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> StepNames:
        """Look whether steps of several attempts are in the document."""
        return cls(len({row["attempt"] for row in data["per_step"]}) > 1)

    def __call__(self, row: Mapping[str, Any], last: Mapping[str, Any] | None = None) -> str:
        """Return the name of a step, or of the run of steps to ``last``; rows with ``attempt`` and ``step``.

        A listed violation may have taken place in any of several steps.
        """
        reached = step_number(row) if last is None or last["step"] == row["step"] else last["step"]
        return f"{reach(step_number(row), reached)}{self._attempt(row)}"

    def in_words(self, row: Mapping[str, Any]) -> str:
        """``step 8``, ``some step from 5 to 8 (attempt 1)``: where a listed violation took place."""
        return step_words(row["step"], row.get("first_step")) + self._attempt(row)

    def _attempt(self, row: Mapping[str, Any]) -> str:
        return f" (attempt {row['attempt']})" if self.several else ""


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with a title."""
    return {"title": {"text": title}, **more}


def cells(*values: object) -> tuple[Cell, ...]:
    """Return a row of plain cells; what is a cell already stays one."""
    return tuple(value if isinstance(value, Cell) else Cell("" if value is None else str(value)) for value in values)


def columns(*titles: str) -> tuple[Column, ...]:
    """Columns by their titles; one that ends with ``#`` holds numbers."""
    return tuple(Column(title.removesuffix("#"), title.endswith("#")) for title in titles)


def thinned(count: int, most: int) -> list[range]:
    """Cut ``count`` rows into at most ``most`` runs of equal length, in order."""
    width = max(1, -(-count // most))
    return [range(start, min(start + width, count)) for start in range(0, count, width)]


def rounded(values: Iterable[float | None], figures: int = 5) -> list[float | None]:
    """Numbers as short as a figure needs them."""
    return [None if value is None else _short(value, figures) for value in values]


def _short(value: float, figures: int) -> float:
    if isinstance(value, int) or float(value).is_integer():
        return int(value)
    return float(f"{value:.{figures}g}")

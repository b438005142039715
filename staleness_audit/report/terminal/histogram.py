"""Bars: how many tokens of which staleness, what is certain, what is possible, and where the bound lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table
from rich.text import Text

from staleness_audit.report.terminal.page import Page
from staleness_audit.report.terminal.words import Glyphs, interval, is_exact, percent, reach

WITHIN_ROWS = 8
BEYOND_ROWS = 10
BAR = 32
SPARKS = 60

WITHIN, BEYOND, NEUTRAL = "green", "red", "cyan"


@dataclass(frozen=True)
class Bin:
    """Members whose value lies in ``[first, last]`` (last None = or more): ``low`` for certain, at most ``high``."""

    first: int
    last: int | None
    low: int
    high: int | None

    def label(self, glyphs: Glyphs) -> str:
        """``3``, ``4–7``, ``12 or more``."""
        return f"{self.first} or more" if self.last is None else reach(self.first, self.last, glyphs)


def bins(
    histogram: Sequence[Mapping[str, Any]],
    name: str,
    bound: int | None,
    total: Mapping[str, Any],
    violating: Mapping[str, Any] | None = None,
    upto: int = -1,
) -> list[Bin]:
    """Join the rows of the JSON histogram to a few bins, none of which straddles the bound.

    Joined classes may hold the same uncertain members, so a bin is capped by ``total`` less what is certain elsewhere,
    and one beyond the bound by the ``violating`` (where a bound is judged) less what is certain elsewhere beyond it.
    Histograms drawn over one axis are cut alike if ``upto`` is the largest value of any of them.
    An open class that nothing is known to be in makes no bin; whoever shows the bars says so in words.
    """
    finite = [row for row in histogram if not row.get("or_more")]
    opened = [row for row in histogram if row.get("or_more") and (row[name]["lo"] or row[name]["hi"])]
    top = max([upto, *(int(row["staleness"]) for row in finite)])
    found = []
    for first, last in _ranges(top, bound):
        rows = [row[name] for row in finite if first <= row["staleness"] <= last]
        highs = [row["hi"] for row in rows]
        if rows:
            found.append(Bin(first, last, sum(row["lo"] or 0 for row in rows), None if None in highs else sum(highs)))
    found += [Bin(int(row["staleness"]), None, row[name]["lo"] or 0, row[name]["hi"]) for row in opened]
    found = _capped(found, total["hi"])
    if bound is None or violating is None:
        return found
    within = [each for each in found if each.first <= bound]
    return within + _capped(found[len(within) :], violating["hi"])


def _capped(found: list[Bin], most: int | None) -> list[Bin]:
    """No bin holds more than all of them do, less what is certain in the others."""
    if most is None:
        return found
    certain = sum(each.low for each in found)
    ends = [min(most if each.high is None else each.high, most - certain + each.low) for each in found]
    return [replace(each, high=max(each.low, end)) for each, end in zip(found, ends, strict=True)]


def _ranges(top: int, bound: int | None) -> list[tuple[int, int]]:
    """Cut 0 to ``top`` into ranges of equal width, within the bound and beyond it apart."""
    if bound is None or bound >= top:
        return _cut(0, top, WITHIN_ROWS + BEYOND_ROWS)
    return _cut(0, bound, WITHIN_ROWS) + _cut(bound + 1, top, BEYOND_ROWS)


def _cut(first: int, last: int, most: int) -> list[tuple[int, int]]:
    width = max(1, -(-(last - first + 1) // most))
    return [(start, min(start + width - 1, last)) for start in range(first, last + 1, width)]


def bar(count: tuple[int, int | None], scale: int, glyphs: Glyphs, style: str, width: int = BAR) -> Text:
    """Return a solid part for what is certain and a shaded one for what is possible; an open end is an arrow.

    Never longer than ``width``, the arrow included, whatever exceeds the ``scale``.
    """
    low, high = count
    if width <= 0:
        return Text()
    if scale <= 0:
        return Text(glyphs.more if high is None else "", "dim")
    most = width - len(glyphs.more) * (high is None)
    solid = min(round(low / scale * width), most)
    shaded = min(round((low if high is None else high) / scale * width), most) - solid
    text = Text(glyphs.full * solid, style)
    if low and not solid:
        text.append(glyphs.thin, style)
        shaded -= 1
    text.append(glyphs.maybe * (max(shaded, 0) or int(high is not None and high > low and not low)), style)
    if high is None:
        text.append(glyphs.more, "dim")
    return text


def show_histogram(page: Page, found: Sequence[Bin], noun: str, bound: int | None, total: Mapping[str, Any]) -> None:
    """Draw the bins, green within the bound and red beyond it, with a line where the bound lies."""
    glyphs = page.glyphs
    scale = max((each.low if each.high is None else each.high for each in found), default=0)
    whole = total["lo"] if is_exact(total) else None
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="dim")
    table.add_column(no_wrap=True, overflow="crop")
    titles = ("staleness", noun, "")
    rows = [
        (
            each.label(glyphs),
            interval({"lo": each.low, "hi": each.high}, glyphs),
            percent(each.low / whole) if whole and each.low == each.high else "",
        )
        for each in found
    ]
    length = page.room(BAR, [titles, *rows, (_bound_label(bound), "", "")])
    table.add_row(*(Text(title, "dim") for title in (*titles, "")))
    drawn = bound is None
    for each, row in zip(found, rows, strict=True):
        beyond = bound is not None and each.first > bound
        if beyond and not drawn:
            _draw_bound(table, bound, glyphs.rule * length)
            drawn = True
        style = NEUTRAL if bound is None else BEYOND if beyond else WITHIN
        table.add_row(*row, bar((each.low, each.high), scale, glyphs, style, length))
    if not drawn:
        _draw_bound(table, bound, glyphs.rule * length)
    page.print(table, 2)
    if any(each.high is None or each.high > each.low for each in found):
        page.print(
            Text(f"{glyphs.full} certain   {glyphs.maybe} possible   {glyphs.more} no upper end known", "dim"), 2
        )


def _draw_bound(table: Table, bound: int | None, line: str) -> None:
    table.add_row(Text(_bound_label(bound), "bold"), "", "", Text(line, "bold"))


def _bound_label(bound: int | None) -> str:
    return "" if bound is None else f"bound {bound}"


def sparkline(values: Sequence[int | None], bound: int | None, glyphs: Glyphs, width: int = SPARKS) -> Text:
    """Draw a character per step (or run of steps: its largest), red beyond the bound, a gap where nothing is known."""
    per = max(1, -(-len(values) // width))
    chunks = [values[start : start + per] for start in range(0, len(values), per)]
    peaks = [max((value for value in chunk if value is not None), default=None) for chunk in chunks]
    top = max((value for value in peaks if value is not None), default=0)
    text = Text()
    for value in peaks:
        if value is None:
            text.append(" ")
            continue
        level = round(value / top * (len(glyphs.spark) - 1)) if top else 0
        style = NEUTRAL if bound is None else BEYOND if value > bound else WITHIN
        text.append(glyphs.spark[level], style)
    return text

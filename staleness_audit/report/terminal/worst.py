"""The worst violations as a table, and the story of the worst one in a few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from staleness_audit.report.terminal.page import Page
from staleness_audit.report.terminal.words import class_size, class_words, place, shorten, step_number, step_words

NAME = 34
"""Columns for the name of a trajectory: that of a UUID without its dashes, and a little."""
SHORTEST_NAME = 12
"""Columns below which a shortened name tells nothing: rather it is broken."""
PLACE = 14
"""Columns below which the end of a place tells nothing."""
INDENT, GAP = 2, 2

CONTROLS = {
    "L1": "L1, holding it back before generation",
    "L2": "L2, cancelling it while it was generated",
    "L3": "L3, dropping it (or its old tokens) at the training input",
}


def show_worst(data: Mapping[str, Any], page: Page) -> None:
    """Show the listed violations; nothing if there are none."""
    worst = data["violations"]["worst"] or []
    if not worst:
        return
    proven = [row for row in worst if row.get("proven", True)]
    page.section("Worst violations" if proven else "Trajectories that may violate the bound")
    mixed = 0 < len(proven) < len(worst)
    sizes = [class_size(row.get("multiplicity"), page.glyphs) for row in worst]
    several = len({row.get("attempt", 0) for row in worst}) > 1
    ranges = any(row.get("first_step") is not None for row in worst)
    figures: list[tuple[str | Text, ...]] = [
        (
            step_number(row, page.glyphs) + (f" (attempt {row['attempt']})" if several else ""),
            Text(page.interval(row["staleness"]), "red" if row.get("proven", True) else ""),
            page.interval(row["in_flight"]),
            page.interval(row["in_queue"]),
            page.interval(row["tokens"]),
            " ".join(row["stoppable_at"]) if _stop(row) else "",
        )
        for row in worst
    ]
    titles = ("step", "stale", "flight", "queue", "tokens", "stop at")
    room = page.table_width - INDENT - _width([titles, *figures])
    marks = [
        ("" if not mixed or row.get("proven", True) else " ?") + (f" ({size})" if size else "")
        for row, size in zip(worst, sizes, strict=True)
    ]
    names = [_name(row, mark, room, page) for row, mark in zip(worst, marks, strict=True)]
    title, places = _places(worst, page, room - GAP - max(len("trajectory"), *map(len, names)))
    rows = [(name, *cells, *where) for name, cells, where in zip(names, figures, places, strict=True)]
    page.table(("trajectory", *((each, "right") for each in titles[:-1]), (titles[-1], "keep"), *title), rows, INDENT)
    page.print(
        Text(
            ("?: possible, not proven. " if mixed else "")
            + ("(n): a class of n trajectories without names. " if any(sizes) else "")
            + (f"step n{page.glyphs.to}m: in some of these steps. " if ranges else "")
            + "flight, queue: versions that passed while it was generated, and while it waited to be trained. "
            "tokens: those beyond the bound. stop at: which control could have prevented it: L1 admission, "
            "L2 cancelling in flight, L3 the training input.",
            "dim",
        ),
        2,
    )
    _story(data, worst[0], page)


def _width(rows: Sequence[Sequence[str | Text]]) -> int:
    """Columns that the cells of a table take, with a gap before each."""
    return sum(GAP + max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True))


def _name(row: Mapping[str, Any], mark: str, room: int, page: Page) -> str:
    """Name of a trajectory with its mark, shortened where it would take more than its room."""
    limit = min(NAME, max(room - len(mark), SHORTEST_NAME))
    return shorten(page.plain(row["trajectory_id"]), limit, page.glyphs) + mark


def _places(worst: Sequence[Mapping[str, Any]], page: Page, room: int) -> tuple[list[str], list[list[str]]]:
    """Title and cells of the column that says where the oldest trained tokens are logged; none if there is no room.

    A source that all share stands in the title; of long places the end is shown; the story gives one whole.
    """
    first = [row["evidence"][0] if row["evidence"] else {} for row in worst]
    sources = {item.get("source") for item in first}
    if room < PLACE:
        return [], [[] for _ in worst]
    if len(sources) == 1 and None not in sources and all(item.get("line") is not None for item in first):
        return [f"line of\n{_end(page.plain(sources.pop()), page, room)}"], [[str(item["line"])] for item in first]
    return ["log line"], [[_end(place({**item, "locator": None}, page.glyphs), page, room)] for item in first]


def _end(shown: str, page: Page, room: int) -> str:
    return shown if len(shown) <= room else page.glyphs.cut + shown[len(page.glyphs.cut) - room :]


def _story(data: Mapping[str, Any], row: Mapping[str, Any], page: Page) -> None:
    bound, interval = data["bound"]["value"], page.interval
    name = page.plain(row["trajectory_id"], 120)
    group = (
        f" of group {page.plain(row['group_id'], 120)}"
        if row["group_id"] and row["group_id"] != row["trajectory_id"]
        else ""
    )
    who = f" ({words})" if (words := class_words(row.get("multiplicity"), page.glyphs)) else ""
    page.print()
    sure = row.get("proven", True)
    page.print(
        Text.assemble(
            (f"{'The worst' if sure else 'For instance'}: {name}", "bold"),
            f"{who}{group}, trained {_step(row)}. Its oldest trained token "
            f"{'is' if sure else 'may be'} {interval(row['staleness'])} versions old: "
            f"{interval(row['in_flight'])} in flight, {interval(row['in_queue'])} in the queue; the bound is {bound}."
            + _stop(row),
        ),
        2,
    )
    page.facts(
        [(str(item.get("what", "evidence")), f"{place(item, page.glyphs)}{_known(item)}") for item in row["evidence"]],
        4,
    )
    page.print(Text("Its whole life: staleness-audit explain RUN --worst", "dim"), 2)


def _stop(row: Mapping[str, Any]) -> str:
    """Say which controls could have stopped it; nothing of what is not known to have any staleness at all."""
    if not row["stoppable_at"] or not (row.get("proven", True) or row["staleness"]["lo"]):
        return ""
    return f" Could have been stopped at {'; or at '.join(CONTROLS[level] for level in row['stoppable_at'])}."


def _step(row: Mapping[str, Any]) -> str:
    first = row.get("first_step")
    return f"{'by' if first is None else 'in'} {step_words(row['step'], first)}"


def _known(item: Mapping[str, Any]) -> str:
    known = item.get("known")
    return f" ({known})" if known and known != "recorded" else ""

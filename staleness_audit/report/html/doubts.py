"""Seventh question: what does the framework say about itself, what could not be read, and how can more be recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from staleness_audit.check.reported import CANONICAL
from staleness_audit.report.html.figure import WORDS, Cell, StepNames, Table, cells, columns
from staleness_audit.report.terminal.words import place

Data = Mapping[str, Any]

LISTED = 400
"""Rows of each table at most."""


def reported_table(data: Data) -> Table | None:
    """The framework's own figures beside the rebuilt ones, those that differ first; None if it reported none."""
    rows = data["reported"]
    if not rows:
        return None
    order, name = {False: 0, None: 1, True: 2}, StepNames.of(data)
    chosen = sorted(rows, key=lambda row: order[row["agrees"]])[:LISTED]
    listed = [
        cells(
            _judgement(row["agrees"]),
            Cell(WORDS.plain(row["raw_name"] or row["name"], 80), None, "id"),
            CANONICAL.get(row["name"], WORDS.plain(row["name"], 80)),
            name(row),
            WORDS.interval({"lo": row["reported"], "hi": row["reported"]}),
            WORDS.interval(row["rebuilt"]),
            Cell(place(row), None, "place mono"),
        )
        for row in chosen
    ]
    left = len(rows) - len(chosen)
    return Table(
        "reported",
        "The framework's own figures against what the logs prove",
        columns("result", "logged as", "meaning", "step#", "reported#", "rebuilt#", "log line"),
        tuple(listed),
        note=f"{len(chosen):,} of {len(rows):,}; those that differ come first." if left else "",
        filterable=True,
        choices=tuple(name for value, name in _WORDS.items() if any(row["agrees"] is value for row in chosen)),
    )


_WORDS = {False: "differs", None: "can't tell", True: "agrees"}


def _judgement(agrees: bool | None) -> Cell:
    return Cell(_WORDS[agrees], None, {False: "fail", None: "quiet", True: "ok"}[agrees])


def reported_words(data: Data) -> str:
    """Say how many of the figures agree."""
    rows = data["reported"]
    if not rows:
        return "The framework reported no figure about itself that can be compared."
    counts = {name: sum(row["agrees"] is value for row in rows) for value, name in _WORDS.items()}
    return (
        f"The framework logged {len(rows):,} figures about its own steps. Agreeing with what the other logs prove: "
        f"{counts['agrees']:,}; differing: {counts['differs']:,}; the logs can't tell: {counts[_WORDS[None]]:,}."
    )


def diagnostics_table(data: Data) -> Table | None:
    """What could not be read or had to be assumed, errors first; None if there is nothing."""
    items = data["diagnostics"]["items"]
    if not items:
        return None
    order = {"error": 0, "warning": 1}
    chosen = sorted(items, key=lambda item: order.get(item["severity"], 2))[:LISTED]
    effects = {
        "training": "may have held training data: no upper end is certain",
        "fates": "may have held drops or losses",
    }
    listed = [
        cells(
            Cell(
                WORDS.plain(item["severity"], 20),
                None,
                {"error": "fail", "warning": "possible"}.get(item["severity"], "quiet"),
            ),
            WORDS.plain(item["message"]),
            effects.get(item["opens"] or "", ""),
            Cell(place(item), None, "place mono"),
        )
        for item in chosen
    ]
    left = len(items) - len(chosen)
    return Table(
        "diagnostics",
        "What could not be read, contradicts itself, or had to be assumed",
        columns("severity", "what", "what follows", "where"),
        tuple(listed),
        note=f"{len(chosen):,} of {len(items):,}; errors come first." if left else "",
        filterable=True,
        choices=tuple(
            word for word in ("error", "warning", "note") if any(item["severity"] == word for item in chosen)
        ),
    )


def hints(data: Data) -> tuple[tuple[str, str], ...]:
    """What the logs could not tell, and the setting that would make them tell it."""
    return tuple(
        (WORDS.plain(hint["missing"], 600), WORDS.plain(hint["remedy"], 600)) for hint in data.get("hints") or []
    )

"""A comparison in words: names of the runs, sections of figures, values by kind, marks for what differs."""

from __future__ import annotations

import os
import string
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from staleness_audit.report.terminal.cost import REASONS
from staleness_audit.report.terminal.verdict import NAMES
from staleness_audit.report.terminal.words import Words, duration, number, percent_interval

Data = Mapping[str, Any]
MARKS = {"yes": "≠", "no": "=", "unknown": "?", "incomparable": "∦", None: ""}
ASCII_MARKS = {"yes": "!=", "no": "=", "unknown": "?", "incomparable": "n/c", None: ""}
LEGEND = {
    "yes": "proven to differ from A",
    "no": "the same",
    "unknown": "the logs can't tell",
    "incomparable": "not comparable",
}
SECTIONS = {
    "verdict": "Verdict",
    "bound": "Verdict",
    "guarantee": "Verdict",
    "violations": "Verdict",
    "run": "The run",
    "staleness": "Staleness of the trained tokens",
    "trajectories": "Trajectories",
    "tokens": "Tokens",
    "waste": "Waste",
    "throughput": "Throughput",
    "coverage": "What is known of trained tokens",
    "diagnostics": "Damage to the logs",
}


def letters(count: int) -> list[str]:
    """A, B, ..., Z, AA, AB, ...: what runs are called in the columns."""
    singles = list(string.ascii_uppercase)
    names = singles + ["".join(pair) for pair in product(singles, repeat=2)]
    return names[:count] if count <= len(names) else [f"R{index}" for index in range(1, count + 1)]


def names(comparison: Data, base: Path) -> list[str]:
    """Paths of the runs, relative to ``base`` where they are below it."""
    paths = [Path(run["path"]) for run in comparison["runs"]]
    return [os.fspath(path.relative_to(base)) if path.is_relative_to(base) else os.fspath(path) for path in paths]


def apart(paths: Sequence[str]) -> tuple[str, list[str]]:
    """Return the folder that all paths share (empty if none) and each path from there on: what tells them apart.

    A last folder that all have (``run``) says nothing either, but is left as it is what one would type.
    """
    if len(set(paths)) < 2 or len({Path(path).is_absolute() for path in paths}) > 1:
        return "", list(paths)
    shared = os.path.commonpath(paths)
    if shared in ("", os.sep) or shared in paths:
        return "", list(paths)
    return shared, [os.path.relpath(path, shared) for path in paths]


def value_words(value: Any, kind: str, words: Words) -> str:
    """One value in the words of its kind; empty if nothing is known."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, Mapping):
        return NAMES.get(value, words.plain(value, 40))
    if value["lo"] in (None, 0) and value["hi"] is None:
        return ""
    if kind == "share":
        shown = percent_interval(value, words.glyphs)
        return "" if shown == "unknown" else shown
    if kind == "seconds" and value["lo"] == value["hi"]:
        return duration(value["lo"])
    if kind in ("rate", "ratio") and value["lo"] == value["hi"]:
        return number(value["lo"])
    return words.interval(value)


def legend(words: Words, marks: Mapping[str | None, str] = MARKS) -> str:
    """Say what the marks mean, and what is not shown."""
    meanings = ", ".join(f"{marks[mark]} {meaning}" for mark, meaning in LEGEND.items())
    return (
        f"{words.glyphs.dash} not known, {meanings}. Figures known of fewer than two of the runs are left out "
        "(--format json has all)."
    )


def sections(comparison: Data, shown: Sequence[int] | None = None) -> Iterator[tuple[str, list[Data]]]:
    """Rows that compare something of the runs ``shown`` (positions; None: all), under the titles of their sections."""
    positions = range(len(comparison["runs"])) if shown is None else shown
    found: dict[str, list[Data]] = {}
    plain = Words()
    for row in comparison["figures"]:
        values = [row["values"][index] for index in positions]
        if ": " in row["title"] and not any(value and (value["lo"] or value["hi"]) for value in values):
            continue  # a reason of which nothing is known but that it may be none
        if sum(bool(value_words(value, row["kind"], plain)) for value in values) > 1:
            found.setdefault(SECTIONS[row["figure"].partition(".")[0]], []).append(row)
    yield from found.items()


def figure_words(row: Data, words: Words) -> str:
    """Title of a figure; reasons stand below their sum."""
    _, colon, reason = row["title"].partition(": ")
    return f"- {REASONS.get(reason) or words.plain(reason.removeprefix('other:'), 60)}" if colon else str(row["title"])


def caveat_words(caveat: Data, called: Sequence[str]) -> str:
    """A caveat, with the runs it is about if these are not all."""
    if len(caveat["runs"]) == len(called):
        return str(caveat["message"])
    return f"{', '.join(called[index] for index in caveat['runs'])}: {caveat['message']}"

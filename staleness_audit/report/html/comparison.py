"""A comparison as one HTML file of tables, in the clothes of the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from staleness_audit.report.html.page import assemble_tables
from staleness_audit.report.terminal.comparison import (
    LEGEND,
    MARKS,
    apart,
    caveat_words,
    figure_words,
    legend,
    letters,
    names,
    sections,
    value_words,
)
from staleness_audit.report.terminal.verdict import NAMES
from staleness_audit.report.terminal.words import Words

Data = Mapping[str, Any]
_TONES = {"yes": "possible", "no": "ok", "unknown": "quiet", "incomparable": "quiet", None: ""}


def render_comparison_page(comparison: Data, base: Path) -> str:
    """Return the page of a comparison (``check.compare``); the template escapes what logs hold."""
    words = Words()
    called = letters(len(comparison["runs"]))
    shared, paths = apart(names(comparison, base))
    context = {
        "shared": words.plain(shared),
        "runs": [
            {
                "name": name,
                "path": words.plain(path),
                "framework": words.plain(f"{run['framework']} {run['framework_version'] or ''}".strip(), 100),
                "verdict": NAMES[run["verdict"]],
                "bound": "none" if run["bound"] is None else run["bound"],
                "unit": words.plain(run["unit"], 100),
            }
            for name, path, run in zip(called, paths, comparison["runs"], strict=True)
        ],
        "caveats": [caveat_words(caveat, called) for caveat in comparison["caveats"]],
        "legend": legend(words),
        "sections": [
            {
                "title": title,
                "rows": [{"title": figure_words(row, words), "cells": list(_cells(row, words))} for row in rows],
            }
            for title, rows in sections(comparison)
        ],
    }
    return assemble_tables("comparison.html.j2", context)


def _cells(row: Data, words: Words) -> Iterator[dict[str, str]]:
    for value, mark in zip(row["values"], row["differs"], strict=True):
        shown = value_words(value, row["kind"], words)
        yield {
            "value": shown or words.glyphs.dash,
            "mark": MARKS[mark] if shown else "",
            "meaning": LEGEND.get(mark or "", ""),
            "tone": _TONES[mark] if shown else "quiet",
        }

"""A comparison as Markdown, for a job summary or a comment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from staleness_audit.report.markdown import escape, table
from staleness_audit.report.terminal.comparison import (
    MARKS,
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


def comparison_markdown(comparison: Data, base: Path) -> str:
    """Return the comparison as Markdown tables; text from logs is escaped."""
    called = letters(len(comparison["runs"]))
    words = Words()
    runs = [
        [name, escape(path), escape(_framework(run)), NAMES[run["verdict"]], _bound(run), escape(run["unit"])]
        for name, path, run in zip(called, names(comparison, base), comparison["runs"], strict=True)
    ]
    parts = [
        "## Runs compared",
        table(("", "run", "framework", "verdict", "bound:", "versions count"), runs),
        "\n".join(f"- {escape(caveat_words(caveat, called), 600)}" for caveat in comparison["caveats"]),
    ]
    for title, rows in sections(comparison):
        lines = [[escape(figure_words(row, words)), *_cells(row, words)] for row in rows]
        parts.append(f"### {title}\n\n" + table(("", *(f"{name}:" for name in called)), lines))
    parts.append(legend(words))
    return "\n\n".join(filter(None, parts)) + "\n"


def _cells(row: Data, words: Words) -> Iterator[str]:
    for value, mark in zip(row["values"], row["differs"], strict=True):
        yield _marked(value, mark, row["kind"], words)


def _marked(value: Any, mark: str | None, kind: str, words: Words) -> str:
    shown = value_words(value, kind, words)
    return f"{escape(shown)} {MARKS[mark]}".strip() if shown else "–"


def _framework(run: Data) -> str:
    return f"{run['framework']} {run['framework_version'] or ''}".strip()


def _bound(run: Data) -> str:
    return "none" if run["bound"] is None else str(run["bound"])

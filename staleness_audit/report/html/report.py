"""Joins the sections of the page in the order of the reader's questions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from staleness_audit.report.html.figure import Figure, Missing
from staleness_audit.report.html.glossary import GLOSSARY
from staleness_audit.report.html.page import assemble
from staleness_audit.report.html.queries import fetch
from staleness_audit.report.html.staleness import histogram_figure, parts_figure, steps_figure
from staleness_audit.report.html.verdict import verdict

if TYPE_CHECKING:
    from staleness_audit.api import AuditResult


def write_report(result: AuditResult, file: str | Path) -> None:
    """Write the HTML report of an audited run; raises ``OSError`` if the file cannot be written."""
    Path(file).write_text(render_report(result), encoding="utf-8")


def render_report(result: AuditResult) -> str:
    """Return the report as the text of one HTML file without any reference to another."""
    data = result.data
    connection = result.connection
    bound = data["bound"]["value"]
    anchors: dict[tuple[int, int], str] = {}
    extremes = fetch(connection, "step_extremes", bound=bound)
    sections: dict[str, Any] = {
        "staleness": [
            steps_figure(data, extremes, anchors),
            histogram_figure(data, "tokens"),
            histogram_figure(data, "trajectories"),
            parts_figure(data, result.rebuilt.frame("flight_classes").to_dicts()),
        ],
    }
    figures = [item for items in sections.values() for item in items if isinstance(item, Figure)]
    context = {"verdict": verdict(data), "sections": sections, "glossary": GLOSSARY, "Missing": Missing}
    return assemble(context, figures)

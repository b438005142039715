"""Joins the sections of the page in the order of the reader's questions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from staleness_audit.check.story import tell_all
from staleness_audit.report.html import doubts, throughput, waste
from staleness_audit.report.html.figure import Figure, Missing
from staleness_audit.report.html.histograms import histogram_figure, parts_figure
from staleness_audit.report.html.page import assemble
from staleness_audit.report.html.queries import fetch
from staleness_audit.report.html.steps import steps_figure
from staleness_audit.report.html.timeline import timeline_figure
from staleness_audit.report.html.verdict import verdict
from staleness_audit.report.html.violations import anchors_of, no_violations, tellings, worst_table
from staleness_audit.whole import whole_file

if TYPE_CHECKING:
    from staleness_audit.api import AuditResult

LENGTH_BINS = 30


def write_report(result: AuditResult, file: str | Path) -> None:
    """Write the HTML report of an audited run; raises ``OSError`` if the file cannot be written."""
    page = render_report(result)
    with whole_file(Path(file)) as aside:
        aside.write_text(page, encoding="utf-8", errors="replace")


def render_report(result: AuditResult) -> str:
    """Return the report as the text of one HTML file without any reference to another."""
    data = result.data
    bound, worst = data["bound"]["value"], data["violations"]["worst"] or []
    sections = _figures(result)
    stories = tell_all(result.rebuilt, list(dict.fromkeys(row["trajectory_id"] for row in worst)), bound)
    context = {
        "verdict": verdict(data),
        "sections": sections,
        "worst": worst_table(data),
        "stories": tellings(data, stories),
        "no_violations": no_violations(data),
        "waste_facts": waste.facts(data),
        "throughput_tiles": throughput.tiles(data),
        "reported_words": doubts.reported_words(data),
        "reported": doubts.reported_table(data),
        "diagnostics": doubts.diagnostics_table(data),
        "hints": doubts.hints(data),
    }
    return assemble(context, [item for items in sections.values() for item in items if isinstance(item, Figure)])


def _figures(result: AuditResult) -> dict[str, list[Figure | Missing]]:
    """Return the figures of each section, or what stands for those that the logs don't allow."""
    data, connection = result.data, result.connection
    extremes = fetch(connection, "step_extremes", bound=data["bound"]["value"])
    anchors = anchors_of(data["violations"]["worst"] or [])
    return {
        "staleness": [
            steps_figure(data, extremes, anchors),
            histogram_figure(data, "tokens"),
            histogram_figure(data, "trajectories"),
            parts_figure(data, result.rebuilt.frame("flight_classes").to_dicts()),
        ],
        "timeline": [timeline_figure(data, connection)],
        "waste": [
            waste.flow_figure(data),
            waste.drops_figure(data, fetch(connection, "drops_by_step")),
            waste.lengths_figure(data, fetch(connection, "lengths", bins=LENGTH_BINS)),
        ],
        "throughput": throughput.throughput_figures(data, connection),
    }

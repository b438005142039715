"""The report as one HTML file that opens offline: the reader's questions in their order, figures, stories, tables."""

from staleness_audit.report.html.report import render_report, write_report

__all__ = ["render_report", "write_report"]

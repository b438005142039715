"""What people see on a terminal, on a pipe, and in a plain file: one module per thing that is shown."""

from staleness_audit.report.terminal.audit import notebook_html, render_audit, render_summary
from staleness_audit.report.terminal.compare import render_comparison
from staleness_audit.report.terminal.frameworks import render_frameworks
from staleness_audit.report.terminal.rows import render_rows
from staleness_audit.report.terminal.schema import render_schema
from staleness_audit.report.terminal.story import render_story

__all__ = [
    "notebook_html",
    "render_audit",
    "render_comparison",
    "render_frameworks",
    "render_rows",
    "render_schema",
    "render_story",
    "render_summary",
]

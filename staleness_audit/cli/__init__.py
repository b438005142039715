"""The command line (DESIGN section 5): a thin layer over ``staleness_audit.api``, one module per group of commands.

Exit codes: 0 within the bound, 1 violated, 2 usage error or unreadable input, 3 not known.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings

from staleness_audit.cli.audit import audit
from staleness_audit.cli.compare import compare
from staleness_audit.cli.console import EXIT_USAGE, complain, show_warning
from staleness_audit.cli.explain import explain
from staleness_audit.cli.export import export
from staleness_audit.cli.frameworks import frameworks
from staleness_audit.cli.prove import prove
from staleness_audit.cli.report import report
from staleness_audit.cli.root import app
from staleness_audit.cli.simulate import simulate
from staleness_audit.cli.sweep import sweep
from staleness_audit.cli.tables import ingest, sql
from staleness_audit.cli.verify import verify
from staleness_audit.cli.watch import watch
from staleness_audit.errors import BrokenPlugin
from staleness_audit.limits import seldom_collect

__all__ = ["app", "main"]

# In the order of --help.
app.command(epilog="Example: staleness-audit audit runs/my-run --bound 3")(audit)
app.command(epilog="Example: staleness-audit ingest runs/my-run --tables my-tables")(ingest)
app.command(epilog="Example: staleness-audit report runs/my-run --html report.html")(report)
app.command(
    epilog="Example: staleness-audit explain runs/my-run g7/0    or    staleness-audit explain runs/my-run --worst"
)(explain)
app.command(epilog="Example: staleness-audit compare runs/before runs/after --bound 3")(compare)
app.command(epilog="Example: staleness-audit verify audit.json runs/my-run")(verify)
app.command(epilog='Example: staleness-audit sql runs/my-run "SELECT step, count(*) FROM uses GROUP BY step"')(sql)
app.command(epilog="Example: staleness-audit export runs/my-run --format perfetto --output trace.json.gz")(export)
app.command(epilog="Example: staleness-audit watch runs/my-run --bound 3 --exec 'notify-send staleness'")(watch)
app.command(epilog="Example: staleness-audit frameworks slime")(frameworks)
app.command(epilog="Example: staleness-audit prove trl --bound 1")(prove)
app.command(
    epilog="Example: staleness-audit simulate areal --bound 2 --workload lognormal:sigma=1.2,group=4 --out run --audit"
)(simulate)
app.command(epilog="Example: staleness-audit sweep deadline verl:drop areal --bounds 1,2,4 --out sweep")(sweep)


def main() -> None:
    """Entry point: every failure ends with one sentence and exit code 2, so that none can be taken for a verdict.

    ``STALENESS_AUDIT_TRACEBACK=1`` shows where an unexpected error comes from.
    """
    seldom_collect()
    # What libraries warn their callers of is none of the user's business.
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", BrokenPlugin)
    warnings.showwarning = show_warning
    for stream in (sys.stdout, sys.stderr):
        # Logs may hold characters that the terminal's encoding lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except Exception as error:
        if os.environ.get("STALENESS_AUDIT_TRACEBACK"):
            raise
        what = (
            f"{error.strerror}: {error.filename}"
            if isinstance(error, OSError) and error.filename
            else f"{type(error).__name__}: {error}"
        )
        complain(
            f"unexpected, so there is no verdict: {what} (STALENESS_AUDIT_TRACEBACK=1 shows where; please report it)."
        )
        sys.exit(EXIT_USAGE)

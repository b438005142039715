"""Reading a run into event tables with so many processes: what two of them gain over one."""

import sys
from pathlib import Path

from staleness_audit import plugins
from staleness_audit.discovery import discover
from staleness_audit.ingest import ingest

if __name__ == "__main__":  # the processes that it starts import this file
    folder, framework, tables, workers = sys.argv[1:]
    run = discover(Path(folder))
    ingest(run, plugins.choose(run, framework), Path(tables), workers=int(workers))

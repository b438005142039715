"""Reading a run into event tables with so many processes: what two of them gain over one.

Beside the tables it leaves, as ``TABLES.read``, how many seconds units were read for.
"""

import sys
import time
from pathlib import Path

from staleness_audit import plugins
from staleness_audit.discovery import discover
from staleness_audit.ingest import ingest
from staleness_audit.limits import seldom_collect

if __name__ == "__main__":  # the processes that it starts import this file
    folder, framework, tables, workers = sys.argv[1:]
    seldom_collect()  # as the command line does
    run = discover(Path(folder))
    choice = plugins.choose(run, framework)
    moments = [time.perf_counter()]
    ingest(
        run,
        choice,
        Path(tables),
        workers=int(workers),
        progress=lambda *_: moments.append(time.perf_counter()),
    )
    Path(tables + ".read").write_text(str(moments[-1] - moments[0]))

"""Reading a log into event tables, without rebuilding or judging: what the two list scripts are to be compared with."""

import sys
from pathlib import Path

from staleness_parsers.events import PARSER

from staleness_audit import plugins
from staleness_audit.discovery import discover
from staleness_audit.ingest import ingest

run = discover(Path(sys.argv[1]))
dataset = ingest(run, plugins.choose(run, among={"events": PARSER}), Path(sys.argv[2]))
print(len(dataset.parts("spans")))

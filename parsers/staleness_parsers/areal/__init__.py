"""AReaL: trajectory dumps, console task lines, session records, the trainer's spans, and statistics per step.

Versions. The rollout engine counts from 0 (initial weights) and is set to s + 1 after the weights of step s were
pushed; step s (``global_step``) trains on version s: ``v_train = s``, and ``v_gen`` is the version stamped on the
token, without conversion. The console prints step s as ``Train step s+1``. A step is one version, whatever its
number of minibatches.

Off by one: up to v2.0.0, and in the v2 controller, the stamp is taken after the answer came back, so tokens of a sample
that lived through an update may be one version older than told; those of a request that was sent again may be one
newer (guide section 3). ``proximal`` staleness is one lower than ours until PR #1736. ``head_version`` -1 and the tail
up to v1.0.4 speak of the whole padded group.

Bound and guarantee. ``max_head_offpolicyness`` (eta) counts versions and is the bound as it is. Strict for eta = 0 with
a quota equal to the batch, where no admitted task is left over, and where PR #1722 masks older tokens; else there is no
limit: admission counts tasks and not their age. ``card`` says it mode by mode.

No file says which step trained a trajectory: batches are put together again from the times of starts and results
(``replay``), checked against the sequences and tokens that the step counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import orjson
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Detection, RunFacts, Sink, Staged, Unit
from staleness_audit.readers.config import UnreadableConfig, read_config
from staleness_audit.readers.scalars import scalar_pieces
from staleness_parsers.areal.card import CARD
from staleness_parsers.areal.console import BEGINS, read_console, read_retries
from staleness_parsers.areal.files import survey, tells_staleness
from staleness_parsers.areal.finish import finish_run
from staleness_parsers.areal.records import read_dumps, read_perf, read_sessions
from staleness_parsers.areal.scalars import read_events

DUMPS_PER_UNIT = 256
CONSOLE_BYTES = 8 << 20
"""Of a piece of the console, at most: a watch reads the last one again at each look."""


class AReaL:
    """The plug-in; see the module's docstring and ``staleness_audit.parser.Parser``."""

    name = "areal"
    version = "1"
    card = CARD
    writes_blocks = True

    def detect(self, run: RunFiles) -> Detection | None:
        """Recognise dumps, tracer folders, the console, the configuration with its knob, or the statistics alone."""
        files = survey(run)
        evidence = []
        if files.config:
            evidence.append(f"{files.config.source}: a configuration with rollout.max_head_offpolicyness")
        for group in files.dumps.values():
            if b'"sample_idx"' in run.head(group[0].source, 1 << 12):
                evidence.append(f"{group[0].source}: a trajectory dump in a folder named by its newest version")
                break
        if files.old_dumps:
            evidence.append(f"{files.old_dumps[0].source}: a text dump in a folder named by its first version")
        if files.sessions:
            evidence.append(f"{files.sessions[0].source}: session records")
        if files.perf and b"train." in run.head(files.perf[0].source, 1 << 16):
            evidence.append(f"{files.perf[0].source}: the trainer's spans")
        if files.console:
            evidence.append(f"{files.console.source}: a log of the trainer")
        if not evidence and (told := next((file for file in files.events if tells_staleness(run, file)), None)):
            evidence.append(f"{told.source}: the trainer's statistics of versions")
        return Detection(tuple(evidence)) if evidence else None

    def plan(self, run: RunFiles) -> Iterator[Unit]:
        """One unit per configuration, piece of a log, event file or JSON-lines file, and few hundred dumps."""
        files = survey(run)
        if files.config:
            yield Unit("config", (run.whole(files.config.source),))
        if files.console:
            pieces = run.split(files.console.source, CONSOLE_BYTES, begins=BEGINS)
            yield from (Unit("console", (piece,)) for piece in pieces)
        if files.workers and files.workers != files.console:
            yield from (Unit("workers", (piece,)) for piece in run.split(files.workers.source))
        yield from (Unit("events", (piece,)) for file in files.events for piece in scalar_pieces(run, file.source))
        for kind, listed in (("sessions", files.sessions), ("perf", files.perf)):
            yield from (Unit(kind, (piece,)) for file in listed for piece in run.split(file.source))
        dumps = [file for _, group in sorted(files.dumps.items()) for file in group]
        for at in range(0, len(dumps), DUMPS_PER_UNIT):
            yield Unit("dumps", tuple(run.whole(file.source) for file in dumps[at : at + DUMPS_PER_UNIT]))

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Stage what the files say; nothing here is understood without the others."""
        if unit.kind == "dumps":
            read_dumps(run, unit.pieces, sink)
            return
        for piece in unit.pieces:
            if unit.kind == "config":
                _read_config(run, piece, sink)
            elif unit.kind == "console":
                read_console(run, piece, sink)
            elif unit.kind == "workers":
                read_retries(run, piece, sink)
            elif unit.kind == "events":
                read_events(run, piece, sink)
            elif unit.kind == "sessions":
                read_sessions(run, piece, sink)
            elif unit.kind == "perf":
                read_perf(run, piece, sink)

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Join the units; point out what is there but not read."""
        files = survey(run)
        for root in files.other_roots:
            message = f"{root or '.'} holds another trial, which is not read; audit it by itself."
            sink.diagnose("warning", "several-runs", message, source=root or None)
        if files.old_dumps:
            message = "Text dumps (up to v0.5.1) name neither task nor versions; the audit rests on the other files."
            sink.diagnose("note", "text-dumps", message, source=files.old_dumps[0].source)
        if files.requests:
            message = "Request records (v0.4.0) have times of a clock of their own and are not read."
            sink.diagnose("note", "request-records", message, source=files.requests[0].source)
        found = finish_run(staged, sink, workers=files.workers is not None)
        if files.old_dumps and not files.dumps:
            return replace(found, dialect="text dumps (up to v0.5.1)")
        return found


def _read_config(run: RunFiles, piece: Piece, sink: Sink) -> None:
    try:
        document = read_config(run, piece.source)
    except UnreadableConfig as error:
        message = f"The configuration cannot be read ({error}); restore it, or give --bound."
        sink.diagnose("warning", "config-unreadable", message, source=piece.source)
        return
    row = {"source": piece.source, "document": orjson.dumps(document).decode()}
    sink.write("areal_config", pa.Table.from_pylist([row]))


PARSER = AReaL()

"""ROLL: RLVR and agentic pipelines, with their traces, dumps, pickles, console and metrics.

Versions. v{s} is what the trainer holds at the start of global step s (0-based), so a batch taken at step s has
``v_train = s``, whether or not weights were pushed. The engines hold the version of the last push: with
``model_update_frequency`` F that is ``floor(s / F) * F`` after the ``model_update`` of step s. No record carries a
version per token: of a request it is that of the last ``model_update`` that ended before the request did.

Off by ones: none for the bound, ``ceil(async_generation_ratio)``, which is ``v_train - v_gen`` itself (s - ceil(R) is
still taken). A prompt's start step bounds its versions from below: what begins in the pause before s carries s - 1.
The first step in an agent-native ``trajectory_id`` can be one too new.

Guarantee. Strict if weights are pushed at every step: nothing that began before the window is taken. With F > 1 the
window counts steps and not weights, and the true limit is ``ceil(R) + F - 1``. ``card`` says it mode by mode.
"""

from __future__ import annotations

from collections.abc import Iterator

from staleness_audit.discovery import RunFiles, bundles
from staleness_audit.parser import Detection, RunFacts, Sink, Staged, Unit
from staleness_audit.readers.scalars import scalar_pieces
from staleness_parsers.roll import console
from staleness_parsers.roll.batches import read_batches
from staleness_parsers.roll.card import CARD
from staleness_parsers.roll.files import clues, survey
from staleness_parsers.roll.finish import finish_run
from staleness_parsers.roll.settings import ASSUMPTIONS
from staleness_parsers.roll.spans import read_spans


class Roll:
    """The plug-in; see the module's docstring and ``staleness_audit.parser.Parser``."""

    name = "roll"
    version = "1"
    card = CARD
    assumptions = ASSUMPTIONS
    writes_blocks = True

    def detect(self, run: RunFiles) -> Detection | None:
        """Recognise spans, dumps, pickles, metrics or the console by ROLL's own names."""
        evidence = clues(run, survey(run))
        return Detection(tuple(evidence)) if evidence else None

    def plan(self, run: RunFiles) -> Iterator[Unit]:
        """One unit per piece of a trace file, a log or an event file and per other file; files of steps go together."""
        found = survey(run)
        yield from (Unit("spans", (piece,)) for file in found.traces for piece in run.split(file.source))
        batches = (("pickle", found.pickles), ("dump", found.dumps), ("appended", found.appended))
        for kind, files in (*batches, ("board", found.boards)):
            yield from (Unit(kind, pieces) for pieces in bundles(run.whole(file.source) for file in files))
        for file in found.consoles:
            pieces = run.split(file.source, console.PIECE_BYTES, begins=console.BEGINS)
            yield from (Unit("console", (piece,)) for piece in pieces)
        for kind, files in (("state", found.states), ("settings", found.settings)):
            yield from (Unit(kind, (run.whole(file.source),)) for file in files)
        for file in found.events:
            yield from (Unit("events", (piece,)) for piece in scalar_pieces(run, file.source, console.STEPS))

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Stage what one file says; nothing here is understood without the others."""
        if unit.kind == "spans":
            read_spans(run, unit.pieces[0], sink)
        elif unit.kind in ("pickle", "dump", "appended", "board"):
            read_batches(unit.kind, run, unit.pieces, sink)
        else:
            reader = {
                "console": console.read_console,
                "state": console.read_state,
                "events": console.read_events,
                "settings": console.read_settings,
            }[unit.kind]
            reader(run, unit.pieces[0], sink)

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Join the units (see ``finish``)."""
        return finish_run(staged, run, sink)


PARSER = Roll()

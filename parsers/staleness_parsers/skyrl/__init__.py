"""SkyRL, fully async trainer: aggregates of console text, trackers, dumped batches and checkpoints.

Versions. v{k} is the policy after k completed global steps (v0 = initial weights). The batch of step g is trained on
v{g-1} and its sync publishes v{g}: ``v_train = g - 1`` within a first launch. Across launches only up to a constant:
the checkpoint at the end of training carries the number of a step that nobody did, so a run resumed from
``global_step_{N+1}`` goes on with step N+2 on v{N} (see ``history``).

No file holds a version of a token. Reported staleness s of a group is ``g_train - g_admitted``; engines serve v{g-1}
while step g is collected, and v{g} from its sync on, a moment before the counter moves. So the oldest token of a group
is s old, or s - 1 if the group was admitted or its first token made after that sync, and never older than s: the bound
in the configuration is the bound in ``v_train - v_gen``, a report of bound + 1 proves nothing, one of bound + 2 does.
Later tokens are anything from 0 to s old. A start may have been put off further where requests wait for an engine's
slot.

Which group has which s is not recorded: each step becomes anonymous classes by rank of age (``batches``), from what all
multisets have in common that fit its mean, share, extremes, counts and warnings (``staleness_audit.solve``).

Guarantee. Strict only for a bound of 0, where a step's quota is its batch. From 1 on there is no limit: admission alone
is limited, and a group that takes long is trained in whatever step of its epoch it ends. Whole batches (one step off)
are at most 1 old. ``card`` says it mode by mode.
"""

from __future__ import annotations

from collections.abc import Iterator

from staleness_audit.discovery import RunFiles, bundles
from staleness_audit.parser import Detection, RunFacts, Sink, Staged, Unit
from staleness_audit.readers.scalars import scalar_pieces
from staleness_parsers.skyrl.card import CARD
from staleness_parsers.skyrl.console import dialect_of, read_console
from staleness_parsers.skyrl.dumps import read_checkpoint, read_dumps
from staleness_parsers.skyrl.files import survey
from staleness_parsers.skyrl.finish import ASSUMPTIONS, finish_run
from staleness_parsers.skyrl.trackers import read_tracker


class SkyRL:
    """The plug-in; see the module's docstring and ``staleness_audit.parser.Parser``."""

    name = "skyrl"
    version = "1"
    card = CARD
    assumptions = ASSUMPTIONS

    def detect(self, run: RunFiles) -> Detection | None:
        """Recognise records of the framework's modules, its own metrics, dumps or checkpoints."""
        files = survey(run)
        evidence = [f"{file.source}: console text of SkyRL's own modules" for file in files.consoles[:1]]
        evidence += [f"{file.source}: an event file with async/staleness_*" for file in files.events[:1]]
        evidence += [f"{file.source}: a W&B file with SkyRL's keys" for file in files.offline[:1]]
        evidence += [f"{file.source}: a dumped training batch" for file, _ in files.dumps[:1]]
        evidence += [f"{file.source}: a checkpoint's state" for file, _, part in files.checkpoints if "async" in part][
            :1
        ]
        heads = (run.head(file.source, 1 << 16) for file in (*files.consoles, *files.events, *files.offline))
        dialect = next((found for head in heads if (found := dialect_of(head))), None)
        return Detection(tuple(evidence), dialect=dialect) if evidence else None

    def plan(self, run: RunFiles) -> Iterator[Unit]:
        """One unit per file, for records of a log mean something only after those before them; batches go together."""
        files = survey(run)
        yield from (Unit("console", (run.whole(file.source),)) for file in files.consoles)
        for kind, listed in (("events", files.events), ("offline", files.offline)):
            yield from (Unit(kind, (piece,)) for file in listed for piece in scalar_pieces(run, file.source))
        steps = {file.source: step for file, step in files.dumps}
        for pieces in bundles(run.whole(file.source) for file, _ in files.dumps):
            yield Unit("dumps", pieces, {"steps": [steps[piece.source] for piece in pieces]})
        for file, step, _ in files.checkpoints:
            yield Unit("checkpoint", (run.whole(file.source),), {"step": step})

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Stage what one file says; nothing here is understood without the others."""
        piece = unit.pieces[0]
        if unit.kind == "console":
            read_console(run, piece, sink)
        elif unit.kind in {"events", "offline"}:
            read_tracker(run, piece, sink)
        elif unit.kind == "dumps":
            read_dumps(run, unit.pieces, unit.options["steps"], sink)
        else:
            read_checkpoint(run, piece, unit.options["step"], sink)

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Join the units (see ``finish``); point out files that belong to another run."""
        for root in survey(run).other_roots:
            message = (
                f"{root or '.'} holds files of another run of this framework, which are not read; audit it by itself."
            )
            sink.diagnose("warning", "several-runs", message, source=root or None)
        return finish_run(staged, run.assume, sink)


PARSER = SkyRL()
"""The parser as the entry point names it."""

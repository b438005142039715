"""TRL's asynchronous GRPO trainer: metrics in four places, trackio's traces, and the console.

Versions. TRL counts weight syncs: the trainer's label is 0 at construction, 1 after the sync at train begin, and grows
with the sync after every W-th optimizer step (W = ``weight_sync_steps``). DESIGN's version counts from the first policy
as v0: ``label - 1``. A resumed launch publishes its weights once more: ``label - 1 - k`` after the k-th resume where
labels go on (1.14 and later), ``label - 1 + floor(start / W)`` where they begin again at 1. Either way optimizer step
``s`` trains ``v_train = floor((s - 1) / W)``. Steps here are optimizer steps, of which W make a training step.

A row carries the label under which its *group* was admitted; its tokens are that old at most, so
``v_gen >= label``, and at most as new as the weights when the group was scored or the row was pulled.

Off by one. ``sample/staleness_max`` is taken when rows are pulled, so the record of step s speaks of the batch of step
s + 1 (fixed count, G = 1), which is trained one version later; trackio's ``step`` is no training step and minus
``model_version`` no staleness. ``max_staleness`` is the bound itself, and is exceeded by one (or two) by design.
"""

from __future__ import annotations

from collections.abc import Iterator

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.parser import Detection, RunFacts, Sink, Staged, Unit
from staleness_audit.readers.scalars import scalar_pieces
from staleness_audit.readers.sqlite import wal_of
from staleness_parsers.trl.card import CARD
from staleness_parsers.trl.console import read_console
from staleness_parsers.trl.files import clues, survey
from staleness_parsers.trl.finish import finish_run
from staleness_parsers.trl.metrics import STEPS, read_events, read_rollout_state, read_state, read_trackio


class TRL:
    """The plug-in; see the module's docstring and ``staleness_audit.parser.Parser``."""

    name = "trl"
    version = "1"
    card = CARD

    def detect(self, run: RunFiles) -> Detection | None:
        """Recognise the trainer's metrics, its console, or its arguments in trackio and event files."""
        strong, weak = clues(run, survey(run))
        return Detection(tuple(strong + weak), strong=bool(strong)) if strong or weak else None

    def plan(self, run: RunFiles) -> Iterator[Unit]:
        """One unit per file and piece of a log or event file; a database and its write-ahead log are one."""
        files = survey(run)
        yield from (Unit("state", (run.whole(file.source),)) for file, _ in files.states)
        yield from (Unit("rollout", (run.whole(file.source),), {"step": step}) for file, step in files.rollouts)
        for file in files.events:
            yield from (Unit("events", (piece,)) for piece in scalar_pieces(run, file.source, STEPS))
        for file in files.databases:
            yield Unit("trackio", tuple(run.whole(one.source) for one in _with_wal(run, file)))
        yield from (Unit("console", (piece,)) for file in files.consoles for piece in run.split(file.source))

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Stage what one file says; nothing here is understood without the others."""
        piece = unit.pieces[0]
        if unit.kind == "state":
            read_state(run, piece, sink)
        elif unit.kind == "rollout":
            read_rollout_state(run, piece, unit.options["step"], sink)
        elif unit.kind == "events":
            read_events(run, piece, sink)
        elif unit.kind == "trackio":
            read_trackio(run, piece, sink)
        else:
            read_console(run, piece, sink)

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Join the units (see ``finish``); point out what is not read."""
        files = survey(run)
        for root in files.other_roots:
            sink.diagnose(
                "warning",
                "several-runs",
                f"{root or '.'} holds the checkpoints of another run, which are not read; audit it by itself.",
                source=root or None,
            )
        if files.wandb:
            sink.diagnose(
                "note",
                "wandb-not-read",
                "The W&B file is not read, as TensorBoard holds the same numbers.",
            )
        checkpoints = {step for _, step in files.states if step is not None} | {step for _, step in files.rollouts}
        return finish_run(staged, sink, checkpoints)


def _with_wal(run: RunFiles, file: RunFile) -> list[RunFile]:
    wal = wal_of(run, file)
    return [file, wal] if wal else [file]


PARSER = TRL()

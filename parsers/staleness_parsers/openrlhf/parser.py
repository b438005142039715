"""The plug-in: which files are read, and how."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.parser import Detection, RunFacts, Sink, Staged, Unit
from staleness_audit.readers.config import UnreadableConfig, as_json, read_config
from staleness_audit.readers.scalars import scalar_files, scalar_pieces
from staleness_parsers.openrlhf.card import CARD
from staleness_parsers.openrlhf.console import read_console
from staleness_parsers.openrlhf.finish import finish_run
from staleness_parsers.openrlhf.scalars import STEPS, read_event_file
from staleness_parsers.openrlhf.settings import command_line, from_document

HEAD_BYTES: Final = 128 << 10
_TEXTS: Final = (".log", ".out", ".err", ".txt")
_NAMES: Final = ("console", "stdout", "stderr", "nohup", "output")
_CONSOLE_MARKS: Final = (
    b"ppo_trainer_async.py",
    b"PPOTrainerAsync",
    b"GenerateSamplesActor",
    b"openrlhf.cli.train_ppo_ray",
)
_WEAK_CONSOLE_MARKS: Final = ("🚀 Starting experience making with".encode(), b"ppo_trainer.py:")
_EVENT_MARKS: Final = (b"train/timing/make_experience", b"train/rollout/num_samples")
_WEAK_EVENT_MARKS: Final = (b"train/actor_grad_norm", b"train/actor_lr")


class OpenRLHF:
    """See the package's docstring and ``staleness_audit.parser.Parser``."""

    name = "openrlhf"
    version = "1"
    card = CARD

    def detect(self, run: RunFiles) -> Detection | None:
        """Recognise the names of OpenRLHF's actors and source files in logs, or its timings in event files."""
        strong, weak = [], []
        scalars = scalar_files(run)
        for file in [*_consoles(run), *scalars]:
            head = run.head(file.source, HEAD_BYTES)
            events = file in scalars
            if any(mark in head for mark in (_EVENT_MARKS if events else _CONSOLE_MARKS)):
                what = "scalars of OpenRLHF's steps" if events else "lines of OpenRLHF's actors"
                strong.append(f"{file.source}: {what}")
            elif all(mark in head for mark in (_WEAK_EVENT_MARKS if events else _WEAK_CONSOLE_MARKS)):
                weak.append(f"{file.source}: {'scalars' if events else 'lines'} as OpenRLHF writes them")
        if strong:
            return Detection(tuple(strong))
        return Detection(tuple(weak), strong=False) if weak else None

    def plan(self, run: RunFiles) -> Iterator[Unit]:
        """One unit per piece of a console log, per event file and per file of settings."""
        yield from (Unit("console", (piece,)) for file in _consoles(run) for piece in run.split(file.source))
        for file in scalar_files(run):
            yield from (Unit("events", (piece,)) for piece in scalar_pieces(run, file.source, STEPS))
        yield from (Unit("settings", (run.whole(file.source),)) for file in _settings_files(run))

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Stage what one file says; nothing is understood without the others."""
        if unit.kind == "console":
            read_console(unit, run, sink)
        elif unit.kind == "events":
            read_event_file(unit, run, sink)
        else:
            _read_settings(run, unit.pieces[0].source, sink)

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Join the files, replay the two clocks, and write the rows."""
        return finish_run(staged, sink)


def _consoles(run: RunFiles) -> list[RunFile]:
    return [
        file for file in run.files if file.name.endswith(_TEXTS) or file.name.rsplit("/", 1)[-1].split(".")[0] in _NAMES
    ]


def _settings_files(run: RunFiles) -> list[RunFile]:
    return [*run.match("*.sh"), *run.match("files/config.yaml"), *run.match("wandb-metadata.json")]


def _read_settings(run: RunFiles, source: str, sink: Sink) -> None:
    try:
        if run.file(source).name.endswith(".sh"):
            flags = command_line(run.head(source, 1 << 20).decode("utf-8", "replace").replace("\\\n", " "))
        else:
            flags = from_document(read_config(run, source))
    except UnreadableConfig as error:
        message = f"The settings cannot be read ({error}); what they would say is taken as unknown."
        sink.diagnose("warning", "settings-unreadable", message, source=source)
        return
    if flags:
        row = {"source": source, "text": as_json(flags)}
        sink.write("openrlhf_settings", pl.DataFrame([row], schema={"source": pl.String, "text": pl.String}))

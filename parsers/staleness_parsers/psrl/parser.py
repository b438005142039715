"""The plug-in: which files are read, and how."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from staleness_audit.discovery import Piece, RunFile, RunFiles
from staleness_audit.parser import Detection, RunFacts, Sink, Staged, Unit
from staleness_parsers.psrl import components, dumps, gateway, settings
from staleness_parsers.psrl.card import CARD
from staleness_parsers.psrl.finish import finish_run

STEP_FILE: Final = re.compile(r"(?:^|/)(\d{1,9})\.jsonl$")
TEXT_FILE: Final = re.compile(r"(?:^|/)v(\d{1,9})/(\d{1,18})(?:_(\d{1,9}))?\.txt$")
TRAJECTORY_MARK: Final = b"=== "
_VALIDATION: Final = re.compile(r"(?:^|[_.-])val(?:idation)?(?:[_.-]|$)")
_CONSOLES: Final = (".log", ".out", ".err")


class Psrl:
    """See the package's docstring and ``staleness_audit.parser.Parser``."""

    name = "psrl"
    version = "1"
    card = CARD
    writes_blocks = True

    def detect(self, run: RunFiles) -> Detection | None:
        """Recognise the gateway's trace, PSRL's own components, or its group of settings."""
        clues = [f"{file.source}: trace of PSRL's gateway" for file in run.match("route_trace.log")]
        for name in ("RequestStatusTracker.log", "AgentLoopManager.log"):
            clues += [f"{file.source}: log of a PSRL component" for file in run.match(name)]
        for file in _configs(run):
            if b"staleness_buffer_entries" in run.head(file.source, 1 << 18):
                clues.append(f"{file.source}: the group psrl of the settings")
        for file in _consoles(run):
            if re.search(rb"\b(?:RequestStatusTracker|AgentLoopManager) - ", run.head(file.source, 1 << 16)):
                clues.append(f"{file.source}: lines of PSRL's components")
        return Detection(tuple(clues)) if clues else None

    def plan(self, run: RunFiles) -> Iterator[Unit]:
        """One unit per piece of a log or dump; the texts of trajectories go by folder."""
        yield from (Unit("settings", (run.whole(file.source),)) for file in _configs(run))
        logs = {"route": run.match("route_trace.log"), "component": components.files(run), "console": _consoles(run)}
        for kind, files in logs.items():
            yield from (Unit(kind, (piece,)) for file in files for piece in run.split(file.source))
        for file, step in _dumps(run):
            yield Unit("rollouts", (run.whole(file.source),), {"step": step})
        folders: dict[str, list[Piece]] = defaultdict(list)
        for file in _texts(run):
            folders[file.name.rsplit("/", 1)[0]].append(run.whole(file.source))
        yield from (Unit("texts", tuple(pieces)) for pieces in folders.values())

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Stage what one unit says; nothing is understood without the others."""
        piece = unit.pieces[0]
        if unit.kind == "settings":
            settings.stage(run, piece.source, sink)
        elif unit.kind == "route":
            gateway.stage(run, piece, sink)
        elif unit.kind in ("component", "console"):
            components.stage(run, piece, sink, console=unit.kind == "console")
        elif unit.kind == "rollouts":
            dumps.stage_rollouts(run, piece, int(unit.options["step"]), sink)
        else:
            dumps.stage_texts(run, unit.pieces, TEXT_FILE, sink)

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Join the files and write the rows."""
        return finish_run(staged, sink)


def _configs(run: RunFiles) -> list[RunFile]:
    return [*run.match(".hydra/config.yaml"), *run.match("stats_config.json")]


def _consoles(run: RunFiles) -> list[RunFile]:
    known = {file.source for file in [*components.files(run), *run.match("route_trace.log")]}
    return [file for file in run.files if file.name.endswith(_CONSOLES) and file.source not in known]


def _dumps(run: RunFiles) -> list[tuple[RunFile, int]]:
    """``<step>.jsonl`` next to at least one such file that begins like a generation (validation dumps look alike)."""
    found = [(file, int(match[1])) for file in run.files if (match := STEP_FILE.search(file.name))]
    training = {
        file.name.rpartition("/")[0]
        for file, _ in found
        if re.match(rb'\s*\{"input": ?"', run.head(file.source, 64))
        and not _VALIDATION.search(file.name.rpartition("/")[0].rpartition("/")[2])
    }
    chosen = [(file, step) for file, step in found if file.name.rpartition("/")[0] in training]
    return sorted(chosen, key=lambda entry: (entry[1], entry[0].source))


def _texts(run: RunFiles) -> list[RunFile]:
    return [file for file in run.files if TEXT_FILE.search(file.name)]


PARSER = Psrl()

"""Which files of a directory are verl's, and how they are told (guide section 5).

Everything here goes by names and first bytes, and is importable: parsers of frameworks that stand on verl (PSRL) find
the same files with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.readers.scalars import scalar_files

HEAD_BYTES: Final = 1 << 16
_STEP_FILE: Final = re.compile(r"(?:^|/)(\d{1,9})\.jsonl$")
_CHECKPOINT: Final = re.compile(r"(?:^|/)global_step_(\d{1,9})/transfer_queue/controller_state\.pkl$")
_TQ_BATCH: Final = re.compile(r"(?:^|/)(\d{1,9})/(\d{1,9})/tq_batch\.pt$")
_GROUP: Final = re.compile(r"(?:^|/)(\d{1,9})/gen_batch\.dp$")
_ROLLOUT_LINE: Final = re.compile(rb'\s*\{"input": ?"')
_METRICS_LINE: Final = re.compile(rb'\s*\{"step": ?-?\d+, ?"data": ?\{')
METRIC_MARKS: Final = (b'"training/global_step"', b'"fully_async/', b'"training/off_policy/')
CONSOLE_MARKS: Final = (b"(TaskRunnerV1 ", b"(FullyAsync", b"(OneStep", b" - training/global_step:", b"[FullyAsync")
_FOREIGN: Final = (".json", ".yaml", ".yml", ".pkl", ".pt", ".dp", ".parquet", ".safetensors", ".bin", ".wandb")


@dataclass(frozen=True)
class StepFile:
    """A file of one step: ``number`` is the step in its name, ``part`` the mini-batch where there is one."""

    file: RunFile
    number: int
    part: int | None = None


@dataclass
class Survey:
    """The files of a run by kind, each in natural order."""

    configs: list[RunFile] = field(default_factory=list)
    consoles: list[RunFile] = field(default_factory=list)
    metrics: list[RunFile] = field(default_factory=list)
    events: list[RunFile] = field(default_factory=list)
    rollouts: list[StepFile] = field(default_factory=list)
    checkpoints: list[StepFile] = field(default_factory=list)
    batches: list[StepFile] = field(default_factory=list)
    groups: list[StepFile] = field(default_factory=list)
    unreadable: list[RunFile] = field(default_factory=list)


def survey(run: RunFiles) -> Survey:
    """Sort the files of a run; foreign ones are left out. Copies left by an interrupted save are not looked at."""
    found = Survey(events=scalar_files(run))
    doubtful: list[RunFile] = []
    for file in run.files:
        if not _by_name(file, found) and not _by_content(run, file, found):
            doubtful.append(file)
    folders = {_folder(entry.file.name) for entry in found.rollouts}
    for file in doubtful:
        if (match := _STEP_FILE.search(file.name)) and _folder(file.name) in folders:
            # Empty, or unreadable from its first byte: what it is, its neighbours tell.
            found.rollouts.append(StepFile(file, int(match[1])))
        elif file.name.endswith((".jsonl", ".log", ".txt", ".out")) and run.unreadable(file.source):
            found.unreadable.append(file)
    for files in (found.rollouts, found.checkpoints, found.batches, found.groups):
        files.sort(key=lambda entry: (entry.number, entry.part or 0, entry.file.source))
    return found


def _folder(name: str) -> str:
    return name.rsplit("/", 1)[0] if "/" in name else ""


def _by_name(file: RunFile, found: Survey) -> bool:
    for pattern, files in ((_CHECKPOINT, found.checkpoints), (_TQ_BATCH, found.batches), (_GROUP, found.groups)):
        if match := pattern.search(file.name):
            part = int(match[2]) if match.lastindex == 2 else None
            files.append(StepFile(file, int(match[1]), part))
            return True
    if f"/{file.name}".endswith("/.hydra/config.yaml"):
        found.configs.append(file)
    else:
        return file.name.endswith(_FOREIGN) or file in found.events or "/.hydra/" in f"/{file.name}"
    return True


def _by_content(run: RunFiles, file: RunFile, found: Survey) -> bool:
    match = _STEP_FILE.search(file.name)
    if match and is_rollout_dump(run, file.source):
        found.rollouts.append(StepFile(file, int(match[1])))
    elif file.name.endswith(".jsonl") and is_metrics(run, file.source):
        found.metrics.append(file)
    elif not file.name.endswith(".jsonl") and is_console(run, file.source):
        found.consoles.append(file)
    else:
        return False
    return True


def is_rollout_dump(run: RunFiles, source: str) -> bool:
    """Whether a file ``<step>.jsonl`` begins like verl's rollout dump (V1 adds ``uid``, fully async ``request_id``)."""
    return _has_line(run, source, _ROLLOUT_LINE)


def is_metrics(run: RunFiles, source: str) -> bool:
    """Whether a file begins like verl's file logger: lines of ``{"step": .., "data": {..}}``."""
    return _has_line(run, source, _METRICS_LINE)


def _has_line(run: RunFiles, source: str, beginning: re.Pattern[bytes]) -> bool:
    """Whether some line begins so; looking for it everywhere would cost by the byte, in each file of any framework."""
    return any(beginning.match(line) for line in run.head(source, HEAD_BYTES).split(b"\n"))


def is_console(run: RunFiles, source: str) -> bool:
    """Whether verl's actors or its console logger speak in the beginning of a text file."""
    head = run.head(source, HEAD_BYTES)
    return b"\0" not in head[:1024] and any(mark in head for mark in CONSOLE_MARKS)

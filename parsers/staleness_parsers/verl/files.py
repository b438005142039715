"""Which files of a directory are verl's, and how they are told (guide section 5).

Everything here goes by names and first bytes, and is importable: parsers of frameworks that stand on verl (PSRL) find
the same files with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from staleness_audit.discovery import RunFile, RunFiles

HEAD_BYTES: Final = 1 << 16
_STEP_FILE: Final = re.compile(r"(?:^|/)(\d+)\.jsonl$")
_CHECKPOINT: Final = re.compile(r"(?:^|/)global_step_(\d+)/transfer_queue/controller_state\.pkl$")
_TQ_BATCH: Final = re.compile(r"(?:^|/)(\d+)/(\d+)/tq_batch\.pt$")
_GROUP: Final = re.compile(r"(?:^|/)(\d+)/gen_batch\.dp$")
_ROLLOUT_KEYS: Final = (b'"input"', b'"output"', b'"step"')
METRIC_MARKS: Final = (b'"training/global_step"', b'"fully_async/', b'"training/off_policy/')
CONSOLE_MARKS: Final = (b"(TaskRunnerV1 ", b"(FullyAsync", b"(OneStep", b" - training/global_step:", b"[FullyAsync")
_NOT_CONSOLES: Final = (".jsonl", ".json", ".yaml", ".yml", ".pkl", ".pt", ".dp", ".parquet", ".safetensors", ".bin")


@dataclass(frozen=True)
class StepFile:
    """A file that belongs to one step: ``number`` is the step in its name, ``part`` the mini-batch where there is one."""

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


def survey(run: RunFiles) -> Survey:
    """Sort the files of a run; foreign ones are left out. Copies left by an interrupted save are not looked at."""
    found = Survey()
    for file in run.files:
        _place(run, file, found)
    for files in (found.rollouts, found.checkpoints, found.batches, found.groups):
        files.sort(key=lambda entry: (entry.number, entry.part or 0, entry.file.source))
    return found


def _place(run: RunFiles, file: RunFile, found: Survey) -> None:
    name = file.name
    for pattern, files in ((_CHECKPOINT, found.checkpoints), (_TQ_BATCH, found.batches), (_GROUP, found.groups)):
        if match := pattern.search(name):
            part = int(match[2]) if match.lastindex == 2 else None
            files.append(StepFile(file, int(match[1]), part))
            return
    if name.endswith(".hydra/config.yaml"):
        found.configs.append(file)
    elif name.rsplit("/", 1)[-1].startswith("events.out.tfevents."):
        found.events.append(file)
    elif match := _STEP_FILE.search(name):
        # An empty one is a dump that a crash left unwritten; what it is, its neighbours tell.
        if not file.bytes or is_rollout_dump(run, file.source):
            found.rollouts.append(StepFile(file, int(match[1])))
    elif name.endswith(".jsonl"):
        if is_metrics(run, file.source):
            found.metrics.append(file)
    elif not name.endswith(_NOT_CONSOLES) and "/.hydra/" not in f"/{name}" and is_console(run, file.source):
        found.consoles.append(file)


def is_rollout_dump(run: RunFiles, source: str) -> bool:
    """Whether a file ``<step>.jsonl`` begins like verl's rollout dump (V1 adds ``uid``, fully async ``request_id``)."""
    head = run.head(source, HEAD_BYTES).lstrip()
    return head.startswith(b'{"input"') and (b"\n" not in head or all(key in head for key in _ROLLOUT_KEYS))


def is_metrics(run: RunFiles, source: str) -> bool:
    """Whether a file begins like verl's file logger: lines of ``{"step": .., "data": {..}}``."""
    head = run.head(source, HEAD_BYTES)
    return head.lstrip().startswith(b'{"step"') and b'"data"' in head[:64]


def is_console(run: RunFiles, source: str) -> bool:
    """Whether verl's actors or its console logger speak in the beginning of a text file."""
    head = run.head(source, 1 << 20)
    return b"\0" not in head[:1024] and any(mark in head for mark in CONSOLE_MARKS)

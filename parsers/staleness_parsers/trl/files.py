"""Which files of a run this format knows (guide section 5)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.readers.scalars import scalar_files
from staleness_audit.readers.sqlite import MAGIC

_STATE = re.compile(r"(?P<root>(?:.*?/)??)(?:checkpoint-(?P<step>\d{1,9})/)?trainer_state\.json")
_ROLLOUT = re.compile(r"(?P<root>(?:.*/)?)checkpoint-(?P<step>\d{1,9})/rollout_state\.json")
_DATABASE = re.compile(r"(?:.*/)?[^/]+\.(?:db|sqlite3?)")
_CONSOLE = re.compile(r"(?:.*/)?[^/]*(?:\.(?:log|txt|out|err|stdout|stderr)|log|stdout|stderr|nohup)(?:\.\d+)?")

HEAD_BYTES = 1 << 18
CONSOLE_MARKS = (
    b"trl.experimental.async_grpo",
    b"AsyncRolloutWorker",
    b"dropping stale sample (staleness=",
    b"'sample/staleness_max':",
    b"'batch/samples_per_step':",
    b"'queue_wait_time_s':",
    b"Weight sync: pausing vLLM",
)
STATE_MARKS = (b'"sample/staleness_max"', b'"batch/samples_per_step"', b'"queue_wait_time_s"', b'"weight_sync_time_s"')
CONFIG_MARKS = (b'"weight_sync_steps"', b'"max_staleness"')
ROW_MARKS = (b'"train/sample/staleness_max"', b'"train/queue_wait_time_s"', b'"model_version"')


@dataclass(frozen=True)
class Files:
    """The files of one run. ``states`` and ``rollouts`` carry the step of their checkpoint (None = beside them)."""

    states: tuple[tuple[RunFile, int | None], ...]
    rollouts: tuple[tuple[RunFile, int], ...]
    events: tuple[RunFile, ...]
    databases: tuple[RunFile, ...]
    consoles: tuple[RunFile, ...]
    other_roots: tuple[str, ...] = ()
    wandb: bool = False


def survey(run: RunFiles) -> Files:
    """Sort the files of a directory by what they are.

    Of several output directories with checkpoints the first is read, the others are returned for a diagnostic.
    """
    # Where a file lies beside its compressed copy, one of them is enough.
    files = list({file.name: file for file in sorted(run.files, key=lambda file: not file.compressed)}.values())
    scalars = scalar_files(run)
    states = [(file, found) for file in files if (found := _STATE.fullmatch(file.name))]
    states = [(file, found) for file, found in states if _marked(run, file, STATE_MARKS)]
    roots = sorted({found["root"] for _, found in states})
    root = roots[0] if roots else None
    rollouts = [(file, found) for file in files if (found := _ROLLOUT.fullmatch(file.name))]
    return Files(
        tuple((file, int(found["step"]) if found["step"] else None) for file, found in states if found["root"] == root),
        tuple((file, int(found["step"])) for file, found in rollouts if root in (None, found["root"])),
        tuple(scalars),
        tuple(file for file in files if _DATABASE.fullmatch(file.name) and run.head(file.source, 16).startswith(MAGIC)),
        tuple(file for file in files if _CONSOLE.fullmatch(file.name) and _marked(run, file, CONSOLE_MARKS)),
        tuple(roots[1:]),
        any(file.name.endswith(".wandb") for file in files if file not in scalars),
    )


def _marked(run: RunFiles, file: RunFile, marks: tuple[bytes, ...]) -> bool:
    # Of a damaged compressed file nothing may be left to recognise; reading it says so.
    return _shows(run, file, marks) or (file.compressed and not run.head(file.source, HEAD_BYTES))


def _shows(run: RunFiles, file: RunFile, marks: tuple[bytes, ...]) -> bool:
    head = run.head(file.source, HEAD_BYTES)
    return any(mark in head for mark in marks)


def clues(run: RunFiles, files: Files) -> tuple[list[str], list[str]]:
    """Sentences for what only this framework writes, and for what others could write as well."""
    states = [file for file, _ in files.states if run.head(file.source, 16)]
    strong = [f"{file.source}: metrics of TRL's asynchronous GRPO trainer" for file in states[:1]]
    consoles = [file for file in files.consoles if _shows(run, file, CONSOLE_MARKS)]
    strong += [f"{file.source}: a console log of the trainer" for file in consoles[:1]]
    for file in files.databases:
        if _has(run.head(file.source, 1 << 22), CONFIG_MARKS, ROW_MARKS):
            strong.append(f"{file.source}: a trackio database with the trainer's settings or rows")
            break
    for file in files.events:
        # W&B keeps the names of the arguments bare.
        if all(mark.strip(b'"') in run.head(file.source, HEAD_BYTES) for mark in CONFIG_MARKS):
            strong.append(f"{file.source}: a tracker's file with the trainer's arguments")
            break
    weak = [f"{file.source}: a checkpoint's rollout_state.json" for file, _ in files.rollouts[:1]]
    return strong, weak


def _has(data: bytes, everything: tuple[bytes, ...], something: tuple[bytes, ...]) -> bool:
    return all(mark in data for mark in everything) or any(mark in data for mark in something)

"""Which files of a run this format knows, and where they stand (guide section 5)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from staleness_audit.discovery import RunFile, RunFiles

TRACE_FILE = re.compile(
    r"(?P<root>(?:.*/)?)rollouts/step_(?P<step>\d{1,9})/(?P<role>train|eval)/(?P<part>all|effective)/traces\.jsonl"
)
ROLLOUT_FILE = re.compile(r"(?P<root>(?:.*/)?)rollouts/step_(?P<step>\d{1,9})/train_rollouts\.jsonl")
BATCH_FILE = re.compile(r"(?P<root>(?:.*/)?)rollouts/step_(?P<step>\d{1,9})/(?:rank_(?P<rank>\d{1,6})|rollouts)\.bin")
LOG_FILE = re.compile(
    r"(?P<root>(?:.*?/)??)(?:logs/)?(?:attempt_(?P<attempt>\d{1,9})/)?(?P<process>orchestrator|trainer)\.(?:log|stdout)"
)
METRICS_FILE = re.compile(r"(?P<root>(?:.*/)?)metrics\.jsonl")
CONFIG_FILES = (
    (re.compile(r"(?P<root>(?:.*/)?)configs/orchestrator\.json"), "json"),
    (re.compile(r"(?P<root>(?:.*/)?)(?:configs/)?rl\.json"), "json"),
    (re.compile(r"(?P<root>(?:.*/)?)control/orch\.toml"), "toml"),
    (re.compile(r"(?P<root>(?:.*/)?)orchestrator\.json"), "json"),
)
"""Best first: resolved values of the run, the launcher's copy, the copy of v0.8.0, one that was moved."""


@dataclass(frozen=True)
class TraceFile:
    """A file of traces or rollouts.

    ``part`` is ``all`` (arrived while ``step`` was collected) or ``effective``
    (shipped as batch ``step``); ``form`` is ``traces`` or ``rollouts`` (v0.6.0: whole batch with filter marks).
    """

    file: RunFile
    root: str
    step: int
    role: Literal["train", "eval"]
    part: Literal["all", "effective"]
    form: Literal["traces", "rollouts"]


@dataclass(frozen=True)
class LogFile:
    """A console log; ``attempt`` is the number of its folder (None: older layout without attempt folders)."""

    file: RunFile
    root: str
    process: Literal["orchestrator", "trainer"]
    attempt: int | None


@dataclass(frozen=True)
class Files:
    """The files of one run of this framework."""

    traces: tuple[TraceFile, ...]
    batches: tuple[tuple[RunFile, int, int | None], ...]
    logs: tuple[LogFile, ...]
    metrics: tuple[RunFile, ...]
    offline: tuple[RunFile, ...]
    config: tuple[RunFile, str] | None
    other_roots: tuple[str, ...] = ()


def survey(run: RunFiles) -> Files:
    """Sort the files of a directory by what they are.

    A directory that holds several runs is read as its first; the roots of the others are returned for a diagnostic.
    """
    # Where a file lies beside its compressed copy, one of them is enough.
    files = list({file.name: file for file in sorted(run.files, key=lambda file: not file.compressed)}.values())
    traces = [entry for entry in map(trace_file, files) if entry]
    logs = [entry for entry in map(_log_file, files) if entry]
    roots = sorted({entry.root for entry in traces}) or sorted({entry.root for entry in logs})
    root = roots[0] if roots else ""
    batches = [
        (file, int(found["step"]), int(found["rank"]) if found["rank"] else None)
        for file in files
        if (found := BATCH_FILE.fullmatch(file.name)) and (found["root"] == root or not roots)
    ]
    metrics = [file for file in files if (found := METRICS_FILE.fullmatch(file.name)) and found["root"] == root]
    # W&B is given the same rows as the file monitor.
    offline = [] if metrics else [file for file in files if file.name.endswith(".wandb") and file.name.startswith(root)]
    return Files(
        tuple(entry for entry in traces if entry.root == root),
        tuple(batches),
        tuple(entry for entry in logs if entry.root == root),
        tuple(metrics),
        tuple(offline),
        _config(files, root),
        tuple(roots[1:]),
    )


ATTEMPT_FOLDER = re.compile(r"(?:.*/)?attempt_\d{1,9}")
"""Folder of one launch's logs."""


def trace_file(file: RunFile) -> TraceFile | None:
    """Tell from its path what a file of traces holds; None for any other file."""
    if found := TRACE_FILE.fullmatch(file.name):
        role: Literal["train", "eval"] = "train" if found["role"] == "train" else "eval"
        part: Literal["all", "effective"] = "all" if found["part"] == "all" else "effective"
        return TraceFile(file, found["root"], int(found["step"]), role, part, "traces")
    if found := ROLLOUT_FILE.fullmatch(file.name):
        return TraceFile(file, found["root"], int(found["step"]), "train", "effective", "rollouts")
    return None


def _log_file(file: RunFile) -> LogFile | None:
    found = LOG_FILE.fullmatch(file.name)
    # `logs/latest` is a link to the newest attempt; a copy that followed links would show that attempt twice.
    if not found or "latest" in file.name.split("/"):
        return None
    process: Literal["orchestrator", "trainer"] = "orchestrator" if found["process"] == "orchestrator" else "trainer"
    return LogFile(file, found["root"], process, int(found["attempt"]) if found["attempt"] else None)


def _config(files: list[RunFile], root: str) -> tuple[RunFile, str] | None:
    for pattern, syntax in CONFIG_FILES:
        for file in files:
            if (found := pattern.fullmatch(file.name)) and found["root"] == root:
                return file, syntax
    return None

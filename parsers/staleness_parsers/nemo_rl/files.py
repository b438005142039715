"""Which files of a run belong to NeMo-RL, and what their paths say (guide section 5).

Each restart logs to an ``exp_NNN`` folder of its own; the console is kept by the user (``tee``, Slurm's ``<job>-logs``
and ``<job>-<restart>-logs``), by wandb (``exp_NNN/wandb/.../output.log``) or by Ray (``worker-<id>-<job>-<pid>.out``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from staleness_audit.discovery import RunFile, RunFiles, natural
from staleness_audit.readers.scalars import scalar_files

MARKS: Final = (
    b"SingleControllerActor",
    b"AsyncTrajectoryCollector",
    b"AsyncRLConfig(",
    b"AsyncGRPOConfig(",
    b"Starting async GRPO training",
    b"Starting async PPO training",
    b"train_pump: ",
    b"Selected counts by generation weight-version",
)
"""Words of the console that no other framework prints."""
OLD_MARKS: Final = (b"ReplayBuffer.push_with_wait_signal",)
"""What async_grpo's buffer prints up to v0.6."""
TAGS: Final = (b"train/evicted_stale_prompt_groups", b"train/avg_trajectory_age")
"""Metrics that only its asynchronous trainers write."""
_EXP: Final = re.compile(r"^(?P<exp>(?:.*/)?exp_(?P<number>\d+))/")
_WORKER: Final = re.compile(r"(?:^|/)worker-[0-9a-f]+-(?P<job>[0-9a-f]+)-(?P<pid>\d+)\.(?:out|err)$")
_SLURM: Final = re.compile(r"(?:^|/)(?P<job>\d+)(?:-(?P<restart>\d+))?-logs/")
_STEP: Final = re.compile(r"(?:^|/)(?:tmp_)?step_(?P<step>\d{1,9})/[^/]*$")
_HEAD: Final = 1 << 20

Origin = Literal["driver", "wandb", "worker"]


@dataclass(frozen=True)
class Survey:
    """The run's files by kind; all lists are in natural order."""

    consoles: tuple[RunFile, ...]
    scalars: tuple[RunFile, ...]
    rows: tuple[RunFile, ...]
    buffers: tuple[RunFile, ...]
    configs: tuple[RunFile, ...]


def survey(run: RunFiles) -> Survey:
    """List what can be read, whatever it turns out to be."""
    consoles = [file for file in run.files if _is_console(run, file)]
    return Survey(
        tuple(sorted(consoles, key=lambda file: natural(file.name))),
        tuple(scalar_files(run)),
        tuple(run.match("train_data_step*.jsonl")),
        tuple(run.match("step_*/replay_buffer.pt")),
        (*run.match("step_*/config.yaml"), *run.match("wandb/*/files/config.yaml")),
    )


def _is_console(run: RunFiles, file: RunFile) -> bool:
    name = file.name.rsplit("/", 1)[-1]
    if not (name.endswith((".log", ".out", ".err", ".txt")) or "." not in name) or name == "debug.log":
        return False
    if not run.is_directory or name in {"ray-driver.log", "output.log"} or _WORKER.search(file.name):
        return True
    return has_mark(run, file.source, MARKS)


def has_mark(run: RunFiles, source: str, marks: tuple[bytes, ...]) -> bool:
    """Whether the beginning of a file holds one of the words."""
    head = run.head(source, _HEAD)
    return any(mark in head for mark in marks)


def exp_of(name: str) -> str | None:
    """Return the ``exp_NNN`` folder a file lies in, as a path relative to the run."""
    found = _EXP.match(name)
    return found["exp"] if found else None


def exp_number(exp: str | None) -> int | None:
    """Return NNN of an ``exp_NNN`` path."""
    found = re.search(r"exp_(\d{1,18})/?$", exp or "")
    return int(found[1]) if found else None


def origin(name: str) -> Origin:
    """Tell how a console log was captured."""
    if _WORKER.search(name):
        return "worker"
    return "wandb" if name.endswith("output.log") else "driver"


def worker(name: str) -> tuple[str, int] | None:
    """Return ``(job, pid)`` of one of Ray's own copies; the job is that of its session folder."""
    found = _WORKER.search(name)
    return (f"{name[: found.start()]}#{found['job']}", int(found["pid"])) if found else None


def launch_order(name: str) -> tuple[object, ...]:
    """Sort key under which Slurm's ``7-logs`` comes before ``7-1-logs``, and else names in natural order."""
    found = _SLURM.search(name)
    if found:
        return (natural(name[: found.start()]), int(found["job"]), int(found["restart"] or 0), natural(name))
    return (natural(name), -1, 0, natural(name))


def slurm_job(folder: str) -> str | None:
    """Return the job, with the path to its folder, of a folder that Slurm named."""
    found = _SLURM.search(folder + "/")
    return f"{folder[: found.start()]}#{found['job']}" if found else None


def step_of(name: str) -> int | None:
    """Return k of a file in ``step_<k>/`` or of ``train_data_step<k>.jsonl``."""
    found = _STEP.search(name) or re.search(r"train_data_step(?P<step>\d+)\.jsonl$", name)
    return int(found["step"]) if found else None

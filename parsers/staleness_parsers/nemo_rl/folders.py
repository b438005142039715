"""Folders side by side: whether they hold launches of one run, or runs of their own.

A launch has a folder of its own: Slurm's ``7-logs`` and ``7-1-logs``, ``exp_001`` and ``exp_002`` (guide section 5).
But so have runs that somebody has collected in one place, and these are not to be read as restarts of each other. What
one run makes only once tells them apart: ``exp_NNN`` counts the launches in a log folder, ``step_K`` the saved steps,
and a launch that begins at step 0 continues nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from staleness_audit.discovery import RunFiles
from staleness_audit.readers.console import number_of
from staleness_parsers.nemo_rl import files

_HEAD: Final = 1 << 20
_ONCE: Final = re.compile(r"(?:^|/)(exp_\d+|step_\d+(?=/config\.yaml))(?:/|$)")
_LOGS: Final = re.compile(rb"(?:Using log directory: |Logger at )\S*?(exp_\d+)")
_RESUMES: Final = re.compile(rb"Restoring replay buffer|replay group\(s\) from checkpoint|ReplayBuffer restored")
_BEGINS: Final = re.compile(
    rb"train_pump: step (?P<from_0>\d+) |current_weight_version=(?P<from_0_too>\d+)|"
    rb"train step (?P<from_1>\d+)/|=+ Step (?P<from_1_too>\d+)/\d+ ="
)
_CONFIG: Final = re.compile(rb"^.*(?:AsyncRLConfig\(|AsyncGRPOConfig\(|'async_grpo': |'async_rl': ).*$", re.MULTILINE)


@dataclass(frozen=True)
class _Folder:
    """``job``: Slurm's; ``once``: names that a run gives only once; ``fresh``: it trains from step 0 on."""

    job: str | None
    once: frozenset[str]
    fresh: bool | None
    config: bytes | None


def are_launches(run: RunFiles, folders: Sequence[str]) -> bool:
    """Whether nothing says that two of these folders hold different runs."""
    found = [_look(run, folder) for folder in folders]
    return not any(_apart(one, other) for one, other in combinations(found, 2))


def _apart(one: _Folder, other: _Folder) -> bool:
    """Both begin anew, or do not say, though only one could: the same launch number, or other settings."""
    if (one.job is not None and one.job == other.job) or one.fresh is False or other.fresh is False:
        return False
    if one.once & other.once:
        return True
    return bool(one.fresh and other.fresh) and None not in {one.config, other.config} and one.config != other.config


def _look(run: RunFiles, folder: str) -> _Folder:
    inside = [file for file in run.files if file.name.startswith(folder + "/")]
    once = {named[1] for file in inside if (named := _ONCE.search(file.name))}
    fresh: bool | None = None
    config: bytes | None = None
    for file in inside:
        if file.name.endswith((".pt", ".jsonl", ".yaml", ".json")) or "tfevents" in file.name:
            continue
        head = run.head(file.source, _HEAD)
        once |= {logs[1].decode() for logs in _LOGS.finditer(head)}
        if _RESUMES.search(head):
            fresh = False
        elif fresh is None and (found := _BEGINS.search(head)):
            counted = found["from_0"] or found["from_0_too"]
            step = number_of(counted) if counted is not None else number_of(found["from_1"] or found["from_1_too"]) - 1
            fresh = step <= 0
        if config is None and (printed := _CONFIG.search(head)):
            config = printed[0].strip()
    job = files.slurm_job(folder)
    return _Folder(job, frozenset(once), fresh, config)

"""Frameworks' own artifacts, written from a simulated run, so that a parser's reading can be held against the truth.

Each module writes what one framework would have left of the run (the guide's section 5), in as few files as an audit
needs. They know a format, but neither how it is read nor how it is judged. ``story`` reads the run back from its
canonical event log; DryRun-RL's telemetry comes from its own model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from staleness_audit.errors import AuditError
from staleness_audit.simulate.artifacts import prime_rl, skyrl, story, trl, verl

WRITERS: Mapping[str, Callable[[story.Run, Path], None]] = MappingProxyType(
    {
        "verl:drop": verl.write,
        "verl:wait": verl.write,
        "verl:null": verl.write,
        "skyrl": skyrl.write,
        "prime-rl": prime_rl.write,
        "trl": trl.write,
    }
)
"""Policies whose framework's artifacts can be written."""


def write(policy: str, log: Path, folder: Path) -> None:
    """Write what the policy's framework would have left of the run in ``log``, into an empty folder.

    Raises:
        AuditError: there is no such writer, the run has several attempts or no step, or it can't be written.
    """
    if policy not in WRITERS:
        raise AuditError(f"--artifacts: there is no writer for {policy}; there are: {', '.join(WRITERS)}.")
    run = story.read(log)
    if not run.steps or len(list(log.parent.glob("*.staleness.jsonl"))) > 1:
        raise AuditError("--artifacts: only runs of one attempt that trained something can be written.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise AuditError(f"{folder}: is not empty; choose another --artifacts.")
        WRITERS[policy](run, folder)
    except OSError as error:
        raise AuditError(f"{folder}: cannot be written ({error.strerror}); choose another --artifacts.") from error

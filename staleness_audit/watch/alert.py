"""The alert: a command of the user's, run once, when the first violation is proven."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import suppress

from staleness_audit.watch.state import State, record

LONGEST = 4_000
"""Characters of a value in the command's environment; an id may have megabytes, and Linux takes 128 kB."""
_STDERR = 2


class Alert:
    """Runs a shell command on the first proven violation, and does not wait for it.

    The command finds the state as JSON on its standard input, and in its environment ``STALENESS_AUDIT_RUN``,
    ``_FRAMEWORK``, ``_BOUND``, ``_STALENESS`` (proven), and of the newest violation, if one can be named,
    ``_TRAJECTORY``, ``_STEP``, ``_SOURCE`` and ``_LINE``, each at most ``LONGEST`` characters. Text from logs is never
    part of the command. What it writes goes to standard error, as standard output is the watch's.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, state: State) -> None:
        """Run the command if a violation is proven and none was before."""
        if self._process is not None or not state.proven:
            return
        # A file, as a pipe takes only so much until the command reads.
        with tempfile.TemporaryFile() as text:
            text.write(json.dumps(record(state), default=str).encode())
            text.seek(0)
            self._process = subprocess.Popen(  # noqa: S602 - the user's own command; logs speak through the environment only
                self._command, shell=True, stdin=text, stdout=_STDERR, env={**os.environ, **_variables(state)}
            )

    def wait(self, seconds: float) -> int | None:
        """Give the command time to end; return its exit code, or None if it was not run or goes on."""
        if self._process is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None


def _variables(state: State) -> dict[str, str]:
    data = state.data
    values = {
        "RUN": data["run"]["path"],
        "FRAMEWORK": data["run"]["framework"],
        "BOUND": data["bound"]["value"],
        "STALENESS": data["staleness"]["max"]["lo"],
    }
    for row in state.newest[:1]:
        values |= {"TRAJECTORY": row["trajectory_id"], "STEP": row["step"]}
        for place in row["evidence"][:1]:
            values |= {"SOURCE": place["source"], "LINE": place["line"]}
    # A NUL byte cannot be handed on, nor more than the system allows.
    return {
        f"STALENESS_AUDIT_{name}": str(value)[:LONGEST].replace("\0", "")
        for name, value in values.items()
        if value is not None
    }

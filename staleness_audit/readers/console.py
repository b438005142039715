"""Console logs: what terminals and launchers add around a message is taken off, the message is left."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_RAY = re.compile(r"^\((?P<actor>[^()]*?)\s*(?:\([^()]*\)\s*)?pid=(?P<pid>\d+)(?:,\s*ip=(?P<ip>[^)]+))?\)\s?")
_REPEATED = re.compile(r"\s*\[repeated (?P<times>\d+)x across cluster\].*$")


@dataclass(frozen=True)
class ConsoleLine:
    """A message without decoration. ``actor`` and ``pid`` from Ray's prefix; ``repeated`` = how often it stands for."""

    text: str
    actor: str | None = None
    pid: int | None = None
    repeated: int = 1


def strip_ansi(text: str) -> str:
    """Remove terminal escape sequences (colours, titles, cursor moves)."""
    return _ANSI.sub("", text)


def undecorate(text: str) -> ConsoleLine:
    """Take escape sequences, Ray's ``(Actor pid=N)`` prefix and its ``[repeated Nx across cluster]`` off a line.

    Of a line that a progress bar rewrote with carriage returns, what was printed last remains.
    """
    clean = strip_ansi(text).rsplit("\r", 1)[-1]
    actor = pid = None
    if prefix := _RAY.match(clean):
        actor, pid = prefix["actor"] or None, int(prefix["pid"])
        clean = clean[prefix.end() :]
    repeated = 1
    if suffix := _REPEATED.search(clean):
        # Ray prints the line itself and counts the ones it held back.
        repeated = 1 + int(suffix["times"])
        clean = clean[: suffix.start()]
    return ConsoleLine(clean, actor, pid, repeated)

"""Console logs: what terminals and launchers add around a message is taken off, the message is left."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from datetime import datetime

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_RAY = re.compile(r"^\((?P<actor>[^()]*?)\s*(?:\([^()]*\)\s*)?pid=(?P<pid>\d+)(?:,\s*ip=(?P<ip>[^)]+))?\)\s?")
_TIME = re.compile(r"^\[?(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{3,6})?)\]?\s*")
_REPEATED = re.compile(r"\s*\[repeated (?P<times>\d+)x across cluster\].*$")

_NOT_FINITE = re.compile(r"(?<![\w'\"])(-?)(nan|inf|infinity)(?![\w'\"])", re.IGNORECASE)
_WRAPPED = re.compile(
    r"\b(?:np|numpy|torch)\.\w+\((-?[\w.+-]+)(?:, dtype=[\w.]+|, device='[\w:]+')*\)"
    r"|\btensor\((-?[\w.+-]+)(?:, [^()]*)?\)"
)
MAX_LITERAL_CHARS = 1 << 20


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


def parse_local_time(text: str) -> tuple[datetime | None, str]:
    """Split ``[2026-11-29 15:30:20]``, the beginning of a line, from the rest.

    Console times name no zone: the result is naive. Milliseconds, if there are any, are kept.
    """
    found = _TIME.match(text)
    if not found:
        return None, text
    try:
        moment = datetime.fromisoformat(found["time"].replace(",", "."))
    except ValueError:
        return None, text
    return moment, text[found.end() :]


def parse_dict(text: str) -> dict[str, object] | None:
    """Read the printed form of a flat Python dict as loggers print metrics; None if it is none (for instance cut).

    ``nan`` and ``inf`` become floats; numbers wrapped by numpy or torch (``np.float64(0.5)``, ``tensor(1.)``) are
    unwrapped. Only literals are understood; nothing is evaluated.
    """
    if len(text) > MAX_LITERAL_CHARS or not text.startswith("{"):
        return None
    plain = _WRAPPED.sub(lambda match: match[1] or match[2], text)
    plain = _NOT_FINITE.sub(lambda match: f"{match[1]}1e999" if match[2].lower() != "nan" else "'nan'", plain)
    try:
        value = ast.literal_eval(plain)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return {str(key): float("nan") if item == "nan" else item for key, item in value.items()}

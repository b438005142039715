"""What lines of a canonical event log may hold: keys and their types, kinds, and the header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.readers.numbers import is_whole

FORMAT = "staleness-events/1"


PATTERN = "*.staleness.jsonl"


SPANS_PER_LINE = 1 << 20
"""Room in ``span_index`` for the runs of one ``versions`` list."""


_NUMBERS = (
    "n",
    "attempt",
    "step",
    "multiplicity",
    "prompt_tokens",
    "waited_us",
    "updates",
    "trajectories",
    "resumed_after",
)


_INTERVALS = ("version", "tokens", "loss_tokens", "multiplicity", "staleness")


_ENDS = tuple(f"{name}_{end}" for name in _INTERVALS for end in ("lo", "hi"))


_WORDS = ("kind", "trajectory_id", "group_id", "role", "reason", "worker")


TIMES = ("ts", "started", "ended")


# Whole numbers are read as doubles and checked: DuckDB would silently round 5.7 tokens to 6.
COLUMNS: dict[str, str] = {
    **dict.fromkeys(_WORDS, "VARCHAR"),
    **dict.fromkeys((*_NUMBERS, *_INTERVALS[:3], *_ENDS, *TIMES), "DOUBLE"),
    **dict.fromkeys(("completed", "monotone"), "BOOLEAN"),
    "versions": "INTEGER[]",
}


ARROW = {"VARCHAR": pa.string(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(), "INTEGER[]": pa.list_(pa.int32())}


WHOLE = (*_NUMBERS, *_INTERVALS[:3], *_ENDS)


LIFECYCLE = (
    "admitted",
    "started",
    "paused",
    "resumed",
    "finished",
    "enqueued",
    "sampled",
    "dropped",
    "cancelled",
    "requeued",
    "lost",
)


KINDS = (*LIFECYCLE, "span", "trained", "step", "sync", "end")


def words(of: Sequence[str]) -> str:
    """Words as a list of SQL literals."""
    return ", ".join(f"'{word}'" for word in of)


KIND = f"ENUM({words(KINDS)})"
"""Kinds are compared over and over; a kind that is not among these makes the piece be read with all columns."""


def read_header(run: RunFiles, file: RunFile) -> tuple[dict[str, Any] | None, int]:
    """Return the header object (None if the first line is none) and its line number."""
    return header_of(run.head(file.source, 1 << 20)), 1


def first_number(run: RunFiles, file: RunFile) -> int | None:
    """Return the number of a file's first event, or None if its beginning has none."""
    lines = run.head(file.source, 1 << 20).split(b"\n", 2)
    try:
        event = orjson.loads(lines[1]) if len(lines) > 1 else None
    except orjson.JSONDecodeError:
        return None
    return whole_number(event.get("n")) if isinstance(event, dict) else None


def header_of(data: bytes) -> dict[str, Any] | None:
    """Return the header that ``data`` begins with, or None if its first line is none."""
    try:
        value = orjson.loads(data[: data.find(b"\n")] if b"\n" in data else data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict) or not str(value.get("format", "")).startswith("staleness-events/"):
        return None
    return value


def whole_number(value: Any) -> int | None:
    """Return the value if it is a whole number (and no boolean) that fits into a table, else None."""
    whole = is_whole(value)
    return value if whole and -(2**31) <= value < 2**31 else None

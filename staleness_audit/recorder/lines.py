"""From an event's fields to its line: JSON that every reader of the log accepts, or an error."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any
from uuid import UUID

FORMAT = "staleness-events/1"

PLAIN = frozenset({str, int, float, bool, type(None)})
"""Types that can't change after the call and are written as they are."""

_WORDS = frozenset({"trajectory_id", "group_id", "role", "reason", "worker"})
_TIMES = ("ts", "started", "ended")

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))


def _make_dumps() -> Callable[[Any], str]:
    """The encoder's ``encode``, without making its C part anew for each line (a third of the cost of one)."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without it
        return _encoder.encode
    to_text = json.encoder.encode_basestring
    encode = make(None, _encoder.default, to_text, None, ":", ",", False, False, False)
    return lambda event: "".join(encode(event, 0))


_dumps = _make_dumps()


def plain(value: Any) -> Any:
    """Return the value as JSON's own types: scalars and arrays of NumPy and torch, enumerations, UUIDs, nested lists.

    Raises ``TypeError`` for anything else. A text made of an unknown object could give two trajectories one name.
    """
    if value.__class__ in PLAIN:
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return base(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be recorded")


def event_line(kind: str, number: int, fields: dict[str, Any]) -> bytes:
    """Return the line of an event, of plain fields; those that are None are left out.

    Raises ``ValueError`` if a count or version is not finite: null would not say "unknown" but claim the default.
    """
    for name, value in fields.items():
        if value is None or (name in _WORDS and value.__class__ is not str):
            fields = {
                name: str(value) if name in _WORDS else value for name, value in fields.items() if value is not None
            }
            break
    event = {"kind": kind, "n": number, **fields}
    event["kind"], event["n"] = kind, number  # these two are not the caller's to choose
    try:
        return (_dumps(event) + "\n").encode()
    except ValueError:  # rare: a lone surrogate, NaN or infinity
        return (_dumps(_mended(event)) + "\n").encode()


def plain_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as JSON can hold it; values that JSON has no type for become text."""
    return {_text(str(key)): _plain_or_text(value) for key, value in config.items()}


def _plain_or_text(value: Any) -> Any:
    try:
        value = plain(value)
        _dumps(value).encode()
    except (TypeError, ValueError, RecursionError):
        return _text(str(value))
    return value


def header_line(header: dict[str, Any]) -> bytes:
    """Return a file's first line, of plain fields."""
    fields = {name: value for name, value in header.items() if value is not None}
    return (_dumps(_mended({"format": FORMAT, **fields})) + "\n").encode()


def _mended(event: dict[str, Any]) -> dict[str, Any]:
    """Write lone surrogates as escapes, and leave out times that are none."""
    return {
        name: _text(value) if isinstance(value, str) else value
        for name, value in event.items()
        if not (name in _TIMES and isinstance(value, float) and not math.isfinite(value))
    }


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()

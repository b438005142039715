"""Typed access to what JSON left behind: every key of these files is optional and may hold anything."""

from __future__ import annotations

import math
from typing import Any

from staleness_audit.readers.numbers import is_figure

_INT32 = 2**31


def whole(value: Any) -> int | None:
    """Return an integer (also ``3.0``) that fits a version or a count of a file; anything else is None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not (math.isfinite(value) and value.is_integer()):
        return None
    return int(value) if abs(value) < _INT32 else None


def number(value: Any) -> float | None:
    """Return a finite number as float; anything else is None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if is_figure(value) else None


def moment(value: Any) -> float | None:
    """Return epoch seconds; the framework writes 0.0 for a phase that was not run, which is None here."""
    seconds = number(value)
    return seconds if seconds is not None and 0 < seconds < 1e11 else None


def text(value: Any) -> str | None:
    """Return a non-empty string, else None."""
    return value if isinstance(value, str) and value else None


def flag(value: Any) -> bool | None:
    """Return a truth value, else None."""
    return value if isinstance(value, bool) else None


def table(value: Any) -> dict[str, Any]:
    """Return an object, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """Return a list, or an empty one in place of anything else."""
    return value if isinstance(value, list) else []


def dig(value: Any, *path: str) -> Any:
    """Follow keys through objects; None as soon as one is missing."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value

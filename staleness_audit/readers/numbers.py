"""Numbers of untrusted logs: times beyond the calendar or of a clock set back, steps beyond any run."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from staleness_audit.parser import Sink

Row = dict[str, Any]
_FARTHEST: Final = 100_000
"""So far from the others, and twice as many numbers as there are, a step is a damaged digit."""


def moment(seconds: float | None) -> datetime | None:
    """Return seconds since 1970 as a time; None for none, and for what no calendar holds."""
    if seconds is None or not math.isfinite(seconds):
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def near(rows: Sequence[Row], name: str, kinds: Collection[str] | None, sink: Sink) -> list[Row]:
    """Leave out rows (of some ``kinds``) whose step in column ``name`` is nowhere near the others': a damaged digit.

    Otherwise there would be a step for each number up to it. Rows have ``source`` and may have ``line``.
    """

    def told(row: Row) -> bool:
        return row[name] is not None and (kinds is None or row["kind"] in kinds)

    numbers = sorted(row[name] for row in rows if told(row))
    middle = numbers[len(numbers) // 2] if numbers else 0
    farthest = _FARTHEST + 2 * len(numbers)
    far = [row for row in rows if told(row) and abs(row[name] - middle) > farthest]
    if not far:
        return list(rows)
    sink.diagnose(
        "error",
        "step-damaged",
        f"Step {far[0][name]} is more than {farthest:,} away from the others; {len(far)} such records were left out.",
        source=far[0]["source"],
        line=far[0].get("line"),
        opens="training",
    )
    return [row for row in rows if not told(row) or abs(row[name] - middle) <= farthest]


def set_back(times: Iterable[int | None], slack: int) -> int | None:
    """Return the place of the first time that is earlier than one before it by more than ``slack``; None if none is.

    For records in an order that is known without times: a clock that was set back between them puts them in another.
    """
    latest: int | None = None
    for place, time in enumerate(times):
        if time is None:
            continue
        if latest is not None and time < latest - slack:
            return place
        latest = time if latest is None else max(latest, time)
    return None

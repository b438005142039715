"""Numbers of untrusted logs: times beyond the calendar or of a clock set back, steps beyond any run."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeGuard

from staleness_audit.parser import Sink

Row = dict[str, Any]
MOST: Final = 1 << 53
_YEAR_1: Final = -62_000_000_000
_YEAR_9999: Final = 253_000_000_000
_FARTHEST: Final = 100_000
"""So far from the others, and twice as many numbers as there are, a step is a damaged digit."""
MOST_STEPS: Final = 1_000_000_000
"""More than any run has, and few enough for the tables' 32 bits, whatever is added."""


def moment(seconds: float | None) -> datetime | None:
    """Return seconds since 1970 as a time; None for none, and for what no calendar holds."""
    if seconds is None or not math.isfinite(seconds):
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value of a log is a whole number; JSON's ``true`` is none, though Python takes it for 1."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_figure(value: float) -> bool:
    """Whether a number of a log can count, measure or time something: it is finite, and no longer than such are.

    From 2**53 on, floats skip whole numbers; what adds up some of them has no exact sum.
    """
    return abs(value) < MOST


def micros(seconds: float | None) -> int | None:
    """Return seconds as whole microseconds; None for none, and for more than any calendar holds, or NaN."""
    return round(seconds * 1e6) if seconds is not None and _YEAR_1 < seconds < _YEAR_9999 else None


def near(rows: Sequence[Row], name: str, kinds: Collection[str] | None, sink: Sink, *, what: str = "Step") -> list[Row]:
    """Leave out rows (of some ``kinds``) whose step in column ``name`` is none, or nowhere near the others'.

    Otherwise there would be a step for each number up to it. Rows have ``source`` and may have ``line``; ``what`` they
    count, for the message.
    """

    def told(row: Row) -> bool:
        return row[name] is not None and (kinds is None or row["kind"] in kinds)

    counting = rows if kinds is None else [row for row in rows if row["kind"] in kinds]
    numbers = [number for row in counting if (number := row[name]) is not None]
    if not numbers or (min(numbers) >= 0 and max(numbers) < min(min(numbers) + _FARTHEST, MOST_STEPS)):
        return list(rows)  # wherever their middle is, all are near it
    numbers = sorted(number for number in numbers if 0 <= number < MOST_STEPS)
    least, most = around(numbers[len(numbers) // 2] if numbers else None, len(numbers))
    far = [row for row in rows if told(row) and not least <= row[name] <= most]
    if not far:
        return list(rows)
    farthest = _FARTHEST + 2 * len(numbers)
    why = f"is more than {farthest:,} away from the others" if far[0][name] >= 0 and numbers else "is none"
    sink.diagnose(
        "error",
        "step-damaged",
        f"{what} {far[0][name]} {why}; {len(far)} such records were left out.",
        source=far[0]["source"],
        line=far[0].get("line"),
        opens="training",
    )
    return [row for row in rows if not told(row) or least <= row[name] <= most]


def around(middle: int | None, count: int) -> tuple[int, int]:
    """Return the least and the most that ``near`` keeps if this is the one in the middle of so many numbers."""
    if middle is None:
        return 0, 0
    farthest = _FARTHEST + 2 * count
    return max(middle - farthest, 0), min(middle + farthest, MOST_STEPS)


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

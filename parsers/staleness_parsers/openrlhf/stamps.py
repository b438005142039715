"""The console's local times ``MM-DD HH:MM:SS``, which name no year and no zone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime


def turns(stamps: Sequence[str]) -> bool:
    """Whether a year ends between them: then December comes first."""
    return any(one[:2] in ("11", "12") for one in stamps) and any(one[:2] in ("01", "02") for one in stamps)


def seconds(stamp: str, *, turned: bool) -> float | None:
    """Place a stamp on a clock that begins anywhere; None if it is no date. ``turned``: see ``turns``."""
    year = 2003 if turned and stamp[:2] >= "07" else 2004  # a leap year, and the one before
    try:
        return datetime.strptime(f"{year}-{stamp}+0000", "%Y-%m-%d %H:%M:%S%z").timestamp()
    except ValueError:
        return None

"""What may violate the bound in all caps every class of staleness beyond it."""

from __future__ import annotations

from typing import Any

from staleness_audit.check.intervals import UNKNOWN, Interval
from staleness_audit.check.staleness import cap_beyond


def _histograms(*counts: tuple[int, int | None]) -> dict[str, Any]:
    rows = {
        unit: [{"staleness": n, unit: {"lo": low, "hi": high}} for n, (low, high) in enumerate(counts)]
        for unit in ("tokens", "trajectories")
    }
    return {"token_histogram": rows["tokens"], "trajectory_histogram": rows["trajectories"]}


def _ends(stale: dict[str, Any], name: str, unit: str) -> list[int | None]:
    return [row[unit]["hi"] for row in stale[name]]


def test_what_is_certain_in_one_class_beyond_the_bound_is_in_no_other() -> None:
    """Bound 1, at most 10 beyond it, 4 of them certainly at 3: six may be at 2, ten at 3, six at 4 or at 5."""
    stale = _histograms((0, 50), (0, 50), (0, 9), (4, 40), (0, None), (0, 3))
    cap_beyond(stale, {"tokens": Interval(4, 10), "trajectories": UNKNOWN}, 1)
    assert _ends(stale, "token_histogram", "tokens") == [50, 50, 6, 10, 6, 3]
    assert _ends(stale, "trajectory_histogram", "trajectories") == [50, 50, 9, 40, None, 3]

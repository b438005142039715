"""The framework's own figures against the rebuilt ones (DESIGN section 3: kept in ``reported`` and compared)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from staleness_audit.check.intervals import Interval

CANONICAL: Mapping[str, str] = {
    "step.trajectories": "trajectories trained in the step",
    "step.loss_tokens": "loss tokens trained in the step",
    "step.staleness_max": "largest token staleness in the step",
    "step.staleness_token_mean": "mean staleness over the loss tokens of the step",
    "step.staleness_trajectory_mean": "mean staleness over the trajectories of the step",
    "step.in_flight_mean": "mean in-flight staleness over the trajectories of the step",
    "step.in_queue_mean": "mean in-queue staleness over the trajectories of the step",
    "step.in_queue_max": "largest in-queue staleness of a trajectory of the step",
    "step.dropped": "trajectories dropped while the step was collected",
    "step.dropped_stale": "trajectories dropped as too old while the step was collected",
    "step.cancelled": "trajectories cancelled while the step was collected",
}
"""Names a parser may give to a reported number so that it is compared; others are listed without comparison."""

_TOLERANCE = 1e-4


def compare(
    rows: Sequence[Mapping[str, Any]],
    per_step: Mapping[tuple[int, int], Mapping[str, Interval]],
    figures: Sequence[tuple[str, str]] = (),
) -> list[dict[str, Any]]:
    """Put each reported number beside its rebuilt interval.

    ``figures``: patterns of raw names, and what such a number measures. Where it disagrees, that is its
    ``explanation``; null where it agrees or nothing is known.

    ``agrees`` is false if the number lies outside, true if the interval is exact and it lies inside (up to rounding of
    one part in ten thousand), null if the logs can't tell or the name has no rebuilt counterpart.
    """

    @cache
    def measures(raw_name: str | None) -> str | None:
        return next((what for pattern, what in figures if fnmatchcase(raw_name or "", pattern)), None)

    compared = []
    for row in rows:
        rebuilt = per_step.get((row["attempt"] or 0, row["step"]), {}).get(row["name"])
        value = row["value"]
        agrees = None
        if rebuilt is not None and value is not None:
            slack = _TOLERANCE * max(1.0, abs(value))
            inside = value + slack >= (rebuilt.lo or 0) and (rebuilt.hi is None or value - slack <= rebuilt.hi)
            agrees = False if not inside else (True if rebuilt.is_exact else None)
        compared.append(
            {
                "name": row["name"],
                "raw_name": row["raw_name"],
                "attempt": row["attempt"] or 0,
                "step": row["step"],
                "reported": value,
                "rebuilt": (rebuilt or Interval(None, None)).json(),
                "agrees": agrees,
                "explanation": measures(row["raw_name"]) if agrees is False else None,
                "source": row["source"],
                "line": row["line"],
            }
        )
    return compared

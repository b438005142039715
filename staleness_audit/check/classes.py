"""The rebuilt products as rows, and the small arithmetic on open ends that every figure shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from staleness_audit.check.intervals import Interval
from staleness_audit.rebuild import Rebuilt

Rows = list[dict[str, Any]]
_HOLDERS = (Interval, dict, list)


class Classes:
    """The rebuilt products as rows, read once."""

    def __init__(self, rebuilt: Rebuilt) -> None:
        self.steps: Rows = rebuilt.frame("step_lives").sort("attempt", "step").to_dicts()
        self.tokens: Rows = rebuilt.frame("token_classes").to_dicts()
        self.flights: Rows = rebuilt.frame("flight_classes").to_dicts()
        self.uses: Rows = rebuilt.frame("use_classes").to_dicts()
        worst = rebuilt.frame("worst_classes").to_dicts()
        self.trajectories: Rows = [row for row in worst if row["of"] == "trajectories"]
        self.groups: Rows = [row for row in worst if row["of"] == "groups"]
        self.fates: Rows = [
            {**row, "fates": row["fates"].split("\x1f")} for row in rebuilt.frame("fate_classes").to_dicts()
        ]
        self.residual: Rows = [row for row in rebuilt.frame("residual_uses").to_dicts() if row["certain"]]
        self.ages: Rows = rebuilt.frame("age_classes").to_dicts()
        self.drops: Rows = rebuilt.frame("drop_classes").to_dicts()
        self.lengths = rebuilt.frame("length_classes")
        self.occupancy: dict[str, Any] = rebuilt.frame("occupancy").row(0, named=True)


def sum_open(values: Iterable[float | None]) -> float | None:
    """Sum of upper ends; None (open) if one of them is open."""
    total: float = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def exceeds(row: Mapping[str, Any], bound: int) -> bool:
    """Whether a class may hold a violation."""
    return row["staleness_hi"] is None or row["staleness_hi"] > bound


def json_or_null(interval: Interval | None, bound: int | None) -> dict[str, Any] | None:
    """Return the interval as JSON; null where there is none or no bound to speak of."""
    return None if bound is None or interval is None else interval.json()


def jsonify(value: Any) -> Any:
    """Intervals inside dicts and lists as JSON."""
    if value.__class__ is Interval:
        return value.json()
    if value.__class__ is dict:
        return {key: jsonify(item) if item.__class__ in _HOLDERS else item for key, item in value.items()}
    if value.__class__ is list:
        return [jsonify(item) for item in value]
    return value

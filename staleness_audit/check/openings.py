"""What went unread, and which upper ends that opens (DESIGN section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from staleness_audit.rebuild import Rebuilt


@dataclass(frozen=True)
class Openings:
    """What is open.

    ``training``: something that could hold training data went unread or contradicts itself, so every count may be
    larger and averages may be anything. ``fates``: only what became of untrained trajectories may be missing.
    ``unseen``: classes of fates that the format never shows. ``undone``: what went unread may have undone recorded fates,
    so that only training proves anything about a trajectory.
    """

    training: bool
    fates: bool
    unseen: frozenset[str]
    undone: bool

    @property
    def any(self) -> bool:
        """Whether counts of untrained trajectories may be larger than what was read."""
        return self.training or self.fates


def read_openings(diagnostics: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Openings:
    """Derive the openings from the diagnostics of parsing and rebuilding."""
    opened = {item["opens"] for item in diagnostics}
    return Openings(
        "training" in opened, "fates" in opened, frozenset(facts["unseen"]), bool(facts.get("undone", False))
    )


def read_diagnostics(rebuilt: Rebuilt) -> list[dict[str, Any]]:
    """All diagnostics, worst first: the parsers' and the contradictions that rebuilding found."""
    items = rebuilt.dataset.scan("diagnostics").collect().to_dicts()
    for finding in rebuilt.frame("findings").to_dicts():
        cases = finding.pop("cases")
        message = finding["message"] if cases == 1 else f"{finding['message']} ({cases} cases)"
        items.append({**finding, "message": message})
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(
        items, key=lambda item: (order[item["severity"]], item["code"], item["source"] or "", item["line"] or 0)
    )

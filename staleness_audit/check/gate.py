"""When an audited run fails: verdict and violations in, exit code out (DESIGN section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from staleness_audit.check.intervals import Interval

Count = Literal["trajectories", "tokens", "groups"]


@dataclass(frozen=True)
class Gate:
    """When a run fails (DESIGN section 5): more than ``max_violations`` in the unit ``count``.

    ``given``: some gate option was set by the user, so that a run without a bound is not waved through.
    """

    count: Count = "trajectories"
    max_violations: int = 0
    strict: bool = False
    allow_inconclusive: bool = False
    exit_zero: bool = False
    given: bool = False

    def exit_code(self, verdict: str, violations: Interval | None) -> int:
        """0 clean, 1 violated, 3 not known; ``exit_zero`` turns 1 and 3 into 0."""
        code = self._judge(verdict, violations)
        return 0 if self.exit_zero else code

    def _judge(self, verdict: str, violations: Interval | None) -> int:
        if violations is None:
            return 3 if self.given else 0
        if (violations.lo or 0) > self.max_violations:
            return 1
        if verdict != "inconclusive" and violations.hi is not None and violations.hi <= self.max_violations:
            return 0
        if self.allow_inconclusive:
            return 0
        return 1 if self.strict else 3

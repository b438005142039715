"""When an audited run fails: conditions on its figures in, exit code out (DESIGN section 5, docs/ci.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from staleness_audit.check.baseline import Baseline, compare_threshold, compare_violations, worst_of
from staleness_audit.check.figures import Data
from staleness_audit.check.threshold import Threshold, Truth

Count = Literal["trajectories", "tokens", "groups"]


@dataclass(frozen=True)
class Gate:
    """When a run fails: more than ``max_violations`` in the unit ``count``, or one of ``fail_if`` holds.

    ``baseline``: an earlier audit, which forgives what did not get worse since; ``alone``: no other run is audited.
    ``given``: some option about violations was set by the user, so that a run without a bound is not waved through.
    """

    count: Count = "trajectories"
    max_violations: int = 0
    strict: bool = False
    allow_inconclusive: bool = False
    exit_zero: bool = False
    given: bool = False
    fail_if: tuple[Threshold, ...] = ()
    baseline: Baseline | None = None
    alone: bool = True

    def judge(self, data: Data) -> dict[str, Any]:
        """Return the block ``gate`` of a document that is otherwise complete: the conditions and the exit code.

        Raises:
            AuditError: the baseline cannot be compared with it.
        """
        before = self.baseline.of(data, alone=self.alone) if self.baseline else None
        if self.baseline and before:
            self.baseline.check_comparable(before, data)
        conditions = [
            *([self._bound(data, before)] if data["verdict"] != "no-bound" or self.given else []),
            *(self._condition(threshold, data, before) for threshold in self.fail_if),
        ]
        return {
            "count": self.count,
            "max_violations": self.max_violations,
            "exit": self._exit(data, conditions),
            "exit_zero": self.exit_zero,
            "conditions": conditions,
            "baseline": None if self.baseline is None else {"file": self.baseline.name, "found": before is not None},
        }

    def _bound(self, data: Data, before: Data | None) -> dict[str, Any]:
        """Judge the number of violations; what went unread may hold any number more of them."""
        condition = Threshold(f"violations.{self.count}", ">", float(self.max_violations)).json(data)
        if condition["holds"] == "no" and data["verdict"] == "inconclusive":
            condition["holds"] = "unknown"
        if before is None:
            return _judged("violations", condition, None)
        return _judged("violations", condition, compare_violations(before, data, self.count, self.max_violations))

    def _condition(self, threshold: Threshold, data: Data, before: Data | None) -> dict[str, Any]:
        rows = None if before is None else [compare_threshold(threshold, before, data)]
        return _judged("fail-if", threshold.json(data), rows)

    def _exit(self, data: Data, conditions: list[dict[str, Any]]) -> int:
        """0 clean, 1 failed, 3 not known; ``exit_zero`` turns 1 and 3 into 0."""
        failing = {condition["fails"] for condition in conditions}
        if self.exit_zero or not failing - {"no"}:
            return 0
        if "yes" in failing:
            return 1
        if data["verdict"] == "no-bound" and self.given:
            return 3  # nothing was judged, so there is nothing to be strict or lenient about
        if self.allow_inconclusive:
            return 0
        return 1 if self.strict else 3


def _judged(kind: str, condition: dict[str, Any], rows: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Add what got worse, and whether the run fails by it: it must hold, and not be forgiven by the baseline."""
    worse: Truth = "yes" if rows is None else worst_of(rows)
    both = {condition["holds"], worse}
    fails = "no" if "no" in both else ("unknown" if "unknown" in both else "yes")
    return {"kind": kind, **condition, "since_baseline": rows, "fails": fails}

"""Conditions on figures, as ``--fail-if "waste.ratio > 0.2"`` states them: read without evaluating any code."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from staleness_audit.check.figures import Data, figure_at, value_at
from staleness_audit.check.intervals import Interval
from staleness_audit.errors import AuditError

Truth = Literal["yes", "no", "unknown"]
Operator = Literal[">", ">=", "<", "<=", "==", "!="]

_FORM = re.compile(r"\s*([\w.:/-]+?)\s*(>=|<=|==|!=|>|<)\s*(\S(?:.*\S)?)\s*")
_EXAMPLE = "write it as 'FIGURE OPERATOR VALUE', for instance 'waste.ratio > 0.2'"


@dataclass(frozen=True)
class Threshold:
    """``figure operator limit``; the run fails if it holds. ``limit`` is a number, a word or a truth value."""

    figure: str
    operator: Operator
    limit: float | str | bool

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Read a condition; ``AuditError`` if it is none or names an unknown figure."""
        form = _FORM.fullmatch(text)
        if not form:
            raise AuditError(f"--fail-if {text!r} is no condition; {_EXAMPLE}.")
        path, operator, right = form.groups()
        figure, limit = figure_at(path), _limit(right)
        kind = figure.kind
        if kind == "word" and operator not in ("==", "!="):
            raise AuditError(f"--fail-if {text!r}: {path} is a word, so only == and != apply.")
        if kind != "word" and not isinstance(limit, float):
            raise AuditError(f"--fail-if {text!r}: {path} is a number, and {right!r} is none; {_EXAMPLE}.")
        if kind == "word" and str(limit).lower() not in figure.words:
            raise AuditError(f"--fail-if {text!r}: {path} is never {right!r}; it is one of {', '.join(figure.words)}.")
        return cls(path, operator, limit.lower() if isinstance(limit, str) else limit)  # type: ignore[arg-type]

    def __str__(self) -> str:
        """``waste.ratio > 0.2``."""
        limit = f"{self.limit:g}" if isinstance(self.limit, float) else str(self.limit).lower()
        return f"{self.figure} {self.operator} {limit}"

    def holds(self, data: Data) -> Truth:
        """Whether the condition is true of a document: ``yes`` or ``no`` only if the logs prove it."""
        value = value_at(data, self.figure)
        if value is None:
            return "unknown"
        if not isinstance(value, Interval):
            return _truth((value == self.limit) == (self.operator == "=="))
        assert isinstance(self.limit, float)
        if self.operator in ("==", "!="):
            equal: Truth = "no" if self.limit not in value else ("yes" if value.is_exact else "unknown")
            return equal if self.operator == "==" or equal == "unknown" else _truth(equal == "no")
        above = _above(value, self.limit, or_equal=self.operator in (">=", "<"))
        return above if self.operator in (">", ">=") or above == "unknown" else _truth(above == "no")

    def json(self, data: Data) -> dict[str, Any]:
        """Return the condition with what the document says of it, as ``gate.conditions`` lists it."""
        value = value_at(data, self.figure)
        return {
            "condition": str(self),
            "figure": self.figure,
            "value": value.json() if isinstance(value, Interval) else value,
            "holds": self.holds(data),
        }


def _above(value: Interval, limit: float, *, or_equal: bool) -> Truth:
    """Whether a quantity is above ``limit`` (or equal to it)."""
    if value.lo is not None and (value.lo >= limit if or_equal else value.lo > limit):
        return "yes"
    if value.hi is not None and (value.hi < limit if or_equal else value.hi <= limit):
        return "no"
    return "unknown"


def _truth(value: bool) -> Truth:
    return "yes" if value else "no"


def _limit(text: str) -> float | str | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        limit = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return text.strip("'\"")
    if not math.isfinite(limit):
        raise AuditError(f"--fail-if: {text} is no number to compare with; {_EXAMPLE}.")
    return limit

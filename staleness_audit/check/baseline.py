"""What got worse since an earlier audit: the earlier document beside the new one, figure by figure.

A baseline only ever forgives. A condition of the gate that is not kept is forgiven if its figures are *proven* to be no
worse than they were; if they are proven to be worse it stands, and otherwise the logs can't tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from staleness_audit.check.figures import FIGURES, Data, value_at
from staleness_audit.check.intervals import Interval
from staleness_audit.check.threshold import Threshold, Truth
from staleness_audit.errors import AuditError

_LARGEST = 512 << 20


def read_documents(path: Path) -> list[dict[str, Any]]:
    """Read what ``audit --format json`` wrote: one document, or a list of them.

    Raises:
        AuditError: there is no such file, or it is not an audit.
    """
    try:
        if path.stat().st_size > _LARGEST:
            raise AuditError(f"{path}: too large to be an audit; write one with `audit --format json --output FILE`.")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AuditError(
            f"{path}: cannot be read ({error.strerror}); write it with `audit --output json:FILE`."
        ) from error
    except (ValueError, RecursionError) as error:
        raise AuditError(f"{path}: not an audit in JSON; write one with `audit --output json:FILE`.") from error
    documents = found if isinstance(found, list) else [found]
    if not documents or not all(_is_audit(document) for document in documents):
        raise AuditError(f"{path}: not an audit (schema staleness-audit/1); write one with `audit --output json:FILE`.")
    return documents


def _is_audit(document: Any) -> bool:
    """Whether every figure that is there is a number or a word: anyone may have written the file."""
    if not isinstance(document, dict) or document.get("schema") != "staleness-audit/1":
        return False
    try:
        values = [value_at(document, figure.path) for figure in FIGURES]
        path = document["run"]["path"]
    except (KeyError, TypeError, AttributeError):
        return False
    ends = [end for value in values if isinstance(value, Interval) for end in (value.lo, value.hi)]
    return isinstance(path, str) and all(end is None or isinstance(end, int | float) for end in ends)


@dataclass(frozen=True)
class Baseline:
    """Earlier audits, from the file ``name``."""

    name: str
    documents: Sequence[Data]

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read the file; ``AuditError`` if it is not an audit."""
        return cls(str(path), read_documents(path))

    def of(self, data: Data, *, alone: bool) -> Data | None:
        """Return the earlier audit of the same run: the only one there is, or the one of the same path.

        ``alone``: this is the only run audited now, so that a single earlier audit is its baseline wherever it stood.
        """
        if alone and len(self.documents) == 1:
            return self.documents[0]
        return next((document for document in self.documents if document["run"]["path"] == data["run"]["path"]), None)

    def check_comparable(self, before: Data, data: Data) -> None:
        """Raise ``AuditError`` unless both audits count the same versions against the same bound."""
        for what, old, new in (
            ("the bound", before["bound"].get("value"), data["bound"]["value"]),
            ("the unit of versions", before["staleness"].get("unit"), data["staleness"]["unit"]),
        ):
            if old != new:
                raise AuditError(
                    f"{self.name}: {what} is {_said(old)} there and {_said(new)} now, so that nothing can be said to "
                    "have got worse; audit with the same, or write a new baseline."
                )


def _said(value: object) -> str:
    return "unknown" if value is None else repr(value)


def worsened(before: Interval | None, now: Interval | None, *, allowed: int = 0) -> Truth:
    """Whether a quantity, of which less is better, grew by more than ``allowed``: proven, excluded, or not known."""
    if before is None or now is None:
        return "unknown"
    if now.lo is not None and before.hi is not None and now.lo > before.hi + allowed:
        return "yes"
    if now.hi is not None and before.lo is not None and now.hi <= before.lo + allowed:
        return "no"
    return "unknown"


def compare_violations(before: Data, now: Data, count: str, allowed: int) -> list[dict[str, Any]]:
    """Say of the violations, and of the largest staleness, whether they got worse.

    More violations are worse, and so is a staler one than any before.
    """
    return [
        _row(f"violations.{count}", before, now, allowed),
        _row("staleness.max", before, now, 0),
    ]


def compare_threshold(threshold: Threshold, before: Data, now: Data) -> dict[str, Any]:
    """Say of the figure of a condition whether it moved further to the side that the condition forbids."""
    old, new = value_at(before, threshold.figure), value_at(now, threshold.figure)
    if threshold.operator in (">", ">="):
        return _row(threshold.figure, before, now, 0)
    if threshold.operator in ("<", "<="):
        worse = worsened(_negated(old), _negated(new))
    else:  # equality has no degrees: it is no worse if it did not hold before either
        worse = {"yes": "no", "no": threshold.holds(now), "unknown": "unknown"}[threshold.holds(before)]
    return {"figure": threshold.figure, "before": _shown(old), "now": _shown(new), "worse": worse}


def _row(path: str, before: Data, now: Data, allowed: int) -> dict[str, Any]:
    old, new = value_at(before, path), value_at(now, path)
    worse = worsened(*(value if isinstance(value, Interval) else None for value in (old, new)), allowed=allowed)
    return {"figure": path, "before": _shown(old), "now": _shown(new), "worse": worse}


def _shown(value: Interval | str | bool | None) -> Any:
    return value.json() if isinstance(value, Interval) else value


def _negated(value: Interval | str | bool | None) -> Interval | None:
    if not isinstance(value, Interval):
        return None
    return Interval(None if value.hi is None else -value.hi, None if value.lo is None else -value.lo)


def worst_of(rows: Sequence[Mapping[str, Any]]) -> Truth:
    """``yes`` if one got worse, else ``unknown`` if one may have, else ``no``."""
    found = {row["worse"] for row in rows}
    return "yes" if "yes" in found else ("unknown" if "unknown" in found else "no")

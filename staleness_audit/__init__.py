"""Audits whether the tokens of an asynchronous RL run were trained within the staleness bound.

>>> from staleness_audit import audit
>>> result = audit("runs/my-run", bound=3)      # doctest: +SKIP
>>> result.verdict, result.data["staleness"]["max"]   # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from staleness_audit.api import AuditResult, audit
    from staleness_audit.check.gate import Gate
    from staleness_audit.errors import AuditError

__version__ = "0.1.0"
__all__ = ["AuditError", "AuditResult", "Gate", "__version__", "audit"]


def __getattr__(name: str) -> Any:
    """Load the API on first use, so that importing the package alone stays cheap."""
    if name in ("audit", "AuditResult"):
        from staleness_audit import api

        return getattr(api, name)
    if name == "Gate":
        from staleness_audit.check.gate import Gate

        return Gate
    if name == "AuditError":
        from staleness_audit.errors import AuditError

        return AuditError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

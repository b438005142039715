"""For tests of frameworks: an assertion that a run kept its bound, with a failure that says which log line breaks it.

>>> from staleness_audit.testing import assert_no_violations
>>> assert_no_violations("runs/smoke", bound=2)      # doctest: +SKIP
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from staleness_audit.errors import AuditError

if TYPE_CHECKING:
    from staleness_audit.api import AuditResult


def assert_no_violations(
    run: str | Path | AuditResult,
    bound: int | None = None,
    *,
    max_violations: int = 0,
    count: Literal["trajectories", "tokens", "groups"] = "trajectories",
    fail_if: tuple[str, ...] = (),
    allow_inconclusive: bool = False,
    **options: Any,
) -> AuditResult:
    """Audit a run and return the result; fail unless it is proven to keep the bound.

    Args:
        run: the run's directory or file, a folder of tables, or a result of ``audit``.
        bound: largest allowed ``v_train - v_gen``; None takes the one in the run's configuration.
        max_violations: how many are allowed, in the unit ``count``.
        count: what is counted.
        fail_if: conditions on figures that must not hold either, such as ``"waste.ratio > 0.2"``.
        allow_inconclusive: pass also if the logs can't tell.
        options: what else ``audit`` takes: ``framework``, ``steps``, ``tables``, ``assume``.

    Raises:
        AssertionError: a violation is proven, or possible unless that is allowed; the message tells the worst ones with
            their log lines. Also if there is no bound.
        AuditError: the run cannot be audited, or a condition is none.
    """
    __tracebackhide__ = True
    from staleness_audit.api import AuditResult, audit  # noqa: PLC0415 - so that importing this module stays cheap
    from staleness_audit.check.gate import Gate  # noqa: PLC0415
    from staleness_audit.check.threshold import Threshold  # noqa: PLC0415

    gate = Gate(
        count=count,
        max_violations=max_violations,
        allow_inconclusive=allow_inconclusive,
        given=True,
        fail_if=tuple(Threshold.parse(text) for text in fail_if),
    )
    if isinstance(run, AuditResult):
        if bound is not None and bound != run.bound:
            raise AuditError(f"The result was judged by bound {run.bound}, not {bound}; give the run itself.")
        result = AuditResult(run.rebuilt, {**run.data, "gate": gate.judge(run.data)})
    else:
        result = audit(run, bound, gate=gate, **options)
    if result.exit_code:
        raise AssertionError(_story(result))
    return result


def _story(result: AuditResult) -> str:
    from staleness_audit.report.findings import run_story  # noqa: PLC0415

    head = {1: "the run fails", 3: "the logs can't tell"}[result.exit_code]
    path = result.data["run"]["path"]
    given = f" --bound {result.bound}" if result.data["bound"]["source"] == "cli" else ""
    lines = "\n".join(f"  {line}" for line in run_story(result.data))
    return f"{head}: {path}\n{lines}\n  the whole report: staleness-audit audit {shlex.quote(path)}{given}"

"""The assertion for tests of frameworks: passes, fails with the line that breaks the bound, or says it cannot tell."""

from __future__ import annotations

import pytest

from staleness_audit.api import audit
from staleness_audit.errors import AuditError
from staleness_audit.testing import assert_no_violations


def failure(*arguments, **options) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_no_violations(*arguments, **options)
    return str(caught.value)


def test_a_run_within_the_bound_returns_its_audit(two_step_run):
    assert assert_no_violations(two_step_run("run"), bound=2).verdict == "pass"


def test_a_violation_is_told_with_its_log_line(two_step_run):
    path = two_step_run("run", bound=1)
    lines = failure(path).splitlines()
    assert lines[0] == f"the run fails: {path}"
    assert (
        "  1 of 2 trained trajectories is proven to hold tokens staler than the bound of 1 allows; the worst is 2."
        in lines
    )
    assert "      oldest trained tokens: run.staleness.jsonl:7 (recorded)" in lines
    assert lines[-1] == f"  the whole report: staleness-audit audit {path}"


def test_allowances(two_step_run):
    path = two_step_run("run", bound=1)
    assert_no_violations(path, max_violations=1)
    assert_no_violations(path, max_violations=10, count="tokens")
    assert "exit code" not in failure(path, max_violations=9, count="tokens")


def test_what_the_logs_cannot_tell_fails_unless_that_is_allowed(two_step_run):
    path = two_step_run("run", bound=2, end=False)
    assert failure(path).startswith(f"the logs can't tell: {path}\n  No violation is proven, but a part of the logs is")
    assert_no_violations(path, allow_inconclusive=True)


def test_a_run_without_a_bound_fails(two_step_run):
    assert "states no bound, and none was given" in failure(two_step_run("run"))


def test_conditions(two_step_run):
    path = two_step_run("run", bound=2)
    assert_no_violations(path, fail_if=("waste.ratio > 0.2",))
    assert (
        "  fails if: staleness.max >= 2: true (staleness.max is 2)"
        in failure(path, fail_if=("staleness.max >= 2",)).splitlines()
    )
    with pytest.raises(AuditError, match="There is no figure"):
        assert_no_violations(path, fail_if=("nothing > 2",))


def test_a_result_can_be_asserted_too(two_step_run):
    path = two_step_run("run")
    assert assert_no_violations(audit(path, 2)).verdict == "pass"
    assert failure(audit(path, 1)).startswith("the run fails: ")
    with pytest.raises(AuditError, match="judged by bound 1, not 2"):
        assert_no_violations(audit(path, 1), bound=2)

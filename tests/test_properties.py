"""Random runs, audited and compared with a judge that walks them token by token (tests/oracle)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import compare, logs, strategies, truth
from oracle.lives import Run

from staleness_audit.api import audit

THOROUGH = os.environ.get("STALENESS_AUDIT_THOROUGH")
EXAMPLES = int(THOROUGH) if THOROUGH else 1
common = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=not THOROUGH, print_blob=True)


def examples(few: int) -> Any:
    return settings(common, max_examples=few * EXAMPLES)


def audited(log: logs.Log, bound: int | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        run = logs.write(log, Path(folder) / "run")
        return audit(run, bound, tables=Path(folder) / "tables").data


@examples(60)
@given(run=strategies.runs(), bound=st.sampled_from((None, 0, 1, 2)))
def test_complete_logs_are_audited_exactly(run: Run, bound: int | None) -> None:
    document = audited(logs.log_of(run), bound)
    judged = bound if bound is not None else run.bound
    assert compare.differences(document, truth.figures(run, judged)) == []

"""Limits on memory, threads and the folder to spill to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from staleness_audit.cli import app
from staleness_audit.engine import connect
from staleness_audit.errors import AuditError
from staleness_audit.limits import Limits, limits, parse_memory, set_limits


@pytest.mark.parametrize(
    ("text", "size"), [("500MB", 500 * 10**6), ("4G", 4 * 10**9), ("1.5 GiB", 3 << 29), ("200000000", 200_000_000)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "many", "-1GB", "5XB", "1..5GB", "10MB"])
def test_what_is_no_size_or_too_small_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(AuditError, match=r"^memory of .*: give .*$"):
        parse_memory(text)


def test_they_reach_duckdb_and_what_this_process_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STALENESS_AUDIT_MEMORY", "STALENESS_AUDIT_THREADS", "STALENESS_AUDIT_TEMP_DIR", "POLARS_MAX_THREADS"):
        monkeypatch.setenv(name, "")  # restored afterwards
    assert limits() == Limits()
    set_limits("256MiB", 1, tmp_path / "spill")
    assert limits() == Limits(256 << 20, 1, tmp_path / "spill")
    assert limits().workers == 1
    settings = "SELECT current_setting('memory_limit'), current_setting('threads'), current_setting('temp_directory')"
    with connect(tmp_path / "tables") as connection:
        assert connection.execute(settings).fetchone() == ("256.0 MiB", 1, str(tmp_path / "spill"))


def test_an_audit_within_them_is_the_same(two_step_run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALENESS_AUDIT_MEMORY", "")
    monkeypatch.setenv("STALENESS_AUDIT_THREADS", "")
    monkeypatch.setenv("POLARS_MAX_THREADS", "")
    run = str(two_step_run("run", bound=2))
    answers = [
        CliRunner().invoke(app, ["audit", run, "--format", "json", "--tables", f"tables{len(options)}", *options])
        for options in ([], ["--memory", "100MB", "--threads", "1"])
    ]
    assert [answer.exit_code for answer in answers] == [0, 0]
    assert json.loads(answers[0].stdout) == json.loads(answers[1].stdout)


def test_nonsense_is_a_usage_error(two_step_run) -> None:
    answer = CliRunner().invoke(app, ["audit", str(two_step_run("run", bound=2)), "--memory", "lots"])
    assert answer.exit_code == 2
    assert "give a size such as 500MB or 4GB" in answer.output

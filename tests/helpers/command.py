"""The command line as tests call it: in this process, with everything it printed at hand."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner

from staleness_audit import cli


def run(*arguments: Any) -> Any:
    """Run a command and return Typer's result."""
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def sentence(result: Any) -> str:
    """Return the one line that an error is, after checking that there is nothing else."""
    assert result.exit_code == 2, (result.output, result.exception)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert "Traceback" not in result.output
    return lines[0]

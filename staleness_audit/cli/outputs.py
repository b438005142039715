# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""Where `audit` writes its result, and in which formats: one on standard output, any number in files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from staleness_audit.cli.console import json_text, print_text, stdout, write_text
from staleness_audit.cli.options import AuditFormat
from staleness_audit.errors import AuditError

if TYPE_CHECKING:
    from staleness_audit.api import AuditResult

_STANDARD_OUTPUT = Path("-")


@dataclass(frozen=True)
class Output:
    """One format and the file it goes to; no file is standard output."""

    format: AuditFormat
    file: Path | None

    @classmethod
    def parse(cls, text: str, default: AuditFormat) -> Output:
        """Read ``FILE`` or ``FORMAT:FILE``; a file called ``-`` is standard output."""
        name, colon, rest = text.partition(":")
        if colon and name in AuditFormat.__members__:
            form, file = AuditFormat(name), Path(rest)
        else:
            form, file = default, Path(text)
        if not rest and colon and name in AuditFormat.__members__:
            raise AuditError(f"--output {text}: name a file behind the colon, or - for standard output.")
        return cls(form, None if file == _STANDARD_OUTPUT else file)


def outputs(format_: AuditFormat, texts: Sequence[str]) -> list[Output]:
    """Return what ``--format`` and all ``--output`` ask for.

    A FILE without a format takes the one of ``--format`` and stands instead of printing it; others come beside it.
    """
    found = [Output.parse(text, format_) for text in texts]
    files = [output.file for output in found if output.file is not None]
    for file in files:
        if files.count(file) > 1:
            raise AuditError(f"--output names {file} twice; give each format a file of its own.")
    named = any(text.partition(":")[0] not in AuditFormat.__members__ or ":" not in text for text in texts)
    if named or any(output.file is None for output in found):
        return found
    return [Output(format_, None), *found]


@dataclass(frozen=True)
class Audits:
    """What there is to tell: results in order, runs that could not be audited with the reason, how many were wanted."""

    results: Sequence[AuditResult]
    unreadable: Sequence[tuple[str, str]]
    wanted: int
    strict: bool

    def write(self, output: Output, *, verbose: bool) -> None:
        """Write one output."""
        if output.format is AuditFormat.terminal:
            self._terminal(output.file, verbose)
            return
        text = self._text(output)
        if text is None:
            return
        if output.file is not None:
            write_text(output.file, text)
        else:
            print_text(text)

    def _terminal(self, file: Path | None, verbose: bool) -> None:
        from staleness_audit.report.terminal import render_audit, render_summary

        buffer = io.StringIO()
        console = stdout if file is None else Console(file=buffer, width=100, highlight=False, no_color=True)
        for result in self.results:
            render_audit(result.data, console, verbose=verbose)
        if self.wanted > 1 and self.results:
            render_summary([result.data for result in self.results], console)
        if file is not None:
            write_text(file, buffer.getvalue())

    def _text(self, output: Output) -> str | None:
        """Return the text of every format but the terminal's; None if there is nothing to say."""
        documents = [result.data for result in self.results]
        base = Path.cwd()
        match output.format:
            case AuditFormat.json:
                if not documents:
                    return None
                return json_text(documents[0] if self.wanted == 1 else documents, indent=True) + "\n"
            case AuditFormat.sarif:
                from staleness_audit.report.sarif import sarif

                return json_text(sarif(documents, base), indent=True) + "\n"
            case AuditFormat.junit:
                from staleness_audit.report.junit import junit

                return junit(documents, self.unreadable, base, strict=self.strict)
            case AuditFormat.github:
                from staleness_audit.report.github import github

                return github(documents, self.unreadable, base)
            case AuditFormat.markdown:
                from staleness_audit.report.markdown import markdown

                return markdown(documents, self.unreadable, base)
        raise AssertionError(output.format)

"""GitHub workflow commands: annotations beside the log lines, capped at what GitHub shows of one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from staleness_audit.report.findings import WORDS, Data, Finding, file_of, findings, run_name
from staleness_audit.report.terminal.verdict import headline, why

MOST = 10
"""Annotations of each level that GitHub shows of one step; more are dropped without a word."""
_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def github(documents: Sequence[Data], unreadable: Sequence[tuple[str, str]], base: Path) -> str:
    """Return one workflow command a line: a verdict per run first, then findings as long as there is room.

    ``unreadable``: runs that could not be audited, each with the reason.
    """
    commands: dict[str, list[str]] = {level: [] for level in _COMMANDS}
    for name, reason in unreadable:
        commands["error"].append(_command("error", f"staleness-audit: {name}", reason))
    for data in documents:
        level, command = _verdict(data, base)
        commands[level].append(command)
    for data in documents:
        for finding in findings(data):
            commands[finding.level].append(_annotation(data, finding, base))
    return "".join(f"{command}\n" for level in _COMMANDS for command in _capped(level, commands[level]))


def _capped(level: str, commands: Sequence[str]) -> Iterator[str]:
    """Yield as many as are shown; the last one says how many more there are."""
    if len(commands) <= MOST:
        yield from commands
        return
    yield from commands[: MOST - 1]
    more = len(commands) - MOST + 1
    yield _command(level, "staleness-audit", f"{more} more of this level; the other reports list them.")


def _verdict(data: Data, base: Path) -> tuple[str, str]:
    level = {0: "note", 1: "error", 3: "warning"}[data["gate"]["exit"]]
    bound = data["bound"]["value"]
    title = f"{headline(data)}: {run_name(data, base)}" + ("" if bound is None else f" (bound {bound})")
    return level, _command(level, title, why(data, WORDS))


def _annotation(data: Data, finding: Finding, base: Path) -> str:
    place = finding.places[0] if finding.places else None
    message = finding.message
    if place is None:
        return _command(finding.level, finding.title, f"{run_name(data, base)}: {message}")
    line, locator = place.get("line"), place.get("locator")
    where = f"{place.get('source')}" + (f":{line}" if line else "") + (f" {locator}" if locator else "")
    return _command(
        finding.level,
        finding.title,
        f"{message} Evidence: {WORDS.plain(where, 300)}",
        file=file_of(data, place.get("source"), base),
        line=line if isinstance(line, int) and line >= 1 else None,
    )


def _command(level: str, title: str, message: str, *, file: str | None = None, line: int | None = None) -> str:
    properties = {"file": file, "line": line, "title": title}
    shown = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items() if value is not None)
    return f"::{_COMMANDS[level]} {shown}::{_data(WORDS.plain(message, 4000))}"


def _data(text: str) -> str:
    """Text of a command: it must not end its line, nor be taken for an escape."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Value of a property, where colons and commas are punctuation too."""
    return _data(WORDS.plain(text, 1000)).replace(":", "%3A").replace(",", "%2C")

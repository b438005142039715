"""Defaults of options from ``staleness-audit.toml`` or ``pyproject.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from staleness_audit.errors import AuditError, choices

COMMANDS = ("audit", "ingest", "report", "explain", "compare", "sql", "export")
"""Commands that take defaults from a file."""


def configured_defaults(group: Any) -> dict[str, dict[str, Any]]:
    """Defaults of all commands from ``staleness-audit.toml`` or ``[tool.staleness-audit]`` of ``pyproject.toml``.

    ``group`` is Click's view of the whole command. A key is the name of an option, and sets it for every command
    that has it.
    """
    for name, path in (("staleness-audit.toml", ()), ("pyproject.toml", ("tool", "staleness-audit"))):
        values = _toml_table(Path(name), path)
        if not values:
            continue
        options = {command: _option_parameters(group.commands[command]) for command in COMMANDS}
        known = sorted({option for own in options.values() for option in own})
        for key in values:
            if key not in known:
                raise AuditError(f"{name}: unknown key {key!r}; {choices(key, known)}")
        return {
            command: {
                own[key].name: [value] if own[key].multiple and isinstance(value, str) else value
                for key, value in values.items()
                if key in own
            }
            for command, own in options.items()
        }
    return {}


def _toml_table(file: Path, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the table at ``path`` of a TOML file; empty if there is no such file or table."""
    if not file.is_file():
        return {}
    try:
        table: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AuditError(f"{file}: not valid TOML ({error}); mend or remove it.") from error
    except OSError as error:
        raise AuditError(f"{file}: cannot be read ({error.strerror}); check its permissions.") from error
    for key in path:
        table = table.get(key, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise AuditError(f"{file}: {'.'.join(path)} is not a table; write [{'.'.join(path)}].")
    return table


def _option_parameters(command: Any) -> dict[str, Any]:
    """Return option names without dashes in front, and the parameter that each one sets, of a command."""
    return {
        parameter.opts[0].removeprefix("--"): parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.opts[0] not in ("--help", "--list")
    }

"""How the commands are called: a usage error is one sentence, as every other error is."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from staleness_audit.cli.console import EXIT_INTERRUPTED, EXIT_USAGE, complain

_PROGRAM = "staleness-audit"
_WANTED = {
    "int_parsing": "give a whole number",
    "int_from_float": "give a whole number",
    "float_parsing": "give a number",
    "greater_than_equal": "give {ge} or more",
    "less_than_equal": "give {le} or less",
}
"""What to do about values that an option does not take, by the kind of error."""


class Commands(TyperGroup):
    """The commands, whose usage errors name what is wrong and where help is, and exit with 2."""

    def main(self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **more: Any) -> Any:  # type: ignore[override]
        """Run a command and leave with its exit code."""
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **more)
        try:
            code = super().main(args, standalone_mode=False, **more)
        except typer.Abort:
            complain("interrupted, so there is no verdict.")
            sys.exit(EXIT_INTERRUPTED)
        except TyperException as error:
            if text := _sentence(error):  # without a command, the help was shown
                complain(text)
            sys.exit(EXIT_USAGE)
        sys.exit(code if isinstance(code, int) else 0)


def _sentence(error: TyperException) -> str:
    """Say what is wrong and where to look it up."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    command = f" {context.info_name}" if context is not None and context.parent is not None else ""
    help_ = f"{_PROGRAM}{command} --help"
    found = _value_error(error)
    if found is None or parameter is None:
        said = error.format_message().replace("Value error, ", "").rstrip(".")
        return said and f"{said}{' See' if said.endswith('?') else '; see'} `{help_}`."
    name = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or parameter.name
    remedy = _WANTED[found["type"]].format(**found.get("ctx", {}))
    return f"{name} {found['input']}: {remedy}; see `{help_}`."


def _value_error(error: TyperException) -> Mapping[str, Any] | None:
    """Return what the library says about a value that an option does not take, if there are words for it."""
    errors = getattr(error.__cause__, "errors", None)
    found: Mapping[str, Any] | None = errors()[0] if callable(errors) else None
    return found if found is not None and found["type"] in _WANTED else None

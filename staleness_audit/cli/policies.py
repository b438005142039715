# ruff: noqa: PLC0415 - heavy imports wait until a command needs them, so that --help is quick
"""What the commands about simulated policies have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from staleness_audit.cli.console import stdout
from staleness_audit.errors import AuditError

PolicyArgument = Annotated[
    str, typer.Argument(metavar="POLICY", help="Name of a staleness control; 'list' shows all with their knobs.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a knob of the policy; may be given several times."),
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="B", help="Groups that one published version trains.")
]


def settings(pairs: list[str] | None, option: str = "--set") -> dict[str, str]:
    """Read ``KEY=VALUE`` pairs of an option; ``AuditError`` if one is not a pair."""
    found: dict[str, str] = {}
    for pair in pairs or ():
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise AuditError(f"{option} {pair}: write KEY=VALUE.")
        found[key.strip()] = value.strip()
    return found


def list_policies() -> None:
    """Print all policies with their knobs and defaults."""
    from dataclasses import fields

    from staleness_audit.report.terminal.page import Page
    from staleness_audit.simulate.policies import POLICIES, build

    knobs = {
        name: ", ".join(f"{knob.name} = {getattr(rules, knob.name)}" for knob in fields(rules))
        for name, rules in ((name, build(name)) for name in POLICIES)
    }
    Page(stdout).table((("policy", "keep"), "knobs and their defaults"), knobs.items(), indent=0)

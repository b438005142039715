"""Errors that end a command with one sentence for the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AuditError(Exception):
    """Anything that makes the answer impossible: the message is one sentence naming the file and the remedy."""


class NothingRecognised(AuditError):
    """No parser recognised the run."""


class SeveralFrameworks(AuditError):
    """More than one parser recognised the run and none refines the others."""


class UnreadableInput(AuditError):
    """A path is missing or cannot be read."""


class Unreachable(AuditError):
    """What a URL names cannot be reached, now or at all; says nothing about the logs."""


class BrokenPlugin(UserWarning):
    """A parser cannot be loaded; the others still can."""


class OptionalReaderMissing(AuditError):
    """An input needs an extra that is not installed."""


class SeveralRuns(AuditError):
    """The folder holds several runs side by side."""


def choices(name: str, known: Iterable[str]) -> str:
    """Say what there is instead of a name that is not known, and which of it was probably meant."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"there are: {', '.join(names)}." + (f" Did you mean {near[0]}?" if near else "")

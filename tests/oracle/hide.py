"""Taking information away from a log without making it say anything false.

Each way of hiding takes a log and a random generator and returns another log. Numbers ``n`` stay as they were, so that
the loss of lines shows; fields are only replaced by intervals that hold them, or left out where that means "not known".
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random

from .logs import Line, Log

Hiding = Callable[[Log, Random], Log]


def _edited(log: Log, rng: Random, share: float, edit: Callable[[Line, Random], None]) -> Log:
    log = copy.deepcopy(log)
    for lines in log.values():
        for line in lines[1:]:
            if rng.random() < share:
                edit(line, rng)
    return log


def lines_lost(log: Log, rng: Random) -> Log:
    """Some lines are gone; the numbers of the others have gaps."""
    share = rng.choice((0.05, 0.2, 0.5))
    return {name: [lines[0]] + [line for line in lines[1:] if rng.random() > share] for name, lines in log.items()}


def one_line_lost(log: Log, rng: Random) -> Log:
    """A single line is gone."""
    log = dict(log)
    name = rng.choice(sorted(log))
    at = rng.randrange(1, len(log[name]))
    log[name] = log[name][:at] + log[name][at + 1 :]
    return log


def header_lost(log: Log, rng: Random) -> Log:
    """The first line of a file is gone."""
    log = dict(log)
    name = rng.choice(sorted(log))
    log[name] = log[name][1:]
    return log


def tail_lost(log: Log, rng: Random) -> Log:
    """A writer was killed: its last lines never came."""
    log = dict(log)
    name = rng.choice(sorted(log))
    log[name] = log[name][: rng.randrange(1, len(log[name]))]
    return log


def versions_blurred(log: Log, rng: Random) -> Log:
    """Versions become intervals, or unknown."""

    def edit(line: Line, rng: Random) -> None:
        if line["kind"] == "span" and line.get("versions"):
            versions = line.pop("versions")
            line |= {"tokens": len(versions)}
            _widen(line, min(versions), max(versions), rng)
        elif line["kind"] in ("span", "step") and "version" in line:
            version = line.pop("version")
            _widen(line, version, version, rng)

    return _edited(log, rng, rng.choice((0.2, 1.0)), edit)


def _widen(line: Line, low: int, high: int, rng: Random) -> None:
    if rng.random() < 0.8:
        line["version_lo"] = max(0, low - rng.randrange(3))
    if rng.random() < 0.8:
        line["version_hi"] = high + rng.randrange(3)


def tokens_blurred(log: Log, rng: Random) -> Log:
    """Numbers of tokens, and of tokens in the loss, become intervals."""

    def edit(line: Line, rng: Random) -> None:
        if line["kind"] == "span" and "tokens" in line:
            tokens = line.pop("tokens")
            loss = line.pop("loss_tokens", None)
            if loss is None and rng.random() < 0.3:
                line["tokens_lo"], line["tokens_hi"] = tokens, tokens
                line["loss_tokens_lo"], line["loss_tokens_hi"] = max(0, tokens - rng.randrange(3)), tokens
                return
            line["tokens_lo"] = max(0, tokens - rng.randrange(3))
            if rng.random() < 0.8:
                line["tokens_hi"] = tokens + rng.randrange(3)
            if loss is not None:
                line["loss_tokens_lo"] = max(0, loss - rng.randrange(3))
                line["loss_tokens_hi"] = loss + rng.randrange(3)
                if "tokens_hi" in line:
                    line["loss_tokens_hi"] = min(line["loss_tokens_hi"], line["tokens_hi"])
        elif line["kind"] == "trained" and "loss_tokens" in line:
            loss = line.pop("loss_tokens")
            line["loss_tokens_lo"] = max(0, loss - rng.randrange(3))
            line["loss_tokens_hi"] = loss + rng.randrange(3)

    return _edited(log, rng, rng.choice((0.2, 1.0)), edit)


def steps_unconfirmed(log: Log, rng: Random) -> Log:
    """The lines of some steps were never written (and no number given to them)."""
    log = copy.deepcopy(log)
    for name, lines in log.items():
        used = {line["step"] for line in lines if line.get("kind") == "trained"}  # of others nothing would tell
        kept = [line for line in lines if line.get("kind") != "step" or line["step"] not in used or rng.random() < 0.5]
        log[name] = kept[:1] + [line | {"n": number} for number, line in enumerate(kept[1:], 1)]
    return log


def times_lost(log: Log, rng: Random) -> Log:
    """Some lines carry no time."""

    def edit(line: Line, rng: Random) -> None:
        for name in ("ts", "started", "ended"):
            line.pop(name, None)

    return _edited(log, rng, rng.choice((0.2, 0.7, 1.0)), edit)


def reasons_lost(log: Log, rng: Random) -> Log:
    """Why, and for which step, trajectories were dropped is not said."""

    def edit(line: Line, rng: Random) -> None:
        if line["kind"] in ("dropped", "cancelled", "lost"):
            if rng.random() < 0.7:
                line.pop("reason", None)
            if rng.random() < 0.7:
                line.pop("step", None)

    return _edited(log, rng, 0.7, edit)


ALL: tuple[Hiding, ...] = (
    lines_lost,
    one_line_lost,
    header_lost,
    tail_lost,
    versions_blurred,
    tokens_blurred,
    steps_unconfirmed,
    times_lost,
    reasons_lost,
)

"""The conditions of the gate in words: what is known of each, and what a baseline does to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from staleness_audit.report.terminal.words import Words

Data = Mapping[str, Any]
_WORSE = {"yes": "worse", "no": "no worse", "unknown": "perhaps worse"}
_HOLDS = {"yes": "true", "no": "not true", "unknown": "the logs can't tell"}
_FORGIVEN = {"no": ", forgiven as it is no worse than the baseline", "unknown": ", perhaps worse than the baseline"}


def condition_lines(data: Data, words: Words) -> Iterator[tuple[str, str]]:
    """Name and say each condition that was asked for, and what happened since the baseline if there is one."""
    gate = data["gate"]
    if gate["baseline"]:
        name = words.plain(gate["baseline"]["file"], 120)
        found = "" if gate["baseline"]["found"] else " holds no audit of this run, so everything counts"
        yield "baseline", name + found
    for condition in gate["conditions"]:
        if condition["kind"] == "fail-if" or condition["since_baseline"] is not None:
            text, known = words.plain(condition["condition"], 200), condition_words(condition, words)
            yield "fails if", f"{text}: {condition_outcome(condition)} ({known})"


def condition_outcome(condition: Mapping[str, Any]) -> str:
    """Say whether a condition is true, and whether the run fails by it."""
    outcome = _HOLDS[condition["holds"]]
    if condition["holds"] != "no" and condition["fails"] != condition["holds"]:
        outcome += _FORGIVEN[condition["fails"]]
    return outcome


def condition_words(condition: Mapping[str, Any], words: Words) -> str:
    """Say what is known of the figure of a condition, and how that compares with the baseline."""
    if condition["since_baseline"] is None:
        return f"{words.plain(condition['figure'], 100)} is {_value(condition['value'], words)}"
    return "since the baseline: " + ", ".join(_since(row, words) for row in condition["since_baseline"])


def _value(value: Any, words: Words) -> str:
    if value is None or isinstance(value, Mapping):
        return words.interval(value)
    return words.plain(str(value).lower() if isinstance(value, bool) else value, 100)


def _since(row: Mapping[str, Any], words: Words) -> str:
    before, now = _value(row["before"], words), _value(row["now"], words)
    change = f"still {now}" if before == now else f"{before} before, {now} now"
    return f"{words.plain(row['figure'], 100)} {_WORSE[row['worse']]} ({change})"

"""The verdict in words that a stranger understands: what is claimed, why, and what is promised beyond this run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from staleness_audit.report.terminal.words import Words, is_zero, number, step_number

Data = Mapping[str, Any]

NAMES = {"pass": "PASS", "fail": "FAIL", "inconclusive": "INCONCLUSIVE", "no-bound": "NO BOUND"}
STYLES = {
    "pass": "bold white on green",
    "fail": "bold white on red",
    "inconclusive": "bold black on yellow",
    "no-bound": "bold white on blue",
}


def headline(data: Data) -> str:
    """``FAIL``; ``FAIL, NOTHING NEW`` and ``FAIL, TOLERATED`` where the baseline or the gate forgives what is true."""
    return NAMES[data["verdict"]] + (f", {word.upper()}" if (word := forgiven(data)) else "")


def forgiven(data: Data) -> str:
    """``nothing new``, ``tolerated``: how the gate lets pass what is not proven to be within the bound; else empty."""
    condition = _violations_condition(data)
    if condition is None or condition["fails"] != "no" or data["verdict"] == "pass":
        return ""
    return "tolerated" if data["gate"]["max_violations"] or condition["since_baseline"] is None else "nothing new"


def _violations_condition(data: Data) -> Data | None:
    return next((row for row in data["gate"]["conditions"] if row["kind"] == "violations"), None)


def why(data: Data, words: Words) -> str:
    """What the verdict rests on, in a sentence; and in another whether that is worse than in the baseline."""
    sentence = {"pass": _why_pass, "fail": _why_fail, "inconclusive": _why_inconclusive, "no-bound": _why_no_bound}[
        data["verdict"]
    ](data, words)
    condition = _violations_condition(data)
    if condition is None or condition["since_baseline"] is None or condition["holds"] == "no":
        return sentence
    than = "in the baseline" + (" by more than is allowed" if data["gate"]["max_violations"] else "")
    return (
        sentence
        + {
            "no": f" Nothing of that is worse than {than}.",
            "yes": f" That is worse than {than}.",
            "unknown": f" Whether that is worse than {than}, the logs can't tell.",
        }[condition["fails"]]
    )


def _why_pass(data: Data, words: Words) -> str:
    largest, bound = data["staleness"]["max"], data["bound"]["value"]
    if largest["lo"] is None:
        return "Every trained token was masked out of the loss, so none can be too stale."
    return f"Every trained token was within the bound of {bound}: the largest staleness is {words.interval(largest)}."


def _why_fail(data: Data, words: Words) -> str:
    bound, proven = data["bound"]["value"], data["violations"]["trajectories"]["lo"] or 0
    trained = words.count(data["trajectories"]["trained"], "trained trajectory")
    largest = data["staleness"]["max"]
    if not proven:
        subject = "Some training data is"
    elif data["trajectories"]["trained"]["lo"] == data["trajectories"]["trained"]["hi"] == 1:
        subject = "The one trained trajectory is"
    else:
        subject = f"{number(proven)} of {trained} {'is' if proven == 1 else 'are'}"
    worst = words.interval(largest)
    return f"{subject} proven to hold tokens staler than the bound of {bound} allows; the worst is {worst}."


def _why_inconclusive(data: Data, words: Words) -> str:
    bound = data["bound"]["value"]
    if is_zero(data["trajectories"]["trained"]):
        return "No training step completed, so there is nothing to judge."
    if not data["trajectories"]["trained"]["lo"]:
        return "No training step is confirmed to have completed, so nothing is proven either way."
    if _unread(data):
        return (
            "No violation is proven, but a part of the logs is missing, damaged or contradicts itself, and it may hold "
            f"tokens beyond the bound of {bound}."
        )
    possible = data["violations"]["trajectories"]
    if possible["hi"] is None or is_zero(possible):
        return (
            f"No violation is proven, but the logs don't say of every trained token whether it kept the bound {bound}."
        )
    who = words.count({"lo": possible["hi"], "hi": possible["hi"]}, "trained trajectory")
    return (
        f"No violation is proven, but up to {who} may exceed the bound of {bound}: the logs narrow their staleness "
        "down only to an interval."
    )


def _unread(data: Data) -> bool:
    return any(item["opens"] == "training" for item in data["diagnostics"]["items"])


def _why_no_bound(data: Data, words: Words) -> str:
    largest = data["staleness"]["max"]
    why = "the run's configuration states no bound, and none was given with --bound."
    if largest["lo"] is None and largest["hi"] is None:
        nothing = is_zero(data["trajectories"]["trained"])
        return f"{'Nothing was trained' if nothing else 'The logs show no trained token'}; {why}"
    return f"The largest staleness is {words.interval(largest)}. Whether that is too much is not judged: {why}"


def dialect_of(run: Data) -> str:
    """The form of a framework's logs; empty if that says no more than its name and release do."""
    dialect = run.get("dialect")
    return "" if not dialect or dialect in (run["framework"], run["framework_version"]) else str(dialect)


def bound_line(data: Data, words: Words) -> str:
    """Say which bound was judged, where it comes from, and how it was converted."""
    bound = data["bound"]
    key = words.plain(bound["key"], 120) if bound["key"] else None
    stated = None if bound["configured"] is None else words.plain(_short_json(bound["configured"]), 80)
    conversion = words.plain(bound["conversion"], 300) if bound["conversion"] else None
    if bound["source"] == "cli":
        return f"{bound['value']}, given with --bound" + (f" (the run's configuration says {stated})" if stated else "")
    if bound["source"] == "config":
        where = f"{key} = {stated}" if key and stated else (key or "it")
        return f"{bound['value']}, from the run's configuration: {where}" + (f" ({conversion})" if conversion else "")
    return f"none ({conversion})" if conversion else "none"


def _short_json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def promise_lines(data: Data, words: Words) -> tuple[str, str]:
    """Compliance observed in this run apart from what the mechanism guarantees; and the reason for the latter."""
    verdict, strict, limit = data["verdict"], data["guarantee"]["strict"], data["guarantee"]["limit"]
    reach = "it sets no limit" if limit == "none" else f"its limit is {limit}"
    observed = {
        "pass": "This run kept the bound",
        "fail": "This run broke the bound",
        "inconclusive": "Whether this run kept the bound is not known",
    }.get(verdict)
    reason = words.plain(data["guarantee"]["reason"], 600).rstrip(". ") + "."
    if observed is None:
        if limit is None:
            return "What limit the mechanism sets is not known", reason
        return (
            "The mechanism sets no limit to staleness"
            if limit == "none"
            else f"The mechanism limits staleness to {limit}"
        ), reason
    if strict is None and verdict == "inconclusive":
        return "Neither whether this run kept the bound nor whether the mechanism guarantees it is known", reason
    if strict is None:
        return f"{observed}; whether the mechanism guarantees it is not known", reason
    if strict:
        joint = {
            "pass": ", and the mechanism guarantees it",
            "fail": " although the mechanism guarantees it: something did not work as designed",
        }
        return observed + joint.get(verdict, "; by design the mechanism guarantees it") + f" ({reach})", reason
    joint = {"pass": ", but the mechanism does not guarantee it", "fail": ", and the mechanism does not guarantee it"}
    return observed + joint.get(verdict, ", and the mechanism does not guarantee it") + f" ({reach})", reason


def violation_lines(data: Data, words: Words) -> tuple[str, str]:
    """Proven violations, and those that are possible beside them."""
    violations = data["violations"]
    units = {unit: violations[unit] for unit in ("trajectories", "groups", "tokens")}
    steps = violations["steps"] or []
    proven = _listed({unit: value["lo"] or 0 for unit, value in units.items()}, words) or "none"
    if proven != "none":
        if steps:
            proven += f", in {len(steps)} {'step' if len(steps) == 1 else 'steps'} ({_listed_steps(steps, words)})"
        if ranges := violations.get("step_ranges"):
            proven += f"; of steps {_listed_steps(ranges, words)} each taken together: in which of them is not known"
    if any(value["hi"] is None for value in units.values()):
        return proven, "an unknown number" + ("" if proven == "none" else " more")
    beyond = _listed({unit: value["hi"] - (value["lo"] or 0) for unit, value in units.items()}, words)
    if not beyond:
        return proven, "none" if proven == "none" else "none beside these"
    return proven, f"up to {beyond}" + ("" if proven == "none" else " more")


def _listed(amounts: Mapping[str, int], words: Words) -> str:
    """``2 trajectories, 14 tokens``: what there is any of."""
    return ", ".join(
        words.count({"lo": amount, "hi": amount}, _SINGULAR[unit]) for unit, amount in amounts.items() if amount
    )


_SINGULAR = {"trajectories": "trajectory", "groups": "group", "tokens": "token"}


def _listed_steps(steps: list[Mapping[str, Any]], words: Words, most: int = 8) -> str:
    several = len({row["attempt"] for row in steps}) > 1
    names = [
        step_number(row, words.glyphs) + (f" of attempt {row['attempt']}" if several else "") for row in steps[:most]
    ]
    return ", ".join(names) + (f", and {len(steps) - most} more" if len(steps) > most else "")


def gate_line(data: Data) -> str:
    """Say the exit code and what it counts."""
    gate = data["gate"]
    if data["verdict"] == "no-bound" and not gate["conditions"]:
        return f"exit code {gate['exit']}: no bound to judge by"
    meaning = {0: "accepted", 1: "refused", 3: "not known"}.get(gate["exit"], "")
    allowed = _allowed(data)
    if gate["exit_zero"] and any(condition["fails"] != "no" for condition in gate["conditions"]):
        return f"exit code {gate['exit']}, as --exit-zero asks ({allowed})"
    return f"exit code {gate['exit']}: {meaning} ({allowed})"


def _allowed(data: Data) -> str:
    gate = data["gate"]
    if data["verdict"] == "no-bound":
        return "no bound to judge by"
    unit = gate["count"]
    if gate["baseline"] and gate["baseline"]["found"]:
        more = f"{number(gate['max_violations'])} more violating {unit}" if gate["max_violations"] else "nothing worse"
        return f"{more} than in the baseline allowed"
    return (
        f"at most {number(gate['max_violations'])} violating {unit} allowed"
        if gate["max_violations"]
        else f"no violating {unit} allowed"
    )

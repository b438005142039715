"""Holds an audit's document against the truth: equal to it, or around it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

CLASSES = ("dropped", "cancelled", "lost")


def at(document: dict[str, Any], path: str) -> Any:
    """The value at a dotted path."""
    value: Any = document
    for part in path.split("."):
        value = value[part]
    return value


def differences(document: dict[str, Any], truth: dict[str, Any]) -> list[str]:
    """Every figure that is not exactly the truth; empty if all are."""
    found: list[str] = []
    for path, value in truth.items():
        if path == "per_step":
            found += _step_differences(document["per_step"], value, _unequal)
        elif path == "violations.steps":
            steps = sorted((row["attempt"], row["step"]) for row in at(document, path) if row["trajectories"]["lo"] > 0)
            if steps != value:
                found.append(f"{path}: {steps}, truth {value}")
        elif path.endswith("histogram"):
            unit = "tokens" if "token_h" in path else "trajectories"
            rows = {row["staleness"]: row[unit] for row in at(document, path)}
            for staleness in sorted(set(rows) | set(value)):
                got = rows.get(staleness, {"lo": 0, "hi": 0})
                if _unequal(got, value.get(staleness, 0)):
                    found.append(f"{path}[{staleness}]: {got}, truth {value.get(staleness, 0)}")
        elif path.split(".")[-1] in CLASSES:
            for reason in sorted(set(value) | set(at(document, path))):
                got = at(document, path).get(reason, {"lo": 0, "hi": 0})
                if _unequal(got, value.get(reason, 0)):
                    found.append(f"{path}.{reason}: {got}, truth {value.get(reason, 0)}")
        elif _unequal(at(document, path), value):
            found.append(f"{path}: {at(document, path)}, truth {_plain(value)}")
    return found


def escapes(document: dict[str, Any], truth: dict[str, Any]) -> list[str]:
    """Every interval that does not hold the truth, and a verdict that claims what is not so."""
    found: list[str] = []
    for path, value in truth.items():
        if path.startswith("throughput"):
            continue  # rates and time averages describe the steps that were read and confirmed
        got = at(document, path)
        if path == "verdict":
            # If it is not known whether any token was trained, "every trained token is clean" may hold of none.
            if (got, value) in {("pass", "fail"), ("fail", "pass"), ("fail", "inconclusive")}:
                found.append(f"verdict: {got}, truth {value}")
        elif path == "per_step":
            found += _step_differences(got, value, _outside, partial=True)
        elif path == "violations.steps":
            proven = {(row["attempt"], row["step"]) for row in got if row["trajectories"]["lo"] > 0}
            if proven - set(value):
                found.append(f"{path}: {sorted(proven)} proven, truth {value}")
        elif path.endswith("histogram"):
            unit = "tokens" if "token_h" in path else "trajectories"
            found += _histogram_escapes(path, got, unit, value)
        elif path.split(".")[-1] in CLASSES:
            found += _class_escapes(path, got, value)
        elif _outside(got, value):
            found.append(f"{path}: {got}, truth {_plain(value)}")
    return found


def _class_escapes(path: str, got: dict[str, Any], value: dict[str, int]) -> list[str]:
    """Reasons are refined by what is known: what a class named ``unknown`` leaves open may be of any reason."""
    found = []
    spare = got.get("unknown", {"lo": 0, "hi": 0})["hi"]
    for reason in sorted(set(value) | set(got)):
        interval, true = got.get(reason, {"lo": 0, "hi": 0}), value.get(reason, 0)
        if reason != "unknown" and interval["lo"] > true:
            found.append(f"{path}.{reason}: {interval}, truth {true}")
        if interval["hi"] is not None and true > interval["hi"] and spare is not None:
            spare -= true - interval["hi"]
    if spare is not None and spare < 0:
        found.append(f"{path}: {got}, truth {value}")
    return found


def _histogram_escapes(path: str, got: list[dict[str, Any]], unit: str, value: dict[int, int]) -> list[str]:
    found = []
    rows = {row["staleness"]: row[unit] for row in got if not row.get("or_more")}
    tails = [row for row in got if row.get("or_more")]
    for staleness, true in value.items():
        interval = rows.get(staleness, {"lo": 0, "hi": 0})
        in_tail = any(staleness >= row["staleness"] for row in tails)
        if interval["lo"] > true or (interval["hi"] is not None and interval["hi"] < true and not in_tail):
            found.append(f"{path}[{staleness}]: {interval}, truth {true}")
    for staleness, interval in rows.items():
        if staleness not in value and interval["lo"] > 0:
            found.append(f"{path}[{staleness}]: {interval}, truth 0")
    for row in tails:
        true = sum(count for staleness, count in value.items() if staleness >= row["staleness"])
        if row[unit]["lo"] > true:
            found.append(f"{path}[{row['staleness']} or more]: {row[unit]}, truth {true}")
    return found


def _step_differences(
    rows: list[dict[str, Any]], truth: dict[Any, dict[str, Any]], wrong: Any, partial: bool = False
) -> list[str]:
    found = []
    by_key = {(row["attempt"], row["step"]): row for row in rows}
    for key in sorted(set(by_key) ^ set(truth)):
        if not partial:
            found.append(f"per_step {key}: only in {'the audit' if key in by_key else 'the truth'}")
    for key in sorted(set(by_key) & set(truth)):
        for name, value in truth[key].items():
            if wrong(by_key[key][name], value):
                found.append(f"per_step {key} {name}: {by_key[key][name]}, truth {_plain(value)}")
    return found


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Fraction) else value


def _close(left: Any, right: Any) -> bool:
    return abs(float(left) - float(right)) <= 1e-9 * max(1.0, abs(float(right)))


def _unequal(got: Any, true: Any) -> bool:
    if isinstance(got, dict):
        return _unequal(got["lo"], true) or _unequal(got["hi"], true)
    if got is None or true is None or isinstance(true, str):
        return bool(got != true)
    return not _close(got, true)


def _outside(got: Any, true: Any) -> bool:
    """A truth of None (nothing trained) can only be contradicted by an interval that claims a lower end."""
    if not isinstance(got, dict):
        return got is not None and _unequal(got, true)
    if true is None:
        return False
    low, high = got["lo"], got["hi"]
    if low is not None and float(true) < float(low) and not _close(low, true):
        return True
    return high is not None and float(true) > float(high) and not _close(high, true)


def unaccounted(document: dict[str, Any]) -> list[str]:
    """Parts of the generated tokens and of the trajectories seen that cannot add up to all of them."""
    found = []
    tokens, lived = document["tokens"], document["trajectories"]
    for what, block, whole, parts in (
        ("tokens", tokens, "generated", ("trained_distinct", "masked", "pending", "unaccounted")),
        ("trajectories", lived, "seen", ("trained", "pending", "unknown")),
    ):
        counts = [block[part] for part in parts] + [count for kind in CLASSES for count in block[kind].values()]
        low, high = sum(count["lo"] for count in counts), [count["hi"] for count in counts]
        top = None if None in high else sum(high)
        if block[whole]["hi"] is not None and low > block[whole]["hi"]:
            found.append(f"{what}: parts are at least {low}, {whole} is {block[whole]}")
        if top is not None and top < block[whole]["lo"]:
            found.append(f"{what}: parts are at most {top}, {whole} is {block[whole]}")
    return found

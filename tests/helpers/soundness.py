"""Whether an audit excludes what is true: the truth of a recorded run against intervals of an audit of what is left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from helpers.cases import WHERE
from staleness_audit.check.checker import check
from staleness_audit.rebuild import Rebuilt

VIOLATIONS = {"tokens": "token_histogram", "trajectories": "trajectory_histogram"}
BOUNDS = range(3)
Range = tuple[float, float]


def kind_of(path: Path) -> str:
    """Name of a class of files: what differs only in numbers and identifiers is one."""
    name = re.sub(r"\d+", "N", re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{24,}", "U", str(path)))
    return name if path.suffix in {".log", ".yaml", ".json"} and "N/" not in name else f"{Path(name).parent}/*"


def pair(interval: Any) -> Range:
    """Ends of an interval, a sum of intervals by reason, or a number; infinite where open."""
    if isinstance(interval, Mapping) and not {"lo", "hi"} >= set(interval):
        parts = [pair(part) for part in interval.values()]
        return sum(part[0] for part in parts), sum(part[1] for part in parts)
    if not isinstance(interval, Mapping):
        return (0, float("inf")) if interval is None else (interval, interval)
    low, high = interval.get("lo"), interval.get("hi")
    return (-float("inf") if low is None else low, float("inf") if high is None else high)


def counted(data: Mapping[str, Any], truth: Mapping[str, Any]) -> Iterator[tuple[str, Range, float]]:
    """Yield what the audit says and what is true of each thing that is known."""
    for name, (part, key) in WHERE.items():
        if name not in truth or name.startswith("violating"):
            continue
        if not name.endswith("histogram"):
            yield name, (0, 0) if data[part][key] == {} else pair(data[part][key]), truth[name]
            continue
        unit = name.removesuffix("_histogram") + "s" if name == "token_histogram" else "trajectories"
        true = {int(age): count for age, count in truth[name].items()}
        said = {row["staleness"]: row for row in data[part][key]}
        for age in sorted(said.keys() | true.keys()):
            if any(row.get("or_more") and row["staleness"] <= age for row in said.values()):
                continue
            yield f"{name}[{age}]", pair(said[age][unit]) if age in said else (0, 0), true.get(age, 0)


def unsound(built: Rebuilt, truth: Mapping[str, Any], *, early: bool) -> Iterator[str]:
    """Yield what the audit gets wrong; of a log that ends early only lower ends can be."""
    for name, (low, high), true in counted(check(built, None, worst=0), truth):
        if low > true or (high < true and not early):
            yield f"{name}: {true} is outside of {low} to {high}"
    for bound in BOUNDS:
        data = check(built, bound, worst=0)
        for unit, histogram in VIOLATIONS.items():
            if histogram not in truth:
                continue
            true = sum(count for age, count in truth[histogram].items() if int(age) > bound)
            low, high = pair(data["violations"][unit])
            if low > true or (high < true and not early):
                yield f"{true} violating {unit} of bound {bound} are outside of {low} to {high}"
            if data["verdict"] == ("fail" if not true else "pass") and not (early and true):
                yield f"verdict {data['verdict']} on bound {bound}, which {true} {unit} break"

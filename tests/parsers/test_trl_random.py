"""Toy runs of many shapes: whatever the settings and whichever files are left, the truth lies in every interval."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from trl_run import Plan, Sim, truth, write

from staleness_audit.api import audit


def shape(seed: int) -> tuple[list[Sim], dict[str, bool]]:
    pick = random.Random(seed)
    plan = Plan(
        steps=pick.choice([8, 12]),
        bound=pick.choice([0, 1, 1, 2, 4]),
        sync=pick.choice([1, 1, 1, 2, 3]),
        micro=pick.choice([1, 1, 2, 3]),
        size=pick.choice([2, 4, 3]),
        processes=pick.choice([1, 1, 2]),
        budget=pick.choice([-1, -1, 80, 120]),
        group=pick.choice([4, 2, 8]),
        slots=pick.choice([8, 12, 32]),
        logging=pick.choice([1, 1, 4, 3]),
        train_time=pick.choice([3.0, 12.0, 30.0]),
        seed=seed,
        old=pick.random() < 0.35,
        longest=pick.choice([30, 60]),
    )
    files = {"state": pick.random() < 0.8, "console": pick.random() < 0.8}
    if pick.random() < 0.35:
        first = Sim(plan).run(4 + pick.choice([0, 1, 2, 3]))
        label = pick.choice([0, 1 + 4 // plan.sync])
        return [first, Sim(plan, start=4, label=label, launch=1, at=first.now + 50).run(plan.steps)], files
    return [Sim(plan).run(plan.steps - pick.choice([0, 0, 1]))], files


def enclosed(data: dict[str, Any], told: dict[str, Any]) -> list[str]:
    """Names of the intervals that miss the truth."""
    dropped = data["trajectories"]["dropped"].values()
    intervals: list[tuple[str, dict[str, Any], int]] = [
        ("steps", data["run"]["steps"], told["steps"]),
        ("trained", data["trajectories"]["trained"], told["trajectories"]),
        ("tokens", data["tokens"]["trained"], told["tokens"]),
        ("max", data["staleness"]["max"], told["max"]),
        ("violating", data["violations"]["trajectories"], told["violating"]),
        ("violating tokens", data["violations"]["tokens"], told["violating_tokens"]),
        ("violating groups", data["violations"]["groups"], told["groups"]),
        (
            "dropped",
            {
                "lo": sum(one["lo"] for one in dropped),
                "hi": None if any(one["hi"] is None for one in dropped) else sum(one["hi"] for one in dropped),
            },
            told["dropped"],
        ),
    ]
    for name, unit in (("token_histogram", "tokens"), ("trajectory_histogram", "trajectories")):
        found = {row["staleness"]: row[unit] for row in data["staleness"][name]}
        for lag in set(found) | set(told[name]):
            intervals.append((f"{unit} {lag} old", found.get(lag, {"lo": 0, "hi": 0}), told[name].get(lag, 0)))
    return [
        f"{name}: {value} not in {interval}"
        for name, interval, value in intervals
        if not (interval["lo"] or 0) <= value <= (float("inf") if interval["hi"] is None else interval["hi"])
    ]


@pytest.mark.parametrize("seed", range(10))
def test_the_truth_is_enclosed(tmp_path: Path, seed: int) -> None:
    launches, files = shape(seed)
    write(tmp_path / "run", launches, **files)
    data = audit(tmp_path / "run", tables=tmp_path / "tables").data
    assert enclosed(data, truth(launches)) == []
    assert not data["diagnostics"]["errors"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 200))
def test_the_truth_is_enclosed_in_many_more(tmp_path: Path, seed: int) -> None:
    test_the_truth_is_enclosed(tmp_path, seed)

"""DryRun-RL's model against DryRun-RL: figures of its runs as its guide has them, and a recorded run event by event."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from staleness_audit.simulate.dryrun import DryRun, Limits, Outcome, lengths, simulate

ROOT = Path(__file__).parents[2]

UNIFORM = {"name": "uniform", "lo": 50, "hi": 200}
BIMODAL = {"name": "bimodal", "short_len": 50, "long_len": 500, "long_frac": 0.25}


def lognormal(sigma: float = 1.0) -> dict[str, Any]:
    return {"name": "lognormal", "mu": 4.0, "sigma": sigma}


def test_workloads_begin_as_the_originals_do() -> None:
    assert lengths(**UNIFORM)[:6] == [78, 56, 120, 112, 107, 85]
    assert lengths(**BIMODAL)[:10] == [50, 50, 50, 50, 50, 50, 500, 500, 50, 500]
    assert lengths(**lognormal())[:6] == [69, 33, 191, 47, 20, 96]
    assert lengths("powerlaw", alpha=2, lo=10, hi=1000)[:6] == [16, 10, 11, 11, 19, 17]
    assert lengths("fixed", lo=7, n=3) == [7, 7, 7]


# Overrides, versions; consumed and dropped requests, start of the first and end of the last step, consumed tokens,
# largest true and reported staleness, consumed requests with tokens of several versions.
RUNS: list[tuple[str, dict[str, Any], dict[str, Any], int, tuple[Any, ...]]] = [
    ("areal", BIMODAL, {}, 3, (24, 0, 1.4782192, 5.3926988, 1200, 1, 1, 5)),
    ("roll", lognormal(1.6), {"max_staleness": 1}, 12, (96, 35, 1.4902, 15.3552, 3846, 1, 1, 19)),
    ("psrl", lognormal(), {"max_staleness": 1, "n_instances": 2}, 8, (64, 55, 0.8906, 10.330023, 1871, 1, 1, 0)),
    (
        "psrl",
        lognormal(),
        {"max_staleness": 1, "n_instances": 2, "partial_rollout": False},
        8,
        (64, 0, 0.8906, 10.3756, 5822, 1, 1, 11),
    ),
    ("verl", UNIFORM, {"knobs": {"staleness_threshold": 0.5}}, 8, (64, 0, 3.0434842, 20.2800505, 7026, 5, 1, 56)),
    ("slime", lognormal(), {"knobs": {"over_sampling_ratio": 1.5}}, 6, (48, 27, 1.5054, 7.5554, 1850, 1, 1, 0)),
    ("slime", UNIFORM, {"knobs": {"interval": 2}}, 9, (72, 0, 1.3556, 12.7956, 8376, 2, 2, 0)),
    (
        "areal",
        lognormal(1.5),
        {
            "limits": Limits(kv_blocks=200, max_concurrency=6),
            "token_budget": 256,
            "train_s": 0.0,
            "train_token_s": 0.0001,
            "recompute_token_s": 0.0001,
            "sync_s": 0.3,
        },
        12,
        (96, 0, 2.2593161, 36.9062848, 12584, 3, 1, 26),
    ),
    (
        "verl",
        lognormal(1.6),
        {"knobs": {"staleness_threshold": 0.5, "window": 2}},
        20,
        (160, 0, 1.3532192, 38.9775717, 18135, 15, 0, 87),
    ),
    # Two recorded runs that are not among the samples below.
    ("psrl", BIMODAL, {"n_instances": 2}, 10, (80, 80, 0.8654, 22.2480719, 4000, 1, 1, 0)),
    ("slime", UNIFORM, {"n_instances": 2}, 12, (96, 0, 1.1508, 14.4558, 11366, 1, 1, 0)),
]


@pytest.mark.parametrize(("policy", "work", "inputs", "versions", "expected"), RUNS)
def test_figures_of_its_runs(
    policy: str, work: dict[str, Any], inputs: dict[str, Any], versions: int, expected: tuple[Any, ...]
) -> None:
    outcome = simulate(DryRun(policy, lengths(**work), **inputs), versions)
    consumed, dropped, first, last, tokens, true, reported, mixed = expected
    batches = [(step, request) for step, (_, _, batch) in enumerate(outcome.steps) for request in batch]
    assert (len(batches), len(outcome.dropped)) == (consumed, dropped)
    assert outcome.steps[0][0] == pytest.approx(first, abs=1e-6)
    assert outcome.steps[-1][1] == pytest.approx(last, abs=1e-6)
    assert sum(request.generated for _, request in batches) == tokens
    assert max(outcome.staleness()) == true
    assert max(step - request.newest() for step, request in batches) == reported
    assert sum(len(request.made) > 1 for _, request in batches) == mixed


def recorded(case: Path) -> tuple[Outcome, list[dict[str, Any]]]:
    """Make the run of a recorded case again, up to its last step, and return its request log with it."""
    config = yaml.safe_load((case / "run" / ".hydra" / "config.yaml").read_text())
    work = dict(config["workload"]["output"])
    policy = config["policy"]
    knobs = {
        "slime": {"over_sampling_ratio": "over_sampling_ratio", "interval": "update_weights_interval"},
        "verl": {
            "staleness_threshold": "staleness_threshold",
            "window": "trigger_parameter_sync_step",
            "require_batches": "require_batches",
        },
    }.get(policy["name"], {})
    rows = [json.loads(line) for line in (case / "run" / "logs" / "request.jsonl").read_text().splitlines()]
    run = DryRun(
        policy["name"],
        lengths(**work),
        config["job"]["batch_size"],
        config["job"]["max_staleness"],
        config["rollout"]["n_instances"],
        config["rollout"]["partial_rollout"],
        knobs={name: policy[key] for name, key in knobs.items()},
    )
    return simulate(run, 1 + max(row["consume_version"] for row in rows if row["event"] == "consume")), rows


CASES = sorted(path.parent for path in (ROOT / "sample_traces" / "dryrun").glob("*/expected.json"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_recorded_run_event_by_event(case: Path) -> None:
    """Which requests each step takes, when, and how old they are; which are dropped, and when."""
    outcome, rows = recorded(case)
    found = [
        (step, request.rid, step - request.oldest(), step - request.newest(), round(start, 6))
        for step, (start, _, batch) in enumerate(outcome.steps)
        for request in batch
    ]
    assert found == [
        (row["consume_version"], row["rid"], row["staleness_true"], row["staleness_reported"], round(row["t"], 6))
        for row in rows
        if row["event"] == "consume"
    ]
    # Requests that expire in one update do so in any order.
    dropped = Counter((round(at, 6), request.rid) for at, request in outcome.dropped)
    assert dropped == Counter((round(row["t"], 6), row["rid"]) for row in rows if row["event"] == "drop")


def test_it_stops_where_nothing_can_happen_any_more() -> None:
    run = DryRun("psrl", lengths(**lognormal()), knobs={})
    assert not simulate(run, 5).stalled
    with pytest.raises(KeyError):
        simulate(DryRun("nobody", [5]), 1)

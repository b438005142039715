"""A simulated run, told by its event log and by its framework's own artifacts: what these prove must hold of that."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from staleness_audit import audit
from staleness_audit.cli import app
from staleness_audit.simulate import artifacts
from staleness_audit.simulate.artifacts.dryrun import write as write_dryrun
from staleness_audit.simulate.dryrun import simulate as simulate_dryrun
from staleness_audit.simulate.dryrun.inputs import read_run
from staleness_audit.simulate.policies import build
from staleness_audit.simulate.setup import Setup, read_costs
from staleness_audit.simulate.workload import read_workload

Document = dict[str, Any]


def both(
    policy: str, folder: Path, *, bound: int, seed: int, workload: str, settings: dict[str, Any] | None = None
) -> tuple[Document, Document]:
    """Audit a run of 8 steps by its event log, which tells all, and by its framework's artifacts."""
    resources, cost = read_costs({"engines": "2"})
    settings = {"max_inflight": 24} | (settings or {}) if policy == "prime-rl" else settings
    rules = build(policy, bound=bound, batch=4, settings=settings)
    log = folder / "events" / "run.staleness.jsonl"
    log.parent.mkdir(parents=True)
    Setup(policy, rules, read_workload(workload), cost, resources, seed, bound).run(8, log)
    artifacts.write(policy, log, folder / "artifacts")
    # verl without a threshold states no bound.
    stated = bound if policy == "verl:null" else None
    return audit(log.parent).data, audit(folder / "artifacts", bound=stated).data


def within(known: dict[str, Any], true: dict[str, Any]) -> bool:
    """Whether an interval holds a number that is known exactly."""
    assert true["lo"] == true["hi"]
    return (known["lo"] or 0) <= true["lo"] and (known["hi"] is None or true["hi"] <= known["hi"])


def agrees(found: Document, true: Document) -> None:
    assert found["diagnostics"]["errors"] == found["diagnostics"]["warnings"] == 0
    # TRL's own figures are taken when rows are pulled, and say so.
    assert all(
        row["agrees"] is not False or "when a sample is pulled" in row["explanation"] for row in found["reported"]
    )
    assert found["bound"]["value"] == true["bound"]["value"]
    assert found["verdict"] in (true["verdict"], "inconclusive")
    for part, name in (
        ("staleness", "max"),
        ("staleness", "token_mean"),
        ("staleness", "trajectory_mean"),
        ("violations", "tokens"),
        ("violations", "trajectories"),
        ("violations", "groups"),
        ("tokens", "generated"),
    ):
        assert within(found[part][name], true[part][name]), (part, name, found[part][name], true[part][name])
    # Who was trained, with how many tokens, is exact in both formats.
    for part in ("tokens", "trajectories"):
        assert found[part]["trained"] == true[part]["trained"]
    for what in ("token", "trajectory"):
        counted = "tokens" if what == "token" else "trajectories"
        known = {row["staleness"]: row[counted] for row in found["staleness"][f"{what}_histogram"]}
        for row in true["staleness"][f"{what}_histogram"]:
            assert within(known[row["staleness"]], row[counted])
    stale = true["trajectories"]["dropped"].get("stale", {"lo": 0, "hi": 0})
    assert within(found["trajectories"]["dropped"].get("stale", {"lo": 0, "hi": None if stale["lo"] else 0}), stale)


LONG = "lognormal:group=2,sigma=1.2,prompt=20"
CASES = [
    ("verl:drop", 1, LONG),
    ("verl:wait", 2, "uniform:group=2,prompt=20"),
    ("skyrl", 1, LONG),
    ("skyrl", 0, LONG),
    ("prime-rl", 1, LONG),
    ("trl", 1, LONG),
]


@pytest.mark.parametrize(("policy", "bound", "workload"), CASES)
def test_what_the_artifacts_prove_is_true(policy: str, bound: int, workload: str, tmp_path: Path) -> None:
    true, found = both(policy, tmp_path, bound=bound, seed=1, workload=workload)
    agrees(found, true)
    assert found["run"]["framework"] == policy.partition(":")[0]
    # Where the guides say exact it is exact: verl records the largest staleness of each step; SkyRL's ages are those of
    # admissions, so the oldest token may be a version younger, except with a bound of 0; prime-rl's start versions may
    # be one too new where a call begins within a second of an update, as most do here.
    largest, proven = true["staleness"]["max"]["lo"], found["staleness"]["max"]
    assert proven == {"lo": max(largest - (policy == "skyrl"), 0), "hi": largest + (policy == "prime-rl")}
    assert found["verdict"] == ("inconclusive" if policy == "prime-rl" else true["verdict"])


def test_fates_of_a_prime_rl_run(tmp_path: Path) -> None:
    """Numbers of the log's warnings; members that had ended when their group was cancelled went with it."""
    true, found = both("prime-rl", tmp_path, bound=1, seed=1, workload=LONG)
    dropped, cancelled = found["trajectories"]["dropped"], found["trajectories"]["cancelled"]["stale"]
    assert dropped["stale"] == true["trajectories"]["dropped"]["stale"]
    gone = true["trajectories"]["cancelled"]["stale"]["lo"]
    assert dropped["group"]["lo"] + cancelled["lo"] <= gone <= dropped["group"]["hi"] + cancelled["hi"]


@pytest.mark.slow
def test_the_label_race_shows_in_no_artifact(tmp_path: Path) -> None:
    """Labels one too new: two trajectories break the bound, but all that the framework records keeps it."""
    true, found = both("prime-rl", tmp_path, bound=1, seed=2, workload=LONG, settings={"label_race": True})
    agrees(found, true)
    assert true["violations"]["trajectories"] == {"lo": 2, "hi": 2}
    assert found["verdict"] == "inconclusive" and found["violations"]["trajectories"]["lo"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("policy", artifacts.WRITERS)
def test_what_the_artifacts_prove_is_true_of_many_runs(policy: str, tmp_path: Path) -> None:
    for seed in range(2):
        for number, workload in enumerate((LONG, "pareto:low=10,alpha=1.3,prompt=20", "fixed:group=3,prompt=5")):
            for bound in (1, 3):
                folder = tmp_path / f"{seed}-{number}-{bound}"
                true, found = both(policy, folder, bound=bound, seed=seed, workload=workload)
                agrees(found, true)


DRYRUN = [
    ("dryrun:areal", "bimodal", {"n_instances": "2"}, {}),
    ("dryrun:psrl", "bimodal", {"partial_rollout": "false"}, {}),
    ("dryrun:roll", "lognormal:sigma=1.6", {}, {}),
    ("dryrun:slime", "lognormal", {}, {"over_sampling_ratio": "1.5"}),
    ("dryrun:verl", "lognormal:sigma=1.6", {"kv_blocks": "200"}, {"staleness_threshold": "0.5", "window": "2"}),
]


@pytest.mark.parametrize(("name", "workload", "costs", "knobs"), DRYRUN)
def test_dryrun_telemetry_is_exact(
    name: str, workload: str, costs: dict[str, str], knobs: dict[str, str], tmp_path: Path
) -> None:
    run = read_run(name, bound=1, batch=8, workload=workload, costs=costs, settings=knobs)
    outcome = simulate_dryrun(run, 8)
    write_dryrun(run, outcome, tmp_path)
    data = audit(tmp_path).data
    assert data["run"]["framework"] == "dryrun" and not data["diagnostics"]["items"]
    true: Counter[int] = Counter()
    for step, (_, _, batch) in enumerate(outcome.steps):
        for request in batch:
            for version, tokens in request.made.items():
                true[step - version] += tokens
    found = {row["staleness"]: row["tokens"] for row in data["staleness"]["token_histogram"]}
    assert found == {age: {"lo": tokens, "hi": tokens} for age, tokens in true.items()}
    fates = [*data["trajectories"]["dropped"].values(), *data["trajectories"]["cancelled"].values()]
    assert sum(part["lo"] for part in fates) == sum(part["hi"] for part in fates) == len(outcome.dropped)


class TestCommand:
    def run(self, *arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["simulate", *arguments])
        return result.exit_code, result.output

    def test_artifacts_beside_the_log(self, tmp_path: Path) -> None:
        small = ("--steps", "3", "--batch", "2", "--bound", "1", "--out")
        there = str(tmp_path / "artifacts")
        code, _ = self.run("skyrl", *small, str(tmp_path / "events"), "--artifacts", there)
        assert code == 0 and audit(tmp_path / "artifacts").data["run"]["framework"] == "skyrl"
        code, text = self.run("skyrl", *small, str(tmp_path / "more"), "--artifacts", there)
        assert code == 2 and "is not empty" in text.replace("\n", " ")
        code, text = self.run("areal", *small, str(tmp_path / "other"), "--artifacts", str(tmp_path / "none"))
        assert code == 2 and "no writer for areal" in text.replace("\n", " ")
        assert self.run("skyrl", "--artifacts", there)[0] == 2
        code, text = self.run(
            "prime-rl",
            *small,
            str(tmp_path / "old"),
            "--set",
            "queue_check=false",
            "--artifacts",
            str(tmp_path / "none"),
        )
        assert code == 2 and "queue_check=true" in text.replace("\n", " ")

    def test_dryrun(self, tmp_path: Path) -> None:
        arguments = ("dryrun:areal", "--steps", "5", "--batch", "4", "--bound", "0", "--workload", "bimodal:n=40")
        code, text = self.run(*arguments, "--cost", "n_instances=2", "--out", str(tmp_path / "run"), "--audit")
        assert "20 consumed" in text and code in (0, 1)
        code, text = self.run(*arguments, "--format", "json")
        assert code == 0 and json.loads(text)["consumed"] == 20
        for wrong in (
            ("dryrun:nobody",),
            ("dryrun:areal", "--workload", "pareto"),
            ("dryrun:areal", "--set", "window=2"),
            ("dryrun:areal", "--cost", "engines=2"),
            ("dryrun:areal", "--cost", "kv_blocks=2"),
            ("dryrun:slime", "--set", "interval=0"),
            ("dryrun:areal", "--cost", "train_s=nan"),
            ("dryrun:areal", "--workload", "uniform:lo=9,hi=3"),
        ):
            assert self.run(*wrong)[0] == 2, wrong

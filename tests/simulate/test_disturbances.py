"""What disturbs a timed run: full caches, ways to change weights, failing engines, a trainer that dies."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from staleness_audit import audit
from staleness_audit.errors import AuditError
from staleness_audit.simulate.engine import Cost, Engine, Sequence
from staleness_audit.simulate.policies import build
from staleness_audit.simulate.setup import Setup, read_costs
from staleness_audit.simulate.summary import Summary
from staleness_audit.simulate.workload import read_workload

SECOND = Cost(floor_s=1.0, step_s=0.0, token_s=0.0, context_s=0.0)
"""A step takes a second."""


def engine(cost: Cost, *calls: tuple[int, int]) -> Engine:
    """An engine with calls given as (context, tokens to make), which have joined."""
    made = Engine(0, cost)
    for number, (context, need) in enumerate(calls):
        made.add(Sequence(number, context, need, number))
    assert made.run(0.0) == []
    return made


class TestEngine:
    def test_a_full_cache_sends_the_youngest_back(self) -> None:
        """26 tokens of cache, contexts 10 and 10: after three steps two more tokens don't fit, so the second one waits.

        The first ends alone at 5 s; the second has 3 of its 5 tokens and needs 2 s more.
        """
        two = engine(Cost(floor_s=1.0, step_s=0.0, token_s=0.0, context_s=0.0, kv_tokens=26), (10, 5), (10, 5))
        assert two.plan(0.0) == 3.0 and two.run(3.0) == []
        assert two.preemptions == 1 and two.load() == (1, 1, 13 / 26)
        assert two.plan(3.0) == 5.0
        (first,) = two.run(5.0)
        assert first.trajectory == 0 and first.tokens == [(0, 5)]
        assert two.plan(5.0) == 7.0
        (second,) = two.run(7.0)
        assert second.trajectory == 1 and second.tokens == [(0, 3), (0, 2)]

    def test_resuming_fills_the_cache_again(self) -> None:
        """10 tokens of prompt and 2 made, 0.1 s each to prefill: 1 s, two steps, 1.2 s for new weights, three."""
        cost = Cost(floor_s=1.0, step_s=0.0, token_s=0.1, context_s=0.0, sync="resume")
        one = engine(cost, (10, 5))
        assert one.clock == 1.0  # the prompt
        one.serve(1, 0.0)
        assert one.plan(3.0) == 3.0 and one.run(3.0) == []
        assert one.plan(3.0) == pytest.approx(3.0 + 1.2 + 3.0)
        (call,) = one.run(7.2)
        assert call.tokens == [(0, 2), (1, 3)]

    def test_waiting_ends_what_runs_before_the_weights_change(self) -> None:
        """Two calls of 2 and 4 tokens run, a third waits for a place: it gets one only with the new weights, at 4 s."""
        cost = Cost(floor_s=1.0, step_s=0.0, token_s=0.0, context_s=0.0, concurrency=2, sync="wait")
        two = engine(cost, (0, 2), (0, 4))
        two.add(Sequence(2, 0, 1, 2))
        two.serve(1, 0.5)
        ends = {}
        now = 1.0
        while (when := two.plan(now)) is not None:
            now = when
            for call in two.run(now):
                ends[call.trajectory] = (now, call.tokens)
        assert ends == {0: (2.0, [(0, 2)]), 1: (4.0, [(0, 4)]), 2: (5.5, [(1, 1)])}

    def test_a_failure_loses_what_runs_and_what_waits(self) -> None:
        cost = Cost(floor_s=1.0, step_s=0.0, token_s=0.0, context_s=0.0, concurrency=1)
        one = engine(cost, (0, 9))
        one.add(Sequence(1, 0, 9, 1))
        lost = one.fail(3.0, 10.0)
        assert [(call.trajectory, call.tokens) for call in lost] == [(0, [(0, 3)]), (1, [])]
        assert one.active == 0 and one.plan(3.0) is None
        one.add(Sequence(2, 0, 2, 2))
        assert one.plan(4.0) == 13.0  # it is back, and only then takes calls


def simulated(
    name: str, costs: dict[str, str], path: Path | None = None, *, steps: int = 12, **knobs: Any
) -> tuple[Summary, Setup]:
    resources, cost = read_costs({"engines": "3", **costs})
    policy = build(name, bound=1, batch=4, settings=knobs)
    setup = Setup(name, policy, read_workload("lognormal:group=2,sigma=1.2,prompt=20"), cost, resources, 1, 1)
    return setup.run(steps, path), setup


def agrees(summary: Summary, folder: Path) -> dict[str, Any]:
    """Compare a run with the audit of its log, token by token; return the audit."""
    data = audit(folder).data
    assert not data["diagnostics"]["items"]
    found = {row["staleness"]: row["tokens"] for row in data["staleness"]["token_histogram"]}
    assert found == {age: {"lo": tokens, "hi": tokens} for age, tokens in summary.histogram.items()}
    for fate in ("dropped", "cancelled", "lost"):
        assert sum(part["lo"] for part in data["tokens"][fate].values()) == getattr(summary, f"{fate}_tokens")
    assert data["tokens"]["pending"] == {"lo": summary.pending_tokens, "hi": summary.pending_tokens}
    assert data["tokens"]["generated"] == {"lo": summary.generated_tokens, "hi": summary.generated_tokens}
    result: dict[str, Any] = data
    return result


class TestTrainer:
    def test_it_dies_and_comes_back_from_its_checkpoint(self, tmp_path: Path) -> None:
        """Checkpoints after steps 1, 3, 5, ... It dies in the 6th step of an attempt, so step 4 is rolled back."""
        summary, _ = simulated(
            "verl:drop", {"crash_steps": "6", "checkpoint_steps": "2"}, tmp_path / "run.staleness.jsonl"
        )
        data = agrees(summary, tmp_path)
        # Steps 0 to 4; 4 to 8; 8 to 11.
        assert summary.attempts == data["run"]["attempts"] == 3 and summary.steps == 12
        headers = [json.loads(path.open().readline()) for path in sorted(tmp_path.glob("*.staleness.jsonl"))]
        assert [(header.get("attempt"), header.get("resumed_after")) for header in headers] == [
            (1, 3),
            (2, 7),
            (None, None),
        ]
        assert data["run"]["steps"] == {"lo": 12, "hi": 12}
        assert set(data["trajectories"]["lost"]) == {"rolled_back", "error"}
        assert data["trajectories"]["lost"]["rolled_back"] == {"lo": 2 * 4 * 2, "hi": 2 * 4 * 2}
        assert (summary.max_staleness() or 0) <= 1  # the control starts afresh, and keeps its bound again

    def test_a_crash_before_the_first_checkpoint_begins_anew(self, tmp_path: Path) -> None:
        """It dies in its 4th step, with checkpoints after every third: steps 0 to 2, then from step 3 on."""
        summary, _ = simulated(
            "trl", {"crash_steps": "4", "checkpoint_steps": "3"}, tmp_path / "run.staleness.jsonl", steps=5
        )
        data = agrees(summary, tmp_path)
        assert summary.attempts == 2 and summary.steps == 5 and "rolled_back" not in data["trajectories"]["lost"]

    @pytest.mark.parametrize(
        ("name", "knob", "largest"), [("nemo-rl:in_order", "lookahead", 4), ("nemo-rl:async_grpo", "age", 1)]
    )
    def test_a_run_begins_from_the_checkpoint_of_another(
        self, name: str, knob: str, largest: int, tmp_path: Path
    ) -> None:
        """Bound 1, groups of v0 for four steps: in_order trains them all, async_grpo those that are young enough."""
        knobs = {f"resumed_from_{knob}": 4}
        summary, _ = simulated(name, {}, tmp_path / "run.staleness.jsonl", **knobs)
        agrees(summary, tmp_path)
        assert summary.steps == 12 and summary.max_staleness() == largest
        with pytest.raises(AuditError, match="begins from a checkpoint"):
            simulated(name, {"crash_steps": "4"}, **knobs)

    def test_a_run_that_could_not_get_on_is_refused(self) -> None:
        with pytest.raises(AuditError, match="gets nowhere"):
            read_costs({"crash_steps": "3", "checkpoint_steps": "3"})


class TestEngines:
    def test_rolling_weights_make_groups_older_than_their_label(self, tmp_path: Path) -> None:
        """Engines 1 and 2 serve v_n half a second and a second after the control believes so: one version beyond."""
        together, _ = simulated("verl:drop", {})
        rolling, _ = simulated("verl:drop", {"rolling_s": "0.5"}, tmp_path / "run.staleness.jsonl")
        assert together.max_staleness() == 1 and rolling.max_staleness() == 2
        agrees(rolling, tmp_path)
        # Each engine has its versions in order, and two of them serve different ones at one time.
        by_worker: dict[str, list[int]] = {}
        for line in (tmp_path / "run.staleness.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event.get("kind") == "span":
                by_worker.setdefault(event["worker"], []).append(event["version"])
        assert len(by_worker) == 3

    def test_what_a_failing_engine_loses_is_made_again(self, tmp_path: Path) -> None:
        costs = {"engine_failures_s": "4", "repair_s": "2"}
        summary, _ = simulated("roll", costs, tmp_path / "run.staleness.jsonl")
        data = agrees(summary, tmp_path)
        assert summary.steps == 12 and summary.lost_tokens > 0
        assert set(data["trajectories"]["lost"]) == {"error"}
        again, _ = simulated("roll", costs)
        assert again == summary  # failures have a seed, too

    def test_waiting_for_what_runs_never_mixes_versions(self, tmp_path: Path) -> None:
        summary, _ = simulated("areal", {"sync": "wait"}, tmp_path / "run.staleness.jsonl")
        agrees(summary, tmp_path)
        versions: dict[str, set[int]] = {}
        for line in (tmp_path / "run.staleness.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event.get("kind") == "span":
                versions.setdefault(event["trajectory_id"], set()).add(event["version"])
        assert Counter(map(len, versions.values())).keys() == {1}

    def test_nothing_to_do_is_a_stall_although_engines_go_on_failing(self) -> None:
        """weight_fifo with chunks of a whole batch, fewer in flight than a batch: it stalls."""
        summary, _ = simulated("nemo-rl:weight_fifo", {"engine_failures_s": "5"}, max_inflight_prompts=2)
        assert summary.stalled and summary.steps < 12


def test_a_run_in_which_no_attempt_succeeds_ends() -> None:
    """Engines that fail every tenth of a millisecond: what they make is lost before anything is finished."""
    summary, _ = simulated("areal", {"engine_failures_s": "0.0001", "repair_s": "0"})
    assert summary.stalled and summary.steps == 0


def test_the_adaptive_cap_follows_the_engines() -> None:
    """prime-rl: caches of 4,000 tokens, 2,048 per episode, one engine, so the first cap is 1."""
    resources, cost = read_costs({"engines": "1", "kv_tokens": "4000"})
    policy = build("prime-rl", bound=2, batch=4, settings={"adaptive": True})
    summary = Setup("prime-rl", policy, read_workload("uniform:prompt=100"), cost, resources, 1).run(20)
    assert summary.steps == 20 and (summary.max_staleness() or 0) <= 2
    assert summary.trajectories < 300  # without the cap 1,024 would begin at once

"""Timed runs: what the simulator says it did is what its log proves, and no token is made or lost on the way."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from typer.testing import CliRunner

from staleness_audit import audit
from staleness_audit.cli import app
from staleness_audit.errors import AuditError
from staleness_audit.simulate.engine import Cost, Engine, Sequence
from staleness_audit.simulate.policies import POLICIES, build
from staleness_audit.simulate.setup import Setup, read_costs
from staleness_audit.simulate.summary import Summary
from staleness_audit.simulate.timed import Resources
from staleness_audit.simulate.workload import Workload, read_workload

WORKLOADS = {
    "long tail": Workload(sigma=1.3, group=2, prompt=20),
    "turns and failures": Workload(
        name="uniform", low=5, high=90, group=2, turns=3, failures=0.1, filtered=0.1, prompt=20
    ),
    "all alike": Workload(name="fixed", low=40, prompt=20),
}
SMALL = Cost(concurrency=6, kv_tokens=900, sync="resume")
"""Few places and a small cache, so that sequences wait and are preempted."""


def setup(name: str, workload: Workload, *, seed: int = 1, bound: int | None = None, **knobs: Any) -> Setup:
    knobs |= {"max_inflight": 24} if name == "prime-rl" else {}
    policy = build(name, batch=4, bound=bound, settings=knobs)
    return Setup(name, policy, workload, SMALL, Resources(engines=2, train_s=0.8), seed, bound)


def accounted(summary: Summary) -> int:
    fates = (summary.dropped_tokens, summary.cancelled_tokens, summary.lost_tokens, summary.pending_tokens)
    return summary.trained_tokens + sum(fates)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("name", POLICIES)
def test_every_token_has_one_fate(name: str, workload: str) -> None:
    summary = setup(name, WORKLOADS[workload]).run(6)
    assert accounted(summary) == summary.generated_tokens
    assert sum(summary.histogram.values()) == summary.trained_tokens
    assert min(summary.histogram, default=0) >= 0  # nothing is made by a version that does not exist yet
    assert summary.steps == 6 or summary.stalled
    assert summary.stalled == (summary.steps < 6)


STRICT = (
    "verl:drop",
    "roll",
    "roll:agentic",
    "prime-rl",
    "nemo-rl:windowed",
    "nemo-rl:weight_fifo",
    "nemo-rl:in_order",
)


@pytest.mark.parametrize("name", [*STRICT, "nemo-rl:async_grpo", "psrl", "deadline", "openrlhf"])
def test_a_proven_bound_holds_against_a_clock(name: str) -> None:
    for seed in range(3):
        knobs = {"min_groups_for_streaming_train": 1} if name == "nemo-rl:weight_fifo" else {}
        summary = setup(name, WORKLOADS["long tail"], seed=seed, bound=1, **knobs).run(12)
        assert summary.steps == 12
        assert (summary.max_staleness() or 0) <= 1


def test_the_deadline_control_drops_nothing_and_fills_the_bound() -> None:
    summary = setup("deadline", WORKLOADS["long tail"], bound=4, lookahead=1).run(40)
    assert summary.dropped_tokens == summary.cancelled_tokens == 0
    assert summary.max_staleness() == 4  # a straggler had the whole bound
    whole = setup("deadline", WORKLOADS["long tail"], bound=4).run(40)
    assert summary.mean_staleness() < whole.mean_staleness()


@pytest.mark.parametrize(
    ("name", "workload"),
    [
        ("trl", "turns and failures"),
        ("nemo-rl:windowed", "long tail"),
        pytest.param("verl:drop", "long tail", marks=pytest.mark.slow),
        pytest.param("slime", "all alike", marks=pytest.mark.slow),
        pytest.param("prime-rl", "turns and failures", marks=pytest.mark.slow),
    ],
)
def test_the_audit_finds_in_the_log_what_the_simulator_did(name: str, workload: str, tmp_path: Path) -> None:
    summary = setup(name, WORKLOADS[workload], bound=1).run(8, tmp_path / "run.staleness.jsonl")
    data = audit(tmp_path).data
    assert not data["diagnostics"]["items"]
    found = {row["staleness"]: row["tokens"] for row in data["staleness"]["token_histogram"]}
    assert found == {age: {"lo": tokens, "hi": tokens} for age, tokens in summary.histogram.items()}
    tokens = data["tokens"]
    assert tokens["generated"] == {"lo": summary.generated_tokens, "hi": summary.generated_tokens}
    for fate in ("dropped", "cancelled", "lost"):
        assert sum(part["lo"] for part in tokens[fate].values()) == getattr(summary, f"{fate}_tokens")
    assert tokens["pending"] == {"lo": summary.pending_tokens, "hi": summary.pending_tokens}
    assert data["run"]["steps"] == {"lo": 8, "hi": 8}


def test_same_inputs_same_run(tmp_path: Path) -> None:
    first, second, other = (tmp_path / f"{name}.staleness.jsonl" for name in ("first", "second", "other"))
    setup("areal", WORKLOADS["turns and failures"]).run(5, first)
    setup("areal", WORKLOADS["turns and failures"]).run(5, second)
    setup("areal", WORKLOADS["turns and failures"], seed=2).run(5, other)
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()


def test_versions_never_decrease_inside_a_trajectory(tmp_path: Path) -> None:
    log = tmp_path / "run.staleness.jsonl"
    setup("skyrl", WORKLOADS["turns and failures"]).run(10, log)
    newest: dict[str, int] = {}
    mixed = 0
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event.get("kind") == "span":
            before = newest.get(event["trajectory_id"], 0)
            assert event["version"] >= before
            mixed += event["trajectory_id"] in newest and event["version"] > before
            newest[event["trajectory_id"]] = event["version"]
    assert mixed > 5  # it was put to the test


def test_one_engine_by_hand() -> None:
    """Two sequences of 3 and 5 tokens, a step costs 1 s: both gain three tokens, then one goes on alone."""
    engine = Engine(0, Cost(floor_s=1.0, step_s=0.0, token_s=0.0, context_s=0.0))
    for number, need in enumerate((3, 5)):
        engine.add(Sequence(number, 10, need, number))
    assert engine.plan(0.0) == 0.0 and engine.run(0.0) == []
    assert engine.plan(0.0) == 3.0
    engine.serve(1, 0.25)  # asked for at 1.5 s, done at the end of the step, with a pause
    assert engine.plan(1.5) == 2.0 and engine.run(2.0) == []
    assert engine.plan(2.0) == 3.25
    (short,) = engine.run(3.25)
    assert short.tokens == [(0, 2), (1, 1)]
    assert engine.plan(3.25) == 5.25
    (long,) = engine.run(5.25)
    assert long.tokens == [(0, 2), (1, 3)] and engine.active == 0 and engine.plan(9.0) is None


arrivals = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=8)
changes = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 3)), max_size=3)


@given(arrivals, changes, st.integers(1, 4), st.sampled_from([0.0, 0.01]))
@effort(max_examples=80, deadline=None)
def test_closed_form_time_is_step_by_step_time(
    incoming: list[tuple[int, int, int]], changed: list[tuple[int, int]], places: int, context_s: float
) -> None:
    """Against an engine that makes one step at a time; times in units of 0.3 s, so that few fall on a boundary."""
    cost = Cost(floor_s=0.5, step_s=0.05, token_s=0.02, context_s=context_s, concurrency=places, kv_tokens=10**9)
    work = sorted((0.3 * at, context, need) for at, context, need in incoming)
    syncs = sorted((0.31 * at + 0.003, 0.7 * pause) for at, pause in changed)
    fast, slow = _with_events(cost, work, syncs), _step_by_step(cost, work, syncs)
    assert fast.keys() == slow.keys()
    for number in fast:
        assert fast[number][0] == pytest.approx(slow[number][0], abs=1e-6)
        assert fast[number][1] == slow[number][1]


Ends = dict[int, tuple[float, list[tuple[int, int]]]]


def _with_events(cost: Cost, work: list[tuple[float, int, int]], syncs: list[tuple[float, float]]) -> Ends:
    engine, ended = Engine(0, cost), {}
    outside = sorted(
        [(at, 0, number) for number, (at, _) in enumerate(syncs)]
        + [(job[0], 1, number) for number, job in enumerate(work)]
    )
    now = 0.0
    while outside or engine.active:
        when = engine.plan(now)
        if outside and (when is None or outside[0][0] < when):
            now, kind, number = outside.pop(0)
            if kind:
                engine.add(Sequence(number, work[number][1], work[number][2], number))
            else:
                engine.serve(number + 1, syncs[number][1])
        else:
            assert when is not None
            now = when
            for sequence in engine.run(now):
                ended[sequence.trajectory] = (now, sequence.tokens)
    return ended


def _step_by_step(cost: Cost, work: list[tuple[float, int, int]], syncs: list[tuple[float, float]]) -> Ends:
    clock, version, ended = 0.0, 0, {}
    waiting, pending = list(enumerate(work)), list(syncs)
    running: dict[int, tuple[int, Counter[int]]] = {}
    while waiting or running:
        for number, (need, made) in list(running.items()):
            if made.total() == need:
                ended[number] = (clock, sorted(made.items()))
                del running[number]
        if not running and waiting and waiting[0][1][0] > clock:
            # Nothing runs: the next thing is a change of weights or an arrival, whichever is first.
            clock = max(clock, min([waiting[0][1][0], *(at for at, _ in pending[:1])]))
        while pending and pending[0][0] <= clock + 1e-9:
            version += 1
            clock += pending.pop(0)[1]
        while waiting and waiting[0][1][0] <= clock + 1e-9 and len(running) < cost.concurrency:
            joined = 0
            while waiting and waiting[0][1][0] <= clock + 1e-9 and len(running) < cost.concurrency:
                number, (_, context, need) = waiting.pop(0)
                running[number] = (need, Counter())
                joined += context
            clock += joined * cost.token_s
            while pending and pending[0][0] <= clock + 1e-9:
                version += 1
                clock += pending.pop(0)[1]
        if running:
            context = sum(work[number][1] + made.total() for number, (_, made) in running.items())
            clock += max(cost.floor_s, cost.step_s + cost.token_s * len(running) + cost.context_s * context)
            for _, made in running.values():
                made[version] += 1
    return ended


class TestWorkload:
    def test_families(self) -> None:
        from random import Random

        chance = Random(3)
        assert read_workload("fixed:low=7,group=3").draws(chance) == [7, 7, 7]
        uniform = [read_workload("uniform:low=5,high=9").draws(chance)[0] for _ in range(300)]
        assert set(uniform) == {5, 6, 7, 8, 9}
        bimodal = Counter(read_workload("bimodal:low=50,high=500,long=0.25").draws(chance)[0] for _ in range(2000))
        assert set(bimodal) == {50, 500} and 0.2 < bimodal[500] / 2000 < 0.3
        pareto = [read_workload("pareto:low=10,alpha=2,longest=1000").draws(chance)[0] for _ in range(2000)]
        assert min(pareto) == 10 and max(pareto) <= 1000 and 0.4 < sum(length < 14.14 for length in pareto) / 2000 < 0.6

    def test_no_length_is_too_long_to_be_cut(self) -> None:
        from random import Random

        assert read_workload("lognormal:mu=1000,longest=9").draws(Random(1)) == [9]
        assert read_workload("fixed:low=300").draws(Random(1)) == [300]

    def test_members_of_a_group_can_share_their_length(self) -> None:
        from random import Random

        assert len(set(read_workload("lognormal:group=8,shared=1").draws(Random(1)))) == 1
        assert len(set(read_workload("lognormal:group=8").draws(Random(1)))) > 4

    def test_lengths_of_an_audited_run(self, tmp_path: Path) -> None:
        from random import Random

        setup("areal", WORKLOADS["all alike"]).run(3, tmp_path / "run.staleness.jsonl")
        audit(tmp_path / "run.staleness.jsonl", tables=tmp_path / "tables")
        assert 40 in read_workload(f"empirical:tables={tmp_path / 'tables'}").draws(Random(0))

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("zipf", "there is no 'zipf'"),
            ("fixed:size=3", "there is no 'size'"),
            ("fixed:low=few", "'few' is none"),
            ("fixed:low=0", "at least 1"),
            ("uniform:low=9,high=3", "high is at least low"),
            ("lognormal:failures=1", "are shares"),
            ("lognormal:filtered=1", "are shares"),
            ("lognormal:mu=nan", "'nan' is none"),
            ("pareto:alpha=0.001", "alpha is at least"),
            ("empirical", "tables=DIR"),
            ("empirical:tables=nowhere", "holds no spans table"),
        ],
    )
    def test_what_is_wrong_is_said(self, text: str, words: str) -> None:
        with pytest.raises(AuditError, match=words):
            read_workload(text)


def test_costs() -> None:
    resources, cost = read_costs({"engines": "3", "train_s": "0.5", "sync": "resume", "concurrency": "7"})
    assert (resources.engines, resources.train_s, cost.sync, cost.concurrency) == (3, 0.5, "resume", 7)
    for values, words in (
        ({"engine": "3"}, "there is no 'engine'"),
        ({"engines": "0"}, "from 1 to 10,000"),
        ({"train_s": "-1"}, "from 0 to"),
        ({"train_s": "nan"}, "from 0 to"),
        ({"floor_s": "inf"}, "from 0 to"),
        ({"sync": "later"}, "continue, resume, wait"),
        ({"train_s": "long"}, "is a number"),
        ({"floor_s": "0", "step_s": "0", "token_s": "0"}, "some time"),
    ):
        with pytest.raises(AuditError, match=words):
            read_costs(values)


class TestCommand:
    def run(self, *arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["simulate", *arguments])
        return result.exit_code, result.output

    def test_simulate_and_audit(self, tmp_path: Path) -> None:
        out = str(tmp_path / "out")
        arguments = (
            "slime",
            "--steps",
            "6",
            "--batch",
            "2",
            "--bound",
            "0",
            "--workload",
            "uniform:group=2",
            "--out",
            out,
        )
        code, text = self.run(*arguments, "--audit")
        assert code == 1 and "FAIL" in text and "trained tokens per second" in text
        assert self.run(*arguments)[0] == 2  # there is a run already
        code, text = self.run("deadline", "--steps", "4", "--batch", "2", "--format", "json")
        assert code == 0 and json.loads(text)["steps"] == 4 and json.loads(text)["knobs"]["batch"] == 2

    def test_compressed_logs_are_read(self, tmp_path: Path) -> None:
        code, _ = self.run("roll", "--steps", "3", "--batch", "2", "--bound", "1", "--out", str(tmp_path), "--compress")
        assert code == 0 and audit(tmp_path).verdict == "pass"

    @pytest.mark.parametrize(
        "wrong",
        [
            ("nobody",),
            ("roll", "--audit"),
            ("roll", "--workload", "no"),
            ("roll", "--cost", "x=1"),
            ("roll", "--bound", "1000000000"),
            ("roll", "--workload", "fixed:group=100000000"),
        ],
    )
    def test_usage(self, wrong: tuple[str, ...]) -> None:
        assert self.run(*wrong)[0] == 2

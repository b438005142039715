"""The prover: it finds what is there, calls proven only what is, and its counterexamples stand without it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from staleness_audit import audit, plugins
from staleness_audit.cli import app
from staleness_audit.simulate.kernel import apply, initial, moves
from staleness_audit.simulate.policies import POLICIES, build
from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.prove import explore, prove
from staleness_audit.simulate.state import Group, State
from staleness_audit.simulate.story import replay, tell, write_log

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Uncontrolled(Policy):
    """Two slots, first in first out, no look at versions."""

    batch: int = 1
    sees = ()

    def room(self, state: State) -> int:
        return 2 - len(state.running) - len(state.done)

    def collect(self, state: State) -> None:
        for group in list(state.done.values())[: self.batch]:
            state.hold(group)


@dataclass(frozen=True)
class Dropping(Uncontrolled):
    """The same, but finished groups older than ``tolerated`` are dropped."""

    tolerated: int = 1
    sees = ("label",)

    def horizon(self) -> int:
        return self.tolerated + 1

    def finished(self, state: State, group: Group) -> None:
        self._sweep(state)

    def published(self, state: State) -> None:
        state.serving = state.v
        self._sweep(state)

    def _sweep(self, state: State) -> None:
        for group in [group for group in state.done.values() if state.v - group.label > self.tolerated]:
            state.drop(group)


class TestVerdicts:
    def test_a_straggler_without_control_has_no_limit(self) -> None:
        """g1 stays while g0 is trained under v0; g2 under v1; then g1 at staleness 2, or at any age."""
        proof = prove(Uncontrolled(), 1)
        assert proof.strict is False and proof.limit == "none"
        # Two admissions, finish, collect (the step begins), publish; the same again, then the straggler.
        assert proof.search.depth == 2 + 3 + 1 + 3 + 2

    def test_dropping_keeps_its_own_bound_and_no_smaller_one(self) -> None:
        kept = prove(Dropping(tolerated=1), 1)
        assert kept.strict is True and kept.limit == 1 and kept.search.closed
        broken = prove(Dropping(tolerated=2), 1)
        assert broken.strict is False and broken.limit == 2

    def test_no_schedule_is_shorter_than_the_one_found(self) -> None:
        rules = build("trl", bound=1, small=True)
        depth = prove(rules, 1).search.depth
        shorter = explore(rules, 2, stop_above=1, max_depth=depth - 1)
        assert shorter.schedule is None and not shorter.closed

    def test_giving_up_is_no_proof(self) -> None:
        proof = prove(build("roll", bound=2, small=True), 2, max_states=50)
        assert proof.strict is None and proof.limit is None and proof.search.schedule is None
        assert prove(build("roll", bound=2, small=True), 2, max_depth=3).strict is None

    def test_additional_prompts_of_roll_break_nothing_as_far_as_it_was_looked(self) -> None:
        """Nothing limits how many of them finish, so there are infinitely many states: no proof, but no violation."""
        extra = {"is_use_additional_prompts": True, "max_additional_running_prompts": 3}
        proof = prove(build("roll", bound=1, small=True, settings=extra), 1, max_states=3000)
        assert proof.strict is None and proof.search.schedule is None and proof.at_least == 1

    def test_weight_fifo_can_stall_unless_it_trains_small_chunks(self) -> None:
        """Fewer groups of the oldest version than a chunk needs, and none to come (NeMo-RL guide, 4.4)."""
        stalls = prove(build("nemo-rl:weight_fifo", bound=1, small=True), 1).whole.stuck
        assert stalls is not None
        rules = build("nemo-rl:weight_fifo", bound=1, small=True)
        state = initial(rules)
        for move in stalls:
            apply(rules, state, move)
        assert not state.running and rules.room(state) == 0
        oldest = min(group.label for group in state.done.values())
        assert [group.label for group in state.done.values()].count(oldest) < rules.batch
        small = build("nemo-rl:weight_fifo", bound=1, small=True, settings={"min_groups_for_streaming_train": 1})
        assert prove(small, 1).whole.stuck is None


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("bound", [0, 1, 2, 3])
def test_small_bounds_are_decided(name: str, bound: int) -> None:
    """Whether the bound holds, and if it does not, the true limit: the defaults get there."""
    if name.startswith("openrlhf") and bound == 0:
        return  # no knob of OpenRLHF stands for it
    proof = prove(build(name, bound=bound, small=True), bound)
    assert proof.strict is not None and proof.limit is not None


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "dressage"])
def test_the_horizon_changes_nothing(name: str) -> None:
    """Ages beyond what is asked for are alike to every rule, so looking further finds the same."""
    rules = build(name, bound=1, small=True)
    near, far = explore(rules, 3), explore(rules, 5)
    assert near.closed and far.closed and near.unlimited == far.unlimited
    if not near.unlimited:
        assert near.worst == far.worst
    assert near.worst == min(3, far.worst or 0)


@pytest.mark.parametrize("name", list(POLICIES))
def test_states_with_one_key_behave_alike(name: str) -> None:
    """Random schedules: whenever two states have one key, the keys that their moves lead to are the same, too."""
    rules, chance = build(name, bound=1, small=True), random.Random(name)
    successors: dict[object, set[object]] = {}
    for _ in range(25):
        state = initial(rules)
        for _ in range(60):
            following = _successors(rules, state)
            if not following:
                break
            keys = {rules.key(successor, 2) for successor in following}
            assert successors.setdefault(rules.key(state, 2), keys) == keys
            state = chance.choice(following)


def _successors(rules: Policy, state: State) -> list[State]:
    following = []
    for move in moves(rules, state):
        successor = state.copy()
        apply(rules, successor, move)
        following.append(successor)
    return following


BROKEN = [
    ("trl", 1, {}, 2),
    ("roll", 1, {"model_update_frequency": "3"}, 3),  # the guide's: R = 1, F = 3
    ("nemo-rl:in_order", 1, {"resumed_from_lookahead": "4", "batch": "1"}, 4),
    ("verl:wait", 1, {}, 2),
]
MORE = [
    ("trl:token-budget", 1, {}, 3),
    ("openrlhf:over-sampling", 1, {"oversampling": "4"}, 4),  # the guide's: batch 7 of the call at version 3
    ("prime-rl", 1, {"label_race": "true"}, 2),
    ("dressage", 2, {}, None),
    ("areal", 1, {}, None),
    ("skyrl", 1, {}, None),
    ("slime", 2, {}, None),
    ("roll:agentic", 1, {"model_update_frequency": "2"}, 2),
    ("prime-rl", 1, {"queue_check": "false"}, None),
    ("nemo-rl:ready_first", 1, {}, None),
    ("psrl:retag", 1, {}, None),
    ("psrl:native-multi-turn", 1, {}, 2),  # the guide's: true 2, reported 1
    ("verl:null", 1, {}, None),
    ("verl:wait", 2, {"num_warmup_batches": "4", "resumes": "0"}, None),
    ("verl:fully-async", 1, {}, None),
    ("verl:one-step-off", 0, {}, 1),
    ("trl:token-budget", 2, {}, 4),  # the guide's: a row of version 1 in step 5, bound 2
]


@pytest.mark.parametrize(
    ("name", "bound", "settings", "limit"), [*BROKEN, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]
)
def test_the_audit_condemns_a_counterexample(
    name: str, bound: int, settings: dict[str, str], limit: int | None, tmp_path: Path
) -> None:
    """A schedule that the prover calls a violation is one for the audit, which knows nothing of policies."""
    rules = build(name, bound=bound, settings=settings, small=True)
    search = explore(rules, bound + 1, stop_above=bound)
    assert search.schedule is not None
    if limit is not None:
        assert explore(rules, limit + 1).worst == limit
    log = tmp_path / "run" / "counterexample.staleness.jsonl"
    log.parent.mkdir()
    write_log(rules, name, search.schedule, bound, log)
    result = audit(log.parent)
    assert result.verdict == "fail" and not result.data["diagnostics"]["items"]
    assert result.data["staleness"]["max"] == {"lo": search.worst, "hi": search.worst}
    trained = [group.id for happening in replay(rules, search.schedule) for group in _trained(happening.effect)]
    assert result.data["trajectories"]["trained"] == {"lo": len(trained), "hi": len(trained)}
    assert f"= {search.worst} > {bound}" in tell(rules, search.schedule, bound)[-1]


def _trained(effect: tuple[str, int, tuple[Group, ...], str]) -> tuple[Group, ...]:
    return effect[2] if effect[0] == "trained" else ()


CARDS = {
    "verl:drop": ("verl", "V1 separate_async, colocate_async: drop"),
    "verl:null": ("verl", "V1, threshold null"),
    "verl:one-step-off": ("verl", "one_step_off_policy"),
    "trl": ("trl", "fixed count (token_budget <= 0)"),
    "trl:token-budget": ("trl", "token budget, one micro-batch per step, sync every step"),
    "openrlhf": ("openrlhf", "asynchronous"),
    "slime": ("slime", "fully-async rollout"),
    "dressage": ("dressage", "partial async"),
    "nemo-rl:windowed": ("nemo-rl", "single controller, windowed"),
    "nemo-rl:weight_fifo": ("nemo-rl", "single controller, weight_fifo"),
    "nemo-rl:in_order": ("nemo-rl", "single controller, in_order"),
    "nemo-rl:async_grpo": ("nemo-rl", "async_grpo"),
}
"""Policies of which one mode of a parser's card speaks, whatever the bound; without anything else set."""


def _rows() -> Iterator[dict[str, str]]:
    """Rows of the committed table, which tests/docs compares with the prover."""
    lines = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8").splitlines()
    table = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    head = table[0]
    yield from (dict(zip(head, row, strict=True)) for row in table[2:])


def _limit(text: str, bound: int) -> int | str:
    """The number that a card's limit stands for."""
    extra = re.fullmatch(r"bound \+ (\d)", text)
    if extra:
        return bound + int(extra[1])
    return "none" if text.startswith("none") else bound


def test_the_table_agrees_with_the_cards() -> None:
    compared = set()
    for row in _rows():
        if row["policy"] not in CARDS or row["also set"] != "-":
            continue
        parser, mode = CARDS[row["policy"]]
        card = next(entry for entry in plugins.parsers()[parser].card.modes if entry.name == mode)
        bound = int(row["bound"])
        assert (row["strict"] == "yes") == card.strict, row
        assert row["true limit"] == str(_limit(card.limit, bound)), row
        compared.add(row["policy"])
    assert compared == set(CARDS)


def test_the_table_agrees_with_the_cards_that_name_several_cases() -> None:
    found = {(row["policy"], row["also set"], row["bound"]): (row["strict"], row["true limit"]) for row in _rows()}
    # AReaL and SkyRL: strict for 0 only. verl fully async: theta 0 only. ready_first: 0 only.
    for name in ("areal", "skyrl", "verl:fully-async", "nemo-rl:ready_first"):
        assert found[name, "-", "0"] == ("yes", "0")
        assert found[name, "-", "1"] == ("no", "none")
    # ROLL: ceil(R), or ceil(R) + F - 1.
    assert found["roll", "-", "2"] == ("yes", "2")
    assert found["roll", "model_update_frequency = 3", "1"] == ("no", "3")
    assert found["roll:agentic", "model_update_frequency = 2", "1"] == ("no", "2")
    # prime-rl: B; B + 1 where a version is counted before the engines have it.
    assert found["prime-rl", "-", "2"] == ("yes", "2")
    assert found["prime-rl", "label_race = True", "1"] == ("no", "2")
    # PSRL: the pinned version's bound; none where a resumed request is tagged anew.
    assert found["psrl", "-", "2"] == ("yes", "2")
    assert found["psrl:retag", "-", "1"] == ("no", "none")
    assert found["psrl:native-multi-turn", "-", "1"][0] == "no"


class TestCommand:
    def run(self, *arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["prove", *arguments])
        return result.exit_code, result.output

    def test_exit_codes(self, tmp_path: Path) -> None:
        code, text = self.run("psrl", "--bound", "1")
        assert code == 0 and "KEPT" in text and "No violation in all 67 reachable states" in text
        code, text = self.run("psrl:retag", "--bound", "1", "--out", str(tmp_path / "out"))
        assert code == 1 and "BROKEN" in text and "2 - 0 = 2 > 1" in text and "True limit: none" in text
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["psrl-retag-bound1.staleness.jsonl"]
        code, text = self.run("roll", "--bound", "2", "--moves", "4")
        assert code == 0 and "this is no proof" in text.replace("\n", " ")
        for wrong in (("nobody",), ("trl", "--set", "max_staleness"), ("openrlhf", "--bound", "0")):
            assert self.run(*wrong)[0] == 2

    def test_json(self) -> None:
        code, text = self.run("trl", "--bound", "1", "--batch", "1", "--format", "json")
        assert code == 1
        for part in ('"strict": false', '"limit": 2', '"complete": false', '"max_staleness": 1'):
            assert part in text

    def test_list(self) -> None:
        code, text = self.run("list")
        assert code == 0 and all(name in text for name in POLICIES)

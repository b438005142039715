"""What each policy's admission (L1) never lets happen, on random schedules: the invariants that its guide states."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from staleness_audit.simulate.kernel import REJECTS, apply, initial, moves
from staleness_audit.simulate.policies import POLICIES, build
from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.prove import explore
from staleness_audit.simulate.state import State


def walk(
    name: str, settings: dict[str, Any], seed: int, length: int = 400, rejects: int = 0
) -> Iterator[tuple[Policy, State, Counter[str]]]:
    """A random schedule: each state with the numbers of groups admitted, trained, dropped, ... so far."""
    rules, chance = build(name, bound=2, batch=3, settings=settings, small=True), random.Random(seed)
    state, seen = initial(rules), Counter[str]()
    state.counts |= {REJECTS: rejects} if rejects else {}
    for _ in range(length):
        for kind, _, groups, _ in state.effects:
            seen[kind] += len(groups) if groups else 1
        state.effects.clear()
        yield rules, state, seen
        possible = moves(rules, state)
        if not possible:
            return
        apply(rules, state, chance.choice(possible))


def outstanding(state: State) -> int:
    """Groups that were admitted and are in no step yet."""
    return len(state.running) + len(state.done) + len(state.held)


B, N = 3, 2
Check = Callable[[Any, State, Counter[str]], bool]
INVARIANTS: dict[str, tuple[dict[str, Any], Check]] = {
    # A fixed number: W batches at the end of a step, one more once the next step has admitted its own.
    "verl:drop": ({"resumes": 0}, lambda rules, state, seen: outstanding(state) in (B, 2 * B)),
    "verl:wait": ({"resumes": 0}, lambda rules, state, seen: outstanding(state) in (B, 2 * B)),
    # (eta + v + 1) * C tasks by version v, and never more than that many untrained.
    "areal": ({}, lambda rules, state, seen: seen["admitted"] <= (N + state.v + 1) * B),
    "skyrl": ({}, lambda rules, state, seen: seen["admitted"] <= (N + state.v + 1) * B),
    "roll": ({}, lambda rules, state, seen: len(state.running) + len(state.done) <= (N + 1) * B),
    "roll:agentic": ({}, lambda rules, state, seen: len(state.running) <= B),
    "nemo-rl:ready_first": ({}, lambda rules, state, seen: seen["admitted"] <= (N + state.v + 1) * B),
    "nemo-rl:weight_fifo": ({}, lambda rules, state, seen: seen["admitted"] <= (N + state.v + 1) * B),
    "nemo-rl:in_order": (
        {},
        lambda rules, state, seen: all(group.target <= group.label + N for group in state.running.values()),
    ),
    "nemo-rl:windowed": (
        {"max_inflight_prompts": 5, "max_buffered_rollouts": 7},
        lambda rules, state, seen: len(state.running) <= 5 and len(state.running) + len(state.done) <= 7,
    ),
    "nemo-rl:async_grpo": (
        {},
        lambda rules, state, seen: all(0 <= group.target - group.label <= N for group in state.running.values()),
    ),
    # The queue reaches twice the threshold, less one, at most: those active when it was almost full still finish.
    "slime": ({"threshold": 4}, lambda rules, state, seen: len(state.running) <= 4 and len(state.done) <= 2 * 4 - 1),
    # The pool holds what is in flight or finished; batches ahead of the trainer have slots.
    "slime:pooled": (
        {"fully_async_pool_size": 5},
        lambda rules, state, seen: len(state.running) + len(state.done) <= 5 and len(state.held) <= B,
    ),
    # Batches generated or queued never exceed the permits; one call at a time.
    "openrlhf": ({}, lambda rules, state, seen: len(state.running) in range(B + 1) and len(state.held) <= N * B),
    "trl": (
        {"queue_maxsize": 4, "max_inflight_tasks": 5},
        lambda rules, state, seen: len(state.running) <= 5 and len(state.done) <= 4 + 5,
    ),
    # No more than the cap in flight; batches shipped are at most two ahead of the version.
    "prime-rl": (
        {"max_inflight": 6},
        lambda rules, state, seen: (
            len(state.running) <= 6 and state.marks["shipped"][0] - state.marks["policy"][0] <= 2
        ),
    ),
    "verl:fully-async": ({}, lambda rules, state, seen: state.counts["started"] <= 3 * B and len(state.done) <= 3 * B),
    # No buffer has more requests than places, and none waits in a buffer that it is too old for.
    "psrl": (
        {},
        lambda rules, state, seen: (
            max(Counter(g.target for g in (*state.running.values(), *state.done.values())).values(), default=0) <= B
            and all(g.label <= g.target <= g.label + N for g in (*state.running.values(), *state.done.values()))
        ),
    ),
    # Hall's condition: of those outstanding, at most (k + 1) batches are due within k steps.
    "deadline": (
        {},
        lambda rules, state, seen: all(
            sum(g.label + N <= step for g in (*state.running.values(), *state.done.values()))
            <= (step - state.v + (0 if state.training else 1)) * B
            for step in range(state.v, state.v + N + 2)
        ),
    ),
}


@pytest.mark.parametrize("name", INVARIANTS)
def test_admission_keeps_its_invariant(name: str) -> None:
    settings, holds = INVARIANTS[name]
    most = 0
    for seed in range(12):
        for rules, state, seen in walk(name, settings, seed):
            assert holds(rules, state, seen), (seed, state)
            most = max(most, state.v)
    assert most >= 5  # the schedules got somewhere


@pytest.mark.parametrize("name", POLICIES)
def test_groups_are_conserved(name: str) -> None:
    """Every group that was admitted is in flight, waits, is in a batch, or has one fate."""
    for seed in range(4):
        for _, state, seen in walk(name, {}, seed, 200, rejects=20 * (seed % 2)):
            ended = seen["trained"] + seen["dropped"] + seen["cancelled"] + seen["lost"]
            assert seen["admitted"] == outstanding(state) + ended


def test_a_quota_larger_than_the_batch_has_no_limit() -> None:
    """AReaL's counterexample C: C = 2 B, eta = 0: the backlog grows, and with it the age."""
    rules = build("areal", bound=0, batch=1, settings={"consumer_batch_size": 2})
    depths = []
    for bound in range(4):
        found = explore(rules, bound + 1, stop_above=bound)
        assert found.schedule is not None
        depths.append(found.depth)
    assert depths == sorted(depths)

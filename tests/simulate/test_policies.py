"""The rules of each policy on states small enough to check by hand: what the frameworks' own tests and guides state."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from staleness_audit.errors import AuditError
from staleness_audit.simulate.kernel import apply, initial
from staleness_audit.simulate.policies import POLICIES, build
from staleness_audit.simulate.policies.prime_rl_cap import cap_of, grow, look, start_cap
from staleness_audit.simulate.policy import Load, Policy
from staleness_audit.simulate.state import Group, State


def state_of(
    v: int,
    done: list[tuple[int, int]] | None = None,
    running: list[tuple[int, int]] | None = None,
    counts: dict[str, int] | None = None,
    marks: dict[str, tuple[int, ...]] | None = None,
) -> State:
    """A state at version v with groups given as (label, target), numbered in the order given, finished ones first."""
    state = State(v=v, serving=v, counts=counts or {}, marks=marks or {})
    for place, groups in ((state.done, done or []), (state.running, running or [])):
        for label, target in groups:
            place[state.next_id] = Group(state.next_id, label, label, label, target)
            state.next_id += 1
    return state


def held(state: State) -> list[int]:
    return [group.id for group in state.held]


def dropped(state: State) -> list[int]:
    return [group.id for kind, _, groups, _ in state.effects if kind == "dropped" for group in groups]


def policy(name: str, **settings: Any) -> Policy:
    return build(name, settings=settings)


class TestVerl:
    """Labels are admission steps, the step being collected is v + 1."""

    def test_drop_evicts_a_stale_finished_group_and_leaves_a_stale_running_one(self) -> None:
        # T = 2, step 5: spans of admission steps 0, 4, 5 are 6, 2, 1; only 6 exceeds 2. One fresh group is admitted.
        state = state_of(4, [(0, 0), (4, 0), (5, 0)], [(0, 0)], {"quota": 0})
        policy("verl:drop", max_off_policy_threshold=2, batch=2).collect(state)
        assert dropped(state) == [0] and held(state) == [1, 2]
        assert list(state.running) == [3] and state.counts["quota"] == 1

    def test_wait_blocks_on_a_stale_running_group_only(self) -> None:
        rules = policy("verl:wait", max_off_policy_threshold=2, batch=2)
        blocked = state_of(4, [(5, 0), (5, 0)], [(0, 0)])
        rules.collect(blocked)
        assert held(blocked) == []
        rules.collect(kept := state_of(99, [(0, 0), (0, 0)]))
        assert held(kept) == [0, 1]  # finished groups are trained at any age
        policy("verl:wait", max_off_policy_threshold=4, batch=2).collect(
            fresh := state_of(2, [(3, 0), (3, 0)], [(3, 0)])
        )
        assert held(fresh) == [0, 1]  # span 1 < 4

    def test_the_oldest_admissions_go_first(self) -> None:
        policy("verl:null", batch=2).collect(state := state_of(4, [(5, 0), (2, 0), (1, 0)]))
        assert held(state) == [2, 1]

    def test_all_fast_generation_settles_at_the_number_of_warm_up_batches(self) -> None:
        """The guide's counterexample: B = 4, W = 4, T = 3. 20 groups under v0, 4 used a step: 0, 1, 2, 3, 4, 4."""
        rules = policy("verl:wait", batch=4, num_warmup_batches=4, max_off_policy_threshold=3)
        state, trained = initial(rules), []
        for _ in range(8):
            for number in list(state.running):
                apply(rules, state, ("finish", number))
            apply(rules, state, ("collect", 0))
            trained.append(
                max(
                    state.v - group.first
                    for kind, _, groups, _ in state.effects
                    if kind == "trained"
                    for group in groups
                )
            )
            state.effects.clear()
            apply(rules, state, ("publish", 0))
        assert trained == [0, 1, 2, 3, 4, 4, 4, 4]

    def test_fully_async_counts_what_is_outstanding_at_a_sync(self) -> None:
        # R = 2, trigger 2, theta 0.5: batch 4, M = 6. Six start, four are trained, two are left: four may start.
        rules = policy("verl:fully-async", batch=4, trigger_parameter_sync_step=2, staleness_threshold=0.5)
        state = initial(rules)
        assert rules.room(state) == 6
        apply(rules, state, ("admit", 6))
        assert rules.room(state) == 0
        for number in range(4):
            apply(rules, state, ("finish", number))
        apply(rules, state, ("collect", 0))
        assert state.training and rules.room(state) == 0
        apply(rules, state, ("publish", 0))
        assert rules.room(state) == 4


class TestAreal:
    @pytest.mark.parametrize(
        ("concurrent", "consumer", "eta", "version", "capacity"),
        [
            (10, 4, 2, 0, 10),
            (100, 4, 2, 0, 12),
            (1000, 4, 2, 5, 32),
            (100, 8, 0, 0, 8),
            (100, 8, 0, 5, 48),
            (10, 1, 2, 0, 3),
        ],
    )
    def test_capacity(self, concurrent: int, consumer: int, eta: int, version: int, capacity: int) -> None:
        """tests/test_staleness_manager.py: min(concurrent, (eta + v + 1) * C) if nothing was admitted yet."""
        rules = policy(
            "areal", max_concurrent_rollouts=concurrent, consumer_batch_size=consumer, max_head_offpolicyness=eta
        )
        state = initial(rules)
        for _ in range(version):
            state.v += 1
            rules.published(state)
        assert rules.room(state) == capacity

    def test_the_smallest_create_time_goes_first(self) -> None:
        rules = policy("areal", batch=2)
        state = state_of(0, [], [(0, 0), (0, 0), (0, 0)])
        for number in (2, 0, 1):
            state.done[number] = state.running.pop(number)
        rules.collect(state)
        assert held(state) == [0, 1]


class TestSkyrl:
    def test_the_minimal_counterexample(self) -> None:
        """B = 1, S = 1: A and X at v0, X trained in step 1, Y in step 2, then A, which began two versions ago."""
        rules = policy("skyrl", batch=1, max_staleness_steps=1, num_parallel_generation_workers=2)
        state = initial(rules)
        apply(rules, state, ("admit", 2))
        for number in (1, 2, 0):
            apply(rules, state, ("finish", number))
            apply(rules, state, ("collect", 0))
            if number:
                apply(rules, state, ("publish", 0))
                apply(rules, state, ("admit", 1))
        version, groups = next((v, groups) for kind, v, groups, _ in reversed(state.effects) if kind == "trained")
        assert [version - group.first for group in groups] == [2]

    def test_bound_0_admits_a_batch_per_step(self) -> None:
        rules = policy("skyrl", batch=1, max_staleness_steps=0)
        state = initial(rules)
        apply(rules, state, ("admit", 1))
        assert rules.room(state) == 0
        apply(rules, state, ("finish", 0))
        apply(rules, state, ("collect", 0))
        apply(rules, state, ("publish", 0))
        assert rules.room(state) == 1


class TestNemoRl:
    """tests/unit/single_controller/test_sampler_interface.py, with the starts as labels."""

    def test_windowed_selects_inside_the_window_and_evicts_outside(self) -> None:
        state = state_of(5, [(3, 0), (5, 0), (1, 0)])
        policy("nemo-rl:windowed", batch=8, max_staleness_versions=2, min_groups_for_streaming_train=1).collect(state)
        assert held(state) == [0, 1] and dropped(state) == [2]

    def test_windowed_cancels_in_flight(self) -> None:
        rules = policy("nemo-rl:windowed", max_staleness_versions=2)
        assert [group.id for group in rules.cancel(state_of(5, [], [(2, 0), (3, 0)]))] == [0]
        assert list(policy("nemo-rl:weight_fifo").cancel(state_of(5, [], [(0, 0)]))) == []

    def test_weight_fifo_takes_the_oldest_version_only(self) -> None:
        rules = policy("nemo-rl:weight_fifo", batch=8, max_staleness_versions=5, min_groups_for_streaming_train=1)
        rules.collect(state := state_of(5, [(3, 0), (5, 0), (3, 0)]))
        assert held(state) == [0, 2]

    def test_ready_first_takes_whatever_is_ready(self) -> None:
        rules = policy("nemo-rl:ready_first", batch=3, max_staleness_versions=1)
        rules.collect(state := state_of(3, [(1, 0), (3, 0), (2, 0), (3, 0)]))
        assert held(state) == [0, 1, 2]
        policy("nemo-rl:ready_first", batch=1).collect(state := state_of(5, [(0, 0)]))
        assert held(state) == [0] and dropped(state) == []

    def test_in_order_looks_at_targets(self) -> None:
        rules = policy("nemo-rl:in_order", batch=1)
        rules.collect(state := state_of(5, [(5, 6), (4, 5)], marks={"short": ()}))
        assert held(state) == [1]
        rules.collect(state := state_of(3, [(0, 1)], [(0, 1)], marks={"short": ()}))
        assert dropped(state) == [0] and list(state.running) == [1]

    def test_the_gate_stamps_batches(self) -> None:
        rules = policy("nemo-rl:in_order", batch=2, max_lookahead_versions=1)
        apply(rules, state := initial(rules), ("admit", 4))
        assert [group.target for group in state.running.values()] == [0, 0, 1, 1]
        assert rules.room(state) == 0

    def test_async_grpo_generates_all_first_targets_from_the_first_version(self) -> None:
        """A = 2: targets 0, 1 and 2 are made by v0; then a version makes the target two ahead."""
        rules = policy("nemo-rl:async_grpo", batch=1, max_trajectory_age_steps=2)
        state, ages = initial(rules), []
        for _ in range(5):
            for number in list(state.running):
                apply(rules, state, ("finish", number))
            apply(rules, state, ("collect", 0))
            ages += [v - group.first for kind, v, groups, _ in state.effects if kind == "trained" for group in groups]
            state.effects.clear()
            apply(rules, state, ("publish", 0))
        assert ages == [0, 1, 2, 2, 2]


class TestSlime:
    def test_surplus_stays_queued_in_order(self) -> None:
        """tests/test_fully_async_rollout.py: ten groups, a batch of four: 0 to 3 are taken, 4 to 9 stay."""
        policy("slime", batch=4).collect(state := state_of(0, [(0, 0)] * 10))
        assert held(state) == [0, 1, 2, 3] and list(state.done) == [4, 5, 6, 7, 8, 9]

    def test_before_august_2026_surplus_was_discarded(self) -> None:
        policy("slime", batch=4, queue_gate=False).collect(state := state_of(0, [(0, 0)] * 6))
        assert held(state) == [0, 1, 2, 3] and dropped(state) == [4, 5] and not state.done

    def test_the_queue_can_reach_twice_the_threshold_less_one(self) -> None:
        rules = policy("slime", batch=1, threshold=3)
        state = state_of(0, [(0, 0)] * 2)
        apply(rules, state, ("admit", rules.room(state)))
        for number in list(state.running):
            apply(rules, state, ("finish", number))
        assert len(state.done) == 2 * 3 - 1 and rules.room(state) == 0


class TestTrl:
    def test_the_queue_is_checked_when_it_is_pulled(self) -> None:
        """Versions 0 and 5 waiting, current version 5, bound 3: the first is dropped, the second is taken."""
        policy("trl", batch=1, max_staleness=3).collect(state := state_of(5, [(0, 0), (5, 0)]))
        assert dropped(state) == [0] and held(state) == [1]

    def test_the_loader_is_one_micro_batch_ahead(self) -> None:
        rules = policy("trl", batch=4, gradient_accumulation_steps=2)
        rules.collect(state := state_of(0, [(0, 0)] * 9))
        assert held(state) == [0, 1, 2, 3, 4, 5] and rules.ready(state) == 4


class TestRoll:
    def test_the_quota_after_k_advances(self) -> None:
        """quota = B * R + k * B: 12 at step 0 for R = 2, B = 4."""
        assert (
            policy("roll", batch=4, async_generation_ratio=2).room(
                initial(policy("roll", batch=4, async_generation_ratio=2))
            )
            == 12
        )

    def test_an_older_step_is_waited_for(self) -> None:
        rules = policy("roll", batch=2)
        rules.collect(waits := state_of(1, [(0, 0), (1, 0)], [(0, 0)]))
        assert held(waits) == []
        rules.collect(takes := state_of(1, [(1, 0), (0, 0)]))
        assert held(takes) == [1, 0]  # start steps ascending

    def test_all_fast_generation_has_lag_r(self) -> None:
        """Warm-up with R = 2, B = 4: lags 0, 1, 2, then 2 for ever."""
        rules = policy("roll", batch=4, async_generation_ratio=2)
        state, lags = initial(rules), []
        for _ in range(5):
            apply(rules, state, ("admit", rules.room(state)))
            for number in list(state.running):
                apply(rules, state, ("finish", number))
            apply(rules, state, ("collect", 0))
            lags += [{v - g.first for g in groups} for kind, v, groups, _ in state.effects if kind == "trained"]
            state.effects.clear()
            apply(rules, state, ("publish", 0))
        assert lags == [{0}, {1}, {2}, {2}, {2}]

    def test_a_fraction_takes_few_of_the_oldest_step(self) -> None:
        """Measured on ROLL: R = 1.1, B = 10, 8 steps: from step 2 on, one sample of lag 2 and nine of lag 1 a batch."""
        rules = policy("roll", batch=10, async_generation_ratio=1.1)
        state, lags = initial(rules), Counter[int]()
        assert rules.room(state) == 21  # ceil(B * R) + B
        for _ in range(8):
            apply(rules, state, ("admit", rules.room(state)))
            for number in list(state.running):
                apply(rules, state, ("finish", number))
            apply(rules, state, ("collect", 0))
            lags.update(v - g.first for kind, v, groups, _ in state.effects if kind == "trained" for g in groups)
            state.effects.clear()
            apply(rules, state, ("publish", 0))
        assert lags == {0: 10, 1: 64, 2: 6}

    def test_additional_prompts_begin_beyond_the_quota(self) -> None:
        """B = 2, R = 1: quota 4; a cap of 6 lets two more run. One that ends is replaced, within the cap."""
        rules = policy("roll", batch=2, is_use_additional_prompts=True, max_additional_running_prompts=6)
        state = initial(rules)
        assert rules.room(state) == 4
        apply(rules, state, ("admit", 4))
        assert rules.room(state) == 2
        apply(rules, state, ("admit", 2))
        assert rules.room(state) == 0 and state.counts == {"quota": 0, "plain": 4}
        apply(rules, state, ("finish", 5))  # an additional one, but it is counted as one of the quota (the quirk)
        assert state.counts == {"quota": 0, "plain": 3} and rules.room(state) == 1

    def test_agentic_slots_expire(self) -> None:
        rules = policy("roll:agentic", batch=2, async_generation_ratio=1)
        state = initial(rules)
        assert state.marks["slots"] == (0, 0, 0, 0) and rules.room(state) == 2
        state.v = 2
        rules.published(state)
        assert state.marks["slots"] == (2, 2)


class TestPrimeRl:
    def test_the_sweep(self) -> None:
        """Collecting step 6 with B = 2 keeps start versions from 3 on."""
        rules = policy("prime-rl", batch=8, max_off_policy_steps=2)
        state = state_of(
            4,
            [(2, 0), (3, 0), (4, 0)],
            counts={"gate": 1, "applying": 0, "arrived": 1},
            marks={"shipped": (5,), "policy": (4,)},
        )
        rules.collect(state)
        assert dropped(state) == [0] and list(state.done) == [1, 2]

    def test_the_gate_closes_when_two_batches_are_ahead(self) -> None:
        rules = policy("prime-rl", batch=1)
        state = initial(rules)
        apply(rules, state, ("admit", 3))
        for number in range(3):
            apply(rules, state, ("finish", number))
        # Batches 1 and 2 are shipped at version 0; batch 3 needs version 1.
        assert state.marks["shipped"] == (2,) and rules.room(state) == 0 and len(state.done) == 1

    def test_the_pool_grows_by_a_tenth_of_its_cap(self) -> None:
        """Cap 200: 20 in five seconds. What finishes may be replaced; a cancelled one is not given back (4.1, 1b)."""
        rules = policy("prime-rl", batch=99, max_inflight=200)
        apply(rules, state := initial(rules), ("admit", rules.room(state)))
        assert len(state.running) == 20 and rules.room(state) == 0
        apply(rules, state, ("finish", 0))
        assert rules.room(state) == 1
        state.stop(state.running[1])
        assert rules.room(state) == 1
        rules.polled(state, Load(18, 0, 0.1, 0, 9999))
        assert rules.room(state) == 20
        small = policy("prime-rl", batch=99, max_inflight=30)
        assert small.room(initial(small)) == 8


class TestPrimeRlCap:
    """The guide's 4.1, rule 5."""

    def state(self, cap: int, running: int) -> State:
        state = state_of(0, [], [(0, 0)] * running, {"gate": 1, "applying": 0}, {"shipped": (0,), "policy": (0,)})
        start_cap(state, cap)
        return state

    def test_it_grows_by_a_quarter_per_turnover_while_engines_are_calm(self) -> None:
        state = self.state(8, 7)
        grow(state, 1024)
        assert cap_of(state) == 8  # no poll yet
        look(state, Load(7, 0, 0.3, 0, 9999), 1)
        grow(state, 1024)  # the end of one of 8 in flight
        assert cap_of(state) == pytest.approx(8 * 1.25 ** (1 / 8), abs=0.001)
        for _ in range(7):
            grow(state, 1024)
        # At 8.92 the 8 in flight are less than nine tenths of the cap: it grows no more.
        assert cap_of(state) == pytest.approx(8 * 1.25 ** (4 / 8), abs=0.002)
        calm = self.state(20, 7)
        look(calm, Load(7, 0, 0.3, 0, 9999), 1)
        grow(calm, 1024)
        assert cap_of(calm) == 20  # 8 in flight are less than nine tenths of the cap: it isn't what limits

    def test_a_full_cache_trims_it_and_a_fuller_one_cancels(self) -> None:
        state = self.state(10, 10)
        assert look(state, Load(10, 0, 0.7, 0, 9999), 1) == 0 and cap_of(state) == 10  # no growth, no cut
        assert look(state, Load(10, 0, 0.875, 0, 9999), 1) == 0 and cap_of(state) == 8  # 10 * 0.7 / 0.875
        assert look(state, Load(10, 0, 0.875, 0, 9999), 1) == 0 and cap_of(state) == 8  # once per six polls
        full = self.state(10, 10)
        assert look(full, Load(10, 0, 1.0, 0, 9999), 1) == 3 and cap_of(full) == 7

    def test_preemptions_cut_it_once_until_it_has_drained(self) -> None:
        state = self.state(10, 10)
        assert look(state, Load(10, 0, 0.5, 1, 9999), 1) == 2 and cap_of(state) == 8
        assert look(state, Load(10, 0, 0.5, 2, 9999), 1) == 0 and cap_of(state) == 8  # ten still run
        for number in (8, 9):
            del state.running[number]
        look(state, Load(8, 0, 0.5, 2, 9999), 1)
        # It has drained and is pressed again within six polls: half.
        assert look(state, Load(8, 0, 0.5, 3, 9999), 1) == 4 and cap_of(state) == 4

    def test_the_excess_goes_youngest_first(self) -> None:
        rules = policy("prime-rl", adaptive=True, initial_inflight=10)
        state = self.state(10, 10)
        rules.polled(state, Load(10, 0, 0.5, 1, 9999))
        assert [group.id for _, _, groups, reason in state.effects for group in groups if reason == "overload"] == [
            9,
            8,
        ]

    def test_the_first_poll_derives_it_from_the_caches(self) -> None:
        rules = policy("prime-rl", adaptive=True, seq_len=2048)
        state = self.state(1, 1)
        rules.polled(state, Load(1, 0, 0.1, 0, 65_536))
        assert cap_of(state) == 32


class TestOpenrlhf:
    def test_one_permit_is_one_batch_behind(self) -> None:
        """Q = 1: batch 0 is of its own version, every later one a version old; a call blocks the broadcast."""
        rules = policy("openrlhf", batch=2)
        state, ages = initial(rules), []
        for _ in range(4):
            if not state.running and rules.room(state):
                apply(rules, state, ("admit", rules.room(state)))
            for number in list(state.running):
                apply(rules, state, ("finish", number))
            ages += [v - groups[0].first for kind, v, groups, _ in state.effects if kind == "trained"]
            state.effects.clear()
            if rules.room(state):
                apply(rules, state, ("admit", rules.room(state)))
                assert not rules.may_publish(state)
                for number in list(state.running):
                    apply(rules, state, ("finish", number))
            apply(rules, state, ("publish", 0))
            ages += [v - groups[0].first for kind, v, groups, _ in state.effects if kind == "trained"]
            state.effects.clear()
        assert ages[:4] == [0, 1, 1, 1]


class TestDressage:
    def test_labels_are_opaque_and_counted_in_order_of_appearance(self) -> None:
        """keep 1; results ending under labels 1, 2, 2; a batch of two: the first is stale."""
        rules = policy("dressage", batch=2, dressage_staleness_keep_versions=1)
        rules.collect(state := state_of(3, [(1, 0), (2, 0), (2, 0)], marks={"labels": ()}))
        assert dropped(state) == [0] and held(state) == [1, 2]

    def test_a_collected_group_is_filtered_again_while_the_batch_is_short(self) -> None:
        rules = policy("dressage", batch=2, dressage_staleness_keep_versions=1)
        rules.collect(state := state_of(3, [(1, 0)], marks={"labels": ()}))
        assert held(state) == [0]
        state.done[1] = Group(1, 2, 2, 2, 0)
        rules.collect(state)
        assert dropped(state) == [0] and held(state) == [1]


class TestPsrl:
    def test_reservations_take_the_latest_buffer(self) -> None:
        """One place per buffer, eta 2, version 1: three requests go to buffers 3, 2 and 1, a fourth gets nothing."""
        rules = policy("psrl", batch=1, staleness=2)
        state = state_of(1, counts={"quota": 9})
        apply(rules, state, ("admit", 3))
        assert [group.target for group in state.running.values()] == [3, 2, 1]
        assert rules.room(state) == 0

    def test_occupying_takes_the_earliest_buffer_and_moves_its_reservation_back(self) -> None:
        rules = policy("psrl", batch=1, staleness=2)
        state = state_of(1, counts={"quota": 9})
        apply(rules, state, ("admit", 3))
        apply(
            rules, state, ("finish", 0)
        )  # it held buffer 3; now buffer 1 is its own, and the request there waits in 3
        assert {group.id: group.target for group in state.running.values()} == {1: 2, 2: 3}
        apply(rules, state, ("collect", 0))
        assert state.training


class TestDeadline:
    def test_it_waits_only_where_a_deadline_would_be_missed(self) -> None:
        rules = policy("deadline", batch=2, max_staleness=1)
        # Step 1; a group of v0 still runs and is due now: two finished ones of v1 must not take both places.
        rules.collect(waits := state_of(1, [(1, 0), (1, 0)], [(0, 0)]))
        assert held(waits) == []
        # Due at step 2 it can wait for the next step.
        rules.collect(goes := state_of(1, [(1, 0), (1, 0)], [(1, 0)]))
        assert held(goes) == [0, 1]

    def test_it_admits_what_can_still_be_placed(self) -> None:
        rules = policy("deadline", batch=2, max_staleness=1)
        assert rules.room(initial(rules)) == 4  # steps 0 and 1 have two places each


def test_every_policy_can_be_built_and_says_what_is_wrong() -> None:
    for name in POLICIES:
        assert build(name, small=True).batch >= 1
    for name, settings, words in (
        ("trl", {"max_stalenes": "1"}, "no knob 'max_stalenes'"),
        ("trl", {"max_staleness": "many"}, "'many' is not"),
        ("trl", {"batch": "0"}, "at least one group"),
        ("trl", {"batch": "3", "gradient_accumulation_steps": "2"}, "must divide"),
        ("verl:drop", {"max_off_policy_threshold": "0"}, "at least 1"),
        ("areal", {"max_head_offpolicyness": "-1"}, "not between 0"),
        ("roll", {"async_generation_ratio": "nan"}, "not between 0"),
        ("slime", {"update_weights_interval": "0"}, "not between 1"),
        ("nobody", {}, "no policy 'nobody'"),
    ):
        with pytest.raises(AuditError, match=words):
            build(name, settings=settings)
    assert build("verl:drop", settings={"max_off_policy_threshold": "null"}).horizon() == 1
    with pytest.raises(AuditError, match="must be at least 1"):
        build("openrlhf", bound=0)


@pytest.mark.parametrize(
    ("name", "knob"),
    [
        ("trl", "max_inflight_tasks"),
        ("slime:pooled", "fully_async_pool_size"),
        ("prime-rl", "max_inflight"),
        ("dressage", "max_active_groups"),
        ("nemo-rl:windowed", "max_buffered_rollouts"),
    ],
)
def test_a_control_under_which_nothing_can_begin_is_refused(name: str, knob: str) -> None:
    """It would keep every bound. Bounds of 0 are no such thing."""
    with pytest.raises(AuditError, match=rf"no group can ever begin with {knob} = 0\."):
        build(name, settings={knob: "0"})


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_control_can_begin(name: str) -> None:
    assert build(name) and build(name, small=True)

"""Schedules that the guides tell (their counterexamples, and oracles of the frameworks' own tests), played by hand.

Others are elsewhere: ``test_policies`` has rules on single states, ``test_prove`` counterexamples that the prover finds
by itself, ``test_dryrun_model`` the figures of DryRun-RL's runs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from staleness_audit.errors import AuditError
from staleness_audit.simulate.dryrun import DryRun, lengths
from staleness_audit.simulate.dryrun import simulate as dryrun
from staleness_audit.simulate.dryrun.instance import Roofline
from staleness_audit.simulate.kernel import apply, initial
from staleness_audit.simulate.policies import build
from staleness_audit.simulate.state import Group, State


class Play:
    """A schedule being played. ``trained``: for each step the staleness of its groups, oldest tokens, in order."""

    def __init__(self, name: str, **settings: Any) -> None:
        self.rules = build(name, settings=settings)
        self.state: State = initial(self.rules)
        self.trained: list[list[int]] = []
        self.fates: list[tuple[str, int]] = []
        self._look()

    def move(self, kind: str, argument: int | str = 0) -> Play:
        apply(self.rules, self.state, (kind, argument))
        self._look()
        return self

    def _look(self) -> None:
        for kind, version, groups, _ in self.state.effects:
            if kind == "trained":
                self.trained.append([version - group.first for group in groups])
            elif kind in ("dropped", "cancelled"):
                self.fates += [(kind, group.id) for group in groups]
        self.state.effects.clear()

    def admit(self, most: int | None = None) -> Play:
        """Let all begin that may, or so many of them."""
        room = self.rules.room(self.state)
        if not self.rules.eager and room > 0:
            self.move("admit", room if most is None else min(most, room))
        return self

    def finish(self, *groups: int, but: tuple[int, ...] = ()) -> Play:
        """Let these end, or all in flight but some."""
        for group in groups or [group for group in self.state.running if group not in but]:
            self.move("finish", group)
        return self

    def collect(self) -> Play:
        return self.move("collect")

    def publish(self) -> Play:
        return self.move("publish")

    def step(self, but: tuple[int, ...] = ()) -> Play:
        """A step in which everything but some groups is generated at once."""
        return self.admit().finish(but=but).collect().publish()


class TestVerl:
    def test_a_stale_running_group_that_ends_during_the_refill_goes_too(self) -> None:
        """T = 1, step 5, batch 1, two groups of step 0: one is evicted, then the other; both are replaced."""
        play = Play("verl:drop", max_off_policy_threshold=1, batch=1)
        play.state.v = play.state.serving = 4
        play.state.running = {}
        play.state.done = {0: Group(0, 0, 0, 0, 0)}
        play.state.running = {1: Group(1, 0, 0, 0, 0)}
        play.state.counts["quota"] = 0
        play.state.next_id = 2
        play.collect()  # evicts 0; the refill begins at once, under step 5
        assert play.fates == [("dropped", 0)] and play.state.running[2].label == 5
        play.finish(1).collect()
        assert play.fates == [("dropped", 0), ("dropped", 1)] and play.state.running.keys() == {2, 3}
        play.finish(2).collect()
        assert play.trained == [[0]]

    def test_default_warm_up_is_one_version_behind_for_ever(self) -> None:
        """The public V1 run of the guide (7): W = 1 and a threshold that allows 2: 0 at step 1, and 1 afterwards."""
        play = Play("verl:drop", batch=4, num_warmup_batches=1, max_off_policy_threshold=3)
        for _ in range(6):
            play.step()
        assert [max(ages) for ages in play.trained] == [0, 1, 1, 1, 1, 1]

    def test_without_a_threshold_it_settles_at_the_warm_up_too(self) -> None:
        play = Play("verl:null", batch=4, num_warmup_batches=4)
        for _ in range(7):
            play.step()
        assert [max(ages) for ages in play.trained] == [0, 1, 2, 3, 4, 4, 4]


class TestAreal:
    """tests/test_staleness_manager.py, and the guide's three counterexamples."""

    @pytest.mark.parametrize(
        ("concurrent", "consumer", "eta", "begun", "ended", "capacity"),
        [
            (10, 4, 2, 3, 0, 7),
            (20, 4, 2, 5, 5, 7),
            (5, 2, 5, 5, 0, 0),
            (100, 8, 3, 30, 30, 2),
            (32, 16, 2, 0, 0, 32),
            (64, 32, 2, 0, 0, 64),
            (100, 8, 2, 0, 0, 24),
        ],
    )
    def test_running_and_accepted_count(
        self, concurrent: int, consumer: int, eta: int, begun: int, ended: int, capacity: int
    ) -> None:
        play = Play(
            "areal", max_concurrent_rollouts=concurrent, consumer_batch_size=consumer, max_head_offpolicyness=eta
        )
        play.admit(begun) if begun else None
        play.finish(*range(ended)) if ended else None
        assert play.rules.room(play.state) == capacity

    @pytest.mark.parametrize(("eta", "first", "then"), [(0, False, False), (1, True, False), (2, True, True)])
    def test_two_batches_arrive_if_the_lead_allows_it(self, eta: int, first: bool, then: bool) -> None:
        """2 * bs tasks at v0; then v1 and 2 * bs more: with eta = 0 only bs run, with 1 the second lot does not fit."""
        batch = 4
        play = Play("areal", batch=batch, max_head_offpolicyness=eta)
        assert (play.rules.room(play.state) >= 2 * batch) == first
        play.admit(2 * batch).finish().collect().publish()
        assert (play.rules.room(play.state) >= 2 * batch) == then

    def test_a_straggler_is_overtaken_for_ten_versions(self) -> None:
        """Counterexample A: eta = 1, B = 4. Task 5 starts at v0 and ends during v10; everyone else stays at 1."""
        play = Play("areal", batch=4, max_head_offpolicyness=1)
        for _ in range(10):
            play.step(but=(5,))
        play.finish(5).step()
        assert play.trained[10] == [10, 1, 1, 1]
        assert max(max(ages) for ages in play.trained[:10]) == 1

    def test_a_consumer_batch_larger_than_the_batch_ages_everything(self) -> None:
        """Counterexample C: eta = 0, C = 8, B = 4. The 8 tasks of v_k are trained in steps 2k and 2k + 1."""
        play = Play("areal", batch=4, consumer_batch_size=8, max_head_offpolicyness=0)
        for _ in range(9):
            play.step()
        assert [max(ages) for ages in play.trained] == [0, 1, 1, 2, 2, 3, 3, 4, 4]


class TestSkyrl:
    def test_the_quota_counts_what_was_accepted(self) -> None:
        """W = 4, B = 2, S = 1, step 1: four admitted and finished leave no room; step 2 brings two."""
        play = Play("skyrl", batch=2, max_staleness_steps=1, num_parallel_generation_workers=4)
        play.admit().finish()
        assert play.rules.room(play.state) == 0
        play.collect().publish()
        assert play.rules.room(play.state) == 2


class TestNemoRl:
    """tests/unit/single_controller/test_sampler_interface.py and tests/unit/algorithms/test_async_utils.py."""

    def test_gates(self) -> None:
        """weight_fifo at 0: a second batch blocks. ready_first at 1: two pass, then one more per version."""
        fifo = Play("nemo-rl:weight_fifo", batch=1, max_staleness_versions=0).admit(1)
        assert fifo.rules.room(fifo.state) == 0
        ready = Play("nemo-rl:ready_first", batch=1, max_staleness_versions=1)
        assert ready.rules.room(ready.state) == 2
        ready.admit(2).finish().collect().publish()
        assert ready.rules.room(ready.state) == 1
        wide = Play("nemo-rl:ready_first", batch=4, max_staleness_versions=2)
        assert wide.rules.room(wide.state) == 12
        order = Play("nemo-rl:in_order", batch=1, max_lookahead_versions=5).admit(2)
        assert [group.target for group in order.state.running.values()] == [0, 1]

    def test_the_gate_needs_slots(self) -> None:
        """max_buffered_rollouts >= N * (eta + 1), checked at start-up (4.3)."""
        with pytest.raises(AuditError, match="at least batch"):
            build("nemo-rl:ready_first", settings={"batch": 40, "max_staleness_versions": 1})

    def test_in_order_evicts_by_target(self) -> None:
        for version, target, ready, kept in ((2, 2, True, True), (3, 1, True, False), (5, 1, False, True)):
            play = Play("nemo-rl:in_order", batch=8)
            play.state.v = play.state.serving = version
            play.state.running.clear()
            (play.state.done if ready else play.state.running)[0] = Group(0, 0, 0, 0, target)
            play.collect()
            assert (play.fates == []) == kept

    def test_too_few_are_no_selection(self) -> None:
        for name in ("nemo-rl:windowed", "nemo-rl:weight_fifo"):
            play = Play(name, batch=8, max_staleness_versions=5, min_groups_for_streaming_train=2)
            play.state.v, play.state.running = 5, {}
            play.state.done = {0: Group(0, 3, 3, 3, 0)}
            assert play.collect().state.held == []

    def test_async_grpo_samples_its_own_target(self) -> None:
        """Groups (version, target) = (0,1), (1,2), (2,3) at V = 2, A = 2: (1,2). At V = 3, A = 1: version 0 goes."""

        def sampled(
            version: int, age: int, groups: list[tuple[int, int]], batch: int = 1
        ) -> tuple[list[int], list[int]]:
            play = Play("nemo-rl:async_grpo", batch=batch, max_trajectory_age_steps=age)
            play.state.v = play.state.serving = version
            play.state.counts["fresh"] = 0
            play.state.running.clear()
            play.state.done = {
                number: Group(number, *pair[:1], pair[0], pair[0], pair[1]) for number, pair in enumerate(groups)
            }
            play.rules.collect(play.state)
            play._look()
            return [group.id for group in play.state.held], [number for _, number in play.fates]

        assert sampled(2, 2, [(0, 1), (1, 2), (2, 3)]) == ([1], [])
        assert sampled(3, 1, [(0, 1), (2, 3)]) == ([1], [0])
        assert sampled(5, 1, [(0, 5), (4, 5)]) == ([1], [0])
        assert sampled(1, 1, [(0, 1)], batch=2) == ([], [])

    def test_measured_schedules(self) -> None:
        """Of the real controller (7.3): in_order at 2: lags 0, 1, 2, 2, 2; async_grpo at 1: ages 0, 1, 1, 1, 1."""
        order = Play("nemo-rl:in_order", batch=4, max_lookahead_versions=2, max_inflight_prompts=12)
        for _ in range(6):
            order.step()
        assert [set(ages) for ages in order.trained] == [{0}, {1}, {2}, {2}, {2}, {2}]
        grpo = Play("nemo-rl:async_grpo", batch=4, max_trajectory_age_steps=1)
        for _ in range(5):
            grpo.finish().collect().publish()
        assert [set(ages) for ages in grpo.trained] == [{0}, {1}, {1}, {1}, {1}]

    def test_ready_first_trains_a_straggler_at_four(self) -> None:
        """Measured (7.3): eta = 1, one prompt ten times slower: lag 4 in step 4, one group over the bound."""
        play = Play("nemo-rl:ready_first", batch=4, max_staleness_versions=1, max_inflight_prompts=8)
        for _ in range(4):
            play.step(but=(1,))
        play.finish(1).step().step().step()
        worst = [max(ages) for ages in play.trained]
        assert worst == [0, 1, 1, 1, 4, 1, 1]
        assert sum(age > 1 for ages in play.trained for age in ages) == 1

    def test_weight_fifo_stalls_with_few_in_flight(self) -> None:
        """Measured (4.4): N = m = 4, eta = 1, two in flight: a step, then 12 groups committed and nothing in flight."""
        play = Play(
            "nemo-rl:weight_fifo", batch=4, max_staleness_versions=1, max_inflight_prompts=2, max_buffered_rollouts=8
        )
        # Three groups are made before the first step begins, the rest while it trains and after it.
        while len(play.state.done) < 4:
            play.admit(2).finish()
        play.collect().admit(2).finish().publish()
        for _ in range(20):
            play.admit(2)
            if play.state.running:
                play.finish()
            play.collect()
        assert len(play.trained) == 1 and not play.state.running and play.rules.room(play.state) == 0


class TestSlime:
    def test_an_aborted_group_ages_with_every_sync(self) -> None:
        """As in the counterexample (B = 4, T = 6): group 5 is in flight over ten syncs, then waits in the queue.

        It ends after 11 steps, behind what waits, and is trained in step 12, with its first tokens of v0.
        """
        play = Play("slime", batch=4, threshold=6)
        while len(play.trained) < 13:
            play.admit().finish(but=(5,) if len(play.trained) < 11 else ()).collect()
            if play.state.training and play.rules.may_publish(play.state):
                play.publish()
        assert [max(ages) for ages in play.trained].index(12) == 12 and play.fates == []
        assert max(max(ages) for ages in play.trained[:12]) == 3


class TestTrl:
    def test_a_row_is_checked_a_step_before_it_is_trained(self) -> None:
        """S = 1, batches of 4 in one micro-batch: what was pulled at staleness 1 is trained at 2 (4.6)."""
        play = Play("trl", batch=4, max_staleness=1, max_inflight_tasks=12)
        play.admit().finish()  # twelve rows of v0
        play.collect()  # eight are pulled: the first batch trains, the second waits in the loader
        play.publish().collect()  # at v1 the third batch is pulled, 1 old, and the second trains
        play.publish().admit().finish().collect()  # the third trains at v2
        assert play.trained == [[0] * 4, [1] * 4, [2] * 4] and play.fates == []


class TestRoll:
    @pytest.mark.parametrize("ratio", [0, 1, 3])
    def test_starts_lie_in_the_window(self, ratio: int) -> None:
        """test_sync, test_1_off, test_3_off: at step i, max(0, i - R) <= start <= i, and ids below (i + R + 1) * 4."""
        play = Play("roll", batch=4, async_generation_ratio=ratio)
        for step in range(10):
            play.admit().finish().collect()
            assert all(age <= min(step, ratio) for age in play.trained[-1])
            assert play.state.next_id <= (step + ratio + 1) * 4
            play.publish()
        assert [max(ages) for ages in play.trained] == [min(step, ratio) for step in range(10)]

    def test_two_and_a_half(self) -> None:
        """test_2_5_off: at step i, max(0, i - 3) <= start <= i."""
        play = Play("roll", batch=4, async_generation_ratio=2.5)
        for _ in range(10):
            play.step()
        assert all(max(ages) <= min(step, 3) for step, ages in enumerate(play.trained)) and max(play.trained[9]) == 3
        assert play.fates == []

    def test_measured_histograms(self) -> None:
        """R = 2, 8 steps of 4 prompts with 2 responses; R = 1, F = 3, 9 steps: 20 groups beyond 1."""
        play = Play("roll", batch=4, async_generation_ratio=2)
        for _ in range(8):
            play.step()
        assert Counter(age for ages in play.trained for age in ages * 2) == {0: 8, 1: 8, 2: 48}
        seldom = Play("roll", batch=4, async_generation_ratio=1, model_update_frequency=3)
        for _ in range(9):
            seldom.step()
        assert Counter(age for ages in seldom.trained for age in ages * 2) == {0: 8, 1: 24, 2: 24, 3: 16}

    def test_agentic_batches_start_in_one_step(self) -> None:
        """test_rollout_scheduler.py: each batch has one start step, max(0, step - R)."""
        for ratio in (0, 1, 2):
            play = Play("roll:agentic", batch=4, async_generation_ratio=ratio)
            starts = []
            for _ in range(8):
                # Environments are never idle: every slot there is gets played.
                while play.rules.room(play.state) > 0:
                    play.admit().finish()
                before = dict(play.state.done)
                play.collect()
                starts.append({before[number].label for number in before if number not in play.state.done})
                play.publish()
            assert starts == [{max(0, step - ratio)} for step in range(8)]


class TestPrimeRl:
    @pytest.mark.parametrize(("step", "bound", "kept"), [(6, 2, [3, 4, 5]), (3, 2, [0, 1, 2]), (6, 0, [5])])
    def test_the_sweep_keeps_what_may_still_be_trained(self, step: int, bound: int, kept: list[int]) -> None:
        """Collecting step s: starts from s - 1 - B on."""
        play = Play("prime-rl", batch=99, max_off_policy_steps=bound)
        play.state.marks |= {"shipped": (step - 1,), "policy": (step - 2,)}
        play.state.done = {start: Group(start, start, start, start, 0) for start in range(step)}
        play.collect()
        assert list(play.state.done) == kept

    def test_without_a_check_of_the_queue(self) -> None:
        """B = 1 before PR #3313: a trace of v0 sees one version in flight, waits, and is trained in step 4."""
        play = Play("prime-rl", batch=2, max_off_policy_steps=1, queue_check=False, max_inflight=9)
        play.admit(8)
        play.finish(0, 1, 2, 3)  # batches 1 and 2 are shipped; the gate is closed
        play.publish().move("own", "adopt")  # v1
        play.finish(4, 5, 6, 7)  # batch 3 is shipped, batch 4 waits for v2
        play.publish().move("own", "adopt").publish()
        assert play.trained == [[0, 0], [1, 1], [2, 2], [3, 3]] and play.fates == []
        checked = Play("prime-rl", batch=2, max_off_policy_steps=1, max_inflight=9)
        checked.admit(8).finish(0, 1, 2, 3).publish().move("own", "adopt")
        assert ("cancelled", 4) in checked.fates


class TestOpenrlhf:
    def test_leftovers_of_a_large_call_are_served_first(self) -> None:
        """B = 2, a call of 4: [0, 1] are served, 2 and 3 stay in the buffer for the next batch."""
        play = Play("openrlhf:over-sampling", batch=2, oversampling=2).admit().finish()
        assert play.trained == [[0, 0]] and list(play.state.done) == [2, 3]
        assert [group.id for group in play.collect().state.held] == [2, 3]

    def test_four_batches_a_call_with_one_permit(self) -> None:
        """Q = 1, B = 3: batches 0 to 3 are of version 0 and trained at 0, 1, 2, 3; batch 7 is of 3, trained at 7."""
        play = Play("openrlhf:over-sampling", batch=3, oversampling=4, async_queue_size=1)
        while len(play.trained) < 8:
            play.admit()
            if play.state.running:
                play.finish()
            play.collect()
            if play.state.training and play.rules.may_publish(play.state):
                # The generator serves the next batch, or begins a call, as soon as it has the permit again.
                play.admit()
                if play.state.running:
                    play.finish()
                play.collect().publish()
        assert [ages[0] for ages in play.trained] == [0, 1, 2, 3, 1, 2, 3, 4]


class TestDressage:
    def test_a_session_with_too_many_labels_is_rejected(self) -> None:
        """tests/test_proxy.py: labels v1, v2, v3 with at most one preemption: rejected when it ends."""
        play = Play("dressage", batch=1, max_partial_rollout_preempts=1, tool_calls=False, max_active_groups=2)
        play.admit(2).finish(1).collect().admit(1).finish(2).collect().publish().admit(1).finish(3).collect().publish()
        assert play.state.v == 2
        play.finish(0)
        assert ("dropped", 0) in play.fates

    def test_no_window_keeps_all(self) -> None:
        play = Play("dressage", batch=3, dressage_staleness_keep_versions=0)
        play.state.done = {number: Group(number, number, number, number, 0) for number in range(3)}
        play.collect()
        assert len(play.trained) == 1 and play.fates == []

    def test_labels_do_not_see_the_trainer(self) -> None:
        """The counterexample (keep 2, preempts 2): session 0 starts under the first label and ends under the second.

        Others fill the steps from v1 and v2. When it is collected, at v2, the labels seen are those of v0 and v1.
        """
        play = Play("dressage", batch=1, max_active_groups=4).admit()
        play.finish(1).collect()  # trains from v0
        play.finish(2).collect().publish()
        play.finish(3).finish(0).collect().publish()  # both end under v1
        play.collect().publish()
        assert play.trained == [[0], [1], [2], [3]] and play.fates == []


class TestPsrl:
    @pytest.mark.parametrize("bound", [1, 2])
    def test_a_driven_run_keeps_its_bound(self, bound: int) -> None:
        """B = 4, 10 steps; one request is resumed under every new version and ends late: it keeps its place."""
        play = Play("psrl", batch=4, staleness=bound)
        for _ in range(10):
            late = min(play.state.running, default=0)
            play.admit()
            play.finish(*[group for group in play.state.running if group != late])
            play.collect()
            if not play.state.training:
                play.finish(late).collect()
            play.publish().move("own", "pull")
        assert len(play.trained) == 10 and max(max(ages) for ages in play.trained) <= bound


class TestDryRun:
    """tests/test_e2e.py and tests/test_advance.py, on the model that was rebuilt."""

    @pytest.mark.parametrize(
        ("policy", "work", "batch", "versions", "more"),
        [
            ("psrl", {"name": "uniform", "lo": 50, "hi": 200}, 4, 10, {}),
            ("psrl", {"name": "bimodal", "short_len": 50, "long_len": 500, "long_frac": 0.25}, 4, 8, {}),
            ("roll", {"name": "uniform", "lo": 50, "hi": 100}, 4, 8, {}),
            (
                "slime",
                {"name": "uniform", "lo": 50, "hi": 200},
                4,
                8,
                {"partial_rollout": False, "knobs": {"interval": 2}},
            ),
        ],
    )
    def test_end_to_end(
        self, policy: str, work: dict[str, Any], batch: int, versions: int, more: dict[str, Any]
    ) -> None:
        run = DryRun(policy, lengths(n=100, **work), batch, 2, train_s=0.5, **more)
        outcome = dryrun(run, versions)
        assert not outcome.stalled and max(outcome.staleness()) <= 2
        assert dryrun(run, versions).steps[-1][1] == outcome.steps[-1][1]

    def test_steps_in_closed_form(self) -> None:
        """F = 5, 2 for the first step and 1 more each: the sum of max(5, 2 + i)."""
        cost = Roofline(floor=5.0, step=0.0, token=0.0, context=1.0)
        for steps in range(20):
            assert cost.run(steps, 1, 2) == sum(max(5, 2 + number) for number in range(steps))

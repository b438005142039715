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

    def reject(self, *groups: int) -> Play:
        """Let these end and be filtered out, or fail for good."""
        for group in groups:
            self.move("reject", group)
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

    def test_a_resume_makes_everything_a_version_older(self) -> None:
        """Seen in a run: W = 1, steady at 1; after a resume, which admits the warm-up batch once more, steady at 2."""
        play = Play("verl:drop", batch=4, max_off_policy_threshold=9, resumes=1)
        for _ in range(4):
            play.step()
        play.move("own", "resume")
        for _ in range(5):
            play.step()
        # Two batches later what was admitted twice has come to the trainer.
        assert [max(ages) for ages in play.trained] == [0, 1, 1, 1, 1, 1, 2, 2, 2]

    def test_fully_async_trains_a_straggler_at_five(self) -> None:
        """Seen in a run: trigger 2, R = 2, theta = 0.5; started at v2, finished at v6, trained at v7."""
        play = Play("verl:fully-async", batch=4, trigger_parameter_sync_step=2, staleness_threshold=0.5)
        while play.state.v < 2:
            play.step()
        late = play.admit().state.next_id - 1
        assert play.state.running[late].first == 2
        while play.state.v < 6:
            play.step(but=(late,))
        # What is in the queue goes first: the straggler is the last of more than a batch.
        play.admit().finish(but=(late,)).finish(late).collect().publish()
        play.step()
        assert [max(ages) for ages in play.trained[2:]] == [1, 1, 1, 1, 1, 5]

    def test_fully_async_without_a_share_waits_for_its_straggler(self) -> None:
        """Seen in a run with theta = 0: all that start under a version are needed for the next sync."""
        play = Play("verl:fully-async", batch=4, trigger_parameter_sync_step=2, staleness_threshold=0.0)
        for _ in range(3):
            play.admit().finish(but=(play.state.next_id - 1,)).collect()
            assert not play.state.training and play.rules.room(play.state) == 0
            play.finish().collect().publish()
        assert play.trained == [[0] * 4] * 3

    def test_one_step_off_is_off_by_one(self) -> None:
        """0 for the first batch, 1 for every other, whatever the lengths (4, OSO)."""
        play = Play("verl:one-step-off", batch=4).admit().finish().collect()
        for _ in range(5):
            play.admit().finish().publish().collect()
        assert [set(ages) for ages in play.trained] == [{0}, {1}, {1}, {1}, {1}, {1}]

    def test_what_fails_or_has_no_advantage_is_replaced(self) -> None:
        """One finished, one failed (or with equal rewards), batch 2, s = 1: it goes, and one fresh group begins."""
        play = Play("verl:drop", batch=2, num_warmup_batches=0).finish(0).reject(1)
        assert play.fates == [("dropped", 1)] and [g.label for g in play.state.running.values()] == [1]
        assert play.finish(2).collect().trained == [[0, 0]]

    @pytest.mark.parametrize("settings", [{"max_off_policy_threshold": 0}, {"max_off_policy_strategy": "bogus"}])
    def test_bad_configurations_are_refused(self, settings: dict[str, Any]) -> None:
        with pytest.raises(AuditError):
            build("verl:drop", settings=settings)


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
            # Recovery: a run that comes back at any version has the quota of a fresh one, less what runs.
            (1000, 16, 2, 0, 0, 48),
            (1000, 16, 2, 1, 0, 47),
            (1000, 16, 2, 5, 0, 43),
            (1000, 16, 2, 16, 0, 32),
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

    def test_rejected_tasks_give_their_quota_back(self) -> None:
        """10 rejected of 10; 15 accepted and 5 rejected; 14 and 2 under v0, then v1 and 16 more."""
        all_rejected = Play("areal", max_concurrent_rollouts=10, consumer_batch_size=4, max_head_offpolicyness=2)
        assert all_rejected.rules.room(all_rejected.admit().reject(*range(10)).state) == 10
        mixed = Play("areal", max_concurrent_rollouts=20, consumer_batch_size=8, max_head_offpolicyness=3)
        assert mixed.rules.room(mixed.admit().finish(*range(15)).reject(*range(15, 20)).state) == 17
        later = Play("areal", max_concurrent_rollouts=32, consumer_batch_size=16, max_head_offpolicyness=2)
        later.admit(16).finish(*range(14)).reject(14, 15)
        later.rules.published(later.state)
        assert later.rules.room(later.state) == 32
        assert len(later.admit(16).state.running) == 16 and len(later.state.done) == 14

    def test_limits_of_nothing_and_of_too_much(self) -> None:
        """0 counts as 1; ten that run where three may leave -7; at version 1e6 only the concurrency counts."""
        none = Play("areal", max_concurrent_rollouts=0, consumer_batch_size=0, max_head_offpolicyness=0)
        assert none.rules.room(none.state) == 1
        over = Play("areal", max_concurrent_rollouts=3, consumer_batch_size=2, max_head_offpolicyness=1)
        assert over.rules.room(over.move("admit", 10).state) == -7
        large = Play("areal", max_concurrent_rollouts=10_000, consumer_batch_size=64, max_head_offpolicyness=10)
        large.state.counts["quota"] += 10**6 * 64
        assert large.rules.room(large.state) == 10_000

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

    @pytest.mark.parametrize(("version", "capacity"), [(0, 192), (1, 224), (10, 512), (100, 1000), (1000, 1000)])
    def test_the_formula(self, version: int, capacity: int) -> None:
        """min(1000, (5 + v + 1) * 32), with nothing accepted."""
        play = Play("areal", max_concurrent_rollouts=1000, consumer_batch_size=32, max_head_offpolicyness=5)
        for _ in range(version):
            play.rules.published(play.state)
        assert play.rules.room(play.state) == capacity

    def test_no_straggler_is_needed(self) -> None:
        """Counterexample B: eta = 1, B = C = 4; tasks 8 and 10, a little longer than others, are 2 old in step 3."""
        play = Play("areal", batch=4, max_head_offpolicyness=1)
        play.admit().finish().collect().publish()  # tasks 0 to 7 are of v0, 0 to 3 are trained
        play.admit().collect()  # 8 to 11 begin under v1; 4 to 7 are trained
        play.finish(9, 11).publish()
        play.admit().finish(12, 13).collect().publish()  # 9, 11 and two of v2
        play.admit().finish(8, 10, 14, 15).collect()
        assert play.trained == [[0] * 4, [1] * 4, [1, 1, 0, 0], [2, 2, 1, 1]]


class TestSkyrl:
    def test_the_quota_counts_what_was_accepted(self) -> None:
        """W = 4, B = 2, S = 1, step 1: four admitted and finished leave no room; step 2 brings two."""
        play = Play("skyrl", batch=2, max_staleness_steps=1, num_parallel_generation_workers=4)
        play.admit().finish()
        assert play.rules.room(play.state) == 0
        play.collect().publish()
        assert play.rules.room(play.state) == 2

    def test_a_group_without_variance_gives_its_slot_back(self) -> None:
        """W = 4, B = 2, S = 1, step 1: four submitted, one filtered, three accepted: one more may begin."""
        play = Play("skyrl", batch=2, max_staleness_steps=1, num_parallel_generation_workers=4)
        play.admit().finish(0, 1, 2).reject(3)
        assert play.rules.room(play.state) == 1

    def test_a_batch_of_old_groups_is_trained_whole(self) -> None:
        """B = 64, S = 2, step 10: 61 groups scheduled in step 7 and 3 in step 10: mean 183 / 64, nothing goes."""
        play = Play("skyrl", batch=64, max_staleness_steps=2)
        play.state.v = play.state.serving = 9
        starts = [6] * 61 + [9] * 3
        play.state.done = {number: Group(number, start, start, 9, 0) for number, start in enumerate(starts)}
        play.collect()
        assert play.trained == [[3] * 61 + [0] * 3] and sum(play.trained[0]) == 183 and play.fates == []


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

    @pytest.mark.parametrize("bound", [1, 2, 4])
    def test_ideal_patterns(self, bound: int) -> None:
        """With generation that takes no time (7.3): gated samplers and async_grpo show 0, 1, .., eta, then eta."""
        knobs = {
            "nemo-rl:weight_fifo": "max_staleness_versions",
            "nemo-rl:ready_first": "max_staleness_versions",
            "nemo-rl:in_order": "max_lookahead_versions",
        }
        for name, knob in knobs.items():
            play = Play(name, batch=4, **{knob: bound})
            for _ in range(8):
                play.step()
            assert [set(ages) for ages in play.trained] == [{min(step, bound)} for step in range(8)], name
        grpo = Play("nemo-rl:async_grpo", batch=4, max_trajectory_age_steps=bound)
        while len(grpo.trained) < 8:
            grpo.finish().collect()
            if grpo.state.training and not grpo.state.running:
                grpo.publish()
        assert [set(ages) for ages in grpo.trained] == [{min(step, bound)} for step in range(8)]

    def test_ready_first_trains_two_stragglers_late(self) -> None:
        """Measured (7.3): eta = 2, prompts 1 and 2 much slower: lag 5 in step 5 and 6 in step 6, two groups over 2."""
        play = Play("nemo-rl:ready_first", batch=4, max_staleness_versions=2, max_inflight_prompts=12)
        for _ in range(5):
            play.step(but=(1, 2))
        play.admit().finish(2).finish(but=(1,)).collect().publish()
        play.admit().finish(1).step()
        assert [max(ages) for ages in play.trained] == [0, 1, 2, 2, 2, 5, 6]
        assert sum(age > 2 for ages in play.trained for age in ages) == 2

    def test_a_checkpoint_of_a_wider_gate_is_trained_late(self) -> None:
        """Measured (7.3): in_order, eta 4, resumed with eta 1 at step 1: 16 groups of v0 for steps 1 to 4."""
        play = Play("nemo-rl:in_order", batch=4, max_lookahead_versions=1, resumed_from_lookahead=4)
        assert len(play.state.done) == 16
        for _ in range(8):
            play.step()
        assert [set(ages) for ages in play.trained] == [{1}, {2}, {3}, {4}, {1}, {1}, {1}, {1}]

    @pytest.mark.parametrize(
        ("step", "batch", "saved", "kept", "missing"),
        [
            (2, 2, [(0, 1), (1, 2), (1, 2), (2, 3)], [(1, 2), (1, 2), (2, 3)], (3, 1)),
            (5, 2, [(0, 5), (1, 5), (4, 5)], [(4, 5)], (5, 1)),
            (2, 1, [(0, 1), (1, 2), (2, 3), (3, 4)], [(1, 2), (2, 3)], (0, 0)),
            (30, 8, [(29, 30)] * 8, [(29, 30)] * 8, (31, 8)),
        ],
    )
    def test_async_grpo_restores_what_is_of_use(
        self,
        step: int,
        batch: int,
        saved: list[tuple[int, int]],
        kept: list[tuple[int, int]],
        missing: tuple[int, int],
    ) -> None:
        """A = 1: past targets and starts beyond the window go, then what exceeds the capacity; the rest is made anew.

        In the last case the target of step 30 is complete, but training must wait for that of 31.
        """
        play = Play("nemo-rl:async_grpo", batch=batch, max_trajectory_age_steps=1)
        play.state.running.clear()
        play.rules.restore(play.state, step, saved)  # type: ignore[attr-defined]
        assert [(group.label, group.target) for group in play.state.done.values()] == kept
        play.state.effects.clear()
        assert play.rules.stamp(play.state)[1] == missing[0] and play.rules.room(play.state) == missing[1]
        play.collect()
        assert bool(play.trained) == (not missing[1])

    def test_a_step_shrinks_by_a_prompt_that_is_given_up(self) -> None:
        """Measured (7.3): in_order, eta = 1, prompt 5 fails for good: the step from v1 has three groups, lag 1."""
        play = Play("nemo-rl:in_order", batch=4, max_lookahead_versions=1)
        play.admit().reject(5).finish().collect().publish()
        for _ in range(4):
            play.step()
        assert play.trained == [[0] * 4, [1] * 3, [1] * 4, [1] * 4, [1] * 4]

    def test_a_spare_prompt_replaces_one_that_is_given_up(self) -> None:
        """Measured (7.3): eta = 2, replace: the step that lost one of its prompts has four groups all the same."""
        play = Play("nemo-rl:in_order", batch=4, max_lookahead_versions=2, on_dropped_prompt="replace")
        play.admit().reject(10).admit().finish().collect().publish()
        for _ in range(5):
            play.step()
        assert [len(ages) for ages in play.trained] == [4] * 6
        assert [max(ages) for ages in play.trained] == [0, 1, 2, 2, 2, 2]

    def test_weight_fifo_evicts_the_surplus_of_a_resume(self) -> None:
        """Measured (7.3): eta = 2, m = 1; resumed at step 1 with 8 groups of v0: 12 of v1 begin, 8 of them go at v4."""
        play = Play("nemo-rl:weight_fifo", batch=4, max_staleness_versions=2, min_groups_for_streaming_train=1)
        play.state.v = play.state.serving = 1
        play.state.next_id = 8
        play.state.done = {number: Group(number, 0, 0, 0, 0) for number in range(8)}
        for _ in range(7):
            play.step()
        assert [set(ages) for ages in play.trained] == [{1}, {2}, {2}, {2}, {2}, {2}, {2}]
        assert len(play.fates) == 8

    def test_a_refit_in_flight_adds_no_age(self) -> None:
        """Measured (7.3): async_grpo, A = 2, one group slow across a refit: ages 0, 1, 2, 2; it is trained at 2."""
        play = Play("nemo-rl:async_grpo", batch=4, max_trajectory_age_steps=2, in_flight_weight_updates=True)
        slow = None
        while len(play.trained) < 6:
            if slow is None and play.state.serving == 1 and play.state.running:
                slow = min(play.state.running)
            crosses = slow is not None and play.state.serving == 1
            play.finish(but=(slow,) if crosses and slow is not None else ()).collect()
            if play.state.training:
                play.publish()
        assert [max(ages) for ages in play.trained] == [0, 1, 2, 2, 2, 2]


class TestSlime:
    def test_an_aborted_group_ages_with_every_sync(self) -> None:
        """The counterexample (B = 4, T = 6): group 5 is in flight over ten syncs, ends under v10, behind ten that wait.

        That is the third batch from then on: it is trained in step 13, its first tokens are of v0. (Group 4 ends in the
        second step, so that the queue is as full.)
        """
        play = Play("slime", batch=4, threshold=6)
        while len(play.trained) < 15:
            play.admit().finish(but=(4, 5) if not play.trained else (5,))
            if play.state.v == 10:
                assert len(play.state.done) == 10
                play.finish(5)
            play.collect()
            if play.state.training and play.rules.may_publish(play.state):
                play.publish()
        worst = [max(ages) for ages in play.trained]
        assert worst[13] == 13 and play.fates == []
        assert max(worst[:13] + worst[14:]) == 3

    def test_the_filter_takes_from_the_queue(self) -> None:
        """Dynamic filter, groups 0 to 7 of which the odd ones are kept, B = 3: 0, 2 and 4 go; 6 and 7 stay queued."""
        play = Play("slime", batch=3, threshold=8).admit(8).reject(0, 2, 4).finish().collect()
        assert [number for _, number in play.fates] == [0, 2, 4] and play.trained == [[0] * 3]
        assert list(play.state.done) == [6, 7]

    def test_the_pool_is_filled_while_a_batch_is_formed(self) -> None:
        """Pooled worker, P = 4, B = 2, M = 1: 5 dispatched for the first batch, 7 for the second."""
        play = Play("slime:pooled", batch=2, fully_async_pool_size=4)
        play.state.training = True  # the batch waits for the trainer
        play.admit().finish().collect().admit().collect()
        assert play.state.next_id == 5 and len(play.state.held) == 2 and play.rules.room(play.state) == 0
        play.publish()
        assert play.state.held == [] and len(play.state.done) == 2
        play.finish().admit().collect().finish().admit().collect()
        assert play.state.next_id == 7 and len(play.state.held) == 2

    def test_of_finished_groups_the_smallest_key_is_taken(self) -> None:
        """Keys 9, 1, 5, 3, 2, ...: the first batch is {1, 3}, the second {2, 4}."""
        play = Play("slime:pooled", batch=2, fully_async_pool_size=4)
        play.state.training = True

        def dispatched() -> None:
            play.admit()
            for number, group in play.state.running.items():
                key = (9, 1, 5, 3, 2)[number] if number < 5 else 10
                play.state.running[number] = group._replace(target=key)

        batches = []
        for _ in range(2):
            dispatched()
            play.finish().collect()
            dispatched()
            play.collect()
            batches.append({group.id for group in play.state.held})
            play.publish().state.training = True
        assert batches == [{1, 3}, {2, 4}]

    def test_a_failed_rollout_leaves_its_place_in_the_pool(self) -> None:
        play = Play("slime:pooled", batch=2, fully_async_pool_size=4).admit().reject(2)
        assert play.rules.room(play.state) == 1


class TestTrl:
    def test_a_row_is_checked_a_step_before_it_is_trained(self) -> None:
        """S = 1, batches of 4 in one micro-batch: what was pulled at staleness 1 is trained at 2 (4.6)."""
        play = Play("trl", batch=4, max_staleness=1, max_inflight_tasks=12)
        play.admit().finish()  # twelve rows of v0
        play.collect()  # eight are pulled: the first batch trains, the second waits in the loader
        play.publish().collect()  # at v1 the third batch is pulled, 1 old, and the second trains
        play.publish().admit().finish().collect()  # the third trains at v2
        assert play.trained == [[0] * 4, [1] * 4, [2] * 4] and play.fates == []

    def test_a_row_that_does_not_fit_is_checked_two_steps_early(self) -> None:
        """Token budget, S = 2 (4.6): a row of the first version, pulled at the third one, is trained in step 5: 4."""
        play = Play("trl:token-budget", batch=1, max_staleness=2, max_inflight_tasks=9)
        play.admit(5).finish().collect()  # 0 trains, 1 is the next batch, 2 opened the one after it
        play.publish().collect()  # 1 trains; 3 is pulled, 1 old
        play.publish().collect()  # 2 trains; 4 is pulled at staleness 2, which is allowed
        play.admit().finish().publish().collect().publish().collect()
        assert play.trained[:5] == [[0], [1], [2], [3], [4]]


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

    def test_prompts_beyond_the_quota_change_no_start(self) -> None:
        """test_sync_additional_prompts: R = 0 and a cap of 2: every batch starts in its own step."""
        play = Play("roll", batch=4, async_generation_ratio=0, is_use_additional_prompts=True)
        for _ in range(10):
            play.step()
        assert play.trained == [[0] * 4] * 10

    def test_filtered_prompts_begin_again_in_the_same_step(self) -> None:
        """test_sync_filter: R = 0, additional prompts with a cap of 2, the first 15 filtered: start step = i."""
        play = Play(
            "roll", batch=4, async_generation_ratio=0, is_use_additional_prompts=True, max_additional_running_prompts=2
        )
        for _ in range(10):
            while not play.state.training:
                play.admit()
                first = min(play.state.running)
                (play.reject(first) if first < 15 else play.finish(first)).collect()
            play.publish()
        assert play.trained == [[0] * 4] * 10 and len(play.fates) >= 15

    def test_filtered_episodes_are_played_again(self) -> None:
        """test_rollout_scheduler.py: every third episode is dropped; batches keep one start step, max(0, step - R)."""
        for ratio in (0, 1, 2):
            play = Play("roll:agentic", batch=4, async_generation_ratio=ratio)
            starts = []
            for _ in range(8):
                while play.rules.room(play.state) > 0:
                    play.admit()
                    running = list(play.state.running)
                    play.reject(*(number for number in running if number % 3 == 0))
                    play.finish(*(number for number in running if number % 3))
                before = dict(play.state.done)
                play.collect()
                starts.append({before[number].label for number in before if number not in play.state.done})
                play.publish()
            assert starts == [{max(0, step - ratio)} for step in range(8)]

    def test_one_and_a_half(self) -> None:
        """R = 1.5, B = 3: the start steps of steps 0 to 2 are 000, 000, 011. Then ROLL stops; the rules go on."""
        play = Play("roll", batch=3, async_generation_ratio=1.5)
        for _ in range(3):
            play.step()
        assert play.trained == [[0, 0, 0], [1, 1, 1], [2, 1, 1]]

    def test_agentic_weights_every_second_step(self) -> None:
        """Measured: R = 1, F = 2, four a step, 7 steps: 0: 4, 1: 12, 2: 12; every slot is created a step early."""
        play = Play("roll:agentic", batch=4, async_generation_ratio=1, model_update_frequency=2)
        for _ in range(7):
            while play.rules.room(play.state) > 0:
                play.admit().finish()
            play.collect().publish()
        assert Counter(age for ages in play.trained for age in ages) == {0: 4, 1: 12, 2: 12}


class TestPrimeRl:
    @pytest.mark.parametrize(("step", "bound", "kept"), [(6, 2, [3, 4, 5]), (3, 2, [0, 1, 2]), (6, 0, [5])])
    def test_the_sweep_keeps_what_may_still_be_trained(self, step: int, bound: int, kept: list[int]) -> None:
        """Collecting step s: starts from s - 1 - B on."""
        play = Play("prime-rl", batch=99, max_off_policy_steps=bound)
        play.state.marks |= {"shipped": (step - 1,), "policy": (step - 2,)}
        play.state.counts["arrived"] = 1
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

    def test_the_label_race(self) -> None:
        """B = 1: a group that opens between the version bump and the pause is labelled one too new: trained at 2."""
        play = Play("prime-rl", batch=1, max_off_policy_steps=1, label_race=True, max_inflight=3)
        play.admit(3).finish(0).publish()
        play.move("own", "adopt").admit(1)  # the counter says 1, the engines serve v0
        assert (play.state.running[3].label, play.state.running[3].first) == (1, 0)
        play.move("own", "apply").finish(1).publish()  # it misses the second batch
        play.move("own", "adopt").move("own", "apply").finish(3)
        assert play.trained == [[0], [1], [2]] and play.fates == [("cancelled", 2)]  # labelled 0 like 1, it had to go

    def test_the_counter_of_version_0_5(self) -> None:
        """test_update_off_policy_...: B = 1: a group that saw one change goes at the second; a younger one stays."""
        play = Play("prime-rl", batch=9, max_off_policy_steps=1, queue_check=False, max_inflight=3)
        play.state.v = 1
        play.admit(1).move("own", "adopt").admit(1)
        assert [group.label for group in play.state.running.values()] == [0, 1]
        play.state.v = 2
        play.move("own", "adopt").admit(1)
        assert play.fates == [("cancelled", 0)] and [g.label for g in play.state.running.values()] == [1, 2]

    def test_what_a_gate_of_the_curriculum_rejects_never_ships(self) -> None:
        play = Play("prime-rl", batch=2, max_off_policy_steps=1, max_inflight=9, min_burst=8)
        play.admit().reject(0).finish(1)
        assert play.trained == [] and play.rules.room(play.state) == 2
        assert play.finish(2).trained == [[0, 0]]

    def test_bound_0(self) -> None:
        """PR #3313: 15 steps with B = 0, every one of staleness 0."""
        play = Play("prime-rl", batch=2, max_off_policy_steps=0, max_inflight=5)
        while len(play.trained) < 15:
            play.admit()
            if play.state.running:
                play.finish(next(iter(play.state.running)))
            if play.state.training:
                play.publish().move("own", "adopt")
        assert {age for ages in play.trained for age in ages} == {0} and play.fates


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

    def test_a_filtered_group_is_replaced_within_the_call(self) -> None:
        """Dynamic filtering: the call goes on until it has its groups, and the broadcast waits for it."""
        play = Play("openrlhf", batch=2).admit().finish(0).reject(1)
        assert play.trained == [] and not play.rules.may_publish(play.state)
        play.admit()
        assert list(play.state.running) == [2]
        assert play.finish(2).trained == [[0, 0]]


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

    def test_what_a_batch_leaves_is_collected_next(self) -> None:
        """tests/test_partial_async_rollout.py: four completed, a target of two: 0 and 1, then 2 and 3."""
        play = Play("dressage", batch=2)
        play.state.done = {number: Group(number, 0, 0, 0, 0) for number in range(4)}
        assert list(play.collect().state.done) == [2, 3]
        assert [group.id for group in play.collect().state.held] == [2, 3]

    def test_only_the_end_label_counts(self) -> None:
        """tests/test_fully_async_rollout.py: keep 1, tokens of "old" and "new": accepted. "new" came last."""
        play = Play("dressage", batch=1, dressage_staleness_keep_versions=1)
        play.state.v = play.state.serving = 1
        play.state.done = {0: Group(0, 0, 0, 1, 0)}
        assert play.collect().trained == [[1]]


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

    def test_a_buffer_is_ready_when_all_its_places_are_occupied(self) -> None:
        """Three places: reserved, it is stuck; with two occupied, pending; with three, ready."""
        play = Play("psrl", batch=3, staleness=0).admit()
        assert [group.target for group in play.state.running.values()] == [0, 0, 0] and play.rules.room(play.state) == 0
        assert play.finish(0, 1).collect().trained == []
        assert play.finish(2).collect().trained == [[0] * 3]

    def test_the_gateway_pins_a_request_to_the_version_that_took_it(self) -> None:
        """A request of v4 keeps its tag when its instance goes on with v5; a new one is pinned to 5."""
        play = Play("psrl", batch=2, staleness=2)
        play.state.v = play.state.serving = 4
        play.admit(1).collect()
        play.state.v = 5
        play.move("own", "pull").admit(1)
        assert [group.label for group in play.state.running.values()] == [4, 5]
        # No instance that is behind the tag may take it: later turns without one are a mode of their own.
        assert play.rules.own(play.state) == ()

    def test_failures_count_in_the_gate_for_ever(self) -> None:
        """Driven: eta = 1, B = 2: stalled at buffer 6 after 7 failures, each of which sent a replacement."""
        play = Play("psrl", batch=2, staleness=1)
        for failures in (0, 0, 0, 3, 0, 4):
            play.admit()
            for _ in range(failures):
                play.reject(max(play.state.running)).admit()
            play.finish().collect().publish().move("own", "pull")
        assert len(play.fates) == 7 and len(play.trained) == play.state.v == 6
        assert not play.state.running and not play.state.done and play.rules.room(play.state) == 0

    def test_a_later_turn_without_a_version(self) -> None:
        """The guide's violation (4): a turn of group 2 goes to the instance that lags: its place, 1, is in reach of v0.

        Then group 1 ends first and takes that place; group 2 is moved to the next one, and trained at 2.
        """
        play = Play("psrl:native-multi-turn", batch=1, staleness=1)
        play.admit(1).finish(0).collect().publish().move("own", "pull").admit(2)
        assert [group.target for group in play.state.running.values()] == [2, 1]
        play.move("own", "turn 2").finish(1).finish(2).collect().publish().collect()
        assert play.trained == [[0], [0], [2]]


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

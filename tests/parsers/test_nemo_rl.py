"""NeMo-RL's single controller: runs of 2 groups a step and 2 trajectories a group that can be checked by hand."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from nemo_rl_run import Run, events, sampler, sc_actor, sc_chunks, sc_out, sc_start, sc_step, torch_file
from staleness_parsers.nemo_rl import PARSER
from staleness_parsers.nemo_rl.settings import from_repr

from staleness_audit.errors import SeveralRuns

END = "SC run complete: {{'train_steps': {0}, 'trainer_version': {0}}}\n"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def driver(name: str, *lines: str, stale: int = 1, ahead: int = 1, exp: str = "exp_001", end: int | None = None) -> str:
    head = "Final config:\n" + sampler(name, stale=stale, ahead=ahead) + f"📊 Using log directory: logs/{exp}\n"
    return head + sc_actor([*sc_start(name), *lines]) + (END.format(end) if end else "")


class TestSteps:
    def test_a_run_to_check_by_hand(self, run: Run) -> None:
        # Step 1 starts from v0 with lag 0: 4 trajectories, 20 tokens, all of v0. Step 2 starts from v1 with lag 1.
        # Step 3 starts from v2 with lag 2: one group of 2 has staleness 1 or 2, the other anything up to 2.
        run["ray-driver.log"] = driver("in_order", *sc_step(1, 0), *sc_step(2, 1), *sc_step(3, 2), ahead=2, end=3)
        audited = run()
        assert audited["verdict"] == "pass"
        assert audited["bound"] == {
            "value": 2,
            "source": "config",
            "key": "async_rl.sampler.max_lookahead_versions",
            "configured": 2,
            "conversion": "in_order: v_train - v_gen, as it is",
        }
        assert audited.per_step("v_train") == {(0, 1): (0, 0), (0, 2): (1, 1), (0, 3): (2, 2)}
        assert audited.per_step("tokens") == {(0, k): (20, 20) for k in (1, 2, 3)}
        assert audited.per_step("max") == {(0, 1): (0, 0), (0, 2): (0, 1), (0, 3): (1, 2)}
        assert audited.histogram("trajectory")[0][0] == 4
        assert audited.count("trajectories", "trained") == (12, 12)
        assert audited["run"]["health"]["state"] == "finished"
        assert audited["guarantee"] == {
            "strict": True,
            "limit": 2,
            "reason": "in_order: a group is trained at the step it was admitted for, at most the lookahead after its "
            "admission.",
        }

    def test_a_lag_proves_one_group_and_leaves_the_others_open(self, run: Run) -> None:
        # Lag 3 in step 4: the oldest group (2 trajectories) has 2 or 3, more than the bound of 1.
        steps = [line for step, lag in ((1, 0), (2, 1), (3, 1), (4, 3)) for line in sc_step(step, lag)]
        run["ray-driver.log"] = driver("ready_first", *steps, end=4)
        assert run()["verdict"] == "no-bound"
        audited = run(bound=1)
        assert audited["verdict"] == "fail"
        assert audited.largest == (2, 3)
        assert audited.count("violations", "groups") == (1, 2)
        assert audited.count("violations", "trajectories") == (2, 4)
        assert audited.count("violations", "tokens") == (2, 20)
        assert audited["violations"]["steps"] == [{"attempt": 0, "step": 4, "trajectories": {"lo": 2, "hi": 4}}]
        assert audited["guarantee"]["limit"] == "none"

    def test_groups_of_one_weight_fifo_selection_share_their_start(self, run: Run) -> None:
        run["ray-driver.log"] = driver("weight_fifo", *sc_step(1, 0), *sc_step(2, 1), *sc_step(3, 2), stale=2, end=3)
        audited = run(bound=0)
        assert audited.per_step("violations") == {(0, 1): (0, 0), (0, 2): (0, 4), (0, 3): (4, 4)}

    def test_several_chunks_may_mix_versions(self, run: Run) -> None:
        steps = [*sc_step(1, 0), *sc_step(2, 1), *sc_chunks(3, (1, 1)), *sc_out(3, 2)]
        run["ray-driver.log"] = driver("weight_fifo", *steps, stale=2, end=3)
        assert run(bound=0).per_step("violations")[(0, 3)] == (2, 4)

    def test_what_the_timing_block_calls_seconds(self, run: Run) -> None:
        """Pitfall 7: tokens per second are printed as seconds; only the wait for data is one."""
        run["ray-driver.log"] = driver("windowed", *sc_step(1, 0), *sc_step(2, 1), end=2)
        assert "valid_tokens_per_sec_per_gpu: 77.31s (10046.4%)" in (run.run / "ray-driver.log").read_text()
        assert [row["waited_s"] for row in run()["per_step"]] == [0.25, 0.25]

    def test_metrics_are_python_and_not_json(self, run: Run) -> None:
        """Pitfall 6: single quotes, nan and inf; [later] releases add means, and lists are left out."""
        more = {"kl": float("inf"), "max_trajectory_age": 1.0, "rollout/turns/mean": 2.5}
        run["ray-driver.log"] = driver("windowed", *sc_step(1, 0), *sc_step(2, 1, **more), end=2)
        assert "'kl': inf" in (run.run / "ray-driver.log").read_text()
        audited = run()
        assert audited.codes == set()
        assert audited.per_step("tokens") == {(0, 1): (20, 20), (0, 2): (20, 20)}
        told = [row for row in audited["reported"] if row["name"] == "step.staleness_max"]
        assert [(row["step"], row["reported"]) for row in told] == [(1, 0.0), (2, 1.0), (2, 1.0)]

    def test_lines_of_later_releases_are_passed_over(self, run: Run) -> None:
        """Guide 5.1.1, [later]; and retries (pitfall 12) count no trajectory."""
        later = [
            "occupancy (train_step=1): inflight=2/4 buffered=1/8 committed=4 skipped=0 trainer_v=1",
            "engine saturation (running=3, waiting=0)",
            "NeMo-Gym: re-dispatching 1/2 row(s) (attempt 2/3)",
            "  rollout done for prompt='你好 🎉 train step 9'...",
        ]
        run["ray-driver.log"] = driver("windowed", *sc_step(1, 0), *later, *sc_step(2, 1), end=2)
        audited = run()
        assert audited.count("run", "steps") == (2, 2)
        assert audited.count("trajectories", "trained") == (8, 8)
        assert audited.codes == set()

    def test_an_address_in_rays_prefix(self, run: Run) -> None:
        """Pitfall 2."""
        text = driver("windowed", *sc_step(1, 0), *sc_step(2, 1), end=2)
        run["ray-driver.log"] = text.replace("pid=7)", "pid=7, ip=10.0.0.7)")
        assert run().per_step("max") == {(0, 1): (0, 0), (0, 2): (0, 1)}

    def test_a_finished_group_that_was_promoted(self, run: Run) -> None:
        """Pitfall 11: a group of v0 kept for step 4 trains at step 3 (v2) instead; the lag alone tells how old."""
        gone = [
            "dropping prompt idx=5 after 5 infrastructure failure(s) (RolloutTimeout: slow) [consecutive drop 1/2]",
            "  target_step=2: filled the dropped group by promoting a finished group from target_step=3; the spare "
            "prompt is dispatched to repay that step instead",
        ]
        more = {"replaced_prompt_groups": 0, "promoted_prompt_groups": 1}
        steps = [*sc_step(1, 0), *sc_step(2, 1), *gone, *sc_step(3, 2, **more)]
        run["ray-driver.log"] = driver("in_order", *steps, ahead=3, end=3)
        audited = run()
        assert audited.per_step("max")[(0, 3)] == (1, 2)
        assert audited.per_step("trajectories")[(0, 3)] == (4, 4)
        assert audited["verdict"] == "pass"

    def test_streams_are_not_in_order(self, run: Run) -> None:
        # Standard error arrives late, and the driver's end before the last step.
        out = [*sc_out(1, 0), "  evicted 1 stale prompt group(s)", *sc_out(2, 1, evicted_stale_prompt_groups=1)]
        text = driver("windowed", *out[:8]) + END.format(2) + sc_actor([*out[8:], *sc_chunks(2), *sc_chunks(1)])
        run["ray-driver.log"] = text
        audited = run()
        assert audited["verdict"] == "pass"
        assert audited.per_step("trajectories") == {(0, 1): (4, 4), (0, 2): (4, 4)}
        assert audited.per_step("dropped") == {(0, 1): (0, 0), (0, 2): (2, 2)}

    def test_a_shrunk_step_has_fewer_groups(self, run: Run) -> None:
        gone = [
            "skipping prompt idx=5 after 2 deterministic failure(s) (RolloutDataFailure: bad)",
            "  target_step=0 is one group short (1 total); the train pump will close that step early",
        ]
        steps = [*gone, *sc_chunks(1, (1,)), *sc_out(1, 0, toks=9, seqs=2, dropped_prompt_groups=1)]
        run["ray-driver.log"] = driver("in_order", *steps, end=1)
        audited = run()
        assert audited.per_step("trajectories") == {(0, 1): (2, 2)}
        # Two attempts of 2 trajectories failed; nothing finished was thrown away.
        assert audited.count("trajectories", "lost", "error") == (4, 4)
        assert audited["trajectories"]["dropped"] == {}

    def test_without_standard_error_the_metrics_count_the_groups(self, run: Run) -> None:
        steps = sc_out(1, 0, toks=9, seqs=2, dropped_prompt_groups=1)
        run["ray-driver.log"] = driver("in_order", *steps, end=1)
        assert run().per_step("trajectories") == {(0, 1): (2, 2)}

    def test_masked_rows_may_be_the_oldest(self, run: Run) -> None:
        # 3 of 4 sequences count: the group with lag 2 may hold the masked one, so nothing is proven over bound 0.
        steps = [*sc_step(1, 0), *sc_step(2, 1), *sc_step(3, 2, seqs=3, num_masked_seqs_by_logprob_error=1)]
        run["ray-driver.log"] = driver("in_order", *steps, ahead=2, end=3)
        audited = run(bound=0)
        assert audited.per_step("trajectories")[(0, 3)] == (4, 4)
        assert audited.per_step("violations")[(0, 3)] == (0, 3)
        assert audited.count("trajectories", "trained") == (12, 12)
        assert audited["verdict"] == "inconclusive"

    @pytest.mark.parametrize("lag", [-1, 5])
    def test_an_impossible_lag_is_an_error_and_no_freshness(self, run: Run, lag: int) -> None:
        run["ray-driver.log"] = driver("windowed", *sc_step(1, 0), *sc_step(2, lag), end=2)
        audited = run()
        assert "impossible-lag" in audited.codes
        assert audited["verdict"] == "inconclusive"
        assert audited.per_step("tokens")[(0, 2)] == (20, None)

    def test_a_step_line_that_is_lost_is_betrayed_by_the_next(self, run: Run) -> None:
        steps = [*sc_step(1, 0), *sc_chunks(2), *sc_out(2, 1)[:-1], *sc_step(3, 1)]
        run["ray-driver.log"] = driver("windowed", *steps, end=3)
        audited = run()
        assert audited.count("run", "steps") == (3, 3)
        assert audited.per_step("max")[(0, 2)] == (0, 1)


class TestFates:
    def test_evicted_are_dropped_and_aborted_are_cancelled(self, run: Run) -> None:
        steps = [*sc_step(1, 0), "  aborted 1 stale in-flight rollout(s)", *sc_step(2, 1)]
        last = ["  evicted 3 stale prompt group(s)", "train_pump: rollout exhausted and buffer drained"]
        run["ray-driver.log"] = driver("windowed", *steps, *last)
        audited = run()
        assert audited.count("trajectories", "dropped", "stale") == (6, 6)
        assert audited.count("trajectories", "cancelled", "stale") == (2, 2)
        assert audited["verdict"] == "pass"

    def test_metrics_tell_of_evictions_whose_lines_are_lost(self, run: Run) -> None:
        run["ray-driver.log"] = driver("windowed", *sc_step(1, 0, evicted_stale_prompt_groups=2), end=1)
        assert run().count("trajectories", "dropped", "stale") == (4, 4)

    def test_folded_lines_can_not_be_counted(self, run: Run) -> None:
        folded = "  evicted 1 stale prompt group(s) [repeated 3x across cluster] (Ray deduplicates logs by default.)"
        run["ray-driver.log"] = driver("windowed", *sc_step(1, 0), folded, *sc_step(2, 1), end=2)
        audited = run()
        assert "folded-lines" in audited.codes
        assert audited.count("trajectories", "dropped", "stale")[1] is None
        assert audited["verdict"] == "pass"

    def test_a_stall_that_aborts_is_a_crash(self, run: Run) -> None:
        run["ray-driver.log"] = (
            driver("weight_fifo", *sc_step(1, 0))
            + "nemo_rl.experience.failures.RolloutStall: no rollout committed and no train step completed in 4s "
            "(0 rollouts in flight, 12 groups committed, step 1/9, stall_timeout_s=4.0)\n"
        )
        audited = run()
        assert audited["run"]["health"]["state"] == "crashed"
        assert audited["verdict"] == "pass"

    def test_a_stall_that_only_warns_is_told(self, run: Run) -> None:
        """Pitfall 23: nothing fails, nothing goes on; the watchdog's line is the finding."""
        stall = (
            "WARNING: rollout stall -- no rollout committed and no train step completed in 601s (0 rollouts in flight, "
            "12 groups committed, step 1/9, stall_timeout_s=600.0)"
        )
        run["ray-driver.log"] = driver("weight_fifo", *sc_step(1, 0), stall)
        audited = run()
        assert audited.codes == {"ends-waiting"}
        assert audited["verdict"] == "pass"
        run["ray-driver.log"] = driver("weight_fifo", *sc_step(1, 0), stall, *sc_step(2, 1))
        assert audited.codes - run().codes == {"ends-waiting"}

    def test_a_batch_that_never_closed_before_a_crash_was_not_trained(self, run: Run) -> None:
        cut = driver("windowed", *sc_step(1, 0), *sc_chunks(2, (1,), close=False))
        run["ray-driver.log"] = cut
        assert run().count("run", "steps") == (1, 2)
        run["ray-driver.log"] = cut + "Traceback (most recent call last):\n  File x\n"
        assert run().count("run", "steps") == (1, 1)


class TestCaptures:
    """One launch may be captured several times."""

    def test_wandb_and_driver_are_one_launch(self, run: Run) -> None:
        lines = [*sc_start("windowed"), *sc_step(1, 0), "  evicted 1 stale prompt group(s)", *sc_step(2, 1)]
        run["ray-driver.log"] = driver("windowed", *lines[3:], end=2)
        run["logs/exp_001/wandb/wandb/run-1-x/files/output.log"] = "".join(line.rstrip() + "\n" for line in lines)
        audited = run()
        assert audited["run"]["attempts"] == 1
        assert audited.count("trajectories", "trained") == (8, 8)
        assert audited.count("trajectories", "dropped", "stale") == (2, 2)
        assert audited["verdict"] == "pass"

    def test_ray_keeps_the_streams_in_two_files(self, run: Run) -> None:
        head = ":job_id:01000000\n:actor_name:SingleControllerActor\n"
        out = "\n".join([*sc_start("windowed"), *sc_out(1, 0), *sc_out(2, 1)])
        name = "session/logs/worker-0a1b-01000000-4711"
        run[f"{name}.out"] = head + out + "\n"
        run[f"{name}.err"] = head + "\n".join([*sc_chunks(1), *sc_chunks(2)]) + "\n"
        audited = run(bound=1)
        assert audited["run"]["attempts"] == 1
        # The number of generations a prompt is not told: 4 valid sequences are a lower end.
        assert audited.per_step("trajectories") == {(0, 1): (4, None), (0, 2): (4, None)}
        run["ray-driver.log"] = driver("windowed", *sc_step(1, 0), *sc_step(2, 1)).replace("pid=7", "pid=4711")
        audited = run()
        assert audited["run"]["attempts"] == 1
        assert audited.per_step("trajectories") == {(0, 1): (4, 4), (0, 2): (4, 4)}

    def test_scalars_give_times_and_compressed_logs_read_alike(self, run: Run) -> None:
        run["run.log.gz"] = gzip.compress(driver("windowed", *sc_step(1, 0), end=1).encode())
        points = [
            ("train/loss", 1, 0.5, 10.0),
            ("train/evicted_stale_prompt_groups", 1, 0.0, 10.0),
            ("timing/train/total_step_time", 1, 4.0, 10.0),
            ("timing/train/exposed_generation", 1, 3.0, 10.0),
            ("rollout/idle_s", 1, 60.0, 99.0),
            ("rollout/idle_s", 1, 90.0, 129.0),  # pitfall 8: the watchdog writes several points for one step
            ("rollout/committed_total", 1, 4.0, 129.0),
        ]
        run["logs/exp_001/tensorboard/events.out.tfevents.1.node.1.0"] = events(points)
        audited = run()
        row = audited["per_step"][0]
        assert (row["duration_s"], row["waited_s"]) == (4.0, 3.0)
        assert audited.count("run", "steps") == (1, 1)

    def test_scalars_alone_prove_steps_but_no_staleness(self, run: Run) -> None:
        points = [
            (f"train/{tag}", step, value, step * 10.0)
            for step in (1, 2)
            for tag, value in (
                ("loss", 0.5),
                ("global_valid_toks", 20.0),
                ("global_valid_seqs", 4.0),
                ("evicted_stale_prompt_groups", 1.0),
                ("dropped_prompt_groups", 0.0),
            )
        ]
        run["logs/exp_001/tensorboard/events.out.tfevents.1.node.1.0"] = events(points)
        audited = run(bound=0)
        assert audited["verdict"] == "inconclusive"
        assert audited.per_step("tokens") == {(0, 1): (20, 20), (0, 2): (20, 20)}
        assert audited.largest == (0, 1)
        assert any("2>&1" in hint["remedy"] for hint in audited["hints"])


class TestRestarts:
    def test_steps_after_the_checkpoint_are_trained_twice(self, run: Run) -> None:
        # The first launch trained 3 steps, the second went on after step 2: step 3 counts once.
        again = ["📦 Restoring replay buffer from checkpoint: results/step_2/replay_buffer.pt"]
        run["12-1-logs/ray-driver.log"] = driver(
            "windowed", *again, *sc_step(3, 1, time=2.0), *sc_step(4, 1, time=2.0), exp="exp_002", end=4
        )
        run["12-logs/ray-driver.log"] = driver("windowed", *sc_step(1, 0), *sc_step(2, 1), *sc_step(3, 1))
        audited = run()
        assert audited["run"]["attempts"] == 2
        assert audited.count("run", "steps") == (4, 4)
        assert audited.count("trajectories", "trained") == (16, 16)
        assert audited.count("trajectories", "lost", "rolled_back") == (4, 4)
        assert audited["verdict"] == "pass"

    def test_groups_of_rolled_back_steps_may_be_used_again_if_a_buffer_was_restored(self, run: Run) -> None:
        run["12-logs/ray-driver.log"] = driver("windowed", *sc_step(1, 0), *sc_step(2, 1))
        again = ["📦 Restored 2 replay group(s) from checkpoint"]
        run["12-1-logs/ray-driver.log"] = driver("windowed", *again, *sc_step(2, 1, time=2.0), exp="exp_002", end=2)
        audited = run()
        assert audited.count("trajectories", "trained") == (8, 8)
        assert audited.count("trajectories", "lost", "rolled_back") == (0, 4)

    def test_a_group_may_go_on_after_a_resume_under_its_old_stamp(self, run: Run) -> None:
        """Pitfall 25, [later]: step 3 trains a group begun at v0 by the first launch and finished by the second.

        Lag 2: one group's first token is of v0 or v1, and any later token of either group may be of v2.
        """
        run["12-logs/ray-driver.log"] = driver("windowed", *sc_step(1, 0), *sc_step(2, 1), stale=2)
        again = ["📦 Restored 1 replay group(s) from checkpoint"]
        text = driver("windowed", *again, *sc_step(3, 2), stale=2, exp="exp_002", end=3)
        run["12-1-logs/ray-driver.log"] = text
        attempt = {"status": "dispatched"}
        group = {"group_id": "g", "start_weight_version": 0, "phase": "admitted", "siblings": [{"attempts": [attempt]}]}
        run["results/step_2/rollout_recovery.pt"] = torch_file({"schema_version": 1, "groups": [group]})
        audited = run()
        assert audited.per_step("max")[(1, 3)] == (1, 2)
        # Over 0 are surely the first tokens of one group, and perhaps all of this step and of step 2.
        assert audited.per_step("tokens")[(1, 3)] == (20, 20)
        assert run(bound=0).count("violations", "tokens") == (2, 20 + 20)
        assert audited["trajectories"]["lost"] == {"unknown": {"lo": 0, "hi": None}}

    def test_two_launches_in_one_log(self, run: Run) -> None:
        first = driver("windowed", *sc_step(1, 0), *sc_step(2, 1))
        run["tee.log"] = first + driver("windowed", *sc_step(2, 1), exp="exp_002", end=2).replace("pid=7", "pid=8")
        audited = run()
        assert audited["run"]["attempts"] == 2
        assert audited.count("run", "steps") == (2, 2)

    def test_in_order_with_a_smaller_lookahead_trains_restored_groups_too_old(self, run: Run) -> None:
        # Admitted with a lookahead of 3; the checkpoint after step 1 holds 2 groups of v0 for each of v1, v2 and v3.
        # The second launch allows 1, and trains them at lag 1, 2 and 3.
        run["7-logs/ray-driver.log"] = driver("in_order", *sc_step(1, 0), ahead=3)
        steps = [line for step, lag in ((2, 1), (3, 2), (4, 3), (5, 1)) for line in sc_step(step, lag)]
        restored = ["📦 Restored 6 replay group(s) from checkpoint"]
        run["7-1-logs/ray-driver.log"] = driver("in_order", *restored, *steps, ahead=1, exp="exp_002", end=5)
        audited = run()
        assert audited["bound"]["value"] == 1
        assert audited["guarantee"]["limit"] == 3
        assert audited["guarantee"]["strict"] is False
        assert audited["verdict"] == "fail"
        assert audited.count("violations", "groups") == (1, 4)
        # The checkpoint tells the start of every one of them: in step 4 both groups have 2 or 3.
        groups = [
            {"group_id": f"g{i}", "start_weight": 0, "end_weight": 0, "target_step": 1 + i // 2} for i in range(6)
        ]
        run["results/step_1/replay_buffer.pt"] = torch_file({"partition_id": "rollout_data", "groups": groups})
        assert run().count("violations", "groups") == (2, 4)

    def test_folders_hold_launches_of_one_run_unless_both_begin_it(self, run: Run) -> None:
        first = driver("windowed", *sc_step(1, 0), *sc_step(2, 1))
        run["a/ray-driver.log"] = first
        # Goes on after step 2, whatever its folder is called: a restart.
        run["b/ray-driver.log"] = driver("windowed", *sc_step(3, 1, time=2.0), stale=3, end=3)
        assert run()["run"]["attempts"] == 2
        # Step 0 in an exp_001 once more: the launches of a log folder have numbers, so this is another one's.
        run["b/ray-driver.log"] = driver("windowed", *sc_step(1, 0, time=2.0), end=1)
        with pytest.raises(SeveralRuns):
            run()
        # A second launch that began anew with the same settings is one; with other settings it is another run's.
        run["b/ray-driver.log"] = driver("windowed", *sc_step(1, 0, time=2.0), exp="exp_002", end=1)
        assert run()["run"]["attempts"] == 2
        run["b/ray-driver.log"] = driver("windowed", *sc_step(1, 0, time=2.0), exp="exp_002", stale=3, end=1)
        with pytest.raises(SeveralRuns):
            run()

    def test_a_log_that_begins_in_the_middle_hides_what_was_trained_before(self, run: Run) -> None:
        run["ray-driver.log"] = driver("windowed", *sc_step(5, 1), end=5)
        audited = run()
        assert "earlier-launch-missing" in audited.codes
        assert audited["verdict"] == "inconclusive"


class TestBound:
    @pytest.mark.parametrize(
        ("name", "numbers", "value", "limit"),
        [
            ("windowed", {"stale": 2, "ahead": 5}, 2, 2),
            ("weight_fifo", {"stale": 2, "ahead": 5}, 2, 2),
            ("in_order", {"stale": 2, "ahead": 5}, 5, 5),
            ("ready_first", {"stale": 2}, None, "none"),
            ("ready_first", {"stale": 0}, 0, 0),
            ("custom", {"stale": 2}, None, None),
        ],
    )
    def test_each_sampler_has_its_own_key(self, run: Run, name, numbers, value, limit) -> None:
        text = driver(name, *sc_step(1, 0), end=1)
        run["ray-driver.log"] = text.replace(sampler(name, stale=1, ahead=1), sampler(name, **numbers))
        audited = run()
        assert (audited["bound"]["value"], audited["guarantee"]["limit"]) == (value, limit)

    def test_a_checkpoint_gives_it_where_the_console_does_not(self, run: Run) -> None:
        run["ray-driver.log"] = sc_actor([*sc_start("windowed"), *sc_step(1, 0)])
        assert run()["verdict"] == "no-bound"
        run["results/step_1/config.yaml"] = (
            "grpo: {num_prompts_per_step: 2, num_generations_per_prompt: 2, async_grpo: null}\n"
            "async_rl: {sampler: {name: windowed, max_staleness_versions: 3, max_lookahead_versions: 1}, new_key: 1}\n"
        )
        assert run()["bound"]["value"] == 3
        # Another launch had another bound: which of the two is not told, but how large groups are.
        other = (run.run / "results/step_1/config.yaml").read_text().replace("versions: 3", "versions: 2")
        run["results/step_2/config.yaml"] = other
        audited = run()
        assert (audited["bound"]["value"], audited["guarantee"]["limit"]) == (None, None)
        assert audited.count("trajectories", "trained") == (4, 4)

    def test_wandb_wraps_values(self, run: Run) -> None:
        run["logs/exp_001/wandb/wandb/run-1-x/files/output.log"] = "\n".join([*sc_start("windowed"), *sc_step(1, 0)])
        run["logs/exp_001/wandb/wandb/run-1-x/files/config.yaml"] = (
            "wandb_version: 1\nasync_rl:\n    desc: null\n    value:\n        sampler:\n"
            "            name: windowed\n            max_staleness_versions: 4\n"
        )
        assert run()["bound"]["value"] == 4

    def test_keys_of_other_releases_are_passed_over(self, run: Run) -> None:
        """Pitfall 24."""
        later = "drop_incomplete_targets_on_restore=True, rollout_recovery=Recovery(mode=<Mode.A: 1>), "
        text = driver("windowed", *sc_step(1, 0), stale=2, end=1)
        run["ray-driver.log"] = text.replace("min_groups_for", later + "min_groups_for")
        assert run()["bound"]["value"] == 2

    def test_cached_keys_of_older_weights_are_a_caveat(self, run: Run) -> None:
        """Pitfall 20: no stamp shows them, so they are said and never counted."""
        run["ray-driver.log"] = driver("windowed", *sc_step(1, 0), end=1)
        audited = run()
        assert any("Keys and values" in hint["missing"] for hint in audited["hints"])
        assert audited["verdict"] == "pass"
        text = driver("windowed", *sc_step(1, 0), end=1)
        run["ray-driver.log"] = text.replace("weight_updates=False", "weight_updates=True")
        assert not any("Keys and values" in hint["missing"] for hint in run()["hints"])

    def test_a_printed_configuration_that_is_no_python_is_searched(self) -> None:
        text = sampler("windowed", stale=2, ahead=5).replace("data={", "mode=<Mode.A: 1>, data={")
        found = from_repr(text)
        assert found["async_rl.sampler.name"] == "windowed"
        assert found["async_rl.sampler.max_staleness_versions"] == 2
        assert found["grpo.num_prompts_per_step"] == 2


class TestDamage:
    def test_a_cut_last_line_did_not_happen(self, run: Run) -> None:
        run["ray-driver.log"] = (
            driver("windowed", *sc_step(1, 0), *sc_chunks(2), *sc_out(2, 1)[:-1]) + "train step 2/9 "
        )
        audited = run()
        assert audited.count("run", "steps") == (2, 2)  # its metrics were printed

    def test_a_lag_that_may_go_on_is_not_read(self, run: Run) -> None:
        steps = [*sc_step(1, 0), *(line for k in range(2, 14) for line in sc_step(k, 1))]
        run["ray-driver.log"] = driver("windowed", *steps).rstrip("\n ")
        audited = run()
        assert "cut-line" in audited.codes
        assert audited.per_step("max")[(0, 13)] == (0, 12)

    def test_garbage_is_passed_over(self, run: Run) -> None:
        text = driver("windowed", "step_metrics={'loss': 0.5, 'x': array(", *sc_step(1, 0), end=1)
        run["ray-driver.log"] = text.encode() + b"\xff\xfe garbage \xe2\x80"
        run["empty.log"] = b""
        audited = run()
        assert "damaged-metrics" in audited.codes
        assert audited.count("run", "steps") == (1, 1)

    def test_broken_files_are_reported(self, run: Run) -> None:
        whole = gzip.compress(driver("windowed", *sc_step(1, 0), *sc_step(2, 1), end=2).encode())
        run["ray-driver.log.gz"] = whole[: len(whole) * 2 // 3]
        run["results/step_1/replay_buffer.pt"] = b"PK\x03\x04 broken"
        run["results/step_1/config.yaml"] = b"a: [1"
        run["logs/exp_001/tensorboard/events.out.tfevents.1.n.1.0"] = b"\x00" * 40
        run["plain.log"] = driver("windowed", *sc_step(1, 0))
        audited = run()
        assert {"damaged-log", "damaged-checkpoint", "damaged-config", "damaged-events"} <= audited.codes
        assert audited["verdict"] == "inconclusive"


def test_foreign_files_are_not_taken(tmp_path: Path) -> None:
    from staleness_audit.discovery import discover

    run = Run(tmp_path)
    run["train.log"] = "train step 1\n"
    run["logs/exp_001/train_data_step1.jsonl"] = "{}\n"
    assert PARSER.detect(discover(run.run)) is None


def test_a_printed_configuration_of_odd_literals_is_read_key_by_key():
    """No number of Python's begins with 0; found by fuzzing, as was one beyond 64 bits."""
    assert from_repr("AsyncRL(sampler=Sampler(name='windowed\\x', max_staleness_versions=02, <enum>)") == {
        "async_rl.sampler.name": "windowed\\x",
        "async_rl.sampler.max_staleness_versions": 2,
    }
    odd = from_repr(f"C(async_rl=A(sampler=S(name=b'x', max_staleness_versions={10**20})))")
    assert odd["async_rl.sampler.max_staleness_versions"] == 1e20

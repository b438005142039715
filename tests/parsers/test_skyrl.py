"""SkyRL: small runs whose truth can be worked out by hand; a trajectory has 10 loss tokens unless said otherwise."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
import zstandard
from helpers.wandb_log import history, run_record, wandb_file
from skyrl_run import Console, audited, batch_pickle, codes, config, event_file, exact, metrics, torch_file
from staleness_parsers.skyrl.console import dialect_of


def histogram(data: dict[str, Any]) -> dict[int, tuple[int, int | None]]:
    rows = data["staleness"]["trajectory_histogram"]
    return {row["staleness"]: (row["trajectories"]["lo"], row["trajectories"]["hi"]) for row in rows}


class TestAges:
    def test_the_example_of_the_guide(self, tmp_path: Path) -> None:
        # Bound 2, four groups of one: {0, 1, 2, 3} is the only batch with sum 6, a quarter at 0, and one warning of 3.
        log = Console(bound=2, samples=1).launch(config(2, 4, 1))
        for step in (1, 2, 3):
            log.step(step, [0, 0, 0, 0])
        data = audited(tmp_path, log.step(4, [0, 1, 2, 3]).done(4))
        # Each may be one younger, so 3 = bound + 1 proves nothing; 12 are surely 0, and 1 may be.
        assert histogram(data) == {0: (13, 14), 1: (0, 2), 2: (0, 2), 3: (0, 1)}
        assert data["staleness"]["max"] == {"lo": 2, "hi": 3}
        assert data["violations"]["trajectories"] == {"lo": 0, "hi": 1}
        assert data["verdict"] == "inconclusive"
        assert data["tokens"]["trained"] == exact(160)
        assert data["guarantee"]["limit"] == "none"

    def test_two_over_the_bound_is_proven_and_points_to_its_warning(self, tmp_path: Path) -> None:
        log = Console().launch(config(1))
        for step in (1, 2, 3):
            log.step(step, [0, 0, 0, 0])
        data = audited(tmp_path, log.step(4, [3, 1, 1, 0]).done(4))
        assert data["verdict"] == "fail"
        assert data["violations"]["groups"] == exact(1)
        assert data["violations"]["trajectories"] == exact(2)
        assert data["violations"]["tokens"] == {"lo": 2, "hi": 20}
        story = data["violations"]["worst"][0]
        assert story["staleness"] == {"lo": 2, "hi": 3}
        line = story["evidence"][0]["line"]
        assert "cur_staleness=3" in log.lines[line - 1]

    def test_every_warning_of_a_step_is_a_group_of_its_own(self, tmp_path: Path) -> None:
        # Pitfall 14: two warnings of one text are two groups of age 3, of which each is at least 2: over the bound.
        log = Console().launch(config(1))
        for step in (1, 2, 3):
            log.step(step, [0, 0, 0, 0])
        data = audited(tmp_path, log.step(4, [3, 3, 0, 0]).done(4))
        assert data["violations"]["groups"] == exact(2)
        assert data["violations"]["trajectories"] == exact(4)

    def test_the_minimal_counterexample(self, tmp_path: Path) -> None:
        # One group a step, bound 1: A is admitted at step 1 and trained at step 3.
        log = Console(samples=1).launch(config(1, 1, 1))
        data = audited(tmp_path, log.step(1, [0]).step(2, [1]).step(3, [2]).step(4, [1]).done(4))
        assert data["staleness"]["max"] == {"lo": 1, "hi": 2}
        assert data["violations"]["groups"] == {"lo": 0, "hi": 1}
        assert data["trajectories"]["trained"] == exact(4)

    def test_a_bound_of_zero_is_exact_and_guaranteed(self, tmp_path: Path) -> None:
        log = Console(bound=0).launch(config(0))
        data = audited(tmp_path, log.step(1, [0] * 4).step(2, [0] * 4).done(2))
        assert data["verdict"] == "pass"
        assert data["staleness"]["max"] == exact(0)
        assert data["guarantee"] == data["guarantee"] | {"strict": True, "limit": 0}

    def test_where_requests_may_have_waited_for_a_slot_no_lower_end_holds(self, tmp_path: Path) -> None:
        log = Console(samples=1).launch(config(1, 4, 1, max_num_seqs=2))
        for step in range(1, 5):
            log.step(step, [0] * 4)
        data = audited(tmp_path, log.step(5, [4, 1, 1, 1]).done(5))
        assert data["violations"]["groups"] == {"lo": 0, "hi": 1}

    def test_requests_that_waited_say_the_same(self, tmp_path: Path) -> None:
        log = Console().launch(config(1))
        for step in range(1, 5):
            log.step(step, [0] * 4)
        data = audited(tmp_path, log.step(5, [4, 1, 1, 1], more={"vllm/num_requests_waiting": 0.5}).done(5))
        assert data["violations"]["groups"] == {"lo": 0, "hi": 1}

    def test_the_user_may_know_of_fewer_slots(self, tmp_path: Path) -> None:
        log = Console().launch(config(1))
        for step in range(1, 5):
            log.step(step, [0] * 4)
        log.step(5, [4, 1, 1, 1])
        assert audited(tmp_path / "a", log)["violations"]["groups"]["lo"] == 1
        data = audited(tmp_path / "b", log, assume={"generate_concurrency_per_engine": "3"})
        assert data["violations"]["groups"]["lo"] == 0

    def test_several_batches_fit_and_what_they_share_is_told(self, tmp_path: Path) -> None:
        # Bound 3, sum 6 of three groups over 0, none over 3: {1, 2, 3} or {2, 2, 2}, told apart by the largest alone.
        log = Console(bound=3, samples=1).launch(config(3, 3, 1))
        for step in (1, 2, 3):
            log.step(step, [0] * 3)
        unknown = {"async/staleness_max": None, "async/staleness_min": None}
        data = audited(tmp_path, log.step(4, [2, 2, 2], more=unknown).done(4))
        last = data["per_step"][-1]
        assert last["max"] == {"lo": 1, "hi": 3}
        assert last["trajectories"] == exact(3)
        # Of the three, the middle one is 2 (or 1, admitted late); nothing is proven to be over 1 but what is 2 in both.
        assert audited(tmp_path, log, bound=2)["violations"]["groups"] == {"lo": 0, "hi": 1}

    @pytest.mark.parametrize(
        "sync", [{"weight_sync_backend": "delta"}, {"weight_sync_backend": "nccl", "lora": {"rank": 8}}]
    )
    def test_weights_that_change_under_way_claim_no_more(self, tmp_path: Path, sync: dict[str, Any]) -> None:
        """Pitfall 18: such a sync ends while requests run, so a first token near it is of either version.

        A report of s is s or s - 1 then: 3 proves the bound of 1 broken, 2 does not.
        """
        settings = config(1)
        settings["generator"]["inference_engine"] |= sync
        for oldest, proven in ((2, 0), (3, 1)):
            log = Console().launch(settings)
            for step in (1, 2, 3):
                log.step(step, [0] * 4)
            data = audited(tmp_path / str(oldest), log.step(4, [oldest, 1, 1, 0]).done(4))
            assert data["staleness"]["max"] == {"lo": oldest - 1, "hi": oldest}
            assert data["violations"]["groups"] == {"lo": proven, "hi": 1}

    def test_a_step_is_a_mini_batch(self, tmp_path: Path) -> None:
        """Pitfall 11: B is `policy_mini_batch_size`; without metrics nothing else tells the size of a step."""
        log = Console().launch(config(1, train_batch_size=8, logger="wandb"))
        log.step(1, [0] * 4, logged=False).step(2, [0] * 4, logged=False)
        # Four groups of two each; nothing says that the second step was done.
        assert audited(tmp_path, log.done(2))["trajectories"]["trained"] == {"lo": 8, "hi": 16}

    def test_sums_of_ten_thousand_groups_are_no_longer_exact(self, tmp_path: Path) -> None:
        # Pitfall 8: the mean 0.0000 (printed) may be 0 or 1 / 20000.
        ages = [1, *[0] * 19999]
        log = Console(samples=1).launch(config(4, 20000, 1))
        log.bound = 4
        hidden = {"async/staleness_max": None}
        data = audited(tmp_path, log.step(1, [0] * 20000).step(2, ages, more=hidden).done(2))
        assert data["per_step"][1]["max"]["hi"] == 1
        assert data["staleness"]["max"] == {"lo": 0, "hi": 1}


class TestLogs:
    def small(self, **how: Any) -> Console:
        log = Console(**how).launch(config(1))
        for step in (1, 2, 3):
            log.step(step, [0, 0, 0, 0])
        return log.step(4, [3, 1, 1, 0]).done(4)

    @pytest.mark.parametrize(
        "how",
        [
            {"prefix": ""},
            {"prefix": "\x1b[36m(skyrl_entrypoint pid=9, ip=10.0.0.7)\x1b[0m ", "coloured": True},
            {"root": "skyrl_train"},
        ],
    )
    def test_every_way_of_printing_reads_alike(self, tmp_path: Path, how: dict[str, Any]) -> None:
        plain, other = audited(tmp_path / "a", self.small()), audited(tmp_path / "b", self.small(**how))
        for part in ("violations", "staleness", "trajectories", "tokens", "per_step", "verdict"):
            assert other[part] == plain[part]

    def test_older_releases_read_alike(self, tmp_path: Path) -> None:
        """Pitfall 15: another package, a list of loggers, no `enabled` yet, and metrics that came later are missing."""
        late = {"async/gen_buffer_qsize_at_wait_start": None}
        old = Console(root="skyrl_train").launch(config(1, logger=["console"], enabled=None))
        for step in (1, 2, 3):
            old.step(step, [0] * 4, more=late)
        data = audited(tmp_path / "a", old.step(4, [3, 1, 1, 0], more=late).done(4))
        plain = audited(tmp_path / "b", self.small())
        assert data["violations"]["groups"] == plain["violations"]["groups"] == exact(1)
        for part in ("staleness", "trajectories", "tokens", "bound", "guarantee", "verdict"):
            assert data[part] == plain[part]

    def test_bars_with_cursor_codes_and_values_of_several_lines(self, tmp_path: Path) -> None:
        """Pitfall 6: the cursor goes up before a record without prefix; a long text in the dictionary is wrapped."""
        log = Console().launch(config(1))
        for step in (1, 2, 3):
            log.step(step, [0] * 4, more={"async/comment": "words " * 30})
        log.step(4, [3, 1, 1, 0], more={"async/comment": "words " * 30}).done(4)
        log.lines = [line.replace("Training Step", "\x1b[A\x1b[ATraining Step") for line in log.lines]
        assert any(line.removeprefix(log.prefix).startswith("   ") and "'words" in line for line in log.lines)
        data = audited(tmp_path, log)
        assert codes(data) == []
        assert data["violations"]["groups"] == exact(1)
        assert data["tokens"]["trained"] == exact(320)

    def test_packed_and_deeper_reads_alike(self, tmp_path: Path) -> None:
        text = self.small().text
        plain = audited(tmp_path / "a", {"console.log": text})
        packed = audited(tmp_path / "b", {"deeper/console.log.gz": gzip.compress(text.encode())})
        zst = audited(tmp_path / "c", {"x/y/out.txt.zst": zstandard.compress(text.encode())})
        for part in ("staleness", "trajectories", "tokens", "verdict"):
            assert plain[part] == packed[part] == zst[part]

    @pytest.mark.parametrize("coloured", [False, True])
    def test_an_example_may_look_like_records(self, tmp_path: Path, coloured: bool) -> None:
        # Pitfall 7: the text of a model quotes a log, with warnings, numbers of a step, a crash.
        fake = Console(prefix="", now=Console().now.replace(year=2025)).launch(config(1)).crash(9, [9, 9, 9, 9]).text
        log = Console(coloured=coloured).launch(config(1))
        log.step(1, [0] * 4, example=f"{{'async/staleness_max': 7,\n{fake}").step(2, [1, 0, 0, 0]).done(2)
        data = audited(tmp_path, log)
        assert data["run"]["steps"] == exact(2)
        assert data["run"]["attempts"] == 1
        assert data["run"]["health"]["state"] == "finished"
        assert data["staleness"]["max"] == {"lo": 0, "hi": 1}
        assert codes(data) == []

    def test_other_processes_speak_in_between(self, tmp_path: Path) -> None:
        log = self.small()
        lines = []
        for line in log.lines:
            lines += (
                [line, "(AsyncVLLMInferenceEngine pid=5) 'async/staleness_max': 9,"] if "async/" in line else [line]
            )
        log.lines = lines
        assert audited(tmp_path, log)["violations"]["groups"] == exact(1)

    def test_a_copy_of_the_console_is_not_a_second_launch(self, tmp_path: Path) -> None:
        # wandb's output.log begins after the configuration was printed, and has no prefix.
        log = self.small()
        copy = [line.removeprefix(log.prefix) for line in log.lines]
        begin = next(index for index, line in enumerate(copy) if "Number of steps" in line)
        files = {"console.log": log.text, "wandb/run-1/files/output.log": "\n".join(copy[begin:]) + "\n"}
        data = audited(tmp_path, files)
        assert data["run"]["attempts"] == 1
        assert data["violations"]["groups"] == exact(1)

    def test_evaluation_is_never_counted(self, tmp_path: Path) -> None:
        # Pitfalls 4 and 5: a block of step 0 before training; older releases log it with the step after.
        log = Console().launch(config(1))
        log.block(0, {"eval/all/avg_score": 0.5})
        log.step(1, [0] * 4, more={"eval/all/generate/avg_assistant_tokens": 900.0}).done(1)
        data = audited(tmp_path, {"console.log": log.text, "exports/dumped_evals/global_step_1_evals/x.jsonl": "{}\n"})
        assert data["run"]["steps"] == exact(1)
        assert data["tokens"]["trained"] == exact(80)

    def test_without_metrics_warnings_and_the_configuration_say_what_they_can(self, tmp_path: Path) -> None:
        # logger=wandb, and its file is gone: a warning for each group over the bound, all others are within it.
        log = Console().launch(config(1, logger="wandb"))
        for step in (1, 2, 3):
            log.step(step, [0] * 4, logged=False)
        data = audited(tmp_path, log.step(4, [3, 1, 1, 0], logged=False).done())
        assert data["run"]["steps"] == {"lo": 3, "hi": 4}  # nothing says that the last one was done
        assert data["trajectories"]["trained"] == {"lo": 24, "hi": 32}
        assert data["staleness"]["max"] == {"lo": 0, "hi": 3}
        assert data["violations"]["groups"] == {"lo": 0, "hi": 1}


class TestLaunches:
    def test_a_crashed_step_is_not_counted_and_a_resumed_run_goes_back(self, tmp_path: Path) -> None:
        # Pitfalls 2 and 3: dies in step 4, goes on after step 2 in the same file with the same pid.
        log = (
            Console()
            .launch(config(1))
            .step(1, [0] * 4)
            .step(2, [1] * 4)
            .save(2)
            .step(3, [1] * 4)
            .crash(4, [3, 1, 1, 1])
        )
        log.launch(config(1), resume=2).step(3, [0] * 4).step(4, [1, 0, 0, 0]).done(4)
        data = audited(tmp_path, log)
        assert data["run"]["attempts"] == 2
        assert data["run"]["steps"] == exact(4)
        assert data["trajectories"]["trained"] == exact(32)
        assert data["trajectories"]["lost"]["rolled_back"] == exact(16)  # steps 3 and 4 of the first launch
        # At most (1 + 1) * 4 groups are admitted and untrained, four of which the dying step held.
        assert data["trajectories"]["lost"]["unknown"] == {"lo": 0, "hi": 8}
        assert data["violations"]["groups"] == exact(0)
        assert data["run"]["health"]["state"] == "finished"

    def test_a_crash_at_the_end_leaves_its_batch_pending(self, tmp_path: Path) -> None:
        data = audited(tmp_path, Console().launch(config(1)).step(1, [0] * 4).crash(2, [1] * 4))
        assert data["run"]["steps"] == exact(1)
        assert data["run"]["health"]["state"] == "crashed"
        assert data["trajectories"]["pending"] == {"lo": 8, "hi": 16}

    def test_the_last_checkpoint_is_numbered_one_too_high(self, tmp_path: Path) -> None:
        # Pitfall 1: two steps, checkpoint 3; the next launch starts with step 4 on version 2.
        log = Console().launch(config(1)).step(1, [0] * 4).step(2, [1] * 4).done(2)
        log.launch(config(1), resume=3).step(4, [0] * 4, epoch=1).step(5, [1] * 4, epoch=1).done(5)
        data = audited(tmp_path, log)
        assert [row["v_train"] for row in data["per_step"]] == [exact(0), exact(1), exact(2), exact(3)]
        assert data["run"]["steps"] == exact(4)
        assert data["trajectories"]["pending"] == exact(0)

    def test_logs_that_begin_late_forbid_a_pass(self, tmp_path: Path) -> None:
        data = audited(tmp_path, Console().launch(config(1), resume=7).step(8, [0] * 4).done(8))
        assert "beginning-missing" in codes(data)
        assert data["verdict"] == "inconclusive"

    def test_a_launch_that_never_got_anywhere_changes_nothing(self, tmp_path: Path) -> None:
        log = Console().launch(config(1)).step(1, [0] * 4).step(2, [1] * 4).save(2)
        log.say("Length of train_dataloader: 40", "fully_async_trainer:__init__")
        data = audited(tmp_path, log)
        assert data["run"]["steps"] == exact(2)

    def test_every_epoch_begins_anew(self, tmp_path: Path) -> None:
        # Without its metrics, a group of the second step of an epoch can be one step old at most.
        log = Console(bound=4).launch(config(4))
        for step in (1, 2, 3):
            log.step(step, [0] * 4, epoch=0)
        unknown = dict.fromkeys(["async/staleness_max", "async/staleness_mean", "async/staleness_ratio"])
        log.step(4, [0] * 4, epoch=1).step(5, [1] * 4, epoch=1, more=unknown).done(5)
        assert audited(tmp_path, log)["per_step"][-1]["max"]["hi"] == 1

    def test_stopped_early_leaves_what_was_admitted(self, tmp_path: Path) -> None:
        log = Console().launch(config(1)).step(1, [0] * 4)
        log.say("Reached max_training_steps=1, stopping early.", "fully_async_trainer:train")
        assert audited(tmp_path, log.done(1))["trajectories"]["pending"] == {"lo": 0, "hi": 16}

    def test_a_run_that_hangs_is_waiting(self, tmp_path: Path) -> None:
        # Pitfall 13: nothing but a progress bar is printed while generation never ends.
        log = Console().launch(config(1))
        for step in range(1, 4):
            log.step(step, [0] * 4)
        log.start("step")
        log.start("wait_for_generation_buffer")
        data = audited(tmp_path, log)
        assert data["run"]["steps"] == exact(3)
        assert data["run"]["health"]["state"] in ("unknown", "stuck")


class TestDrops:
    def refill(self) -> dict[str, Any]:
        return config(1, sample_full_batch=True, zero_variance_filter=True)

    def test_drops_are_counted_per_step(self, tmp_path: Path) -> None:
        # Kept rows alone are trained: 8 of 10 tokens; of the two dropped groups each row had 5.
        kept = {"generate_kept/avg_assistant_tokens": 10.0, "generate_dropped/avg_assistant_tokens": 5.0}
        more = {
            "async/num_groups_dropped": 2,
            "generate/avg_assistant_tokens": 8.3333,
            "generate/min_assistant_tokens": 5,
        }
        log = Console().launch(self.refill(), per_epoch=2)
        data = audited(tmp_path, log.step(1, [0] * 4, more=kept | more).done(1))
        assert data["tokens"]["trained"] == exact(80)
        # Two epochs' steps of four are eight prompts: four trained, two dropped, two in the batch that never filled.
        assert data["trajectories"]["dropped"] == {"zero_advantage": exact(8)}
        assert data["tokens"]["dropped"]["zero_advantage"]["lo"] >= 20

    def test_an_exhausted_epoch_tells_of_its_last_drops(self, tmp_path: Path) -> None:
        # Pitfall 9: 12 prompts, 8 trained, 1 dropped in a metric, 1 in the partial batch; so 2 more had no variance.
        log = Console().launch(self.refill(), per_epoch=3)
        log.step(1, [0] * 4, more={"async/num_groups_dropped": 0}).step(
            2, [1] * 4, more={"async/num_groups_dropped": 1}
        )
        log.exhaust(0, 1)
        data = audited(tmp_path, log.done(2))
        assert data["trajectories"]["dropped"] == {"zero_advantage": exact(6), "surplus": exact(2)}
        assert data["trajectories"]["pending"] == exact(0)

    @pytest.mark.parametrize("logged", [True, False])
    def test_a_checkpoint_of_an_exhausted_epoch_has_the_number_of_a_later_step(
        self, tmp_path: Path, logged: bool
    ) -> None:
        # Pitfall 1: epoch 0 is exhausted after step 1 and saved as 2; then step 2 is trained, and lost.
        none = {"async/num_groups_dropped": 0}
        log = (
            Console()
            .launch(self.refill(), per_epoch=2)
            .step(1, [0] * 4, more=none, logged=logged)
            .exhaust(0, 2)
            .save(2)
        )
        log.step(2, [0] * 4, epoch=1, more=none, logged=logged)
        log.crash(3, [1] * 4, more=none)
        log.launch(self.refill(), resume=2, per_epoch=2).step(3, [0] * 4, epoch=1, more=none, logged=logged).step(
            4, [0] * 4, epoch=1, more=none, logged=logged
        )
        data = audited(tmp_path, log.done(4))
        certain = [row for row in data["per_step"] if row["certain"]]
        assert [(row["attempt"], row["step"], row["v_train"]["hi"]) for row in certain][:2] == [(0, 1, 0), (1, 3, 1)]
        if logged:
            assert data["run"]["steps"] == exact(3)
            assert data["trajectories"]["lost"]["rolled_back"] == exact(16)
            # Eight prompts of epoch 0: four trained, two in the partial batch, two without variance.
            assert data["trajectories"]["dropped"] == {"zero_advantage": exact(4), "surplus": exact(4)}

    def test_drops_of_a_step_that_died_count(self, tmp_path: Path) -> None:
        none = {"async/num_groups_dropped": 0}
        log = Console().launch(self.refill()).step(1, [0] * 4, more=none).save(1)
        log.crash(2, [1] * 4, more={"async/num_groups_dropped": 3})
        log.launch(self.refill(), resume=1).step(2, [0] * 4, more=none)
        log.say("Reached max_training_steps=2, stopping early.", "fully_async_trainer:train")
        assert audited(tmp_path, log.done(2))["trajectories"]["dropped"] == {"zero_advantage": exact(6)}

    def test_unlogged_drops_stay_open(self, tmp_path: Path) -> None:
        log = Console().launch(self.refill()).step(1, [0] * 4, logged=False).step(2, [0] * 4, logged=False)
        assert audited(tmp_path, log)["trajectories"]["dropped"]["unknown"]["hi"] is None


class TestBatches:
    def log(self, **more: Any) -> Console:
        log = Console().launch(config(1, **more))
        for step in (1, 2, 3):
            log.step(step, [0] * 4)
        return log.step(4, [3, 1, 1, 0]).done(4)

    def test_the_oldest_group_may_be_the_largest(self, tmp_path: Path) -> None:
        # 80 tokens in groups of 24, 22, 18 and 16: the one over the bound has 24 at most.
        dump = batch_pickle([[12, 12], [11, 11], [9, 9], [8, 8]])
        data = audited(
            tmp_path, {"console.log": self.log().text, "exports/dumped_data/global_step_4_training_input.pkl": dump}
        )
        assert data["violations"]["tokens"] == {"lo": 2, "hi": 24}
        assert data["tokens"]["trained"] == exact(320)

    def test_older_pickles_and_padding(self, tmp_path: Path) -> None:
        dump = batch_pickle([[12, 12], [11, 11], [9, 9], [8, 8]], pad=3, old=True)
        data = audited(
            tmp_path, {"console.log": self.log().text, "d/dumped_data/global_step_4_training_input.pkl": dump}
        )
        assert data["violations"]["tokens"] == {"lo": 2, "hi": 24}

    def test_masked_groups_were_trained_in_name_only(self, tmp_path: Path) -> None:
        # Two groups over the bound for certain, one of four is masked: at least one, at most two were trained.
        log = Console().launch(config(1, zero_variance_filter=True))
        for step in (1, 2, 3):
            log.step(step, [0] * 4)
        log.step(4, [3, 3, 1, 0], more={"reward/num_zero_variance_filtered": 1}).done(4)
        dump = batch_pickle([[10, 10], [10, 10], [10, 10], [0, 0]])
        for name, files in (("a", {}), ("b", {"global_step_4_training_input.pkl": dump})):
            data = audited(tmp_path / name, {"console.log": log.text, **files})
            assert data["violations"]["groups"] == {"lo": 1, "hi": 2}
            assert data["trajectories"]["trained"] == exact(32)
            assert data["tokens"]["trained"] == exact(300)

    def test_masked_trajectories_of_a_group_leave_it_open_which(self, tmp_path: Path) -> None:
        dump = batch_pickle([[10, 0], [10, 10], [10, 10], [10, 10]])
        log = Console().launch(config(1, apply_overlong_filtering=True)).step(1, [0] * 4)
        log.step(
            2, [1, 1, 0, 0], more={"generate/avg_assistant_tokens": 8.75, "generate/min_assistant_tokens": 0}
        ).done(2)
        data = audited(tmp_path / "b", {"console.log": log.text, "global_step_2_training_input.pkl": dump})
        assert data["trajectories"]["trained"] == exact(16)
        assert data["tokens"]["trained"] == exact(150)

    def test_numbers_of_a_batch_masked_altogether_are_no_numbers(self, tmp_path: Path) -> None:
        """Pitfall 16: a loss over no token is NaN; the batch was trained in name, and none of it has a staleness."""
        log = Console().launch(config(1, zero_variance_filter=True)).step(1, [0] * 4)
        masked = {"reward/num_zero_variance_filtered": 4, "policy/final_loss": float("nan")}
        log.step(2, [1] * 4, more=masked | {"generate/std_assistant_tokens": float("nan")}).done(2)
        assert "'policy/final_loss': 'nan'" in log.text
        dump = batch_pickle([[0, 0]] * 4)
        data = audited(tmp_path, {"console.log": log.text, "global_step_2_training_input.pkl": dump})
        assert codes(data) == []
        assert data["run"]["steps"] == exact(2)
        assert data["trajectories"]["trained"] == exact(16)
        assert data["tokens"]["trained"] == exact(80)
        assert data["staleness"]["max"] == exact(0)

    def test_prompts_have_the_same_names_in_every_epoch(self, tmp_path: Path) -> None:
        """Pitfall 12: names of prompts are rows of the data set, or paths; an epoch later they are other groups."""
        log = Console(samples=1).launch(config(1, 2, 1), per_epoch=1).step(1, [0, 0], epoch=0).save(1)
        log.step(2, [0, 0], epoch=1).save(2).done(2)
        files: dict[str, str | bytes] = {"console.log": log.text}
        for step, uids in ((1, ["0", "tasks/a"]), (2, ["tasks/a", "0"])):
            state = {"consumed_uids": uids, "filtered_uids": [], "epoch": step - 1}
            files[f"ckpts/global_step_{step}/fully_async_state.pt"] = torch_file(state)
        data = audited(tmp_path, files)
        assert codes(data) == []
        assert data["trajectories"]["trained"] == exact(4)
        assert data["violations"]["groups"] == exact(0)

    def test_a_batch_of_a_step_that_died_is_not_trained(self, tmp_path: Path) -> None:
        log = Console().launch(config(1)).step(1, [0] * 4).crash(2, [1] * 4)
        dump = batch_pickle([[10, 10]] * 4)
        data = audited(tmp_path, {"console.log": log.text, "global_step_2_training_input.pkl": dump})
        assert data["trajectories"]["trained"] == exact(8)

    def test_step_wise_rows_are_not_trajectories(self, tmp_path: Path) -> None:
        # Pitfall 10: two trajectories of two turns and one turn; 3 rows a group, 30 tokens.
        log = Console().launch(config(1, step_wise_trajectories=True))
        log.step(1, [0] * 4, more={"generate/batch_num_seq": 12}).done(1)
        flags = [False, True, True] * 4
        dump = batch_pickle([[10, 10, 10]] * 4, is_last_step=flags)
        data = audited(tmp_path, {"console.log": log.text, "global_step_1_training_input.pkl": dump})
        assert data["trajectories"]["trained"] == exact(8)
        assert data["tokens"]["trained"] == exact(120)
        assert audited(tmp_path / "b", log)["trajectories"]["trained"] == exact(8)
        # Older batches do not flag last turns; eight trajectories they are all the same.
        files = {"console.log": log.text, "global_step_1_training_input.pkl": batch_pickle([[10, 10, 10]] * 4)}
        assert audited(tmp_path / "c", files)["trajectories"]["trained"] == exact(8)
        files["global_step_1_training_input.pkl"] = batch_pickle([[10, 10, 0]] * 4)
        assert "batch-turns-unknown" in codes(audited(tmp_path / "d", files))

    def test_batches_and_checkpoints_without_any_log(self, tmp_path: Path) -> None:
        files = {
            f"e/dumped_data/global_step_{step}_training_input.pkl": batch_pickle([[10, 10]] * 4) for step in (1, 2, 3)
        }
        files["c/global_step_2/fully_async_state.pt"] = torch_file(
            {"consumed_uids": ["1", "2"], "filtered_uids": [], "epoch": 0}
        )
        files["c/global_step_2/trainer_state.pt"] = torch_file({"global_step": 2, "config": config(1)})
        data = audited(tmp_path, files)
        assert data["run"]["steps"] == {"lo": 2, "hi": 3}
        assert data["trajectories"]["trained"] == {"lo": 16, "hi": 24}
        assert data["bound"]["value"] == 1
        assert data["per_step"][1]["max"] == {"lo": 0, "hi": 1}


class TestTrackers:
    def steps(self, ages: list[list[int]], first: int = 1, **more: Any) -> list[tuple[int, dict[str, Any]]]:
        found = []
        for index, own in enumerate(ages):
            values = metrics(first + index, own, 1, **more)
            values.pop("policy/final_loss")
            found.append((first + index, values))
        return found

    def test_numbers_alone_tell_sizes_but_prove_no_age(self, tmp_path: Path) -> None:
        # Two samples by the name of pass@2; quarters take four groups; {3, 1, 1, 0} is the only batch with sum 5 then.
        steps = self.steps([[0] * 4, [1, 0, 0, 0], [1] * 4, [3, 1, 1, 0]])
        data = audited(tmp_path, {"tb/events.out.tfevents.1.a": event_file(steps)}, bound=1)
        assert data["trajectories"]["trained"] == exact(32)
        assert data["violations"]["groups"] == {"lo": 0, "hi": 1}
        assert data["staleness"]["max"] == {"lo": 0, "hi": 3}
        assert data["tokens"]["trained"] == exact(320)

    def test_sizes_that_fit_nothing_in_particular_stay_open(self, tmp_path: Path) -> None:
        data = audited(tmp_path, {"events.out.tfevents.1.a": event_file(self.steps([[0] * 4, [1] * 4]))}, bound=1)
        assert data["trajectories"]["trained"]["lo"] >= 2
        assert data["trajectories"]["trained"]["hi"] == 16
        assert data["tokens"]["trained"] == exact(160)
        assert data["verdict"] == "pass"

    def test_a_resumed_run_writes_a_second_file(self, tmp_path: Path) -> None:
        # Pitfall 17: steps 3 and 4 again after going back to 2.
        first = event_file(self.steps([[0] * 4, [1, 0, 0, 0], [1] * 4, [3, 1, 1, 0]]))
        second = event_file(self.steps([[0] * 4, [1, 0, 0, 0]], first=3), started=1.8e9 + 100)
        files = {"events.out.tfevents.1.a": first, "events.out.tfevents.2.a": second}
        data = audited(tmp_path, files, bound=1)
        assert data["run"]["attempts"] == 2
        assert data["run"]["steps"] == exact(4)
        assert data["violations"]["groups"] == exact(0)

    def test_beside_a_console_log_the_numbers_go_to_their_launch(self, tmp_path: Path) -> None:
        log = Console().launch(config(1, logger="tensorboard"))
        for step in (1, 2, 3):
            log.step(step, [0] * 4, logged=False)
        log.step(4, [3, 1, 1, 0], logged=False).done(4)
        steps = self.steps([[0] * 4, [0] * 4, [0] * 4, [3, 1, 1, 0]])
        data = audited(tmp_path, {"console.log": log.text, "tb/events.out.tfevents.1.a": event_file(steps)})
        assert data["run"]["attempts"] == 1
        assert data["run"]["steps"] == exact(4)
        assert data["violations"]["groups"] == exact(1)

    def test_a_crash_flushes_numbers_without_a_step(self, tmp_path: Path) -> None:
        steps = self.steps([[0] * 4, [1, 0, 0, 0]])
        died = {
            key: value for key, value in self.steps([[1] * 4], first=3)[0][1].items() if not key.startswith("trainer/")
        }
        data = audited(tmp_path, {"events.out.tfevents.1.a": event_file([*steps, (3, died)])}, bound=1)
        assert data["run"]["steps"] == exact(2)

    def test_an_offline_wandb_file_has_the_configuration_and_all_numbers(self, tmp_path: Path) -> None:
        # One row a step holds metrics and timings; output.log begins after the configuration was printed.
        rows = [
            values | {"_step": step, "_timestamp": 1.8e9 + step, "timing/step": 0.5, "policy/text": "x"}
            for step, values in self.steps([[0] * 4, [0] * 4, [0] * 4, [3, 1, 1, 0]])
        ]
        wandb = wandb_file([run_record(config(1, logger="wandb")), *map(history, rows)])
        alone = audited(tmp_path / "a", {"wandb/offline-run-1/run-1.wandb": wandb})
        assert alone["violations"]["groups"] == exact(1)
        assert alone["bound"]["value"] == 1
        log = Console(prefix="").launch(None)
        for step in (1, 2, 3):
            log.step(step, [0] * 4, logged=False)
        text = log.step(4, [3, 1, 1, 0], logged=False).done(4).text
        files = {"wandb/offline-run-1/run-1.wandb": wandb, "wandb/offline-run-1/files/output.log": text}
        both = audited(tmp_path / "b", files)
        assert both["run"]["attempts"] == 1
        assert both["run"]["health"]["state"] == "finished"
        assert both["violations"]["groups"] == exact(1)
        assert both["tokens"]["trained"] == exact(320)
        cut = audited(tmp_path / "c", {"run-1.wandb": wandb[:-9]})
        assert "cut-record" in codes(cut)
        assert cut["run"]["steps"] == exact(3)
        broken = audited(tmp_path / "d", {"run-1.wandb": wandb[:-200] + b"?" * 200})
        assert "wandb-damaged" in codes(broken)

    def test_a_run_of_whole_batches_is_one_step_off_at_most(self, tmp_path: Path) -> None:
        log = Console().launch(config(1, enabled=False))
        none = {key: None for key in metrics(1, [0], 1) if key.startswith("async/")}
        data = audited(
            tmp_path,
            log.step(1, [0] * 4, more=none).step(2, [0] * 4, more=none).step(3, [0] * 4, more=none).done(3),
            bound=0,
        )
        assert data["staleness"]["max"] == {"lo": 0, "hi": 1}
        assert data["guarantee"]["limit"] == 1


def test_the_module_path_tells_the_release() -> None:
    """Pitfall 15; today's batches name ``skyrl.backends.skyrl_train``, which is no old module."""
    line = "2026-11-29 15:36:54.123 | INFO     | {}:run:12 - Started: 'step'\n"
    old, new = line.format("skyrl_train.fully_async_trainer"), line.format("skyrl.train.fully_async_trainer")
    assert dialect_of(old.encode()) == "skyrl_train (up to February 2026)"
    assert dialect_of(f"skyrl.backends.skyrl_train.batch\n{new}".encode()) == "skyrl.train (since February 2026)"
    assert dialect_of(b"nothing of it") is None
    assert dialect_of(b"\x00 async/staleness_max \x07") == "metrics as before 2026-07-19"
    late = b"async/gen_buffer_qsize_at_wait_start .. async/staleness_max"
    assert dialect_of(late) == "metrics as since 2026-07-19"

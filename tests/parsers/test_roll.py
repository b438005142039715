"""ROLL's RLVR pipeline: prompts, segments and the replay of the buffer, one pitfall of the guide each."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest
from helpers.wandb_log import history, wandb_file
from nemo_rl_run import events
from roll_run import Run, Span, batch_pickle, call, config, dump, export, log, prompt, step

TRACES = "otlp/traces/traces.jsonl"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def traces(steps: int, prompts: list[Span], *, batch: int = 1, calls: int | None = None) -> str:
    driver = [part for number in range(steps) for part in step(number)]
    called = [call(number, batch=batch) for number in range(steps if calls is None else calls)]
    return export("driver", driver) + export("scheduler", called + prompts, "scheduler-math_rule")


def story() -> list[Span]:
    """R = 1, one prompt a step: quota 2 at step 0, so prompts 0 and 1 begin there and one more with each step.

    Prompt 1 is cut by the pause of step 1: first segment v0, second v1. Prompt 2 began at step 1 and is made by v1.
    """
    return [
        *prompt(0, 0, 5, [(3, 4)]),
        *prompt(1, 0, 15, [(3, 10.5), (10.6, 14)]),
        *prompt(2, 1, 19, [(13, 18)]),
    ]


def test_a_small_run_by_hand(run: Run) -> None:
    run["console.log"] = config() + log("pipeline complete!", 40)
    run[TRACES] = traces(3, story())
    audited = run()
    assert audited["run"]["framework"] == "roll"
    assert (audited["verdict"], audited["bound"]["value"]) == ("pass", 1)
    assert audited["bound"]["key"] == "async_generation_ratio"
    assert audited["guarantee"] == {**audited["guarantee"], "strict": True, "limit": 1}
    assert audited.steps == audited.trained == (3, 3)
    # Prompt 0: v0 at step 0. Prompt 1: its last token is v1's at step 1, an older one may be v0's. Prompt 2: v1 at 2.
    assert audited.histogram() == {0: (1, 2), 1: (1, 2)}
    assert audited["run"]["health"]["state"] == "finished"


def test_one_line_per_export_in_any_order_and_rotated(run: Run) -> None:
    run["console.log"] = config()
    lines = traces(3, story()).splitlines(keepends=True)
    singles = []
    for line in lines:
        whole = json.loads(line)
        for part in whole["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            whole["resourceSpans"][0]["scopeSpans"][0]["spans"] = [part]
            singles.append(json.dumps(whole) + "\n")
    singles.reverse()
    run[TRACES] = "".join(singles[:7])
    run["otlp/traces/traces.1.jsonl.gz"] = gzip.compress("".join([*singles[7:], singles[9]]).encode())
    audited = run()
    assert audited.histogram() == {0: (1, 2), 1: (1, 2)}
    assert audited["verdict"] == "pass"


def test_pushes_at_every_second_step_break_the_bound(run: Run) -> None:
    """F = 2: at step 1 the engines keep v0, so a prompt begun at step 1 and trained at step 2 is two versions old."""
    run["console.log"] = config(frequency=2)
    run[TRACES] = traces(3, [*prompt(0, 0, 5, [(3, 4)]), *prompt(1, 0, 15, [(3, 14)]), *prompt(2, 1, 19, [(13, 18)])])
    audited = run()
    assert audited["verdict"] == "fail"
    assert audited.histogram() == {0: (1, 1), 1: (1, 1), 2: (1, 1)}
    assert audited["guarantee"] == {**audited["guarantee"], "strict": False, "limit": 2}


def test_without_f_nothing_is_known_of_versions(run: Run) -> None:
    run[TRACES] = traces(3, story())
    audited = run(1)
    assert (audited["verdict"], audited.trained) == ("inconclusive", (3, 3))
    assert audited.largest == (0, 2)
    assumed = run(1, actor_train__model_update_frequency="1", async_generation_ratio="1")
    assert assumed["verdict"] == "pass"


def test_metrics_tell_which_steps_pushed(run: Run) -> None:
    """A no-op has `time/step_model_update` alone. The framework's mean lag sees nothing of it."""
    for number in range(3):
        metrics = {"time/step_model_update": 0.1, "math_rule/scheduler/off_policy_ratio": 1.0, "system/batch_size": 1}
        if number % 2 == 0:
            metrics["time/actor_train/model_update/total"] = 0.1
        text = "metrics_tag: " + json.dumps({"step": number, "metrics": metrics})
        run[f"part{number}.log"] = "\x1b[36m(Driver pid=3)\x1b[0m progress: 10%\r" + log(text, number)
    run[TRACES] = traces(3, [*prompt(0, 0, 5, [(3, 4)]), *prompt(1, 0, 15, [(3, 14)]), *prompt(2, 1, 19, [(13, 18)])])
    audited = run(1)
    assert audited.largest[1] == 2
    assert {row["agrees"] for row in audited["reported"] if row["name"] == "step.staleness_trajectory_mean"} >= {False}


def test_what_waits_in_the_pause_is_made_by_the_new_weights(run: Run) -> None:
    """Prompt 1 begins in the pause of step 1, so it carries start step 0, but its request is served after the push."""
    run["console.log"] = config()
    run[TRACES] = traces(2, [*prompt(0, 0, 5, [(3, 4)]), *prompt(1, 0, 15, [(10.5, 14)])])
    assert run().histogram() == {0: (2, 2)}


def test_fifo_over_start_steps_and_commits(run: Run) -> None:
    """Two prompts a step: step 1 takes what is left of start step 0 first, in the order of commits."""
    prompts = [
        *prompt(0, 0, 5.0, [(3, 4)]),
        *prompt(1, 0, 4.9, [(3, 4)]),
        *prompt(2, 0, 5.5, [(3, 4)]),
        *prompt(3, 0, 15, [(3, 14)]),
        *prompt(4, 1, 13.5, [(12.5, 13)]),
    ]
    run["console.log"] = config(batch=2)
    run[TRACES] = traces(2, prompts, batch=2)
    masks = {0: [[1, 0], [1, 1]], 1: [[1, 1], [0, 1]]}
    for number, mask in masks.items():
        run[f"mock/train/step_{number:06d}.pkl"] = batch_pickle(mask, {"rollout_id": ["a", "b"], "id": ["x", "y"]})
    audited = run()
    # Step 1: prompt 2 (v0, two tokens: lag 1), prompt 3 (v1, one token: lag 0); prompt 4 is left over.
    assert audited.histogram("token") == {0: (4, 4), 1: (2, 2)}
    assert audited["trajectories"]["pending"]["lo"] == 1


def test_drops_and_cancels_at_the_pause(run: Run) -> None:
    """R = 1: the pause before step 2 collects start step 0. Prompt 2 was finished, prompt 3 still ran."""
    prompts = [
        *prompt(0, 0, 5, [(3, 4)]),
        *prompt(1, 0, 12.5, [(3, 9)]),
        *prompt(2, 0, 15.9, [(3, 15)]),
        *prompt(3, 0, 20.5, [(3, 20.4)], rewards=0),
        *prompt(4, 1, 24, [(13, 23)]),
        *prompt(5, 2, 31, [(23, 30.9)], rewards=0),
    ]
    run["console.log"] = config(more="is_use_additional_prompts: true\n")
    run[TRACES] = traces(3, prompts)
    audited = run()
    assert audited.trained == (3, 3)
    assert audited.fates("dropped") == {"stale": (1, 1)}
    assert audited.fates("cancelled") == {"stale": (1, 1)}
    assert audited["trajectories"]["pending"]["lo"] == 1, "what the shutdown ends is left over"


def test_scored_in_the_very_pause_is_dropped_or_cancelled(run: Run) -> None:
    prompts = [
        *prompt(0, 0, 5, [(3, 4)]),
        *prompt(1, 0, 12.5, [(3, 9)]),
        *prompt(2, 0, 20.5, [(3, 20.4)]),
        *prompt(3, 1, 24, [(13, 23)]),
    ]
    run["console.log"] = config(more="is_use_additional_prompts: true\n")
    run[TRACES] = traces(3, prompts)
    audited = run()
    assert audited.fates("dropped") == {"stale": (0, 1)}
    assert audited.fates("cancelled") == {"stale": (0, 1)}


def test_without_the_ratio_it_may_be_the_very_pause(run: Run) -> None:
    """Prompt 1, scored in the pause before step 1, was dropped later, or cancelled there: by R, which nobody tells."""
    prompts = [*prompt(0, 0, 5, [(3, 4)]), *prompt(1, 0, 20.5, [(3, 19)]), *prompt(2, 1, 15, [(13, 14)])]
    prompts += prompt(3, 2, 25, [(23, 24)])
    run[TRACES] = traces(4, [*prompts, *prompt(4, 3, 35, [(33, 34)])])
    audited = run()
    assert audited.fates("dropped")["stale"][0] == audited.fates("cancelled")["stale"][0] == 0


def test_without_a_configuration_prompts_may_be_filtered(run: Run) -> None:
    """Prompt 1 is never taken; filtered, or left over at the end."""
    run[TRACES] = traces(1, [*prompt(0, 0, 5, [(3, 4)]), *prompt(1, 0, 5.5, [(3, 4.5)])])
    assert run().fates("dropped")["filtered"] == (0, 1)


def test_a_prompt_more_than_the_quota_may_replace_a_filtered_one(run: Run) -> None:
    """One prompt a step: three began at step 0. R = 2, or R = 1 and a filtered one whose place prompt 2 took."""
    prompts = [part for number in range(3) for part in prompt(number, 0, 5 + number / 10, [(3, 4)])]
    run[TRACES] = traces(2, [*prompts, *prompt(3, 1, 19, [(13, 18)]), *prompt(4, 1, 19.5, [(13, 18)])])
    audited = run()
    assert audited.trained == (2, 2)
    assert audited.fates("dropped")["filtered"][0] == 0 < audited.fates("dropped")["filtered"][1]


def test_filtered_prompts_are_named_by_the_console(run: Run) -> None:
    """Prompt 0 is filtered and replaced by prompt 2; without the console anybody may have been taken."""
    prompts = [
        *prompt(0, 0, 4.5, [(3, 4)]),
        *prompt(1, 0, 5, [(3, 4.5)]),
        *prompt(2, 0, 15, [(4.6, 14)]),
        *prompt(3, 1, 19, [(13, 18)]),
    ]
    lines = [
        log("pipeline step 0 start...", 0),
        log("filter out prompt 0", 4),
        log("pipeline step 0 finished", 9),
        log("pipeline step 1 start...", 10),
        log("pipeline step 1 finished", 19),
        log("filter out prompt 3", 20),
    ]
    waiting = log("start sampling, global_step=0 batch_size=1, ReplayBuffer: ...", 2)
    run["console.log"] = config(filter="mean_filter") + lines[0] + waiting + "".join(lines[1:])
    run[TRACES] = traces(2, prompts)
    audited = run()
    assert audited.trained == (2, 2)
    assert audited.fates("dropped") == {"filtered": (1, 1)}, "the last line belongs to the shutdown"
    assert audited.histogram() == {0: (2, 2)}
    run["console.log"] = config(filter="mean_filter")
    audited = run()
    assert audited.trained[0] <= 2 <= audited.trained[1]
    assert audited["violations"]["trajectories"] == {"lo": 0, "hi": 0}, "whoever was taken: the window holds"


def test_validation_has_prompts_without_parent(run: Run) -> None:
    """Their ids collide with those of training; they are made during the driver's `validation`."""
    run["console.log"] = config()
    evaluation = prompt(0, None, 2.9, [(2.1, 2.5)], key="val")
    run[TRACES] = traces(3, story() + evaluation)
    assert run()["trajectories"]["seen"]["lo"] == 3


def test_two_domains_have_a_buffer_each(run: Run) -> None:
    """Prompt ids restart in each; the batch of a step is both domains' together."""
    other = [
        *prompt(0, 0, 5, [(3, 4)], key="b"),
        *prompt(1, 0, 15, [(3, 14)], key="b"),
    ]
    for part in other:
        part["parentSpanId"] = (
            part["parentSpanId"].replace("call", "callb")
            if part["name"] == "process_new_prompt"
            else part["parentSpanId"]
        )
    calls = [call(number, tag="b") for number in range(2)]
    for number, part in enumerate(calls):
        part["parentSpanId"] = f"generate{number}"
    run["console.log"] = config(batch=2)
    run[TRACES] = traces(2, story()[:-3]) + export("scheduler", calls + other, "scheduler-code")
    audited = run()
    assert audited.trained == (4, 4)
    assert audited["verdict"] == "pass"


def test_a_killed_run_trained_nothing_of_its_last_step(run: Run) -> None:
    """Step 2 has no span of its own and no `train`; its children say that it had begun."""
    driver = [*step(0), *step(1), *step(2, without=("pipeline_step", "train", "generate"))]
    run["console.log"] = config()
    spans = export("scheduler", [call(0), call(1), *story()], "scheduler-math_rule")
    run[TRACES] = export("driver", driver) + spans
    audited = run()
    assert audited.steps == audited.trained == (2, 2)
    assert audited["trajectories"]["pending"]["lo"] == 1


def test_a_resume_supersedes_steps_and_warms_up_again(run: Run) -> None:
    """Checkpoint after step 0, killed in step 2: the second launch runs step 1 again with a buffer of its own."""
    again = [
        *prompt(0, 1, 115, [(112.5, 114)], tag="x"),
        *prompt(1, 1, 125, [(113, 119)], tag="x"),
    ]
    driver = [*step(0), *step(1), *step(2, without=("pipeline_step", "train"))]
    later = [*step(1, at=110, tag="x"), *step(2, at=120, tag="x")]
    calls = [call(0), call(1), call(1, at=110, tag="x"), call(2, at=120, tag="x")]
    run["console.log"] = config()
    run[TRACES] = (
        export("driver", driver)
        + export("driver", later, "driver-2")
        + export("scheduler", [*calls, *story(), *again], "scheduler-math_rule")
    )
    audited = run()
    assert audited["run"]["attempts"] == 2
    assert audited.steps == audited.trained == (3, 3)
    # Step 0: lag 0. Step 1 again: made by v1. Step 2: begun at step 1, made by v1.
    assert audited.histogram() == {0: (2, 2), 1: (1, 1)}
    assert audited.fates("lost")["rolled_back"] == (1, 1)


def test_a_fraction_of_the_oldest_group(run: Run) -> None:
    """R = 1.5, two prompts a step: of the group two steps back only one may be taken."""
    assert_window = config(1.5, batch=2)
    first = [*prompt(0, 0, 5, [(3, 4)]), *prompt(1, 0, 5.1, [(3, 4)])]
    left = [prompt(number, 0, 5.1 + number / 10, [(3, 4)]) for number in (2, 3, 4)]
    later = [*prompt(5, 1, 15, [(13, 14)]), *prompt(6, 1, 15, [(13, 14)]), *prompt(7, 2, 25, [(23, 24)])]
    run["console.log"] = assert_window
    run[TRACES] = traces(3, [*first, *[part for parts in left for part in parts], *later], batch=2)
    audited = run()
    assert audited["bound"]["value"] == 2
    # Step 0: 0, 1. Step 1: 2, 3. Step 2: 4 (lag 2) and one begun at step 1 (lag 1).
    assert audited.histogram() == {0: (2, 2), 1: (3, 3), 2: (1, 1)}


def test_without_the_ratio_it_may_have_a_fraction(run: Run) -> None:
    """As above, with a second prompt of step 1: step 2 took 4 and one begun at step 1, or 4 and nobody knows."""
    first = [*prompt(0, 0, 5, [(3, 4)]), *prompt(1, 0, 5.1, [(3, 4)])]
    left = [part for number in (2, 3, 4, 5) for part in prompt(number, 0, 5.1 + number / 10, [(3, 4)])]
    later = [*prompt(6, 1, 15, [(13, 14)]), *prompt(7, 2, 25, [(23, 24)])]
    run[TRACES] = traces(3, [*first, *left, *later], batch=2)
    audited = run()
    assert audited.trained == (6, 6)
    # R = 2 takes 4 and 5 at step 2, R = 1.5 takes 4 and 6.
    assert audited.histogram()[2][0] <= 1 <= audited.histogram()[1][1] - 2


def test_a_critic_warm_up_trains_no_actor(run: Run) -> None:
    run["console.log"] = config(more="critic_warmup: 1\n")
    run[TRACES] = traces(3, story())
    audited = run()
    assert audited.steps == audited.trained == (2, 2)
    assert audited.fates("dropped") == {"other:critic_warmup": (1, 1)}
    assert "critic-warmup" in audited.codes


def test_a_skipped_step_trained_nothing(run: Run) -> None:
    metrics = {"mask/final_mask_sum_eq_0": 1, "time/step_model_update": 0.1, "time/actor_train/model_update/total": 1}
    run["console.log"] = config() + log("metrics_tag: " + json.dumps({"step": 1, "metrics": metrics}))
    run[TRACES] = traces(3, story())
    audited = run()
    assert audited.steps == audited.trained == (2, 2)
    assert "skipped-step" in audited.codes


def test_masked_samples_may_have_no_staleness(run: Run) -> None:
    """F = 2 makes a violation, but who was masked out of the loss is not recorded."""
    used = {"step": 2, "metrics": {"math_rule/actor/samples_used": 0, "math_rule/actor/samples_total": 1}}
    run["console.log"] = config(frequency=2) + log("metrics_tag: " + json.dumps(used))
    run[TRACES] = traces(3, story())
    audited = run()
    assert audited["verdict"] == "inconclusive"
    assert (audited["violations"]["trajectories"]["lo"], audited["violations"]["trajectories"]["hi"]) == (0, 1)


class TestWithoutTraces:
    """Dumps, the console, checkpoints: who and how many, how old at most."""

    def test_dumps_tell_the_oldest_start_step(self, run: Run) -> None:
        run["console.log"] = config(batch=2) + "".join(
            log(f"pipeline step {number} {word}", 2 * number + index)
            for number in range(2)
            for index, word in enumerate(("start...", "finished"))
        )
        run["dump/rollout_dump_data.step_0.jsonl"] = dump(0, 0, ["q1", "q2"])
        run["dump/rollout_dump_data.step_1.jsonl"] = dump(1, 0, ["q3", "q4"])
        audited = run()
        assert (audited["verdict"], audited.trained) == ("pass", (4, 4))
        assert audited.histogram() == {0: (2, 4), 1: (0, 2)}
        assert audited.fates("dropped") == {"unknown": (0, None)}
        assert [row["reported"] for row in audited["reported"]] == [0, 1]

    def test_what_an_earlier_launch_finished_says_nothing_of_the_last(self, run: Run) -> None:
        """Step 1 is finished, then begun again from the checkpoint of step 0, and the log ends."""
        lines = [f"pipeline step {number} {word}" for number in (0, 1) for word in ("start...", "finished")]
        tag = 'metrics_tag: {"step": 1, "metrics": {"system/batch_size": 1}}'
        again = ["pipeline step 1 start..."]
        run["console.log"] = config() + "".join(log(text, at) for at, text in enumerate([*lines, tag, *again]))
        for number in (0, 1):
            run[f"rollout_dump/rollout_dump_data.step_{number}.jsonl"] = dump(number, 0, ["q"])
        audited = run()
        assert audited["run"]["attempts"] == 2
        assert audited.steps == audited.trained == (1, 2)

    def test_one_domains_pickle_is_not_the_batch(self, run: Run) -> None:
        """Both domains write step_000000.pkl; the metrics tell that the batch had three samples."""
        metrics = {"math/scheduler/off_policy_ratio": 0.0, "code/scheduler/off_policy_ratio": 0.0}
        told = json.dumps({"step": 0, "metrics": {**metrics, "system/batch_size": 3}})
        run["console.log"] = config() + log(f"metrics_tag: {told}") + log("pipeline step 0 finished")
        run["mock/train/step_000000.pkl"] = batch_pickle([[0, 1, 1]], {"domain": ["code"], "rollout_id": ["a"]})
        audited = run()
        assert audited.trained == (3, 3)
        assert audited["tokens"]["trained"]["lo"] <= 4 and audited["tokens"]["trained"]["hi"] is None

    def test_boards_of_a_step_that_was_run_again_are_not_added_up(self, run: Run) -> None:
        lines = ["pipeline step 0 start...", "pipeline step 0 finished"] * 2
        run["console.log"] = config() + "".join(log(text, at) for at, text in enumerate(lines))
        for at, mask in enumerate(([1, 1], [1, 1, 1])):
            board = json.dumps({"step": 0, "new_response_mask": mask})
            run[f"board/data_20261129_15352{at}_001.jsonl"] = board + "\n"
        tokens = run()["tokens"]["trained"]
        assert tokens["lo"] <= 3 and tokens["hi"] is None

    def test_the_console_alone(self, run: Run) -> None:
        groups = (
            "group_info=['ItemsGroup 0: len(self.running_prompts)=1 len(self.finished_prompts)=0 self.num_samples=0 ']"
        )
        lines = [
            log("pipeline step 0 start...", 0),
            log("total collect data: 2, collect queries: 2", 1),
            log("pipeline step 0 finished", 2),
            log("pipeline step 1 start...", 3),
            log(f"ReplayBuffer get_batch: self.current_step=1 min_step=0 expected_samples=2, {groups}", 4),
            log("total collect data: 2, collect queries: 2", 5),
            log("pipeline step 1 finished", 6),
        ]
        run["driver.out"] = config(batch=2) + "".join(lines)
        audited = run()
        assert audited["per_step"][1]["trajectories"] == {"lo": 2, "hi": 2}
        assert audited.largest == (0, 1)
        assert audited["coverage"]["trajectories_identified"] < 1

    @pytest.mark.parametrize("noise", ["WARNING: it is on its way", "  File 'x.py', line 3", "ERROR x: 10%|#| y"])
    def test_warnings_among_the_printed_configuration(self, run: Run, noise: str) -> None:
        """They look like settings and stand before, between and after them, in a file with CRLF."""
        lines = (config(ratio=2) + log("pipeline step 0 start...") + log("pipeline step 0 finished")).split("\n")
        text = "\n".join(f"{line}\n{noise}" if line.strip() else line for line in lines)
        run["driver.out"] = f"{noise}\n\n{text}".replace("\n", "\r\n")
        assert run()["bound"]["value"] == 2

    def test_the_scheduler_of_before_v0_2_0(self, run: Run) -> None:
        """Pitfall 18: it repeats the driver's steps, says what it deleted, and leaves neither traces nor pickles.

        R = 1, two prompts a step: nothing is older than the window, and one prompt of step 0 was thrown away.
        """
        lines = []
        for number in range(3):
            lines += [
                log(f"pipeline step {number} start...", 9 * number),
                log(f"start async sampling, global_step: {number} batch_size=2", 9 * number + 1),
                log(f"get batch by min_start_step={max(number - 1, 0)}, min_step_prompt_num=2", 9 * number + 2),
            ]
            lines += [log("randomly delete 1 prompt_ids from step: 0", 12)] * (number == 1)
            named = {"step": number, "metrics": {"scheduler/off_policy_ratio": 1.0, "system/batch_size": 2}}
            lines += [log("metrics_tag: " + json.dumps(named), 9 * number + 5)]
            lines += [log(f"pipeline step {number} finished", 9 * number + 6)]
        run["driver.out"] = config(batch=2) + "".join(lines)
        audited = run()
        assert audited["run"]["dialect"] == "rlvr (before v0.2.0)"
        assert audited["run"]["attempts"] == 1
        assert (audited.steps, audited.trained) == ((3, 3), (6, 6))
        assert audited.largest == (0, 1)
        assert audited.fates("dropped")["surplus"] == (0, 1), "it was finished, or still being generated"
        assert audited.fates("cancelled")["surplus"] == (0, 1)
        assert "old-scheduler" in audited.codes

    def test_dumps_of_v0_1_0_are_lines_of_one_file(self, run: Run) -> None:
        """Pitfall 1; step 1 was run again, and its later line counts. The last line is cut: it did not happen."""
        again = json.dumps({**json.loads(dump(1, 0, ["q5", "q6", "q7"])), "responses": ["a", "b", "c"]})
        lines = [dump(0, 0, ["q1", "q2"]), dump(1, 0, ["q3", "q4"]), again, dump(2, 1, ["q8"])[:-20]]
        run["console.log"] = config(batch=2) + "".join(
            log(f"pipeline step {number} {word}", 2 * number + index)
            for number in range(2)
            for index, word in enumerate(("start...", "finished"))
        )
        run["dump/rollout_data.jsonl"] = "\n".join(lines)
        audited = run()
        assert audited.trained == (5, 5)
        assert audited.largest == (0, 1)
        run["dump/rollout_data.jsonl"] = "\n".join([lines[0], "{broken", lines[2], ""])
        audited = run()
        assert "bad-batch" in audited.codes
        assert audited["verdict"] == "inconclusive"

    def test_the_last_dump_may_be_missing(self, run: Run) -> None:
        """Pitfall 19: another process writes it and dies with the driver; the console says that the step finished."""
        run["console.log"] = config(batch=2) + "".join(
            log(f"pipeline step {number} {word}", 2 * number + index)
            for number in range(2)
            for index, word in enumerate(("start...", "finished"))
        )
        run["dump/rollout_dump_data.step_0.jsonl"] = dump(0, 0, ["q1", "q2"])
        audited = run()
        assert audited.steps == (2, 2)
        assert audited.trained == (3, None)
        # Whoever was in it, nothing of a step is older than its window.
        assert (audited.largest, audited["verdict"]) == ((0, 1), "pass")

    def test_times_of_a_step_are_not_those_of_its_record(self, run: Run) -> None:
        """Pitfall 5: ``time/step_total`` is of the step before in one pipeline and not in the other; spans tell."""
        named = {"step": 1, "metrics": {"time/step_total": 999.0, "time/step_model_update": 0.1}}
        run["console.log"] = config() + log("metrics_tag: " + json.dumps(named))
        run[TRACES] = traces(3, story())
        audited = run()
        assert audited["run"]["dialect"] == "rlvr (v0.3.0 or later)"
        assert [row["duration_s"] for row in audited["per_step"]] == [2.0, 2.0, 2.0]

    def test_a_relative_dump_folder_writes_nothing(self, run: Run) -> None:
        """Pitfall 22: it is told why no batch is there."""
        run["console.log"] = config(more="rollout_dump_dir: dumps\n") + log("pipeline step 0 finished")
        hints = [hint["remedy"] for hint in run()["hints"]]
        assert any("rollout_dump_dir" in remedy and "/" in remedy for remedy in hints)

    def test_steps_without_a_dump_were_trained_too(self, run: Run) -> None:
        """Dumps of the steps 0 and 2: step 1 came between, with at least one sample."""
        run["dump/rollout_dump_data.step_0.jsonl"] = dump(0, 0, ["q1"])
        run["dump/rollout_dump_data.step_2.jsonl"] = dump(2, 1, ["q2"])
        audited = run(1)
        assert audited["run"]["steps"] == {"lo": 2, "hi": 3}
        assert audited["trajectories"]["trained"] == {"lo": 2, "hi": None}
        assert audited["verdict"] == "inconclusive"

    def test_a_checkpoint_alone(self, run: Run) -> None:
        entry = {"system/step": 0, "system/batch_size@sum": 8, "time/step_model_update": 0.1, "x": float("nan")}
        history = [{**entry, "system/step": number} for number in range(2)]
        name = "output/pipeline/checkpoint-1/pipeline/worker_state_pipeline.json"
        run[name] = json.dumps({"kv": {}, "log_history": history, "step": 1})
        audited = run(1)
        assert (audited["verdict"], audited.trained) == ("inconclusive" if audited.largest[1] > 1 else "pass", (16, 16))

    def test_a_replayed_batch_is_of_another_run(self, run: Run) -> None:
        lines = log("[RolloutMock] Loaded step 0: x.pkl") + log("pipeline step 0 finished", 3)
        run["console.log"] = config(more="rollout_mock:\n  enable: true\n  mode: mock\n") + lines
        run["dump/rollout_dump_data.step_0.jsonl"] = dump(0, 0, ["q1"])
        audited = run()
        assert audited["verdict"] == "inconclusive"
        assert "replayed-batches" in audited.codes

    def test_a_yaml_with_defaults_leaves_f_open(self, run: Run) -> None:
        run["rlvr.yaml"] = "defaults:\n  - base\nasync_generation_ratio: 2\nrollout_batch_size: 1\n"
        run[TRACES] = traces(3, story())
        audited = run()
        assert audited["bound"]["value"] == 2
        assert audited["guarantee"]["limit"] is None
        run["rlvr.yaml"] = "async_generation_ratio: 2\nrollout_batch_size: 1\nactor_train: {}\n"
        assert run()["guarantee"]["limit"] == 2


class TestDamage:
    """What is lost is said, and opens what it may have held."""

    def test_a_cut_last_line_did_not_happen(self, run: Run) -> None:
        run["console.log"] = config()
        run[TRACES] = traces(3, story()) + '{"resourceSpans":[{"resou'
        audited = run()
        assert audited["verdict"] == "pass"
        assert "cut-line" in audited.codes

    @pytest.mark.parametrize(
        "text", ["{broken\n", "[]\n", '{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "train"}]}]}]}\n']
    )
    def test_a_bad_line_forbids_pass(self, run: Run, text: str) -> None:
        run["console.log"] = config()
        run[TRACES] = traces(3, story()) + text + export("driver", [])
        audited = run()
        assert audited["verdict"] == "inconclusive"
        assert "bad-line" in audited.codes

    def test_a_lost_update_makes_versions_intervals(self, run: Run) -> None:
        """Without the span of step 1's update its tokens are v0's or v1's."""
        run["console.log"] = config()
        lines = traces(3, story()).splitlines()
        whole = json.loads(lines[0])
        spans = whole["resourceSpans"][0]["scopeSpans"][0]["spans"]
        whole["resourceSpans"][0]["scopeSpans"][0]["spans"] = [s for s in spans if s["spanId"] != "model_update1"]
        run[TRACES] = json.dumps(whole) + "\n" + lines[1] + "\n"
        audited = run()
        assert audited.largest == (1, 2), "prompt 2 of step 2 is v0's or v1's"
        assert audited["verdict"] == "inconclusive"

    def test_a_lost_sampling_call_leaves_open_whom_it_took(self, run: Run) -> None:
        run["console.log"] = config()
        run[TRACES] = traces(3, story(), calls=2)
        audited = run()
        assert audited.trained[0] <= 3 <= audited.trained[1]
        assert audited.steps == (3, 3)
        assert "lost-spans" in audited.codes
        assert audited.fates("dropped")["unknown"] == (0, None), "with it, fates may be lost"

    def test_damaged_batches(self, run: Run) -> None:
        run["console.log"] = config() + log("pipeline step 0 finished")
        run["dump/rollout_dump_data.step_0.jsonl"] = '{"id": ["q1"], "global_step": [0, 0]}'
        assert "bad-batch" in run().codes
        run["dump/rollout_dump_data.step_0.jsonl"] = ""
        assert "bad-batch" in run().codes
        run["dump/rollout_dump_data.step_0.jsonl"] = dump(0, 0, ["q1"])
        run["mock/train/step_000000.pkl"] = batch_pickle([[1, 1]], {"rollout_id": ["a"]})[:-40]
        audited = run()
        assert "bad-batch" in audited.codes
        assert audited["verdict"] == "inconclusive"

    def test_a_hostile_pickle_is_not_obeyed(self, run: Run, tmp_path: Path) -> None:
        run["console.log"] = config()
        target = tmp_path / "made"
        run["mock/train/step_000000.pkl"] = b"cos\nsystem\n(V" + f"touch {target}".encode() + b"\ntR."
        assert "bad-batch" in run().codes
        assert not target.exists()

    def test_an_empty_folder_is_not_ours(self, run: Run) -> None:
        run[TRACES] = ""
        run["console.log"] = "nothing of ROLL\n"
        with pytest.raises(Exception, match="framework"):
            run()


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb"])
def test_trackers_and_board_files(run: Run, tracker: str) -> None:
    """Scalars prove steps and pushes; the boards' masks count the response tokens of a step, in no order."""
    points = [
        (name, number, 1.0, 0.0) for number in range(2) for name in ("time/step_model_update", "system/batch_size")
    ]
    points += [("time/actor_train/model_update/total", number, 1.0, 0.0) for number in range(2)]
    if tracker == "tensorboard":
        run["tb/toy/20261129-153528/events.out.tfevents.1.host"] = events(points)
    else:
        rows = [
            {
                "_step": at,
                "_timestamp": 1.8e9,
                "system/global_step": at,
                **{name: 1.0 for name, step, *_ in points if step == at},
            }
            for at in range(2)
        ]
        run["wandb/offline-run-20261129_153528-x/run-x.wandb"] = wandb_file([history(row) for row in rows])
    used = [("math_rule/actor/samples_used", 1), ("math_rule/actor/samples_total", 1)]
    run["console.log"] = config() + "".join(
        log("metrics_tag: " + json.dumps({"step": number, "metrics": dict(used)}), number) for number in range(2)
    )
    for number in range(2):
        row = {"step": number, "new_response_mask": [0, 1, 1, number], "prompt": "a\u2028b"}
        run[f"board/data_20261129_153528_00{number}.jsonl"] = json.dumps(row, ensure_ascii=False) + "\n"
    audited = run()
    assert audited.steps == audited.trained == (2, 2)
    assert audited["tokens"]["trained"] == {"lo": 5, "hi": 5}
    run["board/data_20261129_153528_001.jsonl"] = '{"new_response_mask": 3}\n'
    audited = run()
    assert "bad-board" in audited.codes
    assert audited.trained == (2, 2)


def test_another_collectors_numbers(run: Run) -> None:
    """Times and counts as numbers, ids in base64, an exception's status as 2: step 1 failed and trained nothing."""
    run["console.log"] = config()
    lines = []
    for line in traces(2, story()[:-3]).splitlines():
        whole = json.loads(line)
        for part in whole["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            for key in ("startTimeUnixNano", "endTimeUnixNano"):
                part[key] = int(part[key])
            for key in {"spanId", "parentSpanId"} & set(part):
                part[key] = base64.b64encode(part[key].encode()).decode()
            if part["spanId"] in {base64.b64encode(name).decode() for name in (b"train1", b"step1")}:
                part["status"] = {"message": "OutOfMemoryError", "code": 2}
        lines.append(json.dumps(whole))
    run[TRACES] = "\n".join(lines) + "\n"
    audited = run()
    assert audited.steps == audited.trained == (1, 1)
    assert audited["run"]["health"]["state"] == "crashed"


def test_a_clock_that_was_set_back_orders_no_spans(run: Run) -> None:
    """The clock of the scheduler lost an hour after step 0: no span is used, and that is said."""
    run["console.log"] = config()
    calls = export("scheduler", [call(0)]) + export("scheduler", [call(1, at=-3590)])
    run[TRACES] = export("driver", [*step(0), *step(1)]) + calls
    audited = run()
    assert "clock-set-back" in {item["code"] for item in audited["diagnostics"]["items"]}
    assert audited["verdict"] == "inconclusive"

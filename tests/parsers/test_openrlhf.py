"""OpenRLHF, by hand: one call, one permit, one version - and each pitfall of the format's guide.

The run of ``story`` has Q = 1, batches of one prompt with two samples, no over-sampling. Seconds:

    0.0  call for batch 0 begins, on version 0          1.0  ends; batch 0 is taken, the permit comes back
    1.0  call for batch 1 begins, on version 0          1.5  ends; batch 1 waits
    1.1  log-probs done, 2.1 updates done, broadcast    2.3  step 1 is logged: version 1 is live, batch 1 is taken
    2.3  call for batch 2 begins, on version 1          2.8  ends
    2.4, 3.4 the same for batch 1                       3.6  step 2 is logged: version 2, batch 2 is taken, and so on

So step 1 trains staleness 0, and every later step exactly 1: v_train = N - 1, v_gen = N - 2.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import pytest
from openrlhf_run import event_file

from staleness_audit.api import audit

HEAD = "\x1b[36m({actor} pid=7)\x1b[0m INFO 12-31 23:59:5{second} {text}"


def say(actor: str, text: str, second: int = 8) -> str:
    return HEAD.format(actor=actor, second=second, text=text)


def metrics(step: int, **changes: Any) -> dict[str, Any]:
    first = step == 1
    return {
        "policy_loss": 0.01 * step,
        "timing/make_experience": 0.1,
        "timing/ppo_train": 1.0,
        "timing/broadcast": 0.2,
        "rollout/num_samples": 2.0,
        "rollout/response_length_mean": 10.5,
        "timing/generation": 1.0 if first else 0.5,
        "timing/step_total": 2.3 if first else 1.3,
        **changes,
    }


def step_line(step: int, text: str | None = None, **changes: Any) -> str:
    return say("TrainingActor", f"ppo_trainer_async.py:244] Global step {step}: {text or metrics(step, **changes)}")


def take(samples: int = 2) -> str:
    return say("TrainingActor", f"experience_maker.py:116] 🚀 Starting experience making with {samples} samples")


QUEUE = say("PPOTrainerAsync", "ppo_trainer_async.py:290] queue_size=1", 0)
BAR = (
    "\x1b[36m(GenerateSamplesActor pid=8)\x1b[0m \rEpisode [1/1]:   0%|          | 0/9 [00:00<?, ?it/s]"
    "\rGenerate samples:   0%|          | 0/1 [00:00<?, ?it/s]\x1b[A"
    "\rGenerate samples: 100%|██████████| 1/1 [00:00<00:00,  3.58it/s, prompts_consumed=1]"
)


def story(steps: int = 4, **changes: Any) -> list[str]:
    lines = [QUEUE]
    for step in range(1, steps + 1):
        lines += [BAR, take(), step_line(step, **changes)]
    return lines


def write(lines: list[str], folder: str = "run", name: str = "console.log", end: str = "\n") -> Path:
    path = Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + end, encoding="utf-8")
    return Path(folder)


def judge(run: Path, bound: int | None = 1) -> dict[str, Any]:
    return audit(run, bound).data


def ages(data: dict[str, Any]) -> list[tuple[int, int]]:
    return [(row["max"]["lo"], row["max"]["hi"]) for row in data["per_step"]]


def codes(data: dict[str, Any]) -> set[str]:
    return {item["code"] for item in data["diagnostics"]["items"]}


# ------------------------------------------------------------------------------------------------- the story


def test_step_n_trains_version_n_minus_one_with_what_the_permit_allowed():
    data = judge(write(story()))
    assert data["verdict"] == "pass"
    assert [row["v_train"]["lo"] for row in data["per_step"]] == [0, 1, 2, 3]
    assert ages(data) == [(0, 0), (1, 1), (1, 1), (1, 1)]
    assert data["trajectories"]["trained"] == {"lo": 8, "hi": 8}
    # The mean length times the samples is an upper end: it counts tool text between sampled tokens.
    assert data["tokens"]["trained"] == {"lo": 8, "hi": 84}
    assert data["guarantee"]["limit"] == 1
    assert data["guarantee"]["strict"]


def test_a_tighter_bound_is_broken_by_some_token_of_each_later_step():
    data = judge(write(story()), 0)
    assert data["verdict"] == "fail"
    # Whether a token is newer than the oldest of its batch depends on the mode, which the console does not name.
    assert data["violations"]["trajectories"] == {"lo": 1, "hi": 6}


@pytest.mark.parametrize("where", ["script", "console", "wandb"])
def test_the_mode_on_record_makes_versions_exact(where):
    command = "python3 -m openrlhf.cli.train_ppo_ray --train.async_enable --train.async_queue_size 1 {}"
    lines = story()
    if where == "console":
        lines.insert(0, command.format("--rollout.batch_size 1"))
    run = write(lines)
    if where == "script":
        write([command.format("\\\n  --rollout.batch_size=1")], name="train.sh")
    if where == "wandb":
        text = "train:\n  value:\n    partial_rollout_enable: false\n    async_queue_size: 1\n"
        write([text], name="wandb/run-1/files/config.yaml")
    data = judge(run, 0)
    assert data["violations"]["trajectories"] == {"lo": 6, "hi": 6}
    assert data["staleness"]["trajectory_histogram"] == [
        {"staleness": 0, "trajectories": {"lo": 2, "hi": 2}},
        {"staleness": 1, "trajectories": {"lo": 6, "hi": 6}},
    ]


@pytest.mark.parametrize("flag", ["--critic.freezing_steps 2", "--freezing_actor_steps=2"])
def test_steps_of_a_frozen_actor_are_versions_all_the_same(flag):
    """The weights of steps 1 and 2 stay, but each step is broadcast and counts: ages are those of the plain story."""
    plain = judge(write(story()), 0)
    frozen = judge(write([f"python3 -m openrlhf.cli.train_ppo_ray --train.async_enable {flag}", *story()]), 0)
    assert "frozen-actor" in codes(frozen) - codes(plain)
    assert frozen["run"]["steps"] == plain["run"]["steps"] == {"lo": 4, "hi": 4}
    assert frozen["staleness"]["max"] == plain["staleness"]["max"]


def test_partial_mode_on_record_is_not_taken_for_exact():
    run = write(story())
    write(["python -m openrlhf.cli.train_ppo_ray --train.async_enable --train.partial_rollout_enable"], name="go.sh")
    assert judge(run, 0)["violations"]["trajectories"] == {"lo": 1, "hi": 6}


def test_no_bound_is_configured_and_the_queue_size_is_suggested():
    data = judge(write(story()), None)
    assert data["verdict"] == "no-bound"
    assert data["bound"]["configured"] == 1
    assert any("--bound" in hint["remedy"] for hint in data["hints"])


def test_groups_are_counted_by_prompts():
    data = judge(write(story()), 0)
    assert data["violations"]["groups"]["hi"] == 3


# ------------------------------------------------------------------------------------------------- other sources


def scalars(steps: range, **changes: Any) -> list[tuple[str, int, float, float]]:
    rows = []
    for step in steps:
        for key, value in metrics(step, **changes).items():
            rows.append((f"train/{key}", step, value, 1000.0 + 2.3 + 1.3 * (step - 1)))
    return rows


def test_scalars_alone_prove_the_lower_end_and_date_the_steps():
    """One pass over the data is on record: else calls could make more than a batch without a sign of it."""
    write(["train:\n  value:\n    num_episodes: 1"], name="wandb/run-1/files/config.yaml")
    event_file(Path("run/tb/ppo/events.out.tfevents.1.node0.1.0"), scalars(range(1, 6)))
    data = judge(Path("run"))
    assert data["verdict"] == "inconclusive"
    assert ages(data) == [(0, 0), (1, 1), (1, 2), (1, 3), (1, 4)]
    assert data["throughput"]["wall_s"] == pytest.approx(6.5, abs=0.01)
    assert data["guarantee"]["limit"] is None


def test_console_and_scalars_of_one_launch_are_one_attempt():
    run = write(story())
    event_file(run / "tb/ppo/events.out.tfevents.1.node0.1.0", scalars(range(1, 5)))
    data = judge(run)
    assert (data["run"]["attempts"], data["run"]["steps"]) == (1, {"lo": 4, "hi": 4})
    assert data["trajectories"]["trained"] == {"lo": 8, "hi": 8}
    assert data["run"]["started"] is not None


def test_a_console_that_ends_early_is_continued_by_scalars():
    run = write(story(2))
    event_file(run / "tb/ppo/events.out.tfevents.1.node0.1.0", scalars(range(1, 5)))
    data = judge(run)
    assert ages(data) == [(0, 0), (1, 1), (1, 1), (1, 1)]


def test_files_of_several_processes_are_one_launch():
    lines = [line.split("\x1b[0m ", 1)[1] for line in story()]
    trainer = [line for line in lines if "Global step" in line or "making" in line]
    write(trainer, name="logs/worker-c-7.out")
    write([line for line in lines if "Generate samples" in line], name="logs/worker-b-8.err")
    write([line for line in lines if "queue_size" in line], name="logs/worker-a-6.out")
    run = write(story(), name="driver.log")
    for audited in (Path("run/logs"), run):
        data = judge(audited)
        assert (data["verdict"], data["run"]["attempts"], data["trajectories"]["trained"]["hi"]) == ("pass", 1, 8)
        assert ages(data) == [(0, 0), (1, 1), (1, 1), (1, 1)]


def test_compressed_and_nested_files_give_the_same_audit():
    plain = judge(write(story()))
    Path("other/deep").mkdir(parents=True)
    Path("other/deep/console.log.gz").write_bytes(gzip.compress(Path("run/console.log").read_bytes()))
    other = judge(Path("other"))
    for key in ("verdict", "staleness", "violations", "trajectories", "tokens", "guarantee"):
        assert other[key] == plain[key]


# ------------------------------------------------------------------------------------------------- pitfalls


def test_over_sampling_ages_what_waits_in_the_buffer():
    """Two prompts a call, one a batch: every other batch takes milliseconds and is a version older."""
    lines = [QUEUE]
    for step in range(1, 7):
        if step % 2:
            lines.append(BAR.replace("0/1", "0/2"))
        lines += [take(), step_line(step, **{"timing/generation": 0.5 if step % 2 else 0.0005})]
    data = judge(write(lines))
    # The buffer is used up when batch 1 is served, so that batch 2 waits for a call begun at the take of batch 1.
    assert ages(data) == [(0, 0), (1, 1), (0, 1), (1, 2), (0, 1), (1, 2)]
    assert data["guarantee"]["limit"] == 2
    assert not data["guarantee"]["strict"]
    assert data["verdict"] == "inconclusive"


@pytest.mark.parametrize(("passes", "oldest"), [(1, 1), (4, 2)])
def test_the_end_of_the_data_hides_over_sampling(passes, oldest):
    """Calls for three prompts of one sample, two a batch, four prompts in the data: every batch has a call of its own.

    The first call of a pass leaves one sample to the second batch, whose call is for the one prompt that remains; then
    the data begin anew. Without that the buffer would gain a sample a call, and the third batch need none.
    """
    lines = [line for line in story(8) if line != BAR]
    lines[1:1] = [f"(GenerateSamplesActor pid=8) \rEpisode [1/{passes}]:   0%|          | 0/4 [00:00<?, ?it/s]"]
    assert ages(judge(write(lines)))[-1][1] == oldest


def test_an_evaluation_takes_a_permit_and_breaks_the_clock():
    lines = story()
    at = next(index for index, line in enumerate(lines) if "Global step 2" in line) + 1
    lines[at:at] = [
        say("GenerateSamplesActor", "ppo_trainer_async.py:90] Starting async evaluation..."),
        BAR.replace("0/1", "0/30"),
        say("GenerateSamplesActor", "ppo_trainer_async.py:97] Async evaluation completed: {'eval_default_pass1': 0.5}"),
        say("TrainingActor", "ppo_trainer_async.py:214] Eval at step 2: {'eval_default_pass1': 0.5}"),
    ]
    data = judge(write(lines))
    # Batch 2 was begun after the evaluation was taken, hence after version 2; how long after is not known.
    assert ages(data) == [(0, 0), (1, 1), (0, 0), (1, 1)]
    assert data["trajectories"]["trained"] == {"lo": 8, "hi": 8}
    assert data["guarantee"]["limit"] == 1


def test_an_evaluation_that_ends_a_cut_console_is_not_counted_again():
    """The event file tells of the same evaluation after step 2: once more would take another permit."""
    lines = story()
    at = next(index for index, line in enumerate(lines) if "Global step 2" in line) + 1
    run = write([*lines[:at], say("TrainingActor", "ppo_trainer_async.py:214] Eval at step 2: {'pass1': 0.5}")])
    told = [*scalars(range(1, 3)), ("eval/eval_default_pass1", 2, 0.5, 1004.0), *scalars(range(3, 5))]
    event_file(run / "tb/ppo/events.out.tfevents.1.node0.1.0", told)
    assert ages(judge(run)) == [(0, 0), (1, 1), (0, 0), (1, 1)]


def test_filtered_groups_are_dropped_with_as_many_samples_as_scores():
    """One group of two samples is discarded for each of four batches: 100 * 2 samples / 2 prompts = 100 %."""
    text = "samples_generator.py:174] Filtered out: avg_reward=0.00, threshold=(0.00, 1.00), scores=['0.00', '0.00']"
    lines = story(**{"dynamic_filtering_pass_rate": 100.0})
    lines[1:1] = [say("GenerateSamplesActor", text)] * 4
    data = judge(write(lines))
    assert data["trajectories"]["dropped"] == {"filtered": {"lo": 8, "hi": 8}}
    assert data["trajectories"]["trained"] == {"lo": 8, "hi": 8}


def test_a_lost_line_of_a_filtered_group_is_betrayed_by_the_pass_rates():
    text = "samples_generator.py:174] Filtered out: avg_reward=0.00, threshold=(0.00, 1.00), scores=['0.00', '0.00']"
    lines = story(**{"dynamic_filtering_pass_rate": 100.0})
    lines[1:1] = [say("GenerateSamplesActor", text)] * 3
    data = judge(write(lines))
    assert data["trajectories"]["dropped"]["filtered"] == {"lo": 6, "hi": None}
    assert "groups-not-logged" in {item["code"] for item in data["diagnostics"]["items"]}


def test_without_a_console_pass_rates_tell_how_many_were_filtered():
    """100 * 2 samples / 2 prompts = 100 %: one group of two was kept and one discarded; 200 % keeps all."""
    rows = scalars(range(1, 5), dynamic_filtering_pass_rate=200.0)
    rows = [(tag, step, 100.0 if "pass_rate" in tag and step == 3 else value, wall) for tag, step, value, wall in rows]
    write(["train:\n  value:\n    num_episodes: 1"], name="wandb/run-1/files/config.yaml")
    event_file(Path("run/events.out.tfevents.1.node0.1.0"), rows)
    assert judge(Path("run"))["trajectories"]["dropped"]["filtered"] == {"lo": 2, "hi": 2}


def test_values_that_are_no_literals_progress_bars_before_a_line_and_a_text_that_lies():
    lines = story()
    lines[3] = step_line(
        1, str(metrics(1)).replace("0.01,", "nan,").replace("'policy", "'vllm_kl': None, 'kl': inf, 'policy")
    )
    lines[5] = "(GenerateSamplesActor pid=8) \rGenerate samples:  33%|███▎      | 1/3\r" + lines[5]
    lie = "ppo_trainer.py:224] Sample: ['INFO 11-29 16:00:00 x.py:1] Global step 99: {}', 0.5]"
    lines.insert(6, say("TrainingActor", lie))
    lines[7] += " [repeated 2x across cluster]"
    lines[9] = lines[9].replace("pid=7)", "pid=7, ip=10.0.0.2)")
    data = judge(write(lines))
    assert ages(data) == [(0, 0), (1, 1), (1, 1), (1, 1)]
    assert not codes(data)


def test_the_first_step_includes_the_start():
    """Ten minutes of loading before the first call are no step of the clock: ages are those of the story."""
    lines = story()
    first = next(index for index, line in enumerate(lines) if "Global step 1" in line)
    lines[first] = step_line(1, **{"timing/step_total": 602.3})
    assert ages(judge(write(lines))) == [(0, 0), (1, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize(
    "flags",
    [
        "--async_train --async_queue_size 2 --rollout_batch_size 1 --n_samples_per_prompt 2",
        "--train.async_enable --train.async_queue_size 2 --rollout.batch_size 1 --rollout.n_samples_per_prompt 2",
    ],
)
def test_flags_had_other_names(flags):
    """Underscores up to 0.9.9, dots since: without the console's own line the queue size is the flag's."""
    lines = [line for line in story() if "queue_size" not in line]
    data = judge(write([f"python -m openrlhf.cli.train_ppo_ray {flags}", *lines]), 0)
    assert data["bound"]["configured"] == 2
    assert data["guarantee"]["limit"] == 2
    # In the default mode, on record by the absence of its flag, a call has one version: batch 1 begins at the first
    # take, and so does, with a second permit, batch 2 - as soon as call 1 has ended, before version 1.
    assert data["violations"]["groups"]["hi"] == 3


def test_another_training_process_is_another_launch_though_the_lines_of_its_start_are_lost():
    """After step 4 the process 9 goes on from the checkpoint of step 4: its first batch is generated on version 4."""
    lines = [*story(4), *(line.replace("pid=7", "pid=9") for line in story(8)[13:])]
    data = judge(write(lines))
    assert (data["run"]["attempts"], data["run"]["steps"]) == (2, {"lo": 8, "hi": 8})
    assert [age[0] for age in ages(data)] == [0, 1, 1, 1, 0, 1, 1, 1]


def test_a_run_that_does_steps_while_another_does_them_is_set_aside():
    """Steps 1 to 200 of either take 1.3 s each; the second begins a hundred seconds after the first."""
    late = [(tag, step, value, wall + 100) for tag, step, value, wall in scalars(range(1, 201), policy_loss=7.0)]
    event_file(Path("run/tb/one/events.out.tfevents.1.node0.1.0"), scalars(range(1, 201)))
    event_file(Path("run/tb/other/events.out.tfevents.2.node0.1.0"), late)
    data = judge(Path("run"))
    assert [item["source"] for item in data["diagnostics"]["items"] if item["code"] == "several-runs"] == [
        "tb/other/events.out.tfevents.2.node0.1.0"
    ]
    assert (data["run"]["attempts"], data["run"]["steps"]) == (1, {"lo": 200, "hi": None})


def test_a_restart_supersedes_the_steps_after_its_checkpoint():
    again = [
        QUEUE,
        BAR,
        take(),
        step_line(3, **{"policy_loss": 0.9}),
        BAR,
        take(),
        step_line(4, **{"policy_loss": 0.8}),
    ]
    data = judge(write([*story(4), take(), *again]))
    assert data["run"]["attempts"] == 2
    assert data["run"]["steps"] == {"lo": 4, "hi": 4}
    assert data["trajectories"]["trained"] == {"lo": 8, "hi": 8}
    # Engines start on version 2, so that nothing of the first batch is older.
    assert [(row["attempt"], row["step"], row["max"]["hi"]) for row in data["per_step"]] == [
        (0, 1, 0),
        (0, 2, 1),
        (1, 3, 0),
        (1, 4, 1),
    ]


def test_restarts_in_files_of_their_own_across_new_year():
    old = [line.replace("12-31 23:59", "12-31 23:50") for line in story(4)]
    new = [QUEUE, take(), step_line(4, **{"policy_loss": 0.9}), take(), step_line(5, **{"policy_loss": 0.8})]
    write([line.replace("12-31 23:59", "01-01 00:10") for line in new], name="a.log")
    data = judge(write(old, name="b.log"))
    assert [(row["attempt"], row["step"]) for row in data["per_step"]] == [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5)]


def test_a_second_event_file_repeats_steps():
    event_file(Path("run/tb/events.out.tfevents.1.n.1.0"), scalars(range(1, 5)))
    later = [(tag, step, value + 0.001, wall + 500) for tag, step, value, wall in scalars(range(3, 6))]
    event_file(Path("run/tb/events.out.tfevents.2.n.1.0"), later)
    data = judge(Path("run"))
    assert (data["run"]["attempts"], data["run"]["steps"]) == (2, {"lo": 5, "hi": 5})


def test_a_logging_interval_leaves_holes_that_are_steps_all_the_same():
    event_file(Path("run/events.out.tfevents.1.n.1.0"), [row for row in scalars(range(1, 7)) if row[1] % 2 == 0])
    data = judge(Path("run"))
    # Steps 2, 4 and 6 were logged; a step 7 would not have been.
    assert data["run"]["steps"] == {"lo": 6, "hi": 7}
    assert data["trajectories"]["trained"] == {"lo": 9, "hi": None}
    assert data["verdict"] == "inconclusive"
    assert "steps-not-logged" in codes(data)


def test_a_single_record_may_be_the_only_one_that_was_due():
    """Every third step is logged, or the run resumed after step 2: how many steps there were nobody knows."""
    event_file(Path("run/events.out.tfevents.1.n.1.0"), [row for row in scalars(range(1, 5)) if row[1] == 3])
    data = judge(Path("run"))
    assert data["run"]["steps"] == {"lo": 1, "hi": None}
    assert data["staleness"]["max"]["hi"] is None
    assert "steps-missing" in codes(data)


def test_a_call_that_filtering_left_empty_lets_the_next_one_begin_later():
    """Queue size 1: the broadcast of step 1 waits from 1.1 to 2.0 for batch 2's call, which began at take 0.0.

    Unless that call was an earlier one, of which filtering kept nothing: then batch 2's began on version 1, at 1.5.
    """
    write(["python3 -m openrlhf.cli.train_ppo_ray --train.async_enable"], name="launch.sh")
    lines = story(2, **{"timing/broadcast": 0.9, "timing/step_total": 2.0, "dynamic_filtering_pass_rate": 200.0})
    assert ages(judge(write(lines))) == [(0, 0), (1, 1)]
    lines.insert(4, BAR)
    assert ages(judge(write(lines))) == [(0, 0), (0, 1)]


def test_bars_of_more_prompts_than_a_batch_hold_over_sampling():
    """Six calls in a row look like one per batch, but each was for three prompts: filtering took the others."""
    lines = [line.replace("0/1", "0/3").replace("1/1", "3/3") for line in story(6, dynamic_filtering_pass_rate=50.0)]
    assert judge(write(lines))["guarantee"]["limit"] != 1


def test_a_launch_that_ended_before_its_first_step_has_calls_and_no_batch():
    data = judge(write([*story(3), QUEUE.replace("23:59:50", "23:59:59"), BAR]))
    assert data["run"]["attempts"] == 2
    assert data["run"]["steps"] == {"lo": 0, "hi": 3}  # it may have begun anew


def test_a_batch_taken_but_not_logged_is_pending():
    data = judge(write([*story(3), take(2)]))
    assert data["run"]["steps"] == {"lo": 3, "hi": 3}
    assert data["trajectories"]["trained"] == {"lo": 6, "hi": 6}
    assert data["verdict"] == "pass"


# ------------------------------------------------------------------------------------------------- older releases


def old(steps: int = 4, **changes: Any) -> list[str]:
    lines = [QUEUE]
    for step in range(1, steps + 1):
        values = {
            key: value for key, value in metrics(step, **changes).items() if not key.startswith(("timing", "rollout"))
        }
        lines += [take(), say("TrainingActor", f"ppo_trainer_async.py:200] ✨ Global step {step}: {values}")]
    return lines


def test_releases_without_timings_are_bounded_by_the_queue():
    data = judge(write(old()))
    assert data["verdict"] == "pass"
    assert ages(data) == [(0, 0), (0, 1), (0, 1), (0, 1)]
    assert data["run"]["dialect"] == "without timings (up to 0.9.8)"
    assert data["tokens"]["trained"] == {"lo": 8, "hi": None}


def test_old_filtering_collects_a_batch_over_several_calls():
    lines = old(6)
    lines.insert(
        1, say("GenerateSamplesActor", "x.py:1] filtered_samples 12.0 < rollout_batch_size 16, continue sampling")
    )
    data = judge(write(lines))
    assert data["guarantee"]["limit"] == 3
    assert data["run"]["dialect"] == "without permits (up to 0.9.0)"
    assert ages(data)[-1] == (0, 3)
    assert data["verdict"] == "inconclusive"


def test_the_queue_size_was_an_environment_variable():
    lines = [line for line in old() if "queue_size" not in line]
    run = write(["export OPENRLHF_ASYNC_QUEUE_SIZE=2", *lines])
    assert ages(judge(run)) == [(0, 0), (0, 1), (0, 2), (0, 2)]


def test_the_synchronous_trainer_takes_turns():
    def line(step: int) -> str:
        values = metrics(step, **{"timing/step_total": 1.3 + (1.0 if step == 1 else 0.5)})
        return say("PPOTrainer", f"ppo_trainer.py:200] ✨ Global step {step}: {values}")

    data = judge(write(["python -m openrlhf.cli.train_ppo_ray", *(line(step) for step in range(1, 4))]), 0)
    assert data["verdict"] == "pass"
    assert data["guarantee"]["limit"] == 0


# ------------------------------------------------------------------------------------------------- damage


def test_a_cut_last_line_did_not_happen():
    lines = story(3)
    lines[-1] = lines[-1][:-60]
    data = judge(write(lines, end=""))
    assert data["run"]["steps"] == {"lo": 2, "hi": 2}
    assert (data["verdict"], codes(data)) == ("pass", {"cut-line"})


def test_unreadable_metrics_leave_the_step():
    lines = story()
    lines[6] = lines[6][:-60]
    data = judge(write(lines))
    assert data["run"]["steps"] == {"lo": 4, "hi": 4}
    assert data["trajectories"]["trained"] == {"lo": 8, "hi": 8}
    assert ages(data)[1] == (0, 1)
    assert "metrics-unreadable" in codes(data)


def test_a_lost_step_is_proven_by_what_follows():
    lines = [line for line in story() if "Global step 2" not in line]
    data = judge(write(lines))
    assert data["run"]["steps"] == {"lo": 4, "hi": 4}
    assert data["trajectories"]["trained"] == {"lo": 8, "hi": 8}
    assert data["verdict"] == "pass"


def test_the_loss_of_the_beginning_forbids_a_pass():
    data = judge(write(story(6)[10:]))
    assert data["verdict"] == "inconclusive"
    assert "steps-missing" in codes(data)


def test_lost_metrics_and_wrong_types_are_unknown():
    data = judge(write(story(**{"timing/step_total": "soon", "rollout/response_length_mean": None})))
    assert data["tokens"]["trained"] == {"lo": 8, "hi": None}
    assert data["staleness"]["max"]["hi"] == 1


def test_damaged_event_files_matter_only_without_a_console():
    rows = scalars(range(1, 5))
    event_file(Path("run/events.out.tfevents.1.n.1.0"), rows)
    path = Path("run/events.out.tfevents.1.n.1.0")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    alone = judge(Path("run"))
    assert "events-damaged" in codes(alone)
    assert alone["trajectories"]["trained"]["hi"] is None
    assert judge(write(story()))["verdict"] == "pass"


def test_a_broken_archive_and_empty_files():
    run = write(story(600))
    packed = gzip.compress((run / "console.log").read_bytes())
    (run / "console.log").unlink()
    (run / "console.log.gz").write_bytes(packed[: len(packed) * 2 // 3])
    (run / "empty.log").write_bytes(b"")
    (run / "events.out.tfevents.9.n.1.0").write_bytes(b"")
    data = judge(run)
    assert data["verdict"] == "inconclusive"
    assert "console-damaged" in codes(data)


def test_a_log_without_steps_says_so():
    data = judge(write([QUEUE, BAR]))
    assert (data["verdict"], "no-steps" in codes(data)) == ("inconclusive", True)


def test_settings_that_disagree_are_unknown():
    run = write(story())
    for name, size in (("a.sh", 1), ("b.sh", 2)):
        write([f"python -m openrlhf.cli.train_ppo_ray --rollout_batch_size {size}"], name=name)
    assert "settings-disagree" in codes(judge(run))
    shutil.rmtree(run)

"""NeMo-RL's async_grpo: 2 groups a step, 2 trajectories a group, versions from what the replay buffer prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from nemo_rl_run import (
    AG_CONFIG,
    AG_START,
    DRAIN,
    IN_FLIGHT,
    Buffer,
    Run,
    ag_step,
    dump,
    events,
    torch_file,
)

ROWS = [(3, False), (3, False), (2, False), (2, False)]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def log(
    buffer: Buffer, steps: int, mode: str = DRAIN, exp: str = "exp_001", first: int = 1, ages: Sequence[float] = ()
) -> str:
    """Driver's and buffer's lines: the buffer's come late, as Ray forwards them."""
    head = AG_CONFIG + f"📊 Using log directory: logs/{exp}\n" + AG_START.format(age=buffer.age)
    means = dict(enumerate(ages, first))
    driver = "".join(ag_step(step, means.get(step, 0.0)) for step in range(first, first + steps))
    updated = f"(AsyncTrajectoryCollector pid=12) 🔄 Updated weight version to {first - 1}\n"
    return head + updated + mode + driver + "".join(buffer.lines)


def mixed() -> Buffer:
    """Step 1 takes two groups of v0; step 2 one of v1 and, before it in the buffer, one of v0."""
    buffer = Buffer()
    buffer.insert(0, 0).insert(0, 1).insert(0, 0).take(0)
    return buffer.insert(1, 1).take(1)


class TestJoin:
    def test_rows_get_the_versions_of_their_groups(self, run: Run) -> None:
        # Step 2 trains v0 (rows 0, 1: 3 tokens each) and v1 (rows 2, 3: 2 tokens each) at v_train 1.
        run["ray-driver.log"] = log(mixed(), 2, ages=(0.0, 0.5))
        for step in (1, 2):
            run[f"logs/exp_001/train_data_step{step}.jsonl"] = dump(ROWS)
        audited = run()
        assert audited["verdict"] == "pass"
        assert audited["bound"]["value"] == 1
        assert audited.histogram("token") == {0: (14, 14), 1: (6, 6)}
        assert audited.histogram("trajectory") == {0: (6, 6), 1: (2, 2)}
        assert audited["coverage"]["trajectories_identified"] == 1.0

    def test_a_restored_buffer_is_known_from_its_first_listing(self, run: Run) -> None:
        buffer = Buffer(restored=[(0, 1)])
        run["ray-driver.log"] = log(buffer.insert(1, 1).take(1), 1, first=2)
        run["logs/exp_001/train_data_step2.jsonl"] = dump(ROWS)
        audited = run()
        assert [audited.histogram("token")[age][0] for age in (0, 1)] == [4, 6]  # more are in the missing first launch
        assert "earlier-launch-missing" in audited.codes

    def test_counts_that_the_buffer_does_not_explain_leave_the_order_open(self, run: Run) -> None:
        # The state line before step 2 and the buffer's listing are lost: one group is of v0, but which is not known.
        buffer = mixed()
        gone = ("state: 2 groups, versions=[0, 1]", "trajectory_versions=[0, 1]")
        lost = [line for line in buffer.lines if not any(text in line for text in gone)]
        run["ray-driver.log"] = log(buffer, 2).replace("".join(buffer.lines), "".join(lost))
        for step in (1, 2):
            run[f"logs/exp_001/train_data_step{step}.jsonl"] = dump(ROWS)
        audited = run()
        assert audited.histogram("token")[1] == (0, 10)
        assert audited["verdict"] == "pass"

    def test_masked_rows_have_no_staleness_and_empty_answers_no_token(self, run: Run) -> None:
        run["ray-driver.log"] = log(Buffer().insert(0, 0).insert(0, 0).take(0), 1)
        run["logs/exp_001/train_data_step1.jsonl"] = dump([(3, True), (3, False), (0, False), (2, False)])
        audited = run()
        assert audited.count("trajectories", "trained") == (4, 4)
        assert audited.count("tokens", "trained") == (5, 5)
        assert audited.count("tokens", "masked") == (3, 3)
        assert audited.histogram("trajectory") == {0: (2, 2)}

    def test_padding_is_no_token(self, run: Run) -> None:
        run["ray-driver.log"] = log(Buffer().insert(0, 0).insert(0, 0).take(0), 1)
        padded = dump(ROWS).replace("0, 0, 0, 0]]", "1, 1, 1, 1]]")
        run["logs/exp_001/train_data_step1.jsonl"] = padded
        assert run().count("tokens", "trained") == (10, 10)

    def test_a_lost_row_is_betrayed_by_the_count_of_groups(self, run: Run) -> None:
        run["ray-driver.log"] = log(Buffer().insert(0, 0).insert(0, 0).take(0), 1)
        run["logs/exp_001/train_data_step1.jsonl"] = dump(ROWS[:3])
        audited = run()
        assert audited.count("trajectories", "trained") == (4, 4)
        assert audited.count("tokens", "trained")[1] is None

    def test_a_cut_last_row_did_not_happen(self, run: Run) -> None:
        """Pitfall 19: the file of a step that died; the console counts the groups of one that did not."""
        run["ray-driver.log"] = log(Buffer().insert(0, 0).insert(0, 0).take(0), 1)
        run["logs/exp_001/train_data_step1.jsonl"] = dump(ROWS)[:-30]
        audited = run()
        assert audited.count("trajectories", "trained") == (4, 4)
        assert audited.count("tokens", "trained") == (8, None)

    def test_a_count_names_no_order(self, run: Run) -> None:
        """Pitfall 16: the counter begins with the most frequent version, the batch with the oldest group."""
        buffer = Buffer().insert(0, 0).insert(0, 1).insert(0, 0).take(0).insert(1, 1).take(1)
        text = log(buffer, 2).replace("Counter({0: 1, 1: 1})", "Counter({1: 1, 0: 1})")
        assert "Counter({1: 1, 0: 1})" in text
        run["ray-driver.log"] = text
        for step in (1, 2):
            run[f"logs/exp_001/train_data_step{step}.jsonl"] = dump(ROWS)
        assert run().histogram("token") == {0: (14, 14), 1: (6, 6)}

    def test_a_damaged_row_forbids_pass(self, run: Run) -> None:
        run["ray-driver.log"] = log(Buffer().insert(0, 0).insert(0, 0).take(0), 1)
        run["logs/exp_001/train_data_step1.jsonl"] = (
            dump(ROWS[:2]) + "{broken}\n" + dump(ROWS)[-300:].split("\n")[-2] + "\n"
        )
        audited = run()
        assert "damaged-row" in audited.codes
        assert audited["verdict"] == "inconclusive"


class TestInFlight:
    def test_later_tokens_may_be_newer_but_not_newer_than_the_next_look(self, run: Run) -> None:
        # Bound 2, updates in flight. The group of v0 for step 3 is in the buffer when v1 looks at it: its later tokens
        # are of v0 or v1. At v_train 2 its first token has 2, the others 1 or 2.
        buffer = Buffer(age=2)
        buffer.insert(0, 0).insert(0, 0).take(0).insert(1, 1).insert(1, 1).insert(0, 2).take(1).insert(0, 2).take(2)
        run["ray-driver.log"] = log(buffer, 3, mode=IN_FLIGHT, ages=(0.0, 0.0, 2.0))
        for step in (1, 2, 3):
            run[f"logs/exp_001/train_data_step{step}.jsonl"] = dump(ROWS)
        audited = run(bound=2)
        assert audited.largest == (2, 2)
        # Step 3: rows 0 and 1 hold 1 token of staleness 2 and 2 of 1 or 2; rows 2 and 3 one of 2 and one of 0 to 2.
        assert audited.histogram("token")[2] == (4, 10)
        assert audited.histogram("token")[0] == (20, 22)
        assert audited["verdict"] == "pass"

    def test_unknown_mode_is_taken_as_in_flight(self, run: Run) -> None:
        run["ray-driver.log"] = log(
            Buffer().insert(0, 0).insert(0, 0).take(0).insert(0, 1).insert(0, 1).take(1), 2, mode=""
        )
        for step in (1, 2):
            run[f"logs/exp_001/train_data_step{step}.jsonl"] = dump(ROWS)
        audited = run()
        assert audited.histogram("token")[1] == (4, 10)
        assert any("in_flight_weight_updates" in hint["remedy"] for hint in audited["hints"])


class TestWithoutDumps:
    def test_classes_per_version(self, run: Run) -> None:
        points = [
            (f"train/{tag}", k, v, k)
            for k in (1, 2)
            for tag, v in (("loss", 0.5), ("global_valid_toks", 20.0), ("global_valid_seqs", 4.0))
        ]
        run["ray-driver.log"] = log(mixed(), 2)
        run["logs/exp_001/tensorboard/events.out.tfevents.1.n.1.0"] = events(points)
        audited = run(bound=0)
        assert audited.count("trajectories", "trained") == (8, 8)
        assert audited.count("tokens", "trained") == (40, 40)
        assert audited.count("violations", "trajectories") == (2, 2)
        assert audited.count("violations", "groups") == (1, 1)
        assert audited.count("violations", "tokens") == (2, 18)

    def test_a_failed_generation_may_have_left_no_token(self, run: Run) -> None:
        # As above, but a sample failed, is trained all the same, and may be any of the older group.
        points = [
            (f"train/{tag}", k, v, k)
            for k in (1, 2)
            for tag, v in (("loss", 0.5), ("global_valid_toks", 20.0), ("global_valid_seqs", 4.0))
        ]
        run["ray-driver.log"] = log(mixed(), 2) + "Error generating response for sample 3: timed out\n"
        run["logs/exp_001/tensorboard/events.out.tfevents.1.n.1.0"] = events(points)
        audited = run(bound=0)
        assert audited.count("trajectories", "trained") == (8, 8)
        assert audited.count("tokens", "trained") == (40, 40)
        assert audited.count("violations", "trajectories") == (0, 2)
        assert audited.count("violations", "tokens") == (0, 20)

    def test_the_mean_age_bounds_the_largest(self, run: Run) -> None:
        # No console. Mean age 0.5 over 2 groups: ages 0 and 1.
        points = [("train/loss", 1, 0.1, 1.0), ("train/loss", 2, 0.1, 2.0), ("train/loss", 3, 0.1, 3.0)]
        points += [("train/avg_trajectory_age", k, age, float(k)) for k, age in ((1, 0.0), (2, 0.0), (3, 0.5))]
        points += [("train/global_valid_seqs", k, 4.0, float(k)) for k in (1, 2, 3)]
        run["logs/exp_001/tensorboard/events.out.tfevents.1.n.1.0"] = events(points)
        run["results/step_1/config.yaml"] = (
            "grpo: {num_prompts_per_step: 2, num_generations_per_prompt: 2,"
            " async_grpo: {enabled: true, max_trajectory_age_steps: 1}}\n"
        )
        audited = run()
        assert audited.per_step("max") == {(0, 1): (0, 0), (0, 2): (0, 0), (0, 3): (1, 1)}
        assert audited["verdict"] == "pass"

    def test_a_saved_buffer_tells_the_versions_of_the_next_step(self, run: Run) -> None:
        saved = {"trajectories": [], "trajectory_versions": [0, 0], "target_weight_versions": [1, 1], "max_size": 4}
        run["results/step_1/replay_buffer.pt"] = torch_file(saved)
        run["results/step_1/config.yaml"] = (
            "grpo: {num_prompts_per_step: 2, num_generations_per_prompt: 2,"
            " async_grpo: {enabled: true, max_trajectory_age_steps: 1, in_flight_weight_updates: false}}\n"
        )
        for step in (1, 2):
            run[f"logs/exp_001/train_data_step{step}.jsonl"] = dump(ROWS)
        assert run().histogram("token") == {0: (10, 10), 1: (10, 10)}


class TestFates:
    def test_evicted_groups_are_dropped(self, run: Run) -> None:
        buffer = Buffer().insert(0, 1).insert(2, 2).insert(2, 2).evict(2).take(2)
        run["ray-driver.log"] = log(buffer, 1, first=3)
        audited = run()
        assert audited.count("trajectories", "dropped", "stale")[0] == 2
        assert audited.per_step("max") == {(0, 3): (0, None)}  # steps 1 and 2 are not in the logs

    def test_headers_repeat_while_waiting_and_a_selection_without_results_is_unconfirmed(self, run: Run) -> None:
        buffer = mixed()
        waiting = "========================= Step 1/9 =========================\n" * 5
        text = log(buffer, 1).replace("📊 Training", waiting + "📊 Training")
        run["ray-driver.log"] = text
        audited = run()
        assert audited.count("run", "steps") == (1, 2)
        run["ray-driver.log"] = text + "Traceback (most recent call last):\n"
        assert run().count("run", "steps") == (1, 1)

    def test_a_failed_worker_loses_its_batch(self, run: Run) -> None:
        head = "(AsyncTrajectoryCollector pid=12) "
        lines = (
            f"{head}📊 Started one native batch worker for 2 prompt groups at target_weight=0\n"
            f"{head}[AsyncTrajectoryCollector] native batch worker FAILED (failure 1, tolerating 1) "
            "generation_weight=0 target_weight=0\n"
        )
        run["ray-driver.log"] = log(Buffer().insert(0, 0).insert(0, 0).take(0), 1) + lines
        assert run().count("trajectories", "lost", "error") == (4, 4)


class TestRestarts:
    def test_a_crashed_step_is_trained_again(self, run: Run) -> None:
        run["9-logs/ray-driver.log"] = log(mixed(), 1)
        again = Buffer().insert(1, 1).insert(1, 1).take(1)
        run["9-1-logs/ray-driver.log"] = log(again, 1, exp="exp_002", first=2)
        run["logs/exp_001/train_data_step1.jsonl"] = dump(ROWS)
        run["logs/exp_002/train_data_step2.jsonl"] = dump(ROWS)
        audited = run()
        assert audited.count("run", "steps") == (2, 2)
        assert audited.histogram("token") == {0: (20, 20)}
        assert audited["verdict"] == "pass"

    def test_a_restored_buffer_may_hold_groups_of_rolled_back_steps(self, run: Run) -> None:
        run["9-logs/ray-driver.log"] = log(mixed(), 2)
        again = Buffer(restored=[(0, 1), (1, 1)])
        again.say("ReplayBuffer restored: 2 trajectories, last_target_weight_already_generated=0")
        run["9-1-logs/ray-driver.log"] = log(again.take(1), 1, exp="exp_002", first=2)
        for exp, step in ((1, 1), (1, 2), (2, 2)):
            run[f"logs/exp_00{exp}/train_data_step{step}.jsonl"] = dump(ROWS)
        audited = run()
        assert audited.histogram("token") == {0: (14, 14), 1: (6, 6)}
        assert audited.count("trajectories", "lost", "rolled_back") == (0, 4)

    def test_synchronous_dumps_are_not_taken(self, run: Run) -> None:
        run["ray-driver.log"] = log(Buffer().insert(0, 0).insert(0, 0).take(0), 1)
        run["logs/exp_001/train_data_step1.jsonl"] = dump(ROWS)
        run["logs/exp_002/train_data_step1.jsonl"] = dump(ROWS)
        run["logs/exp_002/tensorboard/events.out.tfevents.1.n.1.0"] = events([("train/loss", 1, 0.5, 1.0)])
        audited = run()
        assert "not-asynchronous" in audited.codes
        assert audited.count("trajectories", "trained") == (4, 4)
        assert audited["verdict"] == "pass"


def test_older_releases_raise_instead_of_evicting(run: Run) -> None:
    buffer = Buffer().insert(0, 0).insert(0, 0).take(0)
    old = log(buffer, 1).replace("ReplayBuffer.add: Adding trajectory", "ReplayBuffer.push_with_wait_signal")
    run["ray-driver.log"] = old + "ValueError: Found 2 trajectories older than min_valid_version 3\n"
    audited = run()
    assert audited["run"]["dialect"] == "async_grpo (up to v0.6)"
    assert audited.count("run", "steps") == (1, 1)
    assert audited["run"]["health"]["state"] == "crashed"


def test_a_buffer_that_waits_for_a_target_that_nobody_makes(run: Run) -> None:
    """Pitfall 23: a hole in a past target stalls the run for good."""
    buffer = Buffer().insert(0, 0).insert(0, 0).take(0).insert(1, 1)
    buffer.look(1).say("   ⏸️ STALLING: Need 2 trajectories for step 1, but only 1 are ready")
    run["ray-driver.log"] = log(buffer, 1)
    audited = run()
    assert audited["run"]["dialect"] == "async_grpo"
    told = [item for item in audited["diagnostics"]["items"] if item["code"] == "ends-waiting"]
    assert "STALLING: Need 2 trajectories for step 1" in told[0]["message"]
    assert audited.count("run", "steps") == (1, 1)


def test_a_critic_that_warms_up_is_told(run: Run) -> None:
    run["ray-driver.log"] = log(Buffer().insert(0, 0).insert(0, 0).take(0), 1)
    run["results/step_1/config.yaml"] = "ppo: {policy_training_start_step: 3}\n"
    assert "critic-warm-up" in run().codes

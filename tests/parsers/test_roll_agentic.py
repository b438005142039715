"""ROLL's agentic pipeline: pickles, dumps and traces; slots, turns and what validation overwrites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from roll_run import Run, Span, agents, batch_pickle, export, log, span, step

PRINTED = """====== Pipeline Config ======
------ merged & post-init ------
async_generation_ratio: {ratio}
rollout_batch_size: 2
batch_adjust_mode: {adjust}
partial_gpu_mode: {emptied}
actor_train:
  name: actor_train
  model_update_frequency: {frequency}
actor_infer:
  model_update_frequency: 1
rewards: null
train_env_manager:
  model_update_frequency: 1
  num_env_groups: 1
  group_size: 2
  group_size_redundancy: 0
  max_traj_per_env: 1
====== End Config ======
"""
SEED = 77
TRACES = "otlp/traces/traces.jsonl"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def printed(frequency: int = 1, ratio: int = 1, adjust: str = "copy", *, emptied: bool = False) -> str:
    text = PRINTED.format(frequency=frequency, ratio=ratio, adjust=adjust, emptied=str(emptied).lower())
    return log("max_env_num_per_worker: 4", 0) + text


def native(first: int, last: int, episode: int, env: int, stamp: int = 0) -> str:
    return f"My_Toy_{first}_{last}_0_{env}_{episode}_{SEED}_20261129_161001_{stamp:06d}"


def group(episode: int) -> str:
    return f"My_Toy_0_{episode}_{SEED}"


def columns(rows: list[tuple[int, int, int | None, str | None]]) -> dict[str, list[Any]]:
    """Rows (episode, env, turn, trajectory_id or None)."""
    named = [f'{{"trajectory_id": "{name}"}}' if name else None for _, _, _, name in rows]
    found: dict[str, list[Any]] = {
        "traj_id": [f"{group(episode)}_{env}" for episode, env, _, _ in rows],
        "traj_group_id": [group(episode) for episode, _, _, _ in rows],
        "trajectory_data": named,
    }
    if rows[0][2] is not None:
        found["step"] = [turn for _, _, turn, _ in rows]
    return found


def driver(steps: int) -> list[Span]:
    return [part for number in range(steps) for part in step(number, wait="rollout", without=("stop_server",))]


def plain(key: str, episode: int, env: int, claimed: int, *tries: float, end: float) -> list[Span]:
    """A trajectory of a plain manager: its tries end at the given times."""
    about = {"traj_id": f"{group(episode)}_{env}", "traj_group_id": group(episode), "env_id": str(env)}
    start = min(tries) - 0.5
    found = [span("trajectory", key, f"rollout{claimed}", start, end, episode_id=episode, group_id="0", **about)]
    return found + [span("generate", f"{key}.{at}", key, time - 0.4, time) for at, time in enumerate(tries)]


def test_names_and_slots_bound_the_versions(run: Run) -> None:
    """R = 1, T = 1: episodes 0 and 1 have create step 0, episode 2 has 1. A name's first step can be one too new."""
    run["console.log"] = printed()
    run[TRACES] = export("driver", driver(3))
    for number, names in enumerate(
        (
            (native(0, 0, 0, 0), native(0, 0, 0, 1)),
            (native(0, 0, 1, 0), native(0, 1, 1, 1)),
            # Created at step 1, so nothing is older than v1 although the name's first step could be one too new.
            (native(1, 1, 2, 0), native(2, 2, 2, 1)),
        )
    ):
        rows = [(number, env, 0, name) for env, name in enumerate(names)]
        run[f"mock/train/step_{number:06d}.pkl"] = batch_pickle([[0, 1, 1], [0, 0, 1]], columns(rows))
    audited = run()
    assert (audited["verdict"], audited.trained) == ("pass", (6, 6))
    # Step 0: both 0. Step 1: v0 (lag 1), v0..v1. Step 2: v1 (lag 1), v1..v2.
    assert audited.histogram() == {0: (2, 4), 1: (2, 4)}
    assert audited["tokens"]["trained"] == {"lo": 9, "hi": 9}
    assert audited.fates("dropped") == {"unknown": (0, None)}


def test_thousands_of_digits_are_no_step_of_a_name(run: Run) -> None:
    """v0 or v1 made episode 1, whatever its name says; of the two that step 0 trained no rows are left."""
    run["console.log"] = printed()
    run[TRACES] = export("driver", driver(2))
    name = native(0, 1, 1, 0).replace("Toy_0_1", f"Toy_{'9' * 5000}_1")
    run["mock/train/step_000001.pkl"] = batch_pickle([[0, 1, 1]], columns([(1, 0, 0, name)]))
    assert run().histogram()[0] == (0, 3)


def test_only_the_trainers_frequency_counts(run: Run) -> None:
    """F = 2 of actor_train, 1 of the others: what began at step 1 has v0, two versions old at step 2."""
    run["console.log"] = printed(frequency=2)
    run[TRACES] = export("driver", driver(3))
    for number, name in enumerate((native(0, 0, 0, 0), native(0, 0, 1, 0), native(1, 1, 2, 0))):
        run[f"mock/train/step_{number:06d}.pkl"] = batch_pickle([[1]], columns([(number, 0, 0, name)]))
    audited = run()
    assert audited["verdict"] == "fail"
    assert audited.histogram() == {0: (1, 1), 1: (1, 1), 2: (1, 1)}


def test_rows_of_turns_are_one_trajectory_and_ids_can_repeat(run: Run) -> None:
    """Three rows of one trajectory, then a second one under the same traj_id, told by the restart of `step`."""
    run["console.log"] = printed()
    run[TRACES] = export("driver", driver(1))
    rows = [(0, 0, 0, None), (0, 0, 1, None), (0, 0, 2, native(0, 0, 0, 0, 1)), (0, 0, 0, native(0, 0, 0, 0, 2))]
    run["mock/train/step_000000.pkl"] = batch_pickle([[1, 1], [1, 0], [0, 1], [0, 1]], columns(rows))
    audited = run()
    assert audited.trained == (2, 2)
    assert audited["tokens"]["trained"] == {"lo": 5, "hi": 5}


def test_another_seed_is_another_launch(run: Run) -> None:
    """Step 2 is of another launch than steps 0, 1 and 3: it resumed there, so that step 3 was thrown away.

    Seeds alone do not say so: the launch of step 2 could be the earlier one, over whose steps the other wrote, until
    it was killed in step 1.
    """
    for number in range(4):
        names = columns([(number, env, None, None) for env in range(2)])
        if number == 2:
            names["traj_group_id"] = [name.replace(str(SEED), "78") for name in names["traj_group_id"]]
        run[f"mock/train/step_{number:06d}.pkl"] = batch_pickle([[1], [1]], names)
    audited = run(1)
    assert audited.steps == (1, 4)
    assert audited["run"]["attempts"] == 1


def test_placeholders_are_trained_empty(run: Run) -> None:
    run["console.log"] = printed()
    run[TRACES] = export("driver", driver(1))
    rows = [(0, 0, 0, native(0, 0, 0, 0)), (0, 1, 0, None)]
    run["mock/train/step_000000.pkl"] = batch_pickle([[1, 1], [0, 0]], columns(rows))
    audited = run()
    assert audited.trained == (2, 2)
    assert audited.histogram() == {0: (1, 1)}


def test_validation_overwrites_dumps(run: Run) -> None:
    """The dump of step 1 holds validation rows: who was trained there is not known, but how many."""
    run["console.log"] = printed()
    run[TRACES] = export("driver", driver(2))
    run["dump/rollout_dump_data.step_0.jsonl"] = agents(0, [native(0, 0, 0, 0), native(0, 0, 0, 1)])
    run["dump/rollout_dump_data.step_1.jsonl"] = agents(1, [native(1, 1, 0, 0), native(1, 1, 0, 1)], mode="val")
    audited = run()
    assert (audited["verdict"], audited.trained) == ("pass", (4, 4))
    assert audited.largest == (0, 1)
    assert audited["coverage"]["trajectories_identified"] == 0.5
    # A pickle of that step still has them.
    rows = [(1, env, 0, native(0, 0, 1, env)) for env in range(2)]
    run["mock/train/step_000001.pkl"] = batch_pickle([[1], [1]], columns(rows))
    run["mock/val/step_000001.pkl"] = batch_pickle([[1], [1]], columns(rows))
    assert run().histogram() == {0: (2, 2), 1: (2, 2)}


def test_filtered_groups_shift_the_episodes(run: Run) -> None:
    """With a filtered group arithmetic fails; rule 12 still holds: nothing older than R steps was taken."""
    run["console.log"] = printed() + log('metrics_tag: {"step": 0, "metrics": {"scheduler/group_filter_count": 1}}')
    run[TRACES] = export("driver", driver(3))
    for number in range(3):
        rows = [(number + 3, env, None, None) for env in range(2)]
        run[f"mock/train/step_{number:06d}.pkl"] = batch_pickle([[1], [1]], columns(rows))
    audited = run()
    assert audited["verdict"] == "pass"
    assert audited.histogram() == {0: (2, 6), 1: (0, 4)}


def test_without_metrics_a_missing_episode_may_have_been_filtered(run: Run) -> None:
    """Episode 1 was filtered at step 0, so that episode 3 got a slot then; arithmetic would say step 1 (R = 2)."""
    run[TRACES] = export("driver", driver(3))
    for number, episode in enumerate((0, 2, 3)):
        rows = [(episode, env, None, None) for env in range(2)]
        run[f"mock/train/step_{number:06d}.pkl"] = batch_pickle([[1], [1]], columns(rows))
    run["console.log"] = printed(ratio=2)
    assert run().largest == (0, 2)
    run["console.log"] = printed(ratio=2) + log(
        'metrics_tag: {"step": 0, "metrics": {"scheduler/group_filter_count": 0}}'
    )
    assert run().largest == (0, 1)


def test_deleted_rows_may_not_have_been_trained(run: Run) -> None:
    run["console.log"] = printed(adjust="delete")
    run[TRACES] = export("driver", driver(1))
    rows = [(0, env, None, None) for env in range(2)]
    run["mock/train/step_000000.pkl"] = batch_pickle([[1], [1]], columns(rows))
    assert run().trained == (1, 2)
    run["console.log"] = ""
    without = run(1)
    assert without.trained == (1, 2), "batch_adjust_mode is not known"
    assert "critic-warmup-unknown" in without.codes
    text = 'metrics_tag: {"step": 0, "metrics": {"system/batch_remove_count": 0, "scheduler/group_filter_count": 0}}'
    run["console.log"] = printed(adjust="delete") + log(text)
    assert run().trained == (2, 2)


def test_of_a_batch_without_rows_deletion_leaves_one_at_least(run: Run) -> None:
    run["console.log"] = printed(adjust="delete")
    run[TRACES] = export("driver", driver(1))
    assert run().trained == (1, 2)


def test_a_batch_without_rows_is_no_older_than_the_ratio(run: Run) -> None:
    """Who was trained is not known, but a group whose slot is older than R = 1 steps is never handed out."""
    run["console.log"] = printed()
    run[TRACES] = export("driver", driver(3))
    audited = run()
    assert (audited["verdict"], audited.trained, audited.largest) == ("pass", (6, 6), (0, 1))
    run["dump/rollout_dump_data.step_2.jsonl"] = agents(2, [native(2, 2, 2, 0)])
    assert run().largest == (0, 1), "so is the placeholder that the dump of step 2 leaves out"


class TestPlainManager:
    """Spans of trajectories and turns, joined with the pickles."""

    def test_turns_and_aborted_tries(self, run: Run) -> None:
        """Env 1's second turn was tried at 10.5, aborted by the update of step 1 and made again at 13."""
        run["console.log"] = printed()
        spans = [
            *plain("a", 0, 0, 0, 3, 4, end=5),
            *plain("b", 0, 1, 0, 3, end=5.5),
            *plain("c", 1, 0, 0, 6, 7, end=8),
            *plain("d", 1, 1, 0, 6, 10.5, 13, end=14),
        ]
        run[TRACES] = export("driver", driver(2)) + export("train_env", spans)
        first = [(0, 0, None, None), (0, 1, None, None)]
        run["mock/train/step_000000.pkl"] = batch_pickle([[1, 0, 1], [1, 1, 1]], columns(first))
        second = [(1, 0, None, None), (1, 1, None, None)]
        run["mock/train/step_000001.pkl"] = batch_pickle([[1, 0, 1], [1, 0, 1]], columns(second))
        audited = run()
        assert audited["verdict"] == "pass"
        # Step 1: c is v0 twice, d has one token of v0 and one of v1.
        assert audited.histogram("token") == {0: (6, 6), 1: (3, 3)}
        assert audited.histogram() == {0: (2, 2), 1: (2, 2)}

    def test_engines_that_stop_for_the_training_abort_tries_at_any_time(self, run: Run) -> None:
        """d's first turn is of v0; its second was tried at 13 and again at 14, both v1, with no update in between."""
        spans = [*plain("c", 1, 0, 0, 6, 7, end=8), *plain("d", 1, 1, 0, 6, 13, 14, end=15)]
        run[TRACES] = export("driver", driver(2)) + export("train_env", spans)
        rows = [(1, 0, None, None), (1, 1, None, None)]
        run["mock/train/step_000001.pkl"] = batch_pickle([[1, 0, 1], [1, 0, 1]], columns(rows))
        run["console.log"] = printed(emptied=True)
        assert run().histogram()[1] == (1, 2)
        # The metrics of a step time the emptying of engines: without it there was none.
        told = '{"time/step_model_update": 1, "time/actor_train/model_update/total": 1}'
        run["console.log"] = printed(emptied=True) + log(f'metrics_tag: {{"step": 1, "metrics": {told}}}')
        assert run().histogram()[1] == (1, 1)

    def test_what_was_never_trained(self, run: Run) -> None:
        """Episode 0: env 0 and 1 make the group, a third is surplus. Episode 1's slot (step 0) expires at step 2.

        The run is killed in step 2, where episode 3 is left over.
        """
        run["console.log"] = printed() + log('metrics_tag: {"step": 1, "metrics": {"scheduler/group_filter_count": 0}}')
        spans = [
            *plain("a", 0, 0, 0, 3, end=4),
            *plain("b", 0, 1, 0, 3, end=4.5),
            *plain("c", 0, 2, 0, 3, end=5),
            *plain("d", 1, 0, 0, 6, end=7),
            *(part for env in range(2) for part in plain(f"f{env}", 2, env, 1, 13, end=14)),
            *plain("e", 3, 0, 2, 23, end=24),
        ]
        evaluation = plain("v", 0, 0, 0, 3, end=4)
        killed = step(2, wait="rollout", without=("stop_server", "pipeline_step", "train"))
        run[TRACES] = export("driver", driver(2) + killed) + export("train_env", spans) + export("val_env", evaluation)
        for number, episode in enumerate((0, 2)):
            rows = [(episode, env, None, None) for env in range(2)]
            run[f"mock/train/step_{number:06d}.pkl"] = batch_pickle([[1], [1]], columns(rows))
        audited = run()
        assert audited.fates("dropped") == {"surplus": (1, 1), "stale": (1, 1)}
        assert audited["trajectories"]["pending"]["lo"] == 1

    def test_a_third_of_a_group_of_two_that_waits_may_have_been_thrown_away(self, run: Run) -> None:
        """Episode 1 waits when the run ends. Whether it was out of its queue when c arrived, nothing tells (rule 9)."""
        run["console.log"] = printed() + log('metrics_tag: {"step": 0, "metrics": {"scheduler/group_filter_count": 0}}')
        waiting = [part for env, end in enumerate((7, 8, 8.5)) for part in plain(f"c{env}", 1, env, 0, 6, end=end)]
        trained = [part for env in range(2) for part in plain(f"a{env}", 0, env, 0, 3, end=4)]
        run[TRACES] = export("driver", driver(1)) + export("train_env", trained + waiting)
        rows = [(0, env, None, None) for env in range(2)]
        run["mock/train/step_000000.pkl"] = batch_pickle([[1], [1]], columns(rows))
        audited = run()
        assert audited.fates("dropped") == {"surplus": (0, 1)}
        assert audited["trajectories"]["pending"]["lo"] == 2

    def test_a_trained_trajectory_without_its_span_shows_that_others_are_lost(self, run: Run) -> None:
        """Env 1's spans were never exported: it may have made others that were dropped."""
        run["console.log"] = printed()
        run[TRACES] = export("driver", driver(1)) + export("train_env", plain("a", 0, 0, 0, 3, end=4))
        rows = [(0, env, None, None) for env in range(2)]
        run["mock/train/step_000000.pkl"] = batch_pickle([[1], [1]], columns(rows))
        audited = run()
        assert audited.trained == (2, 2)
        assert "trajectory-spans-lost" in audited.codes
        assert audited.fates("dropped") == {"unknown": (0, None)}


def test_groups_too_old_when_their_turn_came(run: Run) -> None:
    text = (
        "ignore rollout, current_step(4) - create_step(2) exceed async_generation_ratio(1) "
        "group.group_id=0 group.episode_id=7"
    )
    run["console.log"] = printed() + log(text)
    run[TRACES] = export("driver", driver(5))
    dropped = run().fates("dropped")
    assert dropped["stale"][0] == 2

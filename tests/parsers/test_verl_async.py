"""verl's fully-async policy and one step off, by hand.

Fully async: one group of two rows a micro-step, two micro-steps a parameter version.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from skyrl_run import torch_file
from verl_run import Run, Tables, console_record, dump_row, fa_config, fa_record, figure, read, v1_config


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path / "run")
    made.config(fa_config())
    return made


def load(run: Run, name: str = "tables") -> Tables:
    return read(run.root, run.root.parent / name)


def micro(number: int, local: int, trigger: int = 2) -> str:
    counters = f"local_trigger_step: {local} trigger_parameter_sync_step: {trigger}"
    return f"[FullyAsyncTrainer] global_steps: {number} {counters} 16:28:50.690"


def reset(outstanding: int) -> str:
    head = "[FullyAsyncRollouter][Public][reset_staleness] reset staleness_samples to"
    return f"{head}: {outstanding} idle_ratio: 0.1 step_generated_samples(this_step): 4"


def sync(version: int) -> str:
    return f"[FullyAsyncTrainer] _fit_update_weights, timing_s/param_sync: 0.1 s self.current_param_version: {version}"


def console(run: Run, outstanding: list[int], **more: Any) -> None:
    """Two micro-steps per version; ``outstanding`` at the sync of each version, and of the one after the last."""
    lines = [reset(outstanding[0]), sync(0)]
    for version, waiting in enumerate(outstanding[1:]):
        lines += [micro(2 * version + 1, 1), micro(2 * version + 2, 2), reset(waiting), sync(version + 1)]
    run.console(*lines, actor="FullyAsyncTrainer pid=9", **more)


def dumps(run: Run, last: int, first: int = 1) -> None:
    for number in range(first, last + 1):
        run.dump(number, *(dump_row(number, None, text=f"user\nproblem {number}\n", score=float(s)) for s in (0, 1)))


def test_micro_steps_are_counted_into_versions(run: Run) -> None:
    console(run, [0, 0, 0])
    dumps(run, 4)
    tables = load(run)
    assert [(row["step"], row["v_train_lo"]) for row in tables.rows("steps", "step")] == [
        (1, 0),
        (2, 0),
        (3, 1),
        (4, 1),
    ]
    audit = tables.audit(0)
    assert figure(audit["run"]["steps"]) == (2, 2)
    assert audit["staleness"]["unit"] == "parameter versions"
    # Nothing was outstanding at any sync: no group crossed one.
    assert (audit["verdict"], figure(audit["staleness"]["max"])) == ("pass", (0, 0))
    assert audit["bound"]["configured"] == 0.5
    assert audit["guarantee"] == {"strict": False, "limit": "none", "reason": audit["guarantee"]["reason"]}


def test_outstanding_groups_limit_how_many_rows_are_old(run: Run) -> None:
    """One group outstanding at the syncs of v1 and v2, none at v3: in v2 one is old at most, two versions at most."""
    console(run, [0, 1, 1, 0, 0])
    dumps(run, 8)
    tables = load(run)
    assert tables.classes(2) == [(2, 0, 0)]
    assert tables.classes(3) == [(2, 0, 1)]
    assert tables.classes(5) == [(2, 0, 2)]
    assert tables.classes(7) == [(2, 0, 0)]


def test_records_count_stale_ends_and_partial_rows(run: Run) -> None:
    """The record of v2 covers micro-steps 2 and 3: two rows with a stale end. 2 is of v0, so both are of 3."""
    dumps(run, 6)
    run.metrics(fa_record(1, 1, 0), fa_record(2, 3, 2), fa_record(3, 5, 2, partial=1, span=1))
    tables = load(run)
    assert tables.classes(2) == [(2, 0, 0)]
    assert tables.classes(3) == [(2, 1, 1)]
    # Micro-steps 4 and 5: no stale end, and one row that spans one version.
    assert tables.classes(4) == [(1, 0, 0), (1, 0, 1)]
    # The last micro-step is never covered by a record.
    assert tables.classes(6) == [(2, 0, 2)]
    assert tables.audit(0)["verdict"] == "fail"
    assert tables.audit(1)["verdict"] == "inconclusive"


def test_two_records_share_a_step_number(run: Run) -> None:
    """Pitfall 19: the rollouter's times come first; they are no training."""
    dumps(run, 2)
    times = {"step": 1, "data": {"fully_async/rollouter/version_time": 1.3, "fully_async/rollouter/active_time": 1.3}}
    run.metrics({"step": 0, "data": {"fully_async/rollouter/version_time": 1.0}}, times, fa_record(1, 1, 0))
    tables = load(run)
    assert [row["step"] for row in tables.rows("steps", "step")] == [1, 2]
    assert len(tables.facts["attempts"]) == 1


def test_metrics_alone_do_not_tell_the_last_micro_steps(run: Run) -> None:
    """The record of v2 is written when micro-step 4 has led to its sync; of 5 and 6 there would be none yet."""
    run.metrics(fa_record(1, 1, 0), fa_record(2, 3, 0))
    tables = load(run)
    told = [(row["step"], row["completed"]) for row in tables.rows("steps", "step")]
    assert told == [(1, True), (2, True), (3, True), (4, True), (5, None), (6, None)]
    assert figure(tables.audit(1)["run"]["steps"]) == (2, 3)


def test_without_the_trigger_a_record_still_counts_micro_steps(run: Run) -> None:
    """Of an unknown number of micro-steps a version, the first two were trained; that of both is v0 is not known."""
    (run.root / "outputs/2026-11-29/16-00-00/.hydra/config.yaml").unlink()
    run.metrics(fa_record(1, 1, 0))
    assert figure(load(run).audit(1)["run"]["steps"]) == (1, 3)


def test_a_launch_that_died_before_its_first_record_is_one(run: Run) -> None:
    """Resumed from v1: console and metrics file both hold only the rollouter's record of the first sync."""
    console(run, [0, 0])
    first = {"step": 1, "data": {"fully_async/rollouter/version_time": 1.0}}
    run.console(sync(1), console_record(first), micro(4, 1), path="console2.log", actor="FullyAsyncTrainer pid=19")
    run.metrics(first)
    dumps(run, 2)
    dumps(run, 4, first=4)
    tables = load(run)
    assert [(row["attempt"], row["resumed_after"]) for row in tables.facts["attempts"]] == [(0, None), (1, 2)]
    assert ("completed", True) in {("completed", row["completed"]) for row in tables.rows("steps") if row["step"] == 4}
    assert figure(tables.audit(1)["run"]["steps"]) == (2, 2)


def test_theta_zero_leaves_nothing_outstanding(run: Run) -> None:
    run.config(fa_config(theta=0))
    dumps(run, 2)
    assert load(run).facts["guarantee"]["limit"] == 0


def test_a_resumed_launch_skips_a_number(run: Run) -> None:
    """Section 3: resumed from v2, its first micro-step is 2 * 2 + 2; 5 of the first launch is rolled back."""
    console(run, [0, 0, 0])
    text = (run.root / "console.log").read_text() + f"\x1b[36m(FullyAsyncTrainer pid=9)\x1b[0m {micro(5, 1)}\n"
    run.write("console.log", text)
    run.console(
        reset(0),
        sync(2),
        micro(6, 1),
        micro(7, 2),
        reset(0),
        sync(3),
        path="console2.log",
        actor="FullyAsyncTrainer pid=19",
    )
    dumps(run, 7)
    tables = load(run)
    steps = [(row["attempt"], row["step"], row["v_train_lo"]) for row in tables.rows("steps", "attempt", "step")]
    assert steps == [(0, 1, 0), (0, 2, 0), (0, 3, 1), (0, 4, 1), (0, 5, 2), (1, 6, 2), (1, 7, 2)]
    assert [item["resumed_after"] for item in tables.facts["attempts"]] == [None, 4]
    audit = tables.audit(0)
    assert (figure(audit["run"]["steps"]), figure(audit["trajectories"]["trained"])) == ((3, 3), (12, 12))
    assert audit["verdict"] == "pass"


def test_one_micro_step_per_version(run: Run) -> None:
    """With trigger 1 the first record is of version 2, and covers micro-step 1."""
    run.config(fa_config(trigger=1))
    dumps(run, 3)
    run.metrics(fa_record(2, 1, 0), fa_record(3, 2, 1))
    tables = load(run)
    assert [(row["step"], row["v_train_lo"]) for row in tables.rows("steps", "step")] == [(1, 0), (2, 1), (3, 2)]
    assert tables.classes(2) == [(1, 0, 0), (1, 1, 1)]
    assert len(tables.facts["attempts"]) == 1


def test_without_trigger_versions_are_open(run: Run) -> None:
    (run.root / "outputs/2026-11-29/16-00-00/.hydra/config.yaml").unlink()
    dumps(run, 4)
    run.console("[FullyAsyncRollouter] Starting FullyAsyncRollouter...", actor="FullyAsyncRollouter pid=9")
    audit = load(run).audit(1)
    assert figure(audit["run"]["steps"]) == (1, 4)
    assert audit["verdict"] == "inconclusive"


def test_dropped_samples_are_counted_by_the_rollouter(run: Run) -> None:
    dumps(run, 2)
    item = fa_record(1, 1, 0)
    run.metrics(item)
    assert load(run).audit(1)["trajectories"]["dropped"] == {}
    item["data"]["fully_async/count/dropped_stale_samples"] = 1.0
    run.metrics(item)
    assert figure(load(run, "again").audit(1)["trajectories"]["dropped"]["unknown"]) == (0, None)


def test_a_waiting_trainer_is_stuck(run: Run) -> None:
    console(run, [0, 0])
    text = (run.root / "console.log").read_text()
    run.write(
        "console.log",
        text + "\x1b[36m(FullyAsyncTrainer pid=9)\x1b[0m [FullyAsyncTrainer] Requesting 1 samples from queue\n",
    )
    kinds = [sign["kind"] for sign in load(run).facts["signs"]]
    assert kinds[-1] == "waiting"
    assert "finished" not in kinds


def test_one_step_off_is_one_version_behind(run: Run) -> None:
    """Section 3: labels are one ahead of the weights; batch 1 is fresh, every later one is one version old."""
    changed = v1_config()
    changed["trainer"]["v1"]["trainer_mode"] = "sync"
    changed["trainer"]["use_v1"] = False
    run.config(changed)
    run.console("started", actor="OneStepTaskRunner pid=3")
    for step in (1, 2, 3):
        run.dump(step, *(dump_row(step, None) for _ in range(2)))
    tables = load(run)
    assert [tables.classes(step) for step in (1, 2, 3)] == [[(2, 0, 0)], [(2, 1, 1)], [(2, 1, 1)]]
    audit = tables.audit(1)
    assert (audit["verdict"], audit["guarantee"]["limit"], audit["bound"]["key"]) == ("pass", 1, None)
    assert tables.audit(0)["verdict"] == "fail"


def test_a_legacy_trainer_tells_no_versions(run: Run) -> None:
    changed = v1_config()
    changed["trainer"]["use_v1"] = False
    run.config(changed)
    run.dump(1, dump_row(1, None))
    run.dump(2, dump_row(2, None))
    tables = load(run)
    assert tables.classes(2) == [(1, 0, 1)]
    assert tables.facts["guarantee"]["limit"] is None


def test_one_step_off_by_the_program_that_hydra_started(run: Run) -> None:
    """An experiment may be called anything; the folder of the configuration is the program's."""
    sources = [{"path": "/opt/verl/verl/experimental/one_step_off_policy/config"}]
    hydra = {"hydra": {"job": {"config_name": "one_step_off_ppo_trainer"}, "runtime": {"config_sources": sources}}}
    run.config(
        {**v1_config(), "trainer": {"use_v1": True, "experiment_name": "one_step_off", "v1": {"trainer_mode": "sync"}}}
    )
    run.dump(1, dump_row(1, None))
    assert load(run).facts["dialect"] == "V1 sync"
    run.write("outputs/2026-11-29/16-00-00/.hydra/hydra.yaml", json.dumps(hydra))
    assert load(run, "again").facts["dialect"] == "one_step_off_policy"


def test_dumps_without_a_console_may_be_replays(run: Run) -> None:
    changed = fa_config()
    changed["skip"] = {"async_rollout": {"enable": True, "steps": [1, 2]}}
    run.config(changed)
    dumps(run, 2)
    run.write("dump/exp/GBS1_N2/1/gen_batch.dp", b"\x80\x05broken")
    assert "cached-groups" not in load(run).codes()


def test_a_lost_row_is_betrayed_by_the_tokens_of_its_window(run: Run) -> None:
    dumps(run, 4)
    item = fa_record(2, 3, 0)
    item["data"].update({"prompt_length/mean": 4.0, "perf/total_num_tokens": 4 * 14.0})
    run.metrics(fa_record(1, 1, 0), item)
    assert load(run).codes() == {}
    run.dump(3, dump_row(3, None, text="user\nproblem 3\n"))
    tables = load(run, "again")
    assert tables.codes()["rows-missing"] == 1
    low, high = figure(tables.audit(1)["trajectories"]["trained"])
    assert low <= 8
    assert high is None


def test_of_two_groups_with_one_prompt_either_may_have_been_trained(run: Run) -> None:
    """Groups 3 and 5 are of the same prompt, which micro-step 3 trained once; the other one is left over."""
    changed = fa_config()
    changed["skip"] = {"async_rollout": {"enable": True, "steps": [3, 5]}}
    run.config(changed)
    dumps(run, 4)
    for feed in (3, 5):
        columns = {
            "uid": [f"uid_sample_0_{feed}"] * 2,
            "min_global_steps": [0, 0],
            "max_global_steps": [0, 0],
            "raw_prompt": [[{"role": "user", "content": "problem 3"}]] * 2,
        }
        run.write(f"dump/exp/GBS1_N2/{feed}/gen_batch.dp", pickle.dumps((torch_file({}), columns, {})))
    run.console(*(sync(v) for v in (0, 1, 2)), actor="FullyAsyncTrainer pid=9")
    tables = load(run)
    assert not any(name.startswith("uid_sample") for name, _, _ in tables.uses())
    assert figure(tables.audit(0)["trajectories"]["trained"]) == (8, 8)


@pytest.mark.parametrize(
    "names", [("param_version_start", "param_version_end"), ("min_global_steps", "max_global_steps")]
)
def test_dumped_groups_name_their_versions_in_two_ways(run: Run, names: tuple[str, str]) -> None:
    """Pitfall 20: up to 0.7.0 and since 0.7.1. The rows of prompt 3 are of v0 and v1; micro-step 3 trains on v1."""
    changed = fa_config()
    changed["skip"] = {"async_rollout": {"enable": True, "steps": [3]}}
    run.config(changed)
    dumps(run, 4)
    columns: dict[str, list[Any]] = {
        "uid": ["uid_sample_0_3"] * 2,
        names[0]: [0, 0],
        names[1]: [1, 0],
        "raw_prompt": [[{"role": "user", "content": "problem 3"}]] * 2,
    }
    run.write("dump/exp/GBS1_N2/3/gen_batch.dp", pickle.dumps((torch_file({}), columns, {})))
    run.console("[RolloutSkip()] No dumped data found at step 3 from x.", *(sync(v) for v in (0, 1, 2)),
                "[RolloutSkip()] Dump generate result at step 3 to x", actor="FullyAsyncTrainer pid=9")  # fmt: skip
    found = load(run)
    assert found.versions("uid_sample_0_3/0") == [(0, 0, 1)]
    assert found.versions("uid_sample_0_3/1") == [(0, 0, 0)]
    old = names[0] == "param_version_start"
    assert found.facts["dialect"] == "fully_async_policy" + (" (up to 0.7.0)" if old else "")
    assert ("uid_sample_0_3/1", 0, 3) in found.uses()

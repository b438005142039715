"""prime-rl, by small runs that a reader can check by hand: versions, steps, fates, restarts, older shapes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prime_rl_run import CONFIG, NOON, Run, episode, node, read, simple, step_line, trace
from staleness_parsers.prime_rl import PARSER

from staleness_audit.discovery import discover
from staleness_audit.plugins import several_runs

DEBUG = "DEBUG"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path / "run")
    made.root.mkdir()
    made.config()
    return made


def update(version: int, at: float, *, ended: float | None = None) -> list[tuple[float, str, str]]:
    """Log lines of one weight update; with an end, as at level DEBUG."""
    lines = [(at, "INFO", f"Updating policy in-flight to v{version}")]
    if ended is not None:
        lines += [
            (at, DEBUG, "All inference engines paused"),
            (ended, DEBUG, f"Updated weights to step {version} in 90ms"),
        ]
    return lines


def two_steps(run: Run, *, debug: bool = True) -> None:
    """Batches 1 and 2: v1 is loaded at 20 s, in the same second; groups g1 (before) and g2 (labelled v1)."""
    end = 20.0 if debug else None
    run.log(
        (0, "INFO", "Starting orchestrator loop (max_steps=2)"),
        *update(0, 0, ended=0 if debug else None),
        (10, "SUCCESS", step_line(1, 2, 0)),
        *update(1, 20, ended=end),
        (40, "SUCCESS", step_line(2, 2, 0)),
        (41, "INFO", "Shipped the final batch — draining pipeline (cancelled 0 in-flight train episode(s); any …)"),
    )
    run.shipped(1, 10.1)
    run.trained(1, 18.0)
    run.shipped(2, 39.9)
    run.trained(2, 48.0)
    run.save_metrics()


def test_v_train_is_one_less_than_the_folder_of_effective(run: Run, tmp_path: Path) -> None:
    two_steps(run)
    run.traces(1, "effective", simple("a", "g1", 0, 0, 1, 2), simple("b", "g1", 0, 0, 1, 3))
    run.traces(2, "effective", simple("c", "g2", 1, 1, 25, 30), simple("d", "g2", 1, 1, 26, 31))
    tables = read(run.root, tmp_path / "tables")
    assert tables.uses() == {("a", 1, 1), ("b", 1, 1), ("c", 1, 2), ("d", 1, 2)}
    steps = tables.rows("steps", "step")
    assert [(row["step"], row["v_train_lo"], row["v_train_hi"], row["completed"]) for row in steps] == [
        (1, 0, 0, True),
        (2, 1, 1, True),
    ]
    assert steps[0]["waited_us"] == 5_000_000
    assert steps[0]["ended"].timestamp() == NOON + 18
    assert steps[0]["started"].timestamp() == NOON + 15.5, "the end less broadcast, checkpoint and computation"
    assert tables.versions("c") == [(1, 1)]
    assert tables.facts["bound"]["value"] == 1
    assert tables.facts["groups_per_step"] == 2


def test_what_a_lost_batch_may_have_shipped_is_not_called_dropped(run: Run, tmp_path: Path) -> None:
    """Batch 2 was shipped and trained, but its file is gone: c and d may have been in it."""
    two_steps(run)
    first, second = (simple("a", "g1", 0, 0, 1, 2), simple("b", "g1", 0, 0, 1, 3)), (simple("c", "g2", 1, 1, 25, 30),)
    run.traces(1, "effective", *first)
    run.traces(1, "all", *first)
    run.traces(2, "all", *second)
    tables = read(run.root, tmp_path / "tables")
    assert "batch-missing" in tables.codes()
    assert ("pending", None, "inferred") in tables.fates("c")
    assert all(evidence == "inferred" for _, _, evidence in tables.fates("c"))


def test_a_configuration_alone_tells_of_no_step(run: Run, tmp_path: Path) -> None:
    tables = read(run.root, tmp_path / "tables")
    assert tables.codes() == {"no-records": 1}
    assert tables.opened() == {"training"}


def test_start_is_trusted_only_if_the_first_call_begins_after_the_apply(run: Run, tmp_path: Path) -> None:
    """v1's update is over by 21 s (the second of its line, and that second's length)."""
    two_steps(run)
    run.traces(1, "effective", simple("a", "g1", 0, 0, 1, 2))
    early, late = simple("early", "g2", 1, 1, 20.4, 30), simple("late", "g2", 1, 1, 21.0, 30)
    run.traces(2, "effective", early, late)
    tables = read(run.root, tmp_path / "tables")
    assert tables.versions("early") == [(0, 1)]
    assert tables.versions("late") == [(1, 1)]
    assert tables.versions("a") == [(0, 0)], "nothing is older than the initial weights"


def test_an_early_label_may_skip_the_version_before(run: Run, tmp_path: Path) -> None:
    """The engines went from v0 to v2; of v5, which no log names, only a broadcast in memory says what came before."""
    run.log(*update(0, 0), *update(2, 20))
    run.traces(6, "effective", simple("logged", "g1", 2, 2, 20, 30), simple("unlogged", "g2", 5, 5, 50, 60))
    tables = read(run.root, tmp_path / "disk")
    assert (tables.versions("logged"), tables.versions("unlogged")) == ([(0, 2)], [(3, 5)])
    run.config(weight_broadcast={"type": "nccl"})
    assert read(run.root, tmp_path / "memory").versions("unlogged") == [(4, 5)]


def test_the_user_may_vouch_for_start_versions(run: Run, tmp_path: Path) -> None:
    two_steps(run, debug=False)
    run.traces(2, "effective", simple("late", "g2", 1, 1, 25, 30))
    tables = read(run.root, tmp_path / "tables", start_versions="exact")
    assert tables.versions("late") == [(1, 1)]
    assert [row["evidence"] for row in tables.rows("spans")] == ["assumed"]
    assert tables.facts["guarantee"]["limit"] == 1


def test_at_level_info_an_apply_ends_with_the_next_one(run: Run, tmp_path: Path) -> None:
    two_steps(run, debug=False)
    run.traces(2, "effective", simple("late", "g2", 1, 1, 25, 30))
    tables = read(run.root, tmp_path / "tables")
    assert tables.versions("late") == [(0, 1)]
    assert any("debug" in hint["remedy"] for hint in tables.facts["hints"])


def test_a_call_that_spans_no_update_has_one_version(run: Run, tmp_path: Path) -> None:
    """Recorded [0, 1]: one turn ends before v1 begins to load, one spans that, one begins after it."""
    two_steps(run)
    calls = [(11.0, 19.9, 4), (19.95, 22.0, 5), (23.0, 24.0, 6)]
    run.traces(2, "effective", episode("e", "g1", 0, 1, [trace("t", calls)]))
    tables = read(run.root, tmp_path / "tables")
    assert tables.versions("t") == [(0, 0), (0, 1), (1, 1)]
    spans = tables.rows("spans", "span_index")
    assert [(row["token_start"], row["tokens_lo"], row["tokens_hi"]) for row in spans] == [
        (0, 4, 4),
        (4, 5, 5),
        (9, 6, 6),
    ]


def test_log_times_get_their_date_over_midnight(run: Run, tmp_path: Path) -> None:
    """The log says 23:59:50, then 00:00:10; the metrics rows say which day that was."""
    night = 10 * 3600 - 10
    run.log(
        (night, "INFO", "Starting orchestrator loop (max_steps=2)"),
        (night + 5, "SUCCESS", step_line(1, 1, 0)),
        *update(1, night + 20, ended=night + 20),
    )
    run.shipped(1, night + 4.9)
    run.save_metrics()
    run.traces(1, "effective", simple("a", "g", 0, 0, night + 1, night + 2))
    (sync,) = read(run.root, tmp_path / "tables").rows("syncs")
    assert sync["started"] == datetime.fromtimestamp(NOON + night + 20, UTC)
    assert sync["ended"] == datetime.fromtimestamp(NOON + night + 21, UTC)


def test_json_logs_are_read_too(run: Run, tmp_path: Path) -> None:
    def line(at: float, message: str) -> str:
        stamp = datetime.fromtimestamp(NOON + at, UTC).isoformat()
        return json.dumps({"timestamp": stamp, "level": "INFO", "message": message}) + "\n"

    run.write(
        "logs/attempt_1/orchestrator.log",
        line(0, "Starting orchestrator loop (max_steps=infinite)") + line(20.25, "Updating policy in-flight to v1"),
    )
    run.traces(1, "effective", simple("a", "g", 0, 1, 3, 20.2))
    tables = read(run.root, tmp_path / "tables")
    assert tables.rows("syncs")[0]["started"].timestamp() == NOON + 20.25
    assert tables.versions("a") == [(0, 0)], "stated by the record as [0, 1] in batch 1, which v0 can only have made"


def test_cut_at_seq_len_masks_what_is_beyond(run: Run, tmp_path: Path) -> None:
    """seq_len 20: prompt 3, then nodes of 1 + 10: the second node stands at 14, six of it are left, five sampled."""
    run.config(seq_len=20)
    run.traces(1, "effective", episode("e", "g", 0, 0, [trace("t", [(1, 2, 10), (2, 3, 10)])]))
    tables = read(run.root, tmp_path / "tables")
    assert tables.loss("t") == (15, 15)
    assert [row["tokens_hi"] for row in tables.rows("spans")] == [10, 10]


def test_a_node_shared_by_branches_counts_once(run: Run, tmp_path: Path) -> None:
    """Two leaves below one sampled node; each branch is 3 + 11 + 11 tokens and is cut at 20 by itself."""
    run.config(seq_len=20)
    forked = trace("t", [(1, 2, 10), (2, 3, 10), (2, 3, 10)])
    forked["nodes"][3] = node(10, 1)
    run.traces(1, "effective", episode("e", "g", 0, 0, [forked]))
    assert read(run.root, tmp_path / "tables").loss("t") == (10 + 5 + 5, 10 + 5 + 5)


def test_loss_weights_of_zero_may_mask(run: Run, tmp_path: Path) -> None:
    weighted = trace("t", [(1, 2, 10)])
    weighted["nodes"][1]["loss_weights"] = [1.0] * 4 + [0.0] * 6
    run.traces(1, "effective", episode("e", "g", 0, 0, [weighted]))
    assert read(run.root, tmp_path / "tables").loss("t") == (4, 10)


def test_without_the_configuration_any_token_may_have_been_cut(run: Run, tmp_path: Path) -> None:
    (run.root / "configs/orchestrator.json").unlink()
    run.traces(1, "effective", simple("a", "g", 0, 0, 1, 2))
    tables = read(run.root, tmp_path / "tables")
    assert tables.loss("a") == (0, 10)
    assert tables.facts["bound"]["value"] is None
    assumed = read(run.root, tmp_path / "assumed", seq_len="8")
    assert assumed.loss("a") == (4, 4), "three of the prompt, one of the turn's header"
    assert [row["evidence"] for row in assumed.rows("spans")] == ["assumed"]


def test_shipped_without_a_trainer_row_is_not_confirmed(run: Run, tmp_path: Path) -> None:
    """Batches 1 to 4 shipped, rows for step 1 only. Batch 4 ships once v2 is out: 2 is proven, 3 and 4 are not."""
    for step in range(1, 5):
        run.traces(step, "effective", simple(f"t{step}", f"g{step}", 0, 0, step, step + 0.5))
    run.trained(1, 10)
    run.save_metrics()
    steps = read(run.root, tmp_path / "tables").rows("steps", "step")
    assert [(row["step"], row["completed"]) for row in steps] == [(1, True), (2, True), (3, None), (4, None)]


def test_trainer_log_proves_steps_where_metrics_are_missing(run: Run, tmp_path: Path) -> None:
    run.traces(1, "effective", simple("a", "g", 0, 0, 1, 2))
    run.write(
        "logs/attempt_1/trainer.log",
        "[trainer0]: 14:00:08 SUCCESS Step 1 |    6.4s | Loss -0.0001 | Entropy 0.2 [train.py::75]\n"
        "[trainer0]: 14:00:09 SUCCESS RL trainer finished!\n",
    )
    tables = read(run.root, tmp_path / "tables")
    assert [(row["step"], row["completed"]) for row in tables.rows("steps")] == [(1, True)]
    assert [sign["kind"] for sign in tables.facts["signs"]] == ["progress", "finished"]


def test_a_group_and_an_episode_may_be_trained_in_two_steps(run: Run, tmp_path: Path) -> None:
    """Pitfalls 2, 3 and 22: batches cut through groups and episodes, long after arrival; tasks come back in others.

    Episode e arrived in step 1 with two traces: x was shipped in step 1, y in step 3. Group h has the same task.
    """
    task = {"key": "4414a0", "data": {"idx": 16}}
    whole = episode("e", "g", 0, 0, [trace("x", [(1, 2, 10)]), trace("y", [(1, 2, 10)])], task=task)
    run.traces(1, "all", whole)
    run.traces(1, "effective", {**whole, "traces": whole["traces"][:1]})
    run.traces(
        3, "effective", {**whole, "traces": whole["traces"][1:]}, simple("z", "h", 1, 1, 11, 12) | {"task": task}
    )
    tables = read(run.root, tmp_path / "tables")
    assert tables.uses() == {("x", 1, 1), ("y", 1, 3), ("z", 1, 3)}
    assert {row["trajectory_id"]: row["group_id"] for row in tables.rows("trajectories")} == {
        "x": "g",
        "y": "g",
        "z": "h",
    }


def test_versions_may_be_skipped_but_steps_never_are(run: Run, tmp_path: Path) -> None:
    """Pitfall 7: a slow look finds v2 published where it last saw v0; batch 3 is trained on v2 all the same."""
    run.log(
        (0, "INFO", "Starting orchestrator loop (max_steps=3)"),
        (0, "DEBUG", "Loaded 1 training environment(s) (math)"),
        *update(0, 0, ended=0),
        *update(2, 20, ended=20),
        *((at, "SUCCESS", step_line(step, 1, 0)) for step, at in ((1, 5), (2, 15), (3, 40))),
    )
    for step, (start, at) in enumerate([(0, 1), (0, 8), (2, 25)], 1):
        run.traces(step, "effective", simple(f"t{step}", f"g{step}", start, start, at, at + 1))
        run.shipped(step, (5, 15, 40)[step - 1])
    run.save_metrics()
    tables = read(run.root, tmp_path / "tables")
    assert [row["version_lo"] for row in tables.rows("syncs", "version_lo")] == [0, 2]
    assert [(row["step"], row["v_train_lo"]) for row in tables.rows("steps", "step")] == [(1, 0), (2, 1), (3, 2)]
    assert tables.versions("t3") == [(2, 2)]


def test_rows_of_evaluations_are_no_steps(run: Run, tmp_path: Path) -> None:
    """Pitfall 14: they give their step as 1.0, and come for steps that nobody trained."""
    run.traces(1, "effective", simple("a", "g", 0, 0, 1, 2))
    run.shipped(1, 5)
    run.trained(1, 7)
    run.metrics += [{"step": float(step), "time": NOON + 9, "eval/math/policy_version": 1.0} for step in (1, 9)]
    run.save_metrics()
    steps = read(run.root, tmp_path / "tables").rows("steps")
    assert [(row["step"], row["completed"]) for row in steps] == [(1, True)]


def test_folders_of_attempts_are_one_run(run: Run, tmp_path: Path) -> None:
    """Nothing but the logs of two launches is left."""
    for attempt in (1, 2):
        run.log((attempt * 100, "INFO", "Starting orchestrator (algorithm: grpo)"), attempt=attempt)
    assert not several_runs(discover(run.root), PARSER)


def test_texts_and_missing_keys_do_no_harm(run: Run, tmp_path: Path) -> None:
    """Pitfall 13: any Unicode, images as text, embedded tracebacks, null for NaN; keys without a value are gone."""
    odd = trace("t", [(1, 2, 10)])
    odd["nodes"][1] |= {"logprobs": [None] * 10, "message": {"content": "\u2028\u0085🙂 \\n}{" * 3}}
    odd["nodes"][0]["message"] = {"role": "user", "content": [{"image": "data:image/png;base64," + "QUJD" * 20000}]}
    odd["info"] = {"error": 'Traceback (most recent call last):\n  File "x"\n{"id": "fake", "traces": []}'}
    del odd["errors"], odd["rewards"], odd["timing"]
    run.traces(1, "effective", episode("e", "g", 0, 0, [odd]))
    tables = read(run.root, tmp_path / "tables")
    assert tables.codes() == {}
    assert tables.uses() == {("t", 1, 1)}
    assert tables.loss("t") == (10, 10)


def test_batches_may_be_counted_in_tokens(run: Run, tmp_path: Path) -> None:
    """Pitfall 18: `Train batch` counts tokens then, and a batch has as many traces as fit."""
    run.config(batch_size=None, token_batch_size=25)
    run.traces(1, "effective", *(simple(name, name, 0, 0, 1, 2) for name in "abc"))
    run.log(
        (0, "INFO", "Starting orchestrator loop (max_steps=1)"),
        (4, "INFO", "Train batch 20/25 (80.0%) (+3 buffered); 16 inflight episodes (train=12, eval=4)"),
        (5, "SUCCESS", step_line(1, 3, 0)),
    )
    tables = read(run.root, tmp_path / "tables")
    assert len(tables.uses()) == 3
    assert tables.facts["groups_per_step"] is None
    sizes = [row["value"] for row in tables.rows("constraints") if row["quantity"] == "trajectories"]
    assert sizes == [3]


def test_frozen_sources_train_no_policy_tokens(run: Run, tmp_path: Path) -> None:
    """A frozen endpoint sampled them: no version, no staleness, and no violation whatever the step."""
    frozen = {"name": "math", "group_size": 2, "algo": {"type": "grpo", "sampling": {"source": "http://teacher"}}}
    run.config(train={"source": [frozen]})
    run.traces(7, "effective", episode("e", "g", None, None, [trace("t", [(1, 2, 10)])]))
    tables = read(run.root, tmp_path / "tables")
    assert tables.uses() == {("t", 1, 7)}
    assert [(row["tokens_hi"], row["version_hi"]) for row in tables.rows("spans")] == [(0, None)]


def test_a_missing_span_is_bounded_by_the_step_only(run: Run, tmp_path: Path) -> None:
    run.traces(7, "effective", episode("e", "g", None, None, [trace("t", [(1, 2, 10)])]))
    assert read(run.root, tmp_path / "tables").versions("t") == [(0, 6)]


def test_eval_and_untrainable_agents_are_not_trained(run: Run, tmp_path: Path) -> None:
    judge = trace("judge", [(1, 2, 10)], agent={"name": "judge", "trainable": False})
    policy = trace("policy", [(1, 2, 10)])
    run.traces(1, "all", episode("e", "g", 0, 0, [policy, judge]))
    run.traces(1, "effective", episode("e", "g", 0, 0, [policy]))
    eval_work = simple("quiz", "q", 0, 0, 1, 2)
    eval_work["run"]["work"]["type"] = "eval"
    run.traces(1, "all", eval_work, role="eval")
    tables = read(run.root, tmp_path / "tables")
    assert tables.uses() == {("policy", 1, 1)}
    assert {(row["trajectory_id"], row["role"]) for row in tables.rows("trajectories")} == {
        ("policy", "train"),
        ("quiz", "eval"),
    }
    assert tables.codes() == {"untrainable-agents": 1}


# --- fates (guide section 6) ---------------------------------------------------------------------------------------


def pair(group: str, start: int, end: int, at: float, rewards: tuple[float, float] = (0.0, 1.0)) -> list[dict]:
    """Both members of a group, named after it."""
    return [simple(f"{group}{n}", group, start, end, at, at + 1, reward=reward) for n, reward in enumerate(rewards)]


def test_failed_episodes_are_lost(run: Run, tmp_path: Path) -> None:
    failed = episode("boom", "g", 0, 0, [], ok=False, errors=[{"type": "RuntimeError", "message": "sandbox"}])
    half = episode("e2", "g", 0, 0, [trace("half", [(1, 2, 5)], ok=False, errors=[{"type": "Timeout"}])])
    run.traces(1, "all", failed, half)
    tables = read(run.root, tmp_path / "tables")
    assert tables.fates("episode/boom") == {("lost", "error", "recorded")}
    assert tables.fates("half") == {("lost", "error", "recorded")}
    boom = next(row for row in tables.rows("spans") if row["trajectory_id"] == "episode/boom")
    assert (boom["tokens_lo"], boom["tokens_hi"]) == (0, None), "how far it came is not recorded"


def queue_run(run: Run, dropped: float = 2.0) -> None:
    """B = 1. Group z: zero advantage, start 0, so stale from s = 3 on. q: complete in step 3 with start 0, so void."""
    run.traces(1, "all", *pair("z", 0, 0, 1, (1.0, 1.0)), *pair("a", 0, 0, 2))
    run.traces(1, "effective", *pair("a", 0, 0, 2))
    run.traces(2, "all", *pair("b", 1, 1, 12))
    run.traces(2, "effective", *pair("b", 1, 1, 12))
    run.traces(3, "all", *pair("q", 0, 1, 22), *pair("c", 2, 2, 23))
    run.traces(3, "effective", *pair("c", 2, 2, 23))
    run.shipped(1, 5)
    run.shipped(2, 15)
    run.shipped(3, 25, **{"off_policy/dropped": dropped})
    run.save_metrics()
    run.log(
        (0, "INFO", "Starting orchestrator loop (max_steps=3)"),
        (0, DEBUG, "Loaded 1 training environment(s) (math)"),
        *((at, "SUCCESS", step_line(step, 2, 0)) for step, at in ((1, 5), (2, 15), (3, 25))),
        (26, "INFO", "Shipped the final batch — draining pipeline (cancelled 3 in-flight train episode(s); any …)"),
    )


def test_the_queue_is_first_in_first_out(run: Run, tmp_path: Path) -> None:
    """z stood before a, and a was shipped in step 1, when z was not old yet: z was selected and pruned."""
    queue_run(run)
    tables = read(run.root, tmp_path / "tables")
    assert tables.fates("z0") == tables.fates("z1") == {("dropped", "zero_advantage", "derived")}
    assert tables.fates("q0") == tables.fates("q1") == {("dropped", "stale", "derived")}
    assert next(row["step"] for row in tables.rows("events") if row["reason"] == "stale") == 3
    cut = next(row for row in tables.rows("trajectories") if row["anonymous"])
    assert (cut["multiplicity_lo"], cut["multiplicity_hi"]) == (3, 3)
    assert tables.fates(cut["trajectory_id"]) == set(), "cut by the end of the run: pending"


def test_counted_sweeps_settle_what_the_rules_leave_open(run: Run, tmp_path: Path) -> None:
    """z stands behind a (shipped in 1) and b (in 2), c (in 3) behind it: pruned in 2 or 3, or voided in 3 (start 0)."""
    for dropped, expected in ((0.0, "zero_advantage"), (2.0, "stale")):
        run.metrics.clear()
        run.traces(1, "all", *pair("a", 0, 0, 1), *pair("b", 0, 0, 1), *pair("z", 0, 0, 2, (1.0, 1.0)))
        run.traces(1, "effective", *pair("a", 0, 0, 1))
        run.traces(2, "effective", *pair("b", 0, 0, 1))
        run.traces(3, "all", *pair("c", 2, 2, 23))
        run.traces(3, "effective", *pair("c", 2, 2, 23))
        run.shipped(1, 5)
        run.shipped(2, 15)
        run.shipped(3, 25, **{"off_policy/dropped": dropped})
        run.save_metrics()
        run.log(
            (0, "INFO", "Starting orchestrator loop (max_steps=3)"),
            (0, DEBUG, "x"),
            (25, "SUCCESS", step_line(3, 2, 0)),
            (26, "INFO", "Shipped the final batch — draining pipeline (cancelled 0 in-flight train episode(s); any …)"),
        )
        tables = read(run.root, tmp_path / f"tables{dropped}")
        assert tables.fates("z0") == {("dropped", expected, "derived")}


def test_both_fates_are_named_where_nothing_decides(run: Run, tmp_path: Path) -> None:
    queue_run(run, dropped=7.0)
    run.traces(1, "all", *pair("a", 0, 0, 1), *pair("z", 0, 0, 2, (1.0, 1.0)))
    (run.root / "rollouts/step_2/train/effective/traces.jsonl").unlink()
    (run.root / "rollouts/step_2/train/all/traces.jsonl").unlink()
    (run.root / "metrics.jsonl").unlink()
    tables = read(run.root, tmp_path / "tables")
    assert {fate[:2] for fate in tables.fates("z0")} >= {("dropped", "zero_advantage"), ("dropped", "stale")}
    assert {fate[2] for fate in tables.fates("z0")} == {"inferred"}


def test_a_group_cancelled_in_flight_takes_its_finished_members(run: Run, tmp_path: Path) -> None:
    """The DEBUG line names the group by 8 characters and says that one member was running, one never dispatched."""
    run.traces(1, "all", simple("done", "12345678-aaaa", 0, 0, 1, 2))
    run.log(
        (0, "INFO", "Starting orchestrator loop (max_steps=infinite)"),
        (5, "SUCCESS", step_line(1, 2, 0)),
        (9, "SUCCESS", step_line(2, 2, 0)),
        (12, DEBUG, "drop train | group=12345678 env=math reason=stale | cancelled=2 (inflight=1 unscheduled=1)"),
        (
            12,
            "WARNING",
            "Cancelled 2 train episodes past max_off_policy_steps=1. Consider increasing it to avoid this.",
        ),
        (12, "INFO", "Updating policy in-flight to v2"),
    )
    tables = read(run.root, tmp_path / "tables")
    assert tables.fates("done") == {("dropped", "group", "derived")}
    (cut,) = [row for row in tables.rows("trajectories") if row["anonymous"]]
    assert (cut["group_id"], cut["multiplicity_lo"], cut["multiplicity_hi"]) == ("12345678-aaaa", 1, 1)
    assert tables.fates(cut["trajectory_id"]) == {("cancelled", "stale", "derived")}
    assert [row["tokens_hi"] for row in tables.rows("spans") if row["trajectory_id"] == cut["trajectory_id"]] == [None]


def test_at_level_info_only_the_sum_of_cancelled_members_is_known(run: Run, tmp_path: Path) -> None:
    """Running and never dispatched members are one number: none of them may have been running."""
    run.traces(1, "all", simple("done", "g", 0, 0, 1, 2))
    run.log(
        (0, "INFO", "Starting orchestrator loop (max_steps=infinite)"),
        (5, "SUCCESS", step_line(1, 2, 0)),
        (9, "SUCCESS", step_line(2, 2, 0)),
        (
            12,
            "WARNING",
            "Cancelled 2 train episodes past max_off_policy_steps=1. Consider increasing it to avoid this.",
        ),
        (12, "INFO", "Updating policy in-flight to v2"),
        (20, "WARNING", "Cancelled 12 youngest in-flight episodes after overload cut"),
    )
    tables = read(run.root, tmp_path / "tables")
    cut = {row["trajectory_id"]: row for row in tables.rows("trajectories") if row["anonymous"]}
    assert sorted((row["multiplicity_lo"], row["multiplicity_hi"]) for row in cut.values()) == [(0, 2), (0, 12)]
    assert {reason for name in cut for _, reason, _ in tables.fates(name)} == {"stale", "overload"}
    assert {fate[:2] for fate in tables.fates("done")} >= {("dropped", "group")}, "an overload cut may have come first"


def test_what_was_left_in_the_queue_is_pending(run: Run, tmp_path: Path) -> None:
    queue_run(run)
    run.traces(4, "all", *pair("late", 2, 3, 30), simple("half", "h", 3, 3, 30, 31))
    tables = read(run.root, tmp_path / "tables")
    assert tables.fates("late0") == set()
    assert tables.fates("half") == set()


def test_curriculum_gates_may_have_rejected(run: Run, tmp_path: Path) -> None:
    gated = {**CONFIG["train"]["source"][0], "curriculum": {"gates": ["difficulty"]}}
    run.config(train={"source": [gated]})
    run.traces(1, "all", *pair("g", 0, 0, 1))
    fates = read(run.root, tmp_path / "tables").fates("g0")
    assert ("dropped", "filtered", "inferred") in fates
    assert ("pending", None, "inferred") in fates


# --- restarts (pitfall 5) ------------------------------------------------------------------------------------------


def restart(run: Run) -> None:
    """Attempt 1 trains 1 to 3; attempt 2 goes back to 2 and trains 3 and 4. Its launcher deleted the old step_3."""
    run.traces(1, "all", *pair("a", 0, 0, 1))
    run.traces(1, "effective", *pair("a", 0, 0, 1))
    run.traces(2, "all", *pair("b", 1, 1, 11), *pair("left", 1, 1, 12))
    run.traces(2, "effective", *pair("b", 1, 1, 11))
    run.traces(3, "effective", *pair("c", 2, 2, 111))
    run.traces(4, "effective", *pair("d", 3, 3, 121))
    for step in (1, 2, 3):
        run.shipped(step, step * 10)
        run.trained(step, step * 10 + 2)
    run.trained(3, 115)
    run.shipped(3, 116)
    run.shipped(4, 126)
    run.trained(4, 128)
    run.save_metrics()


@pytest.mark.parametrize("with_logs", [True, False])
def test_steps_of_a_lost_attempt_are_told_apart(run: Run, tmp_path: Path, with_logs: bool) -> None:
    restart(run)
    if with_logs:
        run.log(
            (0, "INFO", "Training from scratch"),
            (0, "INFO", "Starting orchestrator loop (max_steps=infinite)"),
            *((10 * step, "SUCCESS", step_line(step, 2, 0)) for step in (1, 2, 3)),
        )
        run.log(
            (100, "INFO", "Resuming orchestrator from checkpoint step 2"),
            (100, "INFO", "Starting orchestrator loop (max_steps=infinite)"),
            (116, "SUCCESS", step_line(3, 2, 0)),
            (126, "SUCCESS", step_line(4, 2, 0)),
            attempt=2,
        )
    tables = read(run.root, tmp_path / "tables")
    attempts = tables.facts["attempts"]
    assert [(entry["attempt"], entry["resumed_after"]) for entry in attempts] == [(1, None), (2, 2)]
    steps = {(row["attempt"], row["step"]): row["completed"] for row in tables.rows("steps")}
    assert steps == {(1, 1): True, (1, 2): True, (1, 3): True, (2, 3): True, (2, 4): True}
    assert tables.uses() == {
        *(("a0", 1, 1), ("a1", 1, 1), ("b0", 1, 2), ("b1", 1, 2)),
        *(("c0", 2, 3), ("c1", 2, 3), ("d0", 2, 4), ("d1", 2, 4)),
    }
    # What attempt 1 left over may have been trained in the step 3 that was rolled back.
    assert {fate[:2] for fate in tables.fates("left0")} >= {("lost", "rolled_back"), ("lost", "unknown")}
    assert "batch-missing" not in tables.codes(), "the lost step 3 counts nowhere"
    assert "lost" in tables.facts["unseen"]


def test_the_weights_an_attempt_starts_from_are_never_labelled_early(run: Run, tmp_path: Path) -> None:
    """c opens under v2, which attempt 2 loaded before its first group; d under v3, whose update nobody dated."""
    restart(run)
    tables = read(run.root, tmp_path / "tables")
    assert (tables.versions("c0"), tables.versions("d0")) == ([(2, 2)], [(2, 3)])
    assert tables.versions("a0") == [(0, 0)]


@pytest.mark.parametrize("written_over", [False, True])
def test_a_restart_without_the_launcher_appends_to_the_same_file(run: Run, tmp_path: Path, written_over: bool) -> None:
    """Step 3 holds traces of both attempts; those that began before attempt 2 are the lost one's.

    So they are where attempt 2 wrote its log over that of attempt 1, which had no folder of its own.
    """
    restart(run)
    if written_over:
        resumed = (100, "INFO", "Resuming orchestrator from checkpoint step 2")
        run.log(resumed, (116, "SUCCESS", step_line(3, 2, 0)), (126, "SUCCESS", step_line(4, 2, 0)), attempt=None)
    run.traces(3, "effective", *pair("old", 2, 2, 25), *pair("c", 2, 2, 111))
    assert {use for use in read(run.root, tmp_path / "tables").uses() if use[2] == 3} == {
        *(("old0", 1, 3), ("old1", 1, 3), ("c0", 2, 3), ("c1", 2, 3)),
    }


def test_without_dates_the_last_traces_of_a_batch_are_the_last_attempts(run: Run, tmp_path: Path) -> None:
    """Without metrics no log line has a date, but each attempt's step line says how many traces it shipped."""
    for attempt, start in ((1, "Training from scratch"), (2, "Resuming orchestrator from checkpoint step 0")):
        run.log((attempt * 100, "INFO", start), (attempt * 100 + 9, "SUCCESS", step_line(1, 2, 0)), attempt=attempt)
    run.traces(1, "effective", *pair("lost", 0, 0, 101), *pair("kept", 0, 0, 201))
    assert read(run.root, tmp_path / "tables").uses() == {
        *(("lost0", 1, 1), ("lost1", 1, 1), ("kept0", 2, 1), ("kept1", 2, 1)),
    }


def test_without_dates_and_counts_any_attempt_may_have_shipped_a_trace(run: Run, tmp_path: Path) -> None:
    """The trainer's log says that it started twice, and nothing which traces of step 1 are those of the second time."""
    starts = [(at, "INFO", "Starting from step 1 (total_tokens=0, total_samples=0)") for at in (0, 100)]
    run.log(*starts, (110, "SUCCESS", "Step 1 |    6.4s | Loss 0.1"), attempt=None, process="trainer")
    run.traces(1, "effective", *pair("lost", 0, 0, 1), *pair("kept", 0, 0, 101))
    uses = read(run.root, tmp_path / "tables").rows("uses", "trajectory_id")
    assert [(row["trajectory_id"], row["member"]) for row in uses] == [
        *(("kept0", False), ("kept1", False), ("lost0", False), ("lost1", False)),
    ]


# --- older shapes (guide 5.1, 5.3) ---------------------------------------------------------------------------------


def test_episode_records_of_code_that_did_not_enforce(run: Run, tmp_path: Path) -> None:
    """Cancelled members are failed episodes in `all`; the line says that all of them were running."""
    error = {"type": "Cancelled", "message": "Off-policy cancel"}
    run.traces(
        1,
        "all",
        simple("ok", "12345678-a", 0, 0, 1, 2),
        episode("gone", "12345678-a", 0, 2, [], ok=False, errors=[error]),
    )
    run.log((5, DEBUG, "drain train | group=12345678 env=math | cancelled=1 (inflight=1 unscheduled=0)"))
    tables = read(run.root, tmp_path / "tables")
    assert tables.fates("episode/gone") == {("cancelled", "stale", "recorded")}
    assert tables.facts["guarantee"]["limit"] == "none"
    assert not [row for row in tables.rows("trajectories") if row["anonymous"]]


def test_a_listed_member_may_never_have_been_dispatched(run: Run, tmp_path: Path) -> None:
    """At level info nothing says whether the cancelled member of a group of two had been dispatched."""
    error = {"type": "Cancelled", "message": "Off-policy cancel"}
    run.traces(1, "all", simple("ok", "g", 0, 0, 1, 2), episode("gone", "g", 0, 2, [], ok=False, errors=[error]))
    (cut,) = [row for row in read(run.root, tmp_path / "tables").rows("trajectories") if row["anonymous"]]
    assert (cut["group_id"], cut["multiplicity_lo"], cut["multiplicity_hi"]) == ("g", 0, 1)


def test_trace_lines_of_v0_8(run: Run, tmp_path: Path) -> None:
    """One trace a line, no end of the span: v_train of the step collected at its arrival is the newest it can have."""

    def old(name: str, version: int, at: float) -> dict:
        info = {"env_name": "math", "group_id": "g", "episode_id": f"e-{name}", "policy_version": version}
        return trace(name, [(at, at + 1, 10)], info=info, run={"type": "train", "id": "r", "step": 3})

    run.traces(3, "all", old("t", 1, 5))
    run.traces(5, "effective", old("t", 1, 5))
    tables = read(run.root, tmp_path / "tables")
    assert tables.versions("t") == [(0, 2)]
    assert tables.uses() == {("t", 1, 5)}
    assert tables.rows("trajectories")[0]["group_id"] == "g"
    assert (tables.facts["dialect"], tables.facts["framework_version"]) == ("traces", "v0.7.0 to v0.8.0")
    assert tables.facts["guarantee"]["limit"] == "none"


def test_cancelled_members_have_no_place_in_trace_lines(run: Run, tmp_path: Path) -> None:
    """The warning counts three: two were running, as the line before it says, and one may have been dispatched."""
    info = {"env_name": "math", "group_id": "g", "episode_id": "e", "policy_version": 0}
    run.traces(1, "effective", trace("t", [(5, 6, 10)], info=info, run={"type": "train", "id": "r", "step": 1}))
    run.log(
        (5, DEBUG, "drain train | group=12345678 env=math | cancelled=2 (inflight=2 unscheduled=0)"),
        (5, "WARNING", "Cancelled 3 train episodes past max_off_policy_steps=1. Consider increasing it to avoid this."),
    )
    rows = [row for row in read(run.root, tmp_path / "tables").rows("trajectories") if row["anonymous"]]
    assert sorted((row["multiplicity_lo"], row["multiplicity_hi"]) for row in rows) == [(0, 1), (2, 2)]


def test_rollout_lines_of_v0_6_count_steps_from_zero(run: Run, tmp_path: Path) -> None:
    rows = [
        {
            "env_name": "m",
            "group_id": "g",
            "rollout_id": "kept",
            "policy_version": 0,
            "off_policy_steps": 1,
            "is_filtered": False,
        },
        {
            "env_name": "m",
            "group_id": "g",
            "rollout_id": "out",
            "policy_version": 0,
            "is_filtered": True,
            "filters": {"zero": True},
        },
    ]
    run.lines("rollouts/step_1/train_rollouts.jsonl", rows)
    tables = read(run.root, tmp_path / "tables")
    assert [(row["step"], row["v_train_lo"]) for row in tables.rows("steps")] == [(1, 1)]
    assert tables.versions("kept") == [(0, 1)]
    assert tables.uses() == {("kept", 1, 1)}
    assert tables.loss("kept") == (1, None)
    assert tables.fates("out") == {("dropped", "filtered", "recorded")}
    assert (tables.facts["dialect"], tables.facts["framework_version"]) == ("rollouts", "v0.6.0")


def test_logs_alone_say_how_old_a_batch_was_at_most(run: Run, tmp_path: Path) -> None:
    """Max Off-Policy is the recorded maximum; the start version may be one too new (two, were weights on disk)."""
    run.config(weight_broadcast={"type": "nccl"})
    run.log(
        (0, "INFO", "Starting orchestrator (algorithm: grpo)"),
        (9, "SUCCESS", step_line(1, 8, 0)),
        (19, "SUCCESS", step_line(2, 7, 1)),
    )
    run.log(
        (9, "SUCCESS", "Step 1 |    6.4s | Loss 0.1"), (19, "SUCCESS", "Step 2 |    6.4s | Loss 0.1"), process="trainer"
    )
    tables = read(run.root, tmp_path / "tables")
    facts = {(row["step"], row["quantity"], row["op"]): row["value"] for row in tables.rows("constraints")}
    assert facts == {
        (1, "trajectories", "eq"): 8,
        (1, "staleness_max", "le"): 1,
        (2, "trajectories", "eq"): 7,
        (2, "staleness_max", "le"): 2,
    }
    assert tables.codes() == {"no-traces": 1}
    assert tables.opened() == {"training"}


def test_logs_of_the_first_releases(run: Run, tmp_path: Path) -> None:
    """Progress bars on the same line, steps from 0, and a level that is that of episodes still running: no bound."""
    (run.root / "configs/orchestrator.json").unlink()
    run.write(
        "logs/orchestrator.stdout",
        "Generating rollouts (train):  62%|######    | 10/16 [00:05<00:03]14:00:09 SUCCESS Step 0 | Time: 7.47s | "
        "Reward: 0.7307 | Seq. Length: 104.9 tokens/sample | Async Level: 0 | Max. Off-Policy Level: 1\n"
        "14:00:17 SUCCESS Step 1 | Time: 7.47s | Reward: 0.7 | Async Level: 0 | Max. Off-Policy Level: 0\n",
    )
    tables = read(run.root, tmp_path / "tables")
    assert tables.rows("constraints") == []
    assert [(row["name"], row["raw_name"], row["value"]) for row in tables.rows("reported")] == [
        (None, "Max. Off-Policy Level", 1),
        (None, "Max. Off-Policy Level", 0),
    ]
    # Step 1 is shipped while v1 is in use (1 - 0), which step 0 made.
    found = [(row["step"], row["v_train_lo"], row["completed"]) for row in tables.rows("steps", "step")]
    assert found == [(0, 0, True), (1, 1, None)]
    assert (tables.facts["dialect"], tables.facts["framework_version"]) == ("logs", "up to v0.6.0")


def test_the_first_releases_are_recognised_by_the_copy_of_their_configuration(run: Run, tmp_path: Path) -> None:
    """Only the trainer's log is left, which other frameworks could have written; the copy is TOML."""
    (run.root / "configs/orchestrator.json").unlink()
    run.write("control/orch.toml", "max_off_policy_steps = 3\nmax_async_level = 1\n")
    run.write("logs/trainer.stdout", "14:00:09 SUCCESS Step 0 | Time: 7.47s | Loss: 0.1\n")
    tables = read(run.root, tmp_path / "tables")
    assert [(row["step"], row["v_train_lo"], row["completed"]) for row in tables.rows("steps")] == [(0, 0, True)]
    assert tables.facts["bound"]["value"] == 3


def test_what_else_begins_with_step(run: Run, tmp_path: Path) -> None:
    """Pitfalls 15 and 19: lines of the trainer and of a hosted platform, an empty batch (no step), a long warning."""
    run.write(
        "logs/attempt_1/orchestrator.log",
        "14:00:00 [INFO] Starting orchestrator loop (max_steps=3)\n"
        f"14:00:05 [SUCCESS] {step_line(1, 8, 0)}\n"
        "14:00:07 [WARNING] Step 2: empty train batch after 16 finalized episodes (consecutive empty batches: 1/10)\n"
        "  Step 7 |    8.0s | a second line of it\n"
        f"14:00:09 [SUCCESS] {step_line(2, 7, 1)}\n",
    )
    run.write(
        "logs/attempt_1/trainer.log",
        "[trainer0]: 14:00:06 [SUCCESS] Step 1 |    6.4s | Loss -0.0001 | Entropy 0.2\n"
        "[trainer0]: 14:00:10 [SUCCESS] Step 2 |    6.4s | Loss -0.0001 | Entropy 0.2\n",
    )
    tables = read(run.root, tmp_path / "tables")
    assert [(row["step"], row["completed"]) for row in tables.rows("steps", "step")] == [(1, True), (2, True)]
    sizes = {row["step"]: row["value"] for row in tables.rows("constraints") if row["quantity"] == "trajectories"}
    assert sizes == {1: 8, 2: 7}


def test_waiting_lines_are_signs_until_something_moves(run: Run, tmp_path: Path) -> None:
    run.log(
        (0, "INFO", "Pausing dispatcher to prevent orchestrator from racing from trainer. Waiting for new policy..."),
        (9, "SUCCESS", step_line(1, 8, 0)),
        (10, "INFO", "Holding batch 7 until the trainer publishes policy v5 (currently v4)"),
    )
    assert [sign["kind"] for sign in read(run.root, tmp_path / "tables").facts["signs"]] == ["progress", "waiting"]


def test_the_bound_can_come_from_a_warning(run: Run, tmp_path: Path) -> None:
    (run.root / "configs/orchestrator.json").unlink()
    run.traces(1, "effective", simple("a", "g", 0, 0, 1, 2))
    run.log(
        (1, "WARNING", "Dropped 3 queued traces past max_off_policy_steps=5. Consider increasing it to avoid this.")
    )
    assert read(run.root, tmp_path / "tables").facts["bound"]["value"] == 5

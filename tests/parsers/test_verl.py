"""verl V1 by hand: a run that a reader can follow, then each pitfall of the guide.

Unless a test says otherwise: two groups of two rows a step, ten tokens a row, threshold T = 3, so the bound is 2.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.wandb_log import history, wandb_file
from staleness_parsers.verl import metrics
from staleness_parsers.verl.aggregates import RowClass, Spread, row_classes
from verl_run import Buffer, Run, Tables, console_record, dump_row, figure, key, read, record, uid, v1_config


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run(tmp_path / "run")
    made.config(v1_config())
    return made


@pytest.fixture
def tables(run: Run, tmp_path: Path) -> Iterator[Tables]:
    """The tables of the run as the test left it when it first asks for them."""
    yield read(run.root, tmp_path / "tables")


def load(run: Run, name: str = "tables") -> Tables:
    return read(run.root, run.root.parent / name)


# ------------------------------------------------------------------------------------------- a run to check by hand


def small(run: Run) -> None:
    """Three steps. Group 1 and 2 train at once; 3 spans two versions; 4 waits a step; 5 is too old and goes; 6 stays.

    Step 1 trains 1 and 2 (v0 on v0). Step 2 trains 3 (its rows 0..1 on v1) and 4 (v0 on v1). Step 3 trains 7 and 8
    (v2 on v2), after group 5, admitted at step 0 .. is evicted; group 6 is still in the buffer when the run ends.
    """
    run.metrics(
        record(1, [(0, 0)] * 4),
        record(2, [(0, 1), (0, 1), (1, 1), (1, 1)]),
        record(3, [(0, 0)] * 4, **{"training/off_policy/evicted_samples": 1.0}),
    )
    run.members(1, 1, 2)
    run.members(2, 3, 4)
    run.members(3, 7, 8)
    run.checkpoint(1, Buffer().group(1, 1, (0, 0)).group(2, 1, (0, 0)).prompt(5, "finished", 0).group(5, 0, (0, 0)))
    run.checkpoint(2, Buffer().group(3, 1, (0, 1)).group(4, 1, (0, 0)).prompt(5, "finished", 0).group(5, 0, (0, 0)))
    run.checkpoint(3, Buffer().group(7, 3, (2, 2)).group(8, 3, (2, 2)).prompt(6, "finished", 3).group(6, 3, (2, 2)))


def test_a_run_to_check_by_hand(run: Run) -> None:
    small(run)
    tables = load(run)
    assert tables.codes() == {}
    assert [
        (row["step"], row["v_train_lo"], row["v_train_hi"], row["completed"]) for row in tables.rows("steps", "step")
    ] == [
        (1, 0, 0, True),
        (2, 1, 1, True),
        (3, 2, 2, True),
    ]
    # The last token is of the newest version; of the nine before only the two ends are known.
    assert tables.versions(key(3, 0)) == [(9, 0, 1), (1, 1, 1)]
    assert tables.versions(key(4, 1)) == [(10, 0, 0)]
    assert tables.uses() == {
        (key(g, s), 0, step) for step, pair in ((1, (1, 2)), (2, (3, 4)), (3, (7, 8))) for g in pair for s in (0, 1)
    }
    assert tables.fates(key(5)) == {("dropped", "stale", "derived")}
    assert tables.fates(key(6)) == set()
    audit = tables.audit()
    assert (audit["verdict"], audit["bound"]["value"], audit["guarantee"]["strict"]) == ("pass", 2, True)
    assert figure(audit["tokens"]["trained"]) == (120, 120)
    assert {row["staleness"]: figure(row["tokens"]) for row in audit["staleness"]["token_histogram"]} == {
        0: (82, 100),
        1: (20, 38),
    }
    assert figure(audit["trajectories"]["dropped"]["stale"])[0] == 2
    assert all(row["agrees"] is not False for row in audit["reported"])


def test_a_smaller_bound_is_violated(run: Run) -> None:
    small(run)
    audit = load(run).audit(0)
    assert audit["verdict"] == "fail"
    assert figure(audit["violations"]["trajectories"]) == (2, 4)
    assert figure(audit["violations"]["groups"]) == (1, 2)


def test_compressed_and_deeper_runs_give_the_same(run: Run, tmp_path: Path) -> None:
    small(run)
    (run.root / "main_ppo.log").write_text("")  # Hydra leaves one that is empty
    plain = load(run).audit()
    deep = tmp_path / "deep" / "below"
    for file in sorted(run.root.rglob("*"), reverse=True):
        if file.is_file():
            target = deep / f"{file.relative_to(run.root)}.gz"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(gzip.compress(file.read_bytes()))
    packed = read(deep.parent, tmp_path / "packed").audit()
    for part in ("verdict", "staleness", "tokens", "trajectories", "bound", "guarantee"):
        assert packed[part] == plain[part]


# --------------------------------------------------------------------------------------------- what metrics alone imply


def test_sums_and_extremes_date_the_rows_of_a_step(run: Run) -> None:
    """Two rows end fresh and two a version old; one of the fresh ones began a version earlier."""
    run.metrics(record(1, [(0, 0)] * 4), record(2, [(0, 0), (0, 1), (1, 1), (1, 1)]))
    run.members(1, 1, 2)
    run.members(2, 3, 4)
    tables = load(run)
    assert tables.classes(1) == [(1, 0, 0)] * 4
    assert (key(1), 0, 1) in tables.uses()
    assert tables.classes(2) == [(1, 0, 0), (1, 0, 1), (2, 1, 1)]
    audit = tables.audit(0)
    assert figure(audit["violations"]["trajectories"]) == (2, 3)
    # Nobody knows how the two are distributed over the groups.
    assert figure(audit["violations"]["groups"]) == (1, 3)
    assert figure(audit["tokens"]["trained"]) == (80, 80)


def test_order_of_rows_from_sums() -> None:
    assert row_classes(Spread(6, 0, 1, 3, True, True), Spread(6, 0, 1, 4, True, True)) == [
        RowClass(2, 0, 0),
        RowClass(1, 0, 1),
        RowClass(3, 1, 1),
    ]
    assert row_classes(Spread(4, 2, 2, 8, True, True), Spread(4, 2, 2, 8, True, True)) == [RowClass(4, 2, 2)]


def test_spreads_are_tight() -> None:
    """Against all multisets of up to four numbers below four."""
    from itertools import combinations_with_replacement, product

    for count in range(1, 5):
        for values in combinations_with_replacement(range(4), count):
            low, high = min(values), max(values)
            for total, has_lo, has_hi in product((sum(values), None), (False, True), (False, True)):
                spread = Spread(count, low, high, total, has_lo, has_hi)
                fits = [
                    other
                    for other in combinations_with_replacement(range(low, high + 1), count)
                    if (total is None or sum(other) == total)
                    and (low in other or not has_lo)
                    and (high in other or not has_hi)
                ]
                assert spread.sound
                for limit in range(low - 1, high + 1):
                    below = [sum(value <= limit for value in other) for other in fits]
                    assert (spread.least_up_to(limit), spread.most_up_to(limit)) == (min(below), max(below))


def test_without_dumps_the_number_of_rows_is_bounded(run: Run) -> None:
    """Pitfall 10: n is no proof. Two groups have two rows at least, and the tokens are of four rows, or padding."""
    run.metrics(record(1, [(0, 0)] * 4))
    audit = load(run).audit()
    assert figure(audit["trajectories"]["trained"]) == (2, 4)
    assert audit["verdict"] == "pass"


def test_a_console_without_padding_counts_the_rows(run: Run) -> None:
    item = record(1, [(0, 0)] * 4)
    run.console(console_record(item))
    assert figure(load(run).audit()["trajectories"]["trained"]) == (4, 4)
    run.console(
        "Upsampled batch from 3 to 4 with 1 synthetic padding samples for required_multiple=4", console_record(item)
    )
    assert figure(load(run, "again").audit()["trajectories"]["trained"]) == (2, 4)


def test_only_dumps_leave_the_drop_rule(run: Run) -> None:
    """Guide section 6: with the dump and the configuration only the structural bound may be stated."""
    for step in range(1, 6):
        run.members(step, 2 * step, 2 * step + 1)
    assert load(run).classes(5) == [(1, 0, 2)] * 4
    run.config(v1_config(strategy="wait"))
    tables = load(run, "again")
    assert tables.classes(5) == [(1, 0, 4)] * 4
    assert tables.audit()["verdict"] == "inconclusive"


# ---------------------------------------------------------------------------------------------------- modes and bounds


@pytest.mark.parametrize(
    ("changes", "bound", "limit"),
    [
        ({}, 2, 2),
        ({"mode": "colocate_async", "threshold": 1}, 0, 0),
        ({"strategy": "wait"}, 2, "none"),
        ({"threshold": None}, None, "none"),
    ],
)
def test_modes(run: Run, changes: dict[str, object], bound: int | None, limit: object) -> None:
    run.config(v1_config(**changes))  # type: ignore[arg-type]
    run.metrics(record(1, [(0, 0)] * 4))
    facts = load(run).facts
    assert (facts["bound"]["value"], facts["guarantee"]["limit"], facts["unit"]) == (bound, limit, "global steps")


def test_a_custom_sampler_makes_its_own_rules(run: Run) -> None:
    """Pitfall 15."""
    changed = v1_config()
    changed["trainer"]["v1"]["sampler"]["custom_sampler"]["path"] = "mine.py"
    run.config(changed)
    for step in range(1, 5):
        run.members(step, 2 * step, 2 * step + 1)
    tables = load(run)
    assert tables.facts["guarantee"]["limit"] is None
    assert tables.classes(4) == [(1, 0, 3)] * 4


def test_the_console_holds_the_configuration_too(run: Run) -> None:
    import pprint

    (run.root / "outputs/2026-11-29/16-00-00/.hydra/config.yaml").unlink()
    lines = pprint.pformat(v1_config(strategy="wait")).splitlines()
    lines.insert(2, "WARNING:2026-11-29 16:33:10,560:No supported accelerator detected.")
    run.console(*lines, console_record(record(1, [(0, 0)] * 4)))
    facts = load(run).facts
    assert (facts["bound"]["value"], facts["guarantee"]["limit"]) == (2, "none")


def test_while_a_step_was_a_mini_batch_metrics_are_multiplied(run: Run) -> None:
    """Section 1: until 2026-07-08 versions are multiples of k = 2 and the metrics are divided by it (pitfall 20)."""
    changed = v1_config()
    changed["actor_rollout_ref"]["actor"]["ppo_mini_batch_size"] = 2
    run.config(changed)
    run.metrics(record(1, [(0, 0)] * 4, scale=2), record(2, [(1, 1)] * 4, scale=2), record(3, [(2, 2)] * 4, scale=2))
    for step in (1, 2, 3):
        run.members(step, 2 * step, 2 * step + 1)
    tables = load(run)
    assert tables.classes(2) == [(1, 1, 1)] * 4
    assert tables.classes(3) == [(1, 2, 2)] * 4
    assert tables.facts["bound"]["value"] == tables.facts["guarantee"]["limit"] == 3 * 2 + 2 - 2
    assert [row["version_lo"] for row in tables.rows("syncs")] == [2]


# ------------------------------------------------------------------------------------------------------------ pitfalls


def test_dropped_samples_is_the_older_name_of_evicted_samples(run: Run) -> None:
    run.metrics(record(1, [(0, 0)] * 4, **{"training/off_policy/dropped_samples": 3.0}))
    run.members(1, 1, 2)
    tables = load(run)
    assert tables.facts["dialect"] == "V1 separate_async (dropped_samples, before 2026-07-23)"
    audit = tables.audit()
    assert figure(audit["trajectories"]["dropped"]["stale"]) == (3, None)
    assert audit["trajectories"]["cancelled"] == {}


def test_missing_evictions_are_none(run: Run) -> None:
    """Pitfall 9."""
    run.metrics(record(1, [(0, 0)] * 4))
    run.members(1, 1, 2)
    audit = load(run).audit()
    assert audit["trajectories"]["dropped"] == audit["trajectories"]["lost"] == {}


def test_where_groups_wait_no_eviction_is_missing(run: Run) -> None:
    """Pitfall 9: strategy `wait` evicts nothing for age, so its metrics never name it."""
    run.config(v1_config(strategy="wait"))
    run.metrics(record(1, [(0, 0)] * 4))
    run.members(1, 1, 2)
    assert load(run).audit()["trajectories"]["dropped"] == {}


def test_the_age_of_evicted_groups_is_no_staleness(run: Run) -> None:
    """Pitfalls 1 and 13: what was evicted spanned 4 steps since its admission; what was trained is a version old.

    `trajectory_spans` of 3 is a range: it does not say that a version in between made a token.
    """
    more = {"training/off_policy/evicted_samples": 1.0}
    more |= {f"training/off_policy/evicted_samples_staleness/{end}": 4.0 for end in ("mean", "max", "min")}
    more["training/off_policy/trajectory_spans/max"] = 3
    run.metrics(record(1, [(0, 0)] * 4), record(2, [(1, 1)] * 4, **more))
    run.members(1, 1, 2)
    run.members(2, 3, 4)
    tables = load(run)
    assert tables.classes(2) == [(1, 1, 1)] * 4
    assert figure(tables.audit()["staleness"]["max"]) == (1, 1)
    assert tables.audit()["verdict"] == "pass"


def test_versions_go_on_while_the_critic_warms_up(run: Run) -> None:
    """Pitfall 14: the policy stays, its label counts; it is said, and ages are those of the labels."""
    changed = v1_config()
    changed["trainer"]["critic_warmup"] = 3
    run.config(changed)
    run.metrics(record(1, [(0, 0)] * 4), record(2, [(1, 1)] * 4))
    run.members(1, 1, 2)
    run.members(2, 3, 4)
    tables = load(run)
    assert tables.codes() == {"critic-warmup": 1}
    assert tables.classes(2) == [(1, 1, 1)] * 4
    assert [row["updates"] for row in tables.rows("steps", "step")] == [None, None]


def test_leftovers_of_an_interrupted_save_are_not_read(run: Run) -> None:
    """Pitfall 7: `transfer_queue.tmp` and `.old` beside a checkpoint hold what it replaced."""
    small(run)
    plain = load(run).audit()
    folder = run.root / "checkpoints/global_step_3"
    for name in ("transfer_queue.tmp", "transfer_queue.old"):
        run.write(f"checkpoints/global_step_3/{name}/controller_state.pkl", b"\x80\x05broken")
    assert sorted(path.name for path in folder.iterdir()) == [
        "transfer_queue",
        "transfer_queue.old",
        "transfer_queue.tmp",
    ]
    again = load(run, "again")
    assert again.codes() == {}
    assert again.audit()["tokens"] == plain["tokens"]


def test_a_failed_group_loses_one_row_at_least(run: Run) -> None:
    run.metrics(record(1, [(0, 0)] * 4, **{"training/rollout_failure/evicted_samples": 1.0}))
    run.members(1, 1, 2)
    audit = load(run).audit()
    assert figure(audit["trajectories"]["lost"]["error"]) == (1, None)
    assert figure(audit["trajectories"]["dropped"]["group"]) == (0, None)


def test_padding_rows_are_not_trajectories(run: Run) -> None:
    """Pitfall 8: they stand in the dump and in the checkpoint, with tags copied from a real row."""
    pad = "pad" + "0" * 32 + "_0_0"
    rows = [dump_row(1, key(1, s)) for s in (0, 1)]
    run.dump(1, *rows, dump_row(1, pad, text="", output=""))
    run.metrics(record(1, [(0, 0)] * 2))
    buffer = Buffer().group(1, 1, (0, 0)).row(pad, 1, (0, 0))
    buffer.tags[pad]["is_padding"] = True
    run.checkpoint(1, buffer)
    audit = load(run).audit()
    assert figure(audit["trajectories"]["trained"]) == (2, 2)
    assert figure(audit["tokens"]["trained"]) == (20, 20)


def test_masked_tokens_are_not_in_the_loss(run: Run) -> None:
    """Section 5 D: tool tokens are in the response, the mask's ones in the loss. Without it only a bound is left."""
    mask = [1] * 4 + [0] * 3 + [1] * 5
    run.members(1, 1)
    run.metrics(record(1, [(0, 0)] * 2, tokens=12, **{"training/num_turns/max": 4}))
    buffer = Buffer().row(key(1, 0), 1, (0, 0), mask).row(key(1, 1), 1, (0, 0), mask)
    run.checkpoint(1, buffer)
    assert figure(load(run).audit()["tokens"]["trained"]) == (18, 18)
    (run.root / "checkpoints/global_step_1/transfer_queue/simple_storage/su_0_TQ.pkl").unlink()
    assert figure(load(run, "again").audit()["tokens"]["trained"]) == (2, 24)


def test_the_recorded_minimum_may_be_too_old_but_not_older_than_the_admission(run: Run) -> None:
    """Rule 3, pitfall 12: admitted at step 3, so no token is older than v2, whatever an empty attempt stamped."""
    run.members(4, 1)
    run.metrics(*(record(step, [(0, 0)] * 2) for step in (1, 2, 3)), record(4, [(0, 2)] * 2))
    run.checkpoint(4, Buffer().group(1, 3, (1, 3)))
    assert load(run).versions(key(1)) == [(9, 2, 3), (1, 3, 3)]


def test_nonsense_stamps_are_not_trusted(run: Run) -> None:
    """None is what custom agent loops leave (rule 7): such rows are dated by the metrics."""
    run.members(1, 1, 2)
    run.metrics(record(1, [(0, 0)] * 4))
    buffer = Buffer().group(1, 1, (0, 0)).group(2, 1, (0, 0))
    buffer.tags[key(2)]["min_global_steps"] = buffer.tags[key(2)]["max_global_steps"] = None
    run.checkpoint(1, buffer)
    audit = load(run).audit()
    assert figure(audit["trajectories"]["trained"]) == (4, 4)
    assert figure(audit["staleness"]["max"]) == (0, 0)


def test_validation_dumps_are_not_training(run: Run) -> None:
    """Pitfall 11: they share names and fields, and add the reward."""
    run.members(1, 1, 2)
    run.metrics({"step": 0, "data": {"val-core/math/acc": 0.5}}, record(1, [(0, 0)] * 4))
    run.dump(1, *(dump_row(1, key(9, s), reward=1.0) for s in (0, 1)), folder="validation")
    run.dump(0, dump_row(0, key(8), reward=1.0), folder="validation")
    tables = load(run)
    assert figure(tables.audit()["trajectories"]["trained"]) == (4, 4)
    assert len(tables.rows("steps")) == 1


def test_consoles_are_messy(run: Run) -> None:
    """Pitfall 4: numpy reprs, nan, colours, a progress bar glued to a record, other actors, validation lines."""
    run.write(
        "console.log",
        "2026-11-29 16:32:55,254\tINFO worker.py:2038 -- Started a local Ray instance.\n"
        "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m step:0 - val-core/math/acc:np.float64(0.5)\n"
        "\x1b[36m(TaskRunnerV1 pid=7, ip=10.0.0.1)\x1b[0m Training Progress:  44%|####      | 4/9 [00:06<00:07]\r"
        + console_record(record(1, [(0, 0)] * 4)).replace("np.float64(0.5)", "nan")
        + "\n\x1b[36m(AgentLoopWorker pid=8)\x1b[0m step by step\n"
        "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m aggregated metrics done.Dumped generations to /data/rollout_data/1.jsonl\n"
        "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m step:2 - training/off_policy/trajec",
    )
    run.members(1, 1, 2)
    tables = load(run)
    assert tables.classes(1) == [(1, 0, 0)] * 4
    assert len(tables.rows("steps")) == 1


def test_replayed_batches_prove_nothing(run: Run) -> None:
    """Pitfall 17: cached mini-batches are stamped with the current step, so that everything looks fresh."""
    run.members(3, 1, 2)
    run.metrics(*(record(step, [(0, 0)] * 4) for step in (1, 2, 3)))
    run.console("[RolloutTqSkip()] Injected 4 cached trajectories for step 3", console_record(record(3, [(0, 0)] * 4)))
    tables = load(run)
    assert tables.classes(3) == [(1, 0, 2)] * 4
    assert tables.codes()["cached-rollouts"] == 1
    assert tables.audit()["verdict"] == "inconclusive"


def test_eviction_between_checkpoints_far_apart(run: Run) -> None:
    """Both rules evicted in between: which one took the group is an alternative, and nothing is counted twice."""
    evicted = {"training/off_policy/evicted_samples": 1.0}
    filtered = {"training/filter_groups/evicted_samples": 1.0}
    run.metrics(*(record(s, [(0, 0)] * 4, **more) for s, more in ((1, {}), (2, filtered), (3, evicted), (4, {}))))  # type: ignore[arg-type]
    for step in range(1, 5):
        run.members(step, 10 * step, 10 * step + 1)
    run.checkpoint(1, Buffer().group(10, 1, (0, 0)).group(11, 1, (0, 0)).prompt(5, "finished", 0).group(5, 0, (0, 0)))
    run.checkpoint(4, Buffer().group(40, 4, (3, 3)).group(41, 4, (3, 3)))
    tables = load(run)
    assert tables.fates(key(5)) == {("dropped", "stale", "inferred"), ("dropped", "zero_advantage", "inferred")}
    assert all(interval["lo"] == 0 for interval in tables.audit()["trajectories"]["dropped"].values())


def test_a_group_that_an_unnamed_step_may_have_trained_is_not_called_dropped(run: Run) -> None:
    run.metrics(*(record(s, [(0, 0)] * 4) for s in (1, 2, 3)))
    run.members(1, 10, 11)
    run.members(3, 30, 31)
    run.checkpoint(1, Buffer().group(10, 1, (0, 0)).group(11, 1, (0, 0)).prompt(5, "finished", 1).group(5, 1, (0, 0)))
    run.checkpoint(3, Buffer().group(30, 3, (2, 2)).group(31, 3, (2, 2)))
    tables = load(run)
    assert tables.fates(key(5)) == set()
    assert figure(tables.audit()["trajectories"]["trained"])[0] >= 8


def test_groups_need_not_have_n_rows(run: Run) -> None:
    """Pitfall 10: index > 0 shares a session."""
    run.dump(1, dump_row(1, key(1, 0, 0)), dump_row(1, key(1, 0, 1)), dump_row(1, key(2, 0, 0)))
    run.metrics(record(1, [(0, 0)] * 3))
    tables = load(run)
    assert {row["group_id"] for row in tables.rows("trajectories")} == {uid(1), uid(2)}
    assert figure(tables.audit()["trajectories"]["trained"]) == (3, 3)


def test_metrics_that_do_not_fit_the_dump_are_not_believed(run: Run) -> None:
    run.metrics(record(1, [(0, 0)] * 4), record(2, [(0, 0), (1, 1), (1, 1), (1, 1)]))
    run.members(1, 1, 2)
    run.members(2, 3, 4)
    run.checkpoint(2, Buffer().group(3, 2, (1, 1)).group(4, 1, (1, 1)))
    tables = load(run)
    assert figure(tables.audit()["trajectories"]["trained"]) == (8, 8)


def test_an_offline_file_of_w_and_b_stands_for_metrics(run: Run) -> None:
    rows = [
        {"_step": step, "_timestamp": 1.0e9 + step, **record(step, members)["data"]}
        for step, members in ((1, [(0, 0)] * 4), (2, [(1, 1)] * 4))
    ]
    file = run.root / "wandb/offline-run-20261129_153528-x/run-x.wandb"
    file.parent.mkdir(parents=True)
    file.write_bytes(wandb_file([history(row) for row in rows]))
    run.members(1, 1, 2)
    run.members(2, 3, 4)
    assert load(run).classes(2) == [(1, 1, 1)] * 4


def test_events_of_tensorboard_stand_for_metrics(run: Run) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = run.root / "tensorboard_log/demo/run"
    writer = EventFileWriter(str(folder))
    for step, rows in ((1, [(0, 0)] * 4), (2, [(1, 1)] * 4)):
        for name, value in record(step, rows)["data"].items():
            summary = Summary(value=[Summary.Value(tag=name, simple_value=float(value))])
            writer.add_event(Event(step=step, wall_time=1.0e9 + step, summary=summary))
    writer.close()
    run.members(1, 1, 2)
    run.members(2, 3, 4)
    assert load(run).classes(2) == [(1, 1, 1)] * 4


def test_unknown_and_missing_fields(run: Run) -> None:
    """Fields nobody knows are passed over; a row without its id still counts."""
    row = dump_row(1, None)
    run.write("rollout_data/1.jsonl", json.dumps({**row, "new": {"x": 1}}) + "\n" + json.dumps(row) + "\n")
    run.metrics(record(1, [(0, 0)] * 2, **{"brand/new": 1.0}))
    tables = load(run)
    assert tables.codes() == {}
    assert figure(tables.audit()["trajectories"]["trained"]) == (2, 2)


def test_without_a_console_dumped_batches_may_be_replayed(run: Run) -> None:
    """Pitfall 17: only the console tells first use from replay."""
    changed = v1_config()
    changed["skip"] = {"rollout_tq": {"enable": True, "steps": [3]}}
    run.config(changed)
    run.metrics(*(record(step, [(0, 0)] * 4) for step in (1, 2, 3)))
    for step in (1, 2, 3):
        run.members(step, 2 * step, 2 * step + 1)
    tables = load(run)
    assert tables.classes(3) == [(1, 0, 2)] * 4
    assert tables.classes(2) == [(1, 0, 0)] * 4
    run.console("[RolloutTqSkip()] No cached data found for step 3.", console_record(record(3, [(0, 0)] * 4)))
    assert load(run, "again").classes(3) == [(1, 0, 0)] * 4


def test_times_of_tensorboard_and_waits(run: Run) -> None:
    run.metrics(record(1, [(0, 0)] * 4))
    assert [row["waited_us"] for row in load(run).rows("steps")] == [500_000]


def test_a_step_whose_numbers_came_at_two_looks_of_a_watch_is_one_record() -> None:
    """An event file has a record for each number; a watch may cut it between two of a step."""
    about = dict.fromkeys(metrics.ROWS) | {"source": "tb/events", "origin": "events", "ts": 5.0, "locator": "record 7"}
    before = about | {"step": 1, "worst_max": 0.0}
    first, rest = about | {"step": 2, "worst_max": 1.0}, about | {"step": 2, "ts": 5.5, "worst_max": None, "stale": 4.0}
    console = about | {"source": "console.log", "origin": "console", "step": 2}
    found = metrics.joined([before, first, rest, console, dict(console)])
    assert found == [before, about | {"step": 2, "worst_max": 1.0, "stale": 4.0}, console, console]

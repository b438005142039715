"""TRL's trainer on runs small enough to follow by hand, its dialects, the guide's pitfalls, and damage."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from staleness_parsers.trl.replay import Batch, Queue, Shape, deliveries, micro_batches, spans
from trl_run import Plan, Sim, arguments, truth, write

from staleness_audit.api import audit

STAMP = "2026-11-29 15:00:{:02d},000 INFO trl: [RANK 0] "
SYNC = ("Weight sync: pausing vLLM...", "Weight sync: transferring weights...", "Weight sync: done. Total 0.0s")
SCORE = "[score] scored 4 samples in 0.00s, buffer_qsize=0"
SETTINGS = {**arguments(Plan(steps=3, bound=1, slots=12)), "logging_steps": 1}


def record(step: int, largest: float | None, tokens: int, **more: Any) -> dict[str, Any]:
    values = {
        "step": step,
        "loss": 0.1 * step,
        "batch/samples_per_step": 4.0,
        "batch/trained_tokens_per_step": float(tokens),
    }
    values |= {"sample/staleness_max": largest, "rollout/samples_per_rollout": 1.0}
    return values | ({"perf/step_s": 0.5} if step > 1 else {}) | more


RECORDS = [record(1, 0.0, 40), record(2, 1.0, 44), record(3, 0.0, 48)]
"""The guide's counterexample (section 4.6): rows were at most one version old when pulled."""


def hand_console() -> list[str]:
    """Three groups are scored under v0; the third is pulled at v1, one version old, and trained at v2, two old."""
    said: list[tuple[int, str]] = [(1, text) for text in SYNC]
    said += [(2, "vllm worker started: num_generations=4, max_inflight_tasks=12")]
    said += [(3, SCORE), (3, SCORE), (3, SCORE)]
    said += [(4, text) for text in SYNC] + [(5, text) for text in SYNC]
    said += [(6, SCORE)] + [(7, text) for text in SYNC]
    return [STAMP.format(second) + text for second, text in said]


def hand_run(
    folder: Path, records: list[dict[str, Any]] | None = None, lines: list[str] | None = None, **more: Any
) -> Path:
    run = folder / "run"
    state = run / "output" / "checkpoint-3"
    state.mkdir(parents=True)
    document = {"global_step": 3, "log_history": RECORDS if records is None else records, **SETTINGS, **more}
    (state / "trainer_state.json").write_text(json.dumps(document))
    database(run / "trackio" / "p.db", [(1, "r", "mine", {**SETTINGS, **more})], [])
    if lines is not None:
        (run / "console.log").write_text("\n".join(lines) + "\n")
    return run


def database(path: Path, configs: list[Any], metrics: list[Any], traces: list[Any] = ()) -> None:  # type: ignore[assignment]
    path.parent.mkdir(parents=True, exist_ok=True)
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE configs (id INTEGER PRIMARY KEY, run_id TEXT, run_name TEXT, config TEXT)")
    base.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_id, timestamp, run_name, step, metrics)")
    base.execute("CREATE TABLE traces (id TEXT, run_id, timestamp, run_name, step, key, trace_index, metadata)")
    base.executemany(
        "INSERT INTO configs VALUES (?, ?, ?, ?)", [(*row[:3], json.dumps(row[3]).encode()) for row in configs]
    )
    base.executemany(
        "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", [(*row[:5], json.dumps(row[5]).encode()) for row in metrics]
    )
    base.executemany(
        "INSERT INTO traces VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [(*row[:7], json.dumps(row[7]).encode()) for row in traces],
    )
    base.commit()
    base.close()


def exact(value: float) -> dict[str, float]:
    return {"lo": value, "hi": value}


def codes(data: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {item["code"]: (item["severity"], item["opens"]) for item in data["diagnostics"]["items"]}


class TestByHand:
    def test_a_group_that_passed_the_check_is_trained_one_version_later(self, tmp_path: Path) -> None:
        data = audit(hand_run(tmp_path, lines=hand_console()), tables=tmp_path / "t").data
        assert data["verdict"] == "fail"
        assert data["run"]["steps"] == exact(3)
        assert [row["max"] for row in data["per_step"]] == [exact(0), exact(1), exact(2)]
        # Step 3: one group of four rows with all its 48 tokens, while no logged number is above 1.
        assert data["violations"]["trajectories"] == exact(4)
        assert data["violations"]["tokens"] == exact(48)
        assert data["violations"]["groups"] == exact(1)
        assert data["guarantee"]["limit"] == 2
        assert data["guarantee"]["strict"] is False

    def test_the_report_at_the_pull_disagrees_with_what_was_trained(self, tmp_path: Path) -> None:
        data = audit(hand_run(tmp_path, lines=hand_console()), tables=tmp_path / "t").data
        told = {
            (row["step"], row["reported"]): row["agrees"]
            for row in data["reported"]
            if row["name"] == "step.staleness_max"
        }
        # The record of step 2 speaks of the rows of step 3: 1 at the pull, 2 when trained.
        assert told[3, 1.0] is False

    def test_the_metrics_alone_make_the_violation_possible_but_prove_nothing(self, tmp_path: Path) -> None:
        data = audit(hand_run(tmp_path), tables=tmp_path / "t").data
        assert data["verdict"] == "inconclusive"
        assert data["violations"]["trajectories"] == {"lo": 0, "hi": 4}
        assert data["staleness"]["max"] == {"lo": 1, "hi": 2}
        assert any("basicConfig" in hint["remedy"] for hint in data["hints"])

    def test_a_bound_of_zero_is_broken_by_the_rules_alone(self, tmp_path: Path) -> None:
        # A row is never newer than its pull, and all but the first micro-batch are pulled a version early.
        records = [record(1, 0.0, 40), record(2, 0.0, 44), record(3, 0.0, 48)]
        data = audit(hand_run(tmp_path, records, max_staleness=0), tables=tmp_path / "t").data
        assert data["verdict"] == "fail"
        assert data["violations"]["trajectories"] == exact(8)

    def test_a_wider_bound_passes_without_a_console(self, tmp_path: Path) -> None:
        assert audit(hand_run(tmp_path), 2, tables=tmp_path / "t").data["verdict"] == "pass"


class TestPitfalls:
    def test_a_counter_that_is_missing_or_null_is_zero(self, tmp_path: Path) -> None:
        records = [record(1, 0.0, 40), record(2, 1.0, 44, **{"sample/dropped_stale_total": None}), record(3, None, 48)]
        data = audit(hand_run(tmp_path, records), tables=tmp_path / "t").data
        assert data["trajectories"]["dropped"] == {}
        assert data["staleness"]["max"] == {"lo": 1, "hi": 2}

    def test_the_step_of_a_new_trace_minus_its_version_is_not_a_staleness(self, tmp_path: Path) -> None:
        run = hand_run(tmp_path, lines=hand_console())
        before = audit(run, tables=tmp_path / "t").data
        (run / "trackio" / "p.db").unlink()
        meta = {"reward": 1.0, "group_id": 0, "model_version": 1, "prompt_tokens": 7, "completion_tokens": 10}
        traces = [(f"r:l:rollouts:{i}", "r", "2026-11-29T15:00:09", "mine", 16, "rollouts", i, meta) for i in range(8)]
        database(run / "trackio" / "p.db", [(1, "r", "mine", SETTINGS)], [], traces)
        after = audit(run, tables=tmp_path / "u").data
        assert after["staleness"] == before["staleness"]
        assert after["trajectories"] == before["trajectories"]

    def test_trackios_own_step_and_empty_rows_are_passed_over(self, tmp_path: Path) -> None:
        rows = []
        for number, one in enumerate(RECORDS):
            document = {f"train/{key}": value for key, value in one.items() if key != "step"} | {
                "train/global_step": one["step"]
            }
            rows.append((2 * number + 1, "r", f"2026-11-29T15:00:0{number}+00:00", "mine", 16 + number, document))
            rows.append((2 * number + 2, "r", f"2026-11-29T15:00:0{number}+00:00", "mine", 16 + number, {}))
        database(tmp_path / "run" / "p.db", [(1, "r", "mine", SETTINGS)], rows)
        data = audit(tmp_path / "run", tables=tmp_path / "t").data
        assert data["run"]["steps"] == exact(3)
        assert data["tokens"]["trained"] == exact(132)

    def test_a_database_with_a_write_ahead_log_is_read_and_left_as_it_was(self, tmp_path: Path) -> None:
        """The records are in ``-wal`` only; a plain look would merge it, or leave ``-shm`` behind."""
        database(tmp_path / "live" / "p.db", [(1, "r", "mine", SETTINGS)], [])
        live = sqlite3.connect(tmp_path / "live" / "p.db")
        live.execute("PRAGMA journal_mode=WAL")
        for one in RECORDS:
            document = {f"train/{key}": value for key, value in one.items() if key != "step"}
            document["train/global_step"] = one["step"]
            row = (one["step"], "r", f"2026-11-29T15:00:0{one['step']}+00:00", "mine", 1, json.dumps(document).encode())
            live.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", row)
        live.commit()
        run = tmp_path / "run"
        run.mkdir()
        for name in ("p.db", "p.db-wal"):
            shutil.copy(tmp_path / "live" / name, run / name)
        live.close()
        before = {path.name: path.read_bytes() for path in run.iterdir()}
        data = audit(run, tables=tmp_path / "t").data
        assert data["run"]["steps"] == exact(3)
        assert data["tokens"]["trained"] == exact(132)
        assert {path.name: path.read_bytes() for path in run.iterdir()} == before

    def test_the_closing_record_and_numbers_that_are_none_are_no_step(self, tmp_path: Path) -> None:
        """``train_runtime`` comes without metrics of samples; rewards may be NaN; keys of tools were renamed."""
        last = {"step": 3, "train_runtime": 12.5, "train_loss": 0.2, "rollout/inflight": 3.0}
        odd = {"reward": float("nan"), "tools/x_latency_s": 0.1, "tools/x/latency_s": 0.1}
        records = [record(1, 0.0, 40, **odd), record(2, 1.0, 44), record(3, 0.0, 48), last]
        data = audit(hand_run(tmp_path, records), tables=tmp_path / "t").data
        assert codes(data) == {}
        assert data["run"]["steps"] == exact(3)
        assert data["tokens"]["trained"] == exact(132)
        assert data["run"]["health"]["state"] == "finished"

    def test_another_run_in_the_same_database_is_left_out_and_said_so(self, tmp_path: Path) -> None:
        rows = []
        for number, (name, at) in enumerate([("other", 1), ("mine", 2)]):
            for one in RECORDS[: 3 - number]:
                document = {f"train/{key}": value for key, value in one.items() if key != "step"}
                document["train/global_step"] = one["step"]
                rows.append((len(rows) + 1, name, f"2026-11-29T1{at}:00:0{one['step']}+00:00", name, 1, document))
        configs = [(1, "other", "other", SETTINGS), (2, "mine", "mine", SETTINGS)]
        database(tmp_path / "run" / "p.db", configs, rows)
        data = audit(tmp_path / "run", tables=tmp_path / "t").data
        assert data["tokens"]["trained"] == exact(84)
        assert codes(data)["several-runs"] == ("warning", None)

    def test_forked_rows_are_not_trajectories(self, tmp_path: Path) -> None:
        records = [record(1, 0.0, 40), record(2, 1.0, 44, **{"rollout/samples_per_rollout": 1.5}), record(3, 0.0, 48)]
        data = audit(hand_run(tmp_path, records), tables=tmp_path / "t").data
        trained = data["trajectories"]["trained"]
        # All rows may be those of one conversation.
        assert trained == {"lo": 1, "hi": 12}
        assert data["tokens"]["trained"] == exact(132)
        # Some trajectory of step 3 is two versions old, however many there are.
        told = audit(hand_run(tmp_path / "b", records, hand_console()), tables=tmp_path / "u").data
        assert told["violations"]["trajectories"] == {"lo": 1, "hi": 4}

    def test_before_1_11_only_groups_of_the_right_size_show_that_none_was_split(self, tmp_path: Path) -> None:
        old = {"weight_sync_time_s": 0.1}
        records = [{"step": step, "loss": 0.1 * step, **old} for step in (1, 2, 3)]
        data = audit(hand_run(tmp_path, records), tables=tmp_path / "t").data
        assert data["trajectories"]["trained"] == {"lo": 1, "hi": None}
        # Lines of scoring name groups of four: every row is a trajectory (how many processes trained, nobody knows).
        data = audit(hand_run(tmp_path / "b", records, hand_console()), tables=tmp_path / "u").data
        assert data["trajectories"]["trained"] == {"lo": 12, "hi": None}

    def test_a_launch_that_was_stopped_may_have_dropped_rows_after_its_last_record(self, tmp_path: Path) -> None:
        stopped = audit(hand_run(tmp_path, max_steps=9), tables=tmp_path / "t").data
        assert stopped["trajectories"]["dropped"] == {"unknown": {"lo": 0, "hi": None}}
        whole = audit(hand_run(tmp_path / "b", max_steps=3), tables=tmp_path / "u").data
        assert whole["trajectories"]["dropped"] == {}

    def test_log_files_whose_losses_differ_are_of_several_launches(self, tmp_path: Path) -> None:
        """The first launch is started anew after two steps, in a file of its own: only the second one counts."""
        losses = (("console.log", (0.5, 0.4)), ("console_2.log", (0.7, 0.6, 0.3)))
        run = hand_run(tmp_path)
        (run / "output" / "checkpoint-3" / "trainer_state.json").unlink()
        for hour, (name, values) in enumerate(losses):
            lines = ["  0%|   | 0/3 [00:00<?, ?it/s]", STAMP.format(1).replace("15:00", f"1{5 + hour}:00") + SYNC[0]]
            for step, loss in enumerate(values, 1):
                shown = {"loss": str(loss), "batch/samples_per_step": "4", "rollout/samples_per_rollout": "1"}
                bar = f" {33 * step}%|#  | {step}/3 [00:01<00:01,  1.0s/it]"
                lines += [bar, str(shown), bar]
            (run / name).write_text("\n".join(lines) + "\n")
        data = audit(run, tables=tmp_path / "t").data
        assert data["run"]["attempts"] == 2
        assert data["run"]["steps"] == exact(3)
        assert data["trajectories"]["trained"] == exact(12)

    def test_a_console_in_another_time_zone_is_put_beside_utc(self, tmp_path: Path) -> None:
        rows = []
        for one, second in zip(RECORDS, (4, 5, 7), strict=True):
            document = {f"train/{key}": value for key, value in one.items() if key != "step"} | {
                "train/global_step": one["step"]
            }
            rows.append((one["step"], "r", f"2026-11-29T13:00:{second:02d}.2+00:00", "mine", 1, document))
        run = hand_run(tmp_path, lines=hand_console())
        (run / "trackio" / "p.db").unlink()
        database(run / "trackio" / "p.db", [(1, "r", "mine", SETTINGS)], rows)
        syncs = audit(run, tables=tmp_path / "t").rebuilt.dataset.scan("syncs").collect()
        assert {moment.hour for moment in syncs["ended"]} == {13}

    def test_completions_in_boxes_can_not_speak_for_the_trainer(self, tmp_path: Path) -> None:
        lines = hand_console()
        lines.insert(8, "│ q │ dropping stale sample (staleness=9, max=1) Weight sync: transferring weights │")
        data = audit(hand_run(tmp_path, lines=lines), tables=tmp_path / "t").data
        assert data["trajectories"]["dropped"] == {}
        assert data["violations"]["trajectories"] == exact(4)

    def test_lines_of_other_ranks_are_not_counted(self, tmp_path: Path) -> None:
        lines = [line for one in hand_console() for line in (one, one.replace("[RANK 0]", "[RANK 1]"))]
        assert audit(hand_run(tmp_path, lines=lines), tables=tmp_path / "t").data["violations"][
            "trajectories"
        ] == exact(4)

    def test_a_console_that_lacks_a_sync_proves_nothing(self, tmp_path: Path) -> None:
        lines = [line for line in hand_console() if "15:00:04" not in line and "15:00:05" not in line]
        data = audit(hand_run(tmp_path, lines=lines), tables=tmp_path / "t").data
        assert data["violations"]["trajectories"] == {"lo": 0, "hi": 4}
        assert codes(data)["console-incomplete"] == ("warning", None)

    def test_drops_missing_from_the_console_are_noticed(self, tmp_path: Path) -> None:
        records = [RECORDS[0], record(2, 1.0, 44, **{"sample/dropped_stale_total": 4.0}), RECORDS[2]]
        data = audit(hand_run(tmp_path, records, hand_console()), tables=tmp_path / "t").data
        assert codes(data)["console-incomplete"] == ("warning", None)
        assert data["trajectories"]["dropped"] == {"stale": exact(4)}


class TestDialects:
    def test_the_printed_records_alone_have_four_digits(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        run.mkdir()
        lines = [f"  0%|   | {0}/3 [00:00<?, ?it/s]"]
        for one in RECORDS:
            shown = {key: f"{value:.4g}" for key, value in one.items() if key != "step"}
            shown["batch/trained_tokens_per_step"] = f"{one['batch/trained_tokens_per_step'] * 1000.3:.4g}"
            lines.append(
                f"\r  9%|   | {one['step']}/3 [00:00<?, ?it/s]\r{shown}\n\r  9%|   | {one['step']}/3 [00:00<?, ?it/s]"
            )
        (run / "out.txt").write_text("".join(line + "\n" for line in lines))
        data = audit(run, tables=tmp_path / "t").data
        assert data["run"]["steps"]["hi"] == 3
        assert data["trajectories"]["trained"] == exact(12)
        # 132040 tokens, printed as 4.001e+04, 4.401e+04, 4.801e+04.
        assert data["tokens"]["trained"]["lo"] < 132040 < data["tokens"]["trained"]["hi"]
        assert data["verdict"] == "no-bound"
        assert "sync-interval-unknown" in codes(data)

    @pytest.mark.parametrize("label", [0, 5])
    def test_a_resumed_run_repeats_steps_and_counts_them_once(self, tmp_path: Path, label: int) -> None:
        # The first launch dies in step 7; the second resumes after step 4, its labels start again or go on.
        plan = Plan(steps=8, bound=2, seed=3)
        first = Sim(plan).run(6)
        second = Sim(plan, start=4, label=label, launch=1, at=first.now + 100).run(8)
        write(tmp_path / "run", [first, second])
        data = audit(tmp_path / "run", tables=tmp_path / "t").data
        told = truth([first, second])
        assert data["run"]["attempts"] == 2
        assert data["run"]["steps"] == exact(8)
        assert data["trajectories"]["trained"] == exact(told["trajectories"])
        assert data["tokens"]["trained"] == exact(told["tokens"])
        assert data["trajectories"]["lost"]["rolled_back"] == exact(8)

    def test_the_files_of_the_first_launch_are_missed(self, tmp_path: Path) -> None:
        plan = Plan(steps=8, seed=3)
        second = Sim(plan, start=4, label=5, launch=1).run(8)
        write(tmp_path / "run", [second])
        data = audit(tmp_path / "run", 9, tables=tmp_path / "t").data
        assert codes(data)["steps-missing"] == ("error", "training")
        assert data["verdict"] == "inconclusive"

    def test_a_lost_flush_of_1_10_is_betrayed_by_its_labels(self, tmp_path: Path) -> None:
        launch = Sim(Plan(steps=12, bound=4, old=True, seed=5)).run(12)
        del launch.flushes[2]
        write(tmp_path / "run", [launch], console=False)
        data = audit(tmp_path / "run", tables=tmp_path / "t").data
        assert codes(data)["traces-do-not-replay"] == ("warning", None)
        assert data["run"]["steps"] == exact(12)

    def test_the_number_of_processes_follows_from_the_rows(self, tmp_path: Path) -> None:
        for old in (False, True):
            launch = Sim(Plan(steps=8, size=2, processes=3, micro=2, old=old, bound=4, slots=40)).run(8)
            write(tmp_path / str(old), [launch])
            data = audit(tmp_path / str(old), tables=tmp_path / f"t{old}").data
            assert data["trajectories"]["trained"] == exact(96)


class TestDamage:
    def test_a_cut_last_line_did_not_happen(self, tmp_path: Path) -> None:
        run = hand_run(tmp_path, lines=[*hand_console(), "{'loss': '0.3333', 'sample/stal"])
        text = (run / "console.log").read_text()
        (run / "console.log").write_text(text.rstrip("\n"))
        data = audit(run, tables=tmp_path / "t").data
        assert data["verdict"] == "fail"
        assert not data["diagnostics"]["errors"]

    @pytest.mark.parametrize("bad", [b"", b"{", b"[]", b'{"log_history": 3, "sample/staleness_max": 1}', b"\xff\xfe"])
    def test_a_broken_checkpoint_is_made_good_by_trackio(self, tmp_path: Path, bad: bytes) -> None:
        launch = Sim(Plan(steps=4, bound=4)).run(4)
        write(tmp_path / "run", [launch])
        state = next((tmp_path / "run").rglob("trainer_state.json"))
        state.write_bytes(bad if b"stale" in bad or not bad else b'"sample/staleness_max"' + bad)
        data = audit(tmp_path / "run", tables=tmp_path / "t").data
        assert data["run"]["steps"] == exact(4)
        assert data["verdict"] == "pass"

    def test_a_broken_checkpoint_alone_forbids_pass(self, tmp_path: Path) -> None:
        run = hand_run(tmp_path, lines=hand_console())
        next(run.rglob("trainer_state.json")).write_bytes(b'{"sample/staleness_max": 1, "log_history": [{"st')
        data = audit(run, 9, tables=tmp_path / "t").data
        assert codes(data)["state-damaged"] == ("error", "training")
        assert data["verdict"] == "inconclusive"

    def test_a_record_of_wrong_types_is_passed_over(self, tmp_path: Path) -> None:
        records = [RECORDS[0], {"step": "two"}, {**RECORDS[1], "batch/samples_per_step": "many"}, RECORDS[2], 7]
        data = audit(hand_run(tmp_path, records), tables=tmp_path / "t").data  # type: ignore[arg-type]
        assert codes(data)["state-damaged"] == ("error", "training")
        assert data["verdict"] == "inconclusive"

    def test_a_broken_database_says_so(self, tmp_path: Path) -> None:
        launch = Sim(Plan(steps=4, bound=4)).run(4)
        write(tmp_path / "run", [launch])
        path = next((tmp_path / "run").rglob("*.db"))
        path.write_bytes(path.read_bytes()[:5000])
        data = audit(tmp_path / "run", 9, tables=tmp_path / "t").data
        assert codes(data)["trackio-damaged"][0] == "warning"
        assert data["run"]["steps"] == exact(4)

    def test_a_console_cut_in_its_compression_is_not_trusted(self, tmp_path: Path) -> None:
        run = hand_run(tmp_path, lines=hand_console())
        data = gzip.compress((run / "console.log").read_bytes())
        (run / "console.log").unlink()
        (run / "console.log.gz").write_bytes(data[: len(data) // 2])
        found = audit(run, tables=tmp_path / "t").data
        # The drops it may have told of are unknown; what was trained stands in the metrics.
        assert codes(found)["console-damaged"] == ("warning", "fates")
        assert found["staleness"]["max"]["hi"] == 2
        assert found["verdict"] == "inconclusive"


class TestReplay:
    def test_whole_groups_leave_one_choice_or_none(self) -> None:
        assert deliveries([4, 4, 4], 4) == [False, False, True]
        assert deliveries([4, 3, 4], 7) == [False, True, True]
        assert deliveries([4, 4, 4], 8) is None  # either of the first two
        assert deliveries([4, 4], 8) == [True, True]
        assert deliveries([4], 3) is None
        assert deliveries([], 0) is None

    def test_the_budget_is_filled_by_the_least_loaded_process(self) -> None:
        # Budget 8, one process: 5 + 3 fit, the 4 opens the next.
        assert micro_batches([5, 3, 4], 8, 1) == [0, 0, 1]
        # Two processes: 5 | 4, then 3 joins the lighter one (4: 16 < 25), then neither has room for 6.
        assert micro_batches([5, 4, 3, 6], 8, 2) == [0, 0, 0, 1]

    @pytest.mark.parametrize(
        ("micro", "per_micro", "row", "step", "pulled"),
        [
            (1, 4, 0, 1, 1),  # micro-batches 1 and 2 are pulled in step 1
            (1, 4, 4, 2, 1),
            (1, 4, 8, 3, 2),  # micro-batch 3 one step early
            (2, 4, 8, 2, 1),  # micro-batch 3 opens step 2 and was pulled in step 1
            (2, 4, 12, 2, 2),
        ],
    )
    def test_the_first_micro_batch_of_a_step_is_pulled_a_step_early(
        self, micro: int, per_micro: int, row: int, step: int, pulled: int
    ) -> None:
        shape = Shape(0, 1, micro, per_micro, False, 1)
        assert shape.pulled(step, row=row) == (pulled, pulled)

    def test_the_row_that_opens_a_budget_is_two_versions_old(self) -> None:
        # Token budget, G = 1, bound 2: the opener of step 5 was checked in step 3 at v2, at most 2 old: from v0.
        shape = Shape(0, 1, 1, None, True, 2)
        found = list(spans(shape, Queue(), {}, Batch(5, 5, 3, 12)))
        assert [(one.count, one.version_lo, one.version_hi, one.lag_hi) for one in found] == [
            (1, 0, 2, 4),
            (2, 1, 3, 3),
        ]

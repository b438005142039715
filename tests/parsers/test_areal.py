"""AReaL: each pitfall of the guide on a run that can be followed by hand (the story is told in ``areal_run``)."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import pytest
from areal_run import (
    ASSIGNED,
    ENGINE,
    NOON,
    STATS,
    STRAGGLER,
    Trial,
    codes,
    config,
    dump_row,
    dumps_of,
    exact,
    judged,
    put,
    says,
    session,
    spans,
    stats,
    step_lines,
    straggler,
    task_lines,
    tracer,
    uses,
    versions,
)
from openrlhf_run import event_file
from staleness_parsers.areal import PARSER
from staleness_parsers.areal.content import Dialect
from staleness_parsers.areal.facts import guarantee
from staleness_parsers.areal.settings import settings_from

from staleness_audit.api import audit
from staleness_audit.discovery import discover


class TestTheStory:
    def test_the_straggler_is_trained_in_the_step_after_it_ended(self, tmp_path: Path) -> None:
        result = judged(straggler(), tmp_path)
        data = result.data
        assert uses(result) == ASSIGNED
        assert versions(result)["2/0"] == [(0, 0, 4), (1, 1, 3), (2, 2, 2)]
        assert data["verdict"] == "fail"
        # 4 tokens of v0 and 3 of v1 in step 3 are 3 and 2 old.
        assert data["violations"]["tokens"] == exact(7)
        assert data["violations"]["trajectories"] == exact(1)
        assert data["staleness"]["max"] == exact(3)
        assert data["trajectories"]["pending"] == exact(1)
        assert data["run"]["steps"] == exact(4)
        assert data["bound"]["value"] == 1
        assert data["guarantee"]["limit"] == "none"

    def test_a_log_cut_before_the_straggler_ended_does_not_pass(self, tmp_path: Path) -> None:
        """Spans and statistics go on: task 2, open at the cut, is among what a later step may have trained.

        The last line left is of second 29, so even the batch of step 2 (second 30 to 32) was not seen to its end.
        """
        trial = straggler()
        trial.console = [(at, line) for at, line in trial.console if at < 34]
        root = trial.write(tmp_path / "run")
        walls = {step: NOON.timestamp() + 10 * step + 17 for step in STATS}
        points = [(tag, step, value, walls[step]) for step, row in STATS.items() for tag, value in row.items()]
        event_file(root / "tensorboard" / f"events.out.tfevents.{round(walls[0])}.node0", points)
        result = audit(tmp_path / "run", 2, framework="areal", tables=tmp_path / "tables")
        assert uses(result) == {key: names for key, names in ASSIGNED.items() if key < (0, 2)}
        assert result.data["verdict"] == "inconclusive"
        assert result.data["staleness"]["max"] == {"lo": 1, "hi": 3}
        assert result.data["trajectories"]["trained"] == exact(8)
        assert result.data["trajectories"]["dropped"] == {"unknown": {"lo": 0, "hi": None}}
        assert "log-breaks-off" in codes(result)

    def test_the_consoles_times_are_moved_to_utc(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.sessions = [session(number, number, begin, end) for number, (begin, end, _) in STRAGGLER.items()]
        result = judged(trial, tmp_path)
        assert "zone-unknown" not in codes(result)
        assert result.data["run"]["started"] == "2026-11-29T12:00:12+00:00"
        assert "zone-unknown" in codes(judged(straggler(), tmp_path / "other"))

    def test_what_is_missing_is_replaced_by_what_is_there(self, tmp_path: Path) -> None:
        """Without spans the step lines tell when batches were collected, without task lines the sessions do."""
        timed = {number: {**values, "timeperf/rollout": 2.0} for number, values in STATS.items()}
        without_spans = straggler()
        without_spans.perf = {}
        without_spans.console = tracer() + task_lines(STRAGGLER) + step_lines(timed)
        assert uses(judged(without_spans, tmp_path / "a")) == ASSIGNED
        without_lines = straggler()
        without_lines.console = tracer() + step_lines(STATS)
        without_lines.sessions = [session(number, number, begin, end) for number, (begin, end, _) in STRAGGLER.items()]
        assert uses(judged(without_lines, tmp_path / "b")) == ASSIGNED

    def test_times_of_a_clock_that_was_set_back_order_nothing(self, tmp_path: Path) -> None:
        """From task 5 on, or in the console's last steps, an hour is told twice: who was trained where is open."""
        rows = [session(number, number, begin, end) for number, (begin, end, _) in STRAGGLER.items()]
        without_lines = straggler()
        without_lines.console = tracer() + step_lines(STATS)
        late = [session(number, number, begin - 3600, end - 3600) for number, (begin, end, _) in STRAGGLER.items()]
        without_lines.sessions = rows[:5] + late[5:]
        back = straggler()
        back.console = [(at, line.replace("-14:00:4", "-13:00:4")) for at, line in back.console]
        for name, trial in (("sessions", without_lines), ("console", back)):
            result = judged(trial, tmp_path / name)
            assert "clock-set-back" in codes(result)
            assert result.data["verdict"] == "inconclusive"
            assert result.data["tokens"]["trained"] == exact(51)

    def test_without_order_or_status_no_batch_is_claimed(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.console = tracer() + step_lines(STATS)
        result = judged(trial, tmp_path)
        assert uses(result) == {}
        assert result.data["tokens"]["trained"] == exact(11 + 15 + 12 + 13)
        assert result.data["verdict"] == "inconclusive"
        assert any("enable_rollout_tracing" in hint["remedy"] for hint in result.data["hints"])

    def test_without_dumps_times_bound_the_versions(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.dumps = {}
        result = judged(trial, tmp_path)
        # Task 2 ran from v0 to v2; task 7 started and ended under v2, and step 3 trained them.
        assert versions(result)["2/0"] == [(0, 2, None)]
        assert versions(result)["7/0"] == [(2, 2, None)]
        assert result.data["staleness"]["max"]["hi"] == 3
        assert result.data["tokens"]["trained"] == exact(51)


class TestTheReplay:
    def test_a_checksum_overrules_the_log_by_a_moment(self, tmp_path: Path) -> None:
        """Task 2 is there 1 ms after the look that fills step 1, and the step's tokens say that it was taken."""
        tasks = {**STRAGGLER, 2: (3.5, 20.001, [[0, 4]])}
        counted = {0: stats(2, 11), 1: stats(2, 11), 2: stats(2, 17), 3: stats(2, 7)}
        trial = straggler()
        trial.console = tracer() + task_lines(tasks) + step_lines(counted)
        trial.dumps = dumps_of(tasks)
        assert uses(judged(trial, tmp_path))[0, 1] == {"2/0", "3/0"}

    def test_without_a_checksum_two_ways_are_both_left_open(self, tmp_path: Path) -> None:
        moved = {**STRAGGLER, 2: (3.5, 20.001, [[0, 4]])}
        trial = straggler()
        trial.console = tracer() + task_lines(moved) + step_lines({number: stats(2, 11) for number in range(4)})
        trial.dumps = {}
        result = judged(trial, tmp_path)
        # Task 3 was trained in step 1 either way; 2 and 4 in step 1 or 2.
        assert uses(result)[0, 1] == {"3/0"}
        assert result.data["trajectories"]["trained"] == exact(8)
        assert result.data["trajectories"]["pending"]["hi"] is None

    def test_a_batch_that_nothing_explains_is_only_counted(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.console = tracer() + task_lines(STRAGGLER) + step_lines({**STATS, 2: stats(2, 777)})
        result = judged(trial, tmp_path)
        assert "batch-unexplained" in codes(result)
        assert (0, 2) not in uses(result)
        assert uses(result)[0, 3] == {"2/0", "7/0"}
        assert result.data["tokens"]["trained"] == exact(11 + 15 + 777 + 13)

    def test_rejected_and_failed_tasks_count_in_the_waiting(self, tmp_path: Path) -> None:
        """Step 1 takes 3 and 4, of which 3 was rejected, and then the oldest of the others."""
        tasks = {**STRAGGLER, 9: (4.7, 21.0, [[0, 3]])}
        del tasks[5]
        trial = straggler()
        trial.console = (
            tracer()
            + task_lines(tasks, {3: "reject", 1: "accept"})
            + step_lines({0: stats(2, 11), 1: stats(2, 11), 2: stats(2, 7), 3: stats(2, 11)})
        )
        trial.dumps = dumps_of(tasks)
        result = judged(trial, tmp_path)
        assert uses(result)[0, 1] == {"4/0", "6/0"}  # 9 is older, but comes a second too late
        assert uses(result)[0, 2] == {"9/0", "7/0"}
        assert result.data["trajectories"]["dropped"] == {"filtered": exact(1)}

    def test_crossed_outcomes_are_told_apart_by_the_checksum(self, tmp_path: Path) -> None:
        """Tasks 3 and 4 end within a millisecond: Finish, Finish, Completed, Completed in crossed order."""
        tasks = {**STRAGGLER, 3: (4.5, 7.001, [[0, 7]])}
        lines = [line for line in task_lines(tasks) if "Finish" not in line[1] or not 6.9 < line[0] < 7.1]
        word = "rollout. enqueued: 0, running: 1, accepted: 1, rejected: 1."
        lines.append((6.998, says(6.998, ENGINE, f"Finish and accept {word}")))
        lines.append((6.999, says(6.999, ENGINE, f"Finish but reject {word}")))
        trial = straggler()
        # First goes with first would accept 4 and reject 3; 3 (7 tokens) and 5 (9 tokens) were trained.
        trial.console = tracer() + lines + step_lines({**STATS, 1: stats(2, 16), 2: stats(2, 7), 3: stats(1, 9)})
        trial.dumps = dumps_of(tasks)
        trial.perf = {0: spans(range(3))}
        assert uses(judged(trial, tmp_path))[0, 1] == {"3/0", "5/0"}

    def test_smaller_batches_with_dynamic_bs(self, tmp_path: Path) -> None:
        trial = straggler(dynamic_bs=True)
        trial.console = tracer() + task_lines(STRAGGLER, {3: "reject"}) + step_lines({**STATS, 1: stats(1, 8)})
        result = judged(trial, tmp_path)
        assert uses(result)[0, 1] == {"4/0"}
        assert "dynamic-batch" in codes(result)

    def test_each_rank_collects_its_own_share(self, tmp_path: Path) -> None:
        """Two ranks, ids from 0 each, one batch of one each; dumps of both lie in the same files."""
        one = {0: (1.0, 3.0, [[0, 5]]), 1: (13.0, 14.0, [[0, 3]])}
        two = {0: (1.0, 4.0, [[0, 6]]), 1: (3.0, 5.0, [[0, 7]])}
        console = tracer() + task_lines(one) + task_lines(two, engine="[RemoteInfEngine Rank 1]")
        console += step_lines({0: stats(2, 11), 1: stats(2, 10)})
        dumps = {
            "0/0.jsonl": [dump_row(0, [[0, 5]]), dump_row(0, [[0, 6]])],
            "0/1.jsonl": [dump_row(1, [[0, 3]]), dump_row(1, [[0, 7]])],
        }
        trial = Trial(config(), console, dumps, {0: spans(range(2)), 1: spans(range(2), rank=1)})
        result = judged(trial, tmp_path)
        assert uses(result) == {(0, 0): {"r0:0/0", "r1:0/0"}, (0, 1): {"r0:1/0", "r1:1/0"}}
        assert result.data["tokens"]["trained"] == exact(21)
        assert result.data["staleness"]["max"] == exact(1)
        assert "quota-share" not in codes(result)
        trial.config = config(**{"rollout.consumer_batch_size": 3})  # each rank's share is 3 // 2
        assert "quota-share" in codes(judged(trial, tmp_path))


class TestAttempts:
    def trial(self) -> Trial:
        """Steps 0 and 1, a crash, and a resume that runs step 1 again: ids restart, files are appended."""
        first = {0: (1.0, 3.0, [[0, 5]]), 1: (1.1, 4.0, [[0, 6]]), 2: (1.2, 5.0, [[0, 7]]), 3: (1.3, 6.0, [[0, 8]])}
        second = {0: (101.0, 103.0, [[1, 2]]), 1: (101.1, 104.0, [[1, 3]])}
        console = tracer() + task_lines(first) + step_lines({0: stats(2, 11), 1: stats(2, 15)})
        resumed = "Recovering from StepInfo(epoch=0, epoch_step=1, global_step=1, steps_per_epoch=9)."
        console.append((99.0, says(99.0, "Recover", resumed)))
        # The second process configures its tracer so that its step 1 is collected from second 110 on.
        console += tracer(99.5) + task_lines(second) + step_lines({1: stats(2, 5)}, shift=90.0)
        events = spans(range(2)) + [
            event if event["ph"] == "M" else {**event, "ts": event["ts"] - 9_500_000} for event in spans([1], pid=8)
        ]
        dumps = {"0/0.jsonl": [dump_row(0, [[0, 5]])], "1/0.jsonl": [dump_row(0, [[1, 2]])]}
        dumps |= {"0/1.jsonl": [dump_row(1, [[0, 6]])], "1/1.jsonl": [dump_row(1, [[1, 3]])]}
        dumps |= {"0/2.jsonl": [dump_row(2, [[0, 7]])], "0/3.jsonl": [dump_row(3, [[0, 8]])]}
        return Trial(config(), console, dumps, {0: events})

    def test_a_repeated_step_counts_once(self, tmp_path: Path) -> None:
        result = judged(self.trial(), tmp_path)
        assert uses(result) == {
            (0, 0): {"0/0", "1/0"},
            (0, 1): {"2/0", "3/0"},
            (1, 1): {"a1:0/0", "a1:1/0"},
        }
        data = result.data
        assert (data["run"]["attempts"], data["run"]["steps"]) == (2, exact(2))
        assert data["tokens"]["trained"] == exact(5 + 6 + 2 + 3)
        assert data["trajectories"]["lost"]["rolled_back"] == exact(2)

    def test_rows_of_both_attempts_in_one_file_go_by_order(self, tmp_path: Path) -> None:
        trial = self.trial()
        row = trial.dumps.pop("1/0.jsonl")
        trial.dumps["0/0.jsonl"] += row  # the folder only tells the newest version of the first group
        result = judged(trial, tmp_path)
        assert versions(result)["0/0"] == [(0, 0, 5)]
        assert versions(result)["a1:0/0"] == [(1, 1, 2)]

    def test_a_restart_without_a_line_is_seen_by_its_steps(self, tmp_path: Path) -> None:
        trial = self.trial()
        trial.console = [
            line
            for line in trial.console
            if "Recovering" not in line[1] and (line[0] < 50 or "PerfTracer" not in line[1])
        ]
        result = judged(trial, tmp_path)
        assert result.data["run"]["attempts"] == 2
        assert result.data["run"]["steps"] == exact(2)

    def test_a_resume_by_old_code_is_a_finding(self, tmp_path: Path) -> None:
        trial = self.trial()
        for rows in trial.dumps.values():
            for row in rows:
                del row["version_rle"]
                row["head_version"] = -1
        result = judged(trial, tmp_path)
        assert "old-resume" in codes(result)
        assert result.data["guarantee"]["limit"] == "none"


class TestEvaluation:
    def test_its_tasks_share_ids_and_lines_and_are_left_out(self, tmp_path: Path) -> None:
        trial = straggler()
        evaluated = {0: (26.6, 26.8, [[2, 50]])}
        span = {
            "name": "train.eval",
            "ph": "X",
            "ts": 26_500_000,
            "dur": 400_000,
            "args": {"global_step": 1, "rank": 0},
        }
        trial.console += task_lines(evaluated)
        trial.perf[0].insert(8, span)  # spans are written when they end
        trial.dumps["../eval-rollout/2/0.jsonl"] = [dump_row(0, [[2, 50]])]
        result = judged(trial, tmp_path)
        assert uses(result) == ASSIGNED
        assert result.data["trajectories"]["seen"] == exact(9)

    def test_a_record_it_closed_too_early_is_not_believed(self, tmp_path: Path) -> None:
        trial = straggler()
        records = {number: session(number, number, begin, end) for number, (begin, end, _) in STRAGGLER.items()}
        # Evaluation task 2 finalised training task 2, which was still generating.
        records[2] = session(2, 2, 3.5, 15.0)
        records[2]["phases"]["generate"][0]["end_ts"] = None
        trial.sessions = list(records.values())
        result = judged(trial, tmp_path)
        assert uses(result) == ASSIGNED
        assert versions(result)["2/0"] == [(0, 0, 4), (1, 1, 3), (2, 2, 2)]


class TestVersions:
    def test_old_dumps_give_bounds(self, tmp_path: Path) -> None:
        """v1.0.4: -1 means unknown; the group's newest version bounds from above, the start from below."""
        trial = straggler()
        for rows in trial.dumps.values():
            for row in rows:
                del row["version_rle"]
                row["head_version"] = -1
        result = judged(trial, tmp_path)
        assert versions(result)["2/0"] == [(0, 2, 9)]
        assert result.data["tokens"]["trained"] == exact(51)
        assert result.data["verdict"] == "inconclusive"  # it may have made all of its tokens under v2
        assert any("version_rle" in hint["remedy"] for hint in result.data["hints"])
        assert result.data["run"]["dialect"].startswith("no version_rle (v0.5.2 to v1.0.4)")

    def test_up_to_v2_0_0_a_stamp_may_be_one_too_new(self, tmp_path: Path) -> None:
        """Taken after the answer: tokens stamped with a version that came while the sample lived may be one older."""
        trial = straggler(**{"rollout.deterministic_sampling": None})
        trial.sessions = [session(task, task, begin, end) for task, (begin, end, _) in STRAGGLER.items()]
        result = judged(trial, tmp_path)
        assert "stamped after generation" in result.data["run"]["dialect"]
        assert versions(result)["2/0"] == [(0, 0, 4), (0, 1, 3), (1, 2, 2)]
        assert versions(result)["0/0"] == [(0, 0, 5)]
        assert result.data["violations"]["tokens"] == {"lo": 7, "hi": 9}

    def test_up_to_v2_0_0_only_records_of_samples_rule_out_an_agents_proxy(self, tmp_path: Path) -> None:
        """Proxies ran on through updates, so that a token near one may be a version newer than stamped, too."""
        result = judged(straggler(**{"rollout.deterministic_sampling": None}), tmp_path)
        assert versions(result)["2/0"] == [(0, 1, 4), (0, 2, 3), (1, 2, 2)]
        assert versions(result)["0/0"] == [(0, 0, 5)], "it lived through no update"

    @pytest.mark.parametrize(
        ("dialect", "low", "high"),
        [
            (Dialect(), 3, 3),
            (Dialect(late=True), 2, 3),
            (Dialect(late=True, at_end=True), 1, 3),
            (Dialect(late=True, loose=True), 2, 4),
            (Dialect(void=True), 1, 5),
        ],
    )
    def test_a_stamp_of_3_in_a_life_from_1_to_5(self, dialect: Dialect, low: int, high: int) -> None:
        assert dialect.stamp(3, 1, 5, retried=False) == (low, high)

    def test_a_retried_request_may_be_one_newer(self, tmp_path: Path) -> None:
        trial = straggler()
        failed = "HTTP request to 10.0.0.1:8000/generate failed with timeout (attempt 1/3)"
        trial.console.append((20.0, says(20.0, ENGINE, failed, "WARNING")))
        result = judged(trial, tmp_path)
        assert versions(result)["2/0"] == [(0, 1, 4), (1, 2, 3), (2, 2, 2)]
        assert versions(result)["3/0"] == [(0, 0, 7)]

    def test_all_stamped_0_is_no_staleness(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.dumps = {}
        for number, (_, _, runs) in STRAGGLER.items():
            trial.dumps[f"0/{number}.jsonl"] = [dump_row(number, [[0, sum(count for _, count in runs)]])]
        result = judged(trial, tmp_path)
        assert "versions-not-trustworthy" in codes(result)
        assert versions(result)["7/0"] == [(2, 2, 4)]

    def test_made_up_versions_are_betrayed_by_missing_statistics(self, tmp_path: Path) -> None:
        trial = straggler()
        bare = {
            number: {key: value for key, value in values.items() if "version_stats" not in key}
            for number, values in STATS.items()
        }
        trial.console = tracer() + task_lines(STRAGGLER) + step_lines(bare)
        assert "versions-not-trustworthy" in codes(judged(trial, tmp_path))

    def test_multi_turn_rows_hold_the_generated_runs_back_to_back(self, tmp_path: Path) -> None:
        trial = straggler()
        parts = [{"role": "prompt", "len": 1, "text": "p"}, {"role": "gen", "len": 3, "text": "a"}]
        parts += [{"role": "context", "len": 39, "text": "try again"}, {"role": "gen", "len": 2, "text": "b"}]
        trial.dumps["0/0.jsonl"] = [dump_row(0, [[0, 5]], seqlen=45, prompt_len=1, segments=parts)]
        result = judged(trial, tmp_path)
        assert versions(result)["0/0"] == [(0, 0, 5)]

    def test_an_empty_list_is_a_sample_that_made_nothing(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.dumps["0/0.jsonl"] = [dump_row(0, [])]
        trial.console = tracer() + task_lines(STRAGGLER) + step_lines({**STATS, 0: stats(2, 6)})
        result = judged(trial, tmp_path)
        assert result.data["trajectories"]["trained"] == exact(8)
        assert result.data["tokens"]["trained"] == exact(46)


class TestStatistics:
    def only(self, **more: float) -> Trial:
        return Trial(config(), tracer() + step_lines({3: stats(2, 13, v_theta=3.0, **more)}))

    def test_a_mean_of_maxima_proves_a_violation(self, tmp_path: Path) -> None:
        data = judged(self.only(sample_staleness_theta_max=1.5), tmp_path).data
        assert data["verdict"] == "fail"
        assert data["staleness"]["max"]["lo"] == 2

    def test_a_mean_of_maxima_within_the_bound_proves_nothing(self, tmp_path: Path) -> None:
        data = judged(self.only(sample_staleness_theta_max=1.0), tmp_path).data
        assert data["verdict"] == "inconclusive"
        assert data["staleness"]["max"] == {"lo": 1, "hi": 3}

    def test_since_pr_1736_the_maximum_is_one(self, tmp_path: Path) -> None:
        data = judged(self.only(sample_staleness_theta_max=1.0, stale_token_fraction=0.5), tmp_path).data
        assert data["staleness"]["max"] == exact(1)

    def test_only_theta_is_staleness(self, tmp_path: Path) -> None:
        """``proximal`` changed its meaning with PR #1736, and ``rollout/accepted`` is a mean of ones."""
        trial = self.only(sample_staleness_proximal_max=9.0)
        told = {**stats(2, 13, v_theta=3.0, sample_staleness_proximal_max=9.0), "rollout/accepted": 1.0}
        trial.console = tracer() + step_lines({3: {**told, "ppo_actor/update/n_valid_tokens": 4.0}})
        data = judged(trial, tmp_path).data
        assert data["staleness"]["max"] == {"lo": 0, "hi": 3}
        assert [row["tokens"] for row in data["per_step"] if row["step"] == 3] == [exact(13)]  # before the ratio filter
        assert [row["trajectories"] for row in data["per_step"] if row["step"] == 3] == [exact(2)]

    def test_five_digits_do_not_name_a_step_beyond_99999(self, tmp_path: Path) -> None:
        """The table prints 100013 as 1.0001e+05; the line above it has all digits."""
        trial = Trial(config(), tracer() + step_lines({100013: stats(2, 13, v_theta=100013.0)}))
        steps = {row["step"]: row["tokens"] for row in judged(trial, tmp_path).data["per_step"]}
        assert steps[100013] == exact(13)
        assert 100010 not in steps or steps[100010] != exact(13)

    def test_the_version_names_the_step_where_the_loggers_count_moved_on(self, tmp_path: Path) -> None:
        trial = self.only()
        trial.console = tracer() + step_lines({4: stats(2, 13, v_theta=3.0)})
        steps = judged(trial, tmp_path).data["per_step"]
        assert 3 in [row["step"] for row in steps]

    def test_they_are_compared_with_what_was_rebuilt(self, tmp_path: Path) -> None:
        trial = straggler()
        told = {**STATS, 3: stats(2, 13, v_theta=3.0, sample_staleness_theta_max=2.0)}
        trial.console = tracer() + task_lines(STRAGGLER) + step_lines(told)
        rows = {(row["name"], row["step"]): row for row in judged(trial, tmp_path).data["reported"]}
        assert rows["step.loss_tokens", 3]["agrees"] is True
        assert rows["step.staleness_max", 3]["agrees"] is False  # a mean over micro-batches; the truth is 3

    def test_what_nothing_counts_is_open(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.console = tracer() + step_lines({number: {} for number in range(4)})
        result = judged(trial, tmp_path)
        assert "step-uncounted" in codes(result)
        assert result.data["verdict"] == "inconclusive"


class TestFates:
    def test_what_raised_is_lost_and_what_timed_out_is_cancelled(self, tmp_path: Path) -> None:
        """The controller drops a task after request_timeout, whatever the worker's record says."""
        tasks = {**STRAGGLER, 10: (1.2, 1.5, [[0, 1]]), 11: (1.3, 9.4, [[0, 2]])}
        trial = straggler(**{"rollout.request_timeout": 8})
        lines = [line for line in task_lines(tasks, {10: "fail"}) if not ("Finish" in line[1] and 9.3 < line[0] < 9.5)]
        lines.append((9.399, says(9.399, ENGINE, "Rollout timed out after 8.0s", "ERROR")))
        trial.console = tracer() + lines + step_lines(STATS)
        trial.dumps = dumps_of(tasks)
        del trial.dumps["0/10.jsonl"]
        trial.sessions = [session(11, 1, 1.3, 9.3)]
        result = judged(trial, tmp_path)
        assert result.data["trajectories"]["cancelled"] == {"other:timeout": exact(1)}
        assert result.data["trajectories"]["lost"]["error"] == {"lo": 0, "hi": 1}

    def test_a_row_dumped_before_a_crash_was_not_trained(self, tmp_path: Path) -> None:
        """Between dump and outcome the process died: the row is there, its session is pending."""
        trial = straggler()
        trial.sessions = [session(number, number, begin, end) for number, (begin, end, _) in STRAGGLER.items()]
        trial.sessions.append(session(9, 9, 40.0, None, status="pending"))
        trial.console += [(40.0, says(40.0, ENGINE, "AsyncTaskRunner: Submitted task 9. Running: 1"))]
        trial.dumps["4/9.jsonl"] = [dump_row(9, [[4, 6]])]
        result = judged(trial, tmp_path)
        assert uses(result) == ASSIGNED
        assert result.data["tokens"]["trained"] == exact(51)
        assert result.data["trajectories"]["pending"] == exact(2)  # tasks 8 and 9

    def test_a_task_may_have_a_row_per_call(self, tmp_path: Path) -> None:
        """Agents export a row for each call of the model: task 0 has three, whatever ``n_samples`` is."""
        trial = straggler(**{"rollout.agent.export_style": "individual"})
        trial.dumps["0/0.jsonl"] = [dump_row(0, [[0, count]], sample) for sample, count in enumerate((5, 2, 1))]
        trial.console = tracer() + task_lines(STRAGGLER) + step_lines({**STATS, 0: stats(4, 5 + 2 + 1 + 6)})
        result = judged(trial, tmp_path)
        assert uses(result)[0, 0] == {"0/0", "0/1", "0/2", "1/0"}
        assert result.data["tokens"]["trained"] == exact(51 + 3)
        assert result.data["violations"]["tokens"] == exact(7)

    def test_a_shrunken_group_is_counted_by_its_step(self, tmp_path: Path) -> None:
        """G = 2: a sample of task 1 came back empty, one of task 0 was trained but not dumped."""
        trial = straggler(**{"gconfig.n_samples": 2})
        two = {0: STRAGGLER[0], 1: STRAGGLER[1]}
        trial.console = tracer() + task_lines(two) + step_lines({0: stats(3, 30)})
        trial.perf = {0: spans([0])}
        trial.dumps = {"0/0.jsonl": [dump_row(0, [[0, 5]])], "0/1.jsonl": [dump_row(1, [[0, 6]])]}
        data = judged(trial, tmp_path).data
        assert data["trajectories"]["trained"] == exact(3)
        assert data["tokens"]["trained"] == exact(30)


class TestLoss:
    def test_ratio_rejection_may_mask_any_token(self, tmp_path: Path) -> None:
        data = judged(straggler(**{"actor.rejection_sampling": {"action": "mask", "upper": 5.0}}), tmp_path).data
        assert data["tokens"]["trained"] == {"lo": 0, "hi": 51}
        assert data["verdict"] == "inconclusive"
        clamped = judged(straggler(**{"actor.rejection_sampling": {"action": "clamp"}}), tmp_path / "other").data
        assert clamped["tokens"]["trained"] == exact(51)

    def test_pr_1722_takes_old_tokens_out_of_the_loss(self, tmp_path: Path) -> None:
        data = judged(straggler(**{"rollout.max_concurrent_samples": 8}), tmp_path).data
        assert data["verdict"] == "pass"
        assert data["guarantee"] | {"reason": ""} == {"strict": True, "limit": 1, "reason": ""}
        assert data["tokens"]["trained"] == exact(51 - 7)

    def test_pr_1722_goes_by_stamps_and_those_of_the_v2_controller_are_late(self, tmp_path: Path) -> None:
        """Task 2's two tokens stamped v2 stay in step 3's loss; they may be v1's, two versions old."""
        data = judged(straggler(**{"rollout.max_concurrent_samples": 8, "rollout._version": "v2"}), tmp_path).data
        assert data["tokens"]["trained"] == exact(51 - 7)
        assert data["staleness"]["max"] == {"lo": 1, "hi": 2}
        assert data["verdict"] == "inconclusive"
        assert data["guarantee"]["limit"] == 2


class TestConsoles:
    def test_a_single_controller_counts_and_its_workers_do_not(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.console = tracer() + task_lines(STRAGGLER, engine="RolloutController") + step_lines(STATS)
        trial.console += task_lines({0: (1.5, 2.0, [])})  # a worker's own line in the same log
        result = judged(trial, tmp_path)
        assert uses(result) == ASSIGNED
        assert "single controller" in result.data["run"]["dialect"]

    def test_merged_log_is_read_where_there_is_no_other(self, tmp_path: Path) -> None:
        trial = straggler()
        root = trial.write(tmp_path / "run")
        lines = (root / "main.log").read_text().splitlines()
        tagged = "".join(f"[main]    {line}\n" for line in lines)  # the table of statistics, too
        tagged += f"[rollout] {says(50, ENGINE, 'AsyncTaskRunner: Submitted task 0. Running: 1')}\n"
        (root / "merged.log").write_text(tagged)
        plain = audit(tmp_path / "run", tables=tmp_path / "plain").data
        (root / "main.log").unlink()
        result = audit(tmp_path / "run", tables=tmp_path / "t", framework="areal")
        assert uses(result) == ASSIGNED
        same = ("verdict", "staleness", "tokens", "trajectories")
        assert {name: result.data[name] for name in same} == {name: plain[name] for name in same}

    def test_tracebacks_and_tables_between_the_lines_do_no_harm(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.console += [
            (5.0, "Traceback (most recent call last):"),
            (5.1, "RuntimeError: Submitted task 3"),
            (5.2, "╒═══╤═══╕"),
        ]
        assert uses(judged(trial, tmp_path)) == ASSIGNED


class TestConfiguration:
    def test_python_tags_do_not_stop_it(self, tmp_path: Path) -> None:
        root = straggler().write(tmp_path / "run")
        text = "rollout:\n  max_head_offpolicyness: 1\n  scheduling_spec: !!python/tuple\n  - cpu: 8\n"
        (root / "config.yaml").write_text(text)
        assert audit(tmp_path / "run", tables=tmp_path / "t", framework="areal").bound == 1

    def test_without_it_the_batch_is_guessed_from_the_counts(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.config = None
        result = judged(trial, tmp_path)
        assert uses(result) == ASSIGNED
        assert result.data["verdict"] == "no-bound"
        assert "config-missing" in codes(result)

    @pytest.mark.parametrize(
        ("changes", "old", "limit"),
        [
            ({"rollout.max_head_offpolicyness": 0}, False, 0),
            ({}, False, "none"),
            ({"rollout.max_head_offpolicyness": 0, "rollout.consumer_batch_size": 8}, False, "none"),
            ({"rollout.max_head_offpolicyness": 0, "dynamic_bs": True}, False, "none"),
            ({"rollout.max_head_offpolicyness": 0}, True, "none"),
            ({"rollout.max_head_offpolicyness": 0, "rollout.consumer_batch_size": None}, False, None),
            ({"rollout.max_concurrent_samples": 8}, False, 1),
            ({"rollout.max_concurrent_samples": 8, "rollout._version": "v2"}, False, 2),
            ({"rollout.max_head_offpolicyness": None}, False, None),
        ],
    )
    def test_what_each_mode_guarantees(self, changes: dict[str, object], old: bool, limit: object) -> None:
        assert guarantee(settings_from(config(**changes)), old).limit == limit

    def test_a_quota_that_is_not_the_batch_is_a_finding(self, tmp_path: Path) -> None:
        assert "quota-not-batch" in codes(judged(straggler(**{"rollout.consumer_batch_size": 8}), tmp_path))


class TestDamage:
    def test_a_cut_last_line_did_not_happen(self, tmp_path: Path) -> None:
        root = straggler().write(tmp_path / "run")
        for name in ("main.log", "perf_tracer/master/traces-r0.jsonl", "rollout/3/8.jsonl"):
            with (root / name).open("a") as stream:
                stream.write('{"task_id": 8, "sample_')
        result = audit(tmp_path / "run", tables=tmp_path / "t", framework="areal")
        assert uses(result) == ASSIGNED
        assert result.data["verdict"] == "fail"
        assert result.data["diagnostics"]["errors"] == 0

    @pytest.mark.parametrize(
        ("name", "line"),
        [
            ("rollout/0/0.jsonl", "garbage"),
            ("rollout/0/0.jsonl", '{"task_id": "x", "name": 3}'),
            ("perf_tracer/master/traces-r0.jsonl", "[1, 2]"),
            ("perf_tracer/master/traces-r0.jsonl", '{"name": "train.rollout", '),
        ],
    )
    def test_a_bad_line_is_told_and_opens(self, tmp_path: Path, name: str, line: str) -> None:
        root = straggler().write(tmp_path / "run")
        (root / name).write_text(line + "\n" + (root / name).read_text())
        result = audit(tmp_path / "run", tables=tmp_path / "t", framework="areal")
        assert "line-damaged" in codes(result)
        assert result.data["violations"]["tokens"]["hi"] is None

    def test_events_of_a_profiler_are_passed_over(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.perf[0].insert(3, {"name": "kernel", "ph": "X", "ts": 1, "dur": 2, "pid": 7, "tid": -3})
        assert uses(judged(trial, tmp_path)) == ASSIGNED

    def test_runs_of_nonsense_leave_bounds(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.dumps["0/0.jsonl"] = [dump_row(0, [[0, 5]], version_rle=[[0, 5, 1], [-4, 2]])]
        result = judged(trial, tmp_path)
        assert "runs-nonsense" in codes(result)
        assert versions(result)["0/0"] == [(0, 0, 5)]

    def test_missing_fields_widen(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.dumps["0/0.jsonl"] = [{"task_id": 0, "reward": 1.0}]
        result = judged(trial, tmp_path)
        assert uses(result) == ASSIGNED
        assert versions(result)["0/0"] == [(0, 0, None)]
        assert result.data["tokens"]["trained"] == exact(51)

    def test_empty_files_hold_nothing(self, tmp_path: Path) -> None:
        root = straggler().write(tmp_path / "run")
        for name in (
            "rollout/0/0.jsonl",
            "session_tracer/master/sessions-r0.jsonl",
            "perf_tracer/master/traces-r0.jsonl",
        ):
            put(root / name, [])
        result = audit(tmp_path / "run", tables=tmp_path / "t", framework="areal")
        assert result.data["tokens"]["trained"] == exact(51)

    def test_a_lost_dump_is_betrayed_by_the_step(self, tmp_path: Path) -> None:
        trial = straggler()
        del trial.dumps["0/3.jsonl"]
        data = judged(trial, tmp_path).data
        assert data["tokens"]["trained"] == exact(51)
        assert data["trajectories"]["trained"] == exact(8)

    def test_a_step_that_only_a_resume_knows_opens(self, tmp_path: Path) -> None:
        trial = Trial(config(), tracer() + step_lines({0: stats(2, 11)}))
        resumed = "Recovering from StepInfo(epoch=0, epoch_step=2, global_step=2, steps_per_epoch=9)."
        trial.console += [(90.0, says(90.0, "Recover", resumed)), *tracer(91.0), *step_lines({2: stats(2, 5)}, 90.0)]
        result = judged(trial, tmp_path)
        assert "step-unlogged" in codes(result)
        assert result.data["run"]["steps"]["lo"] == 3
        assert result.data["verdict"] == "inconclusive"

    def test_a_launch_from_scratch_supersedes_all(self, tmp_path: Path) -> None:
        """The first launch trained step 0 (and its checkpoint is gone), or ended before; the second trains 0 and 1.

        Of a launch that ended before its first step no span is left: the spans are those of the second one.
        """
        scratch = "Resume info not found at /ckpt. This should not be a resumed experiment!"
        for steps in ({0: stats(2, 11)}, {}):
            console = [(0.0, says(0.0, "Recover", scratch, "WARNING")), *tracer(0.5), *step_lines(steps)]
            again = [(90.0, says(90.0, "Recover", scratch, "WARNING")), *tracer(90.5)]
            console += [*again, *step_lines({0: stats(2, 5), 1: stats(2, 6)}, 90.0)]
            trial = Trial(config(), console, {}, {0: [*(spans([0]) if steps else []), *spans([0, 1])]})
            data = judged(trial, tmp_path / str(len(steps))).data
            assert data["run"]["steps"] == exact(2)
            assert data["trajectories"]["trained"] == exact(4)
            assert data["tokens"]["trained"] == exact(11)

    def test_a_configuration_alone_proves_nothing(self, tmp_path: Path) -> None:
        result = judged(Trial(), tmp_path)
        assert "no-steps" in codes(result)
        assert result.data["run"]["steps"] == {"lo": 0, "hi": None}


class TestPlaces:
    def test_packaging_does_not_matter(self, tmp_path: Path) -> None:
        """Another depth, other times of modification, compressed files: the same audit."""
        plain = judged(straggler(), tmp_path).data
        root = straggler().write(tmp_path / "other" / "deeper")
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.name != "config.yaml":
                (path.parent / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
                path.unlink()
        for index, path in enumerate(root.rglob("*")):
            os.utime(path, (1e9 + index, 1e9 - index))
        packed = audit(tmp_path / "other", tables=tmp_path / "t2", framework="areal").data
        for part in ("verdict", "staleness", "trajectories", "tokens", "bound", "throughput"):
            assert packed[part] == plain[part]

    def test_of_two_trials_one_is_read_and_the_other_named(self, tmp_path: Path) -> None:
        straggler().write(tmp_path / "run" / "a")
        straggler().write(tmp_path / "run" / "b")
        result = audit(tmp_path / "run", tables=tmp_path / "t", framework="areal")
        assert "several-runs" in codes(result)
        assert uses(result) == ASSIGNED

    def test_detection_names_its_clues_and_leaves_others_alone(self, tmp_path: Path) -> None:
        straggler().write(tmp_path / "run")
        found = PARSER.detect(discover(tmp_path / "run"))
        assert found is not None
        assert len(found.evidence) == 4
        (tmp_path / "else" / "rollout" / "3").mkdir(parents=True)
        (tmp_path / "else" / "rollout" / "3" / "5.jsonl").write_text(json.dumps({"hello": 1}) + "\n")
        (tmp_path / "else" / "main.log").write_text("nothing of interest\n")
        assert PARSER.detect(discover(tmp_path / "else")) is None

    def test_text_dumps_and_request_records_are_named(self, tmp_path: Path) -> None:
        root = straggler().write(tmp_path / "run")
        (root / "generated" / "3").mkdir(parents=True)
        (root / "generated" / "3" / "ab12.txt").write_text("idx: 1 / 4, seqlen: 512, reward is 1.0.\nprompt is \n")
        put(root / "session_tracer" / "requests-r0.jsonl", [{"request_id": 1, "submit_ts": 7939251.67}])
        both = audit(tmp_path / "run", tables=tmp_path / "t", framework="areal")
        assert {"text-dumps", "request-records"} <= codes(both)
        assert both.data["run"]["dialect"].startswith("version_rle (v2.0.0 or later), stamped before generation")
        shutil.rmtree(root / "rollout")
        old = audit(tmp_path / "run", tables=tmp_path / "t", framework="areal")
        assert old.data["run"]["dialect"] == "text dumps (up to v0.5.1)"

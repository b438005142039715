"""AReaL: several trainers or a controller with workers share a run's files (the story is told in ``areal_run``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from areal_run import (
    ASSIGNED,
    STATS,
    STRAGGLER,
    Runs,
    Trial,
    codes,
    config,
    dump_row,
    dumps_of,
    exact,
    judged,
    says,
    spans,
    stats,
    step_lines,
    straggler,
    task_lines,
    tracer,
    uses,
    versions,
)

from staleness_audit.api import audit

FIRST: dict[int, tuple[float, float, Runs]] = {0: (1.0, 3.0, [[0, 5]]), 1: (13.0, 14.0, [[0, 3]])}
SECOND: dict[int, tuple[float, float, Runs]] = {0: (2.5, 4.0, [[0, 6]]), 1: (3.0, 5.0, [[0, 7]])}
"""Tasks of two ranks, one a batch each: both of a number are trained in one step."""
AGAIN = "HTTP request to 10.0.0.1:9000/generate failed with timeout (attempt 1/3)"


def ranks(dumps: dict[str, list[dict[str, Any]]], told: dict[int, dict[str, float]], **changes: Any) -> Trial:
    console = tracer() + task_lines(FIRST) + task_lines(SECOND, engine="[RemoteInfEngine Rank 1]") + step_lines(told)
    return Trial(config(**changes), console, dumps, {0: spans(range(2)), 1: spans(range(2), rank=1)})


class TestRanks:
    def test_first_lines_of_all_ranks_are_of_one_launch(self, tmp_path: Path) -> None:
        """Rank 1 says that it begins after rank 0 said so, and sets up its tracer when rank 0 is at work already."""
        dumps = {"0/0.jsonl": [dump_row(0, [[0, 5]]), dump_row(0, [[0, 6]])]}
        trial = ranks(dumps, {0: stats(2, 11), 1: stats(2, 10)})
        text = "Resume info not found at /data/recover_info. This should not be a resumed experiment!"
        trial.console += [(at, says(at, "Recover", text, "WARNING")) for at in (-0.2, -0.1)]
        trial.console.append((2.0, says(2.0, "PerfTracer", "Configured global PerfTracer: enabled=True, rank=1")))
        trial.perf[1] = [{**event, "ts": event.get("ts", 0) - 2_000_000} for event in trial.perf[1]]
        result = judged(trial, tmp_path)
        assert result.data["run"]["attempts"] == 1
        assert uses(result)[0, 0] == {"r0:0/0", "r1:0/0"}

    def test_rows_of_two_ranks_may_stand_among_each_other(self, tmp_path: Path) -> None:
        """G = 2. Whose row is whose nobody says: sample 0 has 5 or 6 tokens, sample 1 has 1 or 2."""
        rows = [dump_row(0, [[0, 5]]), dump_row(0, [[0, 6]]), dump_row(0, [[0, 1]], 1), dump_row(0, [[0, 2]], 1)]
        trial = ranks({"0/0.jsonl": rows}, {0: stats(4, 14)}, **{"gconfig.n_samples": 2})
        trial.perf = {0: spans([0]), 1: spans([0], rank=1)}
        result = judged(trial, tmp_path)
        found = {row["trajectory_id"]: row for row in result.rebuilt.dataset.scan("spans").collect().to_dicts()}
        for rank in (0, 1):
            assert [found[f"r{rank}:0/0"][name] for name in ("tokens_lo", "tokens_hi")] == [5, 6]
            assert [found[f"r{rank}:0/1"][name] for name in ("tokens_lo", "tokens_hi")] == [1, 2]

    def test_a_group_of_two_or_three_is_counted_by_its_step(self, tmp_path: Path) -> None:
        """One rank's group lacks a sample, and nobody says which: the step trained 3, not 4."""
        rows = [dump_row(0, [[0, 5]]), dump_row(0, [[0, 1]], 1), dump_row(0, [[0, 6]])]
        trial = ranks({"0/0.jsonl": rows}, {0: stats(3, 12)}, **{"gconfig.n_samples": 2})
        trial.perf = {0: spans([0]), 1: spans([0], rank=1)}
        data = judged(trial, tmp_path).data
        assert data["trajectories"]["trained"] == exact(3)
        assert data["tokens"]["trained"] == exact(12)
        assert data["diagnostics"]["errors"] == 0

    def test_of_groups_of_one_and_two_samples_the_second_is_somebodys(self, tmp_path: Path) -> None:
        """Both ranks' task 0 was rejected. Which of them had a second sample nobody says: two were dropped at least."""
        rows = [dump_row(0, [[0, 5]]), dump_row(0, [[0, 1]], 1), dump_row(0, [[0, 6]])]
        trial = ranks({"0/0.jsonl": rows}, {}, **{"gconfig.n_samples": 2})
        task = {0: FIRST[0]}, {0: SECOND[0]}
        trial.console = tracer() + task_lines(task[0], {0: "reject"})
        trial.console += task_lines(task[1], {0: "reject"}, engine="[RemoteInfEngine Rank 1]")
        trial.perf = {}
        assert judged(trial, tmp_path).data["trajectories"]["dropped"]["filtered"]["lo"] == 2

    def test_an_outcome_told_during_an_evaluation_is_nobody_elses(self, tmp_path: Path) -> None:
        """Task 2 ends while step 2 evaluates; the failure after that is task 8's, and task 9 is trained."""
        tasks = {**STRAGGLER, 2: (3.5, 26.8, [[0, 4], [1, 3], [2, 2]]), 8: (27.5, 28.2, []), 9: (27.6, 28.4, [[3, 2]])}
        del tasks[7]
        console = tracer() + step_lines({**STATS, 3: stats(2, 11)})
        console += task_lines({number: task for number, task in tasks.items() if number != 8}, {})
        console = [entry for entry in console if "Completed task 2." not in entry[1]]
        late = says(27.4, "[RemoteInfEngine Rank 0]", "AsyncTaskRunner: Completed task 2. Running: 0")
        console += [(27.4, late), *(line for line in task_lines({8: tasks[8]}, {8: "fail"}))]
        dumps = dumps_of({number: task for number, task in tasks.items() if number != 8})
        perf = spans(range(4))
        times = {"ts": round(36.2e6), "dur": 1_000_000}
        args = {"global_step": 2, "rank": 0, "role": "master"}
        times["ts"] = round(36.2e6) - 10_000_000
        perf.append({"name": "train.eval", "ph": "X", **times, "pid": 7, "tid": 7, "args": args})
        trial = Trial(config(), console, dumps, {0: perf})
        assert not any(name.startswith("8/") for names in uses(judged(trial, tmp_path)).values() for name in names)

    def test_where_no_evaluation_was_due_its_span_hides_nothing(self, tmp_path: Path) -> None:
        """The span is there after each step, here of 1 ms just when task 5 ended."""
        trial = straggler()
        args = {"global_step": 0, "rank": 0, "role": "master"}
        span = {"name": "train.eval", "ph": "X", "ts": 18_995_000, "dur": 1000, "pid": 7, "tid": 7, "args": args}
        trial.perf[0].insert(5, span)
        assert uses(judged(trial, tmp_path)) == ASSIGNED


class TestController:
    def trial(self, outcome: dict[int, str] | None = None) -> Trial:
        trial = straggler()
        trial.console = tracer() + task_lines(STRAGGLER, outcome, engine="RolloutController") + step_lines(STATS)
        return trial

    def test_a_worker_tells_of_requests_that_were_sent_again(self, tmp_path: Path) -> None:
        """Task 2's request of second 12 was sent again: its 4 tokens may be of v1, which the next stamp ends."""
        line = says(12.0, "[RemoteInfEngine Rank 0]", AGAIN, "WARNING")
        (self.trial().write(tmp_path / "run") / "rollout.log").write_text(line + "\n")
        result = audit(tmp_path / "run", framework="areal", tables=tmp_path / "tables")
        assert versions(result)["2/0"] == [(0, 1, 4), (1, 2, 3), (2, 2, 2)]
        assert versions(result)["3/0"] == [(0, 0, 7)]  # it was ready at second 6
        assert result.data["violations"]["tokens"] == {"lo": 4, "hi": 7}

    def test_without_the_workers_log_any_request_may_have_been(self, tmp_path: Path) -> None:
        assert versions(judged(self.trial(), tmp_path))["2/0"] == [(0, 1, 4), (1, 2, 3), (2, 2, 2)]

    def test_without_the_workers_log_no_age_by_stamps_is_proven(self, tmp_path: Path) -> None:
        """Step 3 logs that its oldest stamp is 3 old; of a request that was sent again the token is newer."""
        trial = self.trial()
        trial.console = tracer() + task_lines(STRAGGLER, engine="RolloutController")
        trial.console += step_lines({**STATS, 3: stats(2, 13, sample_staleness_theta_max=3.0)})
        assert judged(trial, tmp_path / "unknown").data["staleness"]["max"] == {"lo": 2, "hi": 3}
        (trial.write(tmp_path / "run") / "rollout.log").write_text(
            says(1.0, "[RemoteInfEngine Rank 0]", "ready") + "\n"
        )
        told = audit(tmp_path / "run", framework="areal", tables=tmp_path / "tables").data
        assert told["staleness"]["max"] == exact(3)

    def test_what_a_controller_calls_rejected_may_have_failed(self, tmp_path: Path) -> None:
        """The worker's log tells of failures, without ids. Rows that were dumped did not fail."""
        trial = self.trial({8: "reject"})
        data = judged(trial, tmp_path / "dumped").data
        assert data["trajectories"]["dropped"] == {"filtered": exact(1)}
        trial.dumps = {name: rows for name, rows in trial.dumps.items() if not name.endswith("/8.jsonl")}
        data = judged(trial, tmp_path / "other").data
        assert data["trajectories"]["dropped"]["filtered"] == {"lo": 0, "hi": 1}
        assert data["trajectories"]["lost"]["error"] == {"lo": 0, "hi": 1}

    def test_a_workers_tracer_dates_nothing(self, tmp_path: Path) -> None:
        """In ``merged.log`` workers set up tracers of their own, here 0.8 s before the trainer's."""
        trial = self.trial()
        text = "Configured global PerfTracer: enabled=True, session_tracing=True, rank=0, role=rollout"
        root = trial.write(tmp_path / "run")
        log = (root / "main.log").read_text().splitlines()
        merged = [f"[rollout] {says(-0.8, 'PerfTracer', text)}", *(f"[main]    {line}" for line in log)]
        (root / "merged.log").write_text("\n".join(merged) + "\n")
        (root / "main.log").unlink()
        result = audit(tmp_path / "run", framework="areal", tables=tmp_path / "tables")
        steps = result.rebuilt.dataset.scan("steps").collect().sort("step").to_dicts()
        assert [row["ended"].second for row in steps] == [16, 26, 36, 46]
        assert uses(result) == ASSIGNED


class TestResent:
    def test_what_a_step_says_of_its_age_rests_on_stamps(self, tmp_path: Path) -> None:
        """Step 3 says that its oldest token is 3 old; but it trained task 2, one request of which was sent again."""
        trial = straggler()
        told = {**STATS, 3: stats(2, 13, sample_staleness_theta_max=3.0)}
        trial.console = tracer() + task_lines(STRAGGLER) + step_lines(told)
        assert judged(trial, tmp_path / "told").data["staleness"]["max"] == exact(3)
        trial.console.append((12.0, says(12.0, "[RemoteInfEngine Rank 0]", AGAIN, "WARNING")))
        assert judged(trial, tmp_path / "again").data["staleness"]["max"] == {"lo": 2, "hi": 3}

    def test_without_a_configuration_stamps_may_be_of_either_kind(self, tmp_path: Path) -> None:
        """Before the request, which was sent again, or after the answer, in which case tokens may be older."""
        trial = straggler()
        trial.config = None
        trial.console.append((12.0, says(12.0, "[RemoteInfEngine Rank 0]", AGAIN, "WARNING")))
        assert versions(judged(trial, tmp_path))["2/0"] == [(0, 1, 4), (0, 2, 3), (1, 2, 2)]


class TestMasks:
    def test_pr_1722_statistics_may_be_older_than_the_mask(self, tmp_path: Path) -> None:
        """7 of step 3's 13 tokens are too old. It may count and age what it was given, or what it trained."""
        for told, count, age in (("before", 13, 3.0), ("after", 6, 1.0)):
            more = {"sample_staleness_theta_max": age, "stale_token_fraction": 0.5}
            trial = straggler(**{"rollout.max_concurrent_samples": 8})
            trial.console = tracer() + task_lines(STRAGGLER) + step_lines({**STATS, 3: stats(2, count, **more)})
            data = judged(trial, tmp_path / told).data
            assert data["verdict"] == "pass"
            assert data["tokens"]["trained"] == exact(51 - 7)

    def test_a_ratio_filter_shows_without_the_configuration(self, tmp_path: Path) -> None:
        trial = straggler()
        trial.config = None
        told = {**STATS[0], "ppo_actor/update/rs_filtered_fraction": 0.1}
        trial.console = tracer() + task_lines(STRAGGLER) + step_lines({**STATS, 0: told})
        assert judged(trial, tmp_path).data["tokens"]["trained"] == {"lo": 0, "hi": 51}

    def test_a_maximum_after_the_filter_contradicts_nothing(self, tmp_path: Path) -> None:
        """The filter took out task 2's old tokens, so that step 3 says 1 though it was given tokens 3 versions old."""
        trial = straggler(**{"actor.rejection_sampling": {"action": "mask", "upper": 5.0}})
        told = {**STATS, 3: stats(2, 13, sample_staleness_theta_max=1.0, stale_token_fraction=0.5)}
        trial.console = tracer() + task_lines(STRAGGLER) + step_lines(told)
        result = judged(trial, tmp_path)
        assert result.data["diagnostics"]["errors"] == 0
        assert "newer-than-training" not in codes(result)

"""AReaL: task lines of v0.3 and v0.4, and stamps of old proxies (the story is told in ``areal_run``)."""

from __future__ import annotations

from pathlib import Path

from areal_run import (
    ASSIGNED,
    STATS,
    STRAGGLER,
    codes,
    dump_row,
    exact,
    judged,
    old_lines,
    says,
    session,
    spans,
    stats,
    step_lines,
    straggler,
    task_lines,
    tracer,
    uses,
)


def test_v0_3_lines_carry_ids_and_counters(tmp_path: Path) -> None:
    trial = straggler()
    lines = []
    order = sorted(STRAGGLER.items(), key=lambda item: item[1][1])
    for number, (begin, _, _) in STRAGGLER.items():
        text = f"Submit rollout rid {number}. Submit: {number + 1}, running: 1, accepted: 0."
        lines.append((begin, says(begin, "Launcher", text).replace("(AReaL) ", "")))
    for accepted, (number, (_, end, _)) in enumerate(order):
        text = f"Finish rollout {number}. Submit: 9, running: 1, accepted: {accepted + 1}."
        lines.append((end, says(end, "Launcher", text)))
    trial.console = tracer() + lines + step_lines(STATS)
    assert uses(judged(trial, tmp_path)) == ASSIGNED


def test_v0_3_refuses_results_when_it_looks_at_them(tmp_path: Path) -> None:
    """Task 9 ends at 8 s as the fifth and is refused at 10 s, which takes its place in the counter back.

    So the counter says 5 of task 5 again, which was not refused; and no look waited for a refused result.
    """
    trial = straggler()
    trial.dumps["0/9.jsonl"] = [dump_row(9, [[0, 3]])]
    trial.console = tracer() + old_lines({**STRAGGLER, 9: (4.7, 8.0, [])}, refused=9) + step_lines(STATS)
    result = judged(trial, tmp_path / "told")
    assert uses(result) == ASSIGNED
    assert result.data["trajectories"]["dropped"] == {"filtered": exact(1)}
    trial.console = [entry for entry in trial.console if "result." not in entry[1] and "rejected" not in entry[1]]
    silent = judged(trial, tmp_path / "silent")
    assert uses(silent) == {}, "the counter does not say which of the five it was"
    assert silent.data["verdict"] != "pass"


def test_v0_3_ranks_without_names_tell_nothing_about_tasks(tmp_path: Path) -> None:
    trial = straggler()
    trial.console = tracer() + old_lines(STRAGGLER) + old_lines(STRAGGLER) + step_lines(STATS)
    result = judged(trial, tmp_path)
    assert uses(result) == {}
    assert "ranks-nameless" in codes(result)


def test_v0_4_lines_name_the_task_and_its_outcome(tmp_path: Path) -> None:
    trial = straggler()
    lines = old_lines({**STRAGGLER, 9: (4.7, 8.0, [])}, refused=9)
    told = {number: "but reject" if number == 9 else "and accept" for number in range(10)}
    for number, how in told.items():
        lines = [
            (at, line.replace(f"Finish rollout {number}.", f"Finish {how} rollout {number}.")) for at, line in lines
        ]
    trial.console = tracer() + [entry for entry in lines if "result." not in entry[1]] + step_lines(STATS)
    assert uses(judged(trial, tmp_path)) == ASSIGNED


def test_v0_3_a_task_may_end_while_another_is_evaluated(tmp_path: Path) -> None:
    """Step 0 evaluates from 16.1 to 16.4 s; task 4 ends then, beside task 0 of the evaluation."""
    trial = straggler()
    evaluated = spans([0])[1] | {"name": "train.eval", "ts": 16_100_000, "dur": 300_000}
    trial.perf[0].insert(4, evaluated)
    own = [entry for entry in old_lines({0: (16.15, 16.3, [])}) if entry[0] < 17]
    trial.console = tracer() + old_lines({**STRAGGLER, 4: (4.6, 16.2, [])}) + own + step_lines(STATS)
    assert uses(judged(trial, tmp_path)) == ASSIGNED


def test_ages_by_stamps_that_never_moved_prove_nothing(tmp_path: Path) -> None:
    """Proxies up to v1.0.0.rc1 stamped everything 0, and the step's own maximum goes by that: 3 at step 3."""
    trial = straggler()
    trial.dumps = {f"0/{number}.jsonl": [dump_row(number, [[0, 5]])] for number in STRAGGLER}
    old = {3: stats(2, 10, sample_staleness_theta_max=3.0)}
    trial.console = tracer() + step_lines(old)
    result = judged(trial, tmp_path)
    assert "versions-not-trustworthy" in codes(result)
    assert result.data["staleness"]["max"]["lo"] == 0
    assert result.data["verdict"] == "inconclusive"


def test_ages_by_a_proxys_stamps_may_be_one_too_great(tmp_path: Path) -> None:
    trial = straggler(**{"rollout.deterministic_sampling": None})
    trial.dumps, trial.perf = {}, {}
    ages = {"sample_staleness_theta_max": 3.0, "sample_staleness_theta_avg": 1.0}
    trial.console = tracer() + step_lines({3: stats(2, 13, **ages)})
    assert judged(trial, tmp_path / "proxy").data["staleness"]["max"]["lo"] == 2
    ages["sample_staleness_theta_avg"] = 3.0
    trial.console = tracer() + step_lines({3: stats(2, 13, **ages)})
    assert judged(trial, tmp_path / "frozen").data["staleness"]["max"]["lo"] == 0, "as if all were stamped 0"


def test_an_agents_task_without_rows_may_have_been_any_number_of_them(tmp_path: Path) -> None:
    """A rejected task whose one session has no phases: each of its calls would have been a row."""
    trial = straggler()
    trial.dumps = {}
    trial.sessions = [session(task, task, begin, end) for task, (begin, end, _) in STRAGGLER.items()]
    trial.sessions.append(session(9, 9, 4.7, 8.0, "rejected", reason="rejected"))
    trial.console = tracer() + task_lines({**STRAGGLER, 9: (4.7, 8.0, [])}, {9: "reject"}) + step_lines(STATS)
    for record in trial.sessions:
        del record["phases"]
    result = judged(trial, tmp_path)
    assert result.data["trajectories"]["dropped"]["filtered"] == {"lo": 0, "hi": None}

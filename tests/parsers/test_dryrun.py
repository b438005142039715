"""What the DryRun-RL parser makes of sound logs: the guide's rules, dialects and pitfalls, on runs checked by hand."""

from __future__ import annotations

import gzip
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
import zstandard
from dryrun_logs import Logs, fates, findings, rows, spans, steps, story, tables
from staleness_parsers.dryrun import PARSER
from staleness_parsers.dryrun.simulations import align
from staleness_parsers.psrl import PARSER as PSRL

from staleness_audit.discovery import discover
from staleness_audit.errors import SeveralRuns
from staleness_audit.parser import Parser


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


STORY = {
    "0": [(4, "v", 0)],
    "1": [(4, "v", 0), (4, "v", 1), (2, "v", 2)],
    "2": [(3, "v", 1)],
    "3": [(2, "v", 2), (1, "v", 3)],
}


def test_every_token_has_the_version_served_between_two_updates(tmp_path):
    story(tmp_path).config()
    data = tables(tmp_path)
    assert spans(data) == STORY
    assert findings(data) == set()
    middle = next(row for row in rows(data, "spans") if row["trajectory_id"] == "1" and row["span_index"] == 1)
    assert (middle["token_start"], middle["started"], middle["ended"]) == (4, at(1), at(2))
    # The row that proves it: the occupancy at T_1.
    assert (middle["source"], middle["line"], middle["locator"]) == ("logs/instance/0.jsonl", 5, "request 1")
    assert (middle["evidence"], middle["worker"]) == ("derived", "instance 0")


def test_steps_are_numbered_as_in_train_jsonl_and_start_from_the_version_before(tmp_path):
    story(tmp_path).config()
    data = tables(tmp_path)
    found = [
        (row["step"], row["v_train_lo"], row["started"], row["ended"], row["waited_us"]) for row in rows(data, "steps")
    ]
    assert sorted(found) == [
        (1, 0, at(1), at(1.75), None),
        (2, 1, at(2), at(2.75), 250_000),
        (3, 2, at(3), at(4), 250_000),
    ]
    uses = {
        row["trajectory_id"]: (row["step"], row["staleness_lo"], row["loss_tokens_hi"]) for row in rows(data, "uses")
    }
    assert uses == {"0": (1, 0, 4), "2": (2, 0, 3), "1": (3, 2, 10)}
    synced = sorted((row["version_lo"], row["ended"]) for row in rows(data, "syncs"))
    assert synced == [(1, at(1)), (2, at(2)), (3, at(3))]
    constraints = {(row["step"], row["quantity"], row["op"], row["value"]) for row in rows(data, "constraints")}
    assert constraints == {(step, "trajectories", "eq", 1.0) for step in (1, 2, 3)}


def test_a_life_is_told_in_order(tmp_path):
    story(tmp_path).config()
    data = tables(tmp_path)
    life = data.scan("events").sort("seq").collect().filter(trajectory_id="1")
    assert life["kind"].to_list() == ["admitted", "finished", "enqueued", "sampled"]
    assert life["ts"].to_list() == [at(0), at(2.5), at(2.5), at(3)]
    assert life["version_lo"].to_list() == [0, 2, 2, 2]


def test_what_the_simulator_reports_is_kept_under_canonical_names(tmp_path):
    story(tmp_path).config()
    last = {
        row["name"] or row["raw_name"]: row["value"] for row in rows(tables(tmp_path), "reported") if row["step"] == 3
    }
    assert last == {
        "step.staleness_max": 2,
        "step.in_queue_max": 0,
        "step.trajectories": 1,
        "step.cancelled": 0,
        "total_tokens": 20,
    }


def test_without_instance_streams_versions_stay_exact_and_tokens_become_intervals(tmp_path):
    story(tmp_path).config()
    shutil.rmtree(tmp_path / "logs" / "instance")
    data = tables(tmp_path)
    # Versions never decrease, so the first token of request 1 is of v_min and the last one of v_max.
    assert spans(data)["1"] == [(1, "v", 0), (8, "v", 0, 2), (1, "v", 2)]
    # Unfinished request 3 may have made anything up to its target of 9 tokens.
    assert spans(data)["3"] == [(0, 9, "v", 2, 3)]
    assert ("warning", "occupancy-missing", None) in findings(data)
    assert [hint["remedy"] for hint in data.facts["hints"]] == ["keep logs/instance/*.jsonl beside request.jsonl"]
    staleness = {row["trajectory_id"]: row["staleness_hi"] for row in rows(data, "uses")}
    assert staleness == {"0": 0, "2": 0, "1": 2}


def test_one_update_without_a_row_joins_its_neighbours(tmp_path):
    logs = story(tmp_path).config()
    stream = logs.logs / "instance" / "0.jsonl"
    stream.write_text("".join(line for line in stream.open() if '"t": 2.0' not in line))
    assert spans(tables(tmp_path))["1"] == [(4, "v", 0), (5, "v", 1, 2), (1, "v", 2)]


def test_versions_can_be_skipped_inside_a_request(tmp_path):
    logs = Logs(tmp_path).config(steps=2)
    logs.admit(0.0, 0, 1, 0).admit(0.0, 1, 1, 0).admit(0.0, 2, 5, 0)
    logs.complete(1.0, 0, 1, (0, 0)).consume(1.0, 0, 0, 1, (0, 0)).occupancy(1.0, {1: 0, 2: 3})
    logs.complete(2.0, 1, 1, (1, 1)).consume(2.0, 1, 1, 1, (1, 1)).occupancy(2.0, {}, {2: 3})  # stuck in prefill
    logs.complete(3.0, 2, 5, (0, 2)).train(0, 1.0, 1.5, 11).train(1, 2.0, 2.5, 11)
    assert spans(tables(tmp_path))["2"] == [(3, "v", 0), (2, "v", 2)]


def test_a_request_aborted_before_its_first_token_has_one_version_above_v_traj(tmp_path):
    logs = Logs(tmp_path).config(steps=1)
    logs.admit(0.0, 0, 1, 0).admit(0.0, 1, 5, 0)
    logs.complete(1.0, 0, 1, (0, 0)).consume(1.0, 0, 0, 1, (0, 0)).occupancy(1.0, {}, {1: 0})
    logs.train(0, 1.0, 1.5, 11).request(2.0, "complete", 1, 5, (1, 1), complete_time=2.0, num_aborts=1)
    assert spans(tables(tmp_path))["1"] == [(5, "v", 1)]


def test_drop_after_complete_is_dropped_and_drop_alone_is_cancelled(tmp_path):
    logs = Logs(tmp_path).config("roll", steps=1)
    logs.admit(0.0, 0, 1, 0).admit(0.0, 1, 5, 0).admit(0.0, 2, 5, 0).admit(0.0, 3, 2, 0)
    logs.complete(0.5, 3, 2, (0, 0)).request(0.5, "drop", 3, 2, (0, 0), complete_time=0.5)
    logs.complete(1.0, 0, 1, (0, 0)).consume(1.0, 0, 0, 1, (0, 0))
    logs.request(1.0, "drop", 1, 3, (0, 0)).request(1.0, "drop", 2, 0, (0, 0)).train(0, 1.0, 1.5, 11, expired=2)
    data = tables(tmp_path)
    assert fates(data) == {
        "1": [("cancelled", "stale")],
        "2": [("cancelled", "stale")],
        "3": [("dropped", "stale")],
    }
    assert "2" not in spans(data)  # zero tokens: no span
    by = {row["trajectory_id"]: row["step"] for row in rows(data, "events") if row["kind"] in {"dropped", "cancelled"}}
    # Step 1 was being collected at 0.5; from the start of step 1 on it is step 2.
    assert by == {"3": 1, "1": 2, "2": 2}


@pytest.mark.parametrize(
    ("policy", "dropped", "cancelled"),
    [
        ("psrl", "other:no_reservation", "unknown"),
        ("slime", "surplus", "surplus"),
        ("verl", "overload", "unknown"),
        ("areal", "unknown", "unknown"),
    ],
)
def test_each_policy_has_its_reasons(tmp_path, policy, dropped, cancelled):
    logs = Logs(tmp_path).config(policy).admit(0.0, 0, 2, 0).admit(0.0, 1, 2, 0)
    logs.complete(0.5, 0, 2, (0, 0)).request(0.5, "drop", 0, 2, (0, 0), complete_time=0.5).request(
        1.0, "drop", 1, 1, (0, 0)
    )
    assert fates(tables(tmp_path)) == {"0": [("dropped", dropped)], "1": [("cancelled", cancelled)]}


def slime(run: Path, interval: int, versions: list[int]) -> Logs:
    """One request per step; request k + 1 is admitted right after T_k and gets the version then served."""
    logs = (
        Logs(run)
        .config("slime", steps=len(versions), more=f", update_weights_interval: {interval}")
        .admit(0.0, 0, 1, 0)
    )
    served = [0, *versions]
    for k in range(len(versions)):
        t = k + 1.0
        logs.complete(t, k, 1, (served[k], served[k])).consume(t, k, k, 1, (served[k], served[k]))
        logs.admit(t, k + 1, 1, served[k + 1]).train(k, t, t + 0.5, 11)
    return logs


@pytest.mark.parametrize(
    ("interval", "versions", "worst"), [(1, [0, 1, 2, 3], 1), (2, [0, 0, 2, 2, 4], 2), (3, [0, 0, 0, 3, 3, 3, 6], 3)]
)
def test_slime_serves_a_push_one_step_late(tmp_path, interval, versions, worst):
    slime(tmp_path, interval, versions)
    data = tables(tmp_path)
    assert findings(data) == set()  # the rule agrees with what the admissions show
    assert sorted(row["version_lo"] for row in rows(data, "syncs")) == sorted({*versions} - {0})
    assert max(row["staleness_hi"] for row in rows(data, "uses")) == worst == data.facts["guarantee"]["limit"]
    assert data.facts["bound"]["value"] is None


def test_engines_that_serve_another_version_than_the_rule_are_believed_and_reported(tmp_path):
    slime(tmp_path, 1, [0, 0, 2, 2])
    data = tables(tmp_path)
    assert ("warning", "engine-version-differs", None) in findings(data)
    assert sorted(row["version_lo"] for row in rows(data, "syncs")) == [2]


@pytest.mark.parametrize(
    ("policy", "eta", "bound", "limit"),
    [
        ("psrl", 2, 2, 2),
        ("roll", 1, 1, 1),
        ("areal", 2, 2, "none"),
        ("areal", 0, 0, 0),
        ("verl", 2, None, "none"),
        ("slime", 2, None, None),
    ],
)
def test_the_bound_is_configured_and_the_guarantee_is_the_policys(tmp_path, policy, eta, bound, limit):
    story(tmp_path).config(policy, eta)
    facts = tables(tmp_path).facts
    assert (facts["bound"]["value"], facts["guarantee"]["limit"], facts["dialect"]) == (bound, limit, policy)
    assert facts["config"]["job"]["max_staleness"] == eta
    assert facts["groups_per_step"] == 1


def test_verl_trains_several_batches_a_step(tmp_path):
    story(tmp_path).config("verl", more=", require_batches: 3")
    assert tables(tmp_path).facts["groups_per_step"] == 3


def test_consume_rows_without_a_train_row_are_of_a_step_that_was_killed(tmp_path):
    story(tmp_path, train_rows=2).config()
    data = tables(tmp_path)
    assert steps(data) == {(0, 1): True, (0, 2): True, (0, 3): False}
    assert fates(data) == {}  # nobody ended: they are pending
    assert [sign["kind"] for sign in data.facts["signs"]] == ["progress"]


def test_a_run_may_end_before_its_first_step(tmp_path):
    Logs(tmp_path).config("psrl").admit(0.0, 0, 4, 0).occupancy(0.0, {}, {0: 0}).occupancy(0.5, {0: 2})
    data = tables(tmp_path)
    assert steps(data) == {}
    assert spans(data) == {"0": [(2, "v", 0)]}


def test_a_run_killed_in_its_first_step_has_no_train_stream(tmp_path):
    logs = Logs(tmp_path).config()
    logs.admit(0.0, 0, 4, 0).complete(1.0, 0, 4, (0, 0)).consume(1.0, 0, 0, 4, (0, 0)).occupancy(1.0, {})
    assert steps(tables(tmp_path)) == {(0, 1): False}


def test_without_train_jsonl_only_the_last_step_is_unconfirmed(tmp_path):
    story(tmp_path, train_rows=0).config()
    data = tables(tmp_path)
    assert steps(data) == {(0, 1): True, (0, 2): True, (0, 3): None}
    assert findings(data) == {("warning", "step-unconfirmed", None)}
    (tmp_path / "console.log").write_text("Simulation complete: 3 versions in 4.00s\n  Consumed: 3 requests\n")
    assert steps(tables(tmp_path)) == {(0, 1): True, (0, 2): True, (0, 3): True}


def test_a_second_simulation_in_the_same_streams_is_an_attempt_that_supersedes_nothing(tmp_path):
    story(tmp_path).launch()
    story(tmp_path).launch().config()
    data = tables(tmp_path)
    assert spans(data) == {f"{attempt}/{rid}": found for attempt in (0, 1) for rid, found in STORY.items()}
    assert steps(data) == {(attempt, step): True for attempt in (0, 1) for step in (1, 2, 3)}
    assert [(attempt["attempt"], attempt["resumed_after"]) for attempt in data.facts["attempts"]] == [
        (0, None),
        (1, None),
    ]
    assert fates(data) == {"0/3": [("lost", "other:simulation_ended")]}
    assert ("warning", "appended-runs", None) in findings(data)
    # The first one ended at 4 s, so the second one begins at 5 s.
    first = {row["attempt"]: row["started"] for row in rows(data, "steps") if row["step"] == 1}
    assert first == {0: at(1), 1: at(6)}
    waited = {row["attempt"]: row["waited_us"] for row in rows(data, "steps") if row["step"] == 1}
    assert waited == {0: None, 1: 1_000_000}


def test_a_killed_simulation_before_a_whole_one_keeps_its_own_rows(tmp_path):
    """The first one died in its first step, so train.jsonl has one part where request.jsonl has two."""
    logs = Logs(tmp_path).launch("roll")
    logs.admit(0.0, 0, 4, 0).admit(0.0, 1, 9, 0).occupancy(0.0, {}, {0: 0, 1: 0})
    logs.complete(0.75, 0, 4, (0, 0)).consume(0.75, 0, 0, 4, (0, 0)).occupancy(0.75, {1: 4})
    story(tmp_path).launch("areal").config("areal")
    data = tables(tmp_path)
    assert steps(data) == {(0, 1): False, (1, 1): True, (1, 2): True, (1, 3): True}
    assert {rid: found for rid, found in spans(data).items() if rid.startswith("1/")} == {
        f"1/{rid}": found for rid, found in STORY.items()
    }
    assert fates(data) == {rid: [("lost", "other:simulation_ended")] for rid in ("0/0", "0/1")}
    assert data.facts["dialect"] == "roll, areal"
    assert data.facts["guarantee"]["limit"] == "none"
    assert ("warning", "settings-unknown", None) in findings(data)


def test_a_restart_at_time_zero_shows_in_the_repeated_request_number(tmp_path):
    Logs(tmp_path).admit(0.0, 0, 4, 0).admit(0.0, 1, 4, 0)
    Logs(tmp_path).admit(0.0, 0, 4, 0).config()
    assert {row["trajectory_id"] for row in rows(tables(tmp_path), "trajectories")} == {"0/0", "0/1", "1/0"}


def test_parts_are_laid_side_by_side_in_order():
    assert align([[3]]) == {0: 0}
    assert align([[0, 2], [0, 0]]) == {0: 1}
    assert align([[5, 5], [5, 5]]) == {0: 0, 1: 1}
    assert align([[1, 9], [9, 1]]) in ({0: 1}, {1: 0})  # crossing is no order
    assert align([[-1, 2]]) == {0: 1}
    assert align([]) == {}
    assert align([[1] * 1001] * 1001) == {}


def test_hydra_folders_by_date_belong_to_the_simulations_in_order(tmp_path):
    """The default layout: one output folder, a dated Hydra folder per run."""
    for time, policy, eta in (("15-30-21", "roll", 1), ("15-41-00", "psrl", 2)):
        story(tmp_path).launch(policy).config(policy, eta)
        shutil.move(tmp_path / ".hydra", tmp_path / "2026-11-29" / time / ".hydra")
    data = tables(tmp_path)
    assert data.facts["dialect"] == "roll, psrl"
    assert (data.facts["bound"]["value"], data.facts["guarantee"]["limit"]) == (2, 2)
    assert findings(data) == {("warning", "appended-runs", None)}


def test_a_configuration_of_another_run_is_not_believed(tmp_path):
    story(tmp_path).launch("areal").config("roll")
    data = tables(tmp_path)
    assert (data.facts["dialect"], data.facts["bound"]["value"]) == ("areal", None)
    assert ("warning", "settings-unknown", None) in findings(data)


def test_several_output_folders_are_several_runs_unless_said_otherwise(tmp_path):
    """No simulation resumes another, so that nothing but the user's word makes two output folders one run."""
    for job, policy in (("0", "roll"), ("1", "areal")):
        story(tmp_path / job).config(policy).launch(policy)
    with pytest.raises(SeveralRuns, match="0, 1 each hold dryrun logs"):
        tables(tmp_path)
    data = tables(tmp_path, "dryrun")
    assert {rid: found for rid, found in spans(data).items() if rid.startswith("1/")} == {
        f"1/{rid}": found for rid, found in STORY.items()
    }
    assert data.facts["dialect"] == "roll, areal"


def same(one: object, other: object) -> None:
    """Compare tables apart from file names and provenance."""
    for table in ("trajectories", "spans", "uses", "events", "steps", "syncs", "constraints", "reported"):
        frames = [data.scan(table).drop("source").collect() for data in (one, other)]  # type: ignore[attr-defined]
        assert frames[0].sort(frames[0].columns).equals(frames[1].sort(frames[1].columns)), table


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_compressed_and_deeper_gives_the_same(tmp_path, suffix, compress):
    story(tmp_path / "plain").config().launch()
    shutil.copytree(tmp_path / "plain", tmp_path / "packed" / "some" / "where")
    for file in [file for file in (tmp_path / "packed").rglob("*") if file.is_file()]:
        file.with_name(file.name + suffix).write_bytes(compress(file.read_bytes()))
        file.unlink()
    plain, packed = tables(tmp_path / "plain"), tables(tmp_path / "packed")
    same(plain, packed)
    assert plain.facts == packed.facts


def test_the_summary_on_stdout_is_the_end(tmp_path):
    story(tmp_path, train_rows=2).config()
    (tmp_path / "stdout.txt").write_text(
        "Simulation complete: 2 versions in 2.75s\n  Consumed: 2 requests\n  Dropped: 0 requests\n"
        "  Throughput: 2.5 tokens/s\n  Max staleness (true): 0\n  Max staleness (reported): 0\n"
        "  WARNING: Simulation livelocked!\n"
    )
    data = tables(tmp_path)
    assert {sign["kind"] for sign in data.facts["signs"]} == {"progress", "finished", "waiting"}
    told = {row["raw_name"]: row["value"] for row in rows(data, "reported") if row["step"] is None}
    assert told["Throughput"] == 2.5
    assert told["Max staleness (true)"] == 0


def test_the_assertion_is_a_crash_and_all_steps_trained_an_end(tmp_path):
    story(tmp_path).config(steps=3)
    assert [sign["kind"] for sign in tables(tmp_path).facts["signs"]] == ["progress", "finished"]
    (tmp_path / "main.log").write_text("Traceback ...\nAssertionError: No extra completions expected.\n")
    assert [sign["kind"] for sign in tables(tmp_path).facts["signs"]] == ["progress", "crashed"]


def test_without_telemetry_only_settings_are_known(tmp_path):
    Logs(tmp_path).config("roll").launch("roll")
    shutil.rmtree(tmp_path / "logs")
    data = tables(tmp_path)
    assert data.facts["bound"]["value"] == 1
    assert ("warning", "no-request-stream", "training") in findings(data)
    assert data.facts["unseen"] == ["cancelled", "dropped", "pending"]
    assert data.facts["hints"][0]["remedy"].startswith("log_telemetry=true")


def test_with_train_jsonl_alone_steps_and_sums_are_known(tmp_path):
    story(tmp_path).config()
    (tmp_path / "logs" / "request.jsonl").unlink()
    data = tables(tmp_path)
    assert steps(data) == {(0, 1): True, (0, 2): True, (0, 3): True}
    told = {(row["step"], row["quantity"], row["op"], row["value"]) for row in rows(data, "constraints")}
    # Prompts are fixed at 10 tokens, so 14, 13 and 20 tokens are 4, 3 and 10 response tokens.
    assert {fact for fact in told if fact[1] == "loss_tokens"} == {
        (1, "loss_tokens", "eq", 4.0),
        (2, "loss_tokens", "eq", 3.0),
        (3, "loss_tokens", "eq", 10.0),
    }


def test_prompts_longer_than_all_tokens_are_of_another_configuration(tmp_path):
    """Steps train 14, 13 and 20 tokens with one prompt each, which cannot have 100: how many are prompts is open."""
    story(tmp_path).config()
    config = next(tmp_path.rglob("config.yaml"))
    config.write_text(config.read_text().replace("lo: 10", "lo: 100"))
    (tmp_path / "logs" / "request.jsonl").unlink()
    told = {(row["step"], row["op"], row["value"]) for row in rows(tables(tmp_path), "constraints")}
    assert {fact for fact in told if fact[1] == "le"} == {(1, "le", 14.0), (2, "le", 13.0), (3, "le", 20.0)}


def test_detection_names_what_it_saw_and_leaves_others_alone(tmp_path):
    story(tmp_path / "ours").config()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.jsonl").write_text('{"prompt": "x"}\n')
    (tmp_path / "other" / "config.yaml").write_text("model: x\n")
    found = PARSER.detect(discover(tmp_path / "ours"))
    assert found is not None
    assert found.strong
    assert any("request.jsonl" in clue for clue in found.evidence)
    assert PARSER.detect(discover(tmp_path / "other")) is None
    assert isinstance(PARSER, Parser)
    single = PARSER.detect(discover(tmp_path / "ours" / "logs" / "request.jsonl"))
    assert single is not None


def test_what_a_psrl_policy_says_and_cache_use_above_one_change_nothing(tmp_path):
    """Its buffer messages may stand in ``main.log``, and the oldest request's growth may use more than the cache."""
    story(tmp_path / "plain").config("psrl")
    logs = story(tmp_path / "told").config("psrl")
    (tmp_path / "told" / "main.log").write_text(
        "[2026-11-29 15:30:21,187][dryrun][INFO] - [Buffer Create]: buffer 3 created, current buffer IDs: [1, 2, 3]\n"
    )
    stream = logs.logs / "instance" / "0.jsonl"
    stream.write_text(stream.read_text().replace('"t": ', '"kv_cache_usage": 1.7, "t": '))
    plain, told = tables(tmp_path / "plain"), tables(tmp_path / "told")
    assert spans(told) == spans(plain) == STORY
    assert told.facts["signs"] == plain.facts["signs"]
    assert findings(told) == set()
    assert PSRL.detect(discover(tmp_path / "told")) is None

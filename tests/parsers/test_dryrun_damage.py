"""Damaged, cut and missing DryRun-RL logs: nothing is skipped silently, and nothing is claimed that they do not say."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest
from dryrun_logs import Logs, fates, findings, rows, spans, steps, story, tables


def edit(path, line, text):
    """Replace a line (from 1) of a file; ``text`` gets the old line."""
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = text(lines[line - 1])
    path.write_bytes(b"".join(lines))


def find(path, *words):
    """Number of the first line that holds all words."""
    lines = path.read_text(errors="replace").splitlines()
    return next(number for number, line in enumerate(lines, 1) if all(word in line for word in words))


def garbage(_line):
    return b"\xff\x00 not json\n"


def test_the_cut_last_line_did_not_happen(tmp_path):
    logs = story(tmp_path).config()
    for stream in ("request.jsonl", "train.jsonl", "instance/0.jsonl"):
        with (logs.logs / stream).open("a") as file:
            file.write('{"t": 9.0, "event": "admit", "rid": 4')
    data = tables(tmp_path)
    assert findings(data) == {("note", "cut-line", None)}
    assert len(spans(data)) == 4


def test_a_cut_train_row_leaves_its_step_incomplete(tmp_path):
    logs = story(tmp_path).config()
    edit(logs.logs / "train.jsonl", 3, lambda line: line[:40])
    assert steps(tables(tmp_path)) == {(0, 1): True, (0, 2): True, (0, 3): False}


def test_a_damaged_last_train_row_leaves_its_step_unconfirmed(tmp_path):
    logs = story(tmp_path).config()
    edit(logs.logs / "train.jsonl", 3, garbage)
    data = tables(tmp_path)
    assert steps(data) == {(0, 1): True, (0, 2): True, (0, 3): None}
    assert findings(data) == {("warning", "damaged-train", None), ("warning", "step-unconfirmed", None)}


def test_a_damaged_earlier_train_row_is_proven_by_the_next_step(tmp_path):
    logs = story(tmp_path).config()
    edit(logs.logs / "train.jsonl", 1, garbage)
    assert steps(tables(tmp_path)) == {(0, 1): True, (0, 2): True, (0, 3): True}


def test_a_lost_consume_row_is_betrayed_by_the_train_row(tmp_path):
    logs = story(tmp_path).config()
    request = logs.logs / "request.jsonl"
    edit(request, find(request, '"consume"', '"rid": 1'), garbage)
    data = tables(tmp_path)
    assert findings(data) == {("error", "damaged-request", "fates"), ("error", "consume-rows-missing", "fates")}
    told = {(row["step"], row["quantity"], row["op"], row["value"]) for row in rows(data, "constraints")}
    assert {(3, "trajectories", "eq", 1.0), (3, "loss_tokens", "eq", 10.0)} <= told
    # Request 1 is ready and may be the one: left over is only one of its fates.
    assert sorted(fates(data)["1"]) == [("lost", "unknown"), ("pending", "unknown")]
    # T_2 is still known, from the train row. After it there may have been another update, of which all rows are lost.
    assert spans(data)["3"] == [(2, "v", 2), (1, "v", 3, None)]


def test_without_train_rows_a_damaged_request_row_may_have_been_training(tmp_path):
    logs = story(tmp_path, train_rows=0).config()
    edit(logs.logs / "request.jsonl", 1, garbage)
    assert ("error", "damaged-request", "training") in findings(tables(tmp_path))


def test_one_silently_missing_train_row_is_enough_for_that(tmp_path):
    logs = story(tmp_path).config()
    edit(logs.logs / "train.jsonl", 2, lambda _line: b"")
    edit(logs.logs / "request.jsonl", 1, garbage)
    assert ("error", "damaged-request", "training") in findings(tables(tmp_path))


def test_a_lost_admission_or_completion_is_made_up_for_by_later_rows(tmp_path):
    logs = story(tmp_path).config()
    request = logs.logs / "request.jsonl"
    edit(request, find(request, '"complete"', '"rid": 1'), garbage)
    edit(request, find(request, '"admit"', '"rid": 1'), garbage)
    assert spans(tables(tmp_path))["1"] == [(4, "v", 0), (4, "v", 1), (2, "v", 2)]


def test_a_request_number_without_any_row_is_noticed(tmp_path):
    logs = story(tmp_path).config()
    request = logs.logs / "request.jsonl"
    request.write_text("".join(line for line in request.open() if '"rid": 2' not in line))
    found = findings(tables(tmp_path))
    assert ("error", "requests-missing", "fates") in found
    assert ("error", "consume-rows-missing", "fates") in found


def test_a_step_of_which_nothing_is_left_opens_training(tmp_path):
    logs = story(tmp_path).config()
    request = logs.logs / "request.jsonl"
    edit(request, find(request, '"consume"', '"rid": 2'), lambda _line: b"")
    edit(logs.logs / "train.jsonl", 2, lambda _line: b"")
    data = tables(tmp_path)
    assert ("error", "step-without-rows", "training") in findings(data)
    assert steps(data)[0, 2] is True
    # T_1 is unknown now: what lies around it is an interval.
    assert spans(data)["1"] == [(4, "v", 0), (5, "v", 1, 2), (1, "v", 2)]


def test_between_two_known_updates_an_unknown_one_is_reckoned_with(tmp_path):
    """As before, but nothing is admitted in between, so that no admission shows that versions went on."""
    logs = (
        Logs(tmp_path).config(steps=3).admit(0.0, 0, 1, 0).admit(0.0, 1, 1, 0).admit(0.0, 2, 1, 0).admit(0.0, 3, 9, 0)
    )
    logs.complete(1.0, 0, 1, (0, 0)).consume(1.0, 0, 0, 1, (0, 0)).occupancy(1.0, {3: 2})
    logs.complete(2.0, 1, 1, (1, 1))  # T_1 = 2.0: its consume and train rows are lost
    logs.complete(3.0, 2, 1, (2, 2)).consume(3.0, 2, 2, 1, (2, 2)).occupancy(3.0, {3: 7})
    logs.train(0, 1.0, 1.5, 11).train(2, 3.0, 3.5, 11).complete(4.0, 3, 9, (0, 3))
    assert spans(tables(tmp_path))["3"] == [(2, "v", 0), (5, "v", 1, 2), (2, "v", 3)]


def test_a_damaged_occupancy_row_at_an_update_is_replaced_by_the_next_one_there(tmp_path):
    logs = story(tmp_path).config()
    stream = logs.logs / "instance" / "0.jsonl"
    edit(stream, find(stream, '"t": 2.0'), garbage)
    data = tables(tmp_path)
    assert spans(data)["1"] == [(4, "v", 0), (4, "v", 1), (2, "v", 2)]
    assert findings(data) == {("warning", "damaged-instance", None)}
    # In a damaged stream a later row may be lost, so the unfinished request may have gone on.
    assert spans(data)["3"] == [(2, "v", 2), (1, 7, "v", 3)]


def test_an_occupancy_row_that_only_looks_sound_makes_an_interval(tmp_path):
    logs = story(tmp_path).config()
    stream = logs.logs / "instance" / "0.jsonl"
    edit(stream, find(stream, '"t": 2.0'), lambda _line: b'{"t": 2.0, "running_len": {"1": 8}}\n')
    data = tables(tmp_path)
    assert spans(data)["1"] == [(4, "v", 0), (5, "v", 1, 2), (1, "v", 2)]
    assert ("warning", "occupancy-unreadable", None) in findings(data)


def test_streams_that_contradict_the_request_are_not_used_for_it(tmp_path):
    logs = story(tmp_path).config()
    stream = logs.logs / "instance" / "0.jsonl"
    stream.write_text(stream.read_text().replace('"1": {"generated": 8', '"1": {"generated": 3'))  # fewer than at T_0
    data = tables(tmp_path)
    assert spans(data)["1"] == [(1, "v", 0), (8, "v", 0, 2), (1, "v", 2)]
    assert ("warning", "segments-contradict", None) in findings(data)


def test_staleness_that_is_not_the_difference_is_kept_with_both_ends(tmp_path):
    logs = story(tmp_path).config()
    request = logs.logs / "request.jsonl"
    request.write_text(request.read_text().replace('"staleness_true": 2', '"staleness_true": 1'))
    data = tables(tmp_path)
    use = next(row for row in rows(data, "uses") if row["trajectory_id"] == "1")
    assert (use["staleness_lo"], use["staleness_hi"]) == (1, 2)
    assert ("warning", "staleness-differs", None) in findings(data)


@pytest.mark.parametrize("field", ["v_min", "v_max", "generated", "v_traj", "target_len", "instance_id", "admit_time"])
def test_a_missing_field_widens_and_never_guesses(tmp_path, field):
    logs = story(tmp_path).config()
    request = logs.logs / "request.jsonl"
    lines = [json.loads(line) for line in request.open()]
    for row in lines:
        row.pop(field)
    request.write_text("".join(json.dumps(row) + "\n" for row in lines))
    data = tables(tmp_path)
    truth = [0] * 4 + [1] * 4 + [2] * 2
    start = 0
    for row in data.scan("spans").sort("span_index").collect().filter(trajectory_id="1").to_dicts():
        assert row["tokens_hi"] is not None
        tokens = truth[start : start + row["tokens_hi"]]
        assert row["version_lo"] <= min(tokens)
        assert max(tokens) <= row["version_hi"]
        start += row["tokens_hi"]
    assert start == 10


@pytest.mark.parametrize(
    "row",
    [
        {"rid": 0},
        {"t": "1", "event": "admit", "rid": 0},
        {"t": 1e300, "event": "admit", "rid": 0},
        {"t": 1.0, "event": "evict", "rid": 0},
        {"t": 1.0, "event": "admit", "rid": -1},
        {"t": 1.0, "event": "consume", "rid": 0, "consume_version": None},
        {"t": 1.0, "event": "consume", "rid": 0, "consume_version": 1 << 40},
    ],
)
def test_a_row_that_does_not_say_who_what_and_when_is_damage(tmp_path, row):
    logs = Logs(tmp_path).config().admit(0.0, 0, 4, 0)
    logs.append("request.jsonl", row)
    assert ("error", "damaged-request", "training") in findings(tables(tmp_path))


def test_empty_and_missing_streams_are_legal(tmp_path):
    logs = story(tmp_path).config()
    (logs.logs / "rollout_step.jsonl").touch()
    (logs.logs / "instance" / "1.jsonl").touch()
    (tmp_path / "main.log").touch()
    assert findings(tables(tmp_path)) == set()
    for stream in ("request.jsonl", "train.jsonl", "instance/0.jsonl"):
        (logs.logs / stream).write_text("")
    assert ("warning", "no-request-stream", "training") in findings(tables(tmp_path))


def test_a_broken_compressed_stream_opens_what_is_behind_the_break(tmp_path):
    logs = story(tmp_path).config()
    request = logs.logs / "request.jsonl"
    packed = gzip.compress(request.read_bytes())
    (logs.logs / "request.jsonl.gz").write_bytes(packed[: len(packed) - 40])
    request.unlink()
    found = findings(tables(tmp_path))
    assert ("error", "damaged-request", "fates") in found
    (logs.logs / "train.jsonl").unlink()
    assert ("error", "damaged-request", "training") in findings(tables(tmp_path))


def test_a_stream_that_lies_there_twice_is_read_once(tmp_path):
    logs = story(tmp_path).config()
    request = logs.logs / "request.jsonl"
    copy = logs.logs / "request.jsonl.gz"
    copy.write_bytes(gzip.compress(request.read_bytes()))
    data = tables(tmp_path)
    assert len(data.facts["attempts"]) == 1
    assert findings(data) == {("note", "file-not-read", None)}
    copy.write_bytes(gzip.compress(b"{}"))
    assert {code for severity, code, opens in findings(tables(tmp_path)) if opens == "training"} == {
        "one-name-two-files",
        "stream-twice",
    }


def test_a_lost_drop_row_is_betrayed_by_who_was_left_at_the_end_of_a_step(tmp_path):
    """Of three requests one is consumed and one dropped while step 1 runs: one is left at its end."""
    logs = Logs(tmp_path)
    for rid in range(3):
        logs.admit(0.0, rid, 4, 0)
    logs.complete(1.0, 0, 4, (0, 0)).consume(1.0, 0, 0, 4, (0, 0))
    logs.train(0, 1.0, 2.0, 14, n_inflight=1, n_ready=0)
    assert ("error", "requests-unaccounted", "fates") in findings(tables(tmp_path))
    with (logs.logs / "request.jsonl").open("a") as rows:
        rows.write(json.dumps({"t": 1.5, "event": "drop", "rid": 1, "generated": 2, "v_min": 0, "v_max": 0}) + "\n")
    assert "requests-unaccounted" not in {code for _, code, _ in findings(tables(tmp_path))}


def test_a_folder_that_lies_there_twice_is_one_simulation(tmp_path):
    story(tmp_path).config().launch()
    whole = tables(tmp_path)
    shutil.copytree(tmp_path, tmp_path.parent / "copy")
    shutil.move(tmp_path.parent / "copy", tmp_path / "backup")
    data = tables(tmp_path)
    assert data.facts == whole.facts
    assert findings(data) == {("note", "stream-twice", None)}
    with (tmp_path / "backup/logs/train.jsonl").open("a") as train:
        train.write("\n")
    assert len(tables(tmp_path).facts["attempts"]) == 2


def test_a_broken_configuration_is_said_so_and_states_no_bound(tmp_path):
    story(tmp_path).config()
    (tmp_path / ".hydra" / "config.yaml").write_text("policy: [unclosed, livelock_rounds: n_versions:")
    data = tables(tmp_path)
    assert data.facts["bound"]["value"] is None
    assert ("warning", "damaged-config", None) in findings(data)


def test_a_bound_that_is_no_number_is_no_bound(tmp_path):
    story(tmp_path).config("roll")
    config = tmp_path / ".hydra" / "config.yaml"
    config.write_text(config.read_text().replace("max_staleness: 1", "max_staleness: two"))
    facts = tables(tmp_path).facts
    assert (facts["bound"]["value"], facts["bound"]["configured"], facts["guarantee"]["limit"]) == (None, "two", None)


def test_without_settings_versions_are_read_off_the_admissions(tmp_path):
    story(tmp_path)
    data = tables(tmp_path)
    assert spans(data)["1"] == [(4, "v", 0), (4, "v", 1), (2, "v", 2)]
    assert data.facts["guarantee"]["limit"] is None


def test_without_settings_and_admissions_the_served_version_is_open(tmp_path):
    logs = Logs(tmp_path).admit(0.0, 0, 1, 0).admit(0.0, 1, 9, 0)
    logs.complete(1.0, 0, 1, (0, 0)).consume(1.0, 0, 0, 1, (0, 0)).occupancy(1.0, {1: 3}).occupancy(2.0, {1: 5})
    logs.train(0, 1.0, 2.0, 11)
    assert spans(tables(tmp_path))["1"] == [(3, "v", 0), (2, "v", 0, 1)]

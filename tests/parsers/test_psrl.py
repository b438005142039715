"""PSRL, by hand: one tag per call, one buffer per step - and each pitfall of the format's guide.

``story``: request 0 is pinned to version 0 and trained by step 1 (v_train 0), request 1 is pinned to 0 and trained by
step 2 (v_train 1), request 2 is pinned to 2 and trained by step 3 (v_train 2): staleness 0, 1, 0; 20 tokens each.
"""

from __future__ import annotations

import gzip
import shutil

import pytest
from helpers.states import figures
from psrl_run import LOCAL, Run
from staleness_parsers.psrl.calls import Trace

from staleness_audit.api import audit
from staleness_audit.watch import blocks
from staleness_audit.watch.follow import Follower


def story(root, informed=True):
    run = Run(root)
    run.settings()
    if informed:
        run.informed()
    run.made(0, 0)
    run.made(1, 0, instance=1)
    if informed:
        run.pull(0, 1)
        run.pull(0, 2)
    run.made(2, 2)
    for step, request in ((1, 0), (2, 1), (3, 2)):
        run.trained(step, request)
    return run


def counts(data, name="trajectory_histogram", unit="trajectories"):
    return {row["staleness"]: (row[unit]["lo"], row[unit]["hi"]) for row in data["staleness"][name]}


def test_a_tag_and_a_step_make_the_staleness(tmp_path):
    data = audit(story(tmp_path).write()).data
    assert (data["run"]["framework"], data["bound"]["value"], data["verdict"]) == ("psrl", 1, "pass")
    assert data["run"]["steps"] == {"lo": 3, "hi": 3}
    assert data["tokens"]["trained"] == {"lo": 60, "hi": 60}
    assert counts(data) == {0: (2, 2), 1: (1, 1)}
    assert data["guarantee"]["strict"] is True


def test_a_version_proves_its_step_although_the_generations_are_lost(tmp_path):
    """Something was pinned to version 3: step 3 was trained and pushed, on whom only its missing file would tell."""
    run = story(tmp_path)
    run.made(3, 3)
    root = run.write()
    (root / "rollout_data/3.jsonl").unlink()
    data = audit(root).data
    assert data["run"]["steps"] == {"lo": 3, "hi": None}
    assert data["verdict"] == "inconclusive"
    assert "members-unknown" in {item["code"] for item in data["diagnostics"]["items"]}


def test_without_the_tracker_a_pull_may_have_overtaken_the_advertisement(tmp_path):
    data = audit(story(tmp_path, informed=False).write()).data
    # Request 1 may have been of version 1; request 2 can't be newer than its step.
    assert (data["verdict"], data["staleness"]["max"]) == ("pass", {"lo": 0, "hi": 1})


def test_a_folder_equal_to_the_tag_excludes_that_a_pull_overtook(tmp_path):
    run = Run(tmp_path)
    run.settings()
    run.made(3, 0)
    run.trained(1, 3)
    for step, request in ((2, 4), (3, 5)):
        run.made(request, 1)
        run.text(request, 1, 20)
        run.trained(step, request)
    data = audit(run.write()).data
    assert data["staleness"]["max"] == {"lo": 1, "hi": 1}


def test_a_pull_that_overtook_is_an_interval(tmp_path):
    run = Run(tmp_path)
    run.settings()
    run.informed(3)
    run.pull(0, 2)
    run.made(0, 1)
    run.header(3, (1, 1))
    run.push(4)
    run.trained(4, 0)
    data = audit(run.write()).data
    assert data["staleness"]["max"] == {"lo": 1, "hi": 2}
    assert data["verdict"] == "inconclusive"


def test_an_interrupted_request_goes_on_with_its_tag_or_newer(tmp_path):
    run = Run(tmp_path)
    run.settings()
    run.informed(1)
    run.route(0, 0)
    run.pop(0, 0, 8, status="interrupted")
    run.push(1)
    for instance in (0, 1):
        run.pull(instance, 1)
    run.made(7, 1, instance=1)
    run.route(0, 0, instance=1, prompt=18, tokens=8)
    run.pop(0, 0, 20, instance=1)
    run.made(8, 1, instance=1)
    run.header(1, (0, 1))
    run.push(2)
    run.trained(2, 0)
    data = audit(run.write()).data
    # 8 tokens of version 0; placements before and after prove that instance 1 served version 1.
    assert counts(data, "token_histogram", "tokens") == {0: (12, 12), 1: (8, 8)}


def test_a_later_turn_pinned_to_older_weights_is_found(tmp_path):
    run = Run(tmp_path)
    run.settings()
    run.informed(4)
    for version in (1, 2, 3):
        run.pull(0, version)
    for version in (1, 2):
        run.pull(1, version)
    run.route(0, 3)
    run.pop(0, 3, 5)
    run.route(0, 2, instance=1, prompt=15)
    run.pop(0, 2, 60, instance=1, prompt=15)
    run.text(0, 3, 65, turns=2)
    run.trained(5, 0)
    run.header(4, (3, 1))
    run.push(5)
    data = audit(run.write()).data
    assert data["verdict"] == "fail"
    assert data["violations"]["tokens"] == {"lo": 60, "hi": 60}
    assert (data["guarantee"]["limit"], data["guarantee"]["strict"]) == (2, False)
    said = {row["name"]: row["agrees"] for row in data["reported"]}
    assert said["step.staleness_max"] is False


def test_a_retry_starts_from_nothing(tmp_path):
    run = Run(tmp_path)
    run.settings()
    run.informed(1)
    run.route(0, 0)
    run.pop(0, 0, 7, status="interrupted")
    run.pull(0, 1)
    run.made(0, 1, tokens=9)
    run.trained(2, 0)
    data = audit(run.write()).data
    assert data["tokens"]["trained"] == {"lo": 9, "hi": 9}
    assert data["staleness"]["max"] == {"lo": 0, "hi": 0}


def test_the_critics_warm_up_holds_versions_back(tmp_path):
    run = story(tmp_path)
    run.settings(critic_warmup=2)
    steps = {row["step"]: row["v_train"] for row in audit(run.write()).data["per_step"]}
    assert steps == {1: {"lo": 0, "hi": 0}, 2: {"lo": 0, "hi": 0}, 3: {"lo": 0, "hi": 1}}


def inventory(root):
    """DEBUG logs alone: group 16 of two, pinned to 3 and 4, moves from buffer 5 to 4 and is trained there."""
    run = Run(root)
    run.settings(rollout_n=2)
    run.informed()
    run.tracker(
        f"[Entry Reserve]: entry {run.entry(16, 3)} reserved in (buffer 5, entry 1)",
        f"[Reserved Entry Update]: entry {run.entry(16, 4, 1)} already reserved in (buffer 5, entry 1)",
        f"[Entry Reserve]: entry {run.entry(16, 9, validate=True)} reserved in (buffer 0, entry 0)",
        f"[Reserved Entry Clear]: entry {run.entry(16, 3)} cleared from (buffer 5, entry 1)",
        f"[Entry Occupy (with reserve)]: entry {run.entry(16, '[3, 3, 4]', '[0, 1]')} occupied in (buffer 4, entry 0)",
        "[Single Event] PUSH - Model with version tag 5 (nixl) pushed successfully",
    )
    run.say("AgentLoopManager", "Buffer 4 is not ready, waiting for it to be ready.")
    run.say("AgentLoopManager", "Stored child IDs: [32, 33], Abort child IDs: []")
    run.header(4, (3, 2))
    run.text(32, 3, 20)
    run.text(33, 4, 30)
    return run


def test_the_inventory_alone_tells_who_was_trained_on_what(tmp_path):
    data = audit(inventory(tmp_path).write()).data
    assert data["run"]["steps"] == {"lo": 1, "hi": 1}
    assert data["tokens"]["trained"] == {"lo": 50, "hi": 50}
    assert counts(data) == {0: (1, 1), 1: (1, 1)}
    assert data["verdict"] == "pass"


def test_a_re_tagged_request_keeps_its_first_tag(tmp_path):
    run = inventory(tmp_path)
    run.tracker(
        f"[Entry Update]: request idx 1 entry in (buffer 5, entry 1) is updated to {run.entry(16, 4, 0)} "
        "(version tag is updated to 4)"
    )
    run.settings(rollout_n=2, staleness=0)
    data = audit(run.write()).data
    assert data["guarantee"]["limit"] == "none"
    assert data["verdict"] == "fail"  # request 32 ended at version 3 at the latest


def test_a_wasted_group_is_not_trained(tmp_path):
    run = inventory(tmp_path)
    run.tracker(
        f"[Entry Reserve]: entry {run.entry(17, 4)} reserved in (buffer 4, entry 1)",
        f"[Entry Occupy (Redundant Rollout is Wasted)]: entry {run.entry(17, 4, '[0]')} occupied in "
        "(buffer 4, entry 1)",
    )
    data = audit(run.write()).data
    assert data["trajectories"]["trained"] == {"lo": 2, "hi": 2}
    assert sum(value["hi"] for value in data["trajectories"]["dropped"].values()) == 1


def test_why_requests_were_not_trained(tmp_path):
    run = story(tmp_path)
    for request in (3, 4, 5, 6, 7):
        run.made(request, 2)
    run.route(8, 2)
    run.pop(8, 2, 4, status="interrupted")
    run.say(
        "AgentLoopManager",
        "Buffer 2 is not ready, waiting for it to be ready.",
        "notify_group_failed (train): dispatched 1 fresh replacement request(s) for parent_id=3.",
        "Post-processing function returned empty data for prompt 4. Retrying immediately.",
        "Aborting child requests [8] for sample 8.",
    )
    run.tracker("Added requests [3] to abort set", "Requests of version 2 to abort: {5}")
    run.tracker("Request 6 is stale (version 2 < 3), cannot update status")
    fates = audit(run.write()).data["trajectories"]
    assert fates["lost"] == {"error": {"lo": 1, "hi": 1}}
    assert fates["dropped"] == {"zero_advantage": {"lo": 1, "hi": 1}, "stale": {"lo": 2, "hi": 2}}
    assert fates["cancelled"] == {"surplus": {"lo": 1, "hi": 1}}
    assert fates["pending"] == {"lo": 1, "hi": 1}


def test_at_the_default_level_a_missing_request_has_any_fate(tmp_path):
    run = story(tmp_path, informed=False)
    run.made(3, 2)
    fates = audit(run.write()).data["trajectories"]
    assert fates["dropped"] == {"unknown": {"lo": 0, "hi": 1}}
    assert fates["pending"] == {"lo": 0, "hi": 1}


def test_generations_of_an_earlier_launch_have_unknown_versions(tmp_path):
    run = story(tmp_path)
    run.logs["AgentLoopManager"] = []
    run.say("AgentLoopManager", "Buffer 2 is not ready, waiting for it to be ready.")
    data = audit(run.write()).data
    assert data["run"]["attempts"] == 2
    assert data["run"]["steps"] == {"lo": 3, "hi": 3}
    assert data["staleness"]["max"] == {"lo": 0, "hi": 1}


def resumed(root, pushes=True):
    """Resumed from step 2: buffer 2 is made and trained by the version that PSRL now calls 1, buffer 3 by 2.

    Request 10 is of the first version and trained at once, 11 of it too and trained one step later.
    """
    run = Run(root)
    run.settings()
    run.informed(buffer=2)
    for request in (10, 11):
        run.made(request, 1)
    run.header(2, (1, 1))
    if pushes:
        run.push(2)
    run.header(3, (1, 1))
    if pushes:
        run.push(3)
    for step, request in ((3, 10), (4, 11)):
        run.trained(step, request)
    return run


def test_after_a_resume_versions_have_numbers_one_too_low(tmp_path):
    """Guide section 3: v2 is numbered 1, so the logged staleness of 1 and 2 is 0 and 1."""
    data = audit(resumed(tmp_path).write()).data
    assert counts(data) == {0: (1, 1), 1: (1, 1)}
    assert data["run"]["steps"] == {"lo": 2, "hi": 2}
    assert [row["v_train"]["lo"] for row in data["per_step"] if row["attempt"] == 1] == [2, 3]


def test_without_a_push_the_head_of_the_logs_may_be_lost_instead(tmp_path):
    data = audit(resumed(tmp_path, pushes=False).write()).data
    assert data["staleness"]["max"] == {"lo": 0, "hi": 2}
    assert data["violations"]["trajectories"] == {"lo": 0, "hi": 1}


def test_pushes_tell_how_long_the_critic_warmed_up(tmp_path):
    """No configuration is left; version 1 came after the second step, which started from version 0 like the first."""
    run = Run(tmp_path)
    run.informed()
    run.made(0, 0)
    run.made(1, 0)
    run.header(0, (0, 1))
    run.header(1, (0, 1))
    run.push(1)
    run.trained(1, 0)
    run.trained(2, 1)
    data = audit(run.write()).data
    assert counts(data) == {0: (2, 2)}
    assert data["run"]["steps"] == {"lo": 1, "hi": 1}


def test_without_settings_only_versions_tell_of_a_warm_up(tmp_path):
    """Step 3 starts from version 2, or one less for each step in which a critic may have warmed up."""
    run = Run(tmp_path)
    for request in range(3):
        run.made(request, 0)
        run.trained(request + 1, request)
    data = audit(run.write()).data
    assert [row["v_train"] for row in data["per_step"]] == [{"lo": 0, "hi": 0}, {"lo": 0, "hi": 1}, {"lo": 0, "hi": 2}]
    assert "warmup-unknown" in {item["code"] for item in data["diagnostics"]["items"]}


def test_a_version_given_before_a_step_had_all_its_members_was_pushed_before_it(tmp_path):
    """Request 3 is given version 2 while request 2, of step 3, still runs: no step was without a push."""
    run = Run(tmp_path)
    for request in range(2):
        run.made(request, 0)
        run.trained(request + 1, request)
    run.route(2, 0)
    run.route(3, 2)
    run.pop(2, 0, 20)
    run.trained(3, 2)
    data = audit(run.write()).data
    assert [row["v_train"]["lo"] for row in data["per_step"]] == [0, 1, 2]
    assert "warmup-unknown" not in {item["code"] for item in data["diagnostics"]["items"]}


def test_a_clock_that_was_set_back_moves_no_step(tmp_path):
    """Buffers 2 and 3 seem to be handed over before any push, so from version 0; buffers 0 and 1 were not."""
    run = Run(tmp_path)
    run.settings()
    run.informed()
    for step in range(4):
        run.made(step, step)
        run.header(step, (step, 1))
        run.push(step + 1)
        run.trained(step + 1, step)
    root = run.write()
    log = root / "psrl_logs/AgentLoopManager.log"
    whole = audit(root).data
    lines = log.read_text().splitlines(keepends=True)
    late = next(number for number, line in enumerate(lines) if "Buffer 2" in line or "buffer 2" in line)
    log.write_text("".join([*lines[:late], *(line.replace(" 10:15:", " 09:15:") for line in lines[late:])]))
    assert log.read_text() != "".join(lines)
    data = audit(root).data
    assert "clocks-disagree" in {item["code"] for item in data["diagnostics"]["items"]}
    assert data["run"]["steps"] == whole["run"]["steps"] == {"lo": 4, "hi": 4}
    assert [row["v_train"] for row in data["per_step"]] == [row["v_train"] for row in whole["per_step"]]


def test_a_request_with_several_trajectories_repeats_its_id(tmp_path):
    run = Run(tmp_path)
    run.settings()
    run.informed()
    run.made(7, 0, tokens=50)
    run.trained(1, 7, 7)
    run.text("7_0", 0, 20)
    run.text("7_1", 0, 30)
    data = audit(run.write()).data
    assert data["trajectories"]["trained"] == {"lo": 2, "hi": 2}
    assert data["tokens"]["trained"] == {"lo": 50, "hi": 50}


def test_in_chunk_mode_a_repeated_id_was_emitted_twice(tmp_path):
    run = story(tmp_path)
    run.say("AgentLoopManager", "Emitted train chunk buffer=2 idx=0 size=1 is_last=True (consumed 0 -> 1 / 1)")
    run.trained(3, 2)
    assert audit(run.write()).data["tokens"]["trained"] == {"lo": 60, "hi": 60}


def test_validation_may_use_the_same_ids(tmp_path):
    run = story(tmp_path)
    run.made(1, 2, tokens=5)  # validation at version 2; step 2 starts from version 1
    run.say("AgentLoopManager", "VALIDATION Buffer 0 version tag distribution:")
    data = audit(run.write()).data
    assert data["tokens"]["trained"] == {"lo": 60, "hi": 60}
    assert counts(data) == {0: (2, 2), 1: (1, 1)}


def test_generations_beyond_the_log_prove_nothing(tmp_path):
    run = story(tmp_path)
    run.logs["AgentLoopManager"] = run.logs["AgentLoopManager"][:3]  # up to buffer 1
    data = audit(run.write()).data
    assert data["run"]["steps"]["lo"] == 2
    assert data["verdict"] == "inconclusive"


@pytest.mark.parametrize("damage", ["row", "empty", "missing", "trace"])
def test_damage_forbids_to_pass(tmp_path, damage):
    root = story(tmp_path).write()
    dump = root / "rollout_data/2.jsonl"
    if damage == "row":
        dump.write_text(dump.read_text()[:40])
    elif damage == "empty":
        dump.write_text("")
    elif damage == "missing":
        dump.unlink()
    else:
        path = root / "psrl_logs/route_trace.log"
        path.write_text(path.read_text().replace("version_tag=0", "version_tag=x", 1))
    data = audit(root).data
    assert data["verdict"] == "inconclusive"
    assert data["tokens"]["trained"]["hi"] is None


def test_a_row_of_a_dump_that_cannot_be_read_is_named(tmp_path):
    root = story(tmp_path).write()
    dump = root / "rollout_data/2.jsonl"
    dump.write_text(dump.read_text().replace('"uid"', '"uid', 1))
    said = {(item["code"], item["source"], item["line"]) for item in audit(root).data["diagnostics"]["items"]}
    assert ("bad-line", "rollout_data/2.jsonl", 1) in said


def test_a_cut_last_line_of_a_log_did_not_happen(tmp_path):
    root = story(tmp_path).write()
    for name in ("route_trace", "RequestStatusTracker"):
        with (root / f"psrl_logs/{name}.log").open("a") as log:
            log.write("2026-08-03 08:16:00  INFO route_tr")
    assert audit(root).data["verdict"] == "pass"


@pytest.mark.slow
def test_lines_of_others_in_the_gateways_trace_are_passed_over(tmp_path):
    """A launcher may merge streams; what is left of a line of the trace is damage all the same."""
    plain = audit(story(tmp_path / "plain").write()).data
    others = [
        "(EngineCore_DP0 pid=77) WARNING 11-29 10:10:10 something odd happened",
        "INFO 11-29 16:41:56 [loggers.py:123] Engine 000: Running: 3 reqs",
        "2026-08-03 08:15:02  INFO smg::server: ready",
        "2026-08-03 10:15:02,446 - file.py - 1 - scored",
        '  File "/opt/x.py", line 3, in f',
    ]
    run = story(tmp_path / "mixed")
    run.trace = [line for own in run.trace for line in (f"(Gateway pid=4, ip=10.0.0.1) {own}", *others)]
    mixed = audit(run.write()).data
    for key in ("verdict", "staleness", "trajectories", "tokens", "diagnostics"):
        assert mixed[key] == plain[key]
    whole = "(Gateway pid=4) 2026-08-03 08:15:02  INFO route_trace: model_gateway/"
    for number, left in enumerate((whole, whole[:45], whole[:19], whole[16:50], "kens=3 dst_instance=0", "@@")):
        run = story(tmp_path / f"cut{number}")
        run.trace.insert(2, left)
        assert "trace-damaged" in {item["code"] for item in audit(run.write()).data["diagnostics"]["items"]}


def test_packed_and_nested_files_say_the_same(tmp_path):
    root = story(tmp_path / "plain").write()
    for path in [*root.rglob("*.log"), *root.rglob("*.jsonl")]:
        target = tmp_path / "packed/deeper" / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
    shutil.copytree(root / "outputs", tmp_path / "packed/deeper/outputs")
    plain, packed = audit(root).data, audit(tmp_path / "packed").data
    for key in ("verdict", "staleness", "trajectories", "tokens"):
        assert plain[key] == packed[key]


def test_lines_written_twice_count_once(tmp_path):
    run = inventory(tmp_path)
    run.logs = {name: [line for line in lines for _ in range(2)] for name, lines in run.logs.items()}
    data = audit(run.write()).data
    assert data["trajectories"]["trained"] == {"lo": 2, "hi": 2}
    assert data["tokens"]["trained"] == {"lo": 50, "hi": 50}


def test_line_numbers_and_files_of_other_releases_do_not_matter(tmp_path):
    """Lines move between releases, and later builds of the gateway add events and repeat the prompt on loop-back."""
    run = inventory(tmp_path / "plain")
    plain = audit(run.write()).data
    other = inventory(tmp_path / "other")
    other.logs = {
        name: [line.replace("file.py - 1 -", f"psrl_manager.py - {900 + at} -") for at, line in enumerate(lines)]
        for name, lines in other.logs.items()
    }
    moved = audit(other.write()).data
    for key in ("verdict", "staleness", "trajectories", "tokens"):
        assert moved[key] == plain[key]
    built = story(tmp_path / "built")
    event = 'event="loopback_prompt" request_id=1 prompt_only_tokens=10 accumulated_tokens=8 continued_prompt_tokens=18'
    reject = 'event="admission_reject" request_id=2 instance=0'
    for text in (event, reject):
        built.trace.insert(3, f"2026-08-03 08:15:00  INFO route_trace: src/y.rs:9: {text}")
    assert audit(built.write()).data["tokens"]["trained"] == {"lo": 60, "hi": 60}


def test_an_old_gateway_does_not_extend_the_prompt_on_a_loop_back(tmp_path):
    """Without ``loopback_prompt`` the second segment has the first one's prompt: it is no retry."""
    run = Run(tmp_path)
    run.settings()
    run.informed(1)
    run.route(0, 0)
    run.pop(0, 0, 8, status="interrupted")
    run.pull(0, 1)
    run.route(0, 0, instance=0, prompt=10, tokens=8)
    run.pop(0, 0, 20, instance=0)
    run.trained(2, 0)
    assert audit(run.write()).data["tokens"]["trained"] == {"lo": 20, "hi": 20}


def test_the_old_tags_of_a_mixed_group_are_over_counted(tmp_path):
    """Its header says that both were pinned to 3; the first reservation of 33 says 4, and so do the counts here."""
    data = audit(inventory(tmp_path).write()).data
    said = {row["name"]: (row["reported"], row["rebuilt"], row["agrees"]) for row in data["reported"]}
    assert said["step.staleness_trajectory_mean"] == (1.0, {"lo": 0.5, "hi": 0.5}, False)
    assert said["step.trajectories"][2] is True


def test_a_version_of_minus_one_and_an_invalid_instance_say_nothing(tmp_path):
    """Before its first placement a request has no version; ``('', -1)`` is no instance."""
    run = inventory(tmp_path)
    run.say("AgentLoopManager", "Store data for prompt 16: version_tag=-1")
    early = run.entry(16, -1, 1).replace("('0', 0)", "('', -1)")
    run.logs["RequestStatusTracker"].insert(1, LOCAL.format(second=0, ms=1, text=f"[Entry Update]: entry {early}"))
    data = audit(run.write()).data
    assert counts(data) == {0: (1, 1), 1: (1, 1)}
    assert data["verdict"] == "pass"


def test_a_hang_looks_like_an_early_end(tmp_path):
    """The gate waits for a version that can't come; no line says so, and none says that the run finished."""
    run = story(tmp_path)
    run.say("AgentLoopManager", "Buffer 3 is not ready, waiting for it to be ready.", "Waiting for ps model version: 3")
    data = audit(run.write()).data
    assert data["run"]["steps"] == {"lo": 3, "hi": 3}
    assert data["run"]["health"]["state"] in ("unknown", "stuck")


def test_a_look_writes_an_old_step_anew_if_a_later_pin_bounds_its_versions(tmp_path, monkeypatch):
    """Request 3 goes on with version 0 or newer, until something is pinned to version 1 on its instance."""
    monkeypatch.setattr(blocks, "BLOCK", 1)
    run = Run(tmp_path / "run")
    run.settings(staleness=3)
    run.informed()
    for version in range(3):
        run.pull(0, version + 1)
        run.made(version, version)
        run.trained(version + 1, version)
    run.route(3, 0, instance=1)
    run.pop(3, 0, 8, instance=1, status="interrupted")
    run.route(3, 0, instance=1, prompt=18, tokens=8)
    run.pop(3, 0, 20, instance=1)
    run.trained(4, 3)
    watching = Follower(run.write(), None, framework=None, folder=tmp_path / "watching")

    def look():
        run.write()
        data = watching.refresh().data
        assert figures(data) == figures(audit(run.root, tables=tmp_path / "fresh").data)
        return counts(data, "token_histogram", "tokens"), set(watching._growing._blocks)

    tokens, before = look()
    assert tokens == {0: (60, 72), 1: (0, 12), 2: (0, 12), 3: (8, 20)}
    run.pull(1, 1)
    run.made(4, 1, instance=1)
    run.trained(5, 4)
    tokens, after = look()
    assert tokens == {0: (60, 60), 2: (0, 12), 3: (28, 40)}
    assert (len(before), len(after), len(before & after)) == (4, 5, 3)


def test_a_look_follows_the_trace_on_unless_a_line_belongs_before(tmp_path, monkeypatch):
    """Two lines are new at the second look, and only those are followed; at the third there are none.

    Then an older part of the trace is found, whose file comes first by its name: all nine lines are followed again.
    """
    taken = []
    follow = Trace.follow
    monkeypatch.setattr(Trace, "follow", lambda self, rows: taken.append(len(rows)) or follow(self, rows))
    run = story(tmp_path / "run")
    watching = Follower(run.write(), None, framework="psrl", folder=tmp_path / "watching")

    def look():
        run.write()
        taken.clear()
        data = watching.refresh().data
        followed = list(taken)
        fresh = audit(run.root, tables=tmp_path / "fresh", framework="psrl").data
        assert figures(data) == figures(fresh)
        return followed, data["trajectories"]["trained"]

    assert look() == ([6], {"lo": 3, "hi": 3})
    run.made(3, 2)
    run.trained(4, 3)
    assert look() == ([2], {"lo": 4, "hi": 4})
    run.say("AgentLoopManager", "ps model version updated to 4, continue to dispatch")
    run.text(3, 2, 20)
    assert look() == ([0], {"lo": 4, "hi": 4})
    early = Run(tmp_path / "early")
    early.route(0, 0)
    (run.root / "before").mkdir()
    (early.write() / "psrl_logs" / "route_trace.log").rename(run.root / "before" / "route_trace.log")
    assert look()[0] == [9]


def test_a_damaged_log_stays_one_when_it_grows(tmp_path):
    """Request 2 is pinned to version 1 and trained by step 3 (v_train 2), after one each of version 0 by steps 1 and 2.

    Only the log of instance 0 could say that its pull overtook version 1: a line of it is lost, and more follow.
    """
    run = Run(tmp_path / "run")
    run.settings(staleness=3, rollout_coordination={"partial_rollout": {"enable": True}})
    run.informed()
    for request, tag in enumerate((0, 0, 1)):
        run.made(request, tag)
        run.trained(request + 1, request)
    run.say("vLLMHTTPServer_Replica0", "\0\0\0")
    watching = Follower(run.write(), None, framework=None, folder=tmp_path / "watching")
    for _ in range(2):
        data = watching.refresh().data
        assert counts(data, "token_histogram", "tokens") == {0: (20, 40), 1: (20, 40)}
        assert figures(data) == figures(audit(run.root, tables=tmp_path / "fresh").data)
        run.say("vLLMHTTPServer_Replica0", "a warning of something else")
        run.write()

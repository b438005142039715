"""Dressage's formats, told by a small run that can be checked by hand.

Batches of one group of two sessions, a sync after every rollout, so label L is version L - 1 and rollout r trains from
version r. A prompt of two tokens, then the answer; ``.`` stands for a token of a tool. Prompt p is instance ``i<p>``.

| rollout | session | labels of the answer | staleness of its loss tokens |
|---|---|---|---|
| 0 | s0a, s0b | 11.1, 1 | 0 |
| 1 | s1a, s1b | 111, 11 | 1 |
| 2 | s2a | 1.22 | 2 (one token), 1 |
| 2 | s2b | 22 | 1 |

Beside them: group 3 (s3a, s3b) was dropped as stale, and of the first try of group 2 the proxy rejected s2x, so that
s2y, which had finished, went with it.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import time
from pathlib import Path

import polars as pl
import pytest
from helpers.states import figures
from staleness_parsers.dressage import PARSER, sessions
from staleness_parsers.slime import PARSER as SLIME
from test_slime import T0, codes, console, spans, torch_save, uses

from staleness_audit import audit, plugins
from staleness_audit.discovery import discover
from staleness_audit.ingest import Dataset, ingest
from staleness_audit.watch import blocks
from staleness_audit.watch.follow import Follower


def labels_of(text: str) -> list[str]:
    return ["-1", "-1", *("-1" if char == "." else char for char in text)]


def sample(name: str, text: str, prompt: int, index: int, *, mask=None, metadata=None, **more) -> dict:
    """Return a dumped sample of session ``name`` with an answer whose tokens have the labels of ``text``."""
    return {
        "group_index": prompt,
        "index": index,
        "rollout_id": index,
        "session_id": name,
        "tokens": [7, 8, *range(100 * index, 100 * index + len(text))],
        "response_length": len(text),
        "loss_mask": [int(char != ".") for char in text] if mask is None else mask,
        "weight_versions": [],
        "remove_sample": False,
        "status": "completed",
        "metadata": {
            "parent_traj_id": name,
            "instance_id": f"i{prompt}",
            "full_versions": labels_of(text),
            **(metadata or {}),
        },
        "trace": {"events": [{"type": "span_start", "name": "generate_and_rm_group", "ts": T0, "span_id": "a"}]},
        **more,
    }


class Run:
    """A run directory under construction."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def rollout(self, number: int, *samples: dict) -> Run:
        torch_save(self.folder / f"rollout_data/{number}.pt", {"rollout_id": number, "samples": list(samples)})
        return self

    def payload(self, kind: str, name: str, prompt: int, value: dict) -> Run:
        folder = self.folder / f"log/{kind}/demo/i{prompt}/{name}"
        folder.mkdir(parents=True)
        file = folder / ("session.json" if kind == "traj_payload" else "error.json")
        file.write_text(json.dumps(value, indent=2, ensure_ascii=False))
        return self

    def session(self, name: str, text: str, prompt: int, **more) -> Run:
        labels = labels_of(text)
        part = {
            "session_id": name,
            "instance_id": f"i{prompt}",
            "segment_index": 0,
            "timestamp": T0 + 5,
            "tokens": list(range(len(labels))),
            "full_loss_mask": [int(label != "-1") for label in labels],
            "full_versions": labels,
            **more,
        }
        return self.payload("traj_payload", name, prompt, {"success": True, "mode": "trajectory", "data": [part]})

    def error(self, name: str, prompt: int, message: str) -> Run:
        value = {
            "success": False,
            "timestamp": T0 + 4,
            "session_id": name,
            "instance_id": f"i{prompt}",
            "blackbox_type": "opencode",
            "error": {"message": message},
            "sample": {"group_index": prompt, "index": 2 * prompt},
        }
        return self.payload("traj_err", name, prompt, value)

    def console(self, text: str, name: str = "console.log") -> Run:
        (self.folder / name).write_text(text)
        return self

    def tables(self) -> Dataset:
        out = self.folder.with_name("tables")
        shutil.rmtree(out, ignore_errors=True)
        among = {"slime": SLIME, "dressage": PARSER}
        return ingest(discover(self.folder), plugins.choose(discover(self.folder), among=among), out)


def log(*lines: str, mode: str = "partial", final: bool = True) -> str:
    """Return slime's console of rollouts 0 to 2, with Dressage's own lines in it."""
    first = [
        "DressageDataSource: loaded 30 samples from prompts.jsonl",
        f"Dressage {mode} async rollout worker started (prewarm=False provider=(unset) ahead_groups=0 "
        "max_active_groups=4 samples_per_group=2 max_active_sessions=8)",
    ]
    last = ["final rollout 2 completed; stopping and draining partial async worker"] if final else []
    plain = [line for line in console(0, 1, 2).splitlines() if "fully-async rollout" not in line]
    ours = [[f"[2026-11-29 15:30:00] some.py:1 - {line}" for line in part] for part in (first, [*lines, *last])]
    return "\n".join([*ours[0], *plain, *ours[1]]) + "\n"


STALE = (
    "dropping stale Dressage partial async rollout group 3: cutoff_version_index=1 cutoff_version=2 "
    "current_version_index=2 current_version=3 dropped_stale_groups=1"
)
RETRIED = (
    "returned group 2 to rollout buffer for retry during partial rollout: statuses=ABORTED:1,COMPLETED:1; "
    "sample[4 session_id=s2x instance_id=i2] blackbox_error=502"
)
REJECTED = (
    "WARNING:dressage.proxy.server:reject partial rollout: error=partial_rollout_staleness_exceeded session_id=s2x "
    "instance_id=i2 version_span=3 version_switches=2 max_preempts=1 versions=['1', '2', '3']\n"
)


def batches() -> dict[int, tuple[dict, ...]]:
    return {
        0: (sample("s0a", "11.1", 0, 0), sample("s0b", "1", 0, 1)),
        1: (sample("s1a", "111", 1, 2), sample("s1b", "11", 1, 3)),
        2: (sample("s2a", "1.22", 2, 4), sample("s2b", "22", 2, 5)),
    }


def story(folder: Path, **more) -> Run:
    run = Run(folder)
    for number, samples in batches().items():
        run.rollout(number, *samples)
    run.session("s2b", "22", 2).session("s3a", "111", 3).session("s3b", "1.1", 3).session("s2y", "11", 2)
    run.error("s2x", 2, "502 partial_rollout_staleness_exceeded")
    (folder / "log/proxy").mkdir()
    return run.console(log(STALE, RETRIED, **more)).console(REJECTED, "log/proxy/demo.log")


def ends(tables: Dataset) -> dict[str, set[tuple[str, str, str]]]:
    """Fates of trajectories that are in no batch: (kind, reason, evidence)."""
    frame = tables.scan("events").filter(pl.col("kind").is_in(["dropped", "cancelled", "lost", "pending"])).collect()
    found: dict[str, set[tuple[str, str, str]]] = {}
    for row in frame.iter_rows(named=True):
        found.setdefault(row["trajectory_id"], set()).add((row["kind"], row["reason"], row["evidence"]))
    return found


STORY_SPANS = {
    "s0a": [(0, 0, 3, 3)],
    "s0b": [(0, 0, 1, 1)],
    "s1a": [(0, 0, 3, 3)],
    "s1b": [(0, 0, 2, 2)],
    "s2a": [(0, 0, 1, 1), (1, 1, 2, 2)],
    "s2b": [(1, 1, 2, 2)],
    "s2x": [(0, 2, 0, None)],
    "s2y": [(0, 0, 2, 2)],
    "s3a": [(0, 0, 3, 3)],
    "s3b": [(0, 0, 2, 2)],
}
STORY_ENDS = {
    "s2x": {("cancelled", "stale", "recorded")},
    "s2y": {("dropped", "group", "derived")},
    "s3a": {("dropped", "stale", "derived")},
    "s3b": {("dropped", "stale", "derived")},
}


def test_who_went_with_a_failed_group_was_dropped_when_the_console_says_so(tmp_path):
    """One member of group 2 had completed when it failed, and one session of its prompt is in no batch: s2y."""
    run = story(tmp_path / "run")
    dropped = run.tables().scan("events").filter(kind="dropped", trajectory_id="s2y").collect().row(0, named=True)
    lines = (run.folder / "console.log").read_text().splitlines()
    assert (dropped["source"], lines[dropped["line"] - 1]) == (
        "console.log",
        f"[2026-11-29 15:30:00] some.py:1 - {RETRIED}",
    )
    assert f"{dropped['ts']:%H:%M:%S}" == "15:30:00"


@pytest.mark.slow
def test_a_watch_sets_dumps_aside_although_sessions_of_their_groups_are_in_none(tmp_path, monkeypatch):
    """Each rollout is a block, of which the last is open; s1x was rejected, and s1y went with it.

    A session of another group changes nothing of that. Of s1z nothing tells when it was dropped, or with what: the
    block of its group is written again, and stays open.
    """
    monkeypatch.setattr(blocks, "BLOCK", 1)
    run = Run(tmp_path / "run")
    for number, samples in batches().items():
        run.rollout(number, *samples)
    run.session("s1y", "11", 1).error("s1x", 1, "502 partial_rollout_staleness_exceeded")
    run.console(log(RETRIED.replace("group 2", "group 1").replace("s2x", "s1x").replace("i2", "i1")))
    watching = Follower(run.folder, 1, framework=None, folder=tmp_path / "watching")

    def look() -> int:
        state = watching.refresh()
        assert figures(state.data) == figures(audit(run.folder, bound=1, tables=tmp_path / "fresh").data)
        watching.settle()
        return len(watching._growing._products.blocks)

    assert look() == 2
    run.session("s9z", "11", 9)
    assert look() == 2
    run.session("s1z", "11", 1)
    assert look() == 1


@pytest.mark.parametrize("told", ["plainly", "deeper", "compressed"])
def test_the_story(tmp_path, told):
    run = story(tmp_path / "run")
    if told == "deeper":
        shutil.move(run.folder, tmp_path / "inner")
        run = Run(tmp_path / "run")
        shutil.move(tmp_path / "inner", run.folder / "some")
    elif told == "compressed":
        for file in [file for file in run.folder.rglob("*") if file.is_file()]:
            file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
    tables = run.tables()
    assert tables.facts["framework"] == "dressage"
    assert spans(tables) == STORY_SPANS
    assert uses(tables)["s2a", 0, 2] == (3, 3)
    assert uses(tables)["s0a", 0, 0] == (3, 3)
    assert len(uses(tables)) == 6
    assert ends(tables) == STORY_ENDS
    assert tables.facts["guarantee"]["limit"] == "none"
    assert tables.facts["bound"]["value"] is None
    assert tables.facts["bound"]["configured"] == 2  # the indices of the stale drop: window = 2 + 1 - 1
    assert tables.facts["dialect"] == "partial-async"
    assert set(tables.facts["unseen"]) == {"lost", "pending"}


def test_slime_does_not_take_its_runs(tmp_path):
    run = Run(tmp_path / "run").rollout(0, sample("s", "1", 0, 0))
    assert PARSER.detect(discover(run.folder)) is not None
    plain = Run(tmp_path / "plain").console(console(0))
    assert PARSER.detect(discover(plain.folder)) is None


def test_surplus_of_a_fully_async_run_may_be_dropped_or_left_over(tmp_path):
    """Rule 14 leaves no line: nothing tells a surplus session from one in the queue at the end."""
    run = Run(tmp_path / "run")
    for number, samples in batches().items():
        run.rollout(number, *samples)
    run.session("s9a", "11", 9).session("s2y", "11", 2).console(log(mode="fully"))
    assert ends(run.tables()) == {
        "s9a": {("dropped", "unknown", "inferred"), ("pending", None, "inferred")},
        "s2y": {("dropped", "group", "derived")},  # its group was trained by others
    }


def test_a_killed_run_may_lack_payloads_so_nothing_is_counted_off(tmp_path):
    tables = story(tmp_path / "run", final=False).tables()
    assert {kind for kind, _, _ in ends(tables)["s3a"]} == {"dropped", "pending"}
    assert "dropped" in tables.facts["unseen"]


def test_without_versions_only_an_interval_is_known(tmp_path):
    """The proxy ran without --record-token-versions; first and last label, where there, narrow it (section 3)."""
    bare = sample("s2a", "1.22", 2, 4)
    ended = sample("s2b", "222", 2, 5)
    del bare["metadata"]["full_versions"], ended["metadata"]["full_versions"]
    ended["metadata"] |= {"dressage_start_token_version": "2", "dressage_end_token_version": "2"}
    run = Run(tmp_path / "run").rollout(0, *batches()[0]).rollout(1, *batches()[1]).rollout(2, bare, ended)
    found = spans(run.console(log()).tables())
    assert found["s2a"] == [(0, 1, 3, 4)]  # one batch ahead: nothing newer than version 1 in batch 2
    assert found["s2b"] == [(1, 1, 3, 3)]


def test_version_spans_stand_in_for_full_versions(tmp_path):
    one = sample("s0a", "1.1", 0, 0)
    del one["metadata"]["full_versions"]
    one["metadata"]["version_spans"] = [
        {"start": at, "end": at + 1, "version": label} for at, label in enumerate(labels_of("1.1"))
    ]
    assert spans(Run(tmp_path / "run").rollout(0, one).tables())["s0a"] == [(0, 0, 2, 2)]


def test_snapshot_mode_gives_only_upper_ends(tmp_path):
    late = sample("s2a", "22", 2, 4, metadata={"proxy_extra_info": {"token_build_mode": "snapshot"}})
    run = Run(tmp_path / "run").rollout(0, *batches()[0]).rollout(1, *batches()[1])
    assert spans(run.rollout(2, late).console(log()).tables())["s2a"] == [(0, 1, 2, 2)]


def test_masked_versions_are_sampled_but_not_trained(tmp_path):
    """Pitfall 2: with --mask-nonlast-version-tokens only a segment's last label trains, each segment its own."""
    first = sample("s2a", "11", 2, 4, metadata={"segment_index": 0})
    second = sample("s2a", "122", 2, 4, mask=[0, 1, 1], metadata={"segment_index": 1})
    run = Run(tmp_path / "run").rollout(0, *batches()[0]).rollout(1, *batches()[1]).rollout(2, first, second)
    tables = run.console(log()).tables()
    assert spans(tables)["s2a"] == [(0, 0, 2, 2), (0, 0, 1, 1), (1, 1, 2, 2)]
    rows = tables.scan("uses").filter(pl.col("trajectory_id") == "s2a").collect().sort("span_index")
    assert rows["loss_tokens_lo"].to_list() == rows["loss_tokens_hi"].to_list() == [2, 0, 2]


@pytest.mark.parametrize(("kept", "extra"), [(True, (2, 2)), (False, (0, None))])
def test_tokens_cut_off_before_the_dump_are_masked(tmp_path, kept, extra):
    """Pitfall 9: the payload keeps the full length, the dump does not."""
    run = Run(tmp_path / "run").rollout(0, sample("s0a", "11", 0, 0, metadata={"truncated": True}))
    if kept:
        run.session("s0a", "11.11", 0)
    tables = run.tables()
    assert spans(tables)["s0a"] == [(0, 0, 2, 2), (None, None, *extra)]
    assert uses(tables)["s0a", 0, 0] == (2, 2)


@pytest.mark.parametrize("label", ["unknown", "None", " ", "alpha"])
def test_labels_that_are_no_numbers_are_unknown(tmp_path, label):
    """Pitfall 7: reported, never compared."""
    odd = sample("s2a", "22", 2, 4)
    odd["metadata"]["full_versions"][-1] = label
    run = Run(tmp_path / "run").rollout(0, *batches()[0]).rollout(1, *batches()[1]).rollout(2, odd)
    tables = run.console(log()).tables()
    assert spans(tables)["s2a"] == [(1, 1, 1, 1), (0, 1, 1, 1)]
    assert ("sample-odd" in codes(tables)) == (label == "alpha")


def test_versions_that_do_not_fit_are_told(tmp_path):
    odd = sample("s0a", "11", 0, 0)
    odd["metadata"]["full_versions"].pop()
    tables = Run(tmp_path / "run").rollout(0, odd).tables()
    assert "sample-odd" in codes(tables)
    assert spans(tables)["s0a"] == [(0, 0, 2, 2)]  # batch 0 can only be of the first policy


@pytest.mark.parametrize("damage", [b"", b'{"success": true, "data": [{"tokens": [1,', b"[1, 2]", b"\xff\xfe"])
def test_a_damaged_payload_opens_the_fates(tmp_path, damage):
    run = story(tmp_path / "run")
    next(run.folder.rglob("s3a/session.json")).write_bytes(damage)
    tables = run.tables()
    assert codes(tables)["payload-unreadable"] == "fates"
    assert spans(tables)["s3a"] == [(None, None, 0, None)]


def test_a_lost_dump_may_have_held_the_sessions_that_none_names(tmp_path):
    run = story(tmp_path / "run")
    (run.folder / "rollout_data/1.pt").unlink()
    run.session("s1a", "111", 1)
    tables = run.tables()
    assert ends(tables)["s1a"] == {("dropped", "unknown", "inferred"), ("pending", None, "inferred")}
    row = tables.scan("uses").filter(pl.col("trajectory_id") == "s1a").collect().row(0, named=True)
    assert (row["step"], row["member"]) == (1, False)


def test_sessions_of_another_run_in_the_same_log_folder_are_left_out(tmp_path):
    run = story(tmp_path / "run")
    shutil.copytree(run.folder / "log/traj_payload/demo/i3", run.folder / "log/traj_payload/other/i3")
    file = next((run.folder / "log/traj_payload/other").rglob("s3a/session.json"))
    file.write_text(file.read_text().replace("s3a", "elsewhere"))
    tables = run.tables()
    assert "elsewhere" not in spans(tables)
    assert codes(tables)["sessions-of-other-runs"] == "fates"


def test_a_payload_that_came_later_moves_no_earlier_one_to_another_unit(tmp_path, monkeypatch):
    """Prompts come in any order: by name, a session of prompt 0 would move all that are read already by one place."""
    monkeypatch.setattr(sessions, "_PER_UNIT", 2)
    run = story(tmp_path / "run")

    def units() -> list[tuple[str, ...]]:
        planned = sessions.units(discover(run.folder))
        return [tuple(piece.source.split("/")[-2] for piece in unit.pieces) for unit in planned]

    before = units()
    time.sleep(0.02)  # a file system's clock ticks some hundred times in a second
    run.session("a", "1", 0)
    after = units()
    assert after[: len(before) - 1] == before[:-1]
    assert "a" in after[-1]


def test_drops_are_counted_where_no_sessions_were_kept(tmp_path):
    run = story(tmp_path / "run")
    shutil.rmtree(run.folder / "log/traj_payload")
    tables = run.tables()
    dropped = tables.scan("events").filter(pl.col("kind") == "dropped").collect().sort("reason")
    assert dropped.select("reason", "multiplicity").rows() == [("group", 1), ("stale", 2)]
    assert {"dropped", "lost", "pending"} <= set(tables.facts["unseen"])


def test_a_failure_that_only_a_retry_remembers_has_two_readings(tmp_path):
    again = sample("s0a", "1", 0, 0, metadata={"blackbox_failure_history": [{"session_id": "gone"}]})
    tables = Run(tmp_path / "run").rollout(0, again).tables()
    assert ends(tables)["gone"] == {("cancelled", "stale", "inferred"), ("lost", "error", "inferred")}


def test_after_a_resume_labels_begin_again(tmp_path):
    """Pitfall 6: label 1 of the second launch is the policy after two rollouts; sessions are of no known launch."""
    run = Run(tmp_path / "run").rollout(0, *batches()[0]).rollout(1, *batches()[1])
    run.rollout(2, sample("t0a", "11", 0, 0), sample("t0b", "1", 0, 1)).session("t9", "1", 9)
    tables = run.console(console(0, 1) + console(2, clock=100)).tables()
    assert spans(tables)["1/t0a"] == [(2, 2, 2, 2)]
    assert spans(tables)["1/t9"] == [(None, None, 1, 1)]
    assert {"dropped", "pending", "lost"} == {kind for kind, _, _ in ends(tables)["1/t9"]}


def test_a_resume_that_neither_labels_nor_a_console_show(tmp_path):
    """A launch takes a prompt into one batch: other sessions of prompt 1 in batch 2 are of a launch after batch 1."""
    again = sample("t1a", "11", 1, 2), sample("t1b", "11", 1, 3)
    run = Run(tmp_path / "run")
    for number, samples in {**batches(), 2: again}.items():
        for one in samples:
            del one["metadata"]["full_versions"]
        run.rollout(number, *samples)
    tables = run.tables()
    assert sorted(tables.scan("groups").collect()["group_id"]) == ["0", "1", "1@2"]
    assert "launch-unseen" in codes(tables)


def test_an_aborted_placeholder_trains_nothing(tmp_path):
    """Pitfall 4: it fills a place of the batch, has a name of its own, and is removed from the loss."""
    lost = sample(
        "aborted-1f", "", 2, 4, remove_sample=True, status="aborted", metadata={"full_versions": ["-1", "-1"]}
    )
    run = Run(tmp_path / "run").rollout(0, *batches()[0]).rollout(1, *batches()[1]).rollout(2, lost, batches()[2][1])
    tables = run.console(log()).tables()
    assert uses(tables)["aborted-1f", 0, 2] == (0, 0)
    assert spans(tables).get("aborted-1f", []) == []
    assert uses(tables)["s2b", 0, 2] == (2, 2)


def test_files_that_were_never_finished_are_no_payloads(tmp_path):
    """Pitfall 8: a crash leaves a temporary file beside a payload; texts are not ASCII."""
    plain = spans(story(tmp_path / "plain").tables())
    run = story(tmp_path / "run")
    folder = next(run.folder.rglob("s3a/session.json")).parent
    (folder / ".session.json.4711.1f2e.tmp").write_text('{"success": true, "da')
    value = json.loads((folder / "session.json").read_text())
    value["data"][0]["messages"] = [{"content": "日本\u2028語 🙂"}]
    (folder / "session.json").write_text(json.dumps(value, indent=2, ensure_ascii=False))
    tables = run.tables()
    assert spans(tables) == plain
    assert "payload-unreadable" not in codes(tables)


def test_logprobs_kept_elsewhere_change_nothing(tmp_path):
    """Pitfall 10: with a TransferQueue the dump has none, and the payload an object in place of the list."""
    plain = spans(story(tmp_path / "plain").tables())
    run = story(tmp_path / "run")
    run.rollout(2, *({**one, "rollout_log_probs": None} for one in batches()[2]))
    file = next(run.folder.rglob("s3a/session.json"))
    value = json.loads(file.read_text())
    value["data"][0]["full_logprobs"] = {"offloaded": True, "key": "bbs/0", "shape": [5]}
    file.write_text(json.dumps(value, indent=2))
    tables = run.tables()
    assert spans(tables) == plain == STORY_SPANS
    assert ends(tables) == STORY_ENDS


def test_a_span_without_an_end_is_a_beginning(tmp_path):
    """Pitfall 11: samples are copied while their spans are open, so a trace tells of admissions only."""
    tables = story(tmp_path / "run").tables()
    kinds = tables.scan("events").filter(pl.col("trajectory_id") == "s2a").sort("seq").collect()["kind"].to_list()
    assert "admitted" in kinds
    assert "finished" not in kinds


def test_the_frameworks_version_gap_is_no_staleness(tmp_path):
    """Pitfalls 1 and 12: a gap among labels seen, and drops counted anew in each call.

    The gap of rollout 2 is logged as 0, while a token of s2a is two versions old; one group was dropped in each of the
    calls for rollouts 1 and 2, which makes two, not one.
    """
    told = "perf {}: {{'staleness/version_gap_max': 0.0, 'staleness/dropped_groups': 1.0}}"
    run = story(tmp_path / "run")
    run.console(log(STALE, RETRIED, *(told.format(number) for number in (1, 2))))
    tables = run.tables()
    assert spans(tables) == STORY_SPANS
    told = {(row["raw_name"], row["step"]): row["name"] for row in tables.scan("reported").collect().to_dicts()}
    assert "step.staleness_max" not in told.values()


def test_a_mask_that_holds_anything_but_0_and_1_is_none(tmp_path):
    """Found by fuzzing: a list in it, which no set can hold. What the session made is known all the same."""
    run = story(tmp_path / "run")
    whole = {name: len(rows) for name, rows in spans(run.tables()).items()}
    file = next(run.folder.rglob("s3a/session.json"))
    damaged = re.sub(r'("full_loss_mask": *\[\s*)\d', r"\1[]", file.read_text(), count=1)
    assert damaged != file.read_text()
    file.write_text(damaged)
    found = spans(run.tables())
    assert found.keys() == whole.keys() and found["s3a"]

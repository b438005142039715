"""slime's formats, told by a small run that can be checked by hand.

The run: batches of one group of two trajectories, a sync after every rollout, so label L is version L - 1 and
rollout r trains from version r. `story` holds:

| rollout | trajectory | calls (label: tokens) | staleness of its tokens |
|---|---|---|---|
| 0 | 0, 1 | 1: 3, 1: 2 | 0 |
| 1 | 2, 3 | 1: 4, 1: 1 | 1 |
| 2 | 4 | 1: none (aborted), 2: 5 | 1 |
| 2 | 5 | 1: 2 (aborted), 2: 3 | 2 (two tokens), 1 |
"""

from __future__ import annotations

import gzip
import io
import pickle
import shutil
import zipfile
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from helpers.states import figures
from staleness_parsers.slime import PARSER, rows

from staleness_audit import audit, plugins
from staleness_audit.discovery import discover
from staleness_audit.ingest import Dataset, ingest
from staleness_audit.watch import blocks
from staleness_audit.watch.follow import Follower

T0 = 1_795_966_200.0  # 2026-11-29 15:30:00 UTC


class Ints(list):
    """Pickled as torch pickles an int32 tensor."""


class TorchPickler(pickle._Pickler):
    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def __init__(self, stream):
        super().__init__(stream, 2)
        self.storages = []

    def save_ints(self, value):
        key = str(len(self.storages))
        self.storages.append(b"".join(int(item).to_bytes(4, "little", signed=True) for item in value))
        self.write(b"ctorch._utils\n_rebuild_tensor_v2\n((")
        self.save("storage")
        self.write(b"ctorch\nIntStorage\n")
        for item in (key, "cpu", len(value)):
            self.save(item)
        self.write(b"tQ")
        for item in (0, (len(value),), (1,), False):
            self.save(item)
        self.write(b"ccollections\nOrderedDict\n)RtR")

    dispatch[Ints] = save_ints


def torch_save(path: Path, value) -> None:
    """Write a file as ``torch.save`` does."""
    stream = io.BytesIO()
    pickler = TorchPickler(stream)
    pickler.dump(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", stream.getvalue())
        archive.writestr(f"{path.stem}/byteorder", "little")
        for key, data in enumerate(pickler.storages):
            archive.writestr(f"{path.stem}/data/{key}", data)


def sample(index, *calls, group=None, start=0.0, trace=True, **more):
    """Return a dumped sample. A call is (label, tokens or None, finish reason); each takes a second."""
    events, at = [], T0 + start
    group = index // 2 if group is None else group

    def event(kind, name, **attrs):
        events.append({"type": kind, "name": name, "ts": at, "span_id": f"{name}{len(events) // 2}", "attrs": attrs})

    for _, tokens, reason in calls:
        event("span_start", "generate_and_rm_group", group_size=2)
        span = f"call{len(events)}"
        event("span_start", "sglang_generate")
        events[-1]["span_id"] = span
        at += 1.0
        event(
            "span_end",
            "sglang_generate",
            finish_reason=reason,
            **({} if tokens is None else {"completion_tokens": tokens}),
        )
        events[-1]["span_id"] = span
        event("span_end", "generate_and_rm_group")
    length = sum(tokens or 0 for _, tokens, _ in calls)
    record = {
        "group_index": group,
        "index": index,
        "rollout_id": None,
        "prompt": "题目",
        "tokens": [7, 8, *range(100 * index, 100 * index + length)],
        "response_length": length,
        "loss_mask": [1] * length,
        "weight_versions": [label for label, _, _ in calls],
        "remove_sample": False,
        "status": "completed",
        "metadata": {},
    }
    if trace:
        record["trace"] = {"version": 1, "events": events}
    return {**record, **more}


class Run:
    """A run directory under construction."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def rollout(self, number, *samples, name="rollout_data/{}.pt"):
        torch_save(self.folder / name.format(number), {"rollout_id": number, "samples": list(samples)})
        return self

    def train(self, number, *samples, masks=None, rank=0):
        records = [
            {
                "data_parallel_rank": 0,
                "sample_index": s["index"],
                "rollout_position": at,
                "tokens": Ints(s["tokens"]),
                "response_lengths": s["response_length"],
                "loss_masks": Ints((masks or {}).get(s["index"], s["loss_mask"] or [1] * s["response_length"])),
            }
            for at, s in enumerate(samples)
        ]
        torch_save(
            self.folder / f"train_data/{number}.pt",
            {"format_version": 2, "rollout_id": number, "rank": rank, "samples": records, "dp_shards": []},
        )
        return self

    def train_v1(self, number, rank, *samples):
        columns = {
            "tokens": [Ints(s["tokens"]) for s in samples],
            "response_lengths": [s["response_length"] for s in samples],
            "loss_masks": [Ints(s["loss_mask"]) for s in samples],
            "sample_indices": [s["index"] for s in samples],
        }
        torch_save(
            self.folder / f"train_data/{number}_{rank}.pt",
            {"rollout_id": number, "rank": rank, "rollout_data": columns},
        )
        return self

    def console(self, text, name="console.log"):
        with (self.folder / name).open("a") as stream:
            stream.write(text)
        return self

    def tables(self) -> Dataset:
        run = discover(self.folder)
        out = self.folder.with_name(self.folder.name + "-tables")
        shutil.rmtree(out, ignore_errors=True)
        return ingest(run, plugins.choose(run, among={"slime": PARSER}), out)


def console(*rollouts, start=0, interval=1, unfinished=(), size=2, ray=False, clock=0, loop="async"):
    """Return the log of one launch: the given rollouts are trained, those of ``unfinished`` only begun."""
    now = datetime(2026, 11, 29, 15, 30) + timedelta(seconds=clock)
    lines = []

    def say(text, actor="MegatronTrainRayActor"):
        nonlocal now
        now += timedelta(seconds=1)
        prefix = f"\x1b[36m({actor} pid={100 + clock + len(actor)})\x1b[0m " if ray else ""
        lines.append(f"{prefix}[{now:%Y-%m-%d %H:%M:%S}] some.py:1 - {text}\n")

    def timer(name):
        say(f"Timer {name} start")
        say(f"Timer {name} end (elapsed: 1.0s)")

    def collect(number):
        say(f"fully-async rollout {number}: target=1 queue_warm=0", "RolloutManager")
        say(f"fully-async rollout {number}: done in 0.5s, queue_left=0", "RolloutManager")
        say(f"Save debug rollout data to /data/run/rollout_data/{number}.pt", "RolloutManager")

    say("Timer train_wait start")
    timer("update_weights")
    say("starting fully-async rollout worker", "RolloutManager")
    plan = [*rollouts, *unfinished]
    collect(plan[0])
    for at, number in enumerate(plan):
        say("Timer train_wait end (elapsed: 2.5s)")
        say("Timer train start")
        if loop == "async" and at + 1 < len(plan):
            collect(plan[at + 1])
        if number in unfinished:
            break
        say("Timer train end (elapsed: 1.0s)")
        say("Timer train_wait start")
        say(f"step {number}: {{'train/loss': nan, 'train/global_batch_size': {size}, 'train/step': {number}}}")
        say(f"perf {number}: {{'perf/train_wait_time': 2.5, 'perf/train_time': 1.0, 'perf/step_time': 3.5}}")
        if (number + 1) % interval == 0:
            timer("update_weights")
        if loop != "async" and at + 1 < len(plan):
            collect(plan[at + 1])
    return "".join(lines)


def batches():
    return {
        0: (sample(0, ("1", 3, "stop")), sample(1, ("1", 2, "stop"))),
        1: (sample(2, ("1", 4, "stop"), start=1), sample(3, ("1", 1, "length"), start=1)),
        2: (
            sample(4, ("1", None, "abort"), ("2", 5, "stop"), start=9),
            sample(5, ("1", 2, "abort"), ("2", 3, "stop"), start=9),
        ),
    }


def story(folder: Path, *, train=True, log=True) -> Run:
    run = Run(folder)
    for number, samples in batches().items():
        run.rollout(number, *samples)
        if train:
            run.train(number, *samples)
    return run.console(console(0, 1, 2)) if log else run


def spans(tables: Dataset) -> dict[str, list[tuple]]:
    """Spans by trajectory: (version_lo, version_hi, tokens_lo, tokens_hi)."""
    found: dict[str, list[tuple]] = {}
    for row in tables.scan("spans").collect().sort("trajectory_id", "span_index").iter_rows(named=True):
        found.setdefault(row["trajectory_id"], []).append(
            (row["version_lo"], row["version_hi"], row["tokens_lo"], row["tokens_hi"])
        )
    return found


def uses(tables: Dataset) -> dict[tuple[str, int, int], tuple[int, int]]:
    """Loss tokens by (trajectory, attempt, step)."""
    frame = (
        tables.scan("uses")
        .group_by("trajectory_id", "attempt", "step")
        .agg(pl.col("loss_tokens_lo").sum(), pl.col("loss_tokens_hi").sum())
    )
    return {(i, a, s): (lo, hi) for i, a, s, lo, hi in frame.collect().iter_rows()}


def steps(tables: Dataset) -> dict[tuple[int, int], bool | None]:
    return {(r["attempt"], r["step"]): r["completed"] for r in tables.scan("steps").collect().iter_rows(named=True)}


def codes(tables: Dataset) -> dict[str, str | None]:
    return {r["code"]: r["opens"] for r in tables.scan("diagnostics").collect().iter_rows(named=True)}


STORY_SPANS = {
    "0": [(0, 0, 3, 3)],
    "1": [(0, 0, 2, 2)],
    "2": [(0, 0, 4, 4)],
    "3": [(0, 0, 1, 1)],
    "4": [(1, 1, 5, 5)],
    "5": [(0, 0, 2, 2), (1, 1, 3, 3)],
}
STORY_USES = {
    ("0", 0, 0): (3, 3),
    ("1", 0, 0): (2, 2),
    ("2", 0, 1): (4, 4),
    ("3", 0, 1): (1, 1),
    ("4", 0, 2): (5, 5),
    ("5", 0, 2): (5, 5),
}


def test_the_story(tmp_path):
    tables = story(tmp_path / "run").tables()
    assert spans(tables) == STORY_SPANS
    assert uses(tables) == STORY_USES
    assert steps(tables) == {(0, 0): True, (0, 1): True, (0, 2): True}
    step = tables.scan("steps").filter(pl.col("step") == 2).collect().row(0, named=True)
    assert (step["v_train_lo"], step["v_train_hi"], step["waited_us"], step["updates"]) == (2, 2, 2_500_000, 1)
    assert tables.scan("syncs").collect()["version_lo"].to_list() == [0, 1, 2, 3]
    assert tables.facts["bound"]["value"] is None
    assert tables.facts["guarantee"]["limit"] == "none"
    assert tables.facts["groups_per_step"] == 1
    assert tables.facts["config"]["loop"] == "train_async.py"


def test_the_life_of_an_interrupted_trajectory(tmp_path):
    tables = story(tmp_path / "run").tables()
    kinds = tables.scan("events").filter(pl.col("trajectory_id") == "5").collect()
    assert kinds["kind"].to_list() == ["admitted", "started", "paused", "resumed", "finished", "enqueued", "sampled"]
    assert kinds.filter(pl.col("kind") == "sampled")["step"].to_list() == [2]


@pytest.mark.parametrize("case", ["deeper", "compressed", "ray", "dumps and console in other folders"])
def test_the_story_told_otherwise_is_the_same(tmp_path, case):
    run = story(tmp_path / "run")
    if case == "deeper":
        shutil.move(run.folder, tmp_path / "inner")
        shutil.move(tmp_path / "inner", Run(tmp_path / "run").folder / "some")
    elif case == "compressed":
        for file in [file for file in run.folder.rglob("*") if file.is_file()]:
            file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
            file.unlink()
    elif case == "ray":
        (run.folder / "console.log").write_text(console(0, 1, 2, ray=True))
    else:
        (run.folder / "logs").mkdir()
        shutil.move(run.folder / "console.log", run.folder / "logs" / "job.out")
        shutil.move(run.folder / "rollout_data", run.folder / "a_rollouts")
        shutil.move(run.folder / "train_data", run.folder / "z_trained")
    tables = run.tables()
    assert spans(tables) == STORY_SPANS
    assert uses(tables) == STORY_USES
    assert set(steps(tables).values()) == {True}


def test_labels_are_numbers_not_text(tmp_path):
    """Pitfall 1: "10" comes after "9"."""
    run = Run(tmp_path / "run")
    for r in range(12):
        label = str(max(r, 1))
        one = sample(r, (label, 2, "stop"), start=2 * r)
        run.rollout(r, one).train(r, one)
    tables = run.console(console(*range(12), size=1)).tables()
    assert spans(tables)["10"] == [(9, 9, 2, 2)]
    assert spans(tables)["9"] == [(8, 8, 2, 2)]


def test_delta_mode_does_not_count_the_first_sync(tmp_path):
    """Label "default" is the initial policy, "1" the one after the first rollout."""
    run = Run(tmp_path / "run")
    for r, label in enumerate(["default", "default", "1"]):
        one = sample(r, (label, 2, "stop"), start=2 * r)
        run.rollout(r, one).train(r, one)
    tables = run.console(console(0, 1, 2, size=1)).tables()
    assert [spans(tables)[str(i)][0][:2] for i in range(3)] == [(0, 0), (0, 0), (1, 1)]


def test_a_sync_every_second_rollout(tmp_path):
    """Pitfall 9: with k = 2 label 2 is version 2; the console shows it, the dumps alone leave k = 1 possible."""
    run = Run(tmp_path / "run")
    for r, label in enumerate(["1", "1", "1", "2"]):
        one = sample(r, (label, 2, "stop"), start=2 * r)
        run.rollout(r, one).train(r, one)
    alone = run.tables()
    assert spans(alone)["3"] == [(1, 3, 2, 2)]  # any k from 1 to 3 fits
    tables = run.console(console(0, 1, 2, 3, interval=2, size=1)).tables()
    assert spans(tables)["3"] == [(2, 2, 2, 2)]
    assert tables.facts["config"]["update_weights_interval"] == 2


def test_without_traces_versions_are_intervals(tmp_path):
    run = Run(tmp_path / "run")
    for number, samples in batches().items():
        plain = [{key: value for key, value in one.items() if key != "trace"} for one in samples]
        run.rollout(number, *plain).train(number, *plain)
    tables = run.console(console(0, 1, 2)).tables()
    assert spans(tables)["3"] == [(0, 0, 1, 1)]
    assert spans(tables)["5"] == [(0, 1, 5, 5)]  # which tokens are label 1's is not recorded
    assert uses(tables) == STORY_USES
    assert any("trace" in hint["remedy"] for hint in tables.facts["hints"])


@pytest.mark.parametrize("labels", [[], ["bad", "²"], None, ["99", "99"]])
def test_unknown_labels_leave_what_the_process_could_have_made(tmp_path, labels):
    run = story(tmp_path / "run")
    odd = sample(5, ("1", 2, "abort"), ("2", 3, "stop"), weight_versions=labels)
    run.rollout(2, batches()[2][0], odd)
    found = spans(run.tables())["5"]
    assert {span[:2] for span in found} <= {(0, 1), (0, 2)}
    assert sum(span[2] for span in found) == 5


def test_masks(tmp_path):
    """The train dump's mask decides, span by span; a fully masked member stays a member."""
    run = story(tmp_path / "run")
    run.train(2, *batches()[2], masks={4: [0, 0, 0, 0, 0], 5: [0, 1, 1, 1, 0]})
    tables = run.tables()
    assert uses(tables)["4", 0, 2] == (0, 0)
    rows = tables.scan("uses").filter(pl.col("trajectory_id") == "5").sort("span_index").collect()
    assert rows["loss_tokens_lo"].to_list() == rows["loss_tokens_hi"].to_list() == [1, 2]


def test_removed_samples_and_missing_masks_in_rollout_dumps(tmp_path):
    """Pitfall 5: no mask means all ones, remove_sample means none."""
    run = story(tmp_path / "run", train=False)
    run.rollout(2, {**batches()[2][0], "loss_mask": None}, {**batches()[2][1], "remove_sample": True})
    found = uses(run.tables())
    assert found["4", 0, 2] == (5, 5)
    assert found["5", 0, 2] == (0, 0)


def test_tool_output_between_calls(tmp_path):
    """Multi-turn: four sampled tokens among seven; the mask says which, in the order of the calls."""
    run = story(tmp_path / "run")
    turn = sample(5, ("1", 2, "stop"), ("2", 2, "stop"), start=9)
    turn.update(response_length=7, loss_mask=[1, 1, 0, 0, 0, 1, 1], tokens=[7, 8, *range(7)])
    run.rollout(2, batches()[2][0], turn).train(2, batches()[2][0], turn, masks={5: [0, 1, 0, 0, 0, 1, 1]})
    tables = run.tables()
    assert spans(tables)["5"] == [(0, 0, 2, 2), (1, 1, 2, 2)]
    rows = tables.scan("uses").filter(pl.col("trajectory_id") == "5").sort("span_index").collect()
    assert rows["loss_tokens_lo"].to_list() == [1, 2]


def test_dumps_of_version_one_are_joined_over_ranks(tmp_path):
    run = story(tmp_path / "run", train=False)
    for number, (left, right) in batches().items():
        run.train_v1(number, 0, left).train_v1(number, 1, right, left)  # rank 1 repeats a sample of rank 0
    tables = run.tables()
    assert uses(tables) == STORY_USES
    assert spans(tables) == STORY_SPANS


def test_a_missing_rank_proves_no_trim(tmp_path):
    run = story(tmp_path / "run", train=False, log=False)
    for number, (left, right) in batches().items():
        run.train_v1(number, 0, left)
        if number != 1:
            run.train_v1(number, 1, right)
    tables = run.tables()
    assert uses(tables)["3", 0, 1] == (0, 1)
    assert "dropped" not in tables.scan("events").collect()["kind"].to_list()


def test_train_dumps_do_not_say_which_trajectories_are_of_one_group(tmp_path):
    """Batches 1 and 2 are collected before the sync that precedes them, so all of their four samples are stale."""
    run = Run(tmp_path / "run").console(console(0, 1, 2))
    for number, samples in batches().items():
        run.train(number, *samples)
    violations = audit(run.folder, 0, framework="slime", tables=tmp_path / "tables").data["violations"]
    assert violations["trajectories"] == {"lo": 4, "hi": 4}
    assert violations["groups"] == {"lo": 2, "hi": 4}


def test_trimmed_samples_were_dropped(tmp_path):
    """In the rollout dump and not in the train dump: left over when the batch was cut into optimizer steps."""
    run = story(tmp_path / "run")
    run.train(2, batches()[2][0])
    tables = run.tables()
    assert ("5", 0, 2) not in uses(tables)
    gone = tables.scan("events").filter(pl.col("kind") == "dropped").collect()
    assert gone["trajectory_id"].to_list() == ["5"]
    assert gone["reason"].to_list() == ["surplus"]


def test_the_console_tells_how_many_were_trimmed(tmp_path):
    """Without train dumps: the steps took three of four executions, in the order of the dump."""
    samples = [sample(index, ("1", 2, "stop")) for index in range(4)]
    tables = Run(tmp_path / "run").rollout(0, *samples).console(console(0, size=3)).tables()
    assert set(uses(tables)) == {("0", 0, 0), ("1", 0, 0), ("2", 0, 0)}
    gone = tables.scan("events").filter(pl.col("kind") == "dropped").collect()
    assert gone["trajectory_id"].to_list() == ["3"]


def test_rollout_dumps_alone_prove_all_but_the_last_two(tmp_path):
    """Pitfall 10; and that of a batch less than half can have been trimmed."""
    tables = story(tmp_path / "run", train=False, log=False).tables()
    assert steps(tables) == {(0, 0): True, (0, 1): None, (0, 2): None}
    assert spans(tables)["0"] == [(0, 0, 3, 3)]
    assert spans(tables)["4"] == [(1, 2, 5, 5)]  # a sync after every second rollout would fit as well
    assert uses(tables)["0", 0, 0] == (3, 3)


def test_a_killed_run(tmp_path):
    run = story(tmp_path / "run", log=False)
    (run.folder / "train_data" / "2.pt").unlink()
    for log in ("", console(0, 1, unfinished=(2,))):
        tables = run.console(log).tables()
        assert steps(tables) == {(0, 0): True, (0, 1): True, (0, 2): False}
        assert ("5", 0, 2) in uses(tables)


def resumed(tmp_path) -> Run:
    """Launched, trained 0 and 1, collected 2; resumed after 0: rollouts 1 and 2 again, label 1 anew."""
    run = story(tmp_path / "run", log=False)
    run.console(console(0, 1, unfinished=(2,))).console(console(1, 2, clock=100))
    for number, label in ((1, "1"), (2, "1")):
        again = (sample(2, (label, 6, "stop"), start=100), sample(3, (label, 6, "stop"), start=100))
        run.rollout(number, *[{**one, "index": one["index"] + 2 * number} for one in again])
        run.train(number, *[{**one, "index": one["index"] + 2 * number} for one in again])
    return run


def test_a_resume_restarts_labels(tmp_path):
    """Pitfall 2: after a resume at rollout 1 label 1 is version 1; the first launch's step 1 is superseded."""
    tables = resumed(tmp_path).tables()
    attempts = tables.facts["attempts"]
    assert [(a["attempt"], a["resumed_after"]) for a in attempts] == [(0, None), (1, 0)]
    assert steps(tables) == {(0, 0): True, (0, 1): True, (0, 2): False, (1, 1): True, (1, 2): True}
    assert spans(tables)["1/4"] == [(1, 1, 6, 6)]
    assert spans(tables)["0"] == [(0, 0, 3, 3)]
    assert set(uses(tables)) == {("0", 0, 0), ("1", 0, 0), ("1/4", 1, 1), ("1/5", 1, 1), ("1/6", 1, 2), ("1/7", 1, 2)}


def test_a_resume_without_console_shows_in_the_labels(tmp_path):
    run = Run(tmp_path / "run")
    for r, (label, start) in enumerate([("1", 0), ("1", 2), ("2", 4), ("1", 50), ("1", 52), ("2", 54)]):
        one = sample(r, (label, 2, "stop"), start=start)
        run.rollout(r, one).train(r, one)
    tables = run.tables()
    assert [a["resumed_after"] for a in tables.facts["attempts"]] == [None, 2]
    assert spans(tables)["1/3"] == [(3, 3, 2, 2)]
    assert spans(tables)["1/5"] == [(4, 5, 2, 2)]  # a sync after every second rollout would fit as well


def test_a_resume_that_the_labels_do_not_show(tmp_path):
    """All is label 1: one launch trained all of it on version 0, or another one began at rollout 1 or 2.

    A call that ended before the batch before was complete is of the same launch as that.
    """
    for early in (False, True):
        run = Run(tmp_path / f"run{early}")
        for number in range(3):
            made = [sample(2 * number + at, ("1", 4, "stop"), start=10 * number) for at in (0, 1)]
            if early and number:
                made[0] = sample(2 * number, ("1", 4, "stop"), start=10 * number - 10.5)
            run.rollout(number, *made).train(number, *made)
        assert spans(run.tables())["5"] == [(0, 0 if early else 2, 4, 4)]


@pytest.mark.parametrize("initial", ["1", "default"])
def test_a_resume_after_which_batches_were_collected_in_turn(tmp_path, initial):
    """One launch of train_async.py made batch 1 ahead, on version 0; or one of train.py began with it, on version 1.

    The label after the initial one is that of the next sync: of version 1 in the first case, of version 2 in the other.
    """
    run = Run(tmp_path / "run")
    for number, label in enumerate([initial, initial, "2" if initial == "1" else "1"]):
        one = sample(number, (label, 4, "stop"), start=10 * number)
        run.rollout(number, one).train(number, one)
    found = spans(run.tables())
    assert (found["1"], found["2"]) == ([(0, 1, 4, 4)], [(1, 2, 4, 4)])


def test_labels_that_go_on_over_a_resume_are_intervals(tmp_path):
    """A server outlived a launch that synced twice more (labels 2, 3); the next one resumes at 1 under label 4."""
    run = Run(tmp_path / "run").rollout(0, sample(0, ("1", 2, "stop")))
    for number in (1, 2, 3):
        run.rollout(number, sample(2 * number, ("4", 2, "stop"), start=10 * number))
    found = spans(run.tables())
    assert found["2"] == [(0, 1, 2, 2)]
    assert found["6"] == [(0, 3, 2, 2)]  # true: 1; label 4 counted from the first launch would be 3


def test_what_a_resume_went_back_behind_needs_no_members(tmp_path):
    """The first launch was killed when rollout 0 was collected; the second began anew and overwrote its dump."""
    run = story(tmp_path / "run", log=False)
    collected = console(0, unfinished=(0,)).split("Timer train start")[0].rpartition("\n")[0] + "\n"
    tables = run.console(collected).console(console(0, 1, 2, clock=100)).tables()
    assert steps(tables)[1, 2] is True
    assert "training" not in codes(tables).values()


def test_dumps_that_begin_late_may_lack_the_first(tmp_path):
    """Rollout 0 is missing and no console tells of it: label 1 is v0 if it was trained, v1 if the run began at 1."""
    run = Run(tmp_path / "run")
    for r, label in ((1, "1"), (2, "2")):
        one = sample(r, (label, 2, "stop"), start=2 * r)
        run.rollout(r, one).train(r, one)
    found = spans(run.tables())
    assert found["1"] == [(0, 1, 2, 2)]
    assert found["2"] == [(1, 2, 2, 2)]


def test_a_train_dump_of_an_earlier_attempt_trains_nothing_new(tmp_path):
    """The second launch collected rollout 2 and died: beside its dump lies the first launch's train dump."""
    run = story(tmp_path / "run", log=False)
    run.console(console(0, 1, 2)).console(console(1, unfinished=(2,), clock=100))
    for number in (1, 2):
        again = sample(2 * number, ("1", 6, "stop"), start=100)
        run.rollout(number, again)
        if number == 1:
            run.train(number, again)
    tables = run.tables()
    assert steps(tables)[1, 2] is False
    assert steps(tables)[0, 2] is True
    assert "train-dump-of-earlier-attempt" in codes(tables)
    assert uses(tables)["5@train2", 0, 2] == (5, 5)


def test_a_finished_sibling_keeps_its_label(tmp_path):
    """Pitfall 4: trajectory 4 had ended when 5 was aborted; both wait for rollout 2, and 4 is two versions old."""
    run = story(tmp_path / "run")
    members = (sample(4, ("1", 5, "stop"), start=3), sample(5, ("1", 2, "abort"), ("2", 3, "stop"), start=3))
    tables = run.rollout(2, *members).train(2, *members).tables()
    assert spans(tables)["4"] == [(0, 0, 5, 5)]
    assert spans(tables)["5"] == [(0, 0, 2, 2), (1, 1, 3, 3)]
    assert set(tables.scan("trajectories").filter(pl.col("group_id") == "2").collect()["trajectory_id"]) == {"4", "5"}


def test_several_nodes_may_write_one_file(tmp_path):
    """Pitfall 11: each node keeps a copy of the same template; a batch is trained once."""
    run = story(tmp_path / "run")
    for number, samples in batches().items():
        run.rollout(number, *samples, name="node1/rollout_data/{}.pt")
    assert uses(run.tables()) == STORY_USES


def test_the_frameworks_throughput_is_none(tmp_path):
    """Pitfalls 7 and 15: two kinds of `perf` lines; a rate over a call that found a full queue says nothing."""
    told = "perf 2: {'rollout/response_len/mean': np.float64(5.0), 'perf/rollout_time': 0.0, "
    log = console(0, 1, 2) + "[2026-11-29 15:45:00] x.py:1 - " + told + "'perf/tokens_per_gpu_per_sec': inf}\n"
    tables = story(tmp_path / "run", log=False).console(log).tables()
    assert uses(tables) == STORY_USES
    assert set(codes(tables)) == {"console-time-zone"}
    step = tables.scan("steps").filter(pl.col("step") == 2).collect().row(0, named=True)
    assert step["waited_us"] == 2_500_000
    assert "perf/tokens_per_gpu_per_sec" not in tables.scan("reported").collect()["raw_name"].to_list()


def test_fan_out_is_one_trajectory(tmp_path):
    """Pitfall 14: samples that share an execution are one trajectory; 8: evaluation counts nowhere."""
    run = story(tmp_path / "run")
    parts = [sample(4, ("2", 2, "stop"), start=9, rollout_id=77), sample(4, ("2", 3, "stop"), start=9, rollout_id=77)]
    parts[1]["index"] = 99
    run.rollout(2, *parts).train(2, *parts)
    run.rollout(2, sample(0, ("3", 9, "stop")), name="rollout_data/eval_{}.pt")
    tables = run.tables()
    assert spans(tables)["g2x77"] == [(1, 1, 2, 2), (1, 1, 3, 3)]
    assert uses(tables)["g2x77", 0, 2] == (5, 5)
    roles = tables.scan("trajectories").collect()
    assert roles.filter(pl.col("role") == "eval")["trajectory_id"].to_list() == ["eval2/0"]


def test_a_call_that_lived_through_a_sync_is_an_interval(tmp_path):
    """Guide 3, item 5: pausing in place records only the last label of a call."""
    run = story(tmp_path / "run")
    long = sample(5, ("2", 5, "stop"))
    early, late = T0 + 2.0, T0 + 20.0
    for event in long["trace"]["events"]:
        event["ts"] = early if event["type"] == "span_start" else late
    other = sample(4, ("1", 2, "abort"), ("2", 3, "stop"), start=9)
    tables = run.rollout(2, other, long).train(2, other, long).tables()
    assert spans(tables)["5"] == [(0, 1, 5, 5)]
    assert "paused-in-place" in codes(tables)


def test_in_place_a_label_is_that_of_the_last_token_even_if_no_older_call_ended_since(tmp_path):
    """Once one call has lived through a sync, another that began when only label 1 had ended may have, too."""
    run = story(tmp_path / "run")
    long, later = sample(5, ("2", 5, "stop")), sample(4, ("2", 3, "stop"))
    for one, begin, end in ((long, 1.5, 20.0), (later, 10.0, 11.0)):
        for event in one["trace"]["events"]:
            event["ts"] = T0 + (begin if event["type"] == "span_start" else end)
    tables = run.rollout(2, later, long).train(2, later, long).tables()
    assert spans(tables)["4"] == [(0, 1, 3, 3)]


def at(record, begin, end):
    """Move the only call of a sample: seconds after 15:30:00."""
    for event in record["trace"]["events"]:
        event["ts"] = T0 + (begin if event["type"] == "span_start" else end)
    return record


@pytest.mark.parametrize(
    ("others", "versions"),
    [
        ((), (0, 1)),  # it may have lived through the sync of 15:30:14
        ((sample(4, ("1", 2, "abort"), ("2", 3, "stop"), start=13.2),), (1, 1)),  # that sync ended calls, at 14.2
    ],
)
def test_the_console_dates_the_sync_that_a_single_call_may_have_lived_through(tmp_path, others, versions):
    """Where releases can pause in place, no older call beside need show it: label 2 was published after 15:30:14."""
    run = Run(tmp_path / "run")
    run.rollout(0, at(sample(0, ("1", 3, "stop")), 4.5, 5.5), at(sample(1, ("1", 2, "stop")), 4.5, 5.5))
    begun = 14.8 if others else 8.0
    long, later = at(sample(2, ("2", 4, "stop")), begun, 17.6), at(sample(3, ("2", 1, "stop")), 17.1, 17.8)
    run.rollout(1, long, later, *others)
    log = console(0, 1, loop="turns").replace("0.5s, queue", "0.5s, kept=1 dropped=0, queue")
    tables = run.console(log).tables()
    assert spans(tables)["2"] == [(*versions, 4, 4)]
    assert spans(tables)["3"] == [(1, 1, 1, 1)]  # begun two seconds after the sync's end on the console
    assert ("paused-in-place" in codes(tables)) == (versions == (0, 1))


def test_lost_and_filtered_groups_on_the_console(tmp_path):
    log = console(0, 1, 2).replace(
        "fully-async rollout 1: done in 0.5s, queue_left=0",
        "fully-async rollout 1: done in 0.5s, kept=1 dropped=3 ({'zero_std': 2}), queue_left=0",
    )
    run = story(tmp_path / "run", log=False).console(log)
    run.console("[2026-11-29 15:40:00] fully_async_rollout.py:99 - fully-async task crashed: ValueError('x')\n")
    tables = run.tables()
    gone = tables.scan("events").filter(pl.col("kind").is_in(["dropped", "lost"])).collect()
    assert sorted(zip(gone["kind"], gone["reason"], gone["multiplicity"], strict=True)) == [
        ("dropped", "filtered", 2),
        ("dropped", "zero_advantage", 4),
        ("lost", "error", 2),
    ]


def test_console_only(tmp_path):
    """Steps are exact, trajectories follow from the batch size, tokens from the mean length, ages from the start."""
    mean = "perf 1: {'rollout/response_len/mean': 2.5, 'perf/rollout_time': 0.5}\n"
    tables = Run(tmp_path / "run").console(console(0, 1) + "[2026-11-29 15:45:00] x.py:1 - " + mean).tables()
    assert steps(tables) == {(0, 0): True, (0, 1): True}
    found = tables.scan("constraints").filter(pl.col("step") == 1).collect()
    assert dict(zip(found["quantity"], found["value"], strict=True)) == {
        "staleness_max": 1.0,
        "trajectories": 2.0,
        "loss_tokens": 5.0,
    }
    assert tables.facts["unseen"] == ["cancelled", "dropped", "lost", "pending"]


@pytest.mark.parametrize(
    ("words", "dialect"),
    [
        ("Starting async rollout generation for 1 groups\n", "fully-async, v0.2.2 to v0.2.4"),
        (
            "[2026-11-29 15:45:00] x.py:1 - fully-async rollout 1: took 1 groups after 0.5s;\n",
            "fully-async, pooled worker",
        ),
        (
            "[2026-11-29 15:45:00] x.py:1 - starting fully-async rollout worker\n",
            "fully-async, train_async.py (to August 2026)",
        ),
        ("", "train_async.py: one rollout ahead"),
    ],
)
def test_the_consoles_words_name_the_rollout_loop(tmp_path, words, dialect):
    plain = "".join(line for line in console(0, 1).splitlines(keepends=True) if "fully-async" not in line)
    assert Run(tmp_path / "run").console(plain + words).tables().facts["dialect"] == dialect


def test_local_times_are_moved_by_what_the_traces_tell(tmp_path):
    run = story(tmp_path / "run", log=False)
    tables = run.console(console(0, 1, 2, clock=-5 * 3600)).tables()
    first = tables.scan("syncs").sort("started").collect()["started"][0]
    assert first.strftime("%H:%M") == "15:30"


def test_critic_only_rollouts_train_no_policy(tmp_path):
    log = console(0, 1, 2).replace("step 0: {", "critic-step 0: {")
    tables = story(tmp_path / "run", log=False).console(log).tables()
    assert steps(tables)[0, 0] is False
    versions = tables.scan("steps").sort("step").collect()["v_train_lo"].to_list()
    assert versions == [0, 0, 1]
    assert spans(tables)["4"] == [(0, 0, 5, 5)]  # the sync after a critic-only rollout publishes the same policy


def test_a_lost_line_is_no_restart(tmp_path):
    lines = console(0, 1, 2).splitlines(keepends=True)
    told = ("Timer", "step 1", "perf 1", "starting")
    middle = range(2, len(lines) - 8)
    for gone in [at for at in middle if any(word in lines[at] for word in told)]:
        run = story(tmp_path / f"run{gone}", log=False)
        tables = run.console("".join([*lines[:gone], "\x00\xff garbage\n", *lines[gone + 1 :]])).tables()
        assert spans(tables) == STORY_SPANS, lines[gone]
        assert uses(tables) == STORY_USES, lines[gone]
        assert len(tables.facts["attempts"]) == 1


def test_a_missing_rollout_opens_the_verdict(tmp_path):
    """Rollout ids have no gaps: the dumps of rollout 1 are gone, and no console tells what it took."""
    run = story(tmp_path / "run", log=False)
    (run.folder / "rollout_data" / "1.pt").unlink()
    (run.folder / "train_data" / "1.pt").unlink()
    tables = run.tables()
    assert steps(tables)[0, 1] is True
    assert codes(tables)["step-without-members"] == "training"


def test_a_console_without_its_beginning(tmp_path):
    """No launch is on record: the start is what the dumps' labels allow, not the first line that is left."""
    log = console(0, 1, 2)
    rest = log[log.index("\n", log.index("Timer train end")) + 1 :]
    tables = story(tmp_path / "run", log=False).console(rest).tables()
    assert spans(tables) == STORY_SPANS
    assert [a["resumed_after"] for a in tables.facts["attempts"]] == [None]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("which", ["rollout_data/1.pt", "train_data/1.pt", "rollout_data/0.pt", "rollout_data/2.pt"])
def test_a_cut_dump_opens_the_verdict_and_widens_only(tmp_path, which, share):
    run = story(tmp_path / "run")
    file = run.folder / which
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    tables = run.tables()
    assert "training" in codes(tables).values()
    assert set(steps(tables).values()) == {True}
    found = spans(tables)
    for trajectory, true in STORY_SPANS.items():
        mine = found[trajectory]
        assert min(span[0] for span in mine) <= true[0][0]
        assert max(span[1] for span in mine) >= true[-1][1]
        assert sum(span[2] for span in mine) <= sum(span[2] for span in true) <= sum(span[3] for span in mine)
    for use, (lo, hi) in STORY_USES.items():
        assert uses(tables)[use][0] <= lo
        assert uses(tables)[use][1] >= hi


def test_a_cut_dump_of_an_untrained_batch_opens_no_training(tmp_path):
    run = story(tmp_path / "run", log=False)
    (run.folder / "train_data" / "2.pt").unlink()
    file = run.folder / "rollout_data" / "2.pt"
    file.write_bytes(file.read_bytes()[:300])
    tables = run.console(console(0, 1, unfinished=(2,))).tables()
    assert codes(tables)["rollout-dump-lost"] == "fates"
    assert "training" not in codes(tables).values()


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"rollout_id": 1},
        {"rollout_id": 7, "samples": []},
        {"rollout_id": 1, "samples": {"a": 1}},
        {"rollout_id": 1, "samples": [3, {}]},
    ],
)
def test_values_of_the_wrong_shape(tmp_path, value):
    run = story(tmp_path / "run")
    torch_save(run.folder / "rollout_data" / "1.pt", value)
    tables = run.tables()
    assert "training" in codes(tables).values()
    assert uses(tables)["2", 0, 1] == (4, 4)  # from the train dump


def test_odd_cells_do_not_stop_the_reading(tmp_path):
    run = story(tmp_path / "run")
    odd = sample(5, ("1", 2, "abort"), ("2", 3, "stop"), start=9)
    odd.update(loss_mask="x", status=3, metadata=None, reward=float("nan"), group_index=None)
    odd["trace"]["events"] += [None, {"type": "span_end", "name": "sglang_generate", "ts": "late", "attrs": None}]
    tables = run.rollout(2, batches()[2][0], odd).tables()
    assert "sample-odd" in codes(tables)
    assert uses(tables)["5", 0, 2] == (5, 5)


def test_a_cut_last_line_did_not_happen(tmp_path):
    log = console(0, 1, 2)
    cut = log[: log.rindex("perf/step_time")]
    tables = story(tmp_path / "run", log=False).console(cut).tables()
    assert codes(tables)["cut-line"] is None
    assert uses(tables) == STORY_USES


def test_an_empty_console_and_foreign_files(tmp_path):
    run = story(tmp_path / "run", log=False).console("")
    (run.folder / "notes.txt").write_bytes(b"\xff\xfe\x00 nothing of slime's\n")
    (run.folder / "model.pt").write_bytes(b"PK\x03\x04 something else")
    assert uses(run.tables()) == STORY_USES


def test_detection_leaves_foreign_runs_alone(tmp_path):
    (tmp_path / "a.log").write_text("hello\n")
    (tmp_path / "b.pt").write_bytes(b"PK\x03\x04")
    assert PARSER.detect(discover(tmp_path)) is None


def test_a_watch_writes_only_rollouts_that_became_others(tmp_path, monkeypatch):
    """Rollout 3 tells nothing new of those before it. Rollout 4 names another sample like one of rollout 2.

    They, and rollout 3 between them, are then told together.
    """
    monkeypatch.setattr(blocks, "BLOCK", 1)
    written, write = [], rows.write_trajectories

    def noted(samples, sink):
        written.append(samples["rollout"].unique().sort().to_list())
        write(samples, sink)

    monkeypatch.setattr(rows, "write_trajectories", noted)
    run = story(tmp_path / "run", log=False)
    watching = Follower(run.folder, None, framework=None, folder=tmp_path / "watching")
    watching.refresh()
    assert written == [[0], [1], [2]]
    for number, index, anew in ((3, 6, [[3]]), (4, 5, [[2, 3, 4]])):
        written.clear()
        added = (sample(index, ("3", 2, "stop"), start=15 + number),)
        run.rollout(number, *added).train(number, *added)
        state = watching.refresh()
        assert written == anew
    assert figures(state.data) == figures(audit(run.folder, tables=tmp_path / "audit").data)

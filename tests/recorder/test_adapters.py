"""What adapters take from responses and trainers, and what they leave open."""

from __future__ import annotations

import json
import queue
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from staleness_audit import audit
from staleness_audit.recorder import Recorder
from staleness_audit.recorder.adapters.openai import record_response
from staleness_audit.recorder.adapters.trl import recorded

# -- responses of inference servers ------------------------------------------------------------------------------------


def chat(label: Any, choices: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """A chat completion as SGLang's OpenAI-compatible server answers."""
    return {
        "object": "chat.completion",
        "choices": [
            {"index": number, "message": {"content": "..."}, **choice} for number, choice in enumerate(choices)
        ],
        "usage": {"completion_tokens": tokens, "prompt_tokens": 9},
        "metadata": {"weight_version": label},
    }


def spans(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.iterdir()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    wanted = ("trajectory_id", "tokens", "tokens_lo", "tokens_hi", "version", "version_lo", "version_hi", "monotone")
    return [{name: event[name] for name in wanted if name in event} for event in events if event.get("kind") == "span"]


def taken(folder: Path, response: Any, names: Any = "t", **options: Any) -> list[dict[str, Any]]:
    """The spans that are recorded of a response."""
    with Recorder(folder, durable=True) as record:
        record_response(record, names, response, **options)
    assert record.stats.failed == 0
    return spans(folder)


def test_a_response_is_exact_if_no_update_can_lie_in_it(tmp_path: Path) -> None:
    response = chat("5", [{}], 12)
    exact = {"trajectory_id": "t", "tokens": 12, "version": 5}
    assert taken(tmp_path / "aborting", response, exact=True) == [exact]
    assert taken(tmp_path / "same", response, since=5) == [exact]
    assert taken(tmp_path / "slime", response, exact=True, version_of=lambda label: int(label) - 1) == [
        {**exact, "version": 4}
    ]


def test_a_response_over_an_update_is_an_interval(tmp_path: Path) -> None:
    """Sent at v3, finished at v5: its tokens are of v3 to v5, in that order; not knowing the first, of up to v5."""
    response = chat("5", [{}], 12)
    between = {"trajectory_id": "t", "tokens": 12, "version_lo": 3, "version_hi": 5, "monotone": True}
    assert taken(tmp_path / "since", response, since=3) == [between]
    del between["version_lo"]
    assert taken(tmp_path / "unknown", response) == [between]


def test_labels_that_are_no_number_are_unknown_versions(tmp_path: Path) -> None:
    unknown = {"trajectory_id": "t", "tokens": 12, "monotone": True}
    assert taken(tmp_path / "default", chat("default", [{}], 12), exact=True) == [unknown]
    no_label = chat("", [{}], 12)
    del no_label["metadata"]
    assert taken(tmp_path / "vllm", no_label, exact=True) == [unknown]


def test_tokens_of_several_choices_are_told_apart_only_by_their_logprobs(tmp_path: Path) -> None:
    """Usage says 12 for both choices together: each has up to 12, or 7 and 5 where logprobs were asked for."""
    listed = [{"logprobs": {"content": [{}] * count}} for count in (7, 5)]
    both = taken(tmp_path / "logprobs", chat("5", listed, 12), ["a", "b"], exact=True)
    assert [(span["trajectory_id"], span["tokens"]) for span in both] == [("a", 7), ("b", 5)]
    bare = taken(tmp_path / "bare", chat("5", [{}, {}], 12), ["a", "b"], exact=True)
    assert [(span["tokens_lo"], span["tokens_hi"]) for span in bare] == [(0, 12), (0, 12)]


def test_runs_of_versions_are_exact_if_they_cover_the_response(tmp_path: Path) -> None:
    runs = [{"start": 0, "end": 8, "version": "3"}, {"start": 8, "end": 12, "version": "4"}]
    native = {"text": "...", "meta_info": {"completion_tokens": 12, "weight_version": "4", "weight_versions": runs}}
    assert taken(tmp_path / "whole", native) == [
        {"trajectory_id": "t", "tokens": 8, "version": 3},
        {"trajectory_id": "t", "tokens": 4, "version": 4},
    ]
    native["meta_info"]["completion_tokens"] = 13  # type: ignore[index]
    assert taken(tmp_path / "partly", [native]) == [
        {"trajectory_id": "t", "tokens": 13, "version_hi": 4, "monotone": True}
    ]


@pytest.mark.parametrize("response", [None, 7, {}, {"choices": None}, {"choices": []}, [{"meta_info": {}}, {}]])
def test_an_unknown_response_is_recorded_as_unknown(tmp_path: Path, response: Any) -> None:
    """Something was generated; how much, and by which version, stays open."""
    assert taken(tmp_path, response) == [{"trajectory_id": "t", "tokens_lo": 0, "monotone": True}]


@pytest.mark.parametrize("label", ["1_0", 3.7, True, float("inf"), "9" * 5000, [3]])
def test_a_label_is_not_interpreted(tmp_path: Path, label: Any) -> None:
    """Only what is a whole number, or written in digits, is a version."""
    assert taken(tmp_path, chat(label, [{}], 12), exact=True) == [
        {"trajectory_id": "t", "tokens": 12, "monotone": True}
    ]


@pytest.mark.parametrize(
    ("count", "tokens"), [("400", {"tokens": 400}), (-1, {"tokens_lo": 0}), ("40.5", {"tokens_lo": 0})]
)
def test_a_count_of_tokens_is_a_number_or_not_known(tmp_path: Path, count: Any, tokens: dict[str, int]) -> None:
    assert taken(tmp_path, chat("5", [{}], count), 7, since=5) == [{"trajectory_id": "7", **tokens, "version": 5}]


def test_no_mistake_of_the_caller_comes_back_to_it(tmp_path: Path) -> None:
    """A label that the caller's table lacks is an unknown version; a field that is said twice is a gap."""
    response = chat("default", [{}], 12)
    assert taken(tmp_path / "table", response, version_of={"1": 0}.__getitem__) == [
        {"trajectory_id": "t", "tokens": 12, "monotone": True}
    ]
    with Recorder(tmp_path / "twice") as record:
        record_response(record, "t", response, tokens=12)
    assert record.stats.failed == 1


# -- TRL ---------------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """The fields of TRL's ``RolloutSample`` that the trainer reads, and the true versions of its tokens."""

    input_ids: np.ndarray
    completion_mask: np.ndarray
    model_version: int
    group_id: int
    true: list[int]
    enqueued_at: float | None = None


def row(group: int, label: int, true: list[int]) -> Row:
    """A row with 2 prompt tokens; ``true`` are the versions (from v0) of those after it."""
    mask = np.array([0, 0] + [1] * len(true))
    return Row(np.arange(len(mask)), mask, label, group, true)


class Trainer:
    """A stand-in for TRL 1.16's AsyncGRPOTrainer with one process, one micro-batch of 2 rows a step, a sync every step.

    Like it, it takes rows from its queue, drops stale ones, packs the others, and assembles a micro-batch ahead.
    """

    copies = False

    def __init__(self, rows: list[Row], max_staleness: int, steps: int, token_budget: int = 0) -> None:
        self.rollout_queue: Any = queue.Queue()
        for each in rows:
            self.rollout_queue.put(each)
        self.accelerator = types.SimpleNamespace(is_main_process=True)
        self.args = types.SimpleNamespace(max_staleness=max_staleness, token_budget=token_budget)
        self.state = types.SimpleNamespace(global_step=0, is_world_process_zero=True)
        self.model_version, self.steps, self.callbacks = 1, steps, []
        self.losses: list[int] = []

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def get_train_dataloader(self) -> Any:
        rows = self.rollout_queue
        inner = types.SimpleNamespace(collate_fn=lambda examples: examples[0])
        return types.SimpleNamespace(base_dataloader=inner, rows=rows)

    def micro_batches(self) -> Any:
        loader = self.get_train_dataloader()
        batch: list[dict[str, Any]] = []
        while True:
            try:
                sample = loader.rows.get(timeout=0)
            except queue.Empty:
                return
            if self.model_version - sample.model_version > self.args.max_staleness:
                continue
            if 0 < self.args.token_budget < len(sample.input_ids):
                continue
            tokens = sample.input_ids.copy() if self.copies else sample.input_ids
            batch.append({"input_ids": tokens, "true": sample.true})
            if len(batch) == 2:
                yield loader.base_dataloader.collate_fn([[types.SimpleNamespace(samples=batch)]])
                batch = []

    def training_step(self, inputs: Any) -> None:
        (pack,) = inputs
        self.losses += [self.model_version - 1 - version for row in pack.samples for version in row["true"]]

    def call(self, event: str) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self.args, self.state, None)

    def train(self) -> None:
        batches = self.micro_batches()
        ahead = next(batches)
        while self.state.global_step < self.steps:
            current, ahead = ahead, next(batches, None)
            self.call("on_step_begin")
            self.training_step(current)
            self.state.global_step += 1
            self.call("on_step_end")
            self.model_version += 1
        self.call("on_train_end")


ROWS = [
    row(0, 1, [0] * 3),
    row(0, 1, [0] * 4),
    row(1, 1, [0] * 5),
    row(1, 1, [0, 0, 1]),
    row(2, 1, [0, 1, 1]),
    row(2, 1, [0] * 2),
    row(3, 2, [1, 1, 2]),
    row(3, 2, [2] * 6),
]


@pytest.fixture
def _transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """``transformers`` with the one name that the adapter takes from it."""
    module = types.ModuleType("transformers")
    module.TrainerCallback = type("TrainerCallback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", module)


@pytest.mark.usefixtures("_transformers")
def test_trl_rows_are_followed_into_their_steps(tmp_path: Path) -> None:
    """Bound 1; the trainer looks one micro-batch ahead, so what it found fresh is stale by the time it trains.

    Taken at label 1: groups 0 and 1. Step 1 trains group 0 from v0. Group 2 is taken at label 2 (staleness 1, kept) and
    trained by step 3 from v2: 3 + 2 tokens, of which those of v0 are 2 old: one and two. Group 3 is taken at label 3
    and trained by step 4 from v3: two tokens of v1 are 2 old.
    """
    record = Recorder(tmp_path / "run", bound=1, framework="trl", unit="weight syncs")
    trainer = recorded(Trainer, record, spans=lambda row: [{"versions": row.true}])(ROWS, 1, 4)
    trainer.train()
    data = audit(tmp_path / "run").data
    assert data["diagnostics"]["items"] == []
    assert data["verdict"] == "fail"
    assert sorted(trainer.losses).count(2) == 5
    assert data["violations"]["tokens"] == {"lo": 5, "hi": 5}
    assert data["staleness"]["max"] == {"lo": 2, "hi": 2} == {"lo": max(trainer.losses), "hi": max(trainer.losses)}
    assert data["tokens"]["trained"] == {"lo": len(trainer.losses), "hi": len(trainer.losses)}


@pytest.mark.usefixtures("_transformers")
def test_trl_without_token_versions_leaves_open_what_trl_does_not_know(tmp_path: Path) -> None:
    """The same run by the groups' labels: intervals that hold the truth."""
    record = Recorder(tmp_path / "run", bound=1)
    trainer = recorded(Trainer, record)(ROWS, 1, 4)
    trainer.train()
    violations = audit(tmp_path / "run").data["violations"]["tokens"]
    assert violations["lo"] <= 5 <= violations["hi"]
    assert violations["lo"] < violations["hi"]


@pytest.mark.usefixtures("_transformers")
def test_trl_drops_are_recorded(tmp_path: Path) -> None:
    """Bound 0: groups 0 and 1 are taken at label 1; at label 2 group 2 (label 1) is stale, group 3 is not.

    The last row has 2 + 7 tokens, one more than the budget. What workers drop before the queue, nobody sees.
    """
    long = row(4, 3, [2] * 7)
    record = Recorder(tmp_path / "run", bound=0)
    recorded(Trainer, record, spans=lambda row: [{"versions": row.true}])([*ROWS, long], 0, 3, token_budget=8).train()
    data = audit(tmp_path / "run").data
    unknown = {"lo": 0, "hi": None}
    assert data["trajectories"]["dropped"] == {
        "stale": {"lo": 2, "hi": 2},
        "filtered": {"lo": 1, "hi": 1},
        "unknown": unknown,
    }
    assert data["tokens"]["dropped"] == {
        "stale": {"lo": 5, "hi": 5},
        "filtered": {"lo": 7, "hi": 7},
        "unknown": unknown,
    }


@pytest.mark.usefixtures("_transformers")
def test_a_trl_that_works_otherwise_is_not_audited_as_if_it_did_not(tmp_path: Path) -> None:
    """A collator that gets copies: which rows were trained is not known, training goes on, nothing passes."""

    class Copying(Trainer):
        copies = True

    record = Recorder(tmp_path / "run", bound=9)
    trainer = recorded(Copying, record)(ROWS, 9, 2)
    trainer.train()
    assert len(trainer.losses) > 0
    assert record.stats.failed > 0
    assert audit(tmp_path / "run").verdict == "inconclusive"

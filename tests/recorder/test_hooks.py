"""Adapters behind stand-ins of the hooks they are made for: the interface of each, and as much behaviour as it needs.

Each story is small: what was trained is known by hand, and the audit of the log must say it, or leave it open where the
framework does not know.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from staleness_audit import audit
from staleness_audit.recorder import Recorder
from staleness_audit.recorder.adapters import areal, nemo_rl, openrlhf, prime_rl, roll, skyrl, slime, verl
from staleness_audit.recorder.adapters.steps import Batches


def told(folder: Path, bound: int) -> dict[str, Any]:
    return audit(folder, bound).data


def exactly(number: int) -> dict[str, int]:
    return {"lo": number, "hi": number}


# -- verl --------------------------------------------------------------------------------------------------------------


class ReplayBuffer:
    """verl's: ``sample`` returns keys and tags of a batch."""

    def __init__(self, trainer_mode: str, batches: dict[int, dict[str, dict[str, Any]]]) -> None:
        self.stored = batches

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, float]]:
        rows = self.stored[global_steps]
        return SimpleNamespace(partition_id=partition_id, keys=list(rows), tags=list(rows.values())), {}


def test_verl(tmp_path: Path) -> None:
    """Step 5 starts from v4. One row was made by v2 (staleness 2, 10 tokens), the other by v3 and v4 (0 or 1)."""
    tags = {
        "u_x_0_0": {"global_steps": 3, "min_global_steps": 2, "max_global_steps": 2, "response_len": 10},
        "u_x_1_0": {"global_steps": 3, "min_global_steps": 3, "max_global_steps": 4, "response_len": 7},
        "pad": {"is_padding": True},
    }
    with Recorder(tmp_path / "run", framework="verl", bound=1) as record:
        buffer = verl.recorded(ReplayBuffer, record, single_turn=True)("separate_async", {5: tags, 6: {}})
        buffer.sample(5, "val", 2)
        assert buffer.sample(5, "train", 2)[0].keys == list(tags)
        buffer.sample(6, "train", 2)
    data = told(tmp_path / "run", 1)
    assert data["verdict"] == "fail"
    assert data["violations"]["tokens"] == exactly(10)
    assert data["tokens"]["trained"] == exactly(17)
    assert data["trajectories"]["dropped"] == {"unknown": {"lo": 0, "hi": None}}  # the buffer drops by itself


# -- slime -------------------------------------------------------------------------------------------------------------


def sample(index: int, labels: list[str], length: int = 10, **more: Any) -> SimpleNamespace:
    """A slime ``Sample``."""
    fields = {"index": index, "group_index": index // 2, "weight_versions": labels, "response_length": length}
    return SimpleNamespace(**fields, **{"loss_mask": None, "remove_sample": False, **more})


def test_slime(tmp_path: Path) -> None:
    """Labels count from 1. Batch 3 trains sample 6 of label "1" (v0, staleness 3) and 7 of labels "3" and "4"."""
    batches = {
        3: [[sample(6, ["1"]), sample(7, ["3", "4"])]],
        4: [[sample(8, ["5"], loss_mask=[1] * 4 + [0] * 6)]],
        5: [],
        6: [],
    }

    def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
        return SimpleNamespace(samples=batches[rollout_id], metrics=None)

    def rejects(args: Any, samples: Any, **options: Any) -> Any:
        return SimpleNamespace(keep=samples[0].index != 4, reason="zero_std_1.0")

    args = SimpleNamespace(start_rollout_id=0, update_weights_interval=1)
    with Recorder(tmp_path / "run", framework="slime", unit="trained rollouts", bound=2) as record:
        recorded, keep = slime.recorded_rollout(generate, record), slime.recorded_filter(rejects, record)
        assert keep(args, [sample(6, ["1"]), sample(7, ["3"])]).keep
        assert not keep(args, [sample(4, ["2"]), sample(5, ["2"])]).keep
        for rollout, groups in batches.items():
            assert recorded(args, rollout, None).samples == groups
        recorded(args, 3, None, evaluation=True)
    data = told(tmp_path / "run", 2)
    assert data["verdict"] == "fail"
    assert data["violations"]["tokens"] == exactly(10)
    assert data["tokens"]["trained"] == exactly(24)
    assert data["trajectories"]["dropped"]["zero_advantage"]["lo"] == 2
    steps = {row["step"]: row["max"] for row in data["per_step"]}
    assert steps[4] == exactly(0)  # v4 is label "5"


def test_slime_does_not_trust_labels_of_engines_that_go_on_over_an_update(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", framework="slime", bound=2) as record:
        recorded = slime.recorded_rollout(lambda *_, **__: [[sample(0, ["4"])]], record, in_place=True)
        recorded(SimpleNamespace(), 3, None)
        recorded.batches.over()  # type: ignore[attr-defined]
    data = told(tmp_path / "run", 2)
    assert (data["verdict"], data["staleness"]["max"]) == ("inconclusive", {"lo": 0, "hi": 3})


@pytest.mark.parametrize(
    ("label", "flush", "largest"), [("default", 1, exactly(3)), ("2", 1, exactly(1)), ("2", 4, {"lo": 1, "hi": 3})]
)
def test_slime_labels_as_its_settings_make_them(tmp_path: Path, label: str, flush: int, largest: Any) -> None:
    """Batch 3 trains from v3. As deltas, "default" is v0 and "2" is v2: exact only where each sync aborts requests."""
    args = SimpleNamespace(start_rollout_id=0, update_weight_mode="delta", flush_cache_interval=flush)
    with Recorder(tmp_path / "run", framework="slime", bound=3) as record:
        recorded = slime.recorded_rollout(lambda *_, **__: [[sample(0, [label])]], record)
        recorded(args, 3, None)
        recorded.batches.over()  # type: ignore[attr-defined]
    assert told(tmp_path / "run", 3)["staleness"]["max"] == largest


# -- prime-rl ----------------------------------------------------------------------------------------------------------


def test_prime_rl(tmp_path: Path) -> None:
    """Batch 4 trains from v3: episode ``a`` was made by v1 to v1 (staleness 2, 3 tokens), ``b`` by v2 to v3."""

    def shipped(name: str, start: int, end: int) -> dict[str, Any]:
        nodes = [{"mask": [False, False]}, {"mask": [False, True, True, True]}]
        work = {"type": "train", "step": start + 1, "policy": {"start": start, "end": end}}
        return {"group": {"id": "g"}, "run": {"work": work}, "traces": [{"id": name, "nodes": nodes}]}

    with Recorder(tmp_path / "run", framework="prime-rl", bound=1) as record:
        monitor = prime_rl.RecordingMonitor(record)
        monitor.log({"loss": 1.0}, step=4)
        monitor.log_eval_samples([shipped("eval", 0, 0)], "env", 4)
        monitor.log_samples([shipped("a", 1, 1), shipped("b", 2, 3)], 4)
        monitor.save_final_summary()
    data = told(tmp_path / "run", 1)
    assert (data["verdict"], data["violations"]["tokens"]) == ("fail", exactly(3))
    assert data["trajectories"]["trained"] == exactly(2)
    assert [row["trajectory_id"] for row in data["violations"]["worst"]] == ["a"]


# -- AReaL -------------------------------------------------------------------------------------------------------------


class Workflow:
    """Returns two trajectories, padded to one length, or nothing."""

    def __init__(self, results: list[Any]) -> None:
        self.results = results

    async def arun_episode(self, engine: Any, data: Any) -> Any:
        return self.results.pop(0)


def test_areal(tmp_path: Path) -> None:
    """Of two rows, made by v1 (3 tokens, and 2 of v2) and by v2 (4 tokens), step 3 trains both: staleness 2 and 1."""
    result = {
        "versions": np.array([[-1, 1, 1, 1, 2, 2], [-1, 2, 2, 2, 2, 0]], np.int32),
        "loss_mask": np.array([[0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0]], np.int32),
        "attention_mask": np.array([[1] * 6, [1] * 5 + [0]], bool),
    }
    other = {name: column[1:].copy() for name, column in result.items()}
    with Recorder(tmp_path / "run", framework="areal", bound=1) as record:
        workflow = areal.recorded(Workflow, record)([result, None, other])
        accept = areal.recorded_accept(lambda trajectory: trajectory is not other, record)
        batch = asyncio.run(workflow.arun_episode(None, {}))
        assert asyncio.run(workflow.arun_episode(None, {})) is None
        assert accept(batch)
        assert not accept(asyncio.run(workflow.arun_episode(None, {})))
        batches = Batches(record)
        areal.took(batches, [batch], 3)
        batches.over()
    data = told(tmp_path / "run", 1)
    assert (data["verdict"], data["violations"]["tokens"]) == ("fail", exactly(3))
    assert data["tokens"]["trained"] == exactly(9)
    assert data["trajectories"]["dropped"]["filtered"]["lo"] == 2
    assert data["coverage"]["tokens_exact"] == 1


# -- SkyRL -------------------------------------------------------------------------------------------------------------


class Batch(dict[str, Any]):
    """A ``TrainingInputBatch``."""

    def __init__(self, masks: list[list[int]]) -> None:
        super().__init__(loss_mask=np.array(masks))
        self.metadata = {"pad_size": 0}


class SkyDispatch:
    """Takes the weights over into the engines."""

    async def save_weights_for_sampler(self) -> str:
        await asyncio.sleep(0)
        return "synced"


class SkyTrainer:
    """What matters of ``FullyAsyncRayPPOTrainer``: its step, its dispatch, its conversion of rows of 4 tokens."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self.global_step = 0
        self.dispatch = SkyDispatch()
        self.init_weight_sync_state()

    def init_weight_sync_state(self) -> None:
        """The engines meet the trainer."""

    def convert_generation_group_mini_batch_to_training_input(self, groups: list[Any], dropped: Any = None) -> Batch:
        # A group of which every row has the same reward is masked.
        return Batch([[int(not group.uid.startswith("flat"))] * 4 for group in groups])


class OldSkyTrainer(SkyTrainer):
    """That of ``skyrl_train``, which takes the weights over by a method of its own."""

    async def async_sync_policy_weights_to_inference_engines(self) -> str:
        await asyncio.sleep(0)
        return "synced"


class SkyGenerator:
    """Generates one response of four tokens; waits for a sync in the midst if told to."""

    async def generate(self, wait: Any) -> dict[str, Any]:
        if wait is not None:
            await wait()
        return {"response_ids": [[1, 2, 3, 4]], "loss_masks": [[1, 1, 1, 1]]}


def sky_group(uid: str, output: Any, scheduled: int) -> Any:
    return SimpleNamespace(uid=uid, generator_output=output, global_step_when_scheduled=scheduled)


def test_skyrl_does_not_trust_a_version_while_weights_are_taken_over(tmp_path: Path) -> None:
    """A group is done in the midst of the sync to v1, by which weights is not known; step 3 trains it, from v2."""

    async def run(record: Recorder) -> None:
        generator = skyrl.RecordedGenerator(SkyGenerator())
        trainer = skyrl.recorded(SkyTrainer, record)(generator)
        await trainer.dispatch.save_weights_for_sampler()
        trainer.global_step = 1
        sync = asyncio.ensure_future(trainer.dispatch.save_weights_for_sampler())
        await asyncio.sleep(0)
        output = await generator.generate(None)
        await sync
        trainer.global_step = 3
        trainer.convert_generation_group_mini_batch_to_training_input([sky_group("a", output, 1)])
        trainer.batches.over()

    with Recorder(tmp_path / "run", framework="skyrl", bound=1) as record:
        asyncio.run(run(record))
    data = told(tmp_path / "run", 1)
    assert (data["verdict"], data["staleness"]["max"]) == ("inconclusive", {"lo": 1, "hi": 2})


@pytest.mark.parametrize("trainer_class", [SkyTrainer, OldSkyTrainer])
def test_skyrl(tmp_path: Path, trainer_class: type) -> None:
    """Group ``a`` is made by v0 and trained by step 3, from v2; group ``b`` goes on over the sync from v1 to v2.

    As old as ``a`` are ``flat``, which is in the batch but masked from the loss, and ``none``, which is dropped.
    """

    async def run(record: Recorder) -> None:
        generator = skyrl.RecordedGenerator(SkyGenerator())
        trainer = skyrl.recorded(trainer_class, record)(generator)

        async def sync() -> None:
            old = trainer_class is OldSkyTrainer
            hook = trainer.async_sync_policy_weights_to_inference_engines if old else None
            assert await (hook or trainer.dispatch.save_weights_for_sampler)() == "synced"
            trainer.global_step += 1

        await sync()  # the initial weights: v0; step 1 begins
        a, flat, none = [sky_group(uid, await generator.generate(None), 1) for uid in ("a", "flat", "none")]
        await sync()
        b = sky_group("b", await generator.generate(sync), 2)
        batch = trainer.convert_generation_group_mini_batch_to_training_input([a, flat, b], [none])
        assert batch["loss_mask"].sum() == 8
        trainer.batches.over()

    with Recorder(tmp_path / "run", framework="skyrl", bound=1) as record:
        asyncio.run(run(record))
    data = told(tmp_path / "run", 1)
    assert (data["verdict"], data["violations"]["tokens"]) == ("fail", exactly(4))
    staleness = {row["trajectory_id"]: row["staleness"] for row in data["violations"]["worst"]}
    assert staleness == {"a@1/0": exactly(2)}
    assert data["staleness"]["token_mean"] == {"lo": 1.0, "hi": 1.5}  # b: 0 to 1
    assert data["trajectories"]["dropped"]["zero_advantage"]["lo"] == 1


# -- ROLL --------------------------------------------------------------------------------------------------------------


class RolloutLoop:
    """ROLL's: one response of five tokens for each prompt, or None if it is filtered."""

    async def process_new_prompt(self, context: Any) -> Any:
        if context.filtered:
            return None
        return [SimpleNamespace(batch={"response_mask": np.array([[0, 1, 1, 1, 1, 1]])}, non_tensor_batch={})]


def test_roll(tmp_path: Path) -> None:
    """A prompt that began at step 2 is trained by step 3: its tokens are at most 1 old, and may be of v3."""
    with Recorder(tmp_path / "run", framework="roll", unit="global steps", bound=1) as record:
        loop = roll.recorded(RolloutLoop, record)()
        contexts = [
            SimpleNamespace(sampling_start_step=2, filtered=filtered, is_val=validation)
            for filtered, validation in ((False, False), (True, False), (False, True))
        ]
        (response,), nothing, _ = [asyncio.run(loop.process_new_prompt(context)) for context in contexts]
        assert nothing is None
        batches = Batches(record)
        roll.took(batches, response, 3)
        batches.over()
    data = told(tmp_path / "run", 1)
    assert (data["verdict"], data["staleness"]["max"]) == ("pass", {"lo": 0, "hi": 1})
    assert data["tokens"]["trained"] == exactly(5)
    assert data["trajectories"]["dropped"] == {"unknown": {"lo": 0, "hi": None}}


# -- NeMo-RL -----------------------------------------------------------------------------------------------------------


class Buffer:
    """The surface of ``TQReplayBuffer`` that samplers read."""

    def __init__(self) -> None:
        self.meta_list: list[Any] = []
        self.start_weight_list: list[int] = []
        self.end_weight_list: list[int] = []
        self.ready_list: list[bool] = []

    def add(self, group: str, start: int, end: int, ready: bool = True) -> None:
        self.meta_list.append(SimpleNamespace(sample_ids=[f"{group}_g0", f"{group}_g1"]) if ready else None)
        self.start_weight_list.append(start)
        self.end_weight_list.append(end)
        self.ready_list.append(ready)

    def remove(self, index: int) -> None:
        for column in (self.meta_list, self.start_weight_list, self.end_weight_list, self.ready_list):
            column.pop(index)  # type: ignore[attr-defined]


class OldestFirst:
    """A sampler that takes the oldest group, and drops what is older than v1."""

    supports_buffer_checkpoint = True

    def __init__(self, buffer: Buffer, *, keep_from: int) -> None:
        self._buffer = buffer
        self.keep_from = keep_from

    async def select(self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int) -> Any:
        if not self._buffer.meta_list or not self._buffer.ready_list[0]:
            return None, 0
        meta = self._buffer.meta_list[0]
        self._buffer.remove(0)
        return meta, 1

    async def evict(self, *, current_train_weight: int) -> int:
        before = len(self._buffer.meta_list)
        for index in reversed(range(before)):
            if self._buffer.ready_list[index] and self._buffer.start_weight_list[index] < self.keep_from:
                self._buffer.remove(index)
        return before - len(self._buffer.meta_list)


def test_nemo_rl(tmp_path: Path) -> None:
    """At trainer version 4, group ``a`` (v1 to v1, or v2 if a sync was under way) is taken: staleness 2 or 3.

    Group ``z`` (v0) was evicted.
    """

    async def run(record: Recorder) -> None:
        buffer = Buffer()
        sampler = nemo_rl.recorded(OldestFirst, record)(buffer, keep_from=1)
        assert vars(type(sampler))["supports_buffer_checkpoint"]  # NeMo-RL does not take it from a class above
        buffer.add("z", 0, 0)
        buffer.add("a", 1, 1)
        buffer.add("b", 2, 0, ready=False)
        assert await sampler.evict(current_train_weight=4) == 1
        bounds = {"min_prompt_groups": 1, "max_prompt_groups": 1}
        assert (await sampler.select(current_train_weight=4, **bounds))[1] == 1
        assert (await sampler.select(current_train_weight=5, **bounds))[1] == 0
        sampler.batches.over()

    with Recorder(tmp_path / "run", framework="nemo-rl", bound=1) as record:
        asyncio.run(run(record))
    data = told(tmp_path / "run", 1)
    assert data["verdict"] == "fail"
    assert data["violations"]["trajectories"] == exactly(2)
    assert data["violations"]["tokens"] == {"lo": 2, "hi": None}  # how many there are, the sampler does not see
    assert data["trajectories"]["dropped"] == {"stale": exactly(2)}


def test_nemo_rl_of_another_make_trains_all_the_same(tmp_path: Path) -> None:
    """The buffer keeps no list of who is ready: each look at it is a gap, and none of the sampler's business."""

    async def run(record: Recorder) -> Any:
        buffer = Buffer()
        buffer.add("a", 1, 1)
        sampler = nemo_rl.recorded(OldestFirst, record)(buffer, keep_from=0)
        buffer.start_weight_list = None  # type: ignore[assignment]
        buffer.remove = lambda index: None  # type: ignore[method-assign]
        return await sampler.select(current_train_weight=4, min_prompt_groups=1, max_prompt_groups=1)

    with Recorder(tmp_path / "run", framework="nemo-rl", bound=1) as record:
        assert asyncio.run(run(record))[1] == 1
    assert record.stats.failed == 1


# -- OpenRLHF ----------------------------------------------------------------------------------------------------------


class Engine:
    """Answers three tokens; the second answer sees an update."""

    def __init__(self) -> None:
        self.version = 0
        self.answers = 0

    def get_weight_version(self) -> int:
        return self.version

    async def generate(self, prompt: Any, params: Any) -> Any:
        self.answers += 1
        if self.answers == 2:
            self.version += 1
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=[7, 8, 9])])


class Executor:
    """Two turns, as ``MultiTurnAgentExecutor`` takes them."""

    async def execute(
        self, prompt: Any, label: Any, params: Any, max_length: int, tokenizer: Any, llm_engine: Any
    ) -> Any:
        assert llm_engine.answers == 0  # everything else of the engine is there
        for _ in range(2):
            await llm_engine.generate(prompt, params)
        return {"extra_logs": {"turns": 2}}


def test_openrlhf(tmp_path: Path) -> None:
    """Three tokens of v0, three of v0 or v1; step 3 trains them from v2: staleness 2, and between 1 and 2."""
    with Recorder(tmp_path / "run", framework="openrlhf", bound=1) as record:
        executor = openrlhf.recorded(Executor, record)()
        result = asyncio.run(executor.execute("p", "l", None, 64, None, Engine()))
        assert result["extra_logs"].pop("turns") == 2
        # As the framework carries them, 32-bit floats; in batches put together anew, a list of them.
        info = {name: [np.float32(value)] for name, value in result["extra_logs"].items()}
        batches = Batches(record)
        openrlhf.took(batches, [SimpleNamespace(info=info, action_mask=np.ones((1, 6), int))], 3, version=2)
        batches.over()
    data = told(tmp_path / "run", 1)
    assert (data["verdict"], data["violations"]["tokens"]) == ("fail", {"lo": 3, "hi": 6})
    assert data["trajectories"]["trained"] == exactly(1)


def test_a_hook_that_meets_what_it_does_not_know_leaves_a_gap(tmp_path: Path) -> None:
    """The batch has no tags: the training gets it all the same, and the audit is told that something is missing."""
    with Recorder(tmp_path / "run", framework="verl", bound=1) as record:
        record.span("a", tokens=1, version=0)
        record.trained("a", step=1)
        record.step(1, version=0)
        buffer = verl.recorded(ReplayBuffer, record)("sync", {1: {"k": None}})  # type: ignore[dict-item]
        assert buffer.sample(1, "train", 1)[0].keys == ["k"]
    assert record.stats.failed == 1
    data = told(tmp_path / "run", 1)
    assert (data["verdict"], data["violations"]["tokens"]) == ("inconclusive", {"lo": 0, "hi": None})

"""Adapters inside the frameworks' own packages, as far as those run without a GPU and without their inference engines.

Each test needs its framework (``make test-adapters`` installs them) and is skipped without it. What the framework would
ask of engines, of a data plane or of a GPU is stood in for; the hook, and the code that calls it, are the framework's.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from staleness_audit import audit
from staleness_audit.recorder import Recorder
from staleness_audit.recorder.adapters import areal, openrlhf, skyrl
from staleness_audit.recorder.adapters.steps import Batches

pytestmark = pytest.mark.slow  # importing any of them takes more than ten seconds


def exactly(number: int) -> dict[str, int]:
    return {"lo": number, "hi": number}


class Words:
    """A tokenizer: every character of a text is a token."""

    pad_token_id = 0
    eos_token_id = 1

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        torch = pytest.importorskip("torch")
        return {"input_ids": torch.tensor([[ord(letter) for letter in text]])}

    def decode(self, tokens: Any, **_: Any) -> str:
        return "".join(chr(int(token)) for token in tokens)


# -- verl --------------------------------------------------------------------------------------------------------------

SAMPLER = """
from pathlib import Path

from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from staleness_audit.recorder import Recorder
from staleness_audit.recorder.adapters import verl

record = Recorder(Path(__file__).parent / "run", "trainer", framework="verl", bound=1)
Recorded = verl.recorded(ReplayBufferAsync, record, single_turn=True)
"""


def test_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's trainer loads the sampler that its configuration names; the sampler evicts and selects as ever.

    Prompt ``old`` was admitted at step 1 and is evicted at step 5. Of ``new`` (step 4), one row is of v2 (10 tokens,
    staleness 4 - 2), the other of v3 and v4 (7 tokens). Step 6 trains ``next``, of v5.
    """
    pytest.importorskip("verl")
    hydra = pytest.importorskip("hydra")
    from verl.trainer.ppo.v1 import PPOTrainerSeparateAsync, replay_buffer

    def prompt(step: int) -> dict[str, Any]:
        return {"is_prompt": True, "global_steps": step, "status": "finished"}

    def row(step: int, oldest: int, newest: int, tokens: int) -> dict[str, Any]:
        versions = {"min_global_steps": oldest, "max_global_steps": newest}
        return {"status": "success", "global_steps": step, "response_len": tokens, "seq_len": tokens + 3, **versions}

    stored: dict[str, dict[str, Any]] = {
        "old": prompt(1),
        "old_0_0": row(1, 0, 0, 5),
        "new": prompt(4),
        "new_0_0": row(4, 2, 2, 10),
        "new_1_0": row(4, 3, 4, 7),
    }

    def clear(partition_id: str, keys: list[str]) -> None:
        assert partition_id == "train"
        for key in keys:
            del stored[key]

    monkeypatch.setattr(replay_buffer.tq, "kv_list", lambda: {"train": dict(stored)})
    monkeypatch.setattr(replay_buffer.tq, "kv_clear", clear)
    (tmp_path / "my_sampler.py").write_text(SAMPLER)
    named = f"trainer.v1.sampler.custom_sampler.path={tmp_path / 'my_sampler.py'}"
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose(
            "ppo_trainer",
            [named, "trainer.v1.sampler.custom_sampler.name=Recorded", "trainer.v1.sampler.max_off_policy_threshold=2"],
        )
    refilled: list[int] = []
    trainer = SimpleNamespace(config=config, trainer_mode="separate_async", _add_prompts_to_generate=refilled.append)
    buffer = PPOTrainerSeparateAsync._build_replay_buffer(trainer)

    batch, metrics = buffer.sample(global_steps=5, partition_id="train", batch_size=1)
    assert sorted(batch.keys) == ["new_0_0", "new_1_0"]
    assert (refilled, metrics["training/off_policy/evicted_samples"]) == ([1], 1)
    for key in batch.keys:
        del stored[key]
    stored.update({"next": prompt(6), "next_0_0": row(6, 5, 5, 4)})
    buffer.sample(global_steps=6, partition_id="train", batch_size=1)
    buffer.batches.over()
    buffer.batches.record.close()
    assert buffer.batches.record.stats.failed == 0

    data = audit(tmp_path / "run").data
    assert data["verdict"] == "fail"
    assert data["violations"]["tokens"] == exactly(10)
    assert data["tokens"]["trained"] == exactly(21)
    assert data["trajectories"]["dropped"] == {"unknown": {"lo": 0, "hi": None}}


# -- AReaL -------------------------------------------------------------------------------------------------------------


def test_areal(tmp_path: Path) -> None:
    """AReaL's executor runs its RLVR workflow in groups of two, against an engine whose version goes up by hand.

    Prompt ``a`` and ``b`` are answered by v0 with four tokens, ``c`` by v0 and v1 (the engine takes new weights in the
    midst). The filter rejects ``b``. Step 2, from v2, trains ``a`` (8 tokens, 2 old) and ``c`` (4 tokens each).
    """
    pytest.importorskip("areal")
    from areal.api import ModelResponse
    from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig
    from areal.infra.remote_inf_engine import RemoteInfEngine
    from areal.workflow.rlvr import RLVRWorkflow

    class Backend:
        """No server is asked."""

    class Engine(RemoteInfEngine):  # type: ignore[misc]
        def _wait_for_server(self, *_: Any, **__: Any) -> None:
            """It is there."""

        async def agenerate(self, req: Any) -> Any:
            versions = [0, 0, 0, 1] if req.input_ids == [ord("c")] else [0] * 4
            return ModelResponse(
                input_tokens=req.input_ids, output_tokens=[7] * 4, output_logprobs=[0.0] * 4, output_versions=versions
            )

    config = InferenceEngineConfig(
        backend="sglang:d1", max_concurrent_rollouts=4, consumer_batch_size=4, max_head_offpolicyness=4
    )
    engine = Engine(config, Backend())
    engine.initialize(addr="127.0.0.1:1")
    try:
        with Recorder(tmp_path / "run", framework="areal", bound=1) as record:
            workflow = areal.recorded(RLVRWorkflow, record)(
                reward_fn=reward,
                gconfig=GenerationHyperparameters(max_new_tokens=4),
                tokenizer=Words(),
                get_input_ids_fn=lambda prompt, *_: [ord(prompt)],
                data_extract_prompt_fn=lambda data: data["prompt"],
            )
            rejects = areal.recorded_accept(lambda trajectory: int(trajectory["input_ids"][0, 0]) != ord("b"), record)
            for prompt in "abc":
                engine.submit({"prompt": prompt}, workflow, should_accept_fn=rejects, group_size=2)
            done = [each for each in engine.wait(3, timeout=120) if each is not None]
            assert [each["input_ids"].shape for each in done] == [(2, 5)] * 2
            batches = Batches(record)
            areal.took(batches, done, 2)
            batches.over()
    finally:
        engine.destroy()
    assert record.stats.failed == 0

    data = audit(tmp_path / "run").data
    assert data["verdict"] == "fail"
    assert data["violations"]["tokens"] == exactly(8 + 2 * 3)
    assert data["tokens"]["trained"] == exactly(16)
    assert data["coverage"]["tokens_exact"] == 1
    assert data["trajectories"]["dropped"] == {"filtered": exactly(2)}


def reward(*_: Any, **__: Any) -> float:
    """In a process of its own, so it must be importable."""
    return 1.0


# -- SkyRL -------------------------------------------------------------------------------------------------------------


def test_skyrl(tmp_path: Path) -> None:
    """SkyRL's trainer of simulated training (its own, which only has no models) and a generator of ours.

    Every group notes the versions that the engines had when it began and when it was done; they are the truth.
    """
    if sys.version_info < (3, 12):
        pytest.skip("SkyRL needs Python 3.12")
    pytest.importorskip("skyrl")
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.fully_async_trainer_sim import FullyAsyncTrainerSim

    class Client:
        """What the trainer pauses, and whose version counts the syncs: 1 for the initial weights."""

        weight_version = 0

        async def pause_generation(self) -> None: ...

        async def resume_generation(self) -> None: ...

        def increment_weight_version(self) -> None:
            self.weight_version += 1

    client = Client()
    truth: list[tuple[str, int, int]] = []

    class Generator:
        """Two rows of four tokens; every third group is slow, and every fourth has nothing to learn from."""

        async def generate(self, input_batch: Any, disable_tqdm: bool = False) -> dict[str, Any]:
            assert disable_tqdm
            uid = int(input_batch["trajectory_ids"][0].instance_id)
            began = client.weight_version - 1
            await asyncio.sleep(0.5 if uid % 3 == 0 else 0.02)
            truth.append((str(uid), began, client.weight_version - 1))
            return {
                "prompt_token_ids": [[65]] * 2,
                "response_ids": [[66] * 4] * 2,
                "rewards": [1.0, 1.0 if uid % 4 == 0 else 0.0],
                "loss_masks": [[1] * 4] * 2,
                "stop_reasons": ["stop"] * 2,
                "rollout_metrics": {},
                "rollout_logprobs": None,
            }

    class Prompts(list[Any]):
        def collate_fn(self, items: list[Any]) -> list[Any]:
            return items

    config = SkyRLTrainConfig.from_cli_overrides(
        {
            "trainer.policy_mini_batch_size": 2,
            "trainer.train_batch_size": 2,
            "trainer.epochs": 1,
            "trainer.eval_interval": -1,
            "trainer.ckpt_interval": -1,
            "trainer.hf_save_interval": -1,
            "trainer.resume_mode": "none",
            "trainer.enable_ray_gpu_monitor": False,
            "generator.inference_engine.enable_ray_prometheus_stats": False,
            "trainer.placement.colocate_all": False,
            "trainer.algorithm.policy_loss_type": "rollout_is",
            "trainer.algorithm.zero_variance_filter": True,
            "trainer.fully_async.enabled": True,
            "trainer.fully_async.sample_full_batch": True,
            "trainer.fully_async.simulate_training": True,
            "trainer.fully_async.simulate_training_step_seconds": 0.1,
            "trainer.fully_async.max_staleness_steps": 3,
            "trainer.fully_async.num_parallel_generation_workers": 6,
            "generator.n_samples_per_prompt": 2,
            "generator.batched": False,
            "data.dataloader.num_workers": 0,
        }
    )
    prompts = Prompts({"prompt": "A", "env_class": "x", "env_extras": {}, "uid": str(uid)} for uid in range(24))
    logged: list[dict[str, Any]] = []
    tracker = SimpleNamespace(log=lambda metrics, **_: logged.append(metrics), finish=lambda: None)
    trained: list[tuple[str, int]] = []

    class Observed(FullyAsyncTrainerSim):  # type: ignore[misc]
        """Notes by itself which groups reach the training, and from which version."""

        def init_weight_sync_state(self) -> None:
            super().init_weight_sync_state()
            # The trainer of 0.4.0 asks its dispatch for both, and the simulated dispatch of 0.4.0 lacks them.
            self.dispatch.get_timing_metrics = dict
            self.dispatch.finalize_pending_saves = lambda _: None

        async def _run_training(self, training_input: Any) -> Any:
            trained.extend((uid, self.global_step - 1) for uid in training_input.metadata["uids"])
            return await super()._run_training(training_input)

    with Recorder(tmp_path / "run", framework="skyrl", bound=1) as record:
        generator = skyrl.RecordedGenerator(Generator())
        trainer = skyrl.recorded(Observed, record)(
            cfg=config,
            tracker=tracker,
            tokenizer=Words(),
            train_dataset=prompts,
            inference_engine_client=client,
            generator=generator,
        )
        asyncio.run(trainer.train())
        trainer.batches.over()
    assert record.stats.failed == 0

    made = {uid: (began, done) for uid, began, done in truth}
    ages = [(v_train - made[uid][1], v_train - made[uid][0]) for uid, v_train in trained]
    data = audit(tmp_path / "run").data
    assert len(trained) >= 16
    assert data["tokens"]["trained"] == exactly(4 * len(trained))
    # A group that went on over a sync is of both versions: the interval is that of its two ends.
    proven, possible = sum(least > 1 for least, _ in ages), sum(most > 1 for _, most in ages)
    assert data["violations"]["tokens"] == {"lo": 4 * proven, "hi": 4 * possible}
    assert data["staleness"]["max"] == {"lo": max(a for a, _ in ages), "hi": max(b for _, b in ages)}
    assert any(least == most for least, most in ages)
    assert possible > 0
    # SkyRL's own figure. It counts, as the hook does, what was dropped on the way to a batch, not at an epoch's end.
    dropped = 2 * sum(metrics.get("async/num_groups_dropped", 0) for metrics in logged)
    assert data["trajectories"]["dropped"]["zero_advantage"] == exactly(dropped)


# -- OpenRLHF ----------------------------------------------------------------------------------------------------------

AGENT = """
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

from staleness_audit.recorder import Recorder
from staleness_audit.recorder.adapters import openrlhf

record = Recorder({folder!r}, "rollout", framework="openrlhf", bound=1)


class Twice(AgentInstanceBase):
    def __init__(self):
        self.turns = 0

    async def step(self, states, **options):
        self.turns += 1
        return {{
            "rewards": torch.tensor(1.0),
            "environment_feedback": "!",
            "done": self.turns == 2,
            "extra_logs": {{"turns": self.turns}},
        }}


class Agent(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(Twice)


AgentExecutor = openrlhf.recorded(Agent, record, version=lambda engine: engine.llm.version)
"""


@pytest.fixture
def _vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The names that OpenRLHF takes from vLLM, which needs a GPU's libraries."""
    for name in ("vllm", "vllm.inputs", "vllm.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["vllm"].SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    sys.modules["vllm.inputs"].TokensPrompt = dict  # type: ignore[attr-defined]
    sys.modules["vllm.utils"].random_uuid = lambda: "x"  # type: ignore[attr-defined]
    yield
    for name in [name for name in sys.modules if name.startswith("openrlhf.trainer")]:
        del sys.modules[name]


class Llm:
    """vLLM's engine: three tokens for every request, and new weights in the midst of the second one."""

    def __init__(self) -> None:
        self.version = 0
        self.requests = 0

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str) -> Any:
        self.requests += 1
        self.version += self.requests == 2
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[97, 98, 99], text="abc", finish_reason="stop")])


@pytest.mark.usefixtures("_vllm")
def test_openrlhf(tmp_path: Path) -> None:
    """OpenRLHF's rollout actor loads the agent and runs it; its generator makes experiences, its balancer mixes them.

    Two turns, three tokens of v0, and three of v0 or v1. Step 3 trains them from v2: staleness 2, and between 1 and 2.
    """
    pytest.importorskip("openrlhf")
    from openrlhf.trainer.ppo_utils.experience import balance_experiences
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
    from openrlhf.trainer.ray import vllm_engine

    agent = tmp_path / "my_agent.py"
    agent.write_text(AGENT.format(folder=str(tmp_path / "run")))
    actor_class = vllm_engine.RolloutRayActor.__ray_metadata__.modified_class
    actor = actor_class.__new__(actor_class)
    actor.executor = vllm_engine._load_agent_executor(str(agent))
    actor.llm, actor._mm_pad_token_ids = Llm(), None
    params = SimpleNamespace(logprobs=None, max_tokens=16)
    responses = asyncio.run(actor.generate_responses("p", "l", params, 64, Words(), num_samples=1))

    generator = SamplesGenerator(SimpleNamespace(args=None), None, None, None, [])
    made = [generator._process_response_into_experience(response, max_len=64) for response in responses]
    sizes = {"actor": SimpleNamespace(num_nodes=1, num_gpus_per_node=1)}
    parallel = {"ds": SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1)}
    mixed = balance_experiences(made, SimpleNamespace(**sizes, **parallel))
    assert [int(value) for value in mixed[0].info["turns"]] == [2]
    with Recorder(tmp_path / "run", "trainer", framework="openrlhf", bound=1) as record:
        batches = Batches(record)
        openrlhf.took(batches, mixed, 3, version=2)
        batches.over()
    (agent_class,) = [each for each in type(actor.executor).__mro__ if each.__name__ == "Agent"]
    rollout = agent_class.__init__.__globals__["record"]
    rollout.close()
    assert (record.stats.failed, rollout.stats.failed) == (0, 0)

    data = audit(tmp_path / "run").data
    assert (data["verdict"], data["violations"]["tokens"]) == ("fail", {"lo": 3, "hi": 6})
    assert data["tokens"]["trained"] == exactly(6)

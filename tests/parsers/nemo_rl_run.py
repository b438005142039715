"""Writes small NeMo-RL logs by hand: N = 2 groups a step, G = 2 trajectories a group, and audits them."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from helpers.event_file import records

from staleness_audit.api import audit

DRIVER = "Final config:\n"


def sampler(name: str, *, stale: int | None = None, ahead: int | None = None) -> str:
    """The driver's long line; keys of another sampler may stand there too."""
    numbers = "".join(
        f", {key}={value}"
        for key, value in (("max_staleness_versions", stale), ("max_lookahead_versions", ahead))
        if value is not None
    )
    return (
        "MasterConfig(policy={'train_global_batch_size': 4}, grpo=GRPOConfig(num_prompts_per_step=2, "
        "num_generations_per_prompt=2, max_num_steps=9, async_grpo=None), data={'shuffle': False}, "
        f"async_rl=AsyncRLConfig(sampler=SamplerConfig(name='{name}'{numbers}), min_groups_for_streaming_train=2, "
        "recompute_kv_cache_after_weight_updates=False))\n"
    )


def sc_actor(lines: Iterable[str], pid: int = 7) -> str:
    """Lines of the controller as Ray prints them."""
    return "".join(f"\x1b[36m(SingleControllerActor pid={pid})\x1b[0m {line}\n" for line in lines)


def sc_start(name: str, sync: float = 0.5) -> list[str]:
    return [
        f"SingleControllerActor: sampler={name} buffer=8 inflight=4 weight_sync=Collective",
        f"  _sync_weights: sync done in {sync}s",
        "rollout_pump: starting",
    ]


def sc_chunks(step: int, chunks: Sequence[int] = (2,), close: bool = True) -> list[str]:
    """What standard error says of the step that makes version ``step``."""
    head = "INFO:nemo_rl.algorithms.single_controller:single_controller.py:1047: train_pump: step"
    done = [sum(chunks[: index + 1]) for index in range(len(chunks))]
    lines = [
        f"{head} {step - 1} chunk {index + 1}: {count} group(s), {done[index]}/2 dispatched"
        for index, count in enumerate(chunks)
    ]
    return lines + [f"{head} {step - 1} closing on {len(chunks)} chunk(s), {sum(chunks)} group(s)"] * close


def sc_out(step: int, lag: int, *, toks: int = 20, seqs: int = 4, time: float = 1.0, **metrics: float) -> list[str]:
    """What standard output says at the end of a step."""
    told = {"loss": 0.5, "grad": "nan", "global_valid_toks": float(toks), "global_valid_seqs": float(seqs)} | metrics
    return [
        f"  _sync_weights: sync done in {0.1 + step / 1000:.3f}s",
        "⏱️  Timing:",
        f"  • Total step time: {time:.2f}s",
        "  • valid_tokens_per_sec_per_gpu: 77.31s (10046.4%)",
        "  • exposed_generation: 0.25s (25.0%)",
        f"step_metrics={told}".replace("'nan'", "nan"),
        f"train step {step}/9  trainer_v={step}  lag={lag}  ",
    ]


def sc_step(step: int, lag: int, **more: Any) -> list[str]:
    return sc_chunks(step) + sc_out(step, lag, **more)


def state(entries: Sequence[tuple[int, int]], mark: int = -1) -> str:
    versions, targets = [v for v, _ in entries], [t for _, t in entries]
    return (
        f"ReplayBuffer state: {len(entries)} groups, versions={versions}, targets={targets}, "
        f"last_target_weight_already_generated={mark}"
    )


class Buffer:
    """Prints what async_grpo's replay buffer prints, group by group."""

    def __init__(self, age: int = 1, restored: Iterable[tuple[int, int]] = ()) -> None:
        self.age = age
        self.entries = list(restored)
        self.lines: list[str] = []

    def insert(self, version: int, target: int) -> Buffer:
        self.entries.append((version, target))
        self.say("🔍 ReplayBuffer.add: Adding trajectory", state(self.entries))
        return self

    def look(self, version: int) -> Buffer:
        self.say("🔍 ReplayBuffer sampling debug:", f"   current_weight_version={version}, max_age_steps={self.age}")
        self.say(f"   self.trajectory_versions={[v for v, _ in self.entries]}")
        return self

    def take(self, version: int, consumed: bool = True) -> Buffer:
        self.look(version)
        taken = [entry for entry in self.entries if entry[1] == version][:2]
        counts: dict[int, int] = {}
        for entry in taken:
            counts[entry[0]] = counts.get(entry[0], 0) + 1
        self.say(f"✅ Selected counts by generation weight-version: Counter({counts})")
        if consumed:
            before = len(self.entries)
            for entry in taken:
                self.entries.remove(entry)
            self.say(
                f"🗑️ Consumed and removed {len(taken)} groups from buffer, old buffer size: {before}, "
                f"new buffer size: {len(self.entries)}, new target weight versions {[t for _, t in self.entries]}"
            )
        return self

    def evict(self, version: int) -> Buffer:
        old = [entry for entry in self.entries if entry[0] < version - self.age]
        self.look(version)
        self.say(f"   Evicting {len(old)} stale trajectories (version < {version - self.age})")
        self.entries = [entry for entry in self.entries if entry not in old]
        return self

    def say(self, *lines: str) -> None:
        self.lines += [f"\x1b[36m(ReplayBuffer pid=11)\x1b[0m {line}\n" for line in lines]


AG_START = "🚀 Starting async GRPO training with buffer_size=4, max_age={age} steps, max_generation_failures=0\n"
DRAIN = "(AsyncTrajectoryCollector pid=12) ⏸️ Non-async engine: waiting for all pending generations to complete...\n"
IN_FLIGHT = (
    "(AsyncTrajectoryCollector pid=12) 🚀 Using vllm in-flight weight update - skipping wait for pending generations\n"
)
AG_CONFIG = (
    "MasterConfig(policy={'train_global_batch_size': 4}, grpo=GRPOConfig(num_prompts_per_step=2, "
    "num_generations_per_prompt=2, async_grpo=AsyncGRPOConfig(enabled=True, max_trajectory_age_steps=1)))\n"
)


def ag_step(step: int, age: float = 0.0) -> str:
    """What the driver prints of a step that ran through."""
    return (
        f"========================= Step {step}/9 =========================\n"
        f"Logged data to logs/exp_001/train_data_step{step}.jsonl\n\n📊 Training Results:\n  • Loss: 0.3\n"
        f"  • Avg Trajectory Age: {age:.2f} steps\n"
    )


def dump(rows: Iterable[tuple[int, bool]]) -> str:
    """A ``train_data_step`` file: (sampled tokens, row masked), padded to 8 tokens after a prompt of 2."""
    return "".join(
        json.dumps(
            {
                "content": [["2+2?", "4"]],
                "input_lengths": [2 + tokens],
                "token_loss_mask": [[0, 0] + [1] * tokens + [0] * (6 - tokens)],
                "sample_loss_mask": [0.0 if masked else 1.0],
                "advantages": [[float("nan"), float("inf"), 0.5]],
                "idx": index,
            }
        )
        + "\n"
        for index, (tokens, masked) in enumerate(rows)
    )


def events(points: Iterable[tuple[str, int, float, float]]) -> bytes:
    """A TensorBoard file of (tag, step, value, seconds after the start)."""
    from tensorboard.compat.proto import event_pb2, summary_pb2

    out = []
    for tag, step, value, seconds in points:
        summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=value)])
        out.append(event_pb2.Event(wall_time=1.8e9 + seconds, step=step, summary=summary))
    return records(out)


def torch_file(value: object) -> bytes:
    """A zip archive as ``torch.save`` writes it."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr("archive/byteorder", "little")
    return target.getvalue()


class Run:
    """A run directory; ``run["ray-driver.log"] = text`` writes a file, ``run()`` audits it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"

    def __setitem__(self, name: str, content: str | bytes) -> None:
        path = self.run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def __call__(self, bound: int | None = None) -> Audited:
        return Audited(audit(self.run, bound, tables=self.folder / "tables").data)


class Audited:
    """The audit's JSON, with short ways to what tests look at."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    @property
    def codes(self) -> set[str]:
        return {item["code"] for item in self.data["diagnostics"]["items"]}

    @property
    def largest(self) -> tuple[int | None, int | None]:
        return pair(self.data["staleness"]["max"])

    def per_step(self, key: str) -> dict[tuple[int, int], tuple[int | None, int | None]]:
        """An interval per (attempt, step)."""
        return {(row["attempt"], row["step"]): pair(row[key]) for row in self.data["per_step"]}

    def histogram(self, of: str) -> dict[int, tuple[int | None, int | None]]:
        name = "tokens" if of == "token" else "trajectories"
        return {row["staleness"]: pair(row[name]) for row in self.data["staleness"][f"{of}_histogram"]}

    def count(self, *path: str) -> tuple[int | None, int | None]:
        value: Any = self.data
        for key in path:
            value = value[key]
        return pair(value)


def pair(interval: dict[str, int | None]) -> tuple[int | None, int | None]:
    return interval["lo"], interval["hi"]

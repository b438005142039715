"""Writes small SkyRL runs by hand: console text as the trainer prints it, event files, batches, checkpoints."""

from __future__ import annotations

import array
import io
import pickle
import sys
import types
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from pprint import pformat
from typing import Any

import yaml
from helpers.event_file import records

from staleness_audit.api import audit

NOON = datetime(2026, 8, 21, 12, 0, 0)
CONVERT = "fully_async_trainer:convert_generation_group_mini_batch_to_training_input"


def config(bound: int = 1, groups: int = 4, samples: int = 2, **more: Any) -> dict[str, Any]:
    """The keys of a configuration that matter; ``more`` sets others by their last part."""
    found = {
        "generator": {
            "apply_overlong_filtering": False,
            "inference_engine": {"max_num_seqs": 1024, "num_engines": 1},
            "n_samples_per_prompt": samples,
            "step_wise_trajectories": False,
        },
        "trainer": {
            "algorithm": {"zero_variance_filter": False},
            "epochs": 1,
            "fully_async": {
                "enabled": True,
                "max_staleness_steps": bound,
                "num_parallel_generation_workers": groups * (bound + 1),
                "sample_full_batch": False,
            },
            "logger": "console",
            "policy_mini_batch_size": groups,
            "train_batch_size": groups,
        },
    }
    for key, value in more.items():
        _set(found, key, value)
    return found


def _set(table: dict[str, Any], key: str, value: Any) -> bool:
    if key in table:
        if value is None:
            del table[key]
        else:
            table[key] = value
        return True
    return any(_set(item, key, value) for item in table.values() if isinstance(item, dict))


def metrics(
    step: int, ages: Sequence[int], bound: int, samples: int = 2, epoch: int = 0, **more: Any
) -> dict[str, Any]:
    """What a tracker is told of a step whose groups have these reported ages; every trajectory has 10 loss tokens."""
    found = {
        "async/gen_buffer_qsize_at_wait_start": 0,
        "async/staleness_mean": sum(ages) / len(ages),
        "async/staleness_max": max(ages),
        "async/staleness_min": min(ages),
        "async/staleness_ratio": sum(age > 0 for age in ages) / len(ages),
        "async/staleness_violation_count": sum(age > bound for age in ages),
        "generate/avg_assistant_tokens": 10.0,
        "generate/min_assistant_tokens": 10,
        "generate/max_assistant_tokens": 10,
        "generate/batch_num_seq": len(ages) * samples,
        f"reward/avg_pass_at_{samples}": 0.5,
        "policy/final_loss": float("nan"),
        "trainer/epoch": epoch,
        "trainer/global_step": step,
    }
    return {key: value for key, value in (found | more).items() if value is not None}


@dataclass
class Console:
    """A console log in the making. ``root``: the framework's package, which older releases call ``skyrl_train``."""

    prefix: str = "(skyrl_entrypoint pid=77) "
    root: str = "skyrl.train"
    coloured: bool = False
    bound: int = 1
    samples: int = 2
    lines: list[str] = field(default_factory=list)
    now: datetime = NOON

    def say(self, text: str, where: str = "utils.metrics:timed_phase", level: str = "INFO", before: str = "") -> None:
        """One record; ``before`` is what a progress bar left on the line."""
        self.now += timedelta(milliseconds=100)
        stamp = self.now.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        if self.coloured:
            stamp = f"\x1b[32m{stamp}\x1b[0m"
        first, *rest = text.split("\n")
        head = f"{stamp} | {level:<8} | {self.root}.{where}:42 - {first}"
        self.lines.append((before or self.prefix) + head)
        self.lines += [self.prefix + line for line in rest]

    def start(self, phase: str) -> None:
        self.say(f"Started: '{phase}'")

    def end(self, phase: str) -> None:
        self.say(f"Finished: '{phase}', time cost: 0.10s")

    def launch(self, settings: dict[str, Any] | None = None, resume: int | None = None, per_epoch: int = 10) -> Console:
        """The beginning of a launch."""
        if settings is not None:
            self.say(yaml.safe_dump(settings).rstrip(), "entrypoints.main_base:_setup_trainer")
            self.lines.append(self.prefix + "Saving tensorboard log to /somewhere/else.")
        self.say(f"Length of train_dataloader: {per_epoch * 4}", "fully_async_trainer:__init__")
        self.say(f"Number of steps per epoch: {per_epoch}", "fully_async_trainer:__init__")
        if resume is None:
            self.say("No checkpoint found, starting training from scratch", "trainer:load_checkpoints")
        else:
            self.say(f"Resuming from global_step: {resume}", "trainer:load_checkpoints")
            self.say("Loaded fully-async state with 8 consumed UIDs (1 filtered), epoch=0", "fully_async_trainer:x")
            self.say(f"Resumed training from global_step {resume}", "fully_async_trainer:train")
        return self

    def batch(
        self, ages: Sequence[int], example: str = "once upon\n#### 42", warn: Sequence[int] | None = None
    ) -> None:
        """The lines of a step up to its training."""
        self.start("step")
        self.start("wait_for_generation_buffer")
        self.lines.append(self.prefix + "Generation Buffer Progress: 100%|##| 4/4 [00:00<00:00, 28.72it/s]")
        self.end("wait_for_generation_buffer")
        self.start("convert_to_training_input")
        for age in ages if warn is None else warn:
            if age > self.bound:
                text = f"Staleness control violated despite using AsyncStalenessManager: cur_staleness={age}, "
                text += f"max_staleness_steps={self.bound}.\nIf this happens too often, consider."
                self.say(text, CONVERT, "WARNING")
        self.say(f"Example generated: {example}", CONVERT)
        self.say(
            f"batch_num_seq: {len(ages) * self.samples}, batch_padded_seq_len: 30", "trainer:convert_to_training_input"
        )
        self.end("convert_to_training_input")

    def block(self, step: int, values: dict[str, Any], before: str = "") -> None:
        """A tracker record: floats as text of four decimals, integers bare."""
        shown = {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in values.items()}
        self.say(f"Step {step}: \n{pformat(shown)}", "utils.tracking:log", before=before)

    def step(
        self,
        step: int,
        ages: Sequence[int],
        *,
        epoch: int = 0,
        logged: bool = True,
        more: dict[str, Any] | None = None,
        **how: Any,
    ) -> Console:
        """A whole step."""
        self.batch(ages, **how)
        self.start("run_training")
        self.end("run_training")
        self.start("sync_weights")
        self.end("sync_weights")
        self.end("step")
        if logged:
            bar = f"Training Step Progress:  17%|#7  | {step}/12 [00:00<00:04,  2.47it/s]\r"
            self.block(step, metrics(step, ages, self.bound, self.samples, epoch, **(more or {})), before=bar)
            self.block(step, {"timing/step": 1.0, "timing/wait_for_generation_buffer": 0.1})
        return self

    def crash(self, step: int, ages: Sequence[int], more: dict[str, Any] | None = None) -> Console:
        """A step that dies while it trains: its metrics are flushed in one block without ``trainer/*``."""
        self.batch(ages)
        self.start("run_training")
        self.end("run_training")
        self.end("step")
        values = metrics(
            step, ages, self.bound, self.samples, **{"trainer/epoch": None, "trainer/global_step": None}, **(more or {})
        )
        self.block(step, values | {"timing/wait_for_generation_buffer": 0.1})
        self.say(f"Training failed at step {step} with RuntimeError: out of memory\nTraceback (most recent call last):",
                 "fully_async_trainer:train", "ERROR")  # fmt: skip
        return self

    def exhaust(self, epoch: int, groups: int) -> Console:
        """The epoch's prompts are used up while a batch is being filled."""
        self.start("step")
        self.start("wait_for_generation_buffer")
        self.end("wait_for_generation_buffer")
        self.end("step")
        if groups:
            text = f"sample_full_batch: epoch {epoch} exhausted with a partial mini-batch of {groups} group(s); "
            self.say(f"{text}discarding and ending the epoch.", "fully_async_trainer:train", "WARNING")
        return self

    def save(self, step: int) -> Console:
        self.say(
            f"Successfully saved checkpoint for global_step_{step} to: /ckpts/global_step_{step}",
            "trainer:save_checkpoints",
        )
        return self

    def done(self, last: int | None = None) -> Console:
        """The normal end, with the checkpoint that is numbered one too high."""
        if last is not None:
            self.save(last + 1)
            self.say("Saved final checkpoint.", "fully_async_trainer:train")
        self.say("Training done!", "fully_async_trainer:train")
        return self

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def run_of(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Write a run directory."""
    for name, content in files.items():
        path = folder / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / "run"


def audited(
    folder: Path, files: dict[str, str | bytes] | Console, bound: int | None = None, **more: Any
) -> dict[str, Any]:
    """Audit a run and return the document."""
    if isinstance(files, Console):
        files = {"console.log": files.text}
    return audit(run_of(folder, files), bound, tables=folder / "tables", framework="skyrl", **more).data


def exact(value: float) -> dict[str, float]:
    return {"lo": value, "hi": value}


def codes(data: dict[str, Any]) -> list[str]:
    return [item["code"] for item in data["diagnostics"]["items"]]


# --------------------------------------------------------------------------------------------------------- binary files


def mask(rows: Sequence[Sequence[int]], kind: str = "f") -> dict[str, Any]:
    """A table of numbers as batches hold it."""
    data = array.array(kind, [value for row in rows for value in row]).tobytes()
    name = {"f": "float32", "q": "int64"}[kind]
    return {"format": "numpy", "data": data, "shape": (len(rows), len(rows[0])), "dtype": name}


def batch_pickle(
    groups: Sequence[Sequence[int]], *, width: int = 12, pad: int = 0, old: bool = False, **metadata: Any
) -> bytes:
    """A training batch: the loss tokens of every trajectory of every group (0 = all masked), then ``pad`` rows."""
    rows = [tokens for group in groups for tokens in group] + [3] * pad
    loss = mask([[0] * (width - tokens) + [1] * tokens for tokens in rows])
    response = mask(
        [[0] * (width - 8) + [1] * 8 if not tokens else [0] * (width - tokens) + [1] * tokens for tokens in rows], "q"
    )
    edges = [0]
    for group in groups:
        edges.append(edges[-1] + len(group))
    state = {
        "batch_dict": {"sequences": response, "response_mask": response, "loss_mask": loss, "values": None},
        "batch_size": len(rows),
        "device": "cpu",
        "metadata": {"policy_prompt_boundaries": list(pairwise(edges)), "pad_size": pad} | metadata,
    }
    return _pickled(state, old)


def _pickled(state: dict[str, Any], old: bool) -> bytes:
    """Pickle as the framework does: by its function, or before 2026-03-24 as a dictionary of its own kind."""
    name = "skyrl_train.training_batch" if old else "skyrl.backends.skyrl_train.training_batch"
    module = types.ModuleType(name)

    class TrainingInputBatch(dict):  # type: ignore[type-arg]
        def __reduce_ex__(self, protocol: Any) -> Any:
            if old:
                import copyreg

                for field_ in (*state["batch_dict"].values(),):
                    if isinstance(field_, dict):
                        field_.pop("format", None)
                return copyreg.__newobj__, (TrainingInputBatch,), state, None, iter([("sequences", None)])
            return module._rebuild_tensor_batch, (TrainingInputBatch, state)

    def _rebuild_tensor_batch(kind: Any, value: Any) -> None: ...

    for thing in (TrainingInputBatch, _rebuild_tensor_batch):
        thing.__module__, thing.__qualname__ = name, thing.__name__
        setattr(module, thing.__name__, thing)
    sys.modules[name] = module
    parents = name.split(".")[:-1]
    added = [
        ".".join(parents[: index + 1])
        for index in range(len(parents))
        if ".".join(parents[: index + 1]) not in sys.modules
    ]
    sys.modules.update({parent: types.ModuleType(parent) for parent in added})
    try:
        return pickle.dumps(TrainingInputBatch(), protocol=4)
    finally:
        for key in (name, *added):
            del sys.modules[key]


def torch_file(value: Any) -> bytes:
    """A file of ``torch.save`` that holds no tensor."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr("archive/version", "3\n")
    return target.getvalue()


def event_file(steps: Sequence[tuple[int, dict[str, Any]]], started: float = 1.8e9) -> bytes:
    """A TensorBoard event file with one record per number."""
    from tensorboard.compat.proto import event_pb2, summary_pb2

    events = [event_pb2.Event(wall_time=started, file_version="brain.Event:2")]
    for index, (step, values) in enumerate(steps):
        for key, value in values.items():
            entry = summary_pb2.Summary.Value(tag=key, simple_value=float(value))
            events.append(
                event_pb2.Event(wall_time=started + index, step=step, summary=summary_pb2.Summary(value=[entry]))
            )
    return records(events)

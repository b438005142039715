"""Writes small ROLL runs by hand and audits them: 10 seconds a step, so that times can be read.

Step s begins at 10s: pause until 10s+1, model_update until 10s+2, get_batch from there until 10s+6, train from 10s+7
until 10s+9. So what ends between 10s+2 and 10(s+1)+2 was made with the weights that step s pushed.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from staleness_audit.api import audit

START = 1_795_000_000
Span = dict[str, Any]
CONFIG = """exp_name: toy
rollout_batch_size: {batch}
num_return_sequences_in_group: {n}
async_generation_ratio: {ratio}
{more}actor_train:
  model_update_frequency: {frequency}
rewards:
  math_rule:
    query_filter_config:
      type: {filter}

"""
PREFIX = "[2026-11-29 15:35:{second:02d}] [rlvr_pipeline.py (487)] [INFO] [DRIVER 0 / 1][PID 9370] "


def config(
    ratio: float = 1, frequency: int = 1, *, batch: int = 1, n: int = 1, more: str = "", filter: str = "no_filter"
) -> str:
    """What RLVR's start script prints, up to the first log line."""
    printed = CONFIG.format(batch=batch, n=n, ratio=ratio, frequency=frequency, more=more, filter=filter)
    return "add logger: log_rank_DRIVER_0_1\n" + printed + log("force set offload_nccl=False.", 0)


def log(text: str, second: int = 1) -> str:
    return PREFIX.format(second=second % 60) + text + "\n"


def span(name: str, key: str, parent: str | None, start: float, end: float, **attributes: Any) -> Span:
    """One span; whole numbers are text, as the protocol has 64-bit ones."""
    values = [
        {"key": name, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for name, value in attributes.items()
    ]
    found = {
        "traceId": "ab" * 16,
        "spanId": key,
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(int((START + start) * 10**9)),
        "endTimeUnixNano": str(int((START + end) * 10**9)),
        "attributes": values,
        "status": {},
    }
    return found | ({"parentSpanId": parent} if parent else {})


def export(service: str, spans: Iterable[Span], instance: str = "") -> str:
    """One line of the trace file: spans in the order in which they ended."""
    names = {"service.name": service, "service.instance.id": instance or f"{service}-1"}
    about = [{"key": key, "value": {"stringValue": value}} for key, value in names.items()]
    scope = {"scope": {"name": service}, "spans": sorted(spans, key=lambda span: int(span["endTimeUnixNano"]))}
    return json.dumps({"resourceSpans": [{"resource": {"attributes": about}, "scopeSpans": [scope]}]}) + "\n"


def step(
    number: int, *, at: float | None = None, tag: str = "", wait: str = "generate", without: Sequence[str] = ()
) -> list[Span]:
    """The driver's spans of a step."""
    t = 10 * number if at is None else at
    own = f"step{tag}{number}"
    parts = {"stop_server": (0, 1), "model_update": (1, 2), wait: (2, 6), "train": (7, 9)}
    spans = [
        span(name, f"{name}{tag}{number}", own, t + a, t + b) for name, (a, b) in parts.items() if name not in without
    ]
    return spans + [span("pipeline_step", own, None, t, t + 10, global_step=number)] * ("pipeline_step" not in without)


def call(number: int, *, at: float | None = None, tag: str = "", batch: int = 1) -> Span:
    """The scheduler's sampling call."""
    t = 10 * number if at is None else at
    names = {"global_step": number, "batch_size": batch, "domains": "math_rule"}
    return span("get_batch", f"call{tag}{number}", f"generate{tag}{number}", t + 2, t + 6, **names)


def prompt(
    number: int,
    began: int | None,
    end: float,
    *responses: Sequence[tuple[float, float]],
    tag: str = "",
    rewards: int | None = None,
    key: str = "",
) -> list[Span]:
    """A prompt that began in a step (None: validation), its responses as segments (start, end), and their rewards."""
    own = f"prompt{tag}{number}{key}"
    start = min(segment[0] for segments in responses for segment in segments)
    parent = None if began is None else f"call{tag}{began}"
    spans = [span("process_new_prompt", own, parent, start, end, prompt_id=number)]
    for index, segments in enumerate(responses):
        mine = f"{own}.{index}"
        spans.append(span("generate_and_reward", mine, own, segments[0][0], end))
        for at, (begin, stop) in enumerate(segments):
            about = {"domain": "math_rule", "prompt_id": number, "request_id": f"r{tag}{number}{key}.{index}.{at}"}
            spans.append(span("rollout.generate", f"{mine}.{at}", mine, begin, stop, **about))
        if rewards is None or index < rewards:
            spans.append(span("rollout.compute_rewards", f"{mine}.r", mine, segments[-1][1], end, prompt_id=number))
    return spans


def dump(number: int, oldest: int, ids: Sequence[str]) -> str:
    """RLVR's rollout dump of a step."""
    about = json.dumps({"global_step": oldest, "request_id": "r"})
    columns = {"id": list(ids), "sampling_params": [about] * len(ids), "global_step": [number] * len(ids)}
    columns["prompt"] = ["one\u2028line"] * len(ids)
    return json.dumps(columns, ensure_ascii=False)


def agents(number: int, names: Sequence[str], mode: str = "train") -> str:
    """The agent-native manager's rollout dump of a step."""
    rows = []
    for name in names:
        group, env, episode, seed = name.split("_")[-7:-3]
        where = {
            "env_id": int(env),
            "group_id": int(group),
            "tag": "Toy",
            "seed": int(seed),
            "episode_id": int(episode),
        }
        rows.append(json.dumps({"trajectory_id": name, "env_info": {**where, "mode": mode}}))
    return json.dumps({"trajectory_data": rows, "messages": ["[]"] * len(rows), "global_step": [number] * len(rows)})


class _Named:
    """Pickled under a name of a module that is not there."""

    def __init__(self, name: str, *arguments: Any, state: Any = None) -> None:
        self.name, self.arguments, self.state = name, arguments, state


class _Pickler(pickle._Pickler):
    """Writes calls of names without importing them."""

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if not isinstance(obj, _Named):
            super().save(obj, save_persistent_id)
            return
        if obj.name == "storage":
            self.save(("storage", _Named("torch.LongStorage!"), *obj.arguments))
            self.write(pickle.BINPERSID)
            return
        module, name = obj.name.removesuffix("!").rsplit(".", 1)
        self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
        if not obj.name.endswith("!"):
            self.save(obj.arguments)
            self.write(pickle.REDUCE)
            if obj.state is not None:
                self.save(obj.state)
                self.write(pickle.BUILD)


def _pickled(value: Any) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, 4).dump(value)
    return stream.getvalue()


def batch_pickle(masks: Sequence[Sequence[int]], columns: dict[str, list[Any]], **meta: Any) -> bytes:
    """A rollout-mock pickle: ``masks`` is response_mask, ``columns`` are object arrays."""
    rows, width = len(masks), len(masks[0])
    storage = _Named("storage", "0", "cpu", rows * width)
    tensor = _Named("torch._utils._rebuild_tensor_v2", storage, 0, (rows, width), (width, 1), False, {})
    tensors = _Named("tensordict._reductions._make_td", {"_tensordict": {"response_mask": tensor}})
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as members:
        members.writestr("archive/data.pkl", _pickled(tensors))
        numbers = b"".join(value.to_bytes(8, "little") for mask in masks for value in mask)
        members.writestr("archive/data/0", numbers)
    arrays = {
        name: _Named("numpy._core.multiarray._reconstruct", (0,), state=(1, (rows,), None, False, values))
        for name, values in columns.items()
    }
    buffer = _Named("_io.BytesIO", state=(archive.getvalue(), 0, None))
    return _pickled(_Named("roll.distributed.scheduler.protocol.DataProto", state=(buffer, arrays, None, meta)))


class Run:
    """A run directory: ``run["name"] = content``; calling it audits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "run"
        self.tables = folder / "tables"
        self.count = 0

    def __setitem__(self, name: str, content: str | bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    def __call__(self, bound: int | None = None, **assume: str) -> Audited:
        self.count += 1
        keys = {key.replace("__", "."): value for key, value in assume.items()}
        return Audited(audit(self.folder, bound, tables=self.tables / str(self.count), assume=keys).data)


def pair(interval: dict[str, Any]) -> tuple[Any, Any]:
    return interval["lo"], interval["hi"]


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
    def largest(self) -> tuple[Any, Any]:
        return pair(self.data["staleness"]["max"])

    @property
    def steps(self) -> tuple[Any, Any]:
        return pair(self.data["run"]["steps"])

    @property
    def trained(self) -> tuple[Any, Any]:
        return pair(self.data["trajectories"]["trained"])

    def histogram(self, of: str = "trajectory") -> dict[int, tuple[Any, Any]]:
        name = "tokens" if of == "token" else "trajectories"
        return {row["staleness"]: pair(row[name]) for row in self.data["staleness"][f"{of}_histogram"]}

    def fates(self, kind: str) -> dict[str, tuple[Any, Any]]:
        return {reason: pair(count) for reason, count in self.data["trajectories"][kind].items()}

"""Writes small verl run directories by hand, and reads back what the parser makes of them."""

from __future__ import annotations

import io
import json
import pickle
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from staleness_parsers.verl import PARSER

from staleness_audit import ingest, plugins
from staleness_audit.check.checker import check
from staleness_audit.discovery import discover
from staleness_audit.rebuild import rebuild


def v1_config(
    mode: str = "separate_async", strategy: str = "drop", threshold: int | None = 3, **more: Any
) -> dict[str, Any]:
    """Two groups of two rows a step, in two mini-batches."""
    sampler = {
        "max_off_policy_threshold": threshold,
        "max_off_policy_strategy": strategy,
        "custom_sampler": {"path": None},
    }
    modes = {
        "separate_async": {"num_warmup_batches": 1, "parameter_sync_step": 2},
        "colocate_async": {"num_warmup_batches": 1},
    }
    trainer = {"use_v1": True, "critic_warmup": 0, "v1": {"trainer_mode": mode, "sampler": sampler, **modes}}
    return {
        "trainer": trainer,
        "data": {"train_batch_size": 2, "max_response_length": 64},
        "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 1}, "rollout": {"n": 2}},
        "algorithm": {"rollout_correction": {"rollout_rs": None}},
        **more,
    }


def fa_config(theta: float = 0.5, trigger: int = 2) -> dict[str, Any]:
    """One group of two rows a micro-step."""
    found = v1_config()
    found["data"]["train_batch_size"] = 0
    found["trainer"]["balance_batch"] = False
    found["async_training"] = {
        "staleness_threshold": theta,
        "trigger_parameter_sync_step": trigger,
        "require_batches": 1,
    }
    return found


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}/mean": sum(values) / len(values), f"{name}/max": max(values), f"{name}/min": min(values)}


def record(
    step: int, rows: Sequence[tuple[int, int]], tokens: int = 10, scale: int = 1, **more: float
) -> dict[str, Any]:
    """Metrics of a V1 step whose rows have staleness (last, worst), ``tokens`` tokens each and a prompt of 4."""
    off = "training/off_policy/trajectory"
    data = {
        "training/global_step": step,
        "training/num_turns/max": 2,
        **spread("response_length", [float(tokens)] * len(rows)),
        **spread("prompt_length", [4.0] * len(rows)),
        "perf/total_num_tokens": len(rows) * (tokens + 4),
        "timing_s/gen": 0.5,
        **spread(f"{off}_staleness", [last / scale for last, _ in rows]),
        **spread(f"{off}_staleness_worst", [worst / scale for _, worst in rows]),
        **spread(f"{off}_spans", [(worst - last) / scale + 1 for last, worst in rows]),
    }
    return {"step": step, "data": {**data, **{key.replace("__", "/"): value for key, value in more.items()}}}


def fa_record(version: int, last_micro: int, stale: int, partial: int = 0, span: int = 0) -> dict[str, Any]:
    """The aggregate of a parameter version; ``stale`` is the count so far."""
    data = {
        "training/global_step": float(last_micro),
        "num_turns/max": 2.0,
        "response_length/max": 10.0,
        "response_length/min": 10.0,
        "response_length/mean": 10.0,
        "fully_async/count/current_param_version": float(version - 1),
        "fully_async/count/stale_trajectory_processed": float(stale),
        "fully_async/count/dropped_stale_samples": 0.0,
        "fully_async/partial/total_partial_num": float(partial),
        "fully_async/partial/max_partial_span": float(span),
    }
    return {"step": version, "data": data}


def dump_row(step: int, key: str | None, text: str = "prompt", output: str = "w", **more: Any) -> dict[str, Any]:
    row = {"input": text, "output": output, "gts": None, "score": 1.0, "step": step}
    return {**row, **({} if key is None else {"uid": key}), **more}


def uid(number: int) -> str:
    """A group id as verl makes them: dashes, no underscore."""
    return f"00000000-0000-4000-8000-{number:012d}"


def key(number: int, session: int = 0, index: int = 0) -> str:
    return f"{uid(number)}_{session}_{index}"


@dataclass
class Buffer:
    """What a checkpoint of the data plane holds."""

    tags: dict[str, dict[str, Any]] = field(default_factory=dict)
    masks: dict[str, list[int]] = field(default_factory=dict)

    def prompt(self, number: int, status: str, admitted: int) -> Buffer:
        self.tags[uid(number)] = {"is_prompt": True, "status": status, "global_steps": admitted}
        return self

    def row(self, name: str, admitted: int, versions: tuple[int, int], mask: Sequence[int] = (1,) * 10) -> Buffer:
        self.tags[name] = {
            "status": "success",
            "prompt_len": 4,
            "response_len": len(mask),
            "seq_len": 4 + len(mask),
            "global_steps": admitted,
            "min_global_steps": versions[0],
            "max_global_steps": versions[1],
        }
        self.masks[name] = list(mask)
        return self

    def group(self, number: int, admitted: int, versions: tuple[int, int], rows: int = 2) -> Buffer:
        for session in range(rows):
            self.row(key(number, session), admitted, versions)
        return self


class Storage:
    """A tensor's numbers while it is being pickled; its persistent id names it."""

    def __init__(self, values: Sequence[int]) -> None:
        self.values = list(values)


def stream(values: Sequence[int]) -> bytes:
    """torch's stream of before 2020, as plain pickle puts a tensor's storage into itself."""
    with foreign({"torch": ["LongStorage"]}) as made:
        parts = io.BytesIO()
        for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
            pickle.dump(value, parts, protocol=2)
        storage = Storage(values)

        class Pickler(pickle.Pickler):
            def persistent_id(self, item: object) -> tuple[object, ...] | None:
                kept = ("storage", made["torch.LongStorage"], "7", "cpu", len(values), None)
                return kept if item is storage else None

        Pickler(parts, protocol=2).dump(storage)
        pickle.dump(["7"], parts, protocol=2)
        return parts.getvalue() + struct.pack(f"<q{len(values)}q", len(values), *values)


@contextmanager
def foreign(names: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Lend modules with classes of the given names to the pickler, which insists on finding what it names."""
    made, before = {}, dict(sys.modules)
    for module, classes in names.items():
        found = ModuleType(module)
        for name in classes:
            made[f"{module}.{name}"] = type(name, (), {"__module__": module})
            setattr(found, name, made[f"{module}.{name}"])
        sys.modules[module] = found
    try:
        yield made
    finally:
        for module in names:
            sys.modules.pop(module)
            if module in before:
                sys.modules[module] = before[module]


class Reduced:
    """An object that pickles as the call of a named function."""

    def __init__(self, function: Any, arguments: tuple[Any, ...]) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def function(module: str, name: str) -> Any:
    """A function of a name that only the pickler sees."""

    def made(*_: Any) -> None:
        raise AssertionError("a dump's function was called")

    made.__module__, made.__qualname__, made.__name__ = module, name, name
    return made


def tensor(values: Sequence[int], load: Any, rebuild_tensor: Any) -> Reduced:
    storage = Reduced(load, (stream(values),))
    return Reduced(rebuild_tensor, (storage, 0, (len(values),), (1,), False, {}))


@dataclass
class Run:
    """A run directory under construction."""

    root: Path

    def write(self, path: str, data: str | bytes) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data.encode() if isinstance(data, str) else data)
        return target

    def config(self, value: Mapping[str, Any], start: str = "2026-11-29/16-00-00") -> None:
        self.write(f"outputs/{start}/.hydra/config.yaml", yaml.safe_dump(dict(value)))

    def metrics(self, *records: Mapping[str, Any], path: str = "demo/run.jsonl") -> Path:
        return self.write(path, "".join(json.dumps(item) + "\n" for item in records))

    def dump(self, step: int, *rows: Mapping[str, Any], folder: str = "rollout_data") -> Path:
        return self.write(f"{folder}/{step}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def members(self, step: int, *groups: int) -> Path:
        return self.dump(step, *(dump_row(step, key(group, session)) for group in groups for session in (0, 1)))

    def console(self, *lines: str, path: str = "console.log", actor: str = "TaskRunnerV1 pid=100") -> Path:
        return self.write(path, "".join(f"\x1b[36m({actor})\x1b[0m {line}\n" for line in lines))

    def checkpoint(self, step: int, buffer: Buffer, *, masks: bool = True) -> Path:
        """A TransferQueue checkpoint: a controller with objects of foreign classes, and a storage unit."""
        folder = f"checkpoints/global_step_{step}/transfer_queue"
        names = {name: index for index, name in enumerate(buffer.tags, 1)}
        with foreign({"transfer_queue": [], "transfer_queue.controller": ["DataPartitionStatus", "FieldMeta"]}) as made:
            partition = made["transfer_queue.controller.DataPartitionStatus"]()
            meta = made["transfer_queue.controller.FieldMeta"]()
            meta.dtype, meta.global_indexes = "torch.int64", set(names.values())
            partition.__dict__.update(
                created_at=1795970013.5,
                field_metadata={"response_mask": meta},
                custom_meta={names[name]: tag for name, tag in buffer.tags.items()},
                keys_mapping=names,
            )
            state = {"controller_id": "TQ", "partitions": {"train": partition}, "index_manager": {}, "sampler": {}}
            self.write(
                f"{folder}/metadata.json", json.dumps({"storage_saved": True, "user_metadata": {"global_steps": step}})
            )
            path = self.write(f"{folder}/controller_state.pkl", pickle.dumps(state, protocol=5))
        if masks:
            self.storage(
                f"{folder}/simple_storage/su_0_TQ.pkl", {names[name]: mask for name, mask in buffer.masks.items()}
            )
        return path

    def storage(self, path: str, masks: Mapping[int, Sequence[int]]) -> None:
        load, rebuild_tensor = (
            function("torch.storage", "_load_from_bytes"),
            function("torch._utils", "_rebuild_tensor_v2"),
        )
        with foreign({"torch": [], "torch.storage": [], "torch._utils": []}):
            sys.modules["torch.storage"]._load_from_bytes = load  # type: ignore[attr-defined]
            sys.modules["torch._utils"]._rebuild_tensor_v2 = rebuild_tensor  # type: ignore[attr-defined]
            fields = {"response_mask": {index: tensor(mask, load, rebuild_tensor) for index, mask in masks.items()}}
            self.write(path, pickle.dumps({"storage_unit_id": "TQ", "field_data": fields}, protocol=5))


def console_record(item: Mapping[str, Any]) -> str:
    """A record as the console logger prints it: whole numbers plain, others as numpy's repr."""
    values = (
        f"{name}:np.float64({value})" if isinstance(value, float) else f"{name}:{value}"
        for name, value in item["data"].items()
    )
    return f"step:{item['step']} - " + " - ".join(values)


@dataclass
class Tables:
    """What the parser wrote, and what the audit makes of it."""

    dataset: ingest.Dataset

    def rows(self, table: str, *order: str) -> list[dict[str, Any]]:
        frame = self.dataset.scan(table).collect()
        return frame.sort(*order).to_dicts() if order else frame.to_dicts()

    @property
    def facts(self) -> dict[str, Any]:
        return dict(self.dataset.facts)

    def audit(self, bound: int | None = None) -> dict[str, Any]:
        return check(rebuild(self.dataset), bound)

    def versions(self, trajectory: str) -> list[tuple[int, int | None, int | None]]:
        """(tokens, oldest, newest version) of a trajectory's spans in their order."""
        spans = [row for row in self.rows("spans", "span_index") if row["trajectory_id"] == trajectory]
        return [(row["tokens_lo"], row["version_lo"], row["version_hi"]) for row in spans]

    def uses(self) -> set[tuple[str, int, int]]:
        return {(row["trajectory_id"], row["attempt"], row["step"]) for row in self.rows("uses")}

    def classes(self, step: int) -> list[tuple[int, int, int]]:
        """(how many, least, most staleness) of a step's undated rows."""
        counts = {
            row["trajectory_id"]: 1 if row["multiplicity_lo"] is None else row["multiplicity_lo"]
            for row in self.rows("trajectories")
        }
        rows = [row for row in self.rows("uses") if row["step"] == step and row["staleness_hi"] is not None]
        return sorted((counts[row["trajectory_id"]], row["staleness_lo"], row["staleness_hi"]) for row in rows)

    def fates(self, trajectory: str) -> set[tuple[str, str | None, str]]:
        rows = [row for row in self.rows("events") if row["trajectory_id"] == trajectory]
        return {(row["kind"], row["reason"], row["evidence"]) for row in rows if row["kind"] != "finished"}

    def codes(self) -> Counter[str]:
        return Counter(row["code"] for row in self.rows("diagnostics"))

    def opened(self) -> set[str]:
        return {row["opens"] for row in self.rows("diagnostics") if row["opens"]}


def read(root: Path, tables: Path) -> Tables:
    """Ingest a run directory with this parser alone."""
    run = discover(root)
    return Tables(ingest.ingest(run, plugins.choose(run, among={PARSER.name: PARSER}), tables))


def figure(interval: Mapping[str, Any]) -> tuple[Any, Any]:
    return interval["lo"], interval["hi"]

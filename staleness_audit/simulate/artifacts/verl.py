"""verl's V1 trainer: its metrics as the file logger writes them, and the generations it dumps for each step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from staleness_audit.simulate.artifacts.story import Run, Step, Trajectory


def write(run: Run, folder: Path) -> None:
    """Write ``outputs/.../.hydra/config.yaml``, ``run.jsonl`` and ``rollout_data/`` (the verl guide, 5: A and C).

    Steps count from 1: step s starts from version s - 1. Evicted groups are counted, their tokens are nowhere.

    Raises:
        OSError: it can't be written.
    """
    hydra, dumps = folder / "outputs" / "2026-01-01" / "00-00-00" / ".hydra", folder / "rollout_data"
    hydra.mkdir(parents=True)
    dumps.mkdir()
    # Hydra's file is YAML, of which JSON is a part.
    (hydra / "config.yaml").write_text(json.dumps(_config(run), indent=2) + "\n")
    _lines(folder / "run.jsonl", ({"step": step.number + 1, "data": _metrics(step)} for step in run.steps))
    for step in run.steps:
        _lines(dumps / f"{step.number + 1}.jsonl", (_row(step, trajectory) for trajectory in step.batch))


def _lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _config(run: Run) -> dict[str, Any]:
    sampler = {
        "max_off_policy_threshold": run.knobs["max_off_policy_threshold"],
        "max_off_policy_strategy": run.knobs["max_off_policy_strategy"],
        "custom_sampler": {"path": None},
    }
    mode = {name: run.knobs[name] for name in ("num_warmup_batches", "parameter_sync_step")}
    v1 = {"trainer_mode": "separate_async", "sampler": sampler, "separate_async": mode}
    return {
        "trainer": {"use_v1": True, "critic_warmup": 0, "v1": v1},
        "data": {"train_batch_size": run.groups_per_step, "max_response_length": 1 << 20},
        "actor_rollout_ref": {
            "actor": {"ppo_mini_batch_size": run.groups_per_step // run.knobs["parameter_sync_step"]},
            "rollout": {"n": run.group_size},
        },
        "algorithm": {"rollout_correction": {"rollout_rs": None}},
    }


def _metrics(step: Step) -> dict[str, Any]:
    oldest = [step.number - min(trajectory.tokens) for trajectory in step.batch]
    newest = [step.number - max(trajectory.tokens) for trajectory in step.batch]
    off_policy = "training/off_policy/trajectory"
    evicted = len({trajectory.group for trajectory in step.dropped})
    return {
        "training/global_step": step.number + 1,
        "training/num_turns/max": 2,
        **_spread("response_length", [trajectory.made() for trajectory in step.batch]),
        **_spread("prompt_length", [trajectory.prompt for trajectory in step.batch]),
        "perf/total_num_tokens": sum(trajectory.prompt + trajectory.made() for trajectory in step.batch),
        "timing_s/gen": step.waited,
        "timing_s/step": step.ended - step.started + step.waited,
        **_spread(f"{off_policy}_staleness", newest),
        **_spread(f"{off_policy}_staleness_worst", oldest),
        **_spread(f"{off_policy}_spans", [old - new + 1 for old, new in zip(oldest, newest, strict=True)]),
        **({"training/off_policy/evicted_samples": float(evicted)} if evicted else {}),
    }


def _spread(name: str, values: Sequence[int]) -> dict[str, float]:
    return {f"{name}/mean": sum(values) / len(values), f"{name}/max": max(values), f"{name}/min": min(values)}


def _row(step: Step, trajectory: Trajectory) -> dict[str, Any]:
    group, _, member = trajectory.name.partition("/")
    key = f"00000000-0000-4000-8000-{int(group[1:]):012d}_{member.partition('+')[0]}_0"
    return {"input": group, "output": "", "gts": None, "score": 1.0, "step": step.number + 1, "uid": key}

"""DryRun-RL's telemetry of a run of its model: requests, steps, and what instances hold at each update."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from staleness_audit.simulate.dryrun import DryRun, Outcome
from staleness_audit.simulate.dryrun.instance import Request

CONFIG_KEYS = {"interval": "update_weights_interval", "window": "trigger_parameter_sync_step"}
"""Names of knobs in the configuration, where they differ."""


def write(run: DryRun, outcome: Outcome, folder: Path) -> None:
    """Write ``.hydra/config.yaml`` and the streams in ``logs/`` (the DryRun-RL guide, section 5).

    Left out: ``rollout_step.jsonl``, and samples of the instance streams between updates.

    Raises:
        OSError: it can't be written.
    """
    hydra, logs = folder / ".hydra", folder / "logs"
    (logs / "instance").mkdir(parents=True)
    hydra.mkdir()
    # Hydra's file is YAML, of which JSON is a part.
    (hydra / "config.yaml").write_text(json.dumps(_config(run, len(outcome.steps)), indent=2) + "\n")
    _lines(logs / "request.jsonl", _requests(outcome))
    _lines(logs / "train.jsonl", _steps(outcome))
    for instance in range(run.n_instances):
        _lines(logs / "instance" / f"{instance}.jsonl", _occupancy(run, outcome, instance))


def _lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _config(run: DryRun, steps: int) -> dict[str, Any]:
    knobs = {CONFIG_KEYS.get(name, name): value for name, value in run.knobs.items()}
    return {
        "job": {"n_versions": steps, "batch_size": run.batch_size, "max_staleness": run.max_staleness},
        "rollout": {
            "n_instances": run.n_instances,
            "partial_rollout": run.partial_rollout,
            "token_budget": run.token_budget,
            "kv_blocks": run.limits.kv_blocks,
            "block_size": run.limits.block_size,
            "max_concurrency": run.limits.max_concurrency,
            "livelock_rounds": 50,
        },
        "rollout_cost": {"name": "roofline", "F": run.cost.floor, "W": run.cost.step, "G": run.cost.token},
        "policy": {"name": run.policy, **knobs},
        "workload": {"prompt": {"name": "fixed", "n": len(run.lengths), "lo": run.prompt, "hi": run.prompt}},
    }


def _requests(outcome: Outcome) -> Iterator[dict[str, Any]]:
    trained = {id(request): step for step, (_, _, batch) in enumerate(outcome.steps) for request in batch}
    for at, what, request, made in outcome.events:
        step = trained.get(id(request)) if what == "consume" else None
        oldest, newest = min(made, default=request.version), max(made, default=request.version)
        tokens = sum(made.values())
        yield {
            "t": at,
            "event": what,
            "rid": request.rid,
            "instance_id": request.instance,
            "admit_time": request.dispatched,
            "dispatch_time": request.dispatched,
            "complete_time": None if what == "admit" else request.completed,
            "consume_version": step,
            "prompt_len": request.prompt,
            "target_len": request.target,
            "generated": tokens,
            "ctx": request.prompt + tokens,
            "v_traj": request.version,
            "v_min": oldest,
            "v_max": newest,
            "staleness_true": None if step is None else step - oldest,
            "staleness_reported": None if step is None else step - newest,
        }


def _steps(outcome: Outcome) -> Iterator[dict[str, Any]]:
    for step, ((start, end, batch), expired) in enumerate(zip(outcome.steps, outcome.expired, strict=True)):
        yield {
            "t": end,
            "start": start,
            "end": end,
            "dt": end - start,
            "version": step + 1,
            "batch_size": len(batch),
            "n_reqs": len(batch),
            "total_tokens": sum(request.prompt + request.generated for request in batch),
            "n_dropped_step": expired,
        }


def _occupancy(run: DryRun, outcome: Outcome, instance: int) -> Iterator[dict[str, Any]]:
    for (start, _, _), flying in zip(outcome.steps, outcome.updates, strict=True):
        here: list[tuple[Request, int]] = [(request, tokens) for place, request, tokens in flying if place == instance]
        lengths = {
            str(request.rid): {
                "generated": tokens,
                "target_len": request.target,
                "ctx": request.prompt + tokens,
                "prefilled": 0 if run.partial_rollout else request.prompt + tokens,
            }
            for request, tokens in here
        }
        running = {} if run.partial_rollout else lengths
        yield {
            "t": start,
            "instance_id": instance,
            "num_running_reqs": len(running),
            "num_waiting_reqs": len(lengths) - len(running),
            "running_len": running,
            "waiting_len": lengths if run.partial_rollout else {},
        }

"""TRL's asynchronous trainer with a fixed count of rows: its state, its arguments in trackio's file, its console."""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from staleness_audit.simulate.artifacts.story import Moment, Run, Step, Trajectory

BEGAN = datetime(2026, 1, 1)
TRAINER, WORKER = "async_grpo_trainer: [RANK 0] ", "async_rollout_worker: "


def write(run: Run, folder: Path) -> None:
    """Write ``output/checkpoint-N/trainer_state.json``, ``trackio/run.db`` and ``console.log`` (the TRL guide, 5).

    Steps count from 1, and so do the trainer's versions, which a sync before the first step makes 1. Every trajectory
    is a row.

    Raises:
        OSError: it can't be written.
    """
    records = [_record(run, step) for step in run.steps]
    state = folder / "output" / f"checkpoint-{len(records)}" / "trainer_state.json"
    state.parent.mkdir(parents=True)
    document = {"global_step": len(records), "log_history": records, "logging_steps": 1}
    state.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    _trackio(run, folder / "trackio" / "run.db")
    told = sorted(chain(_worker(run), _trainer(run, records)), key=itemgetter(0))
    (folder / "console.log").write_text("".join(map(itemgetter(1), told)), encoding="utf-8")


def _rows(run: Run) -> list[list[Trajectory]]:
    """Return what was pulled in each step, in order: one micro-batch ahead, which the last step leaves untrained."""
    size = run.groups_per_step // run.knobs["gradient_accumulation_steps"] * run.group_size
    batches = [step.batch for step in run.steps]
    ahead = [*(batch[:size] for batch in batches[1:]), _left(run)[:size]]
    return [(batch if number == 0 else batch[size:]) + ahead[number] for number, batch in enumerate(batches)]


def _left(run: Run) -> list[Trajectory]:
    """Rows that were neither trained nor dropped, in the order in which their groups were complete."""
    gone = {one.name for one in chain(chain.from_iterable(step.batch for step in run.steps), _dropped(run))}
    waits = [(at, rows) for at, rows in _groups(run) if rows[0].name not in gone]
    return [one for _, rows in sorted(waits, key=itemgetter(0)) for one in rows]


def _dropped(run: Run) -> Iterator[Trajectory]:
    return (one for kind, _, one in run.fates if kind == "dropped")


def _groups(run: Run) -> Iterator[tuple[Moment, list[Trajectory]]]:
    """Yield when each group was complete, and its rows."""
    members: dict[str, list[Trajectory]] = {}
    for one in run.trajectories:
        if one.ended is not None:
            members.setdefault(one.group, []).append(one)
    for rows in members.values():
        if len(rows) == run.group_size:
            yield max(one.ended for one in rows if one.ended is not None), rows


def _record(run: Run, step: Step) -> dict[str, Any]:
    pulled = [step.number - one.admitted for one in _rows(run)[step.number]]
    dropped = len(step.dropped)
    return {
        "step": step.number + 1,
        "epoch": (step.number + 1) / 1000,
        "loss": 0.25,
        "sample/staleness_mean": sum(pulled) / len(pulled) if pulled else None,
        "sample/staleness_max": float(max(pulled)) if pulled else None,
        **({"sample/dropped_stale_total": float(dropped)} if dropped else {}),
        "batch/samples_per_step": float(len(step.batch)),
        "batch/trained_tokens_per_step": float(sum(one.made() for one in step.batch)),
        "rollout/samples_per_rollout": 1.0,
        **({"perf/step_s": step.ended - step.started} if step.number else {}),
        "perf/weight_sync_s": 0.0,
    }


def _trackio(run: Run, path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("CREATE TABLE configs (id INTEGER PRIMARY KEY, run_id, run_name, config, created_at)")
        config = json.dumps(_config(run)).encode()
        base.execute("INSERT INTO configs VALUES (1, 'r1', 'run', ?, ?)", (config, BEGAN.isoformat()))


def _config(run: Run) -> dict[str, Any]:
    knobs, rows = run.knobs, run.groups_per_step * run.group_size
    slots = knobs["max_inflight_tasks"]
    return {
        "max_staleness": knobs["max_staleness"],
        "weight_sync_steps": 1,
        "gradient_accumulation_steps": knobs["gradient_accumulation_steps"],
        "per_device_train_batch_size": rows // knobs["gradient_accumulation_steps"],
        "token_budget": -1,
        "num_generations": run.group_size,
        "max_inflight_tasks": slots * run.group_size if slots >= 0 else max(knobs["max_staleness"], 1) * rows,
        "logging_steps": 1,
        "max_steps": len(run.steps),
        "weight_sync_timeout": 1800,
        "run_name": "run",
    }


def _line(at: float, text: str) -> str:
    stamp = (BEGAN + timedelta(seconds=at)).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
    return f"{stamp} INFO trl.experimental.async_grpo.{text}\n"


def _worker(run: Run) -> Iterator[tuple[Moment, str]]:
    slots = _config(run)["max_inflight_tasks"]
    started = f"vllm worker started: num_generations={run.group_size}, max_inflight_tasks={slots}"
    yield (0.0, 0), _line(0.0, f"{WORKER}{started}")
    for at, rows in _groups(run):
        yield at, _line(at[0], f"{WORKER}[score] scored {len(rows)} samples in 0.00s, buffer_qsize=0")


def _trainer(run: Run, records: Sequence[dict[str, Any]]) -> Iterator[tuple[Moment, str]]:
    synced = ("pausing vLLM...", "transferring weights... (barrier took 0.0s)", "done. Total 0.0s")
    for number, (at, order) in enumerate([(0.0, -1), *run.published]):
        said = "".join(_line(at, f"{TRAINER}Weight sync: {what}") for what in synced)
        if number:
            shown = {
                key: "nan" if value is None else f"{value:.4g}"
                for key, value in records[number - 1].items()
                if key != "step"
            }
            said += f"{shown}\n"
        yield (at, order), said
    for kind, moment, one in run.fates:
        if kind == "dropped":
            age = bisect_left(run.published, moment) - one.admitted
            bound = run.knobs["max_staleness"]
            yield moment, _line(moment[0], f"{TRAINER}dropping stale sample (staleness={age}, max={bound})")

"""Many timed runs: a grid of policies, bounds, workloads and seeds, in parallel processes, resumable, as one table."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from staleness_audit.errors import AuditError
from staleness_audit.limits import limits
from staleness_audit.pool import Pool
from staleness_audit.simulate.policies import POLICIES, build
from staleness_audit.simulate.setup import Setup, read_costs
from staleness_audit.simulate.workload import read_workload

Progress = Callable[[int, int, str], None]
"""Called with the number of runs done, of all runs, and what the last one was."""

POINTS = "points.jsonl"
RESULTS = "results.parquet"

CAPACITY = {
    "slime": "threshold",
    "slime:pooled": "fully_async_pool_size",
    "dressage": "max_active_groups",
    "prime-rl": "max_inflight",
    "nemo-rl:windowed": "max_inflight_prompts",
}
"""Policies whose admission is limited by capacity alone, and the knob that says how much."""

DEPTH = {*CAPACITY, "verl:drop", "verl:wait", "verl:null", "trl", "deadline"}
"""Policies whose admission may lead by another number of batches than the bound."""


@dataclass(frozen=True)
class Point:
    """One run of a sweep, as plain values, so that another process can make it. ``depth``: what admission leads by."""

    policy: str
    bound: int
    workload: str
    steps: int
    batch: int
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, str] = field(default_factory=dict)
    depth: int | None = None

    def key(self) -> str:
        """Return a name that no other point has."""
        text = json.dumps(
            [
                self.policy,
                self.bound,
                self.workload,
                self.steps,
                self.batch,
                self.seed,
                self.depth,
                sorted(self.settings.items()),
                sorted(self.costs.items()),
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def setup(self) -> Setup:
        """Return the run itself; ``AuditError`` if it can't be made."""
        resources, cost = read_costs(self.costs)
        policy = build(self.policy, bound=self.bound, batch=self.batch, settings=self.settings)
        return Setup(self.policy, policy, read_workload(self.workload), cost, resources, self.seed, self.bound)


def fair(policy: str, bound: int, batch: int, depth: int | None = None) -> dict[str, Any]:
    """Return settings that give every policy the same room: ``depth + 1`` batches admitted beyond what is trained.

    ``depth`` is the bound unless it is given, which only makes a difference for the policies in ``DEPTH``: a bound
    implies that much for the other controls that count admissions; those in ``CAPACITY`` have a capacity to be set.
    """
    depth = bound if depth is None else depth
    room = (depth + 1) * batch
    settings: dict[str, Any] = {CAPACITY[policy]: room} if policy in CAPACITY else {}
    if policy.startswith("nemo-rl") and policy != "nemo-rl:async_grpo":
        settings |= {"max_buffered_rollouts": room + batch, "max_inflight_prompts": room}
    if policy == "nemo-rl:weight_fifo":
        settings["min_groups_for_streaming_train"] = 1  # the default can stall for ever
    if policy == "trl":
        settings["max_inflight_tasks"] = room
    if policy in ("verl:drop", "verl:wait", "verl:null"):
        settings["num_warmup_batches"] = depth
    if policy == "deadline" and depth < bound:
        settings["lookahead"] = depth
    return settings


def grid(
    policies: Iterable[str],
    bounds: Iterable[int],
    workloads: Iterable[str],
    *,
    steps: int,
    batch: int,
    seeds: Iterable[int] = (0,),
    depths: Iterable[int] = (),
    settings: Mapping[str, Sequence[str]] | None = None,
    costs: Mapping[str, str] | None = None,
) -> Iterator[Point]:
    """Yield every combination; ``settings`` have several values each, and apply to policies that have the knob.

    ``depths``: what admission leads by, beside the bound itself, where a policy can tell the two apart.

    Raises:
        AuditError: a policy, knob, workload or cost is none.
    """
    chosen_policies, leads = list(policies), list(depths)
    for knob in settings or {}:
        if not any(knob in _knobs(policy) for policy in chosen_policies):
            raise AuditError(f"--set {knob}: none of {', '.join(chosen_policies)} has such a knob.")
    for policy, bound, workload, seed in product(chosen_policies, bounds, workloads, seeds):
        if policy.startswith("openrlhf") and bound < 1:
            continue  # no setting stands for it
        own = dict.fromkeys([bound, *(depth for depth in leads if _can_lead(policy, depth, bound))])
        choices = {knob: values for knob, values in (settings or {}).items() if knob in _knobs(policy)}
        for depth, *values in product(own, *choices.values()):
            chosen = {**fair(policy, bound, batch, depth), **dict(zip(choices, values, strict=True))}
            point = Point(policy, bound, workload, steps, batch, seed, chosen, costs or {}, depth)
            point.setup()
            yield point


def _can_lead(policy: str, depth: int, bound: int) -> bool:
    """Whether admission can lead by that depth, be it the bound or not; ``deadline`` never leads by more."""
    return policy in DEPTH and (policy != "deadline" or depth < bound)


def _knobs(policy: str) -> set[str]:
    return {knob.name for knob in fields(build(policy))}


def run(point: Point) -> dict[str, Any]:
    """Make one run and return its inputs and figures as a flat row."""
    figures = point.setup().run(point.steps).figures()
    histogram = figures.pop("histogram")
    beyond = sum(tokens for age, tokens in histogram.items() if age > point.bound)
    return {
        "key": point.key(),
        "policy": point.policy,
        "bound": point.bound,
        "workload": point.workload,
        "batch": point.batch,
        "seed": point.seed,
        "depth": point.depth,
        "settings": json.dumps(dict(point.settings), sort_keys=True),
        "costs": json.dumps(dict(point.costs), sort_keys=True),
        **figures,
        "beyond_share": beyond / figures["tokens_trained"] if figures["tokens_trained"] else 0.0,
    }


def sweep(
    points: Sequence[Point],
    folder: Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    pool: Pool | None = None,
) -> pl.DataFrame:
    """Make all runs that ``folder`` does not hold yet, and write ``results.parquet`` there.

    Args:
        points: the runs.
        folder: where finished runs are noted one by one, so that an interrupted sweep goes on where it was.
        workers: processes; default: one per processor.
        progress: is told of every finished run.
        pool: makes the runs, instead of processes of this machine.

    Raises:
        AuditError: the folder can't be written or holds something else.
    """
    notes = folder / POINTS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rows = _noted(notes)
        wanted = {point.key(): point for point in points}
        missing = [point for key, point in wanted.items() if key not in rows]
        with notes.open("a", encoding="utf-8") as file:
            for done, row in enumerate(_parallel(missing, workers, pool), start=len(wanted) - len(missing) + 1):
                rows[row["key"]] = row
                file.write(json.dumps(row) + "\n")
                file.flush()
                if progress is not None:
                    progress(done, len(wanted), f"{row['policy']}, bound {row['bound']}")
        table = pl.DataFrame([rows[key] for key in wanted], infer_schema_length=None)
        table.write_parquet(folder / RESULTS)
    except OSError as error:
        raise AuditError(f"{folder}: cannot be written ({error.strerror}); choose another --out.") from error
    return table


def _noted(notes: Path) -> dict[str, dict[str, Any]]:
    """Return the finished runs of an earlier sweep. A line that is cut or damaged is a run to make again."""
    if not notes.exists():
        return {}
    rows: dict[str, dict[str, Any]] = {}
    lines = notes.read_text(encoding="utf-8", errors="replace").split("\n")
    for line in lines:
        try:
            row = json.loads(line)
            rows[row["key"]] = row
        except (ValueError, KeyError, TypeError):
            continue
    if len(rows) != len(lines) - 1 or lines[-1]:
        # What is no run goes, and the next line begins on its own.
        notes.write_text("".join(json.dumps(row) + "\n" for row in rows.values()), encoding="utf-8")
    return rows


def _parallel(points: Sequence[Point], workers: int | None, pool: Pool | None) -> Iterator[dict[str, Any]]:
    if pool is not None:
        yield from pool.each(run, [(point,) for point in points])
        return
    workers = workers or limits().workers
    if workers == 1 or len(points) < 2:
        yield from map(run, points)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as processes:
        for finished in as_completed([processes.submit(run, point) for point in points]):
            yield finished.result()


def all_policies() -> list[str]:
    """Return the names of policies that a timed comparison makes sense for: no variant that only a proof needs."""
    return [name for name in POLICIES if name not in ("psrl:retag", "psrl:native-multi-turn", "verl:one-step-off")]

"""prime-rl: the traces of each step, the metrics of orchestrator and trainer, the orchestrator's log."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from staleness_audit.errors import AuditError
from staleness_audit.simulate.artifacts.story import Moment, Run, Step, Trajectory

BEGAN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
ENVIRONMENT = "words"
_START: Moment = (0.0, 0)


@dataclass(frozen=True)
class _Clock:
    """When the orchestrator did what.

    ``adopted[v - 1]``: counted version v; ``applied[v - 1]``: the engines had it; ``shipped[n - 1]``: sent batch n off.
    ``ended``, ``dropped``: when trajectories were, in order.
    """

    adopted: list[float]
    applied: list[float]
    shipped: list[Moment]
    ended: list[Moment]
    dropped: list[Moment]

    def version(self, at: Moment) -> int:
        """Return the version that the orchestrator counted at a time."""
        return bisect_right(self.adopted, at[0])

    def collecting(self, at: Moment) -> int:
        """Return the step whose batch was being collected; what completes a batch still belongs to its step."""
        return 1 + bisect_left(self.shipped, at)


def write(run: Run, folder: Path) -> None:
    """Write ``rollouts/``, ``metrics.jsonl``, the log at level debug, and the configuration (the prime-rl guide, 5).

    Steps count from 1: step n trains on v(n - 1). Every trajectory is an episode with one trace of one call.

    Raises:
        OSError: it can't be written.
        AuditError: the knobs are those of another release, or cancel for other reasons than age.
    """
    if run.knobs["adaptive"] or not run.knobs["queue_check"]:
        raise AuditError("--artifacts: prime-rl's are written with adaptive=false and queue_check=true.")
    clock = _clock(run)
    arrived: dict[int, list[Trajectory]] = {}
    for ended, _, one in sorted((t.ended, t.name, t) for t in run.trajectories if t.ended):
        arrived.setdefault(clock.collecting(ended), []).append(one)
    for number, members in arrived.items():
        _lines(_traces(folder, number, "all"), (_episode(one, clock) for one in members))
    for step in run.steps:
        _lines(_traces(folder, step.number + 1, "effective"), (_episode(one, clock) for one in step.batch))
    rows = [row for step in run.steps for row in (_shipped(step, clock), _trained(step))]
    _lines(folder / "metrics.jsonl", sorted(rows, key=lambda row: float(row["time"])))
    _text(folder / "configs" / "orchestrator.json", json.dumps(_config(run), indent=2) + "\n")
    log = (
        _line(at, level, message) for at, level, message in sorted(_log(run, clock, arrived), key=lambda told: told[0])
    )
    _text(folder / "logs" / "attempt_1" / "orchestrator.log", "".join(log))


def _clock(run: Run) -> _Clock:
    """Work out from what the log has: a version is adopted some time after it or its predecessor was out."""
    seen, pause = run.knobs["broadcast_s"], run.knobs["pause_s"] if run.knobs["label_race"] else 0.0
    applied = list(
        accumulate((at for at, _ in run.published), lambda last, out: max(last, out) + seen + pause, initial=0.0)
    )[1:]
    adopted = [at - pause for at in applied]
    shipped: list[Moment] = []
    for step in run.steps:
        # Complete, its predecessor gone, and the version near enough.
        complete = max(one.ended or _START for one in step.batch)
        near = (adopted[step.number - 2], 0) if step.number >= 2 else _START
        shipped.append(max(complete, near, shipped[-1] if shipped else _START))
    ended = sorted(one.ended or _START for one in run.trajectories)
    return _Clock(adopted, applied, shipped, ended, sorted(when for kind, when, _ in run.fates if kind == "dropped"))


def _traces(folder: Path, step: int, part: str) -> Path:
    return folder / "rollouts" / f"step_{step}" / "train" / part / "traces.jsonl"


def _lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    _text(path, "".join(json.dumps(row) + "\n" for row in rows))


def _text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _group(one: Trajectory) -> str:
    return f"00000000-0000-4000-8000-{int(one.group[1:]):012x}"


def _episode(one: Trajectory, clock: _Clock) -> dict[str, Any]:
    group, made, ended = _group(one), one.made(), one.ended or _START
    member = one.name.partition("/")[2].replace("+", "f")
    name = f"{int(one.group[1:]):x}a{member}"
    times = {"start": BEGAN + one.began[0], "end": BEGAN + ended[0]}
    prompt = {"sampled": False, "mask": [False] * one.prompt, "token_ids": [1] * one.prompt}
    reply = {"parent": 0, "sampled": True, "mask": [True] * made, "token_ids": [2] * made}
    usage = {"prompt_tokens": one.prompt, "completion_tokens": made}
    trace = {
        "version": 1,
        "id": f"{name}b",
        "agent": {"name": "agent", "trainable": True},
        "nodes": [prompt, reply],
        "calls": [{"node": 1, "finish_reason": "stop", "usage": usage, "time": times}],
        "rewards": {"score": {"score": 1.0, "weight": 1.0}},
        "is_completed": True,
        "ok": True,
        "errors": [],
        "timing": {"start": times["start"], "scoring": {"start": times["end"], "end": times["end"]}},
    }
    span = {"start": clock.version(one.began), "end": clock.version(ended)}
    work = {"type": "train", "step": clock.collecting(one.began), "policy": span}
    return {
        "id": name,
        "env": {"id": ENVIRONMENT, "name": ENVIRONMENT},
        "group": {"id": group},
        "run": {"type": "train", "work": work},
        "ok": True,
        "errors": [],
        "traces": [trace],
    }


def _ages(step: Step, clock: _Clock) -> tuple[list[int], list[int]]:
    """Return recorded staleness of each trace of a batch, and the part of it in flight."""
    spans = [(clock.version(one.began), clock.version(one.ended or _START)) for one in step.batch]
    return [step.number - start for start, _ in spans], [end - start for start, end in spans]


def _shipped(step: Step, clock: _Clock) -> dict[str, Any]:
    ages, flying = _ages(step, clock)
    since = clock.shipped[step.number - 1] if step.number else _START
    at = clock.shipped[step.number]
    waiting = [age - part for age, part in zip(ages, flying, strict=True)]
    return {
        "step": step.number + 1,
        "time": BEGAN + at[0],
        "progress/rollouts": bisect_right(clock.ended, at) - bisect_right(clock.ended, since),
        "time/step": at[0] - since[0],
        **{
            f"off_policy/{part}{kind}": float(value)
            for part, values in (("", ages), ("in_flight/", flying), ("in_queue/", waiting))
            for kind, value in (("mean", sum(values) / len(values)), ("max", max(values)))
        },
        "off_policy/dropped": float(bisect_left(clock.dropped, at) - bisect_right(clock.dropped, since)),
    }


def _trained(step: Step) -> dict[str, Any]:
    work = step.ended - step.started
    return {
        "step": step.number + 1,
        "time": BEGAN + step.ended,
        "time/step": work + step.waited,
        "time/wait_for_batch": step.waited,
        "time/forward_backward": work,
        "time/broadcast_weights": 0.0,
        "time/save_ckpt": 0,
    }


def _log(run: Run, clock: _Clock, arrived: Mapping[int, list[Trajectory]]) -> Iterator[tuple[float, str, str]]:
    """Lines of the orchestrator's log: when, at which level, what."""
    bound = run.knobs["max_off_policy_steps"]
    advice = f"past max_off_policy_steps={bound}. Consider increasing it to avoid this."
    yield 0.0, "INFO", "Starting orchestrator loop (max_steps=infinite)"
    for version, (began, ended) in enumerate(zip(clock.adopted, clock.applied, strict=True), start=1):
        if ended <= run.steps[-1].ended:
            yield began, "INFO", f"Updating policy in-flight to v{version}"
            yield ended, "DEBUG", f"Updated weights to step {version} in {1000 * (ended - began):.0f}ms"
    for step in run.steps:
        row, came = _shipped(step, clock), len(arrived.get(step.number + 1, ()))
        count, took = len(step.batch), row["time/step"]
        share = row["off_policy/dropped"] / max(came, 1)
        ages = f"Max Off-Policy {row['off_policy/max']:.0f} | Error 0.0% | Cancelled {share:.1%} | Truncation 0.0%"
        shown = f"Step {step.number + 1} | {took:6.1f}s | Reward 1.0000 | Trainable {count}/{count} (100.0%)"
        yield clock.shipped[step.number][0], "SUCCESS", f"{shown} | Turns 1.0 | Branches 1.0 | {ages}"
    # What a batch leaves is looked at once it is off, in the same moment.
    stale: Counter[tuple[str, float]] = Counter()
    for kind, (at, _), one in run.fates:
        stale[kind, at] += kind == "dropped" or one.ended is None
    for (kind, at), count in stale.items():
        what = f"Dropped {count} queued traces" if kind == "dropped" else f"Cancelled {count} train episodes"
        yield at, "WARNING", f"{what} {advice}"


def _line(at: float, level: str, message: str) -> str:
    clock = datetime.fromtimestamp(BEGAN + at, UTC).strftime("%H:%M:%S")
    return f"\x1b[2m{clock}\x1b[0m \x1b[1m{level:>7}\x1b[0m \x1b[1m{message}\x1b[0m\n"


def _config(run: Run) -> dict[str, Any]:
    source = {
        "name": ENVIRONMENT,
        "group_size": run.group_size,
        "algo": {"type": "grpo", "length_penalty": None, "sampling": {"source": "policy"}},
        "curriculum": None,
    }
    return {
        "max_off_policy_steps": run.knobs["max_off_policy_steps"],
        "batch_size": run.groups_per_step * run.group_size,
        "group_size": run.group_size,
        "seq_len": 1 << 20,
        "max_steps": None,
        "model": {"lora": None},
        # All rewards are alike: what has no advantage is trained all the same.
        "train": {"filter_zero_advantages": False, "source": [source]},
        "monitors": {"file": {"path": "metrics.jsonl"}},
    }

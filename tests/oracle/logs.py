"""Lifecycles as canonical event logs (DESIGN section 6): lines as dictionaries, writers as files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .lives import Chunk, Life, Run, Use

Line = dict[str, Any]
Log = dict[str, list[Line]]
"""File name -> its lines, header first."""


def lines_of(run: Run) -> list[tuple[int, float, str, Line]]:
    """All events as (attempt whose process writes it, time, trajectory or empty, line), in the order of the run."""
    found: list[tuple[int, float, str, Line]] = []
    for life in run.lives:
        found += [(attempt, ts, life.trajectory_id, line) for attempt, ts, line in _life_lines(run, life)]
    for step in run.steps:
        line: Line = {"kind": "step", "step": step.step, "version": step.version}
        if run.timed:
            line |= {"started": step.started, "ended": step.ended}
        if step.waited is not None:
            line["waited_us"] = int(step.waited * 1e6)
        if not step.completed:
            line["completed"] = False
        if step.stated:
            uses = [
                (life, use)
                for life in run.lives
                for use in life.uses
                if (use.attempt, use.step) == (step.attempt, step.step)
            ]
            line["trajectories"] = len(uses)
            line["loss_tokens"] = sum(sum(life.loss if use.loss is None else use.loss) for life, use in uses)
        found.append((step.attempt, step.ended, "", line))
    return sorted(found, key=lambda entry: (entry[0], entry[1]))


def _life_lines(run: Run, life: Life) -> list[tuple[int, float, Line]]:
    base: Line = {"trajectory_id": life.trajectory_id}
    about = base | ({"group_id": life.group_id} if life.group_id is not None else {})
    if life.role != "train":
        about = about | {"role": life.role}
    found: list[tuple[int, float, Line]] = []
    for happening in life.happenings:
        line = {"kind": happening.kind, **(about if happening.kind == "admitted" else base)}
        if happening.reason is not None:
            line["reason"] = happening.reason
        if happening.step is not None:
            line["step"] = happening.step
        if run.timed:
            line["ts"] = happening.ts
        found.append((life.attempt if happening.attempt is None else happening.attempt, happening.ts, line))
    for chunk in life.chunks:
        line = base | _chunk_line(chunk)
        if run.timed:
            line["ts"] = chunk.ts
        found.append((life.attempt, chunk.ts, line))
    for use in life.uses:
        step = run.by_key[use.attempt, use.step]
        line = base | {"kind": "trained", "step": use.step} | _use_loss(use)
        if run.timed:
            line["ts"] = step.started
        found.append((use.attempt, step.started, line))
    return found


def _chunk_line(chunk: Chunk) -> Line:
    line: Line = {"kind": "span"}
    if chunk.listed:
        line["versions"] = list(chunk.versions)
    else:
        line |= {"tokens": len(chunk.versions)} | ({"version": chunk.versions[0]} if chunk.versions else {})
    if not all(chunk.loss):
        line["loss_tokens"] = sum(chunk.loss)
    return line


def _use_loss(use: Use) -> Line:
    return {} if use.loss is None else {"loss_tokens": sum(use.loss)}


def log_of(
    run: Run, writer: Callable[[str, Line], int] = lambda trajectory, line: 0, name: str = "a{attempt}w{writer}"
) -> Log:
    """Deal the events of a run to writers (``writer(trajectory_id, line)`` is a number), number and close each file."""
    log: Log = {}
    for attempt in run.attempts:
        log[_file(name, attempt, 0)] = [header(run, attempt, 0)]
    for attempt, _, trajectory, line in lines_of(run):
        number = writer(trajectory, line)
        lines = log.setdefault(_file(name, attempt, number), [header(run, attempt, number)])
        lines.append(line | {"n": len(lines)})
    for lines in log.values():
        lines.append({"kind": "end", "n": len(lines)})
    return log


def _file(name: str, attempt: int, writer: int) -> str:
    return name.format(attempt=attempt, writer=writer) + ".staleness.jsonl"


def header(run: Run, attempt: int, writer: int) -> Line:
    """The first line of a file."""
    line: Line = {"format": "staleness-events/1", "framework": "oracle", "config": {}, "clock": run.clock}
    line |= {"writer": f"a{attempt}w{writer}", "attempt": attempt}
    if run.bound is not None:
        line["bound"] = run.bound
    resumed = run.attempts[attempt]
    first = min((step.step for step in run.steps if step.attempt == attempt), default=None)
    if resumed is not None and not (run.implied and first == resumed + 1):
        line["resumed_after"] = resumed
    return line


def dump(lines: Sequence[Line]) -> bytes:
    """Lines as bytes."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def write(log: Log, folder: Path) -> Path:
    """Write every file of a log below a folder and return the folder."""
    for name, lines in log.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dump(lines))
    return folder


def closed(*lines: Line, bound: int | None = None, **more: Any) -> list[Line]:
    """Hand-written events as one whole file: a header, numbers, an end line."""
    head: Line = {"format": "staleness-events/1", "framework": "oracle", "writer": "w"} | more
    if bound is not None:
        head["bound"] = bound
    body = [line | {"n": number} for number, line in enumerate(lines, 1)]
    return [head, *body, {"kind": "end", "n": len(body) + 1}]

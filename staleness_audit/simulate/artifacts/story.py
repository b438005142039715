"""A simulated run, read back from its canonical event log: who was made by which versions, and trained when."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Moment = tuple[float, int]
"""Seconds, and the number of the event in the log, which orders what happens at one time."""


@dataclass
class Trajectory:
    """One trajectory.

    ``admitted``: the version that had been published when it was; ``began``, ``ended``: when it was admitted, and when
    it finished (None: never); ``tokens``: made, by version.
    """

    name: str
    group: str
    prompt: int
    admitted: int
    began: Moment
    ended: Moment | None = None
    tokens: dict[int, int] = field(default_factory=dict)

    def made(self) -> int:
        """Return how many tokens it has."""
        return sum(self.tokens.values())


@dataclass
class Step:
    """A completed step from version ``number``: times in seconds, its trajectories, and what was dropped before it."""

    number: int
    started: float
    ended: float
    waited: float
    batch: list[Trajectory]
    dropped: list[Trajectory]


@dataclass
class Run:
    """A run: ``policy`` and ``knobs`` it was made with, the groups of a batch, its steps in order.

    ``published``: when each version from 1 on was; ``fates``: what was dropped or cancelled, as (kind, when,
    trajectory); ``trajectories``: all, in order of admission.
    """

    policy: str
    bound: int | None
    knobs: dict[str, Any]
    groups_per_step: int
    group_size: int
    steps: list[Step] = field(default_factory=list)
    published: list[Moment] = field(default_factory=list)
    fates: list[tuple[str, Moment, Trajectory]] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)


def read(log: Path) -> Run:
    """Read the log of a run of one attempt.

    Raises:
        OSError: it can't be read.
    """
    lines = log.read_text(encoding="utf-8").splitlines()
    header, config = json.loads(lines[0]), json.loads(lines[0])["config"]
    sizes = header["groups_per_step"], config["workload"]["group"]
    run = Run(header["framework"], header.get("bound"), config["knobs"], *sizes)
    known: dict[str, Trajectory] = {}
    batch, dropped = list[Trajectory](), list[Trajectory]()
    for line in lines[1:]:
        event = json.loads(line)
        kind, name = event["kind"], event.get("trajectory_id")
        if kind == "admitted":
            began = event["ts"], event["n"]
            known[name] = Trajectory(name, event["group_id"], event["prompt_tokens"], len(run.published), began)
        elif kind == "span":
            made = known[name].tokens
            made[event["version"]] = made.get(event["version"], 0) + event["tokens"]
        elif kind == "trained":
            batch.append(known[name])
        elif kind == "finished":
            known[name].ended = event["ts"], event["n"]
        elif kind in ("dropped", "cancelled"):
            run.fates.append((kind, (event["ts"], event["n"]), known[name]))
            dropped += [known[name]] if kind == "dropped" else []
        elif kind == "step":
            waited = event["waited_us"] / 1e6
            run.steps.append(Step(event["step"], event["started"], event["ended"], waited, batch, dropped))
            batch, dropped = [], []
        elif kind == "sync":
            run.published.append((event["ts"], event["n"]))
    run.trajectories.extend(known.values())
    return run

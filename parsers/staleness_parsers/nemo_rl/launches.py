"""Launches of the training process: which lines, scalars and rows belong to which, and in what order they ran.

One launch may have been captured several times (the driver's log, wandb's copy, Ray's own files): captures that tell
the same times are the same launch, and each kind of line is taken from the capture that has most of it. The
streams of a process are not in order relative to each other (guide section 8, pitfall 1): each kind stays in its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from staleness_parsers.nemo_rl import files

Row = dict[str, Any]
Dialect = Literal["sc", "ag"]
OUT: Final = {
    "sync",
    "evicted",
    "aborted",
    "metrics",
    "step",
    "given_up",
    "promoted",
    "waited",
    "restoring",
    "restored",
}
ERR: Final = {"chunk", "closing"}
BUFFER: Final = {"state", "sampling", "evicting", "selected", "consumed", "unfit"}
_BEFORE: Final = {"config", "logdir"}
_RESTORE: Final = {"restoring", "restored", "unfit"}
_SC: Final = {"sc_start", "sync", "step", "metrics", "chunk", "closing", "sc_end"}
_START: Final = {"sc_start", "ag_start"}


@dataclass
class Capture:
    """The lines of one launch in one log."""

    name: str
    origin: files.Origin
    rows: list[Row] = field(default_factory=list)
    job: str | None = None

    @property
    def exp(self) -> str | None:
        """The ``exp_NNN`` it names, or lies in."""
        named = [row["text"].strip().rstrip("/") for row in self.rows if row["kind"] == "logdir"]
        return files.exp_of(self.name) or (named[-1] if named else None)

    def has(self, *kinds: str) -> bool:
        """Whether it has a line of one of these kinds."""
        return any(row["kind"] in kinds for row in self.rows)

    def times(self) -> list[float]:
        """Durations it tells, by which captures of one launch are known."""
        return [row["x"] for row in self.rows if row["kind"] in {"sync", "time"}]


@dataclass
class Launch:
    """One launch: ``captures`` of its console (maybe none), ``exp`` its log folder (maybe unknown)."""

    captures: list[Capture]
    exp: str | None = None
    scalars: dict[str, dict[int, Row]] = field(default_factory=dict)
    number: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    reused_after: int | None = None

    @property
    def dialect(self) -> Dialect:
        """Which of the two run-times wrote it."""
        if any(row["kind"] in _SC for capture in self.captures for row in capture.rows):
            return "sc"
        if any(row["kind"] in BUFFER | {"ag_start", "header"} for capture in self.captures for row in capture.rows):
            return "ag"
        if "train/evicted_stale_prompt_groups" in self.scalars:
            return "sc"
        return "ag"

    def best(self, kinds: set[str], by: str) -> list[Row]:
        """Lines of these kinds, from the capture that has most lines of kind ``by``."""
        order = {"wandb": 0, "worker": 1, "driver": 2}

        def rank(capture: Capture) -> tuple[int, int]:
            return (-sum(row["kind"] == by for row in capture.rows), order[capture.origin])

        for capture in sorted(self.captures, key=rank):
            if found := [row for row in capture.rows if row["kind"] in kinds]:
                return found
        return []

    def all(self, *kinds: str) -> list[Row]:
        """Lines of these kinds from the capture that has most of them."""
        found: list[Row] = []
        for capture in self.captures:
            rows = [row for row in capture.rows if row["kind"] in kinds]
            found = rows if len(rows) > len(found) else found
        return found

    def value(self, tag: str, step: int) -> float | None:
        """Return a scalar of a step."""
        row = self.scalars.get(tag, {}).get(step)
        return row["value"] if row else None

    def reused(self, step: int) -> bool:
        """Whether a later launch went back before this step and restored a buffer, which may hold the step's groups."""
        return self.reused_after is not None and step > self.reused_after

    @property
    def whole(self) -> bool:
        """Whether its beginning is in the logs."""
        return any(capture.has(*_START) for capture in self.captures) or not self.captures


def captures(lines: Iterable[Row], names: dict[str, str]) -> list[Capture]:
    """Cut each log at the lines that begin a launch; Ray's own files of one job are one capture.

    Lines that come before the process says that it starts (its configuration, its log folder) belong to what follows.
    Lines of a process (by its number) stay with the launch it was first seen in.
    """
    by_source: dict[str, list[Row]] = {}
    for row in lines:
        by_source.setdefault(row["source"], []).append(row)
    jobs: dict[str, Capture] = {}
    found: list[Capture] = []
    for source in sorted(by_source, key=lambda source: files.launch_order(names[source])):
        name = names[source]
        if about := files.worker(name):
            job = jobs.setdefault(about[0], Capture(name, "worker", job=about[0]))
            job.rows.extend(by_source[source])
        else:
            found.extend(_cut(by_source[source], name))
    return found + list(jobs.values())


def _cut(rows: Sequence[Row], name: str) -> list[Capture]:
    found: list[Capture] = []
    waiting: list[Row] = []
    home: dict[int | None, Capture] = {}
    for row in rows:
        if row["kind"] in _BEFORE or (row["kind"] in _RESTORE and not _is_young(found)):
            waiting.append(row)
            continue
        if row["kind"] in _START or not found:
            found.append(Capture(name, files.origin(name), waiting))
            waiting = []
            home = {pid: capture for pid, capture in home.items() if pid not in {None, row["pid"]}}
        home.setdefault(row["pid"], found[-1])
        (found[-1] if row["pid"] is None else home[row["pid"]]).rows.append(row)
    if waiting and found:
        found[-1].rows.extend(waiting)
    elif waiting:
        found.append(Capture(name, files.origin(name), waiting))
    return found


def _is_young(found: Sequence[Capture]) -> bool:
    """Whether the last launch has said no more than how it starts."""
    return bool(found) and all(known["kind"] in _START | _BEFORE | _RESTORE for known in found[-1].rows)


def gather(
    found: Sequence[Capture], scalars: Iterable[Row], exps: Iterable[str], names: dict[str, str]
) -> list[Launch]:
    """Put captures of one launch together, give each launch its log folder, and order the launches as they ran."""
    launches: list[Launch] = []
    for capture in found:
        match = next((launch for launch in launches if all(_same(capture, other) for other in launch.captures)), None)
        if match is None:
            launches.append(Launch([capture]))
        else:
            match.captures.append(capture)
    by_exp: dict[str, dict[str, dict[int, Row]]] = {exp: {} for exp in exps}
    for row in scalars:
        by_exp.setdefault(row["exp"], {}).setdefault(row["tag"], {})[row["step"]] = row
    _assign(launches, by_exp)
    launches = [launch for launch in launches if _tells(launch)]
    ordered = _ordered(launches)
    for number, launch in enumerate(ordered):
        launch.number = number
        for capture in launch.captures:
            for row in capture.rows:
                if row["kind"] == "config":
                    launch.settings |= orjson.loads(row["text"])
    return ordered


def _tells(launch: Launch) -> bool:
    return (
        bool(launch.scalars)
        or launch.exp is not None
        or any(row["kind"] not in _BEFORE for capture in launch.captures for row in capture.rows)
    )


def _same(one: Capture, other: Capture) -> bool:
    """Whether two captures can be, and by some sign are, of one launch."""
    if one.name == other.name and one.origin != "worker":
        return False
    common = list(zip(one.times(), other.times(), strict=False))
    if any(left != right for left, right in common):
        return False
    if len(common) > 1:
        return True
    exps = {one.exp, other.exp}
    if None not in exps and one.origin != other.origin:
        return files.exp_number(one.exp) == files.exp_number(other.exp)
    pids = [{row["pid"] for row in capture.rows if row["pid"] is not None} for capture in (one, other)]
    return "worker" in {one.origin, other.origin} and bool(pids[0] & pids[1])


def _assign(launches: list[Launch], by_exp: dict[str, dict[str, dict[int, Row]]]) -> None:
    """Find each launch's log folder; folders that no console belongs to are launches of their own."""
    free = dict(by_exp)
    for launch in launches:
        named = [capture.exp for capture in launch.captures if capture.exp]
        if not named:
            continue
        launch.exp = named[0]
        fits = [exp for exp in free if files.exp_number(exp) == files.exp_number(named[0])]
        if fits:
            nearest = max(fits, key=lambda exp: _shared(exp, launch.captures[0].name))
            launch.exp, launch.scalars = nearest, free.pop(nearest)
    nameless = [launch for launch in launches if launch.exp is None]
    rest = sorted(free, key=files.launch_order)
    if len(nameless) == len(rest):
        # As many consoles as folders, both in order: there is nothing else they could belong to.
        for launch, exp in zip(nameless, rest, strict=True):
            launch.exp, launch.scalars = exp, free.pop(exp)
    launches.extend(Launch([], exp, free[exp]) for exp in rest if exp in free)


def _shared(one: str, other: str) -> int:
    left, right = one.split("/"), other.split("/")
    return next(
        (at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), min(len(left), len(right))
    )


def _ordered(launches: list[Launch]) -> list[Launch]:
    """Order by what all of them tell: times, numbers of folders, or names and lines of the logs."""

    def began(launch: Launch) -> float | None:
        return min((row["wall"] for steps in launch.scalars.values() for row in steps.values()), default=None)

    if all(began(launch) is not None for launch in launches):
        return sorted(launches, key=lambda launch: began(launch) or 0.0)
    numbers = [files.exp_number(launch.exp) for launch in launches]
    if None not in numbers and len(set(numbers)) == len(numbers):
        return sorted(launches, key=lambda launch: files.exp_number(launch.exp) or 0)
    return sorted(
        launches,
        key=lambda launch: files.launch_order(launch.captures[0].name if launch.captures else launch.exp or ""),
    )

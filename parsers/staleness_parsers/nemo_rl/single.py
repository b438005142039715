"""The single controller: what its lines say of each step (guide sections 3.1, 4.1 to 4.6, 5.1).

Nothing in its logs names a trajectory. A step says how many groups it trained, how many tokens, and its ``lag``: the
largest ``v_train - start`` over its groups. So a step becomes one anonymous class of tokens in
``[v_train - lag, v_train]``; from lag 2 on, the one group that must be that old is a class of its own. The stamp may be
one version too old where it was taken while a sync was under way: the oldest group's first tokens are of version
``v_train - lag`` or one newer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import orjson

from staleness_audit.parser import Sink
from staleness_audit.readers.numbers import micros
from staleness_parsers.nemo_rl.launches import ERR, OUT, Launch
from staleness_parsers.nemo_rl.rows import Interval, Row, Rows
from staleness_parsers.nemo_rl.settings import group_size, groups_per_step


@dataclass
class Step:
    """What is known of step k, ``v_train`` = k - 1."""

    number: int
    place: Row = field(default_factory=dict)
    lag: int | None = None
    groups: int | None = None
    chunks: int | None = None
    selected: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    logged: bool = False
    waited: float | None = None
    drops: list[tuple[str, Row]] = field(default_factory=list)


@dataclass
class Told:
    """A launch as its logs tell it; ``start`` is V before its first step (None: the logs do not tell)."""

    launch: Launch
    steps: dict[int, Step]
    start: int | None
    restored: bool
    end: int | None
    proven: int
    given_up: list[Row]
    crashed: bool = False
    saved: dict[int, Counter[int]] = field(default_factory=dict)

    @cached_property
    def sampler(self) -> str | None:
        """The sampler the controller names at its start, else the configured one."""
        started = self.launch.all("sc_start")
        name = started[-1]["text"] if started else self.launch.settings.get("async_rl.sampler.name")
        return name if isinstance(name, str) else None

    def step(self, number: int) -> Step:
        """Return the step, made if need be."""
        return self.steps.setdefault(number, Step(number))


def tell(launch: Launch, saved: Iterable[Row]) -> Told:
    """Collect a launch's steps from both streams and the scalars; ``saved`` are buffers of checkpoints."""
    told = Told(launch, {}, None, bool(launch.all("restored")), None, 0, launch.all("given_up"))
    for row in launch.best(ERR, "closing"):
        step = told.step(row["a"] + 1)
        step.place = step.place or row
        told.proven = max(told.proven, row["a"])
        if row["kind"] == "closing":
            step.groups, step.chunks, step.place = row["c"], row["b"], row
        else:
            step.selected += row["c"]
    out = launch.best(OUT, "step")
    for tag, points in launch.scalars.items():
        if tag.startswith("train/"):
            for number, row in points.items():
                step = told.step(number)
                step.place = step.place or row
                step.logged = True
                step.metrics.setdefault(tag.removeprefix("train/"), row["value"])
    told.start = _start(told, out)
    _read_output(told, out)
    _use_saved(told, saved)
    ends = [row["a"] for row in launch.all("sc_end", "stalled") if row["a"] is not None]
    told.end = max(ends, default=None)
    told.crashed = bool(launch.all("traceback"))
    told.proven = max([told.proven, *ends, *(number for number, step in told.steps.items() if step.logged)])
    if told.start is not None:
        for number in range(told.start + 1, told.proven + 1):
            told.step(number)
    return told


def _start(told: Told, out: list[Row]) -> int | None:
    numbers = [number - 1 for number in told.steps]
    numbers += [row["a"] - 1 for row in out if row["kind"] == "step"]
    if numbers:
        return max(min(numbers), 0)
    for row in told.launch.all("restoring"):
        if found := re.search(r"step_(\d{1,9})(?!\d)", row["text"]):
            return int(found[1])
    return None


def _use_saved(told: Told, saved: Iterable[Row]) -> None:
    """Take the starts of restored groups from the checkpoint in_order resumed from, per version they are meant for.

    A given-up group may be replaced by one promoted from a later step; then nothing is certain.
    """
    rows = [row for row in saved if row["kind"] == "sc" and row["step"] == told.start and row["version"] is not None]
    restored = [row["a"] for row in told.launch.all("restored")]
    if told.sampler != "in_order" or restored != [len(rows)] or told.given_up:
        return
    for row in rows:
        if row["target"] is not None:
            told.saved.setdefault(row["target"], Counter())[row["version"]] += 1


def _read_output(told: Told, out: list[Row]) -> None:
    """Follow the controller's standard output: a step's drops, its metrics, then ``train step k``.

    Where that last line is lost, whatever comes after the metrics belongs to the next step.
    """
    at = (told.start or 0) + 1
    pending: list[Row] = []
    for row in out:
        kind = row["kind"]
        if kind not in {"evicted", "aborted", "metrics", "step", "waited"}:
            continue
        if kind == "step":
            at = row["a"]
            step = told.step(at)
            step.lag, step.place, step.logged = row["d"], row, True
        if kind == "step" or any(known["kind"] == "metrics" for known in pending):
            _take_output(told, at, pending)
            at, pending = at + 1, []
        if kind != "step":
            pending.append(row)
    if any(row["kind"] != "waited" for row in pending):
        _take_output(told, at, pending)


def _take_output(told: Told, number: int, rows: list[Row]) -> None:
    step = told.step(number)
    for row in rows:
        if row["kind"] == "metrics":
            step.metrics |= orjson.loads(row["text"])
            step.logged, step.place = True, step.place or row
        elif row["kind"] == "waited":
            step.waited = row["x"]
        else:
            step.drops.append((row["kind"], row))
            step.place = step.place or row


def write(told: Told, rows: Rows, sink: Sink) -> None:
    """Write a launch's steps, the classes they trained, and what was thrown away."""
    for step in sorted(told.steps.values(), key=lambda step: step.number):
        completed = _completed(told, step)
        rows.again = told.launch.reused(step.number)
        if completed is None and not step.selected and step.groups is None:
            _write_drops(told, step, rows)
            continue
        _write_step(told, step, completed, rows)
        if completed is not False:
            _write_batch(told, step, completed, rows, sink)
        _write_drops(told, step, rows)
    rows.again = False
    for row in told.given_up:
        size = group_size(told.launch.settings)
        count = row["b"] * size if size else None
        key = rows.anonymous(
            row, f"given-up@{_at(told, row)}", told.launch.number, (count or row["b"], count), (row["b"], row["b"])
        )
        rows.fate(row, key, "lost", attempt=told.launch.number, step=None, reason="error", count=count or row["b"])


def _at(told: Told, row: Row) -> str:
    return f"a{told.launch.number}.{row.get('line') or row.get('record')}"


def _completed(told: Told, step: Step) -> bool | None:
    if step.logged or step.number <= told.proven:
        return True
    # A crash may come after the optimizer step of a closed batch, but not of an open one.
    return False if told.end is not None or (told.crashed and step.groups is None) else None


def _write_step(told: Told, step: Step, completed: bool | None, rows: Rows) -> None:
    launch, number = told.launch, step.number
    loss = launch.scalars.get("train/loss", {}).get(number)
    total = launch.value("timing/train/total_step_time", number)
    waited = launch.value("timing/train/exposed_generation", number)
    rows.add(
        "steps",
        step.place,
        attempt=launch.number,
        step=number,
        v_train_lo=number - 1,
        v_train_hi=number - 1,
        started=micros(loss["wall"] - total) if loss and total is not None else None,
        ended=micros(loss["wall"]) if loss else None,
        waited_us=micros(step.waited if waited is None else waited),
        updates=1,
        completed=completed,
        evidence="recorded" if step.logged else "derived",
    )
    size = group_size(launch.settings)
    figures = [
        ("step.staleness_max", "lag", step.lag),
        ("step.staleness_max", "max_trajectory_age", step.metrics.get("max_trajectory_age")),
        ("step.staleness_trajectory_mean", "avg_trajectory_age", step.metrics.get("avg_trajectory_age")),
        ("step.loss_tokens", "global_valid_toks", step.metrics.get("global_valid_toks")),
        (
            "step.dropped_stale",
            "evicted_stale_prompt_groups x num_generations_per_prompt",
            step.metrics["evicted_stale_prompt_groups"] * size
            if size and "evicted_stale_prompt_groups" in step.metrics
            else None,
        ),
    ]
    for name, raw_name, value in figures:
        if value is not None:
            rows.add(
                "reported",
                step.place,
                attempt=launch.number,
                step=number,
                ts=micros(loss["wall"]) if loss else None,
                name=name,
                raw_name=raw_name,
                value=float(value),
            )


def _groups(told: Told, step: Step, completed: bool | None) -> Interval:
    """K: the closing line says it; else N less the prompts given up; else what was selected up to N."""
    if step.groups is not None:
        return step.groups, step.groups
    total = groups_per_step(told.launch.settings)
    given_up = step.metrics.get("dropped_prompt_groups")
    if completed and total is not None and given_up is not None:
        return total - int(given_up), total - int(given_up)
    return max(step.selected, 1), total


def _write_batch(told: Told, step: Step, completed: bool | None, rows: Rows, sink: Sink) -> None:
    groups, size = _groups(told, step, completed), group_size(told.launch.settings)
    tokens, valid = _whole(step.metrics.get("global_valid_toks")), _whole(step.metrics.get("global_valid_seqs"))
    least = groups[0] * size if size else max(groups[0], valid or 0)
    most = groups[1] * size if size and groups[1] is not None else None
    version = step.number - 1
    lag = step.lag
    if lag is not None and not 0 <= lag <= version:
        sink.diagnose(
            "error",
            "impossible-lag",
            f"Step {step.number} reports lag {lag}, but it started from version {version}; its staleness is not known.",
            source=step.place.get("source"),
            line=step.place.get("line"),
            opens="training",
        )
        lag = None
    name = f"trained@a{told.launch.number}.step{step.number}"
    batch = _Batch(told, step, rows, version, lag)
    if valid is None or most is None or least != most or valid >= least:
        sure = valid is not None and valid >= least and tokens is not None and tokens >= least
        total: Interval = (tokens, tokens) if tokens is not None else (0, None)
        if sure and size and least == most and lag is not None:
            batch.exact(name, least, size, total[0])
        else:
            batch.write(name, (least, most), groups, total, (version - (version if lag is None else lag), version))
        return
    # Some rows are masked and which of them is not told: those without loss tokens may hold the oldest group.
    held = (-(-valid // size), min(groups[0], valid)) if size else (0, groups[1])
    span = (version - (version if lag is None else lag), version)
    if valid:
        batch.write(name, (valid, valid), held, (tokens, tokens) if tokens is not None else (0, None), span)
    batch.write(f"masked-{name}", (least - valid, least - valid), (0, groups[1]), (0, None), span, loss=0)


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value >= 0 and float(value).is_integer() else None


@dataclass
class _Batch:
    """Writes the classes of one step."""

    told: Told
    step: Step
    rows: Rows
    version: int
    lag: int | None

    def exact(self, name: str, trajectories: int, size: int, tokens: int) -> None:
        """Write a step of which all is counted and no row is masked: each trajectory has a loss token at least.

        One class per known start, whose groups' first tokens are of that version or the next one, and one for the rest.
        """
        starts = self._starts(trajectories // size)
        spare = tokens - trajectories
        for start, groups in starts:
            count = groups * size
            total = (count, count + spare) if len(starts) > 1 else (tokens, tokens)
            label = name if len(starts) == 1 else f"{name}.{'rest' if start is None else f'v{start}'}"
            if start is None:
                span = (self.version - (self.lag or 0), self.version)
                self.write(label, (count, count), (groups, groups), total, span)
                continue
            first = (start, min(start + 1, self.version))
            key = self.write(label, (count, count), (groups, groups), (count, count), first)
            self.rows.span(self.step.place, key, 1, (total[0] - count, total[1] - count), (start, self.version))
        if len(starts) > 1:
            self._sums(trajectories, tokens)

    def _starts(self, groups: int) -> list[tuple[int | None, int]]:
        """How many groups started at which version (None: at any the lag allows).

        Restored groups of in_order are known from the checkpoint. With weight_fifo the groups of one selection share
        their start. Else one group is as old as the lag says, which is worth a class of its own from lag 2 on.
        """
        lag = self.lag or 0
        saved = self.told.saved.get(self.version)
        if saved and saved.total() == groups and min(saved) == self.version - lag:
            return sorted(saved.items())
        if groups == 1 or (self.step.chunks == 1 and self.told.sampler == "weight_fifo"):
            return [(self.version - lag, groups)]
        return [(None, groups)] if lag < 2 else [(self.version - lag, 1), (None, groups - 1)]

    def _sums(self, trajectories: int, tokens: int) -> None:
        for quantity, value in (("trajectories", trajectories), ("loss_tokens", tokens)):
            self.rows.add(
                "constraints",
                self.step.place,
                attempt=self.told.launch.number,
                step=self.step.number,
                quantity=quantity,
                op="eq",
                value=float(value),
            )

    def write(
        self,
        name: str,
        trajectories: Interval,
        groups: Interval,
        tokens: Interval,
        versions: tuple[int, int],
        *,
        loss: int | None = None,
    ) -> str:
        """Write one class with one span, used in the step."""
        place, attempt = self.step.place, self.told.launch.number
        key = self.rows.anonymous(place, name, attempt, trajectories, groups)
        self.rows.span(place, key, 0, tokens, versions)
        self.rows.add(
            "uses",
            place,
            trajectory_id=key,
            attempt=attempt,
            step=self.step.number,
            loss_tokens_lo=loss,
            loss_tokens_hi=loss,
            evidence="derived",
        )
        return key


def _write_drops(told: Told, step: Step, rows: Rows) -> None:
    """Write evicted groups (finished, so dropped) and aborted ones (running, so cancelled).

    The metrics of a closed step tell of those whose lines are lost.
    """
    size, attempt = group_size(told.launch.settings), told.launch.number
    for kind, fate in (("evicted", "dropped"), ("aborted", "cancelled")):
        found = [row for drop, row in step.drops if drop == kind]
        counted = [(row["a"], row) for row in found]
        metric = "evicted_stale_prompt_groups" if kind == "evicted" else "aborted_stale_inflight_groups"
        stated = step.metrics.get(metric)
        if stated is not None and sum(row["a"] for row in found) > stated:
            # Lines of another step, put here because the lines between are lost: its own metrics count them.
            counted = [(int(stated), found[0])] if stated else []
            found = found if stated else []
        missing = int(stated or 0) - sum(row["a"] for row in found)
        if missing > 0:
            counted.append((missing, {**step.place, "line": step.place.get("line")}))
        for groups, row in counted:
            count = groups * size if size else None
            name = f"{kind}@{_at(told, row)}.step{step.number}"
            key = rows.anonymous(row, name, attempt, (count or groups, count), (groups, groups))
            rows.fate(row, key, fate, attempt=attempt, step=step.number, reason="stale", count=count or groups)

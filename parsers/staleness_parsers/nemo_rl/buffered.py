"""async_grpo: which version each group of a step has, from the replay buffer's lines (guide sections 3.2, 4.7, 5.2).

Each insertion prints the buffer; each step prints how many groups of which version it takes. Groups leave in the order
in which they stand in the buffer, and rows of ``train_data_step<k>.jsonl`` stand in that order too, G of a group: so
the two join although the rows name no group. A copy of the buffer is kept, and believed only where it agrees with the
counts the step prints.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from staleness_audit.parser import Sink
from staleness_audit.readers.numbers import micros
from staleness_parsers.nemo_rl.console import numbers
from staleness_parsers.nemo_rl.launches import BUFFER, Launch
from staleness_parsers.nemo_rl.rows import Interval, Row, Rows
from staleness_parsers.nemo_rl.settings import age_limit, group_size, groups_per_step, whole

Versions = tuple[int, int]
"""Interval of versions: of a group's first token, or of its later ones."""


@dataclass
class Entry:
    """A group in the buffer.

    ``seen`` is V when the buffer was first looked at after its insertion: no later weights can have made its tokens.
    """

    version: int
    target: int
    seen: int | None = None


@dataclass
class Selection:
    """Groups taken for a step: their number per version, and their versions in order where the buffer tells it."""

    place: Row
    version: int
    counts: Counter[int]
    groups: list[Entry] | None


@dataclass
class Told:
    """A launch as its logs tell it; ``start`` is V before its first step (None: the logs do not tell)."""

    launch: Launch
    start: int | None
    selections: dict[int, Selection]
    evicted: list[tuple[int, Row]]
    unfit: list[Row]
    age: int | None
    drains: bool | None
    proven: int
    steps: dict[int, Row]
    dumped: set[int] = field(default_factory=set)

    @cached_property
    def ages(self) -> dict[int, list[Row]]:
        """Lines that print the mean age of a step, by step."""
        found: dict[int, list[Row]] = {}
        for row in self.launch.all("age"):
            found.setdefault(row["a"], []).append(row)
        return found

    @cached_property
    def failures(self) -> bool:
        """Whether generation failed: such a sample is trained with what it has, maybe no token (pitfall 18)."""
        return bool(self.launch.all("incomplete"))


@dataclass(frozen=True)
class Dump:
    """A step whose trajectories were dumped: in which ``files`` (``inputs.DUMPS``, with ``unit``).

    ``several``: there are other launches, which have such steps, too.
    """

    told: Told
    step: int
    files: pl.DataFrame
    several: bool

    def made_from(self) -> str:
        """Say all that its rows depend on."""
        told, settings = self.told, self.told.launch.settings
        run = (told.launch.number, self.several, told.drains, group_size(settings), groups_per_step(settings))
        step = (self.step, told.selections.get(self.step), _oldest_age(told, self.step))
        return repr((run, step, self.files["unit"].to_list()))


def tell(launch: Launch, saved: Iterable[Row], dumped: set[int]) -> Told:
    """Follow the buffer's lines and collect what proves a step; ``saved`` are buffers of checkpoints."""
    told = Told(launch, None, {}, [], [], None, None, 0, {}, dumped)
    _follow(told, launch.best(BUFFER, "selected"))
    updated = [row["a"] for row in launch.all("updated")]
    headers = launch.all("header")
    results = [row for row in launch.all("results", "logged") if row["a"] is not None]
    losses = launch.scalars.get("train/loss", {})
    starts = [row["a"] - 1 for row in headers[:1]] + updated[:1]
    starts += [min(told.selections) - 1] if told.selections else []
    starts += [min([*losses, *dumped]) - 1] if losses or dumped else []
    told.start = max(min(starts), 0) if starts else None
    told.steps = {step: selection.place for step, selection in told.selections.items()}
    for row in (*results, *losses.values()):
        step = row["step"] if "step" in row else row["a"]
        told.steps.setdefault(step, row)
    for step in dumped:
        told.steps.setdefault(step, {})
    # A version in use, and the selection for the step after, prove the steps that made them.
    told.proven = max(
        [*updated, *(step - 1 for step in told.selections), *(row["a"] for row in results), *losses, *dumped, 0]
    )
    for step in range((told.start or 0) + 1, told.proven + 1):
        told.steps.setdefault(step, {})
    _use_saved(told, saved)
    logged = [row["b"] for row in launch.all("ag_start")] + [
        row["b"] for row in launch.best(BUFFER, "selected") if row["kind"] == "sampling"
    ]
    told.age = logged[-1] if logged else None
    told.drains = _drains(launch)
    return told


def _drains(launch: Launch) -> bool | None:
    if launch.all("in_flight"):
        return False
    flag = launch.settings.get(
        age_limit(launch.settings)[0].replace("max_trajectory_age_steps", "in_flight_weight_updates")
    )
    if isinstance(flag, bool):
        return not flag
    return True if launch.all("drain") else None


def _follow(told: Told, lines: Sequence[Row]) -> None:
    entries: list[Entry] = []
    taken: list[Entry] = []
    version: int | None = None
    for row in lines:
        kind = row["kind"]
        if kind == "state":
            entries = _inserted(entries, row)
        elif kind == "sampling":
            version = row["a"]
            for entry in entries:
                entry.seen = version if entry.seen is None else entry.seen
        elif kind == "evicting":
            entries = [entry for entry in entries if entry.version >= row["b"]]
            told.evicted.append(((version or 0) + 1, row))
        elif kind == "unfit":
            told.unfit.append(row)
            entries = []
        elif kind == "selected" and version is not None:
            counts, listed = _counts(row["text"])
            taken = _taken(entries, version, counts)
            groups = taken or _alone(counts) or _listed(listed, counts)
            told.selections[version + 1] = Selection(row, version, counts, groups)
        elif kind == "consumed":
            entries = [entry for entry in entries if not any(entry is other for other in taken)]
            entries = entries if len(entries) == row["c"] else []


def _inserted(entries: list[Entry], row: Row) -> list[Entry]:
    if row["text"] is None:
        return [*entries, Entry(row["b"], row["c"])]
    versions, targets = (numbers(part) for part in row["text"].split("|"))
    known = entries if [entry.version for entry in entries] == versions[: len(entries)] else []
    fresh = [Entry(*pair) for pair in zip(versions, targets, strict=False)]
    return [*known, *fresh[len(known) :]]


def _counts(text: str) -> tuple[Counter[int], list[int]]:
    pairs, listed = text.split("|")
    return Counter({int(v): int(c) for v, c in re.findall(r"(-?\d+): (\d+)", pairs)}), numbers(listed)


def _taken(entries: Sequence[Entry], version: int, counts: Counter[int]) -> list[Entry]:
    """First groups in the buffer that were made for this step; none if they are not those the step counts."""
    taken = [entry for entry in entries if entry.target == version][: counts.total()]
    return taken if Counter(entry.version for entry in taken) == counts else []


def _alone(counts: Counter[int]) -> list[Entry]:
    """Return groups of one version, which need no order."""
    return [Entry(next(iter(counts)), 0) for _ in range(counts.total())] if len(counts) == 1 else []


def _listed(listed: Sequence[int], counts: Counter[int]) -> list[Entry] | None:
    """Return groups in the order of the buffer's listing, if the step took all of it."""
    return [Entry(version, 0) for version in listed] if listed and Counter(listed) == counts else None


def _use_saved(told: Told, saved: Iterable[Row]) -> None:
    """Take the versions of a step's groups from the buffer of a checkpoint where the console does not tell them."""
    wanted = groups_per_step(told.launch.settings)
    by_target: dict[tuple[str, int], list[Row]] = {}
    for row in saved:
        if row["kind"] == "ag" and row["target"] is not None and row["version"] is not None:
            by_target.setdefault((row["source"], row["target"]), []).append(row)
    for (_, target), rows in by_target.items():
        step = target + 1
        if wanted is not None and len(rows) == wanted and step in told.steps and step not in told.selections:
            groups = [Entry(row["version"], target) for row in sorted(rows, key=lambda row: row["index"])]
            told.selections[step] = Selection(rows[0], target, Counter(entry.version for entry in groups), groups)


def write(told: Told, rows: Rows, dumps: dict[int, pl.DataFrame], sink: Sink, *, several: bool) -> list[Dump]:
    """Write a launch's steps, their classes, and what was evicted; returns those whose rows remain to be written."""
    remaining = []
    for step, place in sorted(told.steps.items()):
        # A selection without results is a step that crashed, or one of which the log was cut.
        completed = True if step <= told.proven else False if told.launch.all("traceback") else None
        _write_step(told, step, place, completed, rows)
        if completed is False:
            continue
        rows.again = told.launch.reused(step)
        files = None if rows.again else dumps.get(step)
        if files is not None:
            remaining.append(Dump(told, step, files, several))
        else:
            _write_classes(told, step, place, rows, sink)
        _write_sums(told, step, place, rows, dumped=files is not None)
    rows.again = False
    _write_losses(told, rows)
    return remaining


def _place(told: Told, step: int, place: Row) -> Row:
    return place or told.launch.scalars.get("train/loss", {}).get(step) or {}


def _write_step(told: Told, step: int, place: Row, completed: bool | None, rows: Rows) -> None:
    launch = told.launch
    loss = launch.scalars.get("train/loss", {}).get(step)
    total = launch.value("timing/train/total_step_time", step)
    batch, size, groups = (
        whole(launch.settings, "policy.train_global_batch_size"),
        group_size(launch.settings),
        groups_per_step(launch.settings),
    )
    updates = size * groups // batch if batch and size and groups and size * groups % batch == 0 else None
    rows.add(
        "steps",
        _place(told, step, place),
        attempt=launch.number,
        step=step,
        v_train_lo=step - 1,
        v_train_hi=step - 1,
        started=micros(loss["wall"] - total) if loss and total is not None else None,
        ended=micros(loss["wall"]) if loss else None,
        waited_us=micros(launch.value("timing/train/exposed_generation", step)),
        updates=updates,
        completed=completed,
        evidence="recorded" if completed else "derived",
    )


def write_rows(dump: Dump, frame: pl.DataFrame, rows: Rows, sink: Sink) -> None:
    """Write the dumped trajectories of a step, each with its group's versions."""
    told, step = dump.told, dump.step
    selection = told.selections.get(step)
    size = _rows_per_group(told, dump, selection)
    if selection is not None and size is None:
        sink.diagnose(
            "warning",
            "rows-without-groups",
            f"The rows of step {step} can't be told apart by groups, so each may have any version of the step.",
            source=frame["source"][0],
        )
    prefix = f"a{told.launch.number}/step{step}" if dump.several else f"step{step}"
    for row in frame.sort("row").to_dicts():
        key = f"{prefix}/{row['row']}"
        group = f"{prefix}/group{row['row'] // size}" if size else None
        rows.add(
            "trajectories",
            row,
            trajectory_id=key,
            group_id=group,
            attempt=told.launch.number,
            role="train",
            multiplicity_lo=1,
            multiplicity_hi=1,
            prompt_tokens=row["prompt"],
        )
        index = row["row"] // size if size else None
        first, later = _versions(told, step, selection, index)
        _write_spans(rows, row, key, (row["tokens_lo"], row["tokens_hi"]), first=first, later=later)
        rows.add(
            "uses",
            row,
            trajectory_id=key,
            attempt=told.launch.number,
            step=step,
            loss_tokens_lo=0 if row["masked"] else None,
            loss_tokens_hi=0 if row["masked"] else None,
        )


def _rows_per_group(told: Told, dump: Dump, selection: Selection | None) -> int | None:
    size = group_size(told.launch.settings)
    groups = selection.counts.total() if selection else groups_per_step(told.launch.settings)
    last = dump.files["last"].max()
    assert isinstance(last, int)
    if size is None:
        return (last + 1) // groups if groups and (last + 1) % groups == 0 else None
    return size if groups is None or last < groups * size else None


def _versions(told: Told, step: int, selection: Selection | None, index: int | None) -> tuple[Versions, Versions]:
    """Versions of a group's first token and of its later ones: alike if refits wait for running generations."""
    trained = step - 1
    if selection is None or not selection.counts:
        oldest, newest = trained - _oldest_age(told, step)[1], trained
        return (oldest, newest), (oldest, newest)
    known = (
        selection.groups[index] if selection.groups and index is not None and index < len(selection.groups) else None
    )
    first = (known.version,) * 2 if known else (min(selection.counts), max(selection.counts))
    if told.drains:
        return first, first
    seen = known.seen if known and known.seen is not None else trained
    return first, (first[0], max(first[1], min(seen, trained)))


def _oldest_age(told: Told, step: int) -> tuple[int, int]:
    """Interval of the largest age of a step from the mean over its N groups: at least the mean, at most N times it."""
    mean, groups, slack = (
        told.launch.value("train/avg_trajectory_age", step),
        groups_per_step(told.launch.settings),
        1e-4,
    )
    if mean is None:
        slack = 0.005  # the console prints two decimals
        mean = next((row["x"] for row in told.ages.get(step, ())), None)
    if mean is None or groups is None or mean < 0:
        return 0, step - 1
    return max(math.ceil(mean - slack), 0), min(math.floor((mean + slack) * groups), step - 1)


def _write_spans(rows: Rows, place: Row, key: str, tokens: Interval, *, first: Versions, later: Versions) -> None:
    if first == later or tokens[0] == 0:
        rows.span(place, key, 0, tokens, (first[0], later[1]))
        return
    rows.span(place, key, 0, (1, 1), first)
    if tokens[1] != 1:
        rows.span(place, key, 1, (tokens[0] - 1, None if tokens[1] is None else tokens[1] - 1), later)


def _write_classes(told: Told, step: int, place: Row, rows: Rows, sink: Sink) -> None:
    """Write a step whose rows were not dumped: a class per version, as the step counts its groups."""
    launch, selection = told.launch, told.selections.get(step)
    size, trained = group_size(launch.settings), step - 1
    tokens, valid = _tokens(told, step), launch.value("train/global_valid_seqs", step)
    where = _place(told, step, place)
    counts = selection.counts if selection else Counter[int]()
    if not counts:
        groups = groups_per_step(launch.settings)
        counts = Counter({-1: groups}) if groups else counts
    if not counts:
        sink.diagnose(
            "error",
            "step-missing",
            f"Nothing is told of the batch of step {step}; restore the console log of this launch.",
            source=where.get("source"),
            line=where.get("line"),
            opens="training",
        )
        return
    every = counts.total() * size if size else None
    complete = every is not None and valid == every and tokens is not None and not told.failures
    for version, groups in sorted(counts.items()):
        number = groups * size if size else None
        key = rows.anonymous(
            where,
            f"trained@a{launch.number}.step{step}" + ("" if version < 0 else f".v{version}"),
            launch.number,
            (number or groups, number),
            (groups, groups),
        )
        # Of a step without masked rows each trajectory has a token at least.
        least = number if complete and number else 0
        span: Interval = (least, None)
        if complete and tokens is not None and every is not None:
            span = (tokens if len(counts) == 1 else least, tokens - every + least)
        elif tokens is not None:
            span = (0, tokens)
        if version < 0:
            rows.span(where, key, 0, span, (trained - _oldest_age(told, step)[1], trained))
        elif told.drains or version == trained:
            rows.span(where, key, 0, span, (version, version))
        else:
            rows.span(where, key, 0, (least, least), (version, version))
            rest = (span[0] - least, None if span[1] is None else span[1] - least)
            rows.span(where, key, 1, rest, (version, trained))
        rows.add("uses", where, trajectory_id=key, attempt=launch.number, step=step, evidence="derived")


def _tokens(told: Told, step: int) -> int | None:
    """Loss tokens of a step; its sum is only certain where a step is one optimizer step."""
    settings, value = told.launch.settings, told.launch.value("train/global_valid_toks", step)
    size, groups, batch = (
        group_size(settings),
        groups_per_step(settings),
        whole(settings, "policy.train_global_batch_size"),
    )
    if (
        value is None
        or not value.is_integer()
        or not size
        or not groups
        or (batch is not None and batch != size * groups)
    ):
        return None
    return int(value)


def _write_sums(told: Told, step: int, place: Row, rows: Rows, *, dumped: bool) -> None:
    """Say how many trajectories and tokens a step trained, how old they can be, and what the framework reports."""
    launch, where = told.launch, _place(told, step, place)
    about = {"attempt": launch.number, "step": step}
    size, selection = group_size(launch.settings), told.selections.get(step)
    if selection and size and selection.counts:
        total = float(selection.counts.total() * size)
        rows.add("constraints", where, **about, quantity="trajectories", op="eq", value=total, unit="trajectories")
    tokens = _tokens(told, step)
    if not dumped and tokens is not None:
        rows.add("constraints", where, **about, quantity="loss_tokens", op="eq", value=float(tokens), unit="tokens")
    if selection is None:
        least, most = _oldest_age(told, step)
        rows.add(
            "constraints",
            where,
            **about,
            quantity="staleness_max",
            op="le",
            value=float(most or 0),
            unit="steps",
            evidence="derived",
        )
        if least and launch.value("train/global_valid_seqs", step) == (groups_per_step(launch.settings) or 0) * (
            size or 0
        ):
            rows.add(
                "constraints",
                where,
                **about,
                quantity="staleness_max",
                op="ge",
                value=float(least),
                unit="steps",
                evidence="derived",
            )
    for name, tag in (
        ("step.staleness_trajectory_mean", "avg_trajectory_age"),
        ("step.loss_tokens", "global_valid_toks"),
    ):
        scalar = launch.scalars.get(f"train/{tag}", {}).get(step)
        if scalar:
            rows.add(
                "reported",
                scalar,
                **about,
                ts=micros(scalar["wall"]),
                name=name,
                raw_name=f"train/{tag}",
                value=scalar["value"],
            )
    if "train/avg_trajectory_age" not in launch.scalars:
        for row in told.ages.get(step, ()):
            rows.add(
                "reported",
                row,
                **about,
                name="step.staleness_trajectory_mean",
                raw_name="Avg Trajectory Age",
                value=row["x"],
            )


def _write_losses(told: Told, rows: Rows) -> None:
    """Write evicted groups (finished: dropped), restored ones that were thrown out, and batches whose worker failed."""
    launch, size = told.launch, group_size(told.launch.settings)

    def lose(row: Row, name: str, kind: str, *, step: int | None, groups: int, reason: str) -> None:
        count = groups * size if size else None
        where = f"a{launch.number}.{row['line']}"
        rows.again = step is not None and launch.reused(step)
        key = rows.anonymous(row, f"{name}@{where}", launch.number, (count or groups, count), (groups, groups))
        rows.fate(row, key, kind, attempt=launch.number, step=step, reason=reason, count=count or groups)

    for step, row in told.evicted:
        lose(row, "evicted", "dropped", step=step, groups=row["a"], reason="stale")
    for row in told.unfit:
        lose(row, "unfit", "dropped", step=None, groups=row["a"], reason="stale")
    sizes: dict[int, int] = {}
    for row in launch.all("batch", "failed"):
        if row["kind"] == "batch":
            sizes[row["b"]] = row["a"]
        elif row["a"] in sizes:
            lose(row, "failed", "lost", step=None, groups=sizes.pop(row["a"]), reason="error")

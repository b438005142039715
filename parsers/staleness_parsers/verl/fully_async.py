"""The fully-async policy: which micro-steps of which parameter version there were, and what they trained.

A micro-step's ``v_train`` is counted from the console, else from its number (guide section 3, FA).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import polars as pl

from staleness_audit.parser import Sink, Staged
from staleness_parsers.verl import dumps, state
from staleness_parsers.verl.launches import Launch, Row
from staleness_parsers.verl.settings import Settings

_FARTHEST: Final = 20_000
"""So many micro-steps, and twice as many as are told of, are looked for: a damaged digit asks for millions."""


@dataclass
class Micro:
    """One micro-step: ``rows`` it trained (None = not known), the sizes of their groups, the record that covers it.

    ``spoke``: every row has some text, so at least one sampled token. ``told``: something says that it took place.
    """

    attempt: int
    number: int
    version: int
    sizes: list[int] | None = None
    prompts: list[tuple[str, int, float]] = field(default_factory=list)
    spoke: bool = False
    told: bool = True
    whole: bool = True
    record: Row | None = None
    before: Row | None = None
    window: list[int] = field(default_factory=list)
    source: str | None = None
    line: int | None = None
    known: list[tuple[int, int]] = field(default_factory=list)

    @property
    def rows(self) -> int | None:
        """Rows it trained, if all of them are known."""
        return sum(self.sizes) if self.sizes is not None and self.whole else None


@dataclass
class FullyAsync:
    """Everything the stations of the fully-async policy share.

    ``outstanding``: per launch, groups generating or queued at the sync of a version.

    ``bases``: per launch, the version it began at. ``numbered``: the trigger is known, and so the version of a
    micro-step.
    """

    settings: Settings
    launches: list[Launch]
    trigger: int
    numbered: bool = True
    micros: dict[tuple[int, int], Micro] = field(default_factory=dict)
    outstanding: list[dict[int, int]] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    groups: pl.DataFrame = field(default_factory=pl.DataFrame)


def build(settings: Settings, found: Sequence[Launch], staged: Staged, sink: Sink) -> FullyAsync:
    """Lay out the micro-steps of every launch and what was outstanding at its syncs."""
    trigger = _trigger(settings, found)
    model = FullyAsync(settings, list(found), trigger or 1, numbered=trigger is not None)
    model.groups = (
        staged.scan(state.GROUPS).collect() if staged.has(state.GROUPS) else pl.DataFrame(schema=state.GROUP_ROWS)
    )
    _begin(model)
    rows = (
        staged.scan(dumps.TABLE).filter(~pl.col("padding") & ~pl.col("validation")).collect()
        if staged.has(dumps.TABLE)
        else None
    )
    numbers = sorted(set(rows["step"])) if rows is not None else []
    for index, launch in enumerate(model.launches):
        _lay_out(model, index, launch, numbers if index == len(model.launches) - 1 else [], sink)
        model.outstanding.append(_outstanding(launch, model.bases[index]))
    if rows is not None:
        _place_rows(model, rows, staged)
    return model


def _trigger(settings: Settings, found: Sequence[Launch]) -> int | None:
    """Return micro-steps per version: as the console states it, as configured, or from what two records cover."""
    stated = [message["c"] for launch in found for message in launch.said("micro") if message["c"]]
    if stated or settings.known:
        return stated[-1] if stated else settings.updates_per_sync
    for launch in found:
        for before, after in pairwise(sorted(launch.records)):
            covered = launch.records[after]["global_step"] - launch.records[before]["global_step"]
            if covered and covered % (after - before) == 0:
                return int(covered) // (after - before)
    return None


def _begin(model: FullyAsync) -> None:
    """Find the version each launch began at: of its first sync or rollouter record, or by its first micro-step.

    The first micro-step of a launch resumed from V is V * trigger + 2 (guide section 3).
    """
    t = model.trigger
    for launch in model.launches:
        syncs = [message["a"] for message in launch.said("sync")]
        periods = [int(row["step"]) for row in launch.extra if row["fa_period"] is not None]
        numbers = [message["a"] for message in launch.said("micro")]
        first = min(numbers, default=1)
        base = min([*syncs, *periods], default=(first - 2) // t if first > 1 and (first - 2) % t == 0 else 0)
        launch.resumed = base * t
        model.bases.append(base)
    if model.bases[0]:
        # What the first launch continues is another, of which no log is left.
        model.launches = [Launch(resumed=0), *model.launches]
        model.bases.insert(0, 0)


def _lay_out(model: FullyAsync, index: int, launch: Launch, files: Sequence[int], sink: Sink) -> None:
    """List the micro-steps of a launch: those that anything tells of, and those that metrics alone leave open.

    A record is written at a sync and speaks of the micro-steps before the one that led to it; of those after the last
    sync there is none.
    """
    t, base = model.trigger, model.bases[index]
    spoken = launch.said("micro")
    numbers = [message["a"] for message in spoken] + [
        message["a"] for message in launch.said("dumped") if message["a"] is not None
    ]
    covered = [int(record["global_step"]) + 1 for record in launch.records.values()]
    synced = [int(row["step"]) for row in launch.extra if row["fa_period"] is not None and row["step"] > base]
    covered += [version * t + (1 if base else 0) for version in synced]
    begin = base * t + 2 if base else 1
    if index + 1 < len(model.launches) and not numbers and not covered:
        covered = [model.bases[index + 1] * t + (1 if base else 0)]
    reached = max([*numbers, *covered, *files], default=0)
    last = min(reached, begin + _FARTHEST + 2 * (len(numbers) + len(covered) * t + len(files)))
    if last < reached:
        sink.diagnose(
            "error",
            "step-damaged",
            f"Micro-step {reached} is told of, and nothing of most before it; none after {last} was looked for.",
            opens="training",
        )
    silent = index == len(model.launches) - 1 and not launch.consoled and not files
    lines = {message["a"]: message for message in spoken}
    version = base
    for number in range(begin, last + 1 + t * silent):
        message = lines.get(number)
        place = {"source": message["source"], "line": message["line"]} if message else {}
        counted = base + (number - begin) // t
        model.micros[index, number] = Micro(
            index, number, version if len(lines) == last - begin + 1 else counted, told=number <= last, **place
        )
        if message and message["b"] == t:
            version += 1
    _cover(model, index, launch, begin, base)


def _cover(model: FullyAsync, index: int, launch: Launch, begin: int, base: int) -> None:
    """Give each micro-step the record that covers it: it lags by one micro-step (guide section 5 H)."""
    t, shift = model.trigger, 1 if base else 0
    before: Row | None = None
    for version in sorted(launch.records):
        window = [number for number in range((version - 1) * t + shift, version * t + shift) if number >= begin]
        if before is not None and (t > 1 or version > base + 1) and version - 1 not in launch.records:
            before = None  # a record is missing: what its counter stood at is not known
        first = version == min(launch.records) and version <= base + (1 if t > 1 else 2)
        for number in window:
            micro = model.micros.get((index, number))
            if micro is not None:
                micro.record, micro.window = launch.records[version], window
                micro.before = before if before is not None else ({"fa_stale": 0.0} if first else None)
        before = launch.records[version]


def _outstanding(launch: Launch, base: int) -> dict[int, int]:
    """Read the groups outstanding at the sync of each version: a reset line precedes the sync's own line."""
    result: dict[int, int] = {}
    waiting: list[int] = []
    version = base - 1
    for message in launch.messages:
        if message["kind"] == "reset":
            waiting.append(message["a"])
        elif message["kind"] == "sync":
            version = message["a"]
            if waiting:
                result[version] = waiting[-1]
            waiting = []
    if waiting:
        result[version + 1] = waiting[-1]
    return result


def _place_rows(model: FullyAsync, rows: pl.DataFrame, staged: Staged) -> None:
    """Attach the rollout dump of each micro-step: sizes and prompts of its groups."""
    broken = set(staged.scan(dumps.DAMAGE).collect()["step"]) if staged.has(dumps.DAMAGE) else set()
    shuffled = model.settings.get("trainer.balance_batch") is not False
    for (number,), unsorted in rows.group_by("step", maintain_order=True):
        index = next((at for at in reversed(range(len(model.launches))) if (at, number) in model.micros), None)
        if index is None:
            continue
        micro = model.micros[index, int(number)]
        part = unsorted.sort("line").with_columns(pl.col("input").fill_null(""))
        # Balancing reorders the rows: then groups of equal prompts are one.
        same = pl.col("input") if shuffled else pl.col("input").rle_id()
        grouped = part.group_by(same.alias("run"), maintain_order=True).agg(
            pl.col("input").first(), pl.len().alias("n"), pl.col("score").sum()
        )
        micro.prompts = list(grouped.select("input", "n", "score").iter_rows())
        micro.sizes = [size for _, size, _ in micro.prompts]
        micro.whole = number not in broken
        micro.spoke = bool((part["output_chars"] > 0).all())
        micro.source, micro.line = part["source"][0], None

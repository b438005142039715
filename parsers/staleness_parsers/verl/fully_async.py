"""The fully-async policy: micro-steps of one parameter version, groups joined to them by their prompt.

A micro-step's ``v_train`` is counted from the console, else from its number (guide section 3, FA). Dumped groups
(``skip.async_rollout``) bring the stamps of their rows; which micro-step trained a group says the rollout dump whose
``input`` holds its prompt. Rows without stamps are bounded from three sides: a sync at which nothing was outstanding parts
the old from the new; at most as many groups are older than the version they are trained at as were outstanding at its sync;
and the records count rows whose end is stale and rows that span versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import polars as pl

from staleness_audit.parser import Sink, Staged
from staleness_parsers.verl import dumps, state
from staleness_parsers.verl.aggregates import RowClass, order_classes
from staleness_parsers.verl.launches import Launch, Row
from staleness_parsers.verl.rows import STAMPED, Lengths, StepClasses, write_classes, write_rows, write_stamped
from staleness_parsers.verl.settings import Settings


@dataclass
class Micro:
    """One micro-step: ``rows`` it trained (None = not known), the sizes of their groups, the record that covers it.

    ``spoke``: every row has some text, so at least one sampled token.
    """

    attempt: int
    number: int
    version: int
    sizes: list[int] | None = None
    prompts: list[tuple[str, int, float]] = field(default_factory=list)
    spoke: bool = False
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
    """Everything the stations below share. ``outstanding``: per launch, groups generating or queued at the sync of a version.

    ``bases``: per launch, the version it began at. ``numbered``: the trigger is known, and so the version of a micro-step.
    """

    settings: Settings
    launches: list[Launch]
    trigger: int
    numbered: bool = True
    micros: dict[tuple[int, int], Micro] = field(default_factory=dict)
    outstanding: list[dict[int, int]] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    groups: pl.DataFrame = field(default_factory=pl.DataFrame)


def build(settings: Settings, found: Sequence[Launch], staged: Staged) -> FullyAsync:
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
        _lay_out(model, index, launch, numbers if index == len(model.launches) - 1 else [])
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
    """Find the version each launch began at: of the first sync, of the first rollouter record, or by its first micro-step.

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


def _lay_out(model: FullyAsync, index: int, launch: Launch, files: Sequence[int]) -> None:
    """List the micro-steps of a launch."""
    t, base = model.trigger, model.bases[index]
    spoken = launch.said("micro")
    numbers = [message["a"] for message in spoken] + [
        message["a"] for message in launch.said("dumped") if message["a"] is not None
    ]
    covered = [t * version - 1 for version in launch.records]
    begin = base * t + 2 if base else 1
    if index + 1 < len(model.launches) and not numbers and not covered:
        covered = [model.bases[index + 1] * t]
    last = max([*numbers, *(value + (1 if base else 0) for value in covered), *files], default=0)
    lines = {message["a"]: message for message in spoken}
    version = base
    for number in range(begin, last + 1):
        message = lines.get(number)
        place = {"source": message["source"], "line": message["line"]} if message else {}
        counted = base + (number - begin) // t
        model.micros[index, number] = Micro(
            index, number, version if len(lines) == last - begin + 1 else counted, **place
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
    """Groups outstanding at the sync of each version: a reset line precedes the sync's own line."""
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
    for (number,), part in rows.group_by("step", maintain_order=True):
        index = next((at for at in range(len(model.launches) - 1, -1, -1) if (at, number) in model.micros), None)
        if index is None:
            continue
        micro = model.micros[index, int(number)]  # type: ignore[call-overload]
        part = part.sort("line")
        same = (
            part.with_columns(pl.col("input").fill_null("").rle_id().alias("run"))
            if not shuffled
            else part.with_columns(pl.col("input").fill_null("").alias("run"))
        )
        grouped = same.group_by("run", maintain_order=True).agg(
            pl.col("input").first(), pl.len().alias("n"), pl.col("score").sum()
        )
        micro.sizes = [int(size) for size in grouped["n"]]
        micro.prompts = [
            (prompt or "", int(size), float(score or 0))
            for prompt, size, score in grouped.select("input", "n", "score").iter_rows()
        ]
        micro.whole = number not in broken
        micro.spoke = bool((part["output_chars"] > 0).all())
        micro.source = part["source"][0]
        micro.line = None


# ------------------------------------------------------------------------------------------------- rows


def write_trained(model: FullyAsync, sink: Sink) -> None:
    """Write steps, syncs, and every trained row."""
    places = _join_groups(model, sink)
    _write_stamped(model, places, sink)
    out: dict[str, list[Row]] = {
        "trajectories": [],
        "spans": [],
        "uses": [],
        "constraints": [],
        "steps": [],
        "syncs": [],
    }
    for key in sorted(model.micros):
        _write_micro(model, model.micros[key], out, sink)
    for index, launch in enumerate(model.launches):
        for message in launch.said("sync"):
            version = message["a"]
            out["syncs"].append(
                {
                    "attempt": index,
                    "version_lo": version,
                    "version_hi": version,
                    "evidence": "recorded",
                    "source": message["source"],
                    "line": message["line"],
                }
            )
    write_rows(out, sink)


def _join_groups(model: FullyAsync, sink: Sink) -> dict[int, list[Micro]]:
    """Find the micro-steps that may have trained each dumped group, by feed index.

    A group fits where the dump's ``input`` holds its prompt, as many rows have it, with the same sum of scores, at a version not before its newest stamp.
    """
    replayed = {message["a"] for launch in model.launches for message in launch.said("loaded")}
    if replayed:
        sink.diagnose(
            "warning",
            "cached-groups",
            "Groups were read back from an earlier run's dumps: the versions in them are not of this run's policies.",
            opens="training",
        )
    spots = [(micro, at, *prompt) for micro in model.micros.values() for at, prompt in enumerate(micro.prompts)]
    by_text: dict[str, list[Any]] = {}
    for spot in spots:
        by_text.setdefault(spot[2], []).append(spot)
    groups = [rows for _, rows in sorted(_by_feed(model.groups).items())]
    fits: dict[int, list[Any]] = {}
    for rows in groups:
        feed, prompt = rows[0]["feed"], rows[0]["prompt"]
        if prompt is None or feed in replayed:
            continue
        newest = max((row["v_max"] for row in rows if row["v_max"] is not None), default=0)
        score = None if any(row["score"] is None for row in rows) else sum(row["score"] for row in rows)
        fits[feed] = [
            spot
            for text, found in by_text.items()
            if prompt in text
            for spot in found
            if spot[3] == len(rows) and spot[0].version >= newest and (score is None or abs(spot[4] - score) < 1e-4)
        ]
    return _settle(fits)


def _by_feed(groups: pl.DataFrame) -> dict[int, list[Row]]:
    result: dict[int, list[Row]] = {}
    for row in groups.sort("feed", "row").iter_rows(named=True):
        result.setdefault(row["feed"], []).append(row)
    return result


def _settle(fits: dict[int, list[Any]]) -> dict[int, list[Micro]]:
    """Where one group fits one place only, the place is taken; repeat until nothing more follows."""
    taken: set[tuple[int, int, int]] = set()
    settled: dict[int, list[Micro]] = {}
    while True:
        open_fits = {
            feed: [spot for spot in spots if _spot(spot) not in taken]
            for feed, spots in fits.items()
            if feed not in settled
        }
        single = {feed: spots[0] for feed, spots in open_fits.items() if len(spots) == 1}
        claims: dict[tuple[int, int, int], int] = {}
        for spot in single.values():
            claims[_spot(spot)] = claims.get(_spot(spot), 0) + 1
        fresh = {feed: spot for feed, spot in single.items() if claims[_spot(spot)] == 1}
        if not fresh:
            return {**settled, **{feed: [spot[0] for spot in spots] for feed, spots in open_fits.items()}}
        for feed, spot in fresh.items():
            settled[feed] = [spot[0]]
            taken.add(_spot(spot))


def _spot(spot: Any) -> tuple[int, int, int]:  # noqa: ANN401 - a tuple whose head is (micro, place)
    return spot[0].attempt, spot[0].number, spot[1]


def _write_stamped(model: FullyAsync, places: dict[int, list[Micro]], sink: Sink) -> None:
    """Write the rows of dumped groups: trained where their place is certain; where it is not, they stay undated there."""
    rows = []
    trained_all = all(micro.rows is not None for micro in model.micros.values()) and bool(model.micros)
    for feed, group in _by_feed(model.groups).items():
        micros = places.get(feed)
        sure = micros is not None and len({(micro.attempt, micro.number) for micro in micros}) == 1
        if micros is None or (micros and not sure) or (not micros and not trained_all):
            continue
        micro = micros[0] if sure else None
        for row in group:
            if row["v_min"] is None or row["v_max"] is None:
                continue
            low = min(row["v_min"], row["v_max"])
            if micro is not None:
                micro.known.append((micro.version - row["v_max"], micro.version - low))
            rows.append(
                {
                    "trajectory_id": f"{row['uid']}/{row['row']}",
                    "group_id": row["uid"],
                    "attempt": micro.attempt if micro else len(model.launches) - 1,
                    "step": micro.number if micro else None,
                    "v_lo": low,
                    "v_hi": row["v_max"],
                    "tokens_lo": row["loss"] if row["loss"] is not None else 0,
                    "tokens_hi": row["loss"]
                    if row["loss"] is not None
                    else model.settings.count("data.max_response_length"),
                    "source": row["source"],
                    "locator": f"row {row['row']}",
                }
            )
    write_stamped(pl.DataFrame(rows, schema=STAMPED), sink)


def _write_micro(model: FullyAsync, micro: Micro, out: dict[str, list[Row]], sink: Sink) -> None:
    proof = {"evidence": "derived", "source": micro.source, "line": micro.line}
    waited = micro.record["fa_wait"] if micro.record and len(micro.window) == 1 else None
    out["steps"].append(
        {
            "attempt": micro.attempt,
            "step": micro.number,
            "v_train_lo": micro.version if model.numbered else model.bases[micro.attempt],
            "v_train_hi": micro.version,
            # Without the trigger nobody knows how many versions the micro-steps were: only that one was.
            "completed": True if model.numbered or micro.number == 1 else None,
            "waited_us": None if waited is None else round(waited * 1e6),
            **proof,
        }
    )
    total = micro.rows
    count = total if total is not None else max(len(micro.known), _groups_of(model) or 0)
    if total is None:
        sink.diagnose(
            "warning",
            "rows-uncounted",
            f"How many rows micro-step {micro.number} trained is not known in full: its rollout dump is missing or damaged (trainer.rollout_data_dir).",
            source=micro.source,
            locator=f"step {micro.number}",
        )
    rest = count - len(micro.known)
    if rest <= 0 and total is not None:
        return
    classes = _classes(model, micro, count, rest)
    write_classes(
        StepClasses(
            micro.attempt,
            micro.number,
            micro.version,
            classes,
            _lengths(model, micro),
            more=0 if total is not None else None,
            newest=micro.version,
            spanless=micro.record is not None and micro.record["fa_partial"] == 0,
            source=micro.source,
            line=micro.line,
            evidence="derived" if all(item.lo == item.hi for item in classes) else "inferred",
        ),
        out,
        sink,
    )


def _groups_of(model: FullyAsync) -> int | None:
    batch = model.settings.count("actor_rollout_ref.actor.ppo_mini_batch_size")
    return None if batch is None else batch * (model.settings.count("async_training.require_batches") or 1)


def _lengths(model: FullyAsync, micro: Micro) -> Lengths:
    record, masked = micro.record, model.settings.masks
    longest = model.settings.count("data.max_response_length")
    if record is None or record["response_max"] is None:
        return Lengths(int(micro.spoke), longest, exact=False, masked=masked)
    turns = record["turns_fa"] if record["turns_fa"] is not None else record["turns"]
    exact = turns is not None and turns <= 2 and not masked
    return Lengths(int(record["response_min"] or 0), round(record["response_max"]), exact, masked)


def _classes(model: FullyAsync, micro: Micro, count: int, rest: int) -> list[RowClass]:
    """Intervals of the rows of a micro-step that no stamp dates."""
    caps = _caps(model, micro, count)
    proven = _proven_stale(model, micro, count)
    oldest = len(caps)  # rows older than k syncs: at most caps[k - 1]
    surely = {age: count - (caps[age] if age < oldest else 0) for age in range(oldest + 1)}
    perhaps = {age: count - (proven if age == 0 else 0) for age in range(oldest + 1)}
    if micro.known:
        for age in surely:
            surely[age] = max(0, surely[age] - sum(1 for last, _ in micro.known if last <= age))
            perhaps[age] = min(rest, perhaps[age] - sum(1 for _, worst in micro.known if worst <= age))
    return order_classes(rest, surely, perhaps)


def _caps(model: FullyAsync, micro: Micro, count: int) -> list[int]:
    """Largest possible number of rows that are more than 0, 1, 2, .. versions old; the list ends where it is zero."""
    outstanding, base = model.outstanding[micro.attempt], model.bases[micro.attempt]
    sizes = sorted(micro.sizes or [], reverse=True)
    caps = []
    groups: int | None = None
    for age in range(micro.version - base):
        here = outstanding.get(micro.version - age)
        groups = here if groups is None else (groups if here is None else min(groups, here))
        most = count if groups is None or micro.rows is None else min(count, sum(sizes[:groups]))
        if groups == 0:
            most = 0
        caps.append(most)
    record = micro.record
    if (
        record is not None
        and caps
        and micro.before is not None
        and None not in (record["fa_stale"], record["fa_partial"], micro.before["fa_stale"])
    ):
        ended = round(record["fa_stale"] - micro.before["fa_stale"])
        if ended >= 0:
            caps = [min(most, ended + round(record["fa_partial"])) for most in caps]
            if not ended and record["fa_span"] is not None:
                caps = caps[: max(round(record["fa_span"]), 0)]
    while caps and not caps[-1]:
        caps.pop()
    return caps


def _proven_stale(model: FullyAsync, micro: Micro, count: int) -> int:
    """Rows of this micro-step whose end is stale for certain: those of the window that the others can't all hold."""
    record = micro.record
    if record is None or micro.before is None or record["fa_stale"] is None or micro.before["fa_stale"] is None:
        return 0
    ended = round(record["fa_stale"] - micro.before["fa_stale"])
    others = 0
    for number in micro.window:
        other = model.micros.get((micro.attempt, number))
        if other is None or other is micro:
            continue
        if other.rows is None:
            return 0
        bound = _version_caps(model, other)
        others += min(other.rows, bound)
    return max(0, min(count, ended - others))


def _version_caps(model: FullyAsync, micro: Micro) -> int:
    """Rows of a micro-step that can be stale at all, by what was outstanding at the sync of its version."""
    if micro.version == model.bases[micro.attempt]:
        return 0
    groups = model.outstanding[micro.attempt].get(micro.version)
    sizes = sorted(micro.sizes or [], reverse=True)
    return sum(sizes if groups is None else sizes[:groups])

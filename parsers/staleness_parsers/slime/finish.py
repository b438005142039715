"""Joining all units: processes, versions and completed steps (guide sections 3, 5 and 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import polars as pl

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import Sink, Staged
from staleness_audit.readers.numbers import near
from staleness_audit.readers.units import frame_of
from staleness_parsers.slime import processes as p
from staleness_parsers.slime.processes import Process, Train

OVERLAP: Final = timedelta(milliseconds=100)
"""A call may begin this long before the end of a call of an older label without having lived through a sync: clocks
of one event loop. A smaller value can only widen intervals."""
_TRAINED_TAGS: Final = ("perf/train_time", "perf/step_time", "perf/actor_train_time")
_COLLECTED_TAGS: Final = ("perf/rollout_time", "rollout/response_len/mean")


@dataclass
class Model:
    """Everything known of the run before rows are written. ``processes`` are the attempts, in order.

    ``names``, ``edges``: those of all dumps (``dumps.NAMES``, ``EDGES``), with their root and rollout. ``torn``: lines
    are missing inside a console.
    """

    processes: list[Process]
    batches: list[dict[str, Any]]
    lines: list[dict[str, Any]]
    scalars: pl.DataFrame
    offset: timedelta = timedelta(0)
    offset_known: bool = False
    names: pl.DataFrame = field(default_factory=pl.DataFrame)
    edges: pl.DataFrame = field(default_factory=pl.DataFrame)
    torn: bool = False
    versions: list[p.Versions] = field(default_factory=list)
    proven: list[int] = field(default_factory=list)
    by_rollout: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    ranks: set[str] = field(default_factory=set)

    @property
    def train_dumps(self) -> bool:
        """Whether train dumps were switched on."""
        return any(batch["has_train"] for batch in self.batches)

    @property
    def console(self) -> bool:
        """Whether a console log shows trainings."""
        return any(process.seen_by == "console" and process.trains for process in self.processes)

    def utc(self, local: datetime | None) -> datetime | None:
        """Turn a console time into UTC."""
        return None if local is None else (local - self.offset).replace(tzinfo=UTC)

    def attempt_of(self, rollout: int) -> int | None:
        """Return the last attempt that collected or trained a rollout."""
        return next(
            (
                attempt
                for attempt in reversed(range(len(self.processes)))
                if rollout in self.processes[attempt].collected or rollout in self.processes[attempt].trains
            ),
            None,
        )


def build(staged: Staged, run: RunFiles, sink: Sink) -> Model:
    """Find the processes and assign every dump to one."""
    dumped = pl.DataFrame()
    if staged.has("slime_batches"):
        dumped = frame_of(staged, "slime_batches").sort("rollout", "root")
    batches = _batches(dumped.drop("names", "edges", strict=False), sink)
    lines = near(p.order_lines(_rows(staged, "slime_lines", ["source", "line"])), "rollout", None, sink)
    scalars = _scalars(staged, sink)
    found = p.console_processes(lines) or _event_processes(scalars)
    model = Model(found, batches, lines, scalars)
    if batches:
        model.names, model.edges = (
            dumped.select("root", "rollout", name).filter(pl.col(name).list.len() > 0).explode(name).unnest(name)
            for name in ("names", "edges")
        )
    _assign(model, _edges(model.edges), sink)
    _clock(model, sink)
    _tell_torn(model, sink)
    for process in model.processes:
        model.versions.append(p.label_versions(process))
    model.by_rollout = {(batch["attempt"], batch["rollout"]): batch for batch in reversed(batches)}
    model.ranks = {rank for batch in batches for rank in str(batch["ranks"] or "").split(",") if rank}
    model.proven = [proven_up_to(model, attempt) for attempt in range(len(model.processes))]
    return model


def _rows(staged: Staged, table: str, order: Sequence[str]) -> list[dict[str, Any]]:
    return staged.scan(table).sort(order).collect().to_dicts() if staged.has(table) else []


def _scalars(staged: Staged, sink: Sink) -> pl.DataFrame:
    """Scalars in the order of writing, but those of a step far from the others."""
    if not staged.has("slime_scalars"):
        return pl.DataFrame()
    frame = staged.scan("slime_scalars").collect()
    steps = frame.group_by("x").agg(pl.col("source", "record").first()).sort("x").rename({"record": "line"}).to_dicts()
    kept = [row["x"] for row in near(steps, "x", None, sink)]
    return frame if len(kept) == len(steps) else frame.filter(pl.col("x").is_in(kept))


def _batches(dumped: pl.DataFrame, sink: Sink) -> list[dict[str, Any]]:
    """One row per rollout and folder; copies by several nodes count once.

    ``own_labels``: those its dump contains; ``labels``: those, and what else proves syncs of its process.
    """
    batches = dumped.to_dicts()
    kept: dict[Any, dict[str, Any]] = {}
    for batch in batches:
        for flag in ("readable", "has_dump", "has_train", "has_default", "recycled", "partial"):
            batch[flag] = bool(batch[flag])
        batch["own_labels"] = batch["labels"] or []
        batch["labels"] = set(batch["own_labels"])
        identity = (batch["rollout"], batch["digest"]) if batch["digest"] else (batch["rollout"], batch["root"])
        if identity in kept:
            sink.diagnose(
                "note", "dump-twice", "The same dump lies in two places; it is counted once.", source=batch["source"]
            )
        else:
            kept[identity] = batch
    return list(kept.values())


def _edges(frame: pl.DataFrame) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Per dump and label of its calls, their earliest end and latest start."""
    edges: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in frame.iter_rows(named=True):
        if row["calls"]:
            edges.setdefault((row["root"], row["rollout"]), []).append(row)
    return edges


def _event_processes(scalars: pl.DataFrame) -> list[Process]:
    """Read processes off their event files: a launch begins a new file, its first rollout is s0."""
    found: list[tuple[datetime, datetime, Process]] = []
    if scalars.is_empty():
        return []
    for _, file in sorted(scalars.group_by("source"), key=lambda item: str(item[1]["wall"].min())):
        process = Process("events")
        collected = file.filter(pl.col("tag").is_in(_COLLECTED_TAGS))
        trained = file.filter(pl.col("tag").is_in(_TRAINED_TAGS))
        scale = optimizer_steps(file)
        process.collected = {x // scale for x in collected["x"].to_list()}
        sizes: dict[int, dict[int, float | None]] = {}
        per_rollout = _per_rollout(file)
        for n, size in file.filter(pl.col("tag") == "train/global_batch_size").select("x", "value").iter_rows():
            sizes.setdefault(n // per_rollout, {})[n] = size
        for x in trained["x"].unique().to_list():
            train = Train(rollout=x // scale, completed=True, source=file["source"][0], line=None)
            train.steps = sizes.get(x // scale, {})
            process.trains[x // scale] = train
        ids = process.collected | set(process.trains)
        if not ids:
            continue
        synced = file.filter(pl.col("tag") == "perf/update_weights_time")["x"].n_unique()
        process.every_sync = synced == trained["x"].n_unique() > 1
        start, end = file["wall"].min(), file["wall"].max()
        assert isinstance(start, datetime) and isinstance(end, datetime)
        process.started, process.ended = start, end
        if found and start <= found[-1][1] and min(ids) >= min(found[-1][2].collected, default=0):
            earlier = found[-1][2]  # trainer and manager write a file each
            earlier.collected |= process.collected
            earlier.trains = {**process.trains, **earlier.trains}
            earlier.every_sync = earlier.every_sync or process.every_sync
            found[-1] = (found[-1][0], max(end, found[-1][1]), earlier)
        else:
            found.append((start, end, process))
    for _, _, process in found:
        process.start_lo = process.start_hi = min(process.collected | set(process.trains))
    return [process for _, _, process in found]


def _per_rollout(file: pl.DataFrame) -> int:
    """Optimizer steps per rollout: points of ``train/`` per point of the trainer's ``perf/``."""
    steps = file.filter(pl.col("tag") == "train/global_batch_size")["x"].n_unique()
    rollouts = file.filter(pl.col("tag").is_in(_TRAINED_TAGS))["x"].n_unique()
    return max(1, round(steps / rollouts)) if rollouts else 1


def optimizer_steps(file: pl.DataFrame) -> int:
    """How much the x axis of ``perf/`` grows per rollout: 1, or S under ``--wandb-always-use-train-step``."""
    per_rollout = _per_rollout(file)
    places = sorted(set(file.filter(pl.col("tag").is_in(_TRAINED_TAGS))["x"].to_list()))
    gaps = {later - earlier for earlier, later in pairwise(places)}
    return per_rollout if per_rollout > 1 and gaps == {per_rollout} else 1


Edges = Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]


def _assign(model: Model, edges: Edges, sink: Sink) -> None:
    """Give every dump its process, and processes of their own to dumps of launches that left no other trace."""
    owner = _owners_by_log(model)
    _owners_by_dumps(model, edges, owner)
    for at, batch in enumerate(model.batches):
        owner[at].batches.append(batch)
        batch["attempt"] = next(n for n, process in enumerate(model.processes) if process is owner[at])
    for before, process in zip([None, *model.processes], model.processes, strict=False):
        if process.batches and (process.seen_by == "dumps" or not process.launch_seen):
            process.start_lo, process.start_hi = p.start_of(process, before)
            _tell_start(process, sink)


def _owners_by_log(model: Model) -> dict[int, Process]:
    """Give a dump to the last process that collected its rollout, since a later dump overwrites an earlier one."""
    owner: dict[int, Process] = {}
    by_rollout: dict[int, list[int]] = {}
    for at, batch in enumerate(model.batches):
        by_rollout.setdefault(batch["rollout"], []).append(at)
    for rollout, places in by_rollout.items():
        takers = [
            q for q in model.processes if rollout in (q.saved or q.collected) or (rollout in q.trains and not q.saved)
        ]
        places.sort(key=lambda at: (str(model.batches[at]["last_enqueued"] or ""), at))
        for at, process in zip(reversed(places), reversed(takers), strict=False):
            owner[at] = process
    return owner


def _owners_by_dumps(model: Model, edges: Edges, owner: dict[int, Process]) -> None:
    """Give the dumps no log speaks of to the process whose dumps they continue, or to a new one."""
    numbers = {id(batch): at for at, batch in enumerate(model.batches)}
    for part in p.dump_processes(model.batches, edges):
        owners = [owner[numbers[id(batch)]] for batch in part.batches if numbers[id(batch)] in owner]
        left = [batch for batch in part.batches if numbers[id(batch)] not in owner]
        if left and not owners:
            owners = [Process("dumps", part.start_lo, part.start_hi, {batch["rollout"] for batch in left})]
            owners[0].unseen = part.unseen
            first = min(owners[0].collected)
            after = next((at for at, q in enumerate(model.processes) if (q.start_lo or 0) > first), None)
            model.processes.insert(len(model.processes) if after is None else after, owners[0])
        for batch in left:
            process = owners[-1] if batch["rollout"] > owners[0].last_collected else owners[0]
            owner[numbers[id(batch)]] = process
            process.cut_short = process.cut_short or batch["rollout"] > process.last_collected
            process.collected.add(batch["rollout"])


def _tell_torn(model: Model, sink: Sink) -> None:
    """Say where lines are missing inside a console, or after its end: event files may tell of later rollouts."""
    written = _event_processes(model.scalars)
    for ids in (lambda process: process.collected, lambda process: set(process.trains)):
        later = max((number for process in written for number in ids(process)), default=-1)
        last = max((number for process in model.processes for number in ids(process)), default=-1)
        if model.processes and model.processes[-1].seen_by == "console" and later > last:
            model.torn = model.processes[-1].cut_short = True
    if model.processes and model.torn:
        sink.diagnose(
            "error",
            "console-ends-early",
            "An event file tells of later rollouts than the console; what the console's end told is lost: restore it.",
            source=model.processes[-1].lines[-1]["source"],
            opens="training",
        )
    for process in model.processes:
        if process.seen_by == "console" and (number := process.torn) is not None:
            model.torn = True
            sink.diagnose(
                "warning",
                "console-lines-lost",
                f"Lines of the console are missing around rollout {number}, and with them perhaps what it told of "
                "dropped groups; restore the log.",
                source=process.lines[0]["source"],
                opens="fates",
            )


def _tell_start(process: Process, sink: Sink) -> None:
    source = process.batches[0]["source"]
    before = f" before that of rollout {min(process.collected)}" if process.collected else ""
    if process.start_hi != process.start_lo:
        sink.diagnose(
            "warning",
            "start-unknown",
            f"Dumps{before} are, or may be, missing: at which rollout the trainer was started is not known; "
            "keep the console log.",
            source=source,
        )
    elif process.start_lo:
        sink.diagnose(
            "note",
            "start-derived",
            f"No console log tells where the trainer was started; its first dump is of rollout {process.start_lo}, and "
            "holds only its first label, so it was started there.",
            source=source,
        )


def _clock(model: Model, sink: Sink) -> None:
    """Find the console's offset from UTC by what else tells the time of the same moments (pitfall 12)."""
    local = [line for line in model.lines if line["local"]]
    if not local:
        return
    quarter = timedelta(minutes=15)
    votes: Counter[int] = Counter()
    if not model.scalars.is_empty():
        for tag, kind in (("perf/rollout_time", "perf_rollout"), ("perf/train_time", "perf_train")):
            walls = dict(model.scalars.filter(pl.col("tag") == tag).select("x", "wall").iter_rows())
            for line in local:
                if line["kind"] == kind and line["rollout"] in walls:
                    votes[round((line["local"] - walls[line["rollout"]].replace(tzinfo=None)) / quarter)] += 1
    # A batch is saved some time after its last group was queued, never before: the smallest gap is the offset.
    gaps = [
        line["local"] - batch["last_enqueued"].replace(tzinfo=None)
        for process in model.processes
        for batches in [{batch["rollout"]: batch for batch in process.batches if batch["last_enqueued"]}]
        for line in process.lines
        if line["kind"] == "saved_rollout" and line["local"] and line["rollout"] in batches
        for batch in [batches[line["rollout"]]]
    ]
    if gaps and not votes:
        votes[round(min(gaps) / quarter)] += 1
    source = local[0]["source"]
    if votes:
        model.offset = votes.most_common(1)[0][0] * quarter
        model.offset_known = True
        sink.diagnose(
            "note",
            "console-time-zone",
            "Console times are local and name no zone; other times of the run put them "
            f"{_hours(model.offset)} from UTC.",
            source=source,
        )
    else:
        sink.diagnose(
            "note",
            "console-time-zone",
            "Console times are local and name no zone; they are taken for UTC.",
            source=source,
        )


def _hours(offset: timedelta) -> str:
    return f"{offset.total_seconds() / 3600:+g} h"


def completed(model: Model, attempt: int, rollout: int) -> tuple[bool | None, str, str | None, int | None]:
    """Whether a rollout was trained, with evidence, source and line (guide 5.2, 5.4, pitfall 10)."""
    process = model.processes[attempt]
    batch = model.by_rollout.get((attempt, rollout))
    train = process.trains.get(rollout)
    if train is not None and train.critic_only:
        return False, "derived", train.source, train.line
    if batch is not None and _train_dump_proves(model, attempt, batch):
        return True, "recorded", batch["train_source"], None
    if train is not None and train.completed:
        return True, "recorded", train.source, train.line
    source = batch["source"] if batch else (train.source if train else None)
    if rollout <= model.proven[attempt]:
        return True, "derived", source, None
    if process.seen_by == "console" and process.trains and not process.cut_short:
        return False, "derived", train.source if train else source, train.line if train else None
    if model.train_dumps:
        return False, "derived", source, None
    return None, "inferred", source, None


def _train_dump_proves(model: Model, attempt: int, batch: Mapping[str, Any]) -> bool:
    """Whether the batch's train dump is this attempt's: it holds its samples, or no other attempt can have left it."""
    if not batch["has_train"]:
        return False
    if batch["matched"]:
        return True
    others = any(batch["rollout"] in q.trains or batch["rollout"] in q.collected for q in model.processes[:attempt])
    return not others and (not batch["train_readable"] or not batch["readable"])


def proven_up_to(model: Model, attempt: int) -> int:
    """Return the last rollout whose training something later proves (-1: none).

    Proofs: a later training, a dump of r + 2 (its collection begins after the training of r), a label that needs the
    sync after r, a later attempt that resumes after r.
    """
    process = model.processes[attempt]
    after = [rollout - 1 for rollout, train in process.trains.items() if train.completed]
    after += [batch["rollout"] - 1 for batch in process.batches if _train_dump_proves(model, attempt, batch)]
    after.append(process.last_collected - 2)
    after += [later.start_lo - 1 for later in model.processes[attempt + 1 :] if later.start_lo is not None]
    if not process.critic_only:
        after += [lo - 1 for lo, _ in model.versions[attempt].by_label.values()]
    return max(after)


def rollouts_of(process: Process) -> list[int]:
    """Return all rollout ids of a process: they have no gaps, so one that no file speaks of has lost its files."""
    known = process.collected | set(process.trains) | {batch["rollout"] for batch in process.batches}
    if process.start_hi is not None and known:
        known |= set(range(process.start_hi, max(known)))
    return sorted(known)

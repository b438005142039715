"""The parser object: detection, units, and the order in which ``finish`` writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import polars as pl

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import Attempt, Bound, Card, Detection, Guarantee, Hint, RunFacts, Sign, Sink, Staged, Unit
from staleness_audit.readers.numbers import MOST, is_whole
from staleness_audit.readers.scalars import scalar_files, scalar_pieces
from staleness_audit.readers.torch_files import BadTorchFile, open_torch
from staleness_parsers.slime import files, finish, life, rows
from staleness_parsers.slime.card import CARD, NO_LIMIT, UNIT
from staleness_parsers.slime.console import read_console
from staleness_parsers.slime.dumps import read_batch, read_eval
from staleness_parsers.slime.eras import Eras, divide
from staleness_parsers.slime.finish import Model
from staleness_parsers.slime.scalars import STEPS, read_event_file

_DATASETS: Final = {"checkpoint": pl.Int64, "sample_index": pl.Int64, "source": pl.String}
_PROGRESS: Final = {"step", "perf_train", "collected", "saved_rollout", "train_end"}


class SlimeParser:
    """slime (THUDM/slime), releases 0.2.2 to October 2026."""

    name = "slime"
    version = "1"
    card: Card = CARD
    writes_blocks = True

    def detect(self, run: RunFiles) -> Detection | None:
        """Recognise dumps by the keys slime writes first, consoles by their messages; event files only support that."""
        found = [dump for dump in files.dumps(run) if dump.sure]
        evidence = [f"{dump.source}: slime's {dump.kind} dump" for dump in found[:3] if dump.kind != "dataset"]
        weak: list[str] = []
        for file in files.consoles(run)[:50]:
            head = run.head(file.source, files.HEAD_BYTES)
            if any(mark in head for mark in files.CONSOLE_MARKS):
                evidence.append(f"{file.source}: messages of slime's rollout manager")
            elif all(mark in head for mark in files.CONSOLE_WEAK_MARKS):
                weak.append(f"{file.source}: timer messages as slime prints them")
        if evidence:
            return Detection(tuple(evidence[:5]))
        for file in scalar_files(run)[:10]:
            head = run.head(file.source, files.HEAD_BYTES)
            if b"rollout/response_len/mean" in head and b"perf/rollout_time" in head:
                weak.append(f"{file.source}: scalars as slime names them")
        weak += [f"{dump.source}: a checkpoint of slime's data source" for dump in found if dump.kind == "dataset"][:1]
        return Detection(tuple(weak[:5]), strong=False) if weak else None

    def plan(self, run: RunFiles) -> Iterator[Unit]:
        """One unit per rollout id (its dumps), per evaluation dump, per piece of a console log or event file."""
        found = list(files.dumps(run))
        home = files.roots(found)
        batches: dict[tuple[str, int], dict[str, list[str]]] = {}
        for dump in found:
            if dump.kind in {"rollout", "train"}:
                parts = batches.setdefault((home[dump.source], dump.rollout), {"rollout": [], "train": []})
                parts[dump.kind].append(dump.source)
            else:
                options = {"rollout": dump.rollout, "source": dump.source}
                yield Unit(dump.kind, (run.whole(dump.source),), options)
        for (root, rollout), parts in sorted(batches.items(), key=lambda item: (item[0][1], item[0][0])):
            for at, source in enumerate(parts["rollout"][1:], 1):  # a second dump of the same id in the same folder
                options = {"root": f"{root}#{at}", "rollout": rollout, "rollout_dumps": [source], "train": []}
                yield Unit("batch", (run.whole(source),), options)
            sources = [*parts["rollout"][:1], *parts["train"]]
            options = {"root": root, "rollout": rollout, "rollout_dumps": parts["rollout"][:1], "train": parts["train"]}
            yield Unit("batch", tuple(run.whole(source) for source in sources), options)
        for file in files.consoles(run):
            yield from (Unit("console", (piece,)) for piece in run.split(file.source))
        for file in scalar_files(run):
            yield from (Unit("events", (piece,)) for piece in scalar_pieces(run, file.source, STEPS))

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Stage what one unit says."""
        if unit.kind == "batch":
            read_batch(unit, run, sink)
        elif unit.kind == "eval":
            read_eval(unit, run, sink)
        elif unit.kind == "console":
            read_console(unit, run, sink)
        elif unit.kind == "events":
            read_event_file(unit, run, sink)
        else:
            _read_dataset(unit, run, sink)

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Join the units: processes, versions, steps, then everything that hangs on them."""
        model = finish.build(staged, run, sink)
        _absent(model, staged, write_rows(model, staged, sink), sink)
        return facts_of(model)


@dataclass(frozen=True)
class Beside:
    """What a framework on top of slime tells of samples.

    Arguments:
        write: writes it of the samples of some eras (``rows.place_samples``).
        told: by unit, all that is made from beside the unit's samples.
    """

    write: Callable[[pl.DataFrame, Sink], None]
    told: Mapping[str, str]


def write_rows(model: Model, staged: Staged, sink: Sink, beside: Beside | None = None) -> Eras | None:
    """Write all event tables; return the eras of the dumped samples."""
    steps = rows.write_steps(model, sink)
    rows.write_syncs(model, sink)
    eras = divide(model, steps, staged, beside.told if beside else {}, sink)
    if eras is not None:
        rows.tell_odd(eras, staged, sink)
        sink.write_eras(eras.listed(), partial(_write_samples, eras, staged, beside))
    rows.write_orphans(model, steps, staged, sink)
    life.write_lost_groups(model, sink)
    life.write_constraints(model, _known_members(model), sink)
    life.write_reported(model, sink)
    _diagnose_unread(model, staged, sink)
    return eras


def _write_samples(all_eras: Eras, staged: Staged, beside: Beside | None, numbers: Sequence[int], sink: Sink) -> None:
    """Write what the dumps of some eras tell."""
    eras = all_eras.of(numbers)
    samples = rows.place_samples(eras, staged)
    if samples.is_empty():
        return
    rows.write_trajectories(samples, sink)
    rows.write_spans(eras, samples, staged, sink)
    life.write_events(eras, samples, staged, sink)
    if beside is not None:
        beside.write(samples, sink)


def _read_dataset(unit: Unit, run: RunFiles, sink: Sink) -> None:
    source = str(unit.options["source"])
    try:
        with open_torch(run, source) as value:
            index = value.get("sample_index") if isinstance(value, dict) else None
    except BadTorchFile as error:
        sink.diagnose("note", "dataset-unreadable", f"Data-source checkpoint not read: {error}.", source=source)
        return
    if not is_whole(index) or not 0 <= index < MOST:
        sink.diagnose("note", "dataset-unreadable", "Data-source checkpoint without a sample_index.", source=source)
        return
    row = {"checkpoint": int(unit.options["rollout"]), "sample_index": index, "source": source}
    sink.write("slime_datasets", pl.DataFrame([row], schema=_DATASETS))


def _known_members(model: Model) -> set[tuple[int, int]]:
    """Return the steps whose trajectories the dumps name."""
    return {
        (batch["attempt"], batch["rollout"])
        for batch in model.batches
        if (batch["readable"] and not batch["skipped"])
        or (batch["train_readable"] and batch["unmatched"] and not batch["readable"])
    }


def _diagnose_unread(model: Model, staged: Staged, sink: Sink) -> None:
    """Say what an unreadable or missing dump can have held: training if its rollout was or may have been trained."""
    for batch in model.batches:
        if batch["readable"]:
            continue
        done = finish.completed(model, batch["attempt"], batch["rollout"])[0]
        what = "cannot be read" if batch["has_dump"] else "is missing"
        so = "was not trained" if done is False else "the versions of its tokens are only bounded"
        sink.diagnose(
            "note" if done is False else "warning",
            "rollout-dump-lost",
            f"The rollout dump of rollout {batch['rollout']} {what}; {so}.",
            source=batch["source"] or batch["train_source"],
            opens="fates"
            if done is False
            else "training"
            if batch["has_dump"] or not batch["train_readable"]
            else None,
        )
    if staged.has("slime_unread"):
        alone = not model.batches and not model.console
        for row in staged.scan("slime_unread").collect().iter_rows(named=True):
            sink.diagnose(
                row["severity"],
                row["code"],
                row["message"],
                source=row["source"],
                locator=row["locator"],
                opens="training" if alone else None,
            )


def _absent(model: Model, staged: Staged, eras: Eras | None, sink: Sink) -> None:
    """Count the trajectories that were admitted and are in no dump (guide section 6, "Unknown")."""
    last = len(model.processes) - 1
    newest = max(
        (batch["max_index"] for batch in model.batches if batch["attempt"] == last and batch["max_index"] is not None),
        default=None,
    )
    if eras is None or newest is None:
        return
    admitted, source = newest + 1, None
    if staged.has("slime_datasets"):
        checkpoint = staged.scan("slime_datasets").sort("checkpoint").collect().row(-1, named=True)
        if checkpoint["sample_index"] > admitted:
            admitted, source = checkpoint["sample_index"], checkpoint["source"]
    indices = eras.keys.str.to_integer(strict=False)
    seen = indices.drop_nulls().filter(indices.drop_nulls() < admitted).n_unique()
    if admitted > seen:
        sink.diagnose(
            "note",
            "absent-trajectories",
            f"At least {admitted - seen} admitted trajectories are in no dump: left over, lost or "
            "filtered, which nothing tells.",
            source=source,
        )


def facts_of(model: Model) -> RunFacts:
    """Say what holds for the run as a whole."""
    kinds = {line["kind"] for line in model.lines}
    fully_async = bool(kinds & {"worker", "collect", "collected", "collected_pool", "collect_old"})
    sizes = {batch["groups"] for batch in model.batches if batch["groups"]}
    prompts = {line["count"] for line in model.lines if line["kind"] in {"collect", "collect_old"} and line["count"]}
    groups = next(iter(prompts or sizes)) if len(prompts or sizes) == 1 else None
    attempts = []
    for number, process in enumerate(model.processes):
        begun, over = process.started, process.ended
        if process.seen_by == "console":
            begun, over = model.utc(begun), model.utc(over)
        lo, hi = process.start_lo, process.start_hi
        attempts.append(
            Attempt(
                number,
                hi - 1 if hi is not None and (hi or number) else None,
                lo - 1 if lo is not None and hi is not None and lo < hi else None,
                begun,
                over,
            )
        )
    return RunFacts(
        framework="slime",
        unit=UNIT,
        dialect=_dialect(model, kinds, fully_async=fully_async),
        config=_config(model, groups),
        bound=Bound(None, None, None, "slime states no bound on staleness; give one with --bound"),
        guarantee=_guarantee(model, kinds, fully_async=fully_async),
        attempts=tuple(attempts) or (Attempt(0),),
        signs=_signs(model),
        unseen=frozenset({"dropped", "cancelled", "lost", "pending"}),
        hints=_hints(model),
        groups_per_step=groups,
    )


def _config(model: Model, groups: int | None) -> Mapping[str, Any]:
    members = {batch["members"] for batch in model.batches if batch["members"]}
    trains = [train for process in model.processes for train in process.trains.values() if train.steps]
    intervals = {versions.intervals for versions in model.versions}
    only = next(iter(intervals)) if len(intervals) == 1 else ()
    ahead = {process.one_ahead for process in model.processes} - {None}
    found = {
        "rollout_batch_size": groups,
        "n_samples_per_prompt": members.pop() if len(members) == 1 else None,
        "global_batch_size": max((train.global_batch for train in trains if train.global_batch), default=None),
        "num_steps_per_rollout": max((len(train.steps) for train in trains), default=None),
        "update_weights_interval": only[0] if len(only) == 1 else None,
        "start_rollout_id": [
            process.start_lo if process.start_lo == process.start_hi else None for process in model.processes
        ],
        "update_weight_mode": "delta" if any(versions.delta for versions in model.versions) else None,
        "loop": None if len(ahead) != 1 else "train_async.py" if True in ahead else "train.py",
    }
    return {key: value for key, value in found.items() if value is not None}


def _dialect(model: Model, kinds: set[str], *, fully_async: bool) -> str | None:
    """Name the rollout loop that the console's words are of (guide section 1); None if no console tells."""
    if kinds & {"collect_old", "collected_old"}:
        return "fully-async, v0.2.2 to v0.2.4"
    if "collected_pool" in kinds:
        return "fully-async, pooled worker"
    if fully_async:
        ahead = {process.one_ahead for process in model.processes} - {None}
        if len(ahead) != 1:
            return "fully-async"
        return f"fully-async, {'train_async.py (to August 2026)' if True in ahead else 'train.py (later)'}"
    return "train_async.py: one rollout ahead" if model.console else None


def _guarantee(model: Model, kinds: set[str], *, fully_async: bool) -> Guarantee:
    recycled = "partial" in kinds or any(batch["recycled"] or batch["partial"] for batch in model.batches)
    ahead = {process.one_ahead for process in model.processes}
    if fully_async or recycled or not model.console or None in ahead:
        return Guarantee("none", NO_LIMIT)
    if ahead == {False}:
        return Guarantee(0, "the default rollout without partial samples, collected and trained in turns (train.py)")
    interval = max(max(versions.intervals) for versions in model.versions)
    return Guarantee(
        interval,
        "the default rollout without partial samples, one batch ahead, synced every "
        f"{interval} rollouts (train_async.py)",
    )


def _signs(model: Model) -> tuple[Sign, ...]:
    """Return the last progress and the waiting since then: slime prints no line that says finished or crashed."""
    last = max((at for at, line in enumerate(model.lines) if line["kind"] in _PROGRESS), default=None)
    if last is None:
        return ()
    signs = [_sign(model, "progress", model.lines[last], "training went on")]
    waiting = [line for line in model.lines[last + 1 :] if line["kind"] == "waiting"]
    signs += [
        _sign(model, "waiting", line, "the trainer waits for finished groups")
        for line in (*waiting[:1], *waiting[1:][-1:])
    ]
    return tuple(signs)


def _sign(model: Model, kind: Literal["progress", "waiting"], line: Mapping[str, Any], what: str) -> Sign:
    return Sign(kind, model.utc(line["local"]), what, line["source"], line["line"])


def _hints(model: Model) -> tuple[Hint, ...]:
    hints = []
    if not any(batch["readable"] for batch in model.batches):
        hints.append(Hint("the version of any token", "run with --dump-details DIR"))
    elif not model.train_dumps:
        hints.append(
            Hint(
                "which samples were trained, and under which final mask",
                "run with --dump-details DIR (or --save-debug-train-data)",
            )
        )
    if not model.console:
        hints.append(
            Hint(
                "times of training and syncs, and where launches begin",
                "keep the console log of the job beside the dumps",
            )
        )
    if any(batch["readable"] and batch["last_enqueued"] is None for batch in model.batches):
        hints.append(
            Hint(
                "which tokens each engine call made", "use a release of 2026-03-29 or later, whose samples carry traces"
            )
        )
    return tuple(hints)

"""verl: the V1 trainers, the fully-async policy, and one step off, from what their loggers, dumps and checkpoints hold.

Versions. V1: the weights labelled v are those after global step v, v0 the initial ones; global step s trains on label
s - 1 and publishes s: ``v_train = s - 1``. A row's stamps ``min_global_steps`` and ``max_global_steps`` are such
labels; its tokens lie between them, and a group admitted at step a has none older than a - 1. Until 2026-07-08 a
global step of ``separate_async`` was one mini-batch: labels are multiples of k, and the metrics, divided by k, are
multiplied again.

Fully async: a training step is one parameter version, ``trigger_parameter_sync_step`` micro-steps; the rows of the
table ``steps`` are micro-steps. Micro-step g of a fresh run trains on version ``(g - 1) // trigger``; after a resume
from V the first is ``V * trigger + 2``. The record of step v speaks of micro-steps ``(v - 1) * trigger .. v * trigger
- 1``.

One step off: labels are one ahead of the weights; batch s is made under v = max(s - 2, 0) and trained on s - 1.

Bound and guarantee. V1: ``max_off_policy_threshold`` T means ``v_train - v_gen <= T - 1``, for a group admitted at step
a is evicted when s - a + 1 > T. Strict with ``drop``; with ``wait`` the same number is wanted and nothing enforces it;
without a threshold, or with a custom sampler, there is none. Fully async: ``staleness_threshold`` is a ratio of samples
and converts into no bound; 0 is strict at 0. One step off: 1, by construction. ``card`` says it mode by mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import polars as pl

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import Detection, RunFacts, Sink, Staged, Unit
from staleness_audit.readers.numbers import near
from staleness_audit.readers.scalars import scalar_pieces
from staleness_parsers.verl import (
    console,
    dumps,
    facts,
    fates,
    fully_async,
    fully_async_rows,
    metrics,
    state,
    v1,
    v1_rows,
)
from staleness_parsers.verl.card import CARD
from staleness_parsers.verl.files import METRIC_MARKS, Survey, survey
from staleness_parsers.verl.launches import Launch, Row, launches
from staleness_parsers.verl.settings import CONFIG_TABLE, Settings, choose, stage_config


class Verl:
    """The plug-in; see the module's docstring and ``staleness_audit.parser.Parser``."""

    name = "verl"
    version = "1"
    card = CARD
    writes_blocks = True

    def detect(self, run: RunFiles) -> Detection | None:
        """Recognise checkpoints and dumps by their names, rollout dumps, metrics and consoles by their first bytes."""
        files = survey(run)
        strong = [
            f"{entry.file.source}: a TransferQueue checkpoint beside a model checkpoint"
            for entry in files.checkpoints[:1]
        ]
        strong += [f"{entry.file.source}: a mini-batch dumped by skip.rollout_tq" for entry in files.batches[:1]]
        strong += [f"{entry.file.source}: a group dumped by skip.async_rollout" for entry in files.groups[:1]]
        strong += [f"{file.source}: actors or records of verl's trainers" for file in files.consoles[:1]]
        strong += [
            f"{file.source}: metrics as verl's file logger names them"
            for file in files.metrics
            if any(mark in run.head(file.source, 1 << 16) for mark in METRIC_MARKS)
        ][:1]
        strong += [
            f"{file.source}: a configuration of verl's trainer"
            for file in files.configs
            if b"\nactor_rollout_ref:" in b"\n" + run.head(file.source, 1 << 20)
        ][:1]
        weak = [
            f"{entry.file.source}: rows as verl's rollout dump writes them"
            for entry in files.rollouts
            if entry.file.bytes
        ][:1]
        if strong:
            return Detection((*strong, *weak))
        return Detection(tuple(weak), strong=False) if weak else None

    def belong_together(self, run: RunFiles, folders: Sequence[str]) -> bool:
        """Batches of the rollout cache have a folder each, named by number, in one that names their sizes."""
        return all(re.fullmatch(r"(?:.*/)?GBS\d+_[^/]*/\d+", folder) for folder in folders)

    def plan(self, run: RunFiles) -> Iterator[Unit]:
        """One unit per file and piece of a log, except that a checkpoint and its storage units are one."""
        files = survey(run)
        names = {file.name: file.source for file in run.files}
        for file in files.configs:
            beside = names.get(file.name.removesuffix("config.yaml") + "hydra.yaml")
            yield Unit("config", tuple(run.whole(source) for source in (file.source, beside) if source))
        for file in files.consoles:
            yield from (Unit("console", (piece,)) for piece in run.split(file.source, begins=console.BEGINS))
        for file in files.metrics:
            yield from (Unit("metrics", (piece,)) for piece in run.split(file.source))
        for file in files.events:
            yield from (Unit("events", (piece,)) for piece in scalar_pieces(run, file.source))
        for entry in files.rollouts:
            yield from (Unit("rollout", (piece,), {"step": entry.number}) for piece in run.split(entry.file.source))
        for entry in files.checkpoints:
            folder = entry.file.name.rsplit("/", 1)[0]
            storage = [
                file.source
                for file in run.files
                if file.name.startswith(f"{folder}/simple_storage/") and file.name.endswith(".pkl")
            ]
            pieces = tuple(run.whole(source) for source in (entry.file.source, *storage))
            yield Unit("checkpoint", pieces, {"source": entry.file.source, "step": entry.number, "storage": storage})
        for entry in files.batches:
            options = {"source": entry.file.source, "step": entry.number, "part": entry.part}
            yield Unit("batch", (run.whole(entry.file.source),), options)
        for entry in files.groups:
            options = {"source": entry.file.source, "feed": entry.number}
            yield Unit("group", (run.whole(entry.file.source),), options)

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Stage what one file says; nothing here is understood without the others."""
        piece = unit.pieces[0]
        if unit.kind == "config":
            stage_config(run, unit.pieces, sink)
        elif unit.kind == "console":
            console.stage_console(run, piece, sink)
        elif unit.kind == "metrics":
            metrics.stage_metrics(run, piece, sink)
        elif unit.kind == "events":
            metrics.stage_events(run, piece, sink)
        elif unit.kind == "rollout":
            dumps.stage_rollouts(run, piece, int(unit.options["step"]), sink)
        else:
            {"checkpoint": state.stage_checkpoint, "batch": state.stage_batch, "group": state.stage_group}[unit.kind](
                unit, run, sink
            )

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Join the units: launches first, then the steps of the trainer that ran."""
        files = survey(run)
        records = metrics.of_one_run(metrics.joined(_rows(staged, metrics.TABLE)), sink)
        records = near(near(records, "step", None, sink), "global_step", None, sink)
        messages = console.told(_rows(staged, console.TABLE))
        for kind in ("micro", "dumped", "sync"):
            messages = near(messages, "a", {kind}, sink)
        configs = choose(_rows(staged, CONFIG_TABLE))
        settings = configs[-1] if configs else Settings()
        rule = _rule(settings, records, messages, files, staged)
        found = launches(records, messages, by_version=rule == "fa")
        seen = {
            "rollouts": bool(files.rollouts),
            "checkpoints": bool(files.checkpoints or files.batches),
            "metrics": bool(records),
            "groups": bool(files.groups),
            "old_names": any(record["stale_old"] is not None for record in records),
            "old_groups": any(b"param_version_start" in run.head(entry.file.source, 1 << 20) for entry in files.groups),
        }
        scale, trigger, unseen = 1, 1, frozenset({"dropped", "lost", "pending"})
        if rule == "fa":
            model = fully_async.build(settings, found, staged, sink)
            fully_async_rows.write_trained(model, sink)
            found, trigger = model.launches, model.trigger
            unseen = _unseen(found)
        else:
            steps = v1.build(settings, found, staged, rule, sink)
            dated = v1_rows.write_trained(steps, sink)
            scale = steps.scale
            if rule == "v1":
                unseen = fates.write_fates(steps, dated, sink)
        if not any(launch.records for launch in found) and not files.rollouts and not files.checkpoints:
            sink.diagnose(
                "warning",
                "no-steps",
                "No metrics, dumps or checkpoints tell which steps were trained: keep the console, "
                "trainer.rollout_data_dir or the file logger's output.",
                opens="training",
            )
        for file in files.unreadable:
            sink.diagnose(
                "warning",
                "file-unreadable",
                "The compressed file cannot be read from its first byte on; if it was a log of this run, pack it "
                "again.",
                source=file.source,
                opens="training",
            )
        _remark(settings, configs, found, sink)
        figures = pl.DataFrame(list(facts.reported(found, rule, scale, trigger)), infer_schema_length=None)
        if figures.height:
            sink.write("reported", figures)
        return facts.facts(settings, found, rule, scale, unseen=unseen, seen=seen)


def _rows(staged: Staged, table: str) -> list[Row]:
    return list(staged.scan(table).collect().iter_rows(named=True)) if staged.has(table) else []


def _rule(settings: Settings, records: Sequence[Row], messages: Sequence[Row], files: Survey, staged: Staged) -> str:
    """Which trainer's rules hold: ``v1``, ``fa``, ``oso``, or ``other`` (a trainer whose versions nothing tells)."""
    actors = {message["text"] for message in messages if message["kind"] == "launch"}
    if (
        settings.trainer == "fully_async"
        or files.groups
        or any(actor.startswith("FullyAsync") for actor in actors)
        or any(row["fa_version"] is not None for row in records)
    ):
        return "fa"
    if settings.trainer == "one_step_off" or any(actor.startswith("OneStep") for actor in actors):
        return "oso"
    named = staged.has(dumps.HEADS) and bool(staged.scan(dumps.HEADS).select(pl.col("keyed").any()).collect().item())
    if settings.trainer in ("separate_async", "colocate_async", "sync") or files.checkpoints or files.batches or named:
        return "v1"
    return "v1" if any(row["worst_max"] is not None for row in records) else "other"


def _unseen(found: Sequence[Launch]) -> frozenset[str]:
    """Fates a fully-async run does not show: the queue drops silently, but counts what it dropped."""
    records = [record for launch in found for record in launch.records.values()]
    dropped = any(record["fa_dropped"] for record in records) or any(launch.said("full") for launch in found)
    counted = bool(records) or any(launch.consoled for launch in found)
    unseen = {"pending"}
    if dropped or not counted:
        unseen.add("dropped")
    if len(found) > 1 or not counted:
        unseen.add("lost")
    return frozenset(unseen)


def _remark(settings: Settings, configs: Sequence[Settings], found: Sequence[Launch], sink: Sink) -> None:
    """Point out what makes the run's own figures mean something else."""
    if len({str(item.get(key)) for item in configs for key in ("trainer.v1.sampler",)}) > 1:
        sink.diagnose(
            "warning",
            "settings-changed",
            "The launches of this run had different sampler settings; those of the last one are used.",
            source=settings.source,
        )
    if settings.count("trainer.critic_warmup"):
        sink.diagnose(
            "note",
            "critic-warmup",
            "While the critic warms up, versions advance without a change of the policy (trainer.critic_warmup).",
            source=settings.source,
        )
    for launch in found:
        unheard = settings.may_replay("rollout_tq") and not launch.consoled
        for message in launch.said("injected")[:1] or [{"source": settings.source, "line": None}] * unheard:
            sink.diagnose(
                "warning",
                "cached-rollouts",
                "Cached mini-batches of an earlier run were trained, stamped with the current step, or "
                "no console denies it (skip.rollout_tq): real versions are not known.",
                source=message["source"],
                line=message["line"],
                opens="training",
            )


PARSER = Verl()

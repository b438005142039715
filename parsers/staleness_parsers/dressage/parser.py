"""The parser object: slime's, with Dressage's own reader of samples and its sessions beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import polars as pl

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import Bound, Card, Detection, Guarantee, Hint, RunFacts, Sign, Sink, Staged, Unit
from staleness_audit.readers.scalars import scalar_files
from staleness_audit.readers.torch_files import BadTorchFile, open_torch
from staleness_parsers.dressage import fates, sessions, truncation
from staleness_parsers.dressage.card import CARD, KEEP, NO_CONVERSION, NO_LIMIT
from staleness_parsers.dressage.console import MARKS, read_console
from staleness_parsers.dressage.story import Story, tell
from staleness_parsers.dressage.tokens import Member, as_dict, read_member, read_sample, session_of
from staleness_parsers.slime import files, finish
from staleness_parsers.slime import processes as p
from staleness_parsers.slime.calls import Sample, label_number
from staleness_parsers.slime.dumps import read_batch
from staleness_parsers.slime.finish import Model
from staleness_parsers.slime.parser import Beside, SlimeParser, facts_of, write_rows

_MEMBERS: Final[dict[str, Any]] = {
    "session": pl.String,
    "alias": pl.String,
    "instance": pl.String,
    "group_index": pl.Int64,
    "group": pl.Int64,
    "failed": pl.List(pl.String),
    "truncated": pl.Boolean,
    "source": pl.String,
}
_DUMP_BYTES: Final = 1 << 20
_DUMP_MARKS: Final = (b"dressage_", b"parent_traj_id", b"proxy_extra_info")


class DressageParser(SlimeParser):
    """Dressage, August to October 2026, on slime between v0.3.0 and v0.3.1."""

    name = "dressage"
    version = "1"
    card: Card = CARD

    def detect(self, run: RunFiles) -> Detection | None:
        """Recognise Dressage's messages, its sessions' payloads, and its metadata in slime's dumps."""
        evidence = [
            f"{file.source}: messages of Dressage"
            for file in files.consoles(run)[:50]
            if any(mark in run.head(file.source, files.HEAD_BYTES) for mark in MARKS)
        ]
        for file in sessions.files(run)[:5]:
            head = run.head(file.source)
            if b'"blackbox_type"' in head or (b'"session_id"' in head and b'"instance_id"' in head):
                evidence.append(f"{file.source}: the payload of a Dressage session")
        for dump in [dump for dump in files.dumps(run) if dump.kind == "rollout"][:2]:
            head = run.head(dump.source, _DUMP_BYTES)
            if any(mark in head for mark in _DUMP_MARKS):
                evidence.append(f"{dump.source}: slime's rollout dump with Dressage's metadata")
        if evidence:
            return Detection(tuple(evidence[:5]))
        for file in scalar_files(run)[:10]:
            if b"staleness/version_span_max" in run.head(file.source, files.HEAD_BYTES):
                return Detection((f"{file.source}: scalars as Dressage names them",), strong=False)
        return None

    def plan(self, run: RunFiles) -> Iterator[Unit]:
        """Plan slime's units, the logs once more for Dressage's lines, and the sessions."""
        yield from super().plan(run)
        yield from (Unit("dressage", (piece,)) for file in files.consoles(run) for piece in run.split(file.source))
        yield from sessions.units(run)

    def read(self, unit: Unit, run: RunFiles, sink: Sink) -> None:
        """Stage what one unit says."""
        if unit.kind == "batch":
            _read_batch(unit, run, sink)
        elif unit.kind == "dressage":
            read_console(unit, run, sink)
        elif unit.kind == "sessions":
            sessions.read_sessions(unit, run, sink)
        else:
            super().read(unit, run, sink)
            if unit.kind == "eval":
                _read_eval(unit, run, sink)

    def finish(self, staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
        """Join the units as slime's parser does, then tell what became of the sessions."""
        model = finish.build(staged, run, sink)
        if not (model.lines or model.batches) and model.scalars.is_empty():
            message = "Only sessions and the proxy's log are here, which do not tell what was trained."
            sink.diagnose("warning", "no-records", message, opens="training")
        members, payloads = _members(staged), _payloads(staged)
        story = tell(model, members, staged)
        _learn_labels(model, payloads, story)
        own = fates.of_this_run(members, payloads, sink)
        ends, cut = fates.ends_of(members, own), truncation.cut_off(members, staged)
        left = fates.rows_of_left(model, members, own, staged, story, sink)
        told = _told(ends, cut, *left.values())
        write_rows(model, staged, sink, Beside(partial(_write_beside, ends, cut, left), told))
        fates.write_left(left, None, sink)
        if not own["finished"].any():
            fates.write_counted(model, story, sink)
        return _facts(model, staged, story, payloads)


def _write_beside(
    ends: pl.DataFrame, cut: pl.DataFrame, left: Mapping[str, pl.DataFrame], samples: pl.DataFrame, sink: Sink
) -> None:
    """Write what payloads tell of dumped samples: when their sessions finished, and which tokens were cut off.

    And those of their groups that are in no dump (``left``), so that a group is told of in one place.
    """
    fates.write_finished(samples, ends, sink)
    truncation.write_cut_tokens(samples, cut, sink)
    fates.write_left(left, samples["unit"], sink)


def _told(*frames: pl.DataFrame) -> dict[str, str]:
    """Return by unit all that frames say of it."""
    told: dict[str, str] = {}
    for number, frame in enumerate(frames):
        values = [
            pl.col(name).to_physical().cast(pl.String).fill_null("\0") for name in frame.columns if name != "unit"
        ]
        row = pl.concat_str(values, separator="\t").sort().str.join("\n").alias("rows")
        for unit, rows in frame.drop_nulls("unit").group_by("unit").agg(row).iter_rows():
            told[unit] = f"{told.get(unit, '')}{number}\n{rows}\n\n"
    return told


def _read_batch(unit: Unit, run: RunFiles, sink: Sink) -> None:
    found: list[Member] = []

    def reader(record: Mapping[str, Any]) -> Sample | None:
        if member := read_member(record):
            found.append(member)
        return read_sample(record)

    read_batch(unit, run, sink, reader)
    source = next(iter(unit.options["rollout_dumps"]), None)
    rows = [{**vars(member), "failed": list(member.failed), "source": source} for member in found]
    sink.write("dressage_members", pl.DataFrame(rows, schema=_MEMBERS))


def _read_eval(unit: Unit, run: RunFiles, sink: Sink) -> None:
    """Stage which sessions were for evaluation; what is wrong with the dump, slime's reader says."""
    names = []
    try:
        with open_torch(run, str(unit.options["source"])) as value:
            records = as_dict(value).get("samples")
            names = [session_of(as_dict(record)) for record in records] if isinstance(records, list) else []
    except BadTorchFile as error:
        sink.diagnose(
            "note",
            "eval-sessions-unknown",
            f"Which sessions were for evaluation is not known: {error}.",
            source=str(unit.options["source"]),
            opens="fates",
        )
    rows = [{"session": name} for name in names if name is not None]
    sink.write("dressage_evals", pl.DataFrame(rows, schema={"session": pl.String}))


def _members(staged: Staged) -> pl.DataFrame:
    if not staged.has("dressage_members"):
        return pl.DataFrame(schema={**_MEMBERS, "unit": pl.String})
    return staged.scan("dressage_members", named=True).unique().sort("session", "source").collect()


def _payloads(staged: Staged) -> pl.DataFrame:
    """Return what payloads say of sessions, in the order of their names."""
    if not staged.has("dressage_sessions"):
        return pl.DataFrame(schema={**sessions.SESSIONS, "unit": pl.String})
    return staged.scan("dressage_sessions", named=True).sort("source").collect()


def _learn_labels(model: Model, payloads: pl.DataFrame, story: Story) -> None:
    """Give meaning also to labels that only sessions outside the dumps or rejections bear: they prove syncs, too."""
    if not story.single or not model.processes[0].batches:
        return
    found = {label_number(label) for line in story.of("rejected") for label in line["labels"]} - {None}
    found |= set(payloads["labels"].explode().unique().drop_nulls())
    process = model.processes[0]
    process.batches[0]["labels"] = process.batches[0]["labels"] | found
    model.versions[0] = p.label_versions(process)
    model.proven[0] = finish.proven_up_to(model, 0)


def _facts(model: Model, staged: Staged, story: Story, payloads: pl.DataFrame) -> RunFacts:
    plain = facts_of(model)
    keep = _keep_versions(model, story)
    groups = story.numbers("collect", "groups")
    waiting = [
        Sign("waiting", model.utc(line["local"]), "the trainer waits for finished groups", line["source"], line["line"])
        for line in story.of("waiting")
    ]
    last = max((sign.ts for sign in plain.signs if sign.kind == "progress" and sign.ts), default=None)
    config = {
        "keep_versions": keep,
        "max_partial_rollout_preempts": _only(story.numbers("rejected", "max_preempts")),
        "max_active_groups": _only(story.numbers("worker", "active")),
        "samples_per_group": _only(story.numbers("worker", "members")),
        "target_groups": _only(groups),
    }
    return replace(
        plain,
        framework="dressage",
        dialect=f"{story.mode}-async" if story.mode else None,
        config={**plain.config, **{key: value for key, value in config.items() if value is not None}},
        bound=Bound(None, KEEP, keep, NO_CONVERSION),
        guarantee=_guarantee(model, plain, story),
        signs=(*plain.signs, *(sign for sign in waiting if last is None or (sign.ts and sign.ts > last))),
        unseen=_unseen(payloads, story),
        # Sessions that an evaluation ran cannot be told from others where no dump names them.
        undone=not staged.has("dressage_evals") and any(line["kind"] == "eval" for line in model.lines),
        hints=_hints(model, staged, story),
        groups_per_step=_only(groups) or plain.groups_per_step,
    )


def _only(values: set[int]) -> int | None:
    return next(iter(values)) if len(values) == 1 else None


def _keep_versions(model: Model, story: Story) -> int | None:
    """Read the window off the indices: cutoff = max(0, current + 1 - keep)."""
    pairs = {(int(line["current"]), int(line["cutoff"])) for line in story.of("stale")}
    if not model.scalars.is_empty():
        tags = ("staleness/current_version_index", "staleness/cutoff_version_index")
        by_tag = [model.scalars.filter(pl.col("tag") == tag).select("source", "x", "value") for tag in tags]
        pairs |= {(int(now), int(cut)) for _, _, now, cut in by_tag[0].join(by_tag[1], on=["source", "x"]).iter_rows()}
    return _only({current + 1 - cutoff for current, cutoff in pairs if cutoff > 0})


def _guarantee(model: Model, plain: RunFacts, story: Story) -> Guarantee:
    """Keep what slime's own rollout loops guarantee only if it is sure that no worker ran beside them."""
    whole = model.console and all(process.launch_seen for process in model.processes)
    if story.mode is None and whole and story.of("prompts") and not story.of("worker"):
        return plain.guarantee
    return Guarantee("none", NO_LIMIT)


def _unseen(payloads: pl.DataFrame, story: Story) -> frozenset[str]:
    """Sessions stopped at the end of a run leave nothing; others leave payloads and lines, where those are kept."""
    unseen = {"pending", "lost"}
    some = bool(payloads["finished"].any())
    if not (some and story.single and story.orderly):
        unseen.add("dropped")
    proxy = bool(story.of("rejected") or story.of("proxy"))
    if not story.single or not (proxy or (some and story.mode == "partial")):
        unseen.add("cancelled")
    return frozenset(unseen)


def _hints(model: Model, staged: Staged, story: Story) -> tuple[Hint, ...]:
    hints = []
    readable = [batch for batch in model.batches if batch["readable"]]
    if not readable:
        hints.append(Hint("the version of any trained token", "run with --save-debug-rollout-data or --dump-details"))
    elif not any(batch["labels"] for batch in readable):
        hints.append(Hint("the versions of tokens", "start the proxy with --record-token-versions"))
    if not model.console:
        remedy = "keep the console log of the job beside the dumps"
        hints.append(Hint("which batches were trained, times of training and syncs, dropped groups", remedy))
    if not staged.has("dressage_sessions"):
        remedy = "keep LOG_DIR (traj_payload, traj_err) with the run, from each launch"
        hints.append(Hint("what was generated and never trained", remedy))
    if not (story.of("rejected") or story.of("proxy")):
        hints.append(Hint("sessions rejected for their versions", "keep the proxy's log (PROXY_LOG_FILE)"))
    return tuple(hints)

"""From launches to rows of the event tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import orjson
import polars as pl

from staleness_audit.parser import RunFacts, Sink, Staged
from staleness_audit.readers.agreement import ANOTHER_RUN
from staleness_audit.readers.numbers import micros, moment, near
from staleness_parsers.openrlhf.facts import Told, facts
from staleness_parsers.openrlhf.filling import PASS_RATE, Filling, Share, fill, filters
from staleness_parsers.openrlhf.launches import Batch, Launch, find_launches, settle
from staleness_parsers.openrlhf.replay import Mode, Versions, replay
from staleness_parsers.openrlhf.runs import of_another_run
from staleness_parsers.openrlhf.settings import Settings, combine

Row = dict[str, Any]


def finish_run(staged: Staged, sink: Sink) -> RunFacts:
    """Join what the units staged, write all rows, and state the facts."""
    lines = near(_rows(staged, "openrlhf_lines", ["source", "line"]), "step", None, sink)
    scalars = near(_rows(staged, "openrlhf_scalars", ["source", "record"]), "step", None, sink)
    found = [orjson.loads(row["text"]) for row in lines if row["kind"] == "flags"]
    settings = combine([*found, *(orjson.loads(row["text"]) for row in _rows(staged, "openrlhf_settings", ["source"]))])
    launches = _of_this_run(find_launches(lines, scalars, settings.number("logger.logging_steps")), sink)
    _diagnose(launches, settings, _rows(staged, "openrlhf_unread", ["source"]), sink)
    told = [_tell(launch, settings) for launch in launches]
    for one in told:
        _diagnose_lost_groups(one, sink)
    writer = _Writer(sink)
    for attempt, one in enumerate(told):
        _write_launch(attempt, one, settings, writer)
    writer.flush()
    return facts(told, settings)


def _of_this_run(found: Sequence[Launch], sink: Sink) -> list[Launch]:
    """Set aside what is of another run, and say so."""
    strange = of_another_run(found)
    kept = [launch for launch in found if launch.source not in strange]
    told = next((launch.source for launch in kept if launch.source), "the others")
    for source in sorted(strange):
        sink.diagnose("warning", "several-runs", ANOTHER_RUN.format(told=told), source=source, opens="training")
    return settle(kept)


def _rows(staged: Staged, table: str, order: list[str]) -> list[Row]:
    return staged.scan(table).collect().sort(order, maintain_order=True).to_dicts() if staged.has(table) else []


class _Writer:
    """Collects rows per table and writes them in blocks."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._rows: dict[str, list[Row]] = {}

    def add(self, table: str, **row: object) -> None:
        rows = self._rows.setdefault(table, [])
        rows.append(row)
        if len(rows) >= 1 << 15:
            self._write(table)

    def flush(self) -> None:
        for table in list(self._rows):
            self._write(table)

    def _write(self, table: str) -> None:
        rows = self._rows.pop(table)
        self._sink.write(table, pl.DataFrame(rows, infer_schema_length=None))


# ------------------------------------------------------------------------------------------------- a launch understood


def _tell(launch: Launch, settings: Settings) -> Told:
    mode = _mode(launch, settings)
    queue = launch.queue_size if launch.queue_size is not None else settings.number("train.async_queue_size")
    filling = fill(launch, settings, oversampling=launch.timed and mode != "synchronous")
    collects = not launch.timed and bool(launch.old_filter or launch.filtered)
    reach = None if queue is None else (2 * queue + 1 if collects else queue)
    first = launch.batches[0].step - 1 if launch.began and launch.batches else 0
    floors = [max(first, 0 if reach is None else batch.step - 1 - reach) for batch in launch.batches]
    # At the end of the data filtering may leave a call with nothing; the next one begins at any time with its permit.
    steady = launch.timed and (not filters(launch) or len(launch.calls) == len(launch.batches))
    versions = replay(launch.items, reach, mode, floors, began=launch.began, steady=steady)
    return Told(launch, mode, queue, reach, filling, versions, first)


def _mode(launch: Launch, settings: Settings) -> Mode:
    if launch.synchronous or _sums_up(launch.batches):
        return "synchronous"
    if not launch.timed:
        return "default"  # releases without timings know no other
    if settings.partial is None:
        return None
    return "partial" if settings.partial else "default"


def _sums_up(batches: Sequence[Batch]) -> bool:
    """Whether every step lasted exactly as long as its parts: the synchronous trainer adds them up (section 5.2)."""
    timed = [batch for batch in batches if batch.timed and batch.generation is not None]
    return len(timed) > 1 and all(
        math.isclose(batch.metrics["timing/step_total"], batch.work + (batch.generation or 0.0), rel_tol=1e-5)
        for batch in timed
    )


# ------------------------------------------------------------------------------------------------- rows


def _write_launch(attempt: int, told: Told, settings: Settings, writer: _Writer) -> None:
    launch = told.launch
    place: Row = {}
    # A step that only later ones prove is proven by the next one logged.
    places: list[Row] = []
    for batch in reversed(launch.batches):
        if not batch.hole or batch.source:
            place = {"source": batch.source, "line": batch.line, "locator": batch.locator}
        places.append({"attempt": attempt, "evidence": "derived" if batch.hole else "recorded", **place})
    places.reverse()
    previous: Batch | None = None
    for number, (batch, where) in enumerate(zip(launch.batches, places, strict=True)):
        _write_step(batch, previous, where, settings, writer)
        _write_members(number, batch, told, where, settings, writer)
        previous = batch
    if launch.takes and launch.batches:
        _write_open(attempt, launch, writer)
    for age in range(1, launch.tail + 1 if launch.batches else 0):
        _write_unlogged(launch.batches[-1].step + age, told, places[-1], settings, writer)
    for row in launch.filtered:
        _write_filtered(attempt, row, told, writer)
    if not launch.filtered and told.filling.group is not None:
        _write_pass_rates(told, places, writer)


def _write_step(batch: Batch, previous: Batch | None, where: Row, settings: Settings, writer: _Writer) -> None:
    ended = moment(batch.wall)
    work = batch.work if batch.timed else None
    waited = None if work is None or previous is None else batch.metrics["timing/step_total"] - work
    began = None if batch.wall is None or work is None else batch.wall - work
    writer.add(
        "steps",
        step=batch.step,
        v_train_lo=batch.step - 1,
        v_train_hi=batch.step - 1,
        started=moment(began),
        ended=ended,
        waited_us=micros(None if waited is None else max(waited, 0.0)),
        updates=_updates(batch, settings),
        completed=True,
        **where,
    )
    sync = None if batch.wall is None or work is None else batch.wall - batch.metrics["timing/broadcast"]
    writer.add("syncs", version_lo=batch.step, version_hi=batch.step, started=moment(sync), ended=ended, **where)
    for raw, name in (("rollout/num_samples", "step.trajectories"), (PASS_RATE, PASS_RATE)):
        if raw in batch.metrics:
            value = batch.metrics[raw]
            writer.add("reported", step=batch.step, ts=ended, name=name, raw_name=f"train/{raw}", value=value, **where)


def _updates(batch: Batch, settings: Settings) -> int | None:
    size = settings.number("train.batch_size")
    if not size or not batch.samples or batch.samples % size:
        return None
    epochs = settings.number("train.max_epochs")
    return batch.samples // size * epochs if epochs else None


def _write_members(number: int, batch: Batch, told: Told, where: Row, settings: Settings, writer: _Writer) -> None:
    """One anonymous class per share of a batch, and what is known of the batch as a whole."""
    shares = told.filling.shares[number]
    trained = batch.step - 1
    tokens = _tokens(batch)
    most = _most_samples(settings)
    for index, share in enumerate(shares):
        name = f"{where['attempt']}:{batch.step}" + (f":{index}" if len(shares) > 1 else "")
        known = _versions(share, told, trained)
        least = 1 if share.samples is None else share.samples
        others = (batch.samples or 0) - least if len(shares) > 1 else 0
        about: Row = {key: where[key] for key in ("evidence", "source", "line", "locator") if key in where}
        writer.add(
            "trajectories",
            trajectory_id=f"batch:{name}",
            group_id=f"groups:{name}",
            attempt=where["attempt"],
            role="train",
            anonymous=True,
            multiplicity_lo=least,
            multiplicity_hi=most if share.samples is None else share.samples,
            **about,
        )
        _write_groups(f"groups:{name}", share, told.filling, {**about, "attempt": where["attempt"]}, writer)
        writer.add(
            "spans",
            trajectory_id=f"batch:{name}",
            span_index=0,
            tokens_lo=least if tokens is None or tokens >= (batch.samples or 1) else 0,
            tokens_hi=None if tokens is None else max(tokens - others, 0),
            version_lo=known.oldest_lo,
            version_hi=known.newest,
            monotone=True,
            **{**about, "evidence": "inferred"},
        )
        writer.add("uses", trajectory_id=f"batch:{name}", step=batch.step, **where)
    if batch.samples is not None:
        _constrain("trajectories", "eq", batch.samples, batch, where, writer)
    if tokens is not None:
        _constrain("loss_tokens", "le", tokens, batch, where, writer)
    if told.filling.whole[number] and _nothing_discarded(batch, told):
        # Some sample of the call was begun with the call, and all of them are in this batch.
        known = told.versions[number]
        _constrain("staleness_max", "ge", trained - known.oldest_hi, batch, where, writer)


def _constrain(quantity: str, op: str, value: int, batch: Batch, where: Row, writer: _Writer) -> None:
    writer.add(
        "constraints", step=batch.step, quantity=quantity, op=op, value=float(value), **{**where, "evidence": "derived"}
    )


def _tokens(batch: Batch) -> int | None:
    """At most so many tokens: the mean length counts from the first to the last sampled token, tool text included."""
    mean = batch.metrics.get("rollout/response_length_mean")
    if mean is None or batch.samples is None:
        return None
    return math.floor(batch.samples * mean * (1 + 1e-6) + 1e-6)


def _most_samples(settings: Settings) -> int | None:
    prompts, group = settings.number("rollout.batch_size"), settings.number("rollout.n_samples_per_prompt")
    return prompts * group if prompts and group else None


def _versions(share: Share, told: Told, trained: int) -> Versions:
    if not share.calls:
        reach = None if told.reach is None or told.filling.depth is None else told.reach + told.filling.depth
        return Versions(max(told.first, 0 if reach is None else trained - reach), trained, trained)
    found = reduce(Versions.union, (told.versions[call] for call in share.calls))
    return Versions(found.oldest_lo, min(found.oldest_hi, trained), min(found.newest, trained))


def _write_groups(group: str, share: Share, filling: Filling, where: Row, writer: _Writer) -> None:
    if share.samples is None:
        return
    least, most = filling.groups_of
    writer.add(
        "groups",
        group_id=group,
        members_lo=least,
        members_hi=most,
        multiplicity_lo=max(math.ceil(share.samples / most), 1) if most else 1,
        multiplicity_hi=max(share.samples // least, 1),
        **where,
    )


def _nothing_discarded(batch: Batch, told: Told) -> bool:
    """Whether dynamic filtering kept every group of the call, so that the oldest token is among those kept."""
    if PASS_RATE not in batch.metrics:
        return not told.filters
    return told.filling.group is not None and math.isclose(
        batch.metrics[PASS_RATE], 100 * told.filling.group, rel_tol=1e-6
    )


def _write_open(attempt: int, launch: Launch, writer: _Writer) -> None:
    """A batch that was taken and whose step is not logged: the log ends inside the step."""
    taken = launch.takes[-1]
    step, name = launch.batches[-1].step + 1, f"batch:{attempt}:{launch.batches[-1].step + 1}"
    where = {"evidence": "derived", "source": taken["source"], "line": taken["line"]}
    version = step - 1
    writer.add("steps", attempt=attempt, step=step, v_train_lo=version, v_train_hi=version, completed=False, **where)
    count = {"multiplicity_lo": taken["samples"], "multiplicity_hi": taken["samples"]}
    writer.add("trajectories", trajectory_id=name, attempt=attempt, role="train", anonymous=True, **count, **where)
    writer.add("uses", trajectory_id=name, attempt=attempt, step=step, **where)
    writer.add("spans", trajectory_id=name, span_index=0, tokens_lo=0, version_hi=version, **where)


def _write_unlogged(step: int, told: Told, where: Row, settings: Settings, writer: _Writer) -> None:
    """A step that may have followed the last one logged, as only every so many are."""
    name, trained = f"batch:{where['attempt']}:{step}", step - 1
    where = {**where, "evidence": "inferred"}
    about = {key: value for key, value in where.items() if key != "attempt"}
    writer.add("steps", step=step, v_train_lo=trained, v_train_hi=trained, completed=None, **where)
    most = _most_samples(settings)
    count = {"anonymous": True, "multiplicity_lo": 0, "multiplicity_hi": most}
    writer.add("trajectories", trajectory_id=name, role="train", **count, **where)
    writer.add("uses", trajectory_id=name, step=step, **where)
    oldest = _versions(Share(None, ()), told, trained).oldest_lo
    versions = {"version_lo": oldest, "version_hi": trained}
    writer.add("spans", trajectory_id=name, span_index=0, tokens_lo=0, **versions, **about)


def _write_filtered(attempt: int, row: Row, told: Told, writer: _Writer) -> None:
    """Discarded groups: the number of their scores is that of their samples; lengths are not logged."""
    groups = row["repeated"] or 1
    least, most = (row["count"], row["count"]) if row["count"] else told.filling.groups_of
    name = f"filtered:{attempt}:{row['source']}:{row['line']}"
    where = {"evidence": "recorded", "source": row["source"], "line": row["line"]}
    _write_dropped(name, attempt, (least * groups, None if most is None else most * groups), groups, where, writer)


def _write_dropped(
    name: str, attempt: int, samples: tuple[int, int | None], groups: int, where: Mapping[str, object], writer: _Writer
) -> None:
    writer.add(
        "trajectories",
        trajectory_id=name,
        group_id=name,
        attempt=attempt,
        role="train",
        anonymous=True,
        multiplicity_lo=samples[0],
        multiplicity_hi=samples[1],
        **where,
    )
    writer.add("groups", group_id=name, attempt=attempt, multiplicity_lo=groups, multiplicity_hi=groups, **where)
    writer.add("spans", trajectory_id=name, span_index=0, tokens_lo=0, **where)
    writer.add(
        "events",
        seq=where.get("line") or 0,
        kind="dropped",
        trajectory_id=name,
        attempt=attempt,
        reason="filtered",
        **where,
    )


def _write_pass_rates(told: Told, places: Sequence[Row], writer: _Writer) -> None:
    """Without the console, the pass rates tell how many groups were discarded."""
    size = told.filling.group or 1
    batches = told.launch.batches
    for number, groups in _discarded(told):
        where = places[number]
        about = {key: value for key, value in where.items() if key != "attempt"}
        name = f"filtered:{where['attempt']}:{batches[number].step}"
        _write_dropped(
            name, where["attempt"], (groups * size, groups * size), groups, {**about, "evidence": "derived"}, writer
        )


def _discarded(told: Told) -> Iterator[tuple[int, int]]:
    """Yield batch and discarded groups: its call's pass rate tells how many prompts the groups that it kept took."""
    size = told.filling.group
    for number, batch in enumerate(told.launch.batches if size else ()):
        rate = batch.metrics.get(PASS_RATE)
        if rate and batch.samples and told.filling.whole[number]:
            groups = round(100 * batch.samples / rate) - batch.samples // (size or 1)
            if groups > 0:
                yield number, groups


# ------------------------------------------------------------------------------------------------- what is missing


def _diagnose(launches: Sequence[Launch], settings: Settings, unread: Sequence[Row], sink: Sink) -> None:
    if not any(launch.items for launch in launches):
        message = "No log states a completed step; keep the output of the training actor, or its scalars."
        sink.diagnose("warning", "no-steps", message, opens="training")
    for name in settings.contradicted:
        message = f"The files disagree about {name}, which is taken as unknown; keep only those of this run."
        sink.diagnose("warning", "settings-disagree", message)
    if frozen := settings.number("critic.freezing_steps"):
        message = f"Up to step {frozen} the actor is frozen: each step counts as a version, although the policy stays."
        sink.diagnose("note", "frozen-actor", message)
    _diagnose_gaps(launches, sink)
    for row in unread:
        # What consoles tell completely is not missing.
        opens = None if any(launch.console and launch.batches for launch in launches) else "training"
        sink.diagnose(
            "error" if row["severity"] == "error" and opens else "warning",
            row["code"],
            row["message"],
            source=row["source"],
            locator=row["locator"],
            opens=opens,  # type: ignore[arg-type]
        )


def _diagnose_lost_groups(told: Told, sink: Sink) -> None:
    """Compare the lines about discarded groups with the prompts that the steps say they took."""
    launch = told.launch
    lines = sum(row["repeated"] or 1 for row in launch.filtered)
    groups = sum(groups for _, groups in _discarded(told))
    if launch.filtered and groups > lines:
        message = f"By the pass rates {groups} groups were discarded, but only {lines} are told of; restore the log."
        first = launch.filtered[0]
        sink.diagnose(
            "warning", "groups-not-logged", message, source=first["source"], line=first["line"], opens="fates"
        )


def _diagnose_gaps(launches: Sequence[Launch], sink: Sink) -> None:
    """Point out steps that no log tells of."""
    reached = 0
    for number, launch in enumerate(one for one in launches if one.batches):
        first = launch.batches[0]
        source, line = first.source, first.line
        if first.step - 1 > reached:
            missing = f"Steps {reached + 1} to {first.step - 1} are in no log"
            if number == 0 and launch.headed:
                message = f"{missing}: the run went on from a checkpoint; audit the earlier launch with its own logs."
                sink.diagnose("note", "earlier-launch", message, source=source, line=line)
            else:
                message = f"{missing}; restore the logs that have them."
                sink.diagnose("warning", "steps-missing", message, source=source, line=line, opens="training")
        reached = max(reached, launch.batches[-1].step)
        if holes := sum(batch.hole for batch in launch.batches):
            message = f"{holes} steps are known only from later ones; restore the log, or set --logger.logging_steps 1."
            # Between the lines of two steps stand those of discarded groups.
            sink.diagnose("warning", "steps-not-logged", message, source=source, line=line, opens="fates")
        told = [batch for batch in launch.batches if batch.line is not None]
        if told and told[-1].step < launch.batches[-1].step:
            message = "An event file tells of later steps than the log; what the log's end told is lost: restore it."
            sink.diagnose(
                "warning", "log-ends-early", message, source=told[-1].source, line=told[-1].line, opens="fates"
            )

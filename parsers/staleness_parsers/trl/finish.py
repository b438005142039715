"""Joining what the units left: settings, launches, trained rows, and what holds for the run as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from staleness_audit.parser import RunFacts, Sink, Staged
from staleness_audit.readers.numbers import near
from staleness_parsers.trl import batches, write
from staleness_parsers.trl.facts import Known, facts
from staleness_parsers.trl.launches import Launch, console_segments, launches, metric_segments
from staleness_parsers.trl.metrics import documents
from staleness_parsers.trl.replay import Queue
from staleness_parsers.trl.rows import Rows, time
from staleness_parsers.trl.settings import Settings, settings_from
from staleness_parsers.trl.traces import by_launch, replay
from staleness_parsers.trl.write import Teller

Row = Mapping[str, Any]

NAMES = {
    "batch/samples_per_step": "step.trajectories",
    "batch/trained_tokens_per_step": "step.loss_tokens",
    "sample/staleness_max": "step.staleness_max",
    "sample/staleness_mean": "step.staleness_trajectory_mean",
    "sample/dropped_stale_total": "step.dropped_stale",
}
"""Canonical names. The last three are taken when rows are pulled, so they speak of the next step; they only have them
where a record is about one micro-batch (G = 1, one step per record), else they are listed under their own."""
_AHEAD = ("sample/staleness_max", "sample/staleness_mean", "sample/dropped_stale_total")


def finish_run(staged: Staged, sink: Sink, checkpoints: set[int]) -> RunFacts:
    """Write the event tables of a run from its staged ones and return its facts."""
    records = near(_rows(staged, "trl_records", "origin", "source", "seq"), "step", None, sink)
    log = _rows(staged, "trl_console", "source", "line", "seq")
    traces = _rows(staged, "trl_traces", "ts", "log_id", "trace_index")
    records, traces, configs = _one_run(records, traces, _rows(staged, "trl_configs", "origin", "source", "part"), sink)
    settings = settings_from(configs, log)
    segments = [*metric_segments(records), *console_segments(log, settings.logging)]
    found = launches(segments, settings.saves, settings.logging, checkpoints)
    settings = _infer(settings, found)
    _note(settings, found, _rows(staged, "trl_damage", "source", "line"), sink)
    old = [row for row in traces if row["old"]]
    of_group = Counter((row["run_id"], row["group_id"]) for row in old if row["group_id"] is not None)
    is_forked = batches.forked(found, settings, of_group.values())
    rows = Rows(sink)
    of_launch = by_launch(old, found)
    tellers = []
    for index, launch in enumerate(found):
        told = write.teller(launch, settings, is_forked)
        told.cuts = {cut for later in found[index + 1 :] for cut in (later.start, later.start_lo)}
        if rows_of := of_launch.get(launch.number):
            told.replay = replay(rows_of, launch, told.shape, settings)
            if told.replay is None:
                sink.diagnose(
                    "warning",
                    "traces-do-not-replay",
                    "The delivered samples in trackio do not fit the steps (a flush was lost, or the batch size is not "
                    "known), so they are not told apart; keep the database that also holds the arguments.",
                    source=rows_of[0]["source"],
                )
        _write_launch(rows, told, sink)
        _write_reported(rows, told)
        tellers.append(told)
    rows.close()
    return facts(Known(settings, tellers, records, bool(old), is_forked))


def _rows(staged: Staged, table: str, *order: str) -> list[dict[str, Any]]:
    if not staged.has(table):
        return []
    return staged.scan(table).sort(order, nulls_last=False, maintain_order=True).collect().to_dicts()


def _one_run(
    records: list[dict[str, Any]], traces: list[dict[str, Any]], configs: list[dict[str, Any]], sink: Sink
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]:
    """Keep one run of a trackio project, which holds several: the one the other files name, else the latest."""
    read = list(documents(configs))
    names = {row["part"]: row["run_name"] or row["part"] for row, _ in read if row["origin"] == "trackio"}
    parts: dict[str, float] = {}
    for row in records:
        if row["origin"] == "trackio":
            parts[row["part"]] = max(parts.get(row["part"], 0.0), row["ts"] or 0.0)
    if len({names.get(part, part) for part in parts}) > 1:
        wanted = {str(document.get("run_name")) for row, document in read if row["origin"] == "tensorboard"}
        named = [part for part in parts if names.get(part, part) in wanted]
        kept = names.get(*[max(named or parts, key=lambda part: parts[part])] * 2)
        parts = {part: ts for part, ts in parts.items() if names.get(part, part) == kept}
        sink.diagnose(
            "warning",
            "several-runs",
            f"The trackio project holds several runs; only {kept!r} is read, audit the others by themselves.",
        )
        records = [row for row in records if row["origin"] != "trackio" or row["part"] in parts]
        traces = [row for row in traces if row["run_id"] in parts]
        read = [(row, document) for row, document in read if row["origin"] != "trackio" or row["part"] in parts]
    rank = {"trackio": 0, "tensorboard": 1, "state": 2}
    # Of several launches the last one's arguments; the checkpoint's few come last.
    ordered = sorted(enumerate(read), key=lambda item: (rank.get(item[1][0]["origin"], 3), -item[0]))
    return records, traces, [(row["source"], document) for _, (row, document) in ordered]


def _infer(settings: Settings, found: Sequence[Launch]) -> Settings:
    """Without a configuration the records still tell G, and the syncs W: by the log, or by records of one step each."""
    micro = {
        round(value)
        for launch in found
        for record in launch.records.values()
        if (value := record.get("batch/microbatches_per_step")) is not None
    }
    if settings.micro is None and len(micro) == 1 and min(micro) > 0:
        settings = replace(settings, micro=micro.pop())
    for launch in found:
        if settings.sync_every is None:
            settings = replace(settings, sync_every=_by_console(launch) or _by_records(launch))
    return settings


def _by_console(launch: Launch) -> int | None:
    """Return the W under which every record follows as many syncs as it should: one first, then one per W steps."""
    for segment in launch.consoles:
        counts: list[tuple[int, int]] = []
        syncs = 0
        for row in segment.events:
            syncs += row["kind"] == "transferring"
            if row["kind"] == "record" and row["number"]:
                counts.append((row["number"], syncs))
        fitting = [
            every
            for every in range(1, launch.last + 1)
            if all(syncs == step // every - launch.start // every + 1 for step, syncs in counts)
        ]
        if counts and len(fitting) == 1:
            return fitting[0]
    return None


def _by_records(launch: Launch) -> int | None:
    steps = sorted(step for step, record in launch.records.items() if record.trains)
    if len(steps) < 2 or steps != list(range(launch.start + 1, launch.start + 1 + len(steps))):
        return None
    names = ("perf/weight_sync_s", "weight_sync_time_s")
    published = {step for step in steps[1:] if any(name in launch.records[step].values for name in names)}
    fitting = [
        every for every in range(1, len(steps)) if {step for step in steps[1:] if step % every == 0} == published
    ]
    return fitting[0] if published and len(fitting) == 1 else None


def _note(settings: Settings, found: Sequence[Launch], damaged: Sequence[Row], sink: Sink) -> None:
    """Say what damage and missing launches mean: nothing where another source has the records, else much."""
    last = max((launch.last for launch in found), default=0)
    whole = {origin for launch in found if launch.last == last for origin in launch.origins}
    whole -= {row["origin"] for row in damaged}
    if not any(launch.origins or launch.consoles for launch in found):
        sink.diagnose(
            "warning",
            "no-records",
            "No tracker, trainer_state.json or log is here, so nothing is known of what was trained; restore them.",
            opens="training",
        )
    for row in damaged:
        needed = row["origin"] != "traces" and not whole - {"console"} and not (row["origin"] == "console" and whole)
        sink.diagnose(
            "error" if needed else "warning",
            f"{row['origin']}-damaged",
            f"{row['why'][:1].upper()}{row['why'][1:]}; "
            + ("restore it from a copy." if needed else "other files hold the same records."),
            source=row["source"],
            line=row["line"],
            locator=row["locator"],
            opens="training" if needed else ("fates" if row["origin"] == "console" else None),
        )
    reach = 0
    for launch in found:
        if launch.start > reach:
            sink.diagnose(
                "error",
                "steps-missing",
                f"No file shows steps {reach + 1} to {launch.start} of an earlier launch; add its files to the run.",
                opens="training",
            )
        reach = max(reach, launch.last)
    if settings.sync_every is None and last:
        sink.diagnose(
            "warning",
            "sync-interval-unknown",
            "No file states weight_sync_steps, so versions are not known; keep TensorBoard or trackio files, which do.",
        )


def _write_launch(rows: Rows, told: Teller, sink: Sink) -> None:
    write.write_steps(rows, told)
    write.write_unlogged(rows, told)
    whole = batches.chunks(told.launch, told.shape, told.settings, told.per_record)
    found = [part for chunk in whole for part in batches.split(chunk, told.shape, told.cuts)]
    if told.replay is not None and told.replay.per_micro:
        told.shape = replace(told.shape, per_micro=told.replay.per_micro)
    queue, why = write.usable_queue(told, found)
    trained = write.trained_rows(found)
    identified = 0
    if told.replay is not None:
        for tried in (queue, Queue()):
            if write.write_replayed(rows, told, told.replay, tried):
                break
            why = "it says that a group was scored before its first version existed"
        trained = sum(1 for one in told.replay.rows if one.step <= told.launch.last)
        identified = len(told.replay.rows) - trained
        if told.replay.per_micro:
            trained = (told.launch.last - told.shape.start) * told.replay.per_micro * (told.shape.micro or 1)
        elif told.replay.whole_until < told.launch.last:
            trained = None
    elif not write.write_trained(rows, told, queue, found):
        why = "it says that rows were trained that were not yet scored"
        write.write_trained(rows, told, Queue(), found)
    dropped = write.write_drops(rows, told)
    if trained is not None and why is None:
        write.write_left(rows, told, trained, dropped, identified)
    if why is not None:
        sink.diagnose(
            "warning",
            "console-incomplete",
            f"The console log is not used to bound what was trained: {why}; keep the whole log of each launch.",
            source=told.story.lines[0]["source"] if told.story.lines else None,
        )


def _write_reported(rows: Rows, told: Teller) -> None:
    """Keep what the framework says of itself."""
    single = told.per_record == 1
    for step, record in sorted(told.launch.records.items()):
        for name, value in record.values.items():
            if value.value is None or not name.startswith(("sample/", "batch/", "rollout/")):
                continue
            ahead = name in _AHEAD
            canonical = single and name in NAMES and (not ahead or told.settings.micro == 1)
            canonical = canonical and not (told.forked and name != "batch/trained_tokens_per_step")
            rows.add(
                "reported",
                value.__dict__,
                "recorded",
                attempt=told.launch.number,
                step=step + 1 if canonical and ahead else step,
                ts=time(record.ts),
                name=NAMES[name] if canonical else name,
                raw_name=name,
                value=value.value,
            )

"""Joining what the units left: launches, tasks, the replay, and the rows of the event tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import orjson

from staleness_audit.parser import Attempt, RunFacts, Sign, Sink, Staged
from staleness_audit.readers.agreement import ANOTHER_RUN
from staleness_audit.readers.numbers import moment, near
from staleness_parsers.areal.assembly import assemble
from staleness_parsers.areal.book import Book
from staleness_parsers.areal.clocks import timed_sessions, untimed_log
from staleness_parsers.areal.console import OLD_KINDS
from staleness_parsers.areal.content import assign, contents_of, dialect_of
from staleness_parsers.areal.facts import Known, facts
from staleness_parsers.areal.kept import dumps_of, log_of, sessions_of
from staleness_parsers.areal.launches import Launch, Row, launches, of_other_runs, superseded
from staleness_parsers.areal.scalars import RATIO_FILTER
from staleness_parsers.areal.settings import Settings, settings_from
from staleness_parsers.areal.tasks import nameless_ranks, tasks_of


def finish_run(staged: Staged, sink: Sink, *, workers: bool) -> RunFacts:
    """Write the event tables of a run from its staged ones and return its facts.

    ``workers``: a log of the rollout workers was read.
    """
    settings = _settings(staged)
    log = untimed_log(near(log_of(staged), "number", {"done", "recovering"}, sink), sink)
    scalars = near(_rows(staged, "areal_scalars", "source", "line"), "step", None, sink)
    sessions = timed_sessions(near(sessions_of(staged), "task", None, sink, what="Task"), sink)
    if not settings.found and any(row["name"].endswith(RATIO_FILTER) for row in scalars):
        settings = replace(settings, masks=True)
    strange = of_other_runs(log, scalars, sessions)
    for source in sorted(strange):
        message = ANOTHER_RUN.format(told=log[0]["source"] if log else "the others")
        sink.diagnose("warning", "several-runs", message, source=source, opens="training")
    again = [row for row in _rows(staged, "areal_retries", "source", "line") if row["us"] is not None]
    found, zoned = launches(
        log,
        near(_rows(staged, "areal_perf", "source", "line"), "step", None, sink),
        [row for row in scalars if row["source"] not in strange],
        [row for row in sessions if row["source"] not in strange],
        again,
    )
    if not zoned:
        sink.diagnose(
            "note", "zone-unknown", "Nothing tells the time zone of the console: its times are taken for UTC."
        )
    for launch in found:
        _leave_nameless(launch, sink)
    retries = [row["us"] for row in again] if workers else None
    tasks = [task for launch in found for task in tasks_of(launch, settings.timeout, settings.by_task_id, retries)]
    dumps = dumps_of(staged, shared=(settings.data_parallel or 1) > 1 or len({task.rank for task in tasks}) > 1)
    dialect, words = dialect_of(dumps, settings, found, tasks)
    groups, homeless = assign(dumps, tasks, found, dialect.void)
    contents = contents_of(staged.memory, tasks, groups, found, dialect, settings)
    missing = bool(homeless and tasks) or any(launch.breaks_off is not None for launch in found)
    batches = {
        launch.number: assemble(
            launch, [t for t in tasks if t.launch == launch.number], contents, settings, missing=missing
        )
        for launch in found
    }
    several = len({task.rank for task in tasks}) > 1
    retried = {task.key for task in tasks if task.retried}
    resent = _resent(found, again, settings, workers=workers)
    book = Book(sink, settings, found, batches, contents, several, retried, resent, dialect, staged.memory)
    for launch in found:
        book.write_steps(launch)
    book.flush()
    book.write_tasks(tasks)
    known = Known(
        settings, found, tasks, batches, dialect, words, bool(dumps), bool(tasks), _attempts(found), _signs(found)
    )
    _tell(sink, known, len(homeless))
    return facts(known, sink)


def _leave_nameless(launch: Launch, sink: Sink) -> None:
    """Leave out the task lines of a launch whose ranks do not say which of them speaks."""
    if not nameless_ranks(launch):
        return
    line = next(row for row in launch.log if row["kind"] == "old_submit")
    message = "Several ranks share this log and do not say which of them speaks: no line about a task is used."
    sink.diagnose("warning", "ranks-nameless", message, source=line["source"], line=line["line"])
    launch.log = [row for row in launch.log if row["kind"] not in OLD_KINDS]


def _resent(found: Sequence[Launch], again: Sequence[Row], settings: Settings, *, workers: bool) -> set[int]:
    """Launches in which requests may have been sent again, by code that stamps them before.

    A controller does not tell of what its workers sent again; their own log does, if it is there.
    """
    if settings.found and settings.behind != 0:
        return set()
    return {
        launch.number
        for launch in found
        if again or any(row["kind"] == "retry" or (row["controller"] and not workers) for row in launch.log)
    }


def _rows(staged: Staged, table: str, *order: str) -> list[dict[str, Any]]:
    return staged.scan(table).sort(order).collect().to_dicts() if staged.has(table) else []


def _settings(staged: Staged) -> Settings:
    for row in _rows(staged, "areal_config", "source"):
        return settings_from(orjson.loads(row["document"]))
    return Settings()


def _tell(sink: Sink, known: Known, homeless: int) -> None:
    """Say what could not be joined."""
    if not any(launch.steps for launch in known.launches):
        sink.diagnose(
            "warning",
            "no-steps",
            "No file tells of a training step; add main.log, the perf_tracer folder, or the TensorBoard files.",
            opens="training",
        )
    for launch in known.launches:
        if launch.breaks_off is None:
            continue
        last = launch.log[-1]
        sink.diagnose(
            "warning",
            "log-breaks-off",
            f"The log ends here, but other files go on: what became of the tasks of launch {launch.number} after this "
            "is not known; restore the whole log.",
            source=last["source"],
            line=last["line"],
            # What the steps trained is counted all the same: see ``step-uncounted``.
            opens="fates",
        )
    counted = all(
        "n_seqs" in step.values or superseded(known.launches, launch.number, step.number)
        for launch in known.launches
        for step in launch.steps.values()
    )
    if homeless and known.traced:
        sink.diagnose(
            "warning",
            "rows-without-task",
            f"{homeless} dumped groups belong to no task of the log; restore the whole log.",
            opens="fates" if counted else "training",
        )
    if known.dialect.void:
        sink.diagnose(
            "warning",
            "versions-not-trustworthy",
            "The versions as stamped mean nothing (all 0, or made up for a workflow that returns none): they are "
            "bounded by times instead.",
        )
    for launch in known.launches:
        for number in known.batches[launch.number].unexplained:
            step = launch.steps[number]
            sink.diagnose(
                "warning",
                "batch-unexplained",
                f"No way of putting together the batch of step {number} is borne out by what the step logged; "
                "its trajectories are only counted. Switch on rollout.enable_rollout_tracing and perf_tracer.enabled.",
                source=step.proof[0] if step.proof else None,
                line=step.proof[1] if step.proof else None,
                opens=None
                if "n_seqs" in step.values or superseded(known.launches, launch.number, number)
                else "training",
            )


def _attempts(found: Sequence[Launch]) -> list[Attempt]:
    attempts = []
    highest = -1
    for launch in found:
        # A later launch that starts from scratch goes back behind step 0.
        resumed: int | None = launch.start_version - 1 if launch.start_version > 0 or launch.number else None
        lowest = None
        if launch.first is None and launch.number:
            resumed, lowest = highest, -1  # it may have gone back anywhere
        times = sorted(at for step in launch.steps.values() for at in (step.done, step.updated) if at is not None)
        ended = times[-1] if times and launch.dated else None
        attempts.append(Attempt(launch.number, resumed, lowest, _time(launch.started), _time(ended)))
        highest = max([highest, *launch.steps])
    return attempts


def _signs(found: Sequence[Launch]) -> list[Sign]:
    signs = []
    for launch in found:
        for number in sorted(launch.steps):
            step = launch.steps[number]
            at = step.done if step.done is not None else (step.wall[1] if step.wall else None)
            source, line = step.proof or (None, None)
            if at is not None:
                signs.append(Sign("progress", _time(at), f"training step {number} done", source, line))
    return signs


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else moment(micros / 1e6)

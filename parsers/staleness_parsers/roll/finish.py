"""Joining the units: from spans, batches, lines and metrics to the event tables and the run's facts."""

from __future__ import annotations

from collections import Counter

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import RunFacts, Sink, Staged
from staleness_parsers.roll.agents import Agents
from staleness_parsers.roll.facts import run_facts
from staleness_parsers.roll.known import Known, Row, constrain, gather
from staleness_parsers.roll.loose import Batches
from staleness_parsers.roll.prompts import Prompts
from staleness_parsers.roll.rows import Rows, moment
from staleness_parsers.roll.timeline import Step


def finish_run(staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
    """Write what follows from all units together; see the package's docstring for the mapping of versions."""
    known = gather(staged, run, sink)
    rows = Rows(sink)
    completed = _write_steps(known, rows, sink)
    if known.agentic:
        Agents(known, rows, completed, sink, staged.memory).write()
    elif known.prompts_traced:
        Prompts(known, rows, completed, sink, staged.memory).write()
    else:
        Batches(known, rows, completed, sink).write()
    _write_reported(known, rows)
    rows.close()
    _notes(known, sink)
    return run_facts(known)


def _write_steps(known: Known, rows: Rows, sink: Sink) -> dict[tuple[int, int], bool | None]:
    """Write ``steps`` and ``syncs``; returns per (attempt, step) whether it completed."""
    finished = _finished(known)
    warmup = known.settings.whole_number("critic_warmup") or 0
    done: dict[tuple[int, int], bool | None] = {}
    for step in known.time.steps:
        state = _completed(step, known, finished)
        named = known.metrics.get(step.step, {})
        final = known.time.last(step.step)
        if final is step or final is None:
            skipped = named.get("mask/final_mask_sum_eq_0", {}).get("value") == 1
            state = False if skipped else state
        if step.step < warmup:
            state = False
        key = (step.attempt, step.step)
        done[key] = state if done.get(key) is None else done[key]
        train = step.parts.get("train")
        wait = step.parts.get("rollout" if known.agentic else "generate")
        rows.add(
            "steps",
            step.place,
            attempt=step.attempt,
            step=step.step,
            v_train_lo=step.step,
            v_train_hi=step.step,
            started=moment(train["start"] if train else step.start),
            ended=moment(train["end"] if train else step.end),
            waited_us=(wait["end"] - wait["start"]) // 1000 if wait else None,
            completed=state,
            evidence="recorded",
        )
        newest = known.pushes.version(step.step, known.time.first.get(step.attempt, 0))[1]
        if newest < step.step and not known.mocked:
            # The engines held nothing newer at this step, whoever was in its batch.
            constrain(rows, step.place, step.attempt, step.step, "staleness_min", step.step - newest, op="ge")
        update = step.parts.get("model_update")
        if update is not None and not update["failed"]:
            low, high = known.pushes.version(step.step, known.time.first.get(step.attempt, 0))
            if (low, high) == (step.step, step.step) or low != high:
                rows.add(
                    "syncs",
                    update,
                    attempt=step.attempt,
                    version_lo=low,
                    version_hi=high,
                    started=moment(update["start"]),
                    ended=moment(update["end"]),
                )
    return done


def _finished(known: Known) -> set[int]:
    """Steps that consoles or metrics say the last launch that began them finished."""
    found: set[int] = set()
    for row in sorted(known.lines, key=lambda row: (row["source"], row["line"])):
        if row["kind"] == "finished":
            found.add(row["step"])
        elif row["kind"] == "start":
            found.discard(row["step"])
    # Metrics do not say which of several launches wrote them.
    launches = Counter(step.step for step in known.time.steps)
    return found | {step for step in known.metrics if launches[step] < 2}


def _completed(step: Step, known: Known, finished: set[int]) -> bool | None:
    if known.time.traced and step.parts:
        train = step.parts.get("train")
        if train is not None:
            return not train["failed"]
        # A step's children are exported as they end: one without `train` was never trained, unless a later record
        # tells that the export was lost.
        if known.time.last(step.step) is step and step.step in finished:
            return True
        later = any(other.attempt == step.attempt and other.step > step.step for other in known.time.steps)
        return None if known.damaged or later or step.step in known.metrics else False
    if step.closed:
        return True
    if known.time.last(step.step) in (step, None) and step.step in finished:
        return True
    later = any(other.attempt == step.attempt and other.step > step.step for other in known.time.steps)
    return True if later and not known.time.traced else None


def _write_reported(known: Known, rows: Rows) -> None:
    """Means by start step, and batch sizes, of the launch that finished the step."""
    for step, named in sorted(known.metrics.items()):
        home = known.time.last(step)
        attempt = home.attempt if home else max(known.time.attempts)
        lags = [name for name in named if name.endswith("scheduler/off_policy_ratio")]
        for name in lags:
            canonical = "step.staleness_trajectory_mean" if len(lags) == 1 else name
            _report(rows, named[name], attempt, step, canonical, name, named[name]["value"])
        if not known.agentic and "system/batch_size" in named:
            row = named["system/batch_size"]
            _report(rows, row, attempt, step, "step.trajectories", "system/batch_size", row["value"])
    for step, batch in sorted(known.rows.items()):
        start = batch[0]["first_start"]
        if start is not None:
            home = known.time.last(step)
            attempt = home.attempt if home else max(known.time.attempts)
            name = "step.staleness_max" if len(batch.domains) == 1 else "sampling_params.global_step"
            _report(rows, batch[0], attempt, step, name, "global_step - sampling_params.global_step", step - start)


def _report(rows: Rows, place: Row, attempt: int, step: int, name: str, raw: str, value: float) -> None:
    rows.add("reported", place, attempt=attempt, step=step, name=name, raw_name=raw, value=value, evidence="recorded")


def _notes(known: Known, sink: Sink) -> None:
    # The last step of a launch may be unfinished; the driver exports several spans of every other one.
    last = {step.attempt: step.step for step in known.time.steps}
    torn = [step for step in known.time.steps if step.step < last[step.attempt] and not step.closed]
    if known.time.traced and torn:
        message = (
            f"Spans of the driver are missing, first of step {torn[0].step}; what they told of dropped and cancelled "
            "prompts is lost: restore the traces."
        )
        sink.diagnose("warning", "driver-spans-lost", message, source=torn[0].place["source"], opens="fates")
    if known.pushes.contradicted:
        message = "The metrics show pushes at other steps than the configured frequency; the metrics are believed."
        sink.diagnose("warning", "frequency-contradicted", message)
    if known.mocked:
        message = "The run replays batches of an earlier run (rollout mock): which weights made them is not known."
        sink.diagnose("warning", "replayed-batches", message, opens="training")
    if known.settings.whole_number("critic_warmup"):
        message = "Steps of the critic's warm-up count as versions, as in the framework, although the policy stays."
        sink.diagnose("note", "critic-warmup", message)
    if known.settings.get("critic_warmup") is None and known.time.steps:
        message = "No configuration tells critic_warmup: it is taken for 0, so that every step trains the policy."
        sink.diagnose("note", "critic-warmup-unknown", message)
    if any(named.get("mask/final_mask_sum_eq_0", {}).get("value") == 1 for named in known.metrics.values()):
        message = "A step whose samples were all masked was skipped; it counts as a version, as in the framework."
        sink.diagnose("note", "skipped-step", message)
    if any(row["kind"] == "old" for row in known.lines):
        message = "The scheduler is that of before v0.2.0, which leaves no traces."
        sink.diagnose("note", "old-scheduler", message)

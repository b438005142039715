"""Joining what the units left: launches, their steps, and what holds for the run as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
import polars as pl

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import Attempt, Bound, Era, Guarantee, Hint, RunFacts, Sign, Sink, Staged
from staleness_audit.readers.numbers import moment, near
from staleness_parsers.nemo_rl import buffered, files, settings, single
from staleness_parsers.nemo_rl.console import carried
from staleness_parsers.nemo_rl.launches import Launch, captures, gather
from staleness_parsers.nemo_rl.rows import Row, Rows

Told = single.Told | buffered.Told
_WAITS: Final = frozenset({"stall", "waiting", "wait"})
_PROGRESS: Final = frozenset({"step", "metrics", "closing", "selected", "consumed", "results"})
_NUMBERED: Final = frozenset(
    {"step", "chunk", "closing", "sc_end", "stalled", "header", "updated", "sampling", "results", "logged", "wait"}
)
"""Lines whose number is that of a step or version."""
_ENDS: Final = {
    "drained": "rollout exhausted and buffer drained",
    "timeout": "timeout reached",
    "sc_end": "SC run complete",
    "ag_end": "training complete",
}


def finish_run(staged: Staged, run: RunFiles, sink: Sink) -> RunFacts:
    """Write the event tables of a run from its staged ones and return its facts."""
    names = {file.source: file.name for file in run.files}
    saved = _rows(staged, "nemo_saved", "source", "index")
    exps = [exp for exp in _column(staged, "nemo_dumps", "exp") if exp]
    lines = near(_rows(staged, "nemo_lines", "source", "line"), "a", _NUMBERED, sink)
    launches = gather(
        captures(carried(lines), names),
        near(_rows(staged, "nemo_scalars", "source", "record"), "step", None, sink),
        exps,
        names,
    )
    launches = _asynchronous(launches, saved, sink)
    _configure(launches, saved)
    told = [_tell(launch, staged, saved) for launch in launches]
    for index, life in enumerate(told):
        later = [after.start or 0 for after in told[index + 1 :] if after.launch.all("restored")]
        life.launch.reused_after = min(later, default=None)
    rows = Rows(sink)
    dumps: list[buffered.Dump] = []
    for life in told:
        _tell_early_end(life.launch, sink)
        if isinstance(life, single.Told):
            single.write(life, rows, sink)
        else:
            dumps += buffered.write(life, rows, _dumps(staged, life.launch), sink, several=len(told) > 1)
    rows.close()
    _write_dumps(staged, dumps, sink)
    attempts = _attempts(told, sink)
    if not told:
        sink.diagnose(
            "error",
            "nothing-trained",
            "Neither a console log nor metrics of a launch are there, so nothing is known of its steps.",
            opens="training",
        )
    old = any(files.has_mark(run, file.source, files.OLD_MARKS) for file in files.survey(run).consoles)
    return _facts(told, attempts, sink, old=old)


def _asynchronous(launches: Sequence[Launch], saved: Sequence[Row], sink: Sink) -> list[Launch]:
    """Leave out log folders without a console that are not those of an asynchronous run: file names don't tell."""
    configured = any(row["kind"] == "config" and '"grpo.async_grpo.enabled":true' in row["text"] for row in saved)
    kept: list[Launch] = []
    for launch in launches:
        tags = {"train/evicted_stale_prompt_groups", "train/avg_trajectory_age"} & set(launch.scalars)
        if launch.captures or tags or (configured and not launch.scalars and len(launches) == 1):
            launch.number = len(kept)
            kept.append(launch)
            continue
        sink.diagnose(
            "note" if launch.scalars else "warning",
            "not-asynchronous",
            f"{launch.exp or 'The folder of metrics'} shows no sign of asynchronous training and is left out; "
            "if it is such a run, add its console log.",
            source=launch.exp,
            opens=None if launch.scalars else "training",
        )
    return kept


def _tell_early_end(launch: Launch, sink: Sink) -> None:
    """Say so where event files tell of later steps than the console, and other drops may be lost with its end."""
    lines = [row for row in launch.all("step", "header") if row["a"] is not None]
    later = max((step for tag in launch.scalars if tag.startswith("train/") for step in launch.scalars[tag]), default=0)
    if lines and later > max(row["a"] for row in lines):
        sink.diagnose(
            "warning",
            "log-ends-early",
            f"The event files tell of steps up to {later}, the console of fewer; evictions told at its end are lost: "
            "restore it.",
            source=lines[-1]["source"],
            line=lines[-1]["line"],
            opens="fates",
        )


def _rows(staged: Staged, table: str, *order: str) -> list[Row]:
    return staged.scan(table).sort(order, maintain_order=True).collect().to_dicts() if staged.has(table) else []


def _column(staged: Staged, table: str, column: str) -> list[Any]:
    return (
        staged.scan(table).select(pl.col(column).unique().sort()).collect()[column].to_list()
        if staged.has(table)
        else []
    )


def _configure(launches: Sequence[Launch], saved: Sequence[Row]) -> None:
    """Add to what a launch's console says the configuration in its log folder, or that of the checkpoints.

    A checkpoint's folder does not say which launch wrote it, so those help only in what they all say alike; None
    stands for what they do not.
    """
    configs = [row for row in saved if row["kind"] == "config"]
    general = [orjson.loads(row["text"]) for row in configs if files.exp_of(row["source"]) is None]
    agreed: dict[str, Any] = {}
    for key in {key for config in general for key in config}:
        values = [config.get(key) for config in general]
        agreed[key] = values[0] if all(value == values[0] for value in values) else None
    for launch in launches:
        own = [row["text"] for row in configs if launch.exp and files.exp_of(row["source"]) == launch.exp]
        launch.settings = (orjson.loads(own[-1]) if own else agreed) | launch.settings


def _tell(launch: Launch, staged: Staged, saved: Sequence[Row]) -> Told:
    if launch.dialect == "sc":
        return single.tell(launch, saved)
    return buffered.tell(launch, saved, set(_dumps(staged, launch)))


def _dumps(staged: Staged, launch: Launch) -> dict[int, pl.DataFrame]:
    """Return the files that hold rows of a step, by ``unit``."""
    if launch.exp is None or not staged.has("nemo_dumps"):
        return {}
    files = staged.scan("nemo_dumps", named=True).filter(pl.col("exp") == launch.exp, pl.col("step").is_not_null())
    return {int(step): part for (step,), part in files.sort("unit").collect().group_by("step", maintain_order=True)}


def _write_dumps(staged: Staged, dumps: Sequence[buffered.Dump], sink: Sink) -> None:
    """Write the dumped trajectories, step by step."""
    by_era = {dump.told.launch.number << 32 | dump.step: dump for dump in dumps}
    eras = [Era(number, int(dump.files["rows"].sum()), dump.made_from()) for number, dump in sorted(by_era.items())]

    def write(numbers: Sequence[int], into: Sink) -> None:
        rows = Rows(into)
        chosen = [by_era[number] for number in numbers]
        units = {unit for dump in chosen for unit in dump.files["unit"]}
        frames = staged.scan("nemo_rows", units=units).collect().partition_by("exp", "step", as_dict=True)
        for dump in chosen:
            buffered.write_rows(dump, frames[dump.told.launch.exp, dump.step], rows, into)
        rows.close()

    sink.write_eras(eras, write)


def _attempts(told: Sequence[Told], sink: Sink) -> list[Attempt]:
    """Return attempts with the step after which each resumed; report what ran before the first one's start."""
    highest = max((step for life in told for step in life.steps), default=0)
    found = []
    for life in told:
        number = life.launch.number
        walls = [row["wall"] for points in life.launch.scalars.values() for row in points.values()]
        times = [moment(wall) for wall in (min(walls), max(walls))] if walls else [None, None]
        lost_head = not life.launch.whole and (life.start or 0) > 0
        if number == 0:
            found.append(Attempt(0, None, None, *times))
            if life.start:
                sink.diagnose(
                    "warning",
                    "earlier-launch-missing",
                    f"The logs begin after step {life.start}; add the earlier ones, with what was trained before.",
                    opens="training",
                )
        elif life.start is None:
            found.append(Attempt(number, highest, 0, *times))
        else:
            found.append(Attempt(number, life.start, 0 if lost_head else None, *times))
    return found


def _note_warm_up(told: Sequence[Told], sink: Sink) -> None:
    steps = max(
        (settings.whole(life.launch.settings, "ppo.policy_training_start_step") or 0 for life in told), default=0
    )
    if steps:
        sink.diagnose(
            "warning",
            "critic-warm-up",
            f"The policy stays the same for the first {steps} steps, in which versions count all the same: "
            "a gap inside them is no gap between policies.",
        )


def _note_waiting(launch: Launch, sink: Sink) -> None:
    """Say that a launch ends in waiting: no line has a time, so for how long is not told (pitfall 23)."""
    if launch.all(*_ENDS, "stalled", "too_old"):
        return
    for capture in launch.captures:
        telling = [row for row in capture.rows if row["kind"] in _WAITS | _PROGRESS]
        last = max(telling, key=lambda row: row["line"], default=None)
        if last is not None and last["kind"] in _WAITS:
            message = f"The log ends while the trainer waits ({last['text'][:100]}); if it goes on, the run is stuck."
            sink.diagnose("warning", "ends-waiting", message, source=last["source"], line=last["line"])
            return


def _facts(told: Sequence[Told], attempts: Sequence[Attempt], sink: Sink, *, old: bool) -> RunFacts:
    shown = told[-1].launch.settings if told else {}
    unseen = {"pending", "lost"}
    if any(not life.launch.captures for life in told):
        unseen |= {"dropped", "cancelled"}  # metrics tell of closed steps only
    bound, guarantee = _promise(told)
    _note_warm_up(told, sink)
    if told:
        _note_waiting(told[-1].launch, sink)
    sc = bool(told) and isinstance(told[-1], single.Told)
    buffer = "async_grpo (up to v0.6)" if old else "async_grpo"
    return RunFacts(
        framework="nemo-rl",
        unit="training steps",
        dialect=None if not told else "single controller" if sc else buffer,
        config={key: value for key, value in shown.items() if value is not None},
        bound=bound,
        guarantee=guarantee,
        attempts=attempts or (Attempt(0),),
        signs=[sign for life in told for sign in _signs(life.launch)],
        unseen=frozenset(unseen),
        hints=_hints(told, bound),
        groups_per_step=settings.groups_per_step(shown),
    )


def _promise(told: Sequence[Told]) -> tuple[Bound, Guarantee]:
    """Bound of the last launch, guarantee over all."""
    if not told:
        return Bound(None), Guarantee(None, "the logs do not say which mechanism was at work")
    last = told[-1]
    if isinstance(last, buffered.Told):
        lives = [life for life in told if isinstance(life, buffered.Told)]
        bounds = [settings.ag_bound(life.launch.settings, life.age) for life in lives]
        return bounds[-1], settings.ag_guarantee([bound.value for bound in bounds])
    chain = [
        (life.sampler, settings.sampler_number(life.sampler, life.launch.settings), life.restored)
        for life in told
        if isinstance(life, single.Told)
    ]
    return settings.sc_bound(last.sampler, last.launch.settings), settings.sc_guarantee(chain)


def _signs(launch: Launch) -> list[Sign]:
    """Markers of the end, lines of waiting, and proofs of progress; only TensorBoard tells when."""

    def sign(kind: Any, row: Row, what: str, wall: float | None = None) -> Sign:
        return Sign(kind, moment(wall), what, row["source"], row.get("line"))

    found = [sign("progress", row, "train/loss", row["wall"]) for row in launch.scalars.get("train/loss", {}).values()]
    for row in launch.scalars.get("rollout/idle_s", {}).values():
        if row["value"] > 0:
            found.append(sign("waiting", row, "no rollout committed and no step completed", row["wall"]))
    found += [sign("waiting", row, row["text"]) for row in launch.all(*_WAITS)[-1:]]
    found += [sign("crashed", row, row["text"]) for row in launch.all("stalled", "too_old")[:1]]
    if not launch.all("stalled", "too_old"):
        found += [sign("finished", row, _ENDS[row["kind"]]) for row in launch.all(*_ENDS)[-1:]]
    return found


def _hints(told: Sequence[Told], bound: Bound) -> list[Hint]:
    hints = []
    if bound.value is None and bound.configured is None:
        hints.append(
            Hint("The bound.", "keep the head of the console, or checkpointing.enabled: true, which brings config.yaml")
        )
    if any(isinstance(life, single.Told) for life in told):
        hints.append(
            Hint(
                "Which group had which version: the single controller logs only the oldest of a step.",
                "nothing logs it; async_grpo does",
            )
        )
    if any(not life.launch.captures for life in told):
        hints.append(Hint("The staleness of steps: no metric tells it.", "keep the console: `2>&1 | tee run.log`"))
    if any(not life.launch.scalars for life in told):
        hints.append(Hint("When anything happened: the console has no times.", "logger.tensorboard_enabled: true"))
    if any(isinstance(life, buffered.Told) and not life.dumped for life in told):
        hints.append(
            Hint(
                "Tokens of each trajectory.",
                "env.should_log_nemo_gym_responses: false, which brings train_data_step*.jsonl",
            )
        )
    if any(isinstance(life, buffered.Told) and life.drains is not True for life in told):
        hints.append(
            Hint("Versions of later tokens of a trajectory.", "grpo.async_grpo.in_flight_weight_updates: false")
        )
    recompute = [
        value
        for life in told
        for key, value in life.launch.settings.items()
        if key.endswith("recompute_kv_cache_after_weight_updates")
    ]
    if recompute and not all(recompute):
        hints.append(
            Hint(
                "Keys and values of older weights under newer tokens: no version stamp shows them.",
                "recompute_kv_cache_after_weight_updates: true",
            )
        )
    return hints

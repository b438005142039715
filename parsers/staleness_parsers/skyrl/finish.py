"""Joining all files of a run: launches, versions, batches, and what holds for the run as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import orjson

from staleness_audit.parser import Bound, Guarantee, Hint, RunFacts, Sign, Sink, Staged
from staleness_audit.readers.console import number_of
from staleness_audit.readers.numbers import near
from staleness_parsers.skyrl.batches import Frame, Group, frame_of, loss_tokens, solve_batch, whole_trajectories
from staleness_parsers.skyrl.card import BATCH_REASON, CONVERSION, NO_LIMIT, STRICT, UNIT
from staleness_parsers.skyrl.drops import drops, drops_are_told, left_over
from staleness_parsers.skyrl.history import Stretch, attempts, stretches
from staleness_parsers.skyrl.launches import Launch, Mark, Step, tell_launches
from staleness_parsers.skyrl.rows import (
    Tables,
    write_drop,
    write_left_over,
    write_reported,
    write_step,
    write_sync,
)
from staleness_parsers.skyrl.settings import BOUND_KEY, Settings, read_settings

ASSUMPTIONS: Final = {
    "generate_concurrency_per_engine": (
        "SKYRL_GENERATE_CONCURRENCY_PER_ENGINE of the run, which no file records (default 512)"
    )
}
_OF_STEPS = frozenset({"block", "failed", "saved", "resuming", "resumed"})
"""Marks whose number is a step's."""


def finish_run(staged: Staged, run_assume: Mapping[str, str], sink: Sink) -> RunFacts:
    """Write all rows and return the facts."""
    concurrency = _whole(run_assume.get("generate_concurrency_per_engine"))
    launches, dumped = _launches(staged, sink)
    found = stretches(launches)
    if launches and found[0].first > 1:
        message = (
            f"The logs begin after step {found[0].first - 1}; add those of the launches before, which trained up to it."
        )
        sink.diagnose("warning", "beginning-missing", message, source=min(launches[0].sources), opens="training")
    _confirm(found, [row["step"] for row in _rows(staged, "skyrl_checkpoints")])
    dumps = _assign_dumps(found, dumped, sink)
    frames = {
        stretch.attempt: frame_of(stretch.launch, stretch.tops, dumps[stretch.attempt], concurrency)
        for stretch in found
    }
    tables = Tables()
    for stretch in found:
        _write_stretch(tables, stretch, frames[stretch.attempt], dumps[stretch.attempt], sink)
    for index, drop in enumerate(drops(found, frames)):
        write_drop(tables, drop, index)
    unseen = set(_left_over(tables, found, frames))
    if not all(drops_are_told(stretch) for stretch in found):
        unseen.add("dropped")
    tables.write(sink)
    return _facts(found, frames, frozenset(unseen), has_dumps=bool(dumped))


def _launches(staged: Staged, sink: Sink) -> tuple[list[Launch], dict[int, list[Group]]]:
    configs: dict[tuple[str, int], Settings] = {}
    updates: dict[str, dict[str, Any]] = {}
    checkpointed: dict[str, Any] = {}
    for row in _rows(staged, "skyrl_configs"):
        config = orjson.loads(row["config"])
        if row["launch"] is None and row["step"] is None:
            updates.setdefault(row["source"], {}).update(config)
        elif row["launch"] is None:
            checkpointed = checkpointed or config
        else:
            configs[row["source"], row["launch"]] = read_settings(config)
    tracked = {source: read_settings(config) for source, config in updates.items()}
    marks = sorted(_rows(staged, "skyrl_marks"), key=lambda row: (row["source"], row["line"]))
    launches, notes = tell_launches(
        near(marks, "number", _OF_STEPS, sink), near(_rows(staged, "skyrl_numbers"), "step", None, sink), configs
    )
    for code, message, source in notes:
        sink.diagnose("warning", code, message, source=source, opens="training")
    dumped: dict[int, list[Group]] = {}
    sources: dict[int, str] = {}
    for row in sorted(_rows(staged, "skyrl_groups"), key=lambda row: (row["step"], row["group"])):
        group = Group(row["trajectories"], row["unmasked"], row["loss_tokens"], row["masked_tokens"])
        dumped.setdefault(row["step"], []).append(group)
        sources[row["step"]] = row["source"]
    saved = [row["step"] for row in _rows(staged, "skyrl_checkpoints")]
    if not launches and (dumped or saved):
        launches = [_from_files(dumped, sources, max(saved, default=0))]
        if not dumped:
            message = "Checkpoints alone tell of no batch; keep the console log, or set trainer.dump_data_batch."
            sink.diagnose("warning", "no-records", message, opens="training")
    for launch in launches:
        own = next((tracked[source] for source in sorted(launch.sources) if source in tracked), None)
        if not launch.settings.known and own is not None:
            launch.settings = own
        # A checkpoint keeps the configuration of the launch that wrote it; launches of one run mostly share it.
        if not launch.settings.known and checkpointed and len(launches) == 1:
            launch.settings = read_settings(checkpointed)
    return launches, dumped


def _confirm(found: Sequence[Stretch], saved: Sequence[int]) -> None:
    """Take a checkpoint as proof of its step, if no earlier launch can have written it."""
    for number in saved:
        owners = [stretch for stretch in found if number in stretch.launch.steps]
        if len(owners) == 1 and owners[0].launch.steps[number].taken:
            step = owners[0].launch.steps[number]
            step.completed = True if step.completed is None else step.completed


def _from_files(dumped: Mapping[int, Sequence[Group]], sources: Mapping[int, str], saved: int) -> Launch:
    """Return what batches and checkpoints tell without any log: which steps there were, not how old anything was."""
    steps = {
        number: Step(number, source=sources[number], completed=number <= saved or None) for number in sorted(dumped)
    }
    for step in steps.values():
        step.phases["started", "convert_to_training_input"] = {}  # its batch was put together
    return Launch({min(sources.values(), default="")}, resumed_after=0, steps=steps)


def _assign_dumps(
    found: Sequence[Stretch], dumped: Mapping[int, list[Group]], sink: Sink
) -> dict[int, dict[int, list[Group]]]:
    """Give each batch to the last launch that took one for this step: it overwrote those before (pitfall 2)."""
    given: dict[int, dict[int, list[Group]]] = {stretch.attempt: {} for stretch in found}
    for number, rows in dumped.items():
        takers = [stretch for stretch in found if number in stretch.launch.steps and stretch.launch.steps[number].taken]
        if not takers:
            message = f"No log tells of step {number}, whose batch was dumped; it is not known whether it was trained."
            sink.diagnose("warning", "batch-without-step", message, opens="training")
            continue
        launch, attempt = takers[-1].launch, takers[-1].attempt
        step, groups = launch.steps[number], whole_trajectories(rows, launch.settings)
        if groups and _agrees(step, groups):
            given[attempt][number] = groups
            continue
        code = "batch-differs" if groups else "batch-turns-unknown"
        why = "is not the one its metrics are of" if groups else "does not say which rows are one trajectory"
        message = f"The dumped batch of step {number} {why}, and was not used."
        sink.diagnose("warning", code, message, source=step.source, line=step.line)
    return given


def _agrees(step: Step, groups: Sequence[Group]) -> bool:
    """Whether a batch has the loss tokens that the metrics count, or fewer where a filter masked groups afterwards."""
    low, high = loss_tokens(step, None)
    total, masked = (
        sum(group.loss_tokens for group in groups),
        any(group.unmasked < group.trajectories for group in groups),
    )
    return (masked or low <= total) and (high is None or total <= high)


def _write_stretch(
    tables: Tables, stretch: Stretch, frame: Frame, dumps: Mapping[int, Sequence[Group]], sink: Sink
) -> None:
    launch = stretch.launch
    limit = (
        1
        if launch.settings.fully_async is False
        and not any("async/staleness_max" in s.figures for s in launch.steps.values())
        else None
    )
    tops = {number: top if limit is None else min(top, limit) for number, top in stretch.tops.items()}
    for number, step in sorted(launch.steps.items()):
        if number < stretch.first or not (step.taken or step.completed):
            continue
        batch = solve_batch(step, frame, launch.settings, tops, dumps.get(number))
        for code, message in batch.notes:
            sink.diagnose("warning", code, f"Step {number}: {message}", source=step.source, line=step.line)
        write_step(tables, stretch, step, batch)
        write_sync(tables, stretch, step)
        write_reported(tables, stretch.attempt, step, frame.samples if frame.grouped else None)


def _left_over(tables: Tables, found: Sequence[Stretch], frames: Mapping[int, Frame]) -> Iterator[str]:
    """Write what each launch may have left behind; yield the classes of fates of which not even that is known."""
    for stretch in found:
        most = left_over(stretch, frames[stretch.attempt])
        if most is None:
            yield "pending" if stretch is found[-1] else "lost"
        elif most:
            last = max(stretch.launch.steps, default=stretch.first)
            mark = stretch.launch.marks[-1] if stretch.launch.marks else {"source": None, "line": None}
            place = {"source": mark["source"], "line": mark["line"]}
            write_left_over(tables, stretch.attempt, most, stretch.v_train(last)[1] + 1, place)


def _facts(
    found: Sequence[Stretch], frames: Mapping[int, Frame], unseen: frozenset[str], *, has_dumps: bool
) -> RunFacts:
    settings = next((s.launch.settings for s in reversed(found) if s.launch.settings.known), Settings())
    stated = next((s.launch.stated_bound for s in reversed(found) if s.launch.stated_bound is not None), None)
    bound = settings.bound if settings.bound is not None else stated
    frame = frames[found[-1].attempt] if found else None
    return RunFacts(
        framework="skyrl",
        unit=UNIT,
        config=settings.raw,
        bound=Bound(bound, BOUND_KEY, bound, CONVERSION),
        guarantee=_guarantee(found, settings, bound),
        attempts=attempts(found),
        signs=list(_signs(found)),
        unseen=unseen,
        hints=list(_hints(found, settings, has_dumps=has_dumps)),
        groups_per_step=frame.sizes[0] if frame and frame.grouped and len(frame.sizes) == 1 else None,
    )


def _guarantee(found: Sequence[Stretch], settings: Settings, bound: int | None) -> Guarantee:
    reports = any("async/staleness_max" in step.figures for stretch in found for step in stretch.launch.steps.values())
    if settings.fully_async is False and not reports:
        return Guarantee(1, BATCH_REASON)
    if bound == 0:
        return Guarantee(0, STRICT)
    if bound is None:
        return Guarantee(
            None, f"{BOUND_KEY} is not recorded: with 0 the trainer is strict, with any other value nothing is."
        )
    return Guarantee("none", NO_LIMIT)


def _signs(found: Sequence[Stretch]) -> Iterator[Sign]:
    """Yield of the last launch its end, its last wait and its last progress."""
    last: dict[Literal["finished", "crashed", "waiting", "progress"], tuple[Mark, str]] = {}
    for mark in found[-1].launch.marks if found else ():
        if mark["kind"] == "done":
            last["finished"] = mark, mark["text"]
        elif mark["kind"] in ("failed", "worker_error"):
            last["crashed"] = mark, mark["text"]
        elif mark["kind"] == "started" and mark["word"] == "wait_for_generation_buffer":
            last["waiting"] = mark, "groups for the next batch (wait_for_generation_buffer)"
        elif mark["kind"] in ("started", "finished"):
            last["progress"] = mark, mark["text"]
    for kind, (mark, what) in last.items():
        yield Sign(kind, mark["ts"], what, mark["source"], mark["line"])


def _hints(found: Sequence[Stretch], settings: Settings, *, has_dumps: bool) -> Iterator[Hint]:
    yield Hint(
        "the versions of later tokens, and which trajectory has which age",
        "no setting records them: the framework keeps them in memory",
    )
    if not settings.known:
        yield Hint("whether a group can have waited for an engine slot, so that no lower end of its age is known",
                   "keep the console text from its first line on: it begins with the configuration")  # fmt: skip
    if not any(stretch.launch.console for stretch in found):
        yield Hint("the age of each group over the bound", "keep the console text: it has one warning per such group")
    if not has_dumps:
        yield Hint("tokens and masks of each group", "set trainer.dump_data_batch=true")
    if not any(step.words for stretch in found for step in stretch.launch.steps.values()):
        yield Hint(
            "mean, share and extremes of the ages in each step", "keep what trainer.logger writes, or set it to console"
        )


def _rows(staged: Staged, table: str) -> list[dict[str, Any]]:
    return staged.scan(table).collect().to_dicts() if staged.has(table) else []


def _whole(text: str | None) -> int | None:
    return number_of(text) if text is not None and text.isdecimal() else None

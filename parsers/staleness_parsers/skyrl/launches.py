"""The story of each launch from its marks and numbers: which steps it did, and how far (guide sections 5.1, 5.2, 8).

A step is a *slot* between two ``Started: 'step'``; a number that any line in it names places the slots around it. Of
the same launch there may be a console log, a copy of it by a tracker, and an event file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import Any

from staleness_audit.readers.agreement import ANOTHER_RUN, strangers
from staleness_audit.solve import Range, rounded, single, whole
from staleness_parsers.skyrl.settings import Settings

_NEVER = datetime.max.replace(tzinfo=UTC)
_DOUBLE = Fraction(1, 1 << 52)
Mark = dict[str, Any]
Share = tuple[Fraction, Fraction]


@dataclass(frozen=True)
class Figure:
    """A number of a tracker and what it can stand for, with its place."""

    value: float
    share: Share
    source: str
    line: int | None

    def count(self, times: int = 1) -> Range | None:
        """Return the integers that ``times`` this number can be."""
        return whole(self.share, times)


@dataclass
class Step:
    """What is known of one step of one launch; ``number`` is the framework's.

    ``over``: reported staleness and line of each group over the bound (warnings). ``told``: console text of its batch
    is at hand, so that a group without a warning was not over the bound. ``completed``: as in the table ``steps``.
    """

    number: int | None
    figures: dict[str, Figure] = field(default_factory=dict)
    over: list[tuple[int, int]] = field(default_factory=list)
    told: bool = False
    phases: dict[tuple[str, str], Mark] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)
    rows: int | None = None
    failed: bool = False
    source: str | None = None
    line: int | None = None
    recorded: datetime | None = None
    completed: bool | None = None

    def began(self, phase: str) -> bool:
        """Whether a phase was entered."""
        return ("started", phase) in self.phases

    def ended(self, phase: str) -> bool:
        """Whether a phase was left, by its end or by an exception."""
        return ("finished", phase) in self.phases

    def at(self, edge: str, phase: str) -> datetime | None:
        """Time of a phase's edge."""
        mark = self.phases.get((edge, phase))
        return mark["ts"] if mark else None

    def figure(self, *keys: str) -> Figure | None:
        """Return the first of these numbers that was recorded."""
        return next((self.figures[key] for key in keys if key in self.figures), None)

    def size(self, *keys: str) -> int | None:
        """Return a recorded number that is an integer, and no damaged digits beyond all counts."""
        figure = self.figure(*keys)
        return int(figure.value) if figure and figure.value.is_integer() and abs(figure.value) < 1 << 31 else None

    @property
    def taken(self) -> bool:
        """Whether a batch was put together; a step that died while it waited for one also flushes its metrics."""
        return "async/staleness_mean" in self.figures or self.began("convert_to_training_input") or self.told


@dataclass
class Launch:
    """One launch of the trainer.

    ``resumed_after``: None = not said, 0 = from scratch. ``saved``: for the number of each checkpoint, the last step
    done when it was written, which is one less where an epoch or the training had ended (pitfall 1).
    """

    sources: set[str] = field(default_factory=set)
    marks: list[Mark] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)
    resumed_after: int | None = None
    steps: dict[int, Step] = field(default_factory=dict)
    stated_bound: int | None = None
    per_epoch: int | None = None
    exhausted: list[Mark] = field(default_factory=list)
    stopped: bool = False
    done: Mark | None = None
    failed: Mark | None = None
    saved: dict[int, int] = field(default_factory=dict)
    console: bool = False
    first_ts: datetime | None = None


def tell_launches(
    marks: Sequence[Mark], numbers: Sequence[Mapping[str, Any]], configs: Mapping[tuple[str, int], Settings]
) -> tuple[list[Launch], list[tuple[str, str, str]]]:
    """Return the launches in order of time, and diagnostics as (code, message, source)."""
    notes: list[tuple[str, str, str]] = []
    by_launch: dict[tuple[str, int], list[Mark]] = {}
    for mark in marks:
        by_launch.setdefault((mark["source"], mark["launch"]), []).append(mark)
    blocks: dict[tuple[str, int | None], list[Mapping[str, Any]]] = {}
    for number in numbers:
        blocks.setdefault((number["source"], number["launch"]), []).append(number)
    found = []
    for (source, index), own in by_launch.items():
        own.sort(key=lambda mark: mark["line"])
        launch = Launch({source}, own, configs.get((source, index), Settings()), console=True, first_ts=own[0]["ts"])
        _read_marks(launch, blocks.get((source, index), []))
        found.append(launch)
    found.sort(key=lambda launch: (launch.first_ts, -len(launch.marks)))
    launches = _without_copies(found)
    # A launch that ended before it said where it goes on changed nothing.
    launches = [launch for launch in launches if launch.steps or launch.resumed_after is not None] or launches[:1]
    _add_event_files(launches, {key[0]: rows for key, rows in blocks.items() if key[1] is None}, notes)
    for launch in launches:
        last = max((number for number, step in launch.steps.items() if step.words or step.phases), default=0)
        for step in launch.steps.values():
            step.completed = _completed(launch, step, last)
        _fill_gaps(launch, notes)
    return launches, notes


def _fill_gaps(launch: Launch, notes: list[tuple[str, str, str]]) -> None:
    """Add the steps of which every line is lost: a launch does one after the other."""
    if not launch.steps:
        return
    first, last = min(launch.steps), max(launch.steps)
    before = first - 1 if launch.resumed_after is None else launch.resumed_after
    lost = [number for number in range(before + 1, last) if number not in launch.steps]
    launch.steps |= {number: Step(number, completed=True) for number in lost}
    launch.steps = dict(sorted(launch.steps.items()))
    if lost:
        message = f"Nothing is left of {len(lost)} steps, the first of them {lost[0]}; restore the lines of this log."
        notes.append(("steps-lost", message, min(launch.sources)))


def _read_marks(launch: Launch, numbers: Iterable[Mapping[str, Any]]) -> None:
    figures: dict[int, dict[str, Figure]] = {}
    for row in numbers:
        figures.setdefault(row["line"], {})[row["key"]] = _figure(row)
    slots: list[Step] = []
    saved: list[tuple[int, Step | None, bool]] = []
    for mark in launch.marks:
        _launch_mark(launch, mark)
        if mark["kind"] == "started" and mark["word"] == "step":
            slots.append(Step(None, source=mark["source"], line=mark["line"]))
        slot = slots[-1] if slots else None
        if mark["kind"] == "saved":
            saved.append((mark["number"], slot, slot is not None and slot.taken))
        if mark["kind"] == "block" and mark["word"] in ("metrics", "timings", "flushed", "cut"):
            if slot is None:
                slot = Step(None, source=mark["source"], line=mark["line"])
                slots.append(slot)
            slot = _numbered(slots, slot, mark["number"])
            slot.figures |= figures.get(mark["line"], {})
            slot.words.add(mark["word"])
            if mark["word"] == "metrics":
                slot.source, slot.line, slot.recorded = mark["source"], mark["line"], mark["ts"]
        elif slot is not None:
            _slot_mark(slots, slot, mark)
    _place(slots, launch.resumed_after)
    launch.steps = {slot.number: slot for slot in slots if slot.number is not None}
    launch.saved = {
        number: number - (slot is None or slot.number != number or not taken) for number, slot, taken in saved
    }


def _launch_mark(launch: Launch, mark: Mark) -> None:
    kind = mark["kind"]
    if kind == "fresh":
        launch.resumed_after = 0
    elif kind in ("resuming", "resumed"):
        launch.resumed_after = mark["number"]
    elif kind == "per_epoch":
        launch.per_epoch = mark["number"]
    elif kind == "over" and mark["value"] is not None:
        launch.stated_bound = int(mark["value"])
    elif kind == "exhausted":
        launch.exhausted.append(mark)
    elif kind == "stopped":
        launch.stopped = True
    elif kind == "done":
        launch.done = mark
    elif kind in ("failed", "worker_error"):
        launch.failed = mark


def _slot_mark(slots: list[Step], slot: Step, mark: Mark) -> None:
    kind = mark["kind"]
    if kind in ("started", "finished"):
        slot.phases[kind, mark["word"]] = mark
    elif kind == "over" and slot.began("convert_to_training_input"):
        slot.over.append((mark["number"], mark["line"]))
    elif kind == "rows":
        slot.rows = mark["number"]
    elif kind == "failed":
        _numbered(slots, slot, mark["number"]).failed = True
    slot.told = slot.told or (kind == "finished" and mark["word"] == "convert_to_training_input")


def _numbered(slots: list[Step], slot: Step, number: int) -> Step:
    """Give the current slot its number; a block of another step (its own lines are lost) gets a slot of its own."""
    if slot.number is None:
        slot.number = number
    if slot.number == number:
        return slot
    other = Step(number, source=slot.source, line=slot.line)
    slots.append(other)
    return other


def _place(slots: list[Step], resumed_after: int | None) -> None:
    """Number the slots that no line names by their neighbours."""
    if slots and all(slot.number is None for slot in slots):
        slots[0].number = (resumed_after or 0) + 1
    anchor = next((index for index, slot in enumerate(slots) if slot.number is not None), 0)
    # A wait that found its epoch exhausted gives its number to the first step of the next.
    for index in range(anchor - 1, -1, -1):
        slots[index].number = (slots[index + 1].number or 0) - slots[index].taken
    for before, slot in pairwise(slots[anchor:]):
        if slot.number is None:
            slot.number = (before.number or 0) + before.taken


def _figure(row: Mapping[str, Any]) -> Figure:
    value, form = row["value"], row["form"]
    if form == "printed":
        share = rounded(f"{value:.4f}", 4)
    elif form == "single":
        share = single(value)
    elif form == "double":
        share = (Fraction(value) * (1 - _DOUBLE), Fraction(value) * (1 + _DOUBLE))
    else:
        share = (Fraction(value), Fraction(value))
    return Figure(value, share, row["source"], row["line"])


def _without_copies(launches: Sequence[Launch]) -> list[Launch]:
    """Join what two files tell of one launch: a tracker keeps its own copy of the console text."""
    kept: list[Launch] = []
    for launch in launches:
        moments = {
            (mark["ts"], mark["kind"], mark["word"]) for mark in launch.marks if mark["kind"] in ("started", "finished")
        }
        twin = next(
            (
                other
                for other in kept
                if not other.sources & launch.sources
                and moments
                and moments & {(mark["ts"], mark["kind"], mark["word"]) for mark in other.marks}
            ),
            None,
        )
        if twin is None:
            kept.append(launch)
            continue
        fuller, other = (launch, twin) if len(launch.steps) > len(twin.steps) else (twin, launch)
        fuller.sources |= other.sources
        if not fuller.settings.known:
            fuller.settings = other.settings
        kept[kept.index(twin)] = fuller
    return kept


def _add_event_files(
    launches: list[Launch], files: Mapping[str, Sequence[Mapping[str, Any]]], notes: list[tuple[str, str, str]]
) -> None:
    """Give each event file to the launch that wrote it: in order of time, to one that did its steps."""
    ordered = sorted(files.items(), key=lambda item: (_first(item[1]) or _NEVER, item[0]))
    dated = _dated(step for launch in launches for step in launch.steps.values())
    of_files = {source: _dated(_event_steps(rows).values()) for source, rows in ordered}
    strange = strangers(dated, of_files, in_turn=True)
    told = min(launches[0].sources) if launches else "the others"
    notes += [("several-runs", ANOTHER_RUN.format(told=told), source) for source in sorted(strange)]
    # Several event files of one launch (a tracker reopened) follow each other without going back.
    free = [launch for launch in launches if launch.steps]
    at = 0
    for source, rows in ordered:
        steps = {} if source in strange else _event_steps(rows)
        if not steps:
            continue
        match = max(range(at, len(free)), key=lambda index: _likeness(steps, free[index].steps), default=None)
        if match is not None and not set(steps) & set(free[match].steps):
            match = None
        if match is None:
            if launches and launches[0].console:
                notes.append(
                    ("events-without-launch", "No launch of the console log did the steps of this event file.", source)
                )
                continue
            launch = Launch({source}, first_ts=_first(rows), steps=steps, resumed_after=min(steps) - 1)
            launches.append(launch)
            continue
        at = match + (len(ordered) <= len(free))
        free[match].sources.add(source)
        for number, step in steps.items():
            own = free[match].steps.setdefault(number, step)
            own.figures = {**step.figures, **own.figures}
            own.words |= step.words
            if own.recorded is None:
                own.source, own.line, own.recorded = step.source, step.line, step.recorded


def _dated(steps: Iterable[Step]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for step in steps:
        if step.number is not None and step.recorded is not None:
            found.setdefault(step.number, []).append(step.recorded.timestamp())
    return found


def _first(rows: Iterable[Mapping[str, Any]]) -> datetime | None:
    return min((row["ts"] for row in rows if row["ts"] is not None), default=None)


def _likeness(a: Iterable[int], b: Iterable[int]) -> float:
    """Return which part of all steps both have."""
    return len(set(a) & set(b)) / max(len(set(a) | set(b)), 1)


def _event_steps(rows: Sequence[Mapping[str, Any]]) -> dict[int, Step]:
    steps: dict[int, Step] = {}
    for row in rows:
        if row["step"] < 1:
            continue  # evaluation before training (pitfall 4)
        step = steps.setdefault(row["step"], Step(row["step"], source=row["source"], line=row["line"]))
        step.figures[row["key"]] = _figure(row)
        if row["key"].startswith("async/"):
            step.line = row["line"]
        if row["key"] == "trainer/global_step":
            step.words.add("metrics")
            step.recorded = row["ts"]
    for step in steps.values():
        if "metrics" not in step.words:
            step.words.add("flushed" if any(key.startswith("async/") for key in step.figures) else "timings")
    return steps


def _completed(launch: Launch, step: Step, last: int) -> bool | None:
    """Whether a step was trained and its weights published; see the module's docstring for what proves it.

    ``last``: the last step of the launch that its logs tell anything of.
    """
    number = step.number or 0
    later = last > number
    went_on = step.ended("sync_weights") and any(
        step.began(phase) for phase in ("eval", "save_checkpoints", "save_hf_model")
    )
    if "metrics" in step.words or later or went_on or launch.saved.get(number) == number:
        return True
    if step.failed or "flushed" in step.words or (launch.failed is not None and number == max(launch.steps)):
        return False
    return None

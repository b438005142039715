"""Launches, steps and weight updates, from the driver's spans or else from the console (guide sections 3 and 5.1)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from staleness_audit.parser import Sink

Span = Mapping[str, Any]
_CHILDREN: Final = ("stop_server", "model_update", "generate", "rollout", "train", "validation", "val_generate", "val")


@dataclass
class Step:
    """One global step of a launch. ``parts``: the driver's spans below it, by name. Times in nanoseconds."""

    attempt: int
    step: int
    place: Span
    start: int | None = None
    end: int | None = None
    closed: bool = False
    failed: bool = False
    parts: dict[str, Span] = field(default_factory=dict)

    @property
    def seen_until(self) -> int:
        """End of the step, or of the last of it that was seen."""
        return self.end or max((part["end"] for part in self.parts.values()), default=self.start or 0)

    @property
    def pause(self) -> Span | None:
        """RLVR's pause."""
        return self.parts.get("stop_server")


@dataclass(frozen=True)
class _Updates:
    """Updates of one launch: when each ended, and steps without a known update with the time they began."""

    ends: list[tuple[int, int]]
    missing: list[tuple[int, int]]  # step, start (0 where that is not known either)

    @classmethod
    def of(cls, steps: Iterable[Step]) -> _Updates:
        ends, missing, numbers = [], [], []
        for step in steps:
            update = step.parts.get("model_update")
            numbers.append(step.step)
            if update is not None and not update["failed"]:
                ends.append((update["end"], step.step))
            else:
                missing.append((step.step, step.start or 0))
        if numbers:
            missing += [(step, 0) for step in set(range(min(numbers), max(numbers))) - set(numbers)]
        return cls(sorted(ends), missing)

    def before(self, time: int) -> tuple[int, int] | None:
        at = bisect_right(self.ends, (time, 1 << 62)) - 1
        if at < 0:
            return None
        last = self.ends[at][1]
        following = self.ends[at + 1][1] if at + 1 < len(self.ends) else 1 << 62
        return last, max([last, *(s for s, start in self.missing if last < s < following and start <= time)])

    def around(self, start: int, end: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Return the updates between two times and the nearest beside them, with the steps between those."""
        begin, stop = (bisect_right(self.ends, (time, 1 << 62)) for time in (start, end))
        ends = self.ends[max(begin - 1, 0) : stop + 1]
        first = min((step for _, step in ends), default=-1)
        following = max(step for _, step in ends) if stop < len(self.ends) else 1 << 62
        return ends, [(s, began) for s, began in self.missing if first < s < following and began <= end]


@dataclass
class Timeline:
    """The run's steps in their order, and where each update of the weights ended.

    ``traced``: the driver's spans tell the steps. ``first``: per launch its first step. ``nameless``: launches of which
    no span names a step, with the last step after which they can have resumed. ``reseeded``: a launch unseen otherwise
    may have resumed after this step or a later one.
    """

    steps: list[Step] = field(default_factory=list)
    traced: bool = False
    first: dict[int, int] = field(default_factory=dict)
    nameless: dict[int, int] = field(default_factory=dict)
    reseeded: int | None = None
    begins: list[int] = field(default_factory=list)
    ids: dict[str, Step] = field(default_factory=dict)  # span of pipeline_step or of a child -> step
    _own: dict[int, _Updates] = field(default_factory=dict)
    _launches: dict[int, tuple[dict[int, Span], int]] = field(default_factory=dict)
    _last: dict[int, Step] = field(default_factory=dict)
    _indexed: int = 0
    _paused: dict[int, list[Step]] = field(default_factory=dict)
    _pauses: dict[int, list[int]] = field(default_factory=dict)
    _started: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    _highest: dict[int, int] = field(default_factory=dict)
    _newest: int | None = None

    def attempt_at(self, time: int) -> int:
        """Return the launch that a time belongs to."""
        return max(bisect_right(self.begins, time) - 1, 0)

    def update_before(self, time: int) -> tuple[int, int] | None:
        """Return the step of the last update that ended before a time: an interval where spans of updates are missing.

        None: no update of the launch of that time is known.
        """
        return self._updates(self.attempt_at(time)).before(time)

    def _updates(self, attempt: int) -> _Updates:
        own = self._own.get(attempt)
        if own is None:
            own = self._own[attempt] = _Updates.of(step for step in self.steps if step.attempt == attempt)
        return own

    def around(self, start: int, end: int) -> tuple[Any, ...]:
        """Return all that ``update_before`` and ``pauses_between`` rest on for times from ``start`` to ``end``."""
        found = []
        for attempt in range(self.attempt_at(start), self.attempt_at(end) + 1):
            pauses = self.pauses(attempt)
            pauses = pauses[bisect_right(pauses, start) : bisect_right(pauses, end)]
            updates = self._updates(attempt).around(start, end)
            found.append((attempt, self.begins[attempt : attempt + 1], pauses, updates))
        return tuple(found)

    def last(self, step: int) -> Step | None:
        """Return the last launch's own step of that number: files named by a step are overwritten."""
        if self._indexed != len(self.steps):
            self._last = {found.step: found for found in self.steps}
            self._indexed = len(self.steps)
        return self._last.get(step)

    @property
    def newest(self) -> int:
        """The highest step; 0 where there is none."""
        if self._newest is None:
            self._newest = max((step.step for step in self.steps), default=0)
        return self._newest

    def highest(self, attempt: int) -> int | None:
        """Return the highest step of a launch; None where it has none."""
        if not self._highest:
            for step in self.steps:
                self._highest[step.attempt] = max(self._highest.get(step.attempt, 0), step.step)
        return self._highest.get(attempt)

    def step_at(self, attempt: int, time: int) -> int:
        """Return the step of a launch that ran at a time: the last that had begun."""
        if attempt not in self._started:
            own = (step for step in self.steps if step.attempt == attempt)
            self._started[attempt] = sorted((step.start or 0, step.step) for step in own)
        started = self._started[attempt]
        at = bisect_right(started, (time, 1 << 62)) - 1
        return started[at][1] if at >= 0 else 0

    def launch(self, attempt: int) -> tuple[dict[int, Span], int]:
        """Return a launch's pauses by step, and the end of the last of it that was seen."""
        found = self._launches.get(attempt)
        if found is None:
            own = [step for step in self.steps if step.attempt == attempt]
            pauses = {step.step: step.pause for step in own if step.pause is not None}
            found = self._launches[attempt] = (pauses, max((step.seen_until for step in own), default=0))
        return found

    def pause_at(self, attempt: int, time: int) -> Step | None:
        """Return the step in whose pause a time lies."""
        if attempt not in self._paused:
            found = [step for step in self.steps if step.attempt == attempt and step.pause is not None]
            self._paused[attempt] = sorted(found, key=lambda step: step.start or 0)
        own = self._paused[attempt]
        at = bisect_right(own, time, key=lambda step: step.start or 0) - 1
        pause = own[at].pause if at >= 0 else None
        return own[at] if pause is not None and pause["start"] <= time <= pause["end"] else None

    def pauses_between(self, attempt: int, start: int, end: int) -> bool:
        """Whether a launch's pause begins between two times: it aborts whatever request runs then."""
        starts = self.pauses(attempt)
        return bisect_right(starts, start) < bisect_right(starts, end)

    def pauses(self, attempt: int) -> list[int]:
        """Return when a launch's pauses began, in order."""
        found = self._pauses.get(attempt)
        if found is None:
            pauses = self.launch(attempt)[0].values()
            found = self._pauses[attempt] = sorted(pause["start"] for pause in pauses)
        return found

    @property
    def attempts(self) -> list[int]:
        """Numbers of the launches."""
        return sorted(self.first | self.nameless) or [0]


def from_spans(spans: Sequence[Span], told: Sequence[int], sink: Sink) -> Timeline:
    """Rebuild the driver's steps; a step whose own span is missing is known by its children (killed run).

    ``told``: the steps that the console says began, in their order; they number those whose own span is missing.
    """
    children: dict[str, list[Span]] = defaultdict(list)
    for row in spans:
        if row["service"] in ("driver", None) and row["name"] in _CHILDREN and row["parent"]:
            children[row["parent"]].append(row)
    entries = _entries(spans, children, told)
    timeline = Timeline(traced=bool(entries))
    previous: dict[str, Any] | None = None
    drivers = {entry["row"]["instance"] for entry in entries if entry["step"] is not None}
    for index, entry in enumerate(entries):
        instance = entry["row"]["instance"]
        later = entries[index + 1] if index + 1 < len(entries) else None
        if entry["step"] is None:
            entry["step"] = _between(previous, later, instance)
        if entry["step"] is None:
            message = "Spans of a step lack the span that numbers it; the step is missing from the audit."
            sink.diagnose(
                "error",
                "lost-step",
                message,
                source=entry["row"]["source"],
                line=entry["row"]["line"],
                opens="training",
            )
            if previous is not None and instance not in drivers:
                # Another process: a launch that ended before any of its steps had all of its spans.
                drivers.add(instance)
                timeline.nameless[len(timeline.begins)] = max(step.step for step in timeline.steps)
                timeline.begins.append(entry["start"])
            continue
        anew = previous is None or entry["step"] <= previous["step"] or instance != previous["row"]["instance"]
        attempt = len(timeline.begins) - (0 if anew else 1)
        if anew:
            timeline.begins.append(entry["start"])
            timeline.first[attempt] = entry["step"]
        previous = entry
        row = entry["row"]
        step = Step(attempt, entry["step"], row, entry["start"], closed=entry["closed"])
        step.end, step.failed = (row["end"], row["failed"]) if entry["closed"] else (None, False)
        for child in children.get(entry["id"], ()):
            step.parts[child["name"]] = child
            timeline.ids[child["span"]] = step
        timeline.ids[entry["id"]] = step
        timeline.steps.append(step)
    return timeline


def _entries(
    spans: Sequence[Span], children: Mapping[str, Sequence[Span]], told: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the driver's steps by time, each with its number where it has one (see ``from_spans``)."""
    known = {row["span"]: row for row in spans if row["name"] == "pipeline_step" and row["step"] is not None}
    named = _named_by_batches(spans)
    calls = _loose_calls(spans)
    entries: list[dict[str, Any]] = []
    for span, row in known.items():
        entries.append({"id": span, "step": row["step"], "start": row["start"], "row": row, "closed": True})
    for parent, rows in children.items():
        # The parent of a turn's `generate` is a trajectory, which no driver made.
        if parent not in known and any(row["name"] != "generate" or row["service"] == "driver" for row in rows):
            first = min(rows, key=lambda row: row["start"])
            number = next((named[row["span"]] for row in rows if row["span"] in named), None)
            number = _step_of_call(rows, calls) if number is None else number
            entries.append({"id": parent, "step": number, "start": first["start"], "row": first, "closed": False})
    entries.sort(key=lambda entry: (entry["start"], entry["id"]))
    pairs = list(zip(entries, told, strict=False))
    if len(told) == len(entries) and all(entry["step"] in (None, said) for entry, said in pairs):
        for entry, said in pairs:
            entry["step"] = said
    return entries


def _named_by_batches(spans: Sequence[Span]) -> dict[str, int]:
    """Step of the driver's ``generate`` span, as its ``get_batch`` says."""
    return {
        row["parent"]: row["step"]
        for row in spans
        if row["name"] == "get_batch" and row["parent"] and row["step"] is not None
    }


def _loose_calls(spans: Sequence[Span]) -> list[tuple[int, int, int]]:
    """Calls of the scheduler (start, end, step) of which the driver's span is lost, in order."""
    known = {row["span"] for row in spans if row["name"] == "generate"}
    return sorted(
        (row["start"], row["end"], row["step"])
        for row in spans
        if row["name"] == "get_batch" and row["step"] is not None and row["parent"] not in known
    )


def _step_of_call(rows: Sequence[Span], calls: Sequence[tuple[int, int, int]]) -> int | None:
    """Step of these spans by the scheduler's calls (start, end, step): after its update, before its training."""
    found = set()
    for row in rows:
        if row["name"] in ("stop_server", "model_update"):
            at = bisect_left(calls, (row["end"],))
            found |= {calls[at][2]} if at < len(calls) else set()
        elif row["name"] == "train":
            ended = [call for call in calls if call[1] <= row["start"]]
            found |= {ended[-1][2]} if ended else set()
    return found.pop() if len(found) == 1 else None


def _between(previous: Mapping[str, Any] | None, later: Mapping[str, Any] | None, instance: str | None) -> int | None:
    """Number of a step without its span: the only one missing between its neighbours, or that follows the last."""
    before = previous["step"] if previous is not None and previous["row"]["instance"] == instance else None
    after = later["step"] if later is not None and later["row"]["instance"] == instance else None
    if after is None:
        return 0 if previous is None else None if before is None else before + 1
    if before is None:
        return 0 if after == 1 else None
    number: int = before + 1
    return number if after == number + 1 or after <= before else None


def from_lines(lines: Iterable[Mapping[str, Any]]) -> Timeline:
    """Rebuild launches from `pipeline step N start`; the same line captured in two files counts once."""
    timeline = Timeline()
    seen: set[tuple[Any, ...]] = set()
    previous: int | None = None
    lines = list(lines)
    # The scheduler of before v0.2.0 repeats what the driver says, if both are captured.
    told = {"start", "finished"} if any(row["kind"] == "start" for row in lines) else {"start", "finished", "old"}
    for row in lines:
        if row["kind"] not in told:
            continue
        key = (row["kind"], row["time"], row["step"])
        if row["time"] is not None and key in seen:
            continue
        seen.add(key)
        began = row["kind"] in ("start", "old")
        if began and (previous is None or row["step"] <= previous):
            timeline.first[len(timeline.first)] = row["step"]
        elif not began and not timeline.first:
            timeline.first[0] = row["step"]
        if began or not timeline.steps or timeline.steps[-1].step != row["step"]:
            previous = row["step"]
            timeline.steps.append(Step(max(len(timeline.first) - 1, 0), row["step"], row))
        timeline.steps[-1].closed |= row["kind"] == "finished"
    return timeline

"""Which launches of the trainer a run consists of, what each trained, and what its weight labels mean.

A process is told apart by its console (guide 5.4), else by its event file (5.5), else by its dumps: a rollout id
that comes again, or labels that begin again (pitfall 2). Label -> policy version is guide section 3:

* full mode: label 1 is the policy the process started with (``s0`` trained rollouts), label n+1 the one of its n-th
  sync;
* delta mode: ``"default"`` is the starting policy, label n the one of the n-th sync after training began;
* a sync after rollout r publishes version r + 1, minus critic-only rollouts. The console shows each sync. Without it
  every
  ``--update-weights-interval`` k that the dumps allow is considered, and the version is an interval.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final

from staleness_parsers.slime.console import metrics_of

Line = Mapping[str, Any]
_MANAGER_IDS: Final = {"collect", "collected", "collected_pool", "saved_rollout", "perf_rollout"}
_TRAINER_IDS: Final = {"perf_train", "step", "critic_step"}
_BEFORE_FIRST: Final = {
    "train_wait_start",
    "update_weights_start",
    "update_weights_end",
    "sync_skipped",
    "waiting",
    "partial",
}
_EARLIEST: Final = datetime(1, 1, 1)
_EARLIEST_UTC: Final = _EARLIEST.replace(tzinfo=UTC)


@dataclass
class Train:
    """One rollout's training. ``steps``: ``train/global_batch_size`` of each optimizer step by its number."""

    rollout: int | None = None
    started: datetime | None = None
    ended: datetime | None = None
    waited: float | None = None
    steps: dict[int, float | None] = field(default_factory=dict)
    critic: bool = False
    completed: bool = False
    closed: bool = False
    end_line: Line | None = None
    source: str | None = None
    line: int | None = None

    @property
    def global_batch(self) -> int | None:
        """Largest ``train/global_batch_size`` among its steps."""
        sizes = [size for size in self.steps.values() if size is not None]
        return int(max(sizes)) if sizes else None

    @property
    def critic_only(self) -> bool:
        """Whether only the critic was trained: the policy did not advance."""
        return self.critic and not self.steps


@dataclass
class SyncLine:
    """A weight sync on the console; ``after``: the training before it, None for the first sync of a process."""

    after: Train | None
    started: datetime | None = None
    ended: datetime | None = None
    source: str | None = None
    line: int | None = None


@dataclass
class Process:
    """One launch. ``start_lo/hi``: s0; ``seen_by``: console, events or dumps; times naive and local for a console.

    ``skipped``: syncs that found no engine and published nothing.
    """

    seen_by: str
    start_lo: int | None = None
    start_hi: int | None = None
    collected: set[int] = field(default_factory=set)
    saved: set[int] = field(default_factory=set)
    trains: dict[int, Train] = field(default_factory=dict)
    syncs: list[SyncLine] = field(default_factory=list)
    lines: Sequence[Line] = ()
    batches: list[dict[str, Any]] = field(default_factory=list)
    started: datetime | None = None
    ended: datetime | None = None
    one_ahead: bool | None = None
    every_sync: bool = False
    launch_seen: bool = True
    skipped: int = 0
    unseen: int | None = None
    """Dumps alone: the last rollout before which another launch may have begun that its labels don't show."""
    cut_short: bool = False
    """Dumps show that the process went on after its console or event file ends: what those don't say proves nothing."""

    @property
    def may_pause_in_place(self) -> bool:
        """Whether its words are those of the fully-async rollout of releases that have ``--flush-cache-interval``."""
        return any(
            line["kind"] == "collected_pool" or (line["kind"] == "collected" and line["count"] is not None)
            for line in self.lines
        )

    @property
    def last_collected(self) -> int:
        """Largest rollout id it is known to have collected (-1: none)."""
        return max(self.collected, default=-1)

    def executions(self, rollout: int) -> int | None:
        """Rollout executions a rollout's training took, if every optimizer step's line is there and says so.

        All rollouts take equally many optimizer steps; where one seems not to, a line is missing.
        """
        train = self.trains.get(rollout)
        if train is None or not self.usual_steps or len(train.steps) != self.usual_steps:
            return None
        sizes = [size for size in train.steps.values() if size is not None]
        return int(sum(sizes)) if len(sizes) == self.usual_steps else None

    @cached_property
    def usual_steps(self) -> int:
        """Optimizer steps that most rollouts took, 0 if no line tells; asked for when all trainings are known."""
        counts = Counter(len(train.steps) for train in self.trains.values() if train.steps)
        return counts.most_common(1)[0][0] if counts else 0

    @property
    def torn(self) -> int | None:
        """Return the first number or rollout whose line is missing inside its console; None if none is known to be.

        Lines of a kind that bears a number come with each number. A training has a line of its end if the others have.
        """
        numbers: dict[str, set[int]] = {}
        for line in self.lines:
            if line["kind"] in _MANAGER_IDS | _TRAINER_IDS and line["rollout"] is not None:
                numbers.setdefault(line["kind"], set()).add(line["rollout"])
        lost = [min(set(range(min(ids), max(ids))) - ids, default=None) for ids in numbers.values()]
        last = max(self.trains, default=None)
        inside = {rollout: train for rollout, train in self.trains.items() if rollout != last}
        unended = [rollout for rollout, train in inside.items() if train.end_line is None]
        lost += unended if 2 * len(unended) < len(inside) else []
        lost += [min(set(range(min(self.trains), last)) - self.trains.keys(), default=None)] if last is not None else []
        return min((number for number in lost if number is not None), default=None)

    @cached_property
    def critic_only(self) -> set[int]:
        """Rollouts in which only the critic was trained; asked for when all trainings are known."""
        return {rollout for rollout, train in self.trains.items() if train.critic_only}


def order_lines(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bring the lines of several console files into one order, each told once.

    A driver's log and an actor's own log may say the same: of equal lines in different files only the first file's
    remain.
    """
    if len({line["source"] for line in lines}) > 1:
        seen: dict[Any, str] = {}
        counts: Counter[Any] = Counter()
        kept = []
        for line in lines:
            key = (line["local"], line["kind"], line["rollout"], line["number"], line["count"], line["text"])
            counts[line["source"], key] += 1
            if seen.setdefault((key, counts[line["source"], key]), line["source"]) == line["source"]:
                kept.append(line)
        last: dict[str, datetime] = {}
        for line in kept:
            line["order"] = last[line["source"]] = line["local"] or last.get(line["source"], _EARLIEST)
        lines = sorted(kept, key=lambda line: line["order"])
    return lines


def console_processes(lines: Sequence[Line]) -> list[Process]:
    """Cut the lines where the trainer was launched anew, and read each part."""
    cuts = [0, *_cuts(lines), len(lines)]
    found = [_read_process(lines[start:end]) for start, end in pairwise(cuts) if end > start]
    return [process for process in found if process.start_lo is not None]


def _cuts(lines: Sequence[Line]) -> list[int]:
    cuts: list[int] = []
    state = _Launch()
    for at, line in enumerate(lines):
        if state.is_new(line) or (state.interrupted(line) and _launches(lines, at)):
            begin = _back_to_launch(lines, at, cuts[-1] if cuts else 0)
            cuts.append(begin)
            state = _Launch()
            for again in lines[begin:at]:
                state.is_new(again)
            state.is_new(line)
        state.note(line)
    return cuts


def _launches(lines: Sequence[Line], at: int) -> bool:
    """Whether what follows a wait that begins out of turn is a launch: a sync, and no word of a training just over."""
    synced = False
    for line in lines[at + 1 :]:
        if line["kind"] in _TRAINER_IDS or line["kind"] in {"saved_train", "train_end"}:
            return False
        synced = synced or line["kind"] == "update_weights_end"
        if line["kind"] == "train_start":
            break
    return synced


@dataclass
class _Launch:
    """What has been seen of the present process while looking for the next."""

    ids: dict[str, int] = field(default_factory=dict)
    manager: int | None = None
    worker: bool = False
    training: bool = False
    waiting: bool = False

    def interrupted(self, line: Line) -> bool:
        """Whether the trainer waits again although its last wait or training has not ended."""
        return bool(line["kind"] == "train_wait_start" and (self.training or self.waiting))

    def note(self, line: Line) -> None:
        """Follow the trainer's waiting and training."""
        kind = line["kind"]
        if kind in {"train_wait_start", "train_wait_end"}:
            self.waiting, self.training = kind == "train_wait_start", False
        elif kind in {"train_start", "train_end"}:
            self.waiting, self.training = False, kind == "train_start"

    def is_new(self, line: Line) -> bool:
        """Whether this line can only come from another process than those before; notes it otherwise."""
        kind, rollout = line["kind"], line["rollout"]
        if kind == "worker":
            if self.worker or self.ids:
                return True
            self.worker = True
        if str(line["actor"] or "").startswith("RolloutManager"):
            if self.manager not in {None, line["pid"]}:
                return True
            self.manager = line["pid"]
        if kind in _MANAGER_IDS or kind in _TRAINER_IDS:
            last = self.ids.get(kind)
            # Several ranks may print a trainer's line; the manager's come once.
            if last is not None and (rollout < last or (rollout == last and kind in _MANAGER_IDS)):
                return True
            self.ids[kind] = rollout
        return False


def _back_to_launch(lines: Sequence[Line], at: int, floor: int) -> int:
    """Return where the new process begins: it waits for data and syncs before the line that gives it away."""
    for index in range(at - 1, floor, -1):
        if lines[index]["kind"] not in _BEFORE_FIRST:
            break
        if lines[index]["kind"] == "train_wait_start":
            return index
    return at


def _read_process(lines: Sequence[Line]) -> Process:
    process = _ConsoleReader().read(lines)
    process.lines = lines
    times = [line["local"] for line in lines if line["local"]]
    process.started, process.ended = min(times, default=None), max(times, default=None)
    ids = process.collected | set(process.trains)
    process.start_lo = process.start_hi = min(ids, default=None)
    if process.start_lo is not None and not process.launch_seen:
        process.start_lo = 0  # the beginning of the log is missing
    return process


class _ConsoleReader:
    """Reads one process's lines in order: which train line belongs to which rollout.

    Any single line may be missing: a training is known by its begin, its end or its metrics, a sync by its begin or
    end.
    """

    def __init__(self) -> None:
        self.process = Process("console")
        self.trains: list[Train] = []
        self.open = False
        self.moved = False
        self.wait: float | None = None

    def read(self, lines: Sequence[Line]) -> Process:
        """Return the process these lines are of."""
        metrics = {id(line): values for line, values in metrics_of(list(lines))}
        begins: dict[int, Line] = {}
        for line in lines:
            kind, rollout = line["kind"], line["rollout"]
            if kind in _MANAGER_IDS and rollout is not None:
                self.process.collected.add(rollout)
                begins.setdefault(rollout, line)
                if kind == "saved_rollout":
                    self.process.saved.add(rollout)
            elif kind.startswith(("train_", "update_weights_")) or kind == "sync_skipped":
                self._timer(kind, line)
            elif kind in _TRAINER_IDS or kind in {"saved_train", "step_damaged", "perf_damaged", "critic_step_damaged"}:
                self._train_line(kind, line, metrics.get(id(line), {}))
        self._number()
        ends = {rollout: train.end_line for rollout, train in self.process.trains.items() if train.end_line}
        self.process.one_ahead = _one_ahead(
            [(begins[rollout + 1], end) for rollout, end in ends.items() if rollout + 1 in begins]
        )
        self.process.launch_seen = any(line["kind"] == "worker" for line in lines) or any(
            sync.after is None for sync in self.process.syncs
        )
        return self.process

    def _timer(self, kind: str, line: Line) -> None:
        if kind == "train_wait_end":
            self.wait = line["number"]
        elif kind == "train_start":
            # Several ranks may print it; once anything else has happened it is the next rollout's.
            if not self.open or self.moved:
                self._begin(line)
                self.trains[-1].started = line["local"]
            self.open, self.moved = True, False
            return
        elif kind == "train_end":
            if not self.open and (not self.trains or self.trains[-1].end_line or self.moved):
                self._begin(line)
            if self.trains[-1].end_line is None:
                self.trains[-1].ended, self.trains[-1].completed, self.trains[-1].end_line = line["local"], True, line
            self.open, self.moved = False, False
            return
        elif kind.startswith("update_weights"):
            self._sync(kind, line)
        elif kind == "sync_skipped" and self.process.syncs:
            self.process.syncs.pop()
            self.process.skipped += 1
        self.moved = True

    def _begin(self, line: Line) -> None:
        self.trains.append(Train(waited=self.wait, source=line["source"], line=line["line"]))
        self.wait = None

    def _sync(self, kind: str, line: Line) -> None:
        after = self.trains[-1] if self.trains else None
        if not self.process.syncs or self.process.syncs[-1].after is not after:
            self.process.syncs.append(SyncLine(after, source=line["source"], line=line["line"]))
        sync = self.process.syncs[-1]
        if kind == "update_weights_start":
            sync.started = sync.started or line["local"]
        else:
            sync.ended = sync.ended or line["local"]

    def _train_line(self, kind: str, line: Line, metrics: Mapping[str, float]) -> None:
        self.moved = True
        rollout = line["rollout"]
        names_rollout = kind in {"perf_train", "saved_train"}
        if names_rollout:
            over = bool(self.trains) and self.trains[-1].rollout not in {None, rollout}
        else:
            over = bool(self.trains) and self.trains[-1].closed and rollout not in self.trains[-1].steps
        if not self.trains or over:
            self._begin(line)
        train = self.trains[-1]
        if names_rollout:
            train.rollout = rollout if train.rollout is None else train.rollout
            train.completed = True
            train.closed = train.closed or kind == "perf_train"
            train.waited = metrics.get("perf/train_wait_time", train.waited)
        elif kind in {"step", "step_damaged"}:
            train.steps[rollout] = metrics.get("train/global_batch_size")
        elif kind.startswith("critic"):
            train.critic = True

    def _number(self) -> None:
        """Give trains without a ``perf`` line the id after the one before: they come in the order of rollout ids.

        Optimizer steps are numbered without gaps: where they leap, the lines of whole rollouts are lost in between.
        """
        first = next(((at, train.rollout) for at, train in enumerate(self.trains) if train.rollout is not None), None)
        following = first[1] - first[0] if first and first[1] is not None else min(self.process.collected, default=None)
        usual = Counter(len(train.steps) for train in self.trains if train.steps).most_common(1)
        before: Train | None = None
        for train in self.trains:
            if train.rollout is None and following is not None:
                lost = 0
                if before is not None and before.rollout is not None and train.steps:
                    leap = (min(train.steps) - min(before.steps)) // usual[0][0]
                    lost = before.rollout + leap - following
                train.rollout = following + max(lost, 0)
            if train.rollout is not None:
                self.process.trains.setdefault(train.rollout, train)
                following = train.rollout + 1
            before = train if train.steps else before
        # A later training proves that the ones before it ended, whatever line is missing.
        last = max(self.process.trains, default=None)
        for rollout, train in self.process.trains.items():
            train.completed = train.completed or rollout != last


def _one_ahead(pairs: Sequence[tuple[Line, Line]]) -> bool | None:
    """Whether batches are collected before the training of the one before has ended: the loop of ``train_async.py``.

    ``pairs``: begin of a collection, end of the training before it. Lines of different processes may stand in the
    wrong order within a second, so only whole seconds tell; where no line has a time, the order of the lines does.
    """
    timed = [(begin["local"], end["local"]) for begin, end in pairs if begin["local"] and end["local"]]
    if not timed:
        order = {begin["line"] < end["line"] for begin, end in pairs if begin["source"] == end["source"]}
        return order.pop() if len(order) == 1 else None
    if all(begin <= end for begin, end in timed) and any(begin < end for begin, end in timed):
        return True
    return False if any(begin > end for begin, end in timed) else None


def dump_processes(
    batches: Sequence[dict[str, Any]], edges: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]
) -> list[Process]:
    """Divide rollout dumps among processes by their times and labels alone.

    ``edges``: per dump and label the earliest end and the latest start of its calls.
    """
    ordered = sorted(batches, key=lambda batch: batch["rollout"])
    if all(batch["last_enqueued"] is not None for batch in batches):
        ordered.sort(key=lambda batch: batch["last_enqueued"])
    found: list[Process] = []
    so_far = _SoFar()
    for batch in ordered:
        calls = edges.get((batch["root"], batch["rollout"]), ())
        if not found or _begins_again(found[-1], batch, calls, so_far):
            found.append(Process("dumps"))
            so_far = _SoFar()
        found[-1].batches.append(batch)
        found[-1].collected.add(batch["rollout"])
        so_far.take(batch["rollout"], calls)
    for before, process in zip([None, *found], found, strict=False):
        process.start_lo, process.start_hi = start_of(process, before)
        process.unseen = _unseen_start(process, edges)
    return found


@dataclass
class _SoFar:
    """What the dumps of a process have told so far: the last rollout, and when calls of each label first ended.

    ``labels``: those labels, sorted.
    """

    reached: int = -1
    ends: dict[int, datetime] = field(default_factory=dict)
    labels: list[int] = field(default_factory=list)

    def take(self, rollout: int, calls: Sequence[Mapping[str, Any]]) -> None:
        """Take a dump."""
        self.reached = max(self.reached, rollout)
        for call in calls:
            label, end = call["label"], call["first_end"]
            if end is None:
                continue
            if label not in self.ends:
                insort(self.labels, label)
            self.ends[label] = min(self.ends.get(label, end), end)

    def newer_ended(self, label: int) -> datetime | None:
        """Return when a call of a newer label first ended; None if none did."""
        newer = self.labels[bisect_right(self.labels, label) :]
        return min((self.ends[each] for each in newer), default=None)


def _unseen_start(process: Process, edges: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]) -> int | None:
    """Return the last rollout that a launch may have begun with whose labels look like those of the one before it.

    A launch begins at label 1 or "default", as the one before did, and batch n of it (from 0) is collected after n
    syncs, after one fewer where batches are known to be collected ahead. So no label may have come further by then, and
    no call of a later batch may have ended before an earlier one was queued.
    """
    initial = 0 if any(batch["has_default"] for batch in process.batches) else 1
    ahead = 1 if process.one_ahead else 0
    ordered = sorted(process.batches, key=lambda batch: batch["rollout"])
    queued = list(accumulate((batch["last_enqueued"] or _EARLIEST_UTC for batch in ordered), max))
    limit, began = ordered[-1]["rollout"], None
    for batch, before in zip(reversed(ordered[1:]), reversed(queued[:-1]), strict=True):
        syncs = max((batch["label_max"] or 0) - initial, 0)
        limit = min(limit, batch["rollout"] - syncs - ahead if syncs else limit)
        ends = [call["first_end"] for call in edges.get((batch["root"], batch["rollout"]), ()) if call["first_end"]]
        began = min([*ends, *([began] if began else [])], default=None)
        if batch["rollout"] <= limit and (began is None or began >= before):
            return int(batch["rollout"])
    return None


def _begins_again(
    process: Process, batch: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], so_far: _SoFar
) -> bool:
    if batch["rollout"] <= so_far.reached:
        return True
    for call in calls:
        # In one process no call that starts after a call of a newer label has ended can carry an older one.
        ended = so_far.newer_ended(call["label"])
        if call["last_start"] is not None and ended is not None and call["last_start"] > ended:
            return True
    if calls or batch["label_max"] is None or batch["label_max"] > 1:
        return False
    before = next((b["label_max"] for b in reversed(process.batches) if b["label_max"] is not None), 0)
    return bool(before >= 2)


def start_of(process: Process, before: Process | None) -> tuple[int, int]:
    """Bound s0 of a process known by its dumps: its first rollout id, unless dumps are missing before it.

    They may be where no process ``before`` came as far: one rollout ahead, the second batch has the first one's label,
    too. Labels of later batches may say that they are.
    """
    first = min(process.collected | set(process.trains))
    delta = any(batch["has_default"] for batch in process.batches)
    latest = [
        batch["rollout"] - batch["label_max"] + (0 if delta else 1) for batch in process.batches if batch["label_max"]
    ]
    possible = min([first, *latest])
    reached = before.last_collected if before is not None else -1
    sure = possible == first and (first <= reached + 1 or process.one_ahead is False)
    return (first, first) if sure else (0, max(possible, 0))


@dataclass(frozen=True)
class Versions:
    """Meaning of a process's labels. ``by_label[n]``: interval of the policy version of label n (0 = ``"default"``)."""

    by_label: Mapping[int, tuple[int, int]]
    start: tuple[int, int]
    delta: bool | None
    intervals: tuple[int, ...]


def label_versions(process: Process) -> Versions:
    """Map every label that the process's dumps contain to policy versions."""
    assert process.start_lo is not None and process.start_hi is not None
    labels = sorted({label for batch in process.batches for label in batch["labels"]})
    delta = _is_delta(process)
    start = (policy(process, process.start_lo), policy(process, process.start_hi))
    first = _first_label(process, labels, delta)
    modes = (False, True) if delta is None else (delta,)
    intervals = possible_intervals(process, first, modes)
    begins = {process.start_lo, process.start_hi} | ({process.unseen} if process.unseen is not None else set())
    meaning: dict[int, tuple[int, int]] = {}
    for label in labels:
        versions = [
            policy(process, count)
            for mode in modes
            for begin in begins
            for interval in intervals
            for count in [_trained_at(label - first + 1 if label else 0, begin, interval, delta=mode)]
        ]
        # Each sync that was skipped may have come before this label.
        meaning[label] = (min(versions), max(versions) + process.skipped * max(intervals))
    if _counts_on(process, meaning):
        meaning = {label: (min(start[0], hi), hi) for label, (_, hi) in meaning.items()}
    return Versions(meaning, start, delta, intervals)


def _counts_on(process: Process, meaning: Mapping[int, tuple[int, int]]) -> bool:
    """Whether labels go on from a launch before, on a server that survived it, and nothing tells from where.

    Syncs of rollouts that a resume went back behind make labels newer than the batches they are in.
    """
    known = process.seen_by == "console" and any(batch["rollout"] == process.start_hi for batch in process.batches)
    newest = [(batch["label_max"], policy(process, batch["rollout"])) for batch in process.batches]
    return not known and any(meaning[label][0] > trained for label, trained in newest if label in meaning)


def policy(process: Process, rollouts: int) -> int:
    """Policy version after so many rollouts (critic-only ones do not advance it)."""
    return rollouts - sum(1 for rollout in process.critic_only if rollout < rollouts)


def _trained_at(label: int, begin: int, interval: int, *, delta: bool) -> int:
    """Return how many rollouts had been trained, over all launches, when a label was published (guide section 3)."""
    published = label if delta else label - 1
    return begin if published <= 0 else (begin // interval + published) * interval


def _is_delta(process: Process) -> bool | None:
    """Whether labels are delta mode's; None if nothing tells."""
    if any(batch["has_default"] for batch in process.batches):
        return True
    first = next((batch for batch in process.batches if batch["rollout"] == process.start_lo), None)
    if first is not None and first["label_max"] is not None:
        return False  # its first batch was made by the initial policy, and does not call it "default"
    interval = _logged_interval(process)
    if interval is None or process.start_lo is None or process.start_lo != process.start_hi or process.skipped:
        return None
    for batch in process.batches:
        trained = max(batch["rollout"] - (1 if process.one_ahead else 0), process.start_lo)
        if batch["label_max"] == 1 + trained // interval - process.start_lo // interval:
            return False  # as many labels as syncs: the first sync was counted
    return None


def _logged_interval(process: Process) -> int | None:
    """Return the interval that the syncs on the console show: the greatest they all are multiples of."""
    after = [
        sync.after.rollout + 1 for sync in process.syncs if sync.after is not None and sync.after.rollout is not None
    ]
    return math.gcd(*after) if after else None


def _first_label(process: Process, labels: Sequence[int], delta: bool | None) -> int:
    """Label of the starting policy: 1, unless a surviving server kept counting over the restart."""
    first = next((batch for batch in process.batches if batch["rollout"] == process.start_lo == process.start_hi), None)
    if (
        delta is False
        and first is not None
        and first["label_min"] == first["label_max"]
        and first["label_min"] is not None
    ):
        return int(first["label_min"])
    return 1


def possible_intervals(process: Process, first: int, modes: Iterable[bool]) -> tuple[int, ...]:
    """Return every ``--update-weights-interval`` that the log or, without it, the labels allow.

    The labels allow those under which no token would be newer than its batch.
    """
    assert process.start_lo is not None and process.start_hi is not None
    logged = _logged_interval(process)
    if logged is not None:
        return (logged,)
    if process.every_sync:
        return (1,)
    newest = [(batch["label_max"], batch["rollout"]) for batch in process.batches if batch["label_max"]]
    limit = max((rollout for _, rollout in newest), default=0) + 1
    found = [
        interval
        for interval in range(1, limit + 1)
        if all(
            any(
                _trained_at(label - first + 1, start, interval, delta=mode) <= rollout
                for mode in modes
                for start in {process.start_lo, process.start_hi}
            )
            for label, rollout in newest
        )
    ]
    return tuple(found) or (1,)

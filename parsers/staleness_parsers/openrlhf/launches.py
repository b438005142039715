"""From lines and scalars to launches: what each launch of the training process took from its queue, in order."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson

from staleness_parsers.openrlhf.stamps import seconds, turns

TIMED = ("timing/step_total", "timing/make_experience", "timing/ppo_train", "timing/broadcast")
_MARKS = ("timing/step_total", "timing/ppo_train", "timing/broadcast", "policy_loss", "actor_grad_norm", "reward", "kl")


@dataclass(frozen=True)
class Batch:
    """An item of the queue that step ``step`` (as logged) trained. ``taken``: samples, as said when it was taken.

    ``hole``: no log says anything of it, later steps prove it. ``wall``: seconds since 1970 at its end;
    ``stamp``: the console's local time of it.
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    taken: int | None = None
    source: str | None = None
    line: int | None = None
    locator: str | None = None
    wall: float | None = None
    stamp: str | None = None
    hole: bool = False

    @property
    def samples(self) -> int | None:
        """How many samples it held."""
        stated = self.metrics.get("rollout/num_samples")
        return self.taken if stated is None else round(stated)

    @property
    def timed(self) -> bool:
        """Whether its place on the trainer's clock is known."""
        return all(key in self.metrics for key in TIMED)

    @property
    def generation(self) -> float | None:
        """Seconds that the generator's call took."""
        return self.metrics.get("timing/generation")

    @property
    def work(self) -> float:
        """Seconds from taking it to the end of its broadcast."""
        return sum(self.metrics[key] for key in TIMED[1:])

    @property
    def mark(self) -> tuple[Any, ...] | None:
        """What makes the step recognisable in another file; scalars are kept in single precision."""
        values = [self.metrics.get(key) for key in _MARKS]
        if all(value is None for value in values):
            return None
        return (
            self.step,
            *(None if value is None else struct.unpack("f", struct.pack("f", value))[0] for value in values),
        )


@dataclass(frozen=True)
class Evaluation:
    """An item of the queue that trained nothing."""

    step: int | None


Item = Batch | Evaluation


@dataclass
class Launch:
    """One launch of the training process. ``began``: its first item is the first one in ``items``.

    ``calls``: prompts of each generation call. ``passes``: how often it goes through the data at most, if its bars say
    so. ``filtered``: rows of discarded groups. ``takes``: batches that were taken since the last step logged.
    ``waiting``: the last line that says the queue is full, if no step followed. ``pid``: its training process, if the
    console names it. ``stamp``, ``queue_stamp``: local times of its first line and of the one that states the queue
    size. ``interval``: every how many steps its metrics were logged. ``tail``: so many steps more may have followed
    without a record, as only every ``interval``-th one is in the event file. ``headed``: the logs show how it began.
    """

    items: list[Item] = field(default_factory=list)
    queue_size: int | None = None
    began: bool = False
    synchronous: bool = False
    old_filter: bool = False
    calls: list[int] = field(default_factory=list)
    passes: int | None = None
    filtered: list[dict[str, Any]] = field(default_factory=list)
    takes: list[dict[str, Any]] = field(default_factory=list)
    waiting: dict[str, Any] | None = None
    stamp: str | None = None
    pid: int | None = None
    queue_stamp: str | None = None
    console: bool = False
    interval: int = 1
    tail: int = 0
    headed: bool = False
    last_step: int | None = None

    @property
    def batches(self) -> list[Batch]:
        """Its batches in order."""
        return [item for item in self.items if isinstance(item, Batch)]

    @property
    def source(self) -> str | None:
        """The file that its steps stand in."""
        return next((batch.source for batch in self.batches if batch.source), None)

    @property
    def timed(self) -> bool:
        """Whether its release logs timings (0.9.9 and later)."""
        return any(batch.timed for batch in self.batches)

    @property
    def dated(self) -> bool:
        """Whether an event file, which is made when a launch begins, has its first step."""
        return self.batches[0].wall is not None

    @property
    def wall(self) -> float | None:
        """Seconds since 1970 of the first dated batch."""
        return next((batch.wall for batch in self.batches if batch.wall is not None), None)

    def add(self, batch: Batch) -> None:
        """Append a batch, and before it those steps that it or their batches' being taken proves."""
        taken = {batch.step - age: take["samples"] for age, take in enumerate(reversed(self.takes))}
        first = min(taken, default=batch.step) if self.last_step is None else self.last_step + 1
        self.items += [Batch(step, taken=taken.get(step), hole=True) for step in range(max(first, 1), batch.step)]
        self.items.append(replace(batch, taken=taken.get(batch.step)))
        self.last_step = batch.step
        self.takes = []

    def close(self, *, done: int) -> None:
        """Add the steps of the first ``done`` batches taken: the trainer went on to something else after them."""
        if self.last_step is not None and done > 0:
            self.items += [
                Batch(self.last_step + age, taken=take["samples"], source=take["source"], line=take["line"], hole=True)
                for age, take in enumerate(self.takes[:done], 1)
            ]
            self.last_step += done
            self.takes = self.takes[done:]


def find_launches(
    lines: Sequence[Mapping[str, Any]], scalars: Sequence[Mapping[str, Any]], every: int | None = None
) -> list[Launch]:
    """Return in order what looks like launches: in consoles, joined with event files by the steps they share.

    ``every``: ``--logger.logging_steps``, where a configuration states it.
    """
    found: list[Launch] = []
    for rows in _by_source(lines):
        for launch in _of_console(rows):
            _join(found, launch)
    found = _by_stamp(found)
    for launch in sorted(
        (one for rows in _by_source(scalars) for one in _of_events(rows, every)), key=lambda one: one.wall or 0
    ):
        _join(found, launch)
    return found


def settle(found: Sequence[Launch]) -> list[Launch]:
    """Return the launches among those found, with what stands in files of other processes: Ray keeps one for each."""
    launches = [launch for launch in found if launch.items or launch.queue_size is not None or launch.takes]
    heads = {launch.queue_stamp for launch in launches if launch.items} - {None}
    # The same line in the file of its process and in what Ray prints.
    launches = [launch for launch in launches if launch.items or launch.takes or launch.queue_stamp not in heads]
    lone = [launch for launch in launches if not launch.items and launch.queue_size is not None]
    bare = [launch for launch in launches if launch.items and launch.queue_size is None]
    if lone and bare and len({launch.queue_size for launch in lone}) == 1:
        for launch in bare:
            launch.queue_size = lone[0].queue_size
        launches = [launch for launch in launches if launch not in lone[: len(bare)]]
    loose = [launch for launch in found if launch not in launches and (launch.calls or launch.filtered)]
    if loose and launches:
        # Which launch a generator's own file belongs to only matters for the order of its calls.
        host = launches[0] if len(launches) == 1 else launches[-1]
        for launch in loose:
            host.calls = host.calls or (launch.calls if len(launches) == 1 else [])
            host.passes = host.passes or launch.passes
            host.filtered = host.filtered or launch.filtered
            host.old_filter = host.old_filter or launch.old_filter
    reached = 0
    for launch in launches:
        if not launch.items:
            continue
        first = launch.batches[0].step
        # A console that begins at a later step than any log before it leads to may lack its first steps.
        launch.headed = launch.began or first == 1
        launch.began = first == 1 or (launch.began and (launch.dated or first - 1 <= reached))
        reached = max(reached, launch.batches[-1].step)
    return launches


def _by_source(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["source"], []).append(row)
    yield from groups.values()


def _of_console(rows: Sequence[Mapping[str, Any]]) -> Iterator[Launch]:
    """Cut the lines of a file where a queue is made, the step count falls back, or another process trains."""
    launch = Launch(console=True)
    evaluating = False
    for row in rows:
        kind = row["kind"]
        last = launch.last_step
        falls = kind.startswith("step") and last is not None and row["step"] <= last
        moved = None not in (row["pid"], launch.pid) and row["pid"] != launch.pid
        if falls or moved or (kind == "queue_size" and (last is not None or launch.queue_size is not None)):
            # The batch of the step that is logged now.
            takes = launch.takes[-1:] if falls and not moved else []
            launch.takes = launch.takes[: len(launch.takes) - len(takes)]
            launch.close(done=len(launch.takes) - 1)
            yield launch
            launch = Launch(
                console=True,
                takes=takes,
                queue_size=launch.queue_size,
                passes=None if kind == "queue_size" else launch.passes,
            )
        launch.pid = launch.pid or row["pid"]
        launch.stamp = launch.stamp or row["stamp"]
        if kind == "queue_size":
            launch.queue_size, launch.began, launch.queue_stamp = row["count"], True, row["stamp"]
        elif kind == "take":
            launch.takes.append({"samples": row["count"], "source": row["source"], "line": row["line"]})
        elif kind.startswith("step"):
            metrics = orjson.loads(row["text"]) if row["text"] else {}
            launch.add(Batch(row["step"], metrics, source=row["source"], line=row["line"], stamp=row["stamp"]))
            launch.waiting = None
            launch.synchronous = kind == "step_sync" and launch.queue_size is None
        elif kind == "eval":
            launch.close(done=len(launch.takes))
            launch.items.append(Evaluation(row["step"]))
        elif kind in ("eval_start", "eval_end"):
            evaluating = kind == "eval_start"
        elif kind == "call" and not evaluating:
            launch.calls.append(row["count"])
        elif kind == "passes":
            launch.passes = max(launch.passes or 0, row["count"])
        elif kind == "filtered":
            launch.filtered.append(dict(row))
        elif kind == "old_filter":
            launch.old_filter = True
        elif kind == "full":
            launch.waiting = dict(row)
    launch.close(done=len(launch.takes) - 1)
    yield launch


def _of_events(rows: Sequence[Mapping[str, Any]], every: int | None) -> Iterator[Launch]:
    """One launch per event file; an evaluation stands where its scalars stand among those of the steps."""
    items: list[tuple[str, int, dict[str, Any]]] = []
    for row in rows:
        kind = "eval" if row["tag"] == "eval" else "step"
        if not items or items[-1][:2] != (kind, row["step"]):
            items.append((kind, row["step"], {"record": row["record"], "wall": row["wall"], "values": {}}))
        items[-1][2]["values"][row["tag"]] = row["value"]
        items[-1][2]["wall"] = row["wall"]
    steps = [step for kind, step, _ in items if kind == "step"]
    interval = every or _interval(steps)
    # A single record tells no distance: it may be the second step of a resumed launch, or the only one that was due.
    alone = len(steps) == 1 and steps != [1] and not every
    new = partial(Launch, began=interval == 1 and not alone, interval=interval, tail=interval - 1)
    launch = new()
    if steps and 1 < steps[0] == interval:
        # Only every so many steps are logged, and this is the first of them: it began at 0.
        launch.items += [Batch(step, hole=True) for step in range(1, steps[0])]
        launch.began = True
    for kind, step, about in items:
        if kind == "eval":
            launch.items.append(Evaluation(step))
            continue
        if launch.last_step is not None and step <= launch.last_step:
            yield launch
            launch = new()
        where = {"source": rows[0]["source"], "locator": f"record {about['record']}", "wall": about["wall"]}
        launch.add(Batch(step, about["values"], **where))
    yield launch


def _interval(steps: Sequence[int]) -> int:
    """Every how many steps metrics were logged: the common distance, if all are multiples of it."""
    distances = {later - earlier for earlier, later in itertools.pairwise(steps)}
    if len(distances) == 1 and (distance := distances.pop()) > 1 and steps[0] % distance == 0:
        return distance
    return 1


def _join(found: list[Launch], new: Launch) -> None:
    """Add a launch, or what it knows more to one that shares a step with it."""
    marks = {mark for batch in new.batches if (mark := batch.mark)}
    for launch in found:
        if any(batch.mark in marks for batch in launch.batches):
            _merge(launch, new)
            return
    later = [index for index, launch in enumerate(found) if new.wall and launch.wall and launch.wall > new.wall]
    found.insert(later[0] if later else len(found), new)


def _merge(launch: Launch, other: Launch) -> None:
    theirs = {batch.step: batch for batch in other.batches if not batch.hole}
    first, last = launch.batches[0].step, launch.batches[-1].step
    merged = [_filled(item, theirs.get(item.step)) if isinstance(item, Batch) else item for item in launch.items]
    before: list[Item] = []
    after: list[Item] = []
    for item in other.items:
        if isinstance(item, Batch) and item.step >= first:
            break
        before.append(item)
    for item in reversed(other.items):
        if isinstance(item, Batch) and item.step <= last:
            break
        after.insert(0, item)
    if before and isinstance(before[-1], Evaluation) and isinstance(launch.items[0], Evaluation):
        before.pop()
    if after and isinstance(after[0], Evaluation) and isinstance(launch.items[-1], Evaluation):
        after.pop(0)  # the console was cut after it
    if after and not any(isinstance(item, Batch) for item in after):
        after = []
    if any(isinstance(item, Batch) for item in after):
        launch.takes = []
        launch.tail = other.tail
    if any(isinstance(item, Batch) for item in before):
        launch.began = other.began
    elif other.batches[0].step == first:
        launch.began = launch.began or other.began
    launch.items = [*before, *merged, *after]
    launch.queue_size = launch.queue_size if launch.queue_size is not None else other.queue_size
    launch.calls = max(launch.calls, other.calls, key=len)
    launch.passes = launch.passes or other.passes
    launch.filtered = max(launch.filtered, other.filtered, key=len)
    launch.old_filter = launch.old_filter or other.old_filter
    launch.console = launch.console or other.console


def _filled(mine: Batch, theirs: Batch | None) -> Batch:
    if theirs is None:
        return mine
    if mine.hole or not mine.metrics:
        taken = mine.taken if mine.taken is not None else theirs.taken
        return replace(theirs, taken=taken, stamp=mine.stamp)
    return replace(mine, wall=mine.wall if mine.wall is not None else theirs.wall, taken=mine.taken or theirs.taken)


def _by_stamp(found: list[Launch]) -> list[Launch]:
    """Order launches by their local times."""
    turned = turns([launch.stamp for launch in found if launch.stamp])
    return sorted(found, key=lambda launch: seconds(launch.stamp or "", turned=turned) or 0.0)

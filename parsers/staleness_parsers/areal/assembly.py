"""From tasks to batches: the replay of a launch, its check against the steps' statistics, and what stays open."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, islice, permutations

from staleness_parsers.areal.content import Content, Key
from staleness_parsers.areal.launches import Launch, Step
from staleness_parsers.areal.replay import LATE, Assigned, Need, Result, replay
from staleness_parsers.areal.settings import Settings
from staleness_parsers.areal.tasks import Task

RESUME = 150_000
MAX_WAIT = 1_000_000
"""Microseconds by which a collection may begin, and end, later than the step lines tell, where no span does."""
MAX_TRIALS = 40


@dataclass
class Batch:
    """What is known of a batch. ``perhaps``: tasks of which some were in it. ``oldest``: no member's token is older."""

    perhaps: set[Key] = field(default_factory=set)
    oldest: int | None = None
    checked: bool = False


@dataclass
class Batches:
    """The batches of one launch. ``hidden``: tasks of which it stays open whether and where they were trained.

    ``unexplained``: steps for which no batch agrees with the statistics. ``replayed``: there was anything to go by.
    ``windows``: end and number of the collections that are recorded. ``first``: first known step of the launch.
    """

    steps: dict[int, Batch] = field(default_factory=dict)
    step_of: dict[Key, int] = field(default_factory=dict)
    hidden: set[Key] = field(default_factory=set)
    unexplained: list[int] = field(default_factory=list)
    replayed: bool = False
    windows: list[tuple[int, int]] = field(default_factory=list)
    first: int = 0

    @cached_property
    def members(self) -> Mapping[int, Sequence[Key]]:
        """The tasks that each step trained for certain; ask for it when all is assembled."""
        return _by_step(self.step_of)

    @cached_property
    def _ends(self) -> Sequence[int]:
        """The latest end so far, by window: the first that is not before a time is that of the right window."""
        return [*accumulate((end for end, _ in self.windows), max)]

    def collecting(self, at: int | None) -> int | None:
        """Return the step that was being collected, or was next to be, at a time.

        None where that is not known: the record of the step before the next known one is lost.
        """
        if at is None:
            return None
        place = bisect_left(self._ends, at)
        if place == len(self.windows):
            return None
        number = self.windows[place][1]
        before = self.windows[place - 1][1] if place else self.first - 1
        return number if before == number - 1 else None


def assemble(
    launch: Launch, tasks: Sequence[Task], contents: dict[Key, Content], settings: Settings, *, missing: bool
) -> Batches:
    """Replay the batches of one launch.

    ``missing``: some tasks of the run are known by nothing but their dumps, or not at all. Then only a batch that
    agrees with its step's statistics is believed, and nothing bounds how old a member of another one is.
    """
    found = Batches()
    timed = [launch.steps[number] for number in sorted(launch.steps) if launch.steps[number].windows]
    steps = [step for step in timed if not launch.unseen(step)]
    found.first = min(launch.steps, default=0)
    found.windows = [(max(end for _, end in step.windows.values()), step.number) for step in timed]
    ranks = sorted({task.rank for task in tasks})
    size = settings.batch or _guess_batch(steps, contents, tasks)
    ready = [task for task in tasks if task.ready is not None and task.status is not None]
    everything = {task.key for task in tasks if task.status in ("accepted", None) or (missing and not task.sure)}
    if (
        not steps
        or not ready
        or not size
        or _ranks_differ(launch, ranks, size, settings)
        or not launch.dated
        or _gap(launch, steps)
    ):
        # Which of them were trained nobody can say; without steps none was.
        found.hidden = everything if launch.steps else set()
        return found
    found.replayed = True
    if any(row["kind"] == "old_submit" for row in launch.log):
        # Up to v0.4 a refused result was never among those that the collector counts.
        ready = [task for task in ready if task.status == "accepted"]
    by_index = dict(enumerate(ready))
    needs = [[_need(step, rank, size // len(ranks)) for rank in ranks] for step in steps]
    check = _checker(steps, by_index, contents, settings)

    def run() -> list[Assigned]:
        results = [
            [
                Result(task.order, task.ready or 0, task.status == "accepted", index)
                for index, task in by_index.items()
                if task.rank == rank
            ]
            for rank in ranks
        ]
        return replay(results, needs, settings.dynamic, check)

    outcome = _settle_doubts(run, ready)
    for step, assigned in zip(steps, outcome, strict=True):
        batch = found.steps[step.number] = Batch(checked=assigned.checked)
        believed = assigned.checked or not missing
        for index in assigned.certain if believed else ():
            found.step_of[by_index[index].key] = step.number
        batch.perhaps = {by_index[index].key for index in assigned.perhaps} if believed else set()
        if not believed or not (assigned.certain or assigned.perhaps):
            found.unexplained.append(step.number)
    _leave_open(found, steps, ready, contents)
    if len(steps) < len(launch.steps):
        # The other steps took what they took at a time that nobody knows, or after the log's end.
        found.hidden |= everything - found.step_of.keys()
    if not missing:
        _bound_age(found, contents)
    return found


def _by_step(step_of: Mapping[Key, int]) -> dict[int, list[Key]]:
    members: dict[int, list[Key]] = {}
    for key, number in step_of.items():
        members.setdefault(number, []).append(key)
    return members


def _settle_doubts(run: Callable[[], list[Assigned]], tasks: Sequence[Task]) -> list[Assigned]:
    """Replay; where lines of two outcomes may be crossed and some step stays unexplained, try them the other way."""
    best = run()
    doubts: dict[int, list[Task]] = {}
    for task in tasks:
        if task.doubt is not None:
            doubts.setdefault(task.doubt, []).append(task)
    trials = MAX_TRIALS
    for group in doubts.values():
        first = [task.status for task in group]
        for other in sorted(set(islice(permutations(first), 24)), key=str):
            if _open(best) == 0 or trials == 0:
                return best
            if list(other) == [task.status for task in group]:
                continue
            trials -= 1
            before = [task.status for task in group]
            _set(group, other)
            outcome = run()
            if _open(outcome) < _open(best):
                best = outcome
            else:
                _set(group, before)
    return best


def _open(outcome: Sequence[Assigned]) -> int:
    return sum(not assigned.certain for assigned in outcome)


def _set(group: Sequence[Task], statuses: Sequence[str | None]) -> None:
    for task, status in zip(group, statuses, strict=True):
        task.status = status


def _ranks_differ(launch: Launch, ranks: Sequence[int], size: int, settings: Settings) -> bool:
    """Tell whether the known ranks cannot be all that share a batch: each trainer has tasks of its own."""
    if size % max(len(ranks), 1):
        return True
    old = any(row["kind"] == "old_submit" for row in launch.log)
    return old and settings.data_parallel is not None and settings.data_parallel != len(ranks)


def _gap(launch: Launch, steps: Sequence[Step]) -> bool:
    """Tell whether a step before the last has no window: it took tasks nobody knows when."""
    numbers = [step.number for step in steps]
    return numbers != list(range(launch.start_version, launch.start_version + len(numbers)))


def _need(step: Step, rank: int, count: int) -> Need:
    own = step.windows.get(rank)
    spans = own is not None and step.trained is not None
    begin, end = own or next(iter(step.windows.values()))
    return Need(begin, end if spans else end + MAX_WAIT, count, 0 if spans else RESUME)


def _guess_batch(steps: Sequence[Step], contents: dict[Key, Content], tasks: Sequence[Task]) -> int | None:
    """Without a configuration: a step's samples over those of a group, where all groups are alike."""
    sizes = {len(contents[task.key].samples) for task in tasks if task.status == "accepted"}
    counts = {step.values.get("n_seqs") for step in steps}
    if len(sizes) != 1 or len(counts) != 1:
        return None
    (size,), (count,) = sizes, counts
    return round(count) // size if count and size and round(count) % size == 0 else None


def _checker(
    steps: Sequence[Step], tasks: dict[int, Task], contents: dict[Key, Content], settings: Settings
) -> Callable[[int, frozenset[int]], bool | None]:
    """Compare a batch with what its step logged: samples, tokens, lengths, and that no token is newer than the step."""
    sums = {index: contents[task.key].sums for index, task in tasks.items()}

    def check(at: int, members: frozenset[int]) -> bool | None:
        step = steps[at]
        parts = [sums[member] for member in members]
        if any(part.newest > step.number for part in parts):
            return False
        rows, tokens = sum(part.samples for part in parts), sum(part.tokens for part in parts)
        count, valid = step.values.get("n_seqs"), step.values.get("n_valid_tokens")
        whole = all(part.told for part in parts)
        if count is not None and whole and rows > count + 0.5:
            return False
        if valid is None:
            return None
        slack = max(0.5, abs(valid) * 6e-5) if step.printed else max(0.5, abs(valid) * 1e-6)
        kept = _kept(step, (contents[tasks[member].key] for member in members), settings)
        if (sum(low for low, _ in kept) if settings.token_mask else tokens) > valid + slack:
            return False
        highs = [part.most for part in parts if part.most is not None]
        if len(highs) == len(parts) and sum(highs) < valid - slack:
            return False
        if not whole or (count is not None and rows < count - 0.5):
            return None
        length, mean = sum(part.length for part in parts), step.values.get("seq_len/avg")
        if (
            mean is not None
            and count
            and abs(mean * count - length) > max(0.5, (2e-4 if step.printed else 1e-5) * length)
        ):
            return False
        if settings.token_mask and valid < tokens - slack:
            # Nobody says whether the step counted before PR #1722 took out the old tokens, or after that.
            return valid <= sum(high or 0 for _, high in kept) + slack
        return abs(tokens - valid) <= slack

    return check


def _kept(step: Step, contents: Iterable[Content], settings: Settings) -> list[tuple[int, int | None]]:
    """For each span of a batch, least and most tokens that PR #1722's mask leaves in the loss; nothing without it."""
    samples = (sample for content in contents if settings.token_mask for sample in content.samples)
    return [span.kept(step.number, settings.eta or 0) for sample in samples for span in sample.spans]


def _leave_open(found: Batches, steps: Sequence[Step], ready: Sequence[Task], contents: dict[Key, Content]) -> None:
    """Hide tasks that may or may not have been trained."""
    by_number = {step.number: step for step in steps}
    for number in found.unexplained:
        step = by_number[number]
        latest = max(end for _, end in step.windows.values()) + LATE
        found.steps[number].perhaps = {
            task.key
            for task in ready
            if task.key not in found.step_of and task.status != "rejected" and (task.ready or 0) <= latest
        }
    members = _by_step(found.step_of)
    for step in steps:
        # Guessed samples must not exceed what the step counted, if it did: a group may have shrunk.
        mine = members.get(step.number, [])
        count = step.values.get("n_seqs")
        if count is None or sum(len(contents[key].samples) for key in mine) > count:
            guessed = {key for key in mine if not contents[key].counted}
            found.steps[step.number].perhaps |= guessed
            for key in guessed:
                del found.step_of[key]
    for batch in found.steps.values():
        # Not ``perhaps - step_of.keys()``, which goes through all keys.
        found.hidden.update(key for key in batch.perhaps if key not in found.step_of)


def _bound_age(found: Batches, contents: dict[Key, Content]) -> None:
    """Bound how old a member of a step can be whose batch is partly open: its members are among known tasks."""
    for number, batch in found.steps.items():
        if not batch.perhaps:
            continue
        members = [*batch.perhaps, *found.members.get(number, ())]
        spans = [span for key in members for sample in contents[key].samples for span in sample.spans]
        batch.oldest = min((span.version_lo for span in spans), default=None)

"""Solving each step's batch: who may be how old, and how many tokens that is (guide sections 3 and 5.2).

The reported staleness s of a group is the number of steps since its admission. Its oldest token is s or s - 1
old; s = 0 is exactly 0. Where a request may have waited for a slot, or the configuration is not at hand, it is anything
up to s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from staleness_audit.solve import Facts, Range, Solution, either, pick, solve
from staleness_parsers.skyrl.launches import Figure, Launch, Step
from staleness_parsers.skyrl.settings import Settings

MAX_SIZES = 64
"""Sizes of a batch that are tried one by one; beyond that, only what needs no size is said."""


@dataclass(frozen=True)
class Group:
    """A group of a dumped batch: see ``dumps.GROUPS``."""

    trajectories: int
    unmasked: int
    loss_tokens: int
    masked_tokens: int


@dataclass(frozen=True)
class Frame:
    """What all steps of a launch share.

    ``sizes``: how many members a batch may have (none: too many to tell, up to ``most``); ``samples``: trajectories per
    member (1 where members are trajectories because groups are not known); ``grouped``: members are groups. ``bounds``:
    possible values of S (None = no group was over it, whatever it is). ``prompt``: no request can have waited, so that
    lower ends hold. ``single``: a trajectory is never more than one row.
    """

    sizes: tuple[int, ...]
    samples: int
    grouped: bool
    bounds: tuple[int | None, ...]
    prompt: bool
    single: bool
    most: int = 0

    def rows_are_trajectories(self, step: Step) -> bool:
        """Whether each row of this step's batch is one trajectory: as many rows, and each has at least one."""
        rows = step.size("generate/batch_num_seq") or step.rows
        return self.single or (self.grouped and len(self.sizes) == 1 and rows == self.sizes[0] * self.samples)


@dataclass(frozen=True)
class Part:
    """Neighbouring members of a batch in the order of age: anonymous, alike as far as is known.

    ``groups`` (None = not known), ``trajectories``, ``tokens`` in the loss (upper end None = open), ``reported`` and
    true ``staleness`` of each. ``trained``: each surely has a token in the loss. ``line``: a warning that names this
    age.
    """

    groups: Range | None
    trajectories: tuple[int, int | None]
    tokens: tuple[int, int | None]
    reported: Range
    staleness: Range
    trained: bool
    line: int | None = None


@dataclass(frozen=True)
class Batch:
    """A solved batch: its parts, all its trajectories, those whose every token is masked, and its loss tokens."""

    parts: tuple[Part, ...]
    trajectories: tuple[int, int | None] = (1, None)
    masked: Range = (0, 0)
    masked_tokens: tuple[int, int | None] = (0, 0)
    loss_tokens: tuple[int, int | None] = (0, None)
    notes: tuple[tuple[str, str], ...] = field(default=())


def whole_trajectories(groups: list[Group], settings: Settings) -> list[Group]:
    """Return the groups of a batch whose rows are turns, where it does not say which turns belong together.

    None are left if some rows are masked: then it is not known how many trajectories are.
    """
    size = settings.samples
    if settings.stepwise is not True or size is None or all(group.trajectories == size for group in groups):
        return groups
    if any(group.unmasked < group.trajectories for group in groups):
        return []
    return [replace(group, trajectories=size, unmasked=size) for group in groups]


def frame_of(
    launch: Launch, top: dict[int, int], dumps: Mapping[int, Sequence[Group]], concurrency: int | None
) -> Frame:
    """Find out sizes and the bound of a launch, from its configuration or from what fits all of its steps."""
    settings = launch.settings
    steps = [step for step in launch.steps.values() if "async/staleness_mean" in step.figures]
    samples = settings.samples or _samples_by_key(steps)
    waiting = any(
        (figure := step.figure("vllm/num_requests_waiting")) is not None and figure.value > 0
        for step in launch.steps.values()
    )
    prompt = settings.starts_at_once(concurrency) and not waiting
    stated = settings.bound if settings.bound is not None else launch.stated_bound
    dumped = {len(groups) for groups in dumps.values()}
    if settings.groups or (len(dumped) == 1):
        sizes: tuple[int, ...] = (settings.groups or next(iter(dumped)),)
        bounds = (stated,) if stated is not None else _bounds(steps, top, sizes)
        return Frame(
            sizes, samples or 1, samples is not None or bool(dumped), bounds, prompt, settings.stepwise is False
        )
    rows = [row for step in launch.steps.values() if (row := step.size("generate/batch_num_seq") or step.rows)]
    most = min(rows, default=0) // (samples or 1)
    sizes = (
        (most,)
        if settings.stepwise is False and most
        else tuple(size for size in range(1, most + 1) if _divides(steps, size))
    )
    if len(sizes) > MAX_SIZES:
        return Frame((), samples or 1, samples is not None, (None,), prompt, False, most)
    bounds = (stated,) if stated is not None else _bounds(steps, top, sizes)
    sizes = tuple(size for size in sizes if all(any(_solve(step, top, size, s) for s in bounds) for step in steps))
    return Frame(sizes, samples or 1, samples is not None, bounds, prompt, settings.stepwise is False)


def _samples_by_key(steps: Iterable[Step]) -> int | None:
    """Return n as the name of a metric states it."""
    prefix = "reward/avg_pass_at_"
    found = {int(key.removeprefix(prefix)) for step in steps for key in step.figures if key.startswith(prefix)}
    return found.pop() if len(found) == 1 else None


def _divides(steps: Iterable[Step], size: int) -> bool:
    """Whether mean and share of every step are those of so many members."""
    keys = ("async/staleness_mean", "async/staleness_ratio")
    return all(step.figures[key].count(size) is not None for step in steps for key in keys if key in step.figures)


def _bounds(steps: Sequence[Step], top: dict[int, int], sizes: Sequence[int]) -> tuple[int | None, ...]:
    """Return the values of S under which every step's count over the bound is possible."""
    counted = [step for step in steps if step.size("async/staleness_violation_count") is not None]
    oldest = {id(step): step.size("async/staleness_max") or 0 for step in counted}
    violating = [step for step in counted if step.size("async/staleness_violation_count")]
    if not violating:
        return (None,)
    least = max((oldest[id(step)] for step in counted if step not in violating), default=0)
    most = min(oldest[id(step)] for step in violating) - 1
    fits = [
        bound
        for bound in range(least, most + 1)
        if any(all(_solve(step, top, size, bound) for step in counted) for size in sizes)
    ]
    return tuple(fits) or (None,)


def _solve(step: Step, top: dict[int, int], size: int, bound: int | None, warned: bool = True) -> Solution | None:
    """Return what is known of the reported ages of a batch of this size, if S is ``bound``."""
    known = Counter(age for age, _ in step.over) if warned else Counter[int]()
    over: dict[int, Range] = {}
    stated = step.size("async/staleness_violation_count")
    complete = step.told and stated in (None, sum(known.values())) and warned
    if bound is not None and stated is not None:
        over[bound] = (stated, stated)
    if bound is not None and complete:
        # Every group over the bound has its warning, so the ages beyond it are known one by one.
        for age in {bound, *known}:
            count = sum(number for other, number in known.items() if other > age)
            over[age] = (count, count)
    ratio, mean = step.figure("async/staleness_ratio"), step.figure("async/staleness_mean")
    return solve(
        Facts(
            (size, size),
            (0, max([top.get(step.number or 0, step.number or 0), *known])),
            mean=mean.share if mean else None,
            smallest=step.size("async/staleness_min"),
            largest=step.size("async/staleness_max"),
            over=over,
            share_over={0: ratio.share} if ratio else {},
            known=known,
        )
    )


def _loose(step: Step, top: dict[int, int], members: Range) -> Solution:
    """Return what the extremes say by themselves of a batch whose size is not known."""
    first = step.size("async/staleness_min") or 0
    last = step.size("async/staleness_max")
    reached = last is not None
    last = max(first, top.get(step.number or 0, step.number or 0) if last is None else last)
    tails = {first - 1: members, **{age: (int(reached), members[1]) for age in range(first, last)}, last: (0, 0)}
    return Solution(dict.fromkeys(range(first, last + 1), (0, members[1])), tails)


def solve_batch(
    step: Step, frame: Frame, settings: Settings, top: dict[int, int], dump: Sequence[Group] | None
) -> Batch:
    """Return the parts of one step's batch."""
    notes: list[tuple[str, str]] = []
    stated = step.size("async/staleness_violation_count")
    warned = stated is None or len(step.over) <= stated
    if not warned:
        notes.append(
            ("too-many-warnings", "More staleness warnings are logged than the step counts groups over the bound.")
        )
    sizes = frame.sizes
    if dump is not None and len(dump) not in sizes and frame.grouped:
        notes.append(
            ("batch-size-differs", "The dumped batch has another number of groups than the configuration says.")
        )
        sizes = (len(dump),)
    solution = either(_solve(step, top, size, bound, warned) for size in sizes for bound in frame.bounds)
    if solution is None and sizes:
        notes.append(
            ("aggregates-contradict", "No batch fits the step's mean, share, extremes, counts and warnings together.")
        )
    if solution is None:
        rows = step.size("generate/batch_num_seq") or step.rows or 0
        most = max(sizes, default=frame.most or rows // frame.samples)
        if not most:
            age = (0, top.get(step.number or 0, step.number or 0))
            return Batch((Part(None, (1, None), (0, None), age, age, False),), notes=tuple(notes))
        solution = _loose(step if not notes else Step(step.number), top, (min(sizes, default=1), most))
    if dump is not None and frame.grouped:
        batch = _with_dump(solution, frame, dump)
    else:
        batch = _without_dump(step, solution, frame, settings)
    lines = dict(reversed(step.over))
    parts = tuple(
        replace(part, line=lines.get(part.reported[1]) if part.reported[0] == part.reported[1] else None)
        for part in batch.parts
    )
    return replace(batch, parts=parts, notes=tuple(notes))


def _bands(solution: Solution, masked: int, prompt: bool) -> list[tuple[bool, Range, Range, int]]:
    """Return (surely there, reported, true staleness, members) of those left when ``masked`` unknown ones are gone."""
    places = [(band.members[0] > 0, band.values) for band in solution.bands() for _ in range(band.members[1])]
    # The i-th oldest of those that are left is at most the i-th oldest of all, and at least the one ``masked`` later.
    left = [(later[0], (later[1][0], first[1][1])) for first, later in zip(places, places[masked:], strict=False)]
    return [
        (sure, values, (max(values[0] - 1, 0) if prompt else 0, values[1]), sum(1 for _ in run))
        for (sure, values), run in groupby(left)
    ]


def _with_dump(solution: Solution, frame: Frame, dump: Sequence[Group]) -> Batch:
    trained = [group for group in dump if group.unmasked]
    masked = sum(group.trajectories - group.unmasked for group in dump)
    masked_tokens = sum(group.masked_tokens for group in dump)
    total = sum(group.loss_tokens for group in dump)
    parts = [
        Part(
            (count, count),
            pick([group.unmasked for group in trained], count),
            pick([group.loss_tokens for group in trained], count),
            reported, staleness, True,
        )
        for _, reported, staleness, count in _bands(solution, len(dump) - len(trained), frame.prompt)
    ]  # fmt: skip
    everyone = sum(group.trajectories for group in dump)
    return Batch(tuple(parts), (everyone, everyone), (masked, masked), (0, masked_tokens), (total, total))


def _without_dump(step: Step, solution: Solution, frame: Frame, settings: Settings) -> Batch:
    masked_groups = step.size("reward/num_zero_variance_filtered") or 0
    if "metrics" not in step.words and settings.masks_zero_variance is not False and not settings.refill:
        masked_groups, unsure = 0, True  # a filter may have masked groups, and no number says how many
    else:
        unsure = False
    members = solution.members
    masked_members = min(masked_groups if frame.grouped else 0, members[0])
    unsure = unsure or bool(masked_groups and not frame.grouped)
    low, high = _tokens_each(step, frame)
    # Without numbers, a trajectory has a token in the loss unless the configuration lets some be masked.
    each = low if low is not None else (1 if settings.known and settings.masks_overlong is False else 0)
    trained = each > 0 and not unsure
    total = loss_tokens(step, settings)
    samples = frame.samples
    left = members[1] - masked_members
    if masked_members:
        lost = masked_members * samples
        total = (
            max(total[0] - (lost * high if high is not None else total[0]), 0),
            None if total[1] is None else max(total[1] - lost * each, 0),
        )
    parts = []
    for sure, reported, staleness, count in _bands(solution, masked_members, frame.prompt):
        least, most = (count if sure else 0) * samples, count * samples
        rest = left * samples - most
        tokens_lo = least * each if trained else 0
        if high is not None and sure and trained:
            tokens_lo = max(tokens_lo, total[0] - rest * high)
        tops = [most * high] if high is not None else []
        if total[1] is not None:
            tops.append(
                total[1] - (max(members[0] * samples - masked_members * samples - most, 0) * each if trained else 0)
            )
        groups = (count if sure else 0, count) if frame.grouped else None
        parts.append(
            Part(groups, (least, most), (tokens_lo, min(tops) if tops else None), reported, staleness, trained)
        )
    masked = masked_members * samples
    masked_tokens = (masked * each, masked * high if high is not None else None)
    everyone = (members[0] * samples, members[1] * samples)
    return Batch(tuple(parts), everyone, (masked, masked), masked_tokens, total)


def kept_key(step: Step, name: str) -> Figure | None:
    """Return a generation metric over the trained groups alone: with drops, there is a key for those kept."""
    if f"generate_kept/{name}" in step.figures:
        return step.figures[f"generate_kept/{name}"]
    dropped = step.size("async/num_groups_dropped")
    return step.figure(f"generate/{name}") if not dropped else None


def _tokens_each(step: Step, frame: Frame) -> tuple[int | None, int | None]:
    """Return the fewest and most loss tokens of a trajectory; no most where it may be several rows."""
    low = kept_key(step, "min_assistant_tokens") or step.figure("generate/min_assistant_tokens")
    high = kept_key(step, "max_assistant_tokens") or step.figure("generate/max_assistant_tokens")
    return (int(low.value) if low else None, int(high.value) if high and frame.rows_are_trajectories(step) else None)


def loss_tokens(step: Step, settings: Settings | None) -> tuple[int, int | None]:
    """Return the loss tokens of a step's rows as delivered by the generator (guide section 5.2)."""
    rows = step.size("generate/batch_num_seq") or step.rows
    mean = kept_key(step, "avg_assistant_tokens")
    if rows is None:
        return 0, None
    if mean is not None:
        return mean.count(rows) or (0, None)
    every = step.figure("generate/avg_assistant_tokens")
    dropped = step.size("async/num_groups_dropped")
    if every is None or not dropped or settings is None or not settings.samples or settings.stepwise is not False:
        return 0, None
    together = every.count(rows + dropped * settings.samples)
    return 0, together[1] if together else None

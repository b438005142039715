"""What each task's samples hold: dump rows given to tasks, and the versions of their tokens (guide sections 3, 5.1, 8).

A dump has no time and no launch. A group of rows belongs to the task of that id whose life could have produced its
newest version: not before the task started, not after its result was ready. Where several tasks fit, all of them get
what any of the groups may hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, permutations, zip_longest
from typing import Any, Final

from staleness_parsers.areal.launches import CLOCKS, FOREVER, Launch, Row
from staleness_parsers.areal.settings import Settings
from staleness_parsers.areal.tasks import Task

MAX_PERMUTED: Final = 6


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one interval of versions; None = not known. ``stamp``: the version as recorded."""

    tokens_lo: int
    tokens_hi: int | None
    version_lo: int
    version_hi: int
    stamp: int | None = None

    def kept(self, step: int, eta: int) -> tuple[int, int | None]:
        """Least and most tokens that PR #1722's mask leaves in the loss of a step: it goes by stamps, not by truth.

        Where no stamp is known, it is no older than the oldest version the tokens may have, nor newer than the newest.
        """
        oldest, newest = (self.version_lo, self.version_hi) if self.stamp is None else (self.stamp, self.stamp)
        return self.tokens_lo if step - oldest <= eta else 0, 0 if step - newest > eta else self.tokens_hi


@dataclass(slots=True)
class Sample:
    """One training row of a task. ``length``: with prompt, None if no row says it. ``place``: where it is told.

    ``sure``: there is such a row, whichever of the dumped groups is the task's.
    """

    spans: list[Span]
    length: int | None
    prompt: int | None
    place: tuple[str, int]
    told: bool
    sure: bool = True

    @property
    def tokens(self) -> tuple[int, int | None]:
        """Least and most sampled tokens."""
        highs = [span.tokens_hi for span in self.spans]
        return sum(span.tokens_lo for span in self.spans), (
            None if None in highs else sum(h for h in highs if h is not None)
        )


@dataclass
class Content:
    """A task's samples. ``whole``: each sample that was trained has its row here, as far as can be told.

    ``counted``: there are as many as listed, no fewer. ``calls``: an agent's samples, each of which can be a row per
    call of the model, and none is there.
    """

    samples: list[Sample]
    whole: bool = False
    counted: bool = False
    calls: bool = False

    @cached_property
    def sums(self) -> Sums:
        """What the samples are together."""
        tokens = [sample.tokens for sample in self.samples]
        lengths = [sample.length for sample in self.samples]
        highs = [high for _, high in tokens if high is not None]
        return Sums(
            len(tokens),
            sum(low for low, _ in tokens),
            sum(highs) if self.whole and len(highs) == len(tokens) else None,
            sum(length or 0 for length in lengths),
            max((span.version_lo for sample in self.samples for span in sample.spans), default=0),
            self.whole and all(low == high for low, high in tokens) and None not in lengths,
        )

    @cached_property
    def mark(self) -> int:
        """Tell these samples from others in this process."""
        samples = [(sample.place, sample.prompt, sample.told, sample.sure, *sample.spans) for sample in self.samples]
        return hash((self.calls, *samples))


@dataclass(frozen=True, slots=True)
class Sums:
    """A task's samples together: how many, their least and most sampled tokens, their lengths with prompts.

    ``most``: None if that is not known. ``newest``: some token is of this version or a newer one. ``told``: all of that
    is exact.
    """

    samples: int
    tokens: int
    most: int | None
    length: int
    newest: int
    told: bool


@dataclass(frozen=True)
class Dialect:
    """How far recorded versions can be trusted (guide section 3); see ``stamp``.

    ``listed``: rows have ``version_rle``. ``early``: maybe stamped before the request. ``late``: maybe stamped after
    the answer, so a token may be one older than told.
    ``at_end``: the whole answer has the version of its end. ``loose``: proxies ran through updates, so a token may
    be one newer too. ``void``: versions mean nothing (all 0, or made up for lack of any).
    """

    listed: bool = True
    early: bool = True
    late: bool = False
    at_end: bool = False
    loose: bool = False
    void: bool = False

    def stamp(self, version: int, first: int, last: int, retried: int | None) -> tuple[int, int]:
        """Bound the true version of a token told as ``version``; its sample lived from ``first`` to ``last``.

        ``retried``: the newest version in force before the answer, if the request may have been sent again.
        """
        low = high = version
        if self.void or self.at_end:
            low, high = first, (last if self.void else version)
        elif self.late or self.loose:
            low = version - 1 if version > first else version
        if self.loose:
            high = max(high, min(version + 1, last))
        if retried is not None and self.early:
            # A request that was sent again keeps the stamp of its first try, however many updates ago that was.
            high = max(high, retried)
        return min(low, high), high


@dataclass
class Group:
    """Rows that one task wrote at once. ``newest``: the newest version among them, by folder name and rows."""

    rows: list[Row] = field(default_factory=list)

    @cached_property
    def newest(self) -> int:
        """Newest version of the group, as its folder and its rows tell."""
        tails = [int(row["tail"]) for row in self.rows if row["tail"] is not None]
        return max([int(self.rows[0]["folder"]), *tails])


def groups_of(rows: Iterable[Row], *, shared: bool) -> dict[int, list[Group]]:
    """Cut the rows of each task id into the groups that were written at once: a sample number comes back.

    ``shared``: several ranks append to the same files, so their rows may stand among each other.
    """
    found: dict[int, list[Group]] = {}
    for _, listed in groupby(rows, key=lambda row: (row["source"], row["task"])):
        groups: list[Group] = []
        for row in listed:
            if not groups or row["sample"] <= groups[-1].rows[-1]["sample"]:
                groups.append(Group())
            groups[-1].rows.append(row)
        if shared and any([row["sample"] for row in group.rows] != [*range(len(group.rows))] for group in groups):
            groups = _mixed([row for group in groups for row in group.rows])
        found.setdefault(groups[0].rows[0]["task"], []).extend(groups)
    return found


def _mixed(rows: Iterable[Row]) -> list[Group]:
    """Make groups of rows that stand among each other: the first of each sample number, the second, and so on.

    None of them needs to be the group of one task, but each row of a task is in one of them, at its sample's number.
    """
    numbered: dict[int, list[Row]] = {}
    for row in rows:
        numbered.setdefault(row["sample"], []).append(row)
    each = [numbered[number] for number in sorted(numbered)]
    return [Group([row for row in column if row is not None]) for column in zip_longest(*each)]


Key = tuple[int, int, int]


def assign(
    groups: dict[int, list[Group]], tasks: Sequence[Task], launches: Sequence[Launch], void: bool
) -> tuple[dict[Key, list[Group]], list[Group]]:
    """Give each group to its task; several groups for a task mean that any of them may be its own.

    The second result: groups that no known task can have written. ``void``: versions tell nothing.
    """
    by_number: dict[int, list[Task]] = {}
    for task in tasks:
        by_number.setdefault(task.number, []).append(task)
    found: dict[Key, list[Group]] = {}
    homeless: list[Group] = []
    for number, listed in groups.items():
        candidates = [task for task in by_number.get(number, []) if task.status != "failed" or task.sessions]
        if len(listed) == len(candidates) == 1 and (void or _fits(listed[0], candidates[0], launches)):
            found[candidates[0].key] = listed  # as nearly all are
            continue
        fits = [[void or _fits(group, task, launches) for task in candidates] for group in listed]
        for group, row in zip(listed, fits, strict=True):
            if not any(row):
                homeless.append(group)
        owned = [group for group, row in zip(listed, fits, strict=True) if any(row)]
        for task, choices in zip(
            candidates, _choices(owned, candidates, [row for row in fits if any(row)]), strict=True
        ):
            if choices:
                found[task.key] = [owned[index] for index in sorted(choices)]
    return found, homeless


def _fits(group: Group, task: Task, launches: Sequence[Launch]) -> bool:
    launch = launches[task.launch]
    return launch.version_lo(task.started) <= group.newest <= launch.version_hi(task.ready)


def _choices(groups: Sequence[Group], tasks: Sequence[Task], fits: Sequence[Sequence[bool]]) -> list[set[int]]:
    """For each task, the groups it has in some assignment of all groups that keeps the order inside files."""
    chosen: list[set[int]] = [set() for _ in tasks]
    if len(groups) == 1 and sum(fits[0]) == 1:
        chosen[fits[0].index(True)].add(0)
        return chosen
    if len(tasks) <= MAX_PERMUTED and len(groups) <= len(tasks):
        for places in permutations(range(len(tasks)), len(groups)):
            if all(fits[index][place] for index, place in enumerate(places)) and _in_order(groups, tasks, places):
                for index, place in enumerate(places):
                    chosen[place].add(index)
    if not any(chosen):
        for index, row in enumerate(fits):
            for place, fit in enumerate(row):
                if fit:
                    chosen[place].add(index)
    return chosen


def _in_order(groups: Sequence[Group], tasks: Sequence[Task], places: Sequence[int]) -> bool:
    """Files are appended to: what stands later in one file is of the same launch or a later one."""
    last: dict[str, int] = {}
    for group, place in zip(groups, places, strict=True):
        source = group.rows[0]["source"]
        if tasks[place].launch < last.get(source, -1):
            return False
        last[source] = tasks[place].launch
    return True


def contents_of(
    memory: dict[str, Any],
    tasks: Sequence[Task],
    groups: Mapping[Key, Sequence[Group]],
    launches: Sequence[Launch],
    dialect: Dialect,
    settings: Settings,
) -> dict[Key, Content]:
    """Build what each task holds; in a watch, only where it may be something else than at the last look.

    ``memory`` has contents with all that ``content_of`` made them from: what is told of the task, its groups of rows,
    and the versions in force at its times, which only differ after an update that is new or dated anew.
    """
    told, marks, known = memory.get("contents", (None, {}, {}))
    if told != (dialect, settings):
        known = {}
    settled = [_same_until(marks.get(launch.number), launch) for launch in launches]
    found = {}
    for task in tasks:
        own = groups.get(task.key, [])
        failed = task.status == "failed"
        made_from = (task.started, task.ready, failed, task.retried, task.place, task.sessions, own)
        before = known.get(task.key)
        if before is not None and before[0] == made_from and before[1] <= settled[task.launch]:
            found[task.key] = (made_from, *before[1:])
        else:
            content = content_of(task, own, launches[task.launch], dialect, settings)
            found[task.key] = (made_from, _latest(task), content)
    marks = {launch.number: (launch.start_version, launch.marks) for launch in launches}
    memory["contents"] = ((dialect, settings), marks, found)
    return {key: content for key, (_, _, content) in found.items()}


def _latest(task: Task) -> int:
    """The last time of a task at which a version was asked for; for ever if it has not ended."""
    if task.ready is None:
        return FOREVER
    times: list[int | None] = [row[name] for row in task.sessions for name in ("submit", "gen_end")]
    return max(task.ready, task.started or 0, *(at for at in times if at is not None))


def _same_until(before: tuple[int, Sequence[int]] | None, launch: Launch) -> int:
    """Until when the same versions were in force as an earlier look said: its first version, and times of updates."""
    if before is None or before[0] != launch.start_version:
        return -FOREVER
    old, new = before[1], launch.marks
    if any(marks != sorted(marks) for marks in (old, new)):
        return -FOREVER
    same = next((place for place, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), None)
    same = min(len(old), len(new)) if same is None else same
    return min((marks[same] for marks in (old, new) if len(marks) > same), default=FOREVER) - CLOCKS


def content_of(task: Task, groups: Sequence[Group], launch: Launch, dialect: Dialect, settings: Settings) -> Content:
    """Build the samples of a task from its groups of rows, or from times alone where it has none."""
    first, last = launch.version_lo(task.started), launch.version_hi(task.ready)
    if len(groups) == 1:
        rows = groups[0].rows
        samples = [
            _sample(row, _lived(task, index, len(rows), launch), dialect, task.retried)
            for index, row in enumerate(rows)
        ]
        expected = len(task.sessions) or settings.samples
        return Content(samples, whole=expected is None or len(rows) >= expected, counted=True)
    if groups:
        sizes = {len(group.rows) for group in groups}
        samples = [_any_of(index, groups, dialect, task, (first, last)) for index in range(max(sizes))]
        expected = len(task.sessions) or settings.samples
        return Content(samples, whole=expected is None or min(sizes) >= expected, counted=len(sizes) == 1)
    if task.status == "failed" and not task.sessions:
        return Content([])
    count = len(task.sessions) or settings.samples or 0
    samples = []
    for index in range(count):
        low, high = _lived(task, index, count, launch)
        place = (task.sessions[index]["source"], task.sessions[index]["line"]) if task.sessions else task.place
        samples.append(Sample([Span(0, None, low, high)], None, None, place, told=False))
    calls = bool(task.sessions) and not any(row["phased"] for row in task.sessions)
    return Content(samples, counted=not calls and (count == 1 or settings.whole_groups), calls=calls)


def _lived(task: Task, index: int, count: int, launch: Launch) -> tuple[int, int]:
    """Versions in force when a sample started and when it ended; samples are started in the order of their index."""
    first, last = launch.version_lo(task.started), launch.version_hi(task.ready)
    if len(task.sessions) == count:
        session = task.sessions[index]
        first = max(first, launch.version_lo(session["submit"]))
        if session["gen_end"] is not None and not session["cut"]:
            last = min(last, launch.version_hi(session["gen_end"]))
    return first, max(first, last)


def _sample(row: Row, lived: tuple[int, int], dialect: Dialect, retried: bool) -> Sample:
    first, last = lived
    length, prompt = row["length"], row["prompt"]
    if row["runs"] is not None:
        spans = []
        # The request after one that was sent again was stamped when that one was over.
        after = [*(version for version, _ in row["runs"]), last][1:]
        for (version, tokens), ended in zip(row["runs"], after, strict=True):
            low, high = dialect.stamp(version, first, last, ended if retried else None)
            spans.append(Span(tokens, tokens, low, high, version))
        return Sample(spans or [Span(0, 0, first, first)], length, prompt, (row["source"], row["line"]), told=True)
    tokens = None if length is None or prompt is None else max(length - prompt, 0)
    high = last if dialect.void or row["tail"] is None else min(last, max(first, row["tail"]))
    return Sample([Span(tokens or 0, tokens, first, high)], length, prompt, (row["source"], row["line"]), told=True)


def _any_of(index: int, groups: Sequence[Group], dialect: Dialect, task: Task, lived: tuple[int, int]) -> Sample:
    """Build a sample that may be that of any of several groups: the widest of each."""
    options = [_sample(group.rows[index], lived, dialect, task.retried) for group in groups if index < len(group.rows)]
    tokens: list[tuple[int, int | None]] = [option.tokens for option in options]
    sure = all(index < len(group.rows) for group in groups)
    if not sure:
        tokens.append((0, 0))
    highs = [high for _, high in tokens]
    spans = [span for option in options for span in option.spans]
    span = Span(
        min(low for low, _ in tokens),
        None if None in highs else max(high for high in highs if high is not None),
        min(span.version_lo for span in spans),
        max(span.version_hi for span in spans),
    )
    return Sample([span], None, None, options[0].place, told=True, sure=sure)


def dialect_of(
    groups: Mapping[int, Sequence[Group]], settings: Settings, launches: Sequence[Launch], tasks: Sequence[Task]
) -> tuple[Dialect, str]:
    """Tell from rows, configuration and statistics how versions were stamped; the second result says it in words."""
    listed = any(row["listed"] for several in groups.values() for group in several for row in group.rows)
    phased = [any(row["phased"] for row in task.sessions) for task in tasks if task.sessions]
    # Proxies ran through updates until shortly before August's code; without records of samples nobody knows of any.
    agents = not any(phased) if phased else not settings.august
    second = settings.generation == "v2"
    dialect = Dialect(
        listed=listed,
        early=not settings.found or (settings.august and not second),
        late=listed and settings.behind != 0,
        at_end=listed and second and not settings.august,
        loose=agents,
        void=_made_up(launches) or _frozen(groups, launches, tasks)
        if groups
        else not (settings.august or _younger(launches)),
    )
    if not groups:
        return dialect, "no dumps"
    if not listed:
        return dialect, "no version_rle (v0.5.2 to v1.0.4)"
    return dialect, f"version_rle (v2.0.0 or later), stamped {'after' if dialect.late else 'before'} generation"


def _made_up(launches: Sequence[Launch]) -> bool:
    """Tell whether the workflow returns no versions: rows carry one that was made up, and statistics know none."""
    statistics = [
        step.values for launch in launches for step in launch.steps.values() if "n_valid_tokens" in step.values
    ]
    return bool(statistics) and not any(name.startswith("version_stats/") for values in statistics for name in values)


def _younger(launches: Sequence[Launch]) -> bool:
    """Tell whether some step's mean age, or the lack of any, shows that not all is stamped 0 for ever."""
    means = [
        (number, step.values.get("version_stats/sample_staleness_theta_avg"))
        for launch in launches
        for number, step in launch.steps.items()
        if number > 0
    ]
    told = [(number, mean) for number, mean in means if mean is not None]
    return not told or any(mean < number * (1 - 1e-4) for number, mean in told)


def _frozen(groups: Mapping[int, Sequence[Group]], launches: Sequence[Launch], tasks: Sequence[Task]) -> bool:
    """Tell whether all is stamped 0: proxies that were never told of a new version do that for ever.

    Where no task is known, nothing says that those of later steps did not begin under version 0.
    """
    if any(group.rows[0]["folder"] > 0 for several in groups.values() for group in several):
        return False
    if not tasks:
        return any(number > 0 for launch in launches for number in launch.steps)
    return any(task.number in groups and launches[task.launch].version_lo(task.started) > 0 for task in tasks)

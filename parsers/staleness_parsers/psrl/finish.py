"""Joins the files of a run: who was trained where, on what, and what became of the others."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, TypeVar

import polars as pl

from staleness_audit.parser import RunFacts, Sink, Staged
from staleness_audit.readers.units import by_unit, rows_of
from staleness_parsers.psrl import dumps, gateway, settings
from staleness_parsers.psrl.book import Book, keep_book
from staleness_parsers.psrl.calls import Pins, Request, Trace
from staleness_parsers.psrl.facts import facts, reported
from staleness_parsers.psrl.fates import named_requests, unseen_fates, write_fates
from staleness_parsers.psrl.lives import Teller, Texts
from staleness_parsers.psrl.past import follow
from staleness_parsers.psrl.settings import Settings
from staleness_parsers.psrl.training import Training

Row = Mapping[str, Any]
Item = TypeVar("Item")
_WARMUP = "trainer.critic_warmup"
_MOST_STEPS = 20_000
"""Steps without a generation, beside two for each that has one, beyond which a number is taken for damaged."""


@dataclass(frozen=True, slots=True)
class Member:
    """A trained trajectory: ``part`` numbers the trajectories of one request, where there are several."""

    request: int
    part: int | None
    row: Row
    evidence: str = "recorded"


@dataclass
class Story:
    """A run put together. ``first`` is the first step of the last launch; earlier steps are an earlier launch's.

    ``retold``: requests whose texts are others than at the last look. ``labels``: PSRL's number of the version that a
    step starts from, as the pushes around it tell. ``shift``: how much higher than its number a version of the last
    launch is. ``warmup``: steps in which a critic warmed up.
    """

    settings: Settings
    book: Book
    trace: Trace
    pins: Pins
    texts: Texts
    retold: set[int]
    siblings: int | None
    first: int = 1
    steps: dict[int, Sequence[Member]] = field(default_factory=dict)
    dumped: bool = False
    holes: set[int] = field(default_factory=set)
    labels: dict[int, tuple[int, int]] = field(default_factory=dict)
    shift: tuple[int, int] = (0, 0)
    warmup: tuple[int, int | None] = (0, 0)

    @property
    def requests(self) -> Mapping[int, Request]:
        """All that the gateway's trace names."""
        return self.trace.requests

    @cached_property
    def _reached(self) -> int | None:
        """Newest buffer that the last launch's log speaks of."""
        return max(self.book.seen_buffers, default=None)

    def group(self, request: int) -> str | None:
        """Name the group of a request: its prompt."""
        traced = self.requests.get(request)
        if traced is not None and traced.prompt is not None:
            return str(traced.prompt)
        return str(request // self.siblings) if self.siblings else None

    @property
    def relaunched(self) -> bool:
        """Whether some generations may be of an earlier launch."""
        return self.first > 1

    def attempt(self, step: int) -> int:
        """Return the launch that a step belongs to: 0 is an earlier one if there was any."""
        return int(self.relaunched and step >= self.first)

    def doubtful(self, step: int) -> bool:
        """Whether the last launch, by its log, did not come as far as this step.

        Its generations are an earlier launch's, or the end of the log is lost.
        """
        return self._reached is not None and step > self._reached + 1

    def current(self, step: int) -> bool:
        """Whether the logs are of the launch that trained the step."""
        return step >= self.first and not self.doubtful(step)

    @property
    def pushed(self) -> int:
        """Newest version that anything was pushed or pinned to: as many steps at least are complete."""
        newest = max([self.trace.newest, *self.book.pushes])
        return newest + self.shift[0] if newest >= 0 else 0

    def train_versions(self, step: int) -> tuple[int, int]:
        """Version that a step starts from; during a critic's warm-up no update is pushed (guide section 3)."""
        if step in self.labels:
            lo, hi = self.labels[step]
            return lo + self.shift[0], hi + self.shift[1]
        least, most = self.warmup
        return 0 if most is None else max(step - 1 - most, 0), max(step - 1 - least, 0)


def finish_run(staged: Staged, sink: Sink) -> RunFacts:
    """Write all rows; see ``staleness_audit.parser.Parser.finish``."""
    story = _story(staged, sink)
    teller = Teller(
        story.book,
        story.requests,
        story.pins,
        story.texts,
        story.siblings,
        validates=_validates(story),
        shift=story.shift,
    )
    known = named_requests(story)
    training = Training(story, teller, known, staged.memory)
    training.write(sink)
    write_fates(story, teller, training.apart, sink)
    _write_steps(story, sink)
    figures = list(reported(story))
    _write(sink, "reported", figures)
    _remark(story, sink)
    return facts(story, unseen_fates(story, seen=bool(known)))


def _validates(story: Story) -> bool:
    return story.book.validates or story.settings.validates


def _story(staged: Staged, sink: Sink) -> Story:
    shown = settings.combine(_rows(staged, settings.TABLE, ["source"]), sink)
    book = keep_book(staged, shown.started, shown.partial)
    trace = follow(staged, gateway.TABLE, Trace)
    siblings = shown.siblings or _siblings(trace, book)
    texts, retold = _texts(staged)
    story = Story(shown, book, trace, Pins(trace, book.newest), texts, retold, siblings)
    _collect(story, staged)
    story.first = _first_step(story)
    story.labels = _labels(book, sink)
    story.shift = _shift(story)
    _fill(story, sink)
    story.warmup = _warmup(story)
    return story


def _texts(staged: Staged) -> tuple[Texts, set[int]]:
    """Return what texts of trajectories say, by request and part, in the order of their files; and who has other ones.

    Texts of a version's folder are one unit: those of folders that got no more files stay.
    """
    texts: dict[tuple[int, int | None], list[Row]]
    before, texts = staged.memory.get("texts", ({}, defaultdict(list)))
    now = by_unit(staged, dumps.TEXTS, list[Row])
    staged.memory["texts"] = now, texts
    retold: set[int] = set()
    for unit in before.keys() - now.keys():
        for row in before[unit]:
            retold.add(row["uid"])
            left = [text for text in texts.pop((row["uid"], row["part"])) if text is not row]
            if left:
                texts[row["uid"], row["part"]] = left
    for unit in now.keys() - before.keys():
        for row in now[unit]:
            same = texts[row["uid"], row["part"]]
            same.append(row)
            same.sort(key=itemgetter("source"))
            retold.add(row["uid"])
    return texts, retold


def _siblings(trace: Trace, book: Book) -> int | None:
    """Requests per prompt, from the ids: id = prompt * n + index."""
    if trace.last is not None:
        return trace.last.request // (trace.last.prompt or 1)
    return max((index for _, index in book.reserved), default=-1) + 1 or None


def _collect(story: Story, staged: Staged) -> None:
    """Take the members of every step from the generations, which are looked at once, as long as their files stay."""
    chunked = story.book.chunked or story.settings.shown.get("psrl.fine_grain_overlap.granularity") not in (
        None,
        "none",
    )
    units = by_unit(staged, dumps.ROLLOUTS, list[Row])
    story.dumped = bool(units)
    files: dict[int, list[str]] = defaultdict(list)
    for unit in sorted(units, key=lambda unit: str(units[unit][0]["source"])):
        files[units[unit][0]["step"]].append(unit)
    known = staged.memory.get("members", {})
    found = {}
    for step, names in files.items():
        key = (chunked, *names)
        rows = chain.from_iterable(units[name] for name in names)
        story.steps[step], whole = found[key] = known.get(key) or _members(list(rows), chunked=chunked)
        if not whole:
            story.holes.add(step)
    staged.memory["members"] = found


def _members(rows: Sequence[Row], *, chunked: bool) -> tuple[list[Member], bool]:
    """Return the members of a step, and whether all its rows name one.

    Repeated ids are parts of one request, or emitted twice where buffers are trained in chunks.
    """
    members: list[Member] = []
    by_uid = _by(rows, itemgetter("uid"))
    for uid, same in by_uid.items():
        if uid is None:
            continue
        several = len(same) > 1 and not chunked
        for number, row in enumerate(same if several else same[:1]):
            members.append(Member(uid, number if several and row["part"] is None else row["part"], row))
    return members, None not in by_uid


def _first_step(story: Story) -> int:
    """First step of the last launch: logs start anew with it, generations of earlier launches stay.

    A launch that resumes from step G first waits for buffer G, and its first version has the number G - 1 (guide
    section 3).
    """
    if story.book.seen_buffers:
        return min(story.book.seen_buffers) + 1
    oldest = story.trace.oldest or 0
    return oldest + 2 if oldest > 0 else 1


def _labels(book: Book, sink: Sink) -> dict[int, tuple[int, int]]:
    """Bound the version that each step starts from by the pushes before and after its buffer was handed over.

    Both clocks are the machine's. Pushes tell of a critic's warm-up, which pushes nothing, and of a resume.
    """
    pushes = sorted((row["ts"], version) for version, row in book.pushes.items() if row["ts"] is not None)
    times, versions = [ts for ts, _ in pushes], [version for _, version in pushes]
    until, since = list(accumulate(versions, max)), list(accumulate(reversed(versions), min))[::-1]
    labels = {}
    for number, buffer in book.buffers.items():
        at = buffer.row["ts"]
        pushed = 0 if at is None else bisect_right(times, at)
        before = until[pushed - 1] if pushed else None
        after = None if at is None or pushed == len(times) else since[pushed]
        if before is None and after is None:
            continue
        lo = before if before is not None else min((after or 1) - 1, number)
        hi = number if after is None else min(after - 1, number)
        if lo <= hi:
            labels[number + 1] = lo, hi
    if _steady(labels, book):
        return labels
    message = "By their times pushes and buffers contradict each other: a clock was set, and none of them is used."
    sink.diagnose("warning", "clocks-disagree", message, source=next(iter(book.pushes.values()))["source"])
    return {}


def _steady(labels: Mapping[int, tuple[int, int]], book: Book) -> bool:
    """Whether one delay between buffers and versions explains all labels: else a clock was set, and they prove nothing.

    After the warm-up every step pushes one version, so that a step's buffer is as far ahead of its version as the next
    one's; the newest push is of a step whose buffer was handed over.
    """
    least = max((step - 1 - hi for step, (_, hi) in labels.items()), default=0)
    most = min((step - 1 - lo for step, (lo, _) in labels.items() if lo > 0), default=least)
    pushed = max(book.buffers, default=0) + 1 - max(book.pushes, default=0)
    return least <= (min(most, pushed) if pushed >= 0 else most)  # negative: the end of the buffers' log is lost


def _shift(story: Story) -> tuple[int, int]:
    """Return how much higher than its number a version of the last launch is: 1 after a resume, 0 otherwise.

    Where only the head of the logs is lost, it is 0 although they begin late; pushes tell.
    """
    if not story.relaunched:
        return 0, 0
    lo, hi = story.labels.get(story.first, (story.first - 2, story.first - 1))
    return max(story.first - 1 - hi, 0), max(min(story.first - 1 - lo, 1), 0)


def _warmup(story: Story) -> tuple[int, int | None]:
    """Bound how many steps pushed nothing because a critic warmed up; the most is None where nothing tells.

    The settings state it (guide section 3: up to one step less). Without them a step that starts from a version above 0
    had no more steps without a push before it. It is at least the version that pushes tell, and the newest that any
    request was given before the last of its members ended.
    """
    stated = story.settings.number(_WARMUP)
    if stated is not None:
        return max(stated - 1, 0), stated
    oldest = [(step, lo) for step, (lo, _) in story.labels.items()]
    for step in filter(story.current, story.steps):
        members = [member.request for member in story.steps[step] if member.evidence != "inferred"]
        known = filter(None, map(story.requests.get, members))
        before = bisect_left(story.trace.placed, max((request.ended for request in known), default=-1))
        oldest.append((step, story.trace.reached[before - 1] if before else 0))
    return 0, min((max(step - 1 - lo - story.shift[0], 0) for step, lo in oldest if lo > 0), default=None)


def _fill(story: Story, sink: Sink) -> None:
    """Add what the inventory knows of steps whose generations are missing or damaged."""
    book = story.book
    inventory_only = bool(book.buffers) and not story.steps
    first = min(book.buffers) + 1 if inventory_only else min([story.first, *story.steps])
    reached = max([*story.steps, story.pushed])
    last = min(reached, first + _MOST_STEPS + 2 * len(story.steps))
    if last < reached:
        sink.diagnose(
            "error",
            "step-damaged",
            f"A record speaks of step {reached}, far beyond the others; no step after {last} was looked for.",
            opens="training",
        )
    missing = {buffer + 1 for buffer in book.buffers} - set(story.steps)
    missing |= set(range(first, last + 1)) - set(story.steps)
    story.holes |= _short(story)
    unsure = sorted(missing | story.holes)
    occupied = _by(book.occupied.items() if unsure else (), lambda item: item[1]["numbers"][2])
    for step in unsure:
        known = {member.request for member in story.steps.get(step, [])}
        occupants = _occupants(story, step - 1, occupied.get(step - 1, []))
        added = [member for member in occupants if member.request not in known]
        size = _size(story, step - 1)
        if len(known) + len(added) > size:
            # A damaged or cut log: some of these left the buffer again.
            added = [Member(member.request, None, member.row, "inferred") for member in added]
        story.steps[step] = [*story.steps.get(step, ()), *added]
        complete = 0 < len(story.steps[step]) == size
        if not complete:
            story.holes.add(step)
            sink.diagnose(
                "warning",
                "members-unknown",
                f"Which trajectories step {step} trained is not wholly logged; keep trainer.rollout_data_dir whole, "
                "or log at PSRL_LOGGING_LEVEL=DEBUG.",
                source=book.buffers[step - 1].row["source"] if step - 1 in book.buffers else None,
                opens=None if step - 1 in book.buffers else "training",
            )
        else:
            story.holes.discard(step)


def _short(story: Story) -> set[int]:
    """Steps with fewer requests than a step takes: rows of their generations are lost.

    All steps take equally many: a full buffer.
    """
    counts = {step: len({member.request for member in members}) for step, members in story.steps.items()}
    usual = max(counts.values(), default=0)
    return {step for step, count in counts.items() if count < (_size(story, step - 1) or usual)}


def _size(story: Story, buffer: int) -> int:
    """Trajectories of a buffer; 0 where that is not known: a next one without a header may have been added to it."""
    known = story.book.buffers
    torn = buffer + 1 not in known and buffer < max(known, default=0)
    return 0 if torn or buffer not in known else known[buffer].size


def _occupants(story: Story, buffer: int, occupied: Iterable[tuple[int, Row]]) -> Iterator[Member]:
    """Yield who is in a buffer; ``occupied``: the last places of groups, of those that are in this one."""
    if not story.siblings or buffer not in story.book.buffers:
        return
    for prompt, row in occupied:
        if row["kind"] == "wasted":
            continue
        for index in row["ids"]:
            request = prompt * story.siblings + index
            if not story.book.stored or request in story.book.stored:
                yield Member(request, None, row, "derived")


def _write_steps(story: Story, sink: Sink) -> None:
    book = story.book
    last_dump = max((step for step, members in story.steps.items() if members or step in story.holes), default=0)
    pushed = story.pushed
    rows, sums = [], []
    for step, members in sorted(story.steps.items()):
        buffer = book.buffers.get(step - 1)
        proof = buffer.row if buffer else members[0].row if members else {"source": None, "line": None}
        lo, hi = story.train_versions(step)
        dumped = any(member.evidence == "recorded" for member in members)
        # The trainer goes step by step: a later one, or its push, proves that this one is complete.
        done = dumped or step <= pushed or step < last_dump or (story.dumped and buffer is None)
        rows.append(
            {
                "attempt": story.attempt(step),
                "step": step,
                "v_train_lo": lo,
                "v_train_hi": hi,
                "started": book.utc(buffer.row) if buffer else None,
                "ended": book.utc(book.pushes.get(step)),
                "completed": True if done and not story.doubtful(step) else None,
                "evidence": "recorded" if dumped else "derived",
                "source": proof["source"],
                "line": proof["line"],
            }
        )
        if buffer and step in story.holes and (size := _size(story, step - 1)):
            sums.append(
                {
                    "attempt": story.attempt(step),
                    "step": step,
                    "quantity": "trajectories",
                    "op": "ge",
                    "value": float(size),
                    "unit": "trajectories",
                    "evidence": "recorded",
                    "source": buffer.row["source"],
                    "line": buffer.row["line"],
                }
            )
    _write(sink, "steps", rows)
    _write(sink, "constraints", sums)
    _write(
        sink,
        "syncs",
        [
            {
                "attempt": int(story.relaunched),
                "version_lo": version,
                "version_hi": version,
                "ended": book.utc(row),
                "worker": worker,
                "evidence": "recorded",
                "source": row["source"],
                "line": row["line"],
            }
            for worker, pulls in book.pulls.items()
            for version, row in pulls.items()
        ],
    )


def _remark(story: Story, sink: Sink) -> None:
    trained = chain.from_iterable(story.steps[step] for step in filter(story.current, story.steps))
    untraced = [member for member in trained if member.request not in story.requests]
    if story.requests and untraced:
        message = (
            f"{len(untraced)} trained requests are not in the gateway's trace: lines of it are lost, perhaps others; "
            "restore the file."
        )
        first = next(iter(story.requests.values())).first
        sink.diagnose("warning", "trace-incomplete", message, source=first["source"], opens="fates")
    if not story.steps:
        message = (
            "No file tells which steps were trained: set trainer.rollout_data_dir, or PSRL_LOGGING_LEVEL=INFO or finer."
        )
        sink.diagnose("warning", "no-steps", message, opens="training")
    for step in filter(story.doubtful, story.steps):
        message = (
            f"Step {step} has generations, but the launch's log does not come so far: they are an earlier launch's "
            "(then remove them), or the end of the log is lost."
        )
        sink.diagnose("warning", "step-not-logged", message, opens="training")
    if row := story.book.retagged:
        message = (
            "Requests were re-tagged with newer versions when they resumed, so the run's own staleness is too low."
        )
        sink.diagnose("warning", "re-tagged", message, source=row["source"], line=row["line"])
    if story.warmup[1] != 0 and story.settings.number(_WARMUP) is None and story.steps:
        message = (
            "No settings say whether a critic warmed up, while which no new policy is pushed, so steps may have "
            "started from older versions than their numbers tell; keep Hydra's config.yaml."
        )
        sink.diagnose("warning", "warmup-unknown", message)
    if story.settings.number(_WARMUP):
        message = "While the critic warms up no new policy is pushed, so the run's own staleness is too high."
        sink.diagnose("note", "critic-warmup", message, source=story.settings.source)


def _rows(staged: Staged, table: str, order: Sequence[str]) -> Sequence[Row]:
    if not staged.has(table):
        return []
    return rows_of(staged.scan(table).sort(order, maintain_order=True).collect())


def _by(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    found: dict[Any, list[Item]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found


def _write(sink: Sink, table: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        sink.write(table, pl.DataFrame(rows, infer_schema_length=None))

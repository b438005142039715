"""Lives and uses of what steps trained, and what became of the other requests of their groups: an era is a step.

The joined files are at hand as a whole (``finish.Story``), so an era needs nothing read for it. It is made from the
lines of its requests, the pins of other requests that bound their versions, and what is said of its step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from staleness_audit.parser import Era, Sink
from staleness_parsers.psrl.fates import fates_of, write_fates
from staleness_parsers.psrl.lives import Life, Teller

if TYPE_CHECKING:
    from staleness_parsers.psrl.finish import Member, Story


@dataclass(frozen=True)
class _Told:
    """What was found to be said of a step's members: a digest, and the last place in the trace that names any."""

    members: Sequence[Member]
    requests: frozenset[int]
    digest: int
    latest: int


Name = tuple[int, int | None, bool]
"""Request, part, and whether it is the last launch's: of which a trajectory is called."""


class Training:
    """The trained trajectories of a run.

    ``trained``: requests of the last launch that were. ``known``: all that any file names.
    """

    def __init__(self, story: Story, teller: Teller, known: set[int], memory: dict[str, Any]) -> None:
        self._story, self._teller = story, teller
        self._told = _told(story, teller, memory)
        self._first: dict[Name, int] = {}
        self._earlier: dict[int, list[int]] = defaultdict(list)
        """Of steps that train others' trajectories again: the first steps of these."""
        self.trained: set[int] = set()
        for step, members in story.steps.items():
            current = story.current(step)
            for member in members:
                first = self._first.setdefault((member.request, member.part, current), step)
                if first != step:
                    self._earlier[step].append(first)
            if current:
                self.trained.update(member.request for member in members)
        untrained = sorted(known - self.trained)
        homes = self._homes({story.group(request) for request in untrained})
        self._beside: dict[int, list[int]] = defaultdict(list)
        self.apart: list[int] = []
        """Requests of groups that were not trained, in order."""
        for request in untrained:
            home = homes.get(story.group(request))
            (self.apart if home is None else self._beside[home]).append(request)

    def _homes(self, groups: Collection[str | None]) -> dict[str | None, int]:
        """Return the first step of each of these groups of the last launch."""
        story = self._story
        homes: dict[str | None, int] = {}
        for step in filter(story.current, story.steps) if groups else ():
            for member in story.steps[step]:
                group = story.group(member.request)
                if group in groups and group is not None:
                    homes.setdefault(group, step)
        return homes

    def write(self, sink: Sink) -> None:
        """Write all that belongs to steps."""
        run = (self._story.relaunched, *self._teller.run_facts())
        eras = []
        for step, members in sorted(self._story.steps.items()):
            rows = len(members) + len(self._beside.get(step, ()))
            eras.append(Era(step, rows, repr((run, self._made_from(step)))))
        sink.write_eras(eras, self._write)

    def _made_from(self, step: int) -> list[Any]:
        story, teller = self._story, self._teller
        beside = self._beside.get(step, ())
        told = self._told[step]
        return [
            story.current(step),
            story.attempt(step),
            story.train_versions(step),
            told.digest,
            [(first, story.train_versions(first)) for first in self._earlier.get(step, ())],
            beside,
            teller.made_from((request, None) for request in beside),
            [
                (kind, reason, evidence, place["source"], place["line"])
                for request in beside
                for kind, reason, place, evidence in fates_of(story, request)
            ],
            story.pins.until(max(told.latest, teller.latest(beside))),
        ]

    def _firsts(self, step: int) -> Iterator[tuple[Member, int]]:
        """Yield the members of a step with the first one that trained them: their rows are written there."""
        current = self._story.current(step)
        for member in self._story.steps[step]:
            yield member, self._first[member.request, member.part, current]

    def _write(self, eras: Sequence[int], sink: Sink) -> None:
        story, chosen = self._story, set(eras)
        lives: dict[tuple[Name, int], Life] = {}
        uses: list[dict[str, Any]] = []
        for step in filter(chosen.__contains__, story.steps):
            current = story.current(step)
            v_train = story.train_versions(step)
            for member, first in self._firsts(step):
                key = (member.request, member.part, current), first
                if key not in lives:
                    lives[key] = self._life(member, first, current=current, noted=first == step)
                life = lives[key]
                low = None if life.newest is None or v_train[0] <= life.newest else v_train[0] - life.newest
                uses.append(
                    {
                        "trajectory_id": _name(member, current),
                        "attempt": story.attempt(step),
                        "step": step,
                        "loss_tokens_lo": life.loss[0],
                        "loss_tokens_hi": life.loss[1],
                        "staleness_lo": low,
                        "member": member.evidence != "inferred",
                        "evidence": member.evidence,
                        "source": member.row["source"],
                        "line": member.row["line"],
                    }
                )
        if uses:
            sink.write("uses", pl.DataFrame(uses, infer_schema_length=None))
        self._teller.flush(sink)
        beside = sorted(request for step in chosen for request in self._beside.get(step, ()))
        write_fates(story, self._teller, beside, sink)

    def _life(self, member: Member, step: int, *, current: bool, noted: bool) -> Life:
        return self._teller.life(
            _name(member, current),
            member.request,
            member.part,
            self._story.group(member.request) if current else None,
            self._story.attempt(step),
            self._story.train_versions(step)[1],
            member.row,
            known=current,
            noted=noted,
        )


def _name(member: Member, current: bool) -> str:
    name = str(member.request) + ("" if member.part is None else f"_{member.part}")
    return name if current else f"earlier:{name}"


def _told(story: Story, teller: Teller, memory: dict[str, Any]) -> dict[int, _Told]:
    """Find what is said of the members of each step, where anything new is since the last look.

    It stays as long as the members are the same, the trace and the book were followed on from what they were then, and
    no new line or text names any of them: each says by itself whom its new lines name.
    """
    book, trace = story.book, story.trace
    touched = trace.touched | book.counted | story.retold
    if story.siblings:
        touched |= {prompt * story.siblings + index for prompt, index in book.touched}
    since, before = memory.get("told", ((None, None, None), {}))
    if since[0] is not book or since[1] is not trace or since[2] != story.siblings:
        before = {}
    found = {}
    for step, members in story.steps.items():
        told = before.get(step)
        if told is None or told.members is not members or not told.requests.isdisjoint(touched):
            requests = frozenset(member.request for member in members)
            rows = [
                (member.request, member.part, member.evidence, member.row["source"], member.row["line"])
                for member in members
            ]
            lives = teller.made_from((member.request, member.part) for member in members)
            told = _Told(members, requests, hash((tuple(rows), lives)), teller.latest(requests))
        found[step] = told
    memory["told"] = (book, trace, story.siblings), found
    return found

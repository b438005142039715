"""Agentic pipeline: batches from pickles or dumps, versions from names, slots and turns (guide 4.2, 5.1, 5.3, 5.4).

Per trajectory the oldest weights are bounded from below by the step at which its slot was created: episode arithmetic
while no group was filtered, and in any case s - R for what step s trained (rule 12). The agent-native name adds a first
step (it can be one too new, so one is taken off) and a last one. The plain managers' spans give each turn's weights.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from staleness_parsers.roll.batches import split_group
from staleness_parsers.roll.settings import Pushes, Settings
from staleness_parsers.roll.timeline import Span, Timeline

Row = Mapping[str, Any]
_NATIVE = re.compile(r".*?_?(?<!\d)(?P<start>-?\d{1,18})_(?P<end>-?\d{1,18})_\d+_\d+_\d+_-?\d+_\d{8}_\d{6}_\d+\Z")


@dataclass(frozen=True, slots=True)
class Trained:
    """One trajectory of a batch, as its rows tell it; a watch keeps it.

    ``name``: what tells it from others, if nothing else has that too (``unique``). ``tokens`` None: not recorded.
    ``turns``: sampled tokens per turn. ``native``: the first and the last step in an agent-native name.
    """

    name: str
    group: str | None
    step: int
    place: Row
    tokens: int | None
    turns: list[int]
    identity: str | None
    native: tuple[int, int] | None


@dataclass(frozen=True)
class Traced:
    """The span of a trained trajectory, and those of its turns' requests in the order of their ends."""

    span: Span
    generates: Sequence[Span]


def trajectories_of(rows: Sequence[Row]) -> list[Trained]:
    """Group the rows of one batch into trajectories: step-wise managers write one row per turn, counted from 0."""
    found: list[list[Row]] = []
    for row in rows:
        last = found[-1][-1] if found else None
        goes_on = (
            last is not None
            and row["turn"] is not None
            and last["turn"] is not None
            and row["key"] == last["key"]
            and row["turn"] > last["turn"]
        )
        if goes_on:
            found[-1].append(row)
        else:
            found.append([row])
    return [_trained(part) for part in found]


def _trained(rows: Sequence[Row]) -> Trained:
    name = next((row["name"] for row in reversed(rows) if row["name"]), None)
    tokens = None if any(row["tokens"] is None for row in rows) else sum(row["tokens"] for row in rows)
    turns = [length for row in rows for length in (row["runs"] or ())]
    first = rows[0]
    found = _NATIVE.match(name) if name else None
    native = (int(found["start"]), int(found["end"])) if found else None
    place = {column: first[column] for column in ("source", "locator")}
    own = name or first["key"] or f"step{first['step']}[{first['place']}]"
    return Trained(own, first["grp"], first["step"], place, tokens, turns, first["key"], native)


def unique(batches: Mapping[int, Sequence[Trained]]) -> dict[int, list[str]]:
    """Return ids of the trajectories of each batch: those that share a name are told apart by their number."""
    seen: dict[str, int] = defaultdict(int)
    found: dict[int, list[str]] = {}
    for step, batch in sorted(batches.items()):
        found[step] = []
        for one in batch:
            seen[one.name] += 1
            found[step].append(one.name if seen[one.name] == 1 else f"{one.name}~{seen[one.name]}")
    return found


def reseeded(batches: Mapping[int, Sequence[Row]]) -> int | None:
    """Return the step after which another launch may have resumed, by the seeds in the names of groups; None: none did.

    Every launch draws a seed for each env group anew, and writes its batches over an earlier one's. Which of two was
    the earlier one nobody says: the steps of the other seeds, and the last one before them, may have been thrown away.
    """
    seeds: dict[str, str] = {}
    previous = -1
    for step, rows in sorted(batches.items()):
        for row in rows:
            place = split_group(row["grp"])
            seed = (row["grp"] or "").rpartition("_")[2]
            if place is not None and seeds.setdefault(place[0], seed) != seed:
                return previous - 1
        previous = step
    return None


def unbroken(trained: Iterable[tuple[int, str | None]]) -> dict[tuple[int, str], int]:
    """Return the first episode that no batch trained, per launch and env group, from (launch, group) of the trained."""
    episodes: dict[tuple[int, str], set[int]] = defaultdict(set)
    for attempt, group in trained:
        if place := split_group(group):
            episodes[attempt, place[0]].add(place[1])
    return {key: next(number for number in count() if number not in found) for key, found in episodes.items()}


@dataclass(frozen=True)
class Slots:
    """When slots were created: ``exact`` where metrics count no filtered group.

    A filtered group's episode is trained nowhere, and shifts only those after it: up to the first episode that is
    missing, arithmetic holds whatever metrics say. ``unbroken``: that first one, per launch and env group.
    """

    settings: Settings
    timeline: Timeline
    exact: bool
    unbroken: Mapping[tuple[int, str], int] = field(default_factory=dict)

    def created(self, group: str | None, attempt: int) -> int | None:
        """Step at which the slot of an episode was created, by arithmetic (4.2); None where it cannot be told."""
        place, slots, ratio = split_group(group), self.settings.slots, self.settings.window
        first = self.timeline.first.get(attempt)
        if place is None or slots is None or ratio is None or first is None:
            return None
        if not self.exact and place[1] >= self.unbroken.get((attempt, place[0]), 0):
            return None
        return first + max(0, place[1] // slots - ratio)


def versions(one: Trained, created: int | None, attempt: int, slots: Slots, pushes: Pushes) -> tuple[int, int]:
    """Interval of the weights that made a trained trajectory's tokens; ``created``: when its slot was."""
    first = slots.timeline.first.get(attempt, 0)
    if created is not None and created > one.step:
        created = None  # arithmetic does not hold: groups were filtered, or slots are made on demand
    ratio = slots.settings.window
    low = max(0, created or 0, one.step - ratio if ratio is not None else 0)
    high = one.step
    if one.native is not None:
        begun, ended = one.native
        low = max(low, begun - 1)
        high = min(high, max(ended, 0))
        low = min(low, high)
    return pushes.version(low, first)[0], pushes.version(high, first)[1]


def match_spans(
    batches: Mapping[int, Sequence[Trained]], spans: Sequence[Span], timeline: Timeline
) -> tuple[dict[int, dict[int, Traced]], list[Span]]:
    """Give trained trajectories their spans, in order of arrival: per step, by their place in the batch.

    Also returns the spans of untrained ones.
    """
    eval_parents = {part["span"] for step in timeline.steps for name, part in step.parts.items() if name == "val"}
    turns: dict[str, list[Span]] = defaultdict(list)
    arrived: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for row in spans:
        if row["name"] == "generate" and row["service"] != "driver" and row["parent"]:
            turns[row["parent"]].append(row)
    for row in sorted(spans, key=lambda row: (row["end"], row["span"])):
        if (
            row["name"] == "trajectory"
            and row["service"] != "val_env"
            and row["parent"] not in eval_parents
            and row["traj"]
        ):
            arrived[timeline.attempt_at(row["start"]), row["traj"]].append(row)
    found: dict[int, dict[int, Traced]] = defaultdict(dict)
    for step, batch in sorted(batches.items()) if arrived else ():
        home = timeline.last(step)
        for at, one in enumerate(batch):
            queue = arrived.get((home.attempt if home else 0, one.identity or ""))
            # Several trajectories of one id are used in the order of their arrival.
            if queue:
                span = queue.pop(0)
                found[step][at] = Traced(span, sorted(turns.get(span["span"], ()), key=lambda row: row["end"]))
    left = sorted((row for queue in arrived.values() for row in queue), key=lambda row: (row["start"], row["span"]))
    return found, left


def turn_versions(
    one: Trained, generates: Sequence[Span], timeline: Timeline, pushes: Pushes, *, emptied: bool
) -> list[tuple[int, tuple[int, int]]] | None:
    """Tokens and weights of each turn, or None where spans and mask do not fit.

    More tries than turns: an aborted try is the last one before an update (at most one per update). If there are just
    as many of those as surplus tries, they are known; else each turn lies between two tries, as where engines may be
    ``emptied`` between updates too, which aborts tries there.
    """
    updates = [timeline.update_before(row["end"]) for row in generates]
    surplus = len(updates) - len(one.turns)
    if surplus < 0 or not one.turns or None in updates:
        return None
    if any(update is not None and update[0] != update[1] for update in updates):
        return None
    steps = [update[1] for update in updates if update is not None]
    first = timeline.first.get(timeline.attempt_at(generates[0]["start"]), 0)
    suspects = {at for at in range(len(steps) - 1) if steps[at] != steps[at + 1]}
    if surplus == 0 or (len(suspects) == surplus and not emptied):
        kept = [step for at, step in enumerate(steps) if surplus == 0 or at not in suspects]
        return [(tokens, pushes.version(step, first)) for tokens, step in zip(one.turns, kept, strict=True)]
    found = []
    for at, tokens in enumerate(one.turns):
        low, high = pushes.version(steps[at], first)[0], pushes.version(steps[at + surplus], first)[1]
        found.append((tokens, (low, high)))
    return found


def untrained_fate(
    row: Span, timeline: Timeline, slots: Slots, trained_groups: Collection[tuple[int, str]]
) -> list[tuple[str, str | None, int | None]]:
    """What became of a trajectory that ended and was in no batch (guide 6): alternatives (kind, reason, step)."""
    attempt = timeline.attempt_at(row["start"])
    ratio = slots.settings.window
    if (attempt, row["traj_group"] or "") in trained_groups:
        return [("dropped", "surplus", None)]
    last = timeline.highest(attempt)
    created = slots.created(row["traj_group"], attempt)
    home = timeline.ids.get(row["parent"] or "")
    claimed = home.step if home else None
    if ratio is None or last is None:
        return [("dropped", "stale", None), ("dropped", "filtered", None), ("pending", None, None)]
    if created is not None:
        return [("dropped", "stale", created + ratio + 1)] if last > created + ratio else []
    # A slot is never younger than its claim; whether its group was filtered is not known.
    options: list[tuple[str, str | None, int | None]] = [("dropped", "filtered", None), ("dropped", "stale", None)]
    if claimed is None or last <= claimed + ratio:
        options.append(("pending", None, None))
    return options

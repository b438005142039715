"""The agentic pipeline: rows of the event tables for its trajectories (see ``agentic`` for their versions)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from staleness_audit.parser import Era, Sink
from staleness_parsers.roll import agentic
from staleness_parsers.roll.console import SHRINK, UPDATE
from staleness_parsers.roll.known import Done, Known, Row, constrain, era, everywhere, unused, window
from staleness_parsers.roll.lives import in_order
from staleness_parsers.roll.rows import Interval, Rows, moment
from staleness_parsers.roll.timeline import Span

_Made = Sequence[tuple[Interval, Interval]]
"""Tokens and versions of a trajectory, or of each of its turns."""


@dataclass(frozen=True)
class _Facts:
    """What the rows of a batch depend on: where they are from, what its step made of it, and who made its tokens.

    ``renamed``: ids that are not the trajectories' own names. ``created``: when the slots of groups were. ``weights``:
    of trajectories without turns, by that and by the steps in their names. ``turns``: where spans tell them, by the
    place in the batch, with the span.
    """

    step: int
    attempt: int
    identity: str
    deleting: bool
    masked: bool
    unused: Sequence[tuple[str, str | None, int | None]]
    renamed: Mapping[int, str]
    created: Mapping[str | None, int | None]
    weights: Mapping[tuple[int | None, tuple[int, int] | None], Interval]
    turns: Mapping[int, tuple[str, str, int, _Made | None]]

    def made(self, place: int, one: agentic.Trained) -> _Made:
        """Return the tokens and versions of the trajectory at a place."""
        traced = self.turns.get(place)
        if traced is not None and traced[-1] is not None:
            return traced[-1]
        versions = self.weights[self.created[one.group], one.native]
        least = one.tokens if one.tokens is not None else 0 if versions == (None, None) else 1
        return [((least, one.tokens), versions)]


@dataclass(frozen=True)
class _Batch:
    """What a step trained."""

    trained: Sequence[agentic.Trained]
    traced: Mapping[int, agentic.Traced]
    told: _Facts

    def __len__(self) -> int:
        return len(self.trained)

    def write(self, rows: Rows) -> None:
        told = self.told
        attempt, step = told.attempt, told.step
        cells: dict[str, Any] = {"loss_tokens_lo": 0} if told.masked else {}
        cells["evidence"] = "inferred" if told.deleting else "recorded"
        for at, one in enumerate(self.trained):
            place, key = one.place, told.renamed.get(at, one.name)
            _trajectory(rows, place, key, one.group, attempt)
            for index, (tokens, versions) in enumerate(told.made(at, one)):
                rows.span(place, key, index, tokens, versions)
            if at in self.traced:
                _life(rows, self.traced[at].span, key, attempt)
            use = {"trajectory_id": key, "attempt": attempt, "step": step, "member": not told.deleting}
            rows.add("uses", place, **use, **cells)
            for kind, reason, when in told.unused:
                rows.add("events", place, kind=kind, reason=reason, step=when, trajectory_id=key, attempt=attempt)


@dataclass(frozen=True)
class _Left:
    """A trajectory that spans show and no batch has; ``uses``: steps that may have trained it."""

    span: Span
    attempt: int
    oldest: int
    options: Sequence[tuple[str, str | None, int | None]]
    uses: Sequence[int]

    def __len__(self) -> int:
        return 1

    @property
    def told(self) -> _Left:
        return self

    def write(self, rows: Rows) -> None:
        row, attempt = self.span, self.attempt
        key = f"{row['traj']}#{row['span']}"
        _trajectory(rows, row, key, row["traj_group"], attempt)
        rows.span(row, key, 0, (0, None), (self.oldest, None))
        _life(rows, row, key, attempt)
        for step in self.uses:
            use = {"trajectory_id": key, "attempt": attempt, "step": step}
            rows.add("uses", row, **use, member=False, evidence="inferred")
        evidence = "derived" if len(self.options) == 1 else "inferred"
        for kind, reason, when in self.options:
            if self.options == [("pending", None, None)]:
                break
            cells = {"reason": reason, "step": when, "ts": moment(row["end"]), "seq": 4}
            rows.add("events", row, kind=kind, trajectory_id=key, attempt=attempt, evidence=evidence, **cells)


def _trajectory(rows: Rows, place: Row, key: str, group: str | None, attempt: int) -> None:
    rows.trajectory(place, key, f"{attempt}/{group}" if group else None, attempt)


def _life(rows: Rows, span: Span, key: str, attempt: int) -> None:
    about = {"trajectory_id": key, "attempt": attempt, "evidence": "recorded"}
    rows.add("events", span, kind="admitted", ts=moment(span["start"]), seq=0, **about)
    rows.add("events", span, kind="enqueued", ts=moment(span["end"]), seq=3, **about)


class Agents:
    """The agentic pipeline's trajectories."""

    def __init__(self, known: Known, rows: Rows, completed: Done, sink: Sink, memory: dict[str, Any]) -> None:
        self.known, self.rows, self.completed, self.sink, self.memory = known, rows, completed, sink, memory
        counts = [named.get("scheduler/group_filter_count") for named in known.metrics.values()]
        self.silent = bool(counts) and all(row is None or row["value"] == 0 for row in counts)
        self.slots = agentic.Slots(known.settings, known.time, exact=self.silent)
        self.arrived: dict[tuple[int, str | None], list[tuple[int, str]]] = defaultdict(list)

    def write(self) -> None:
        """Write trained trajectories, then those that spans show and no batch has."""
        known = self.known
        batches = self._batches()
        keys = agentic.unique(batches)
        homes = {step: home.attempt for step in batches if (home := known.time.last(step))}
        groups = {step: dict.fromkeys(one.group for one in batch) for step, batch in batches.items()}
        seen = agentic.unbroken((homes[step], group) for step in homes for group in groups[step])
        self.slots = agentic.Slots(known.settings, known.time, exact=self.silent, unbroken=seen)
        traced, left = agentic.match_spans(batches, [*known.spans, *in_order(known.lives)], known.time)
        self._torn(batches, traced)
        for row in [*left, *(one.span for batch in traced.values() for one in batch.values())]:
            self.arrived[known.time.attempt_at(row["start"]), row["traj_group"]].append((row["end"], row["span"]))
        pickled = {step for step, rows in known.rows.items() if rows[0]["kind"] == "pickle"}
        stories: dict[int, list[_Batch | _Left]] = defaultdict(list)
        trained: dict[tuple[int, str], int] = {}
        for step in sorted(batches):
            home = known.time.last(step)
            attempt = home.attempt if home else max(known.time.attempts)
            spans = traced.get(step, {})
            facts = self._facts(step, attempt, batches[step], keys[step], spans)
            stories[era(attempt, step)].append(_Batch(batches[step], spans, facts))
            trained |= dict.fromkeys(((attempt, group or "") for group in groups[step]), era(attempt, step))
            self._stated(step, attempt, batches[step], complete=step in pickled)
        batch = known.settings.whole_number("rollout_batch_size")
        for home in known.time.steps:
            if (home.step in batches and known.time.last(home.step) is home) or self.completed.get(
                (home.attempt, home.step)
            ) is False:
                continue
            window(known, self.rows, home)
            if batch and batch > 0 and not self._deleting(home.step):
                constrain(self.rows, home.place, home.attempt, home.step, "trajectories", batch)
            else:
                if batch and batch > 0:
                    constrain(self.rows, home.place, home.attempt, home.step, "trajectories", batch, op="le")
                constrain(self.rows, home.place, home.attempt, home.step, "trajectories", 1, op="ge")
        whole = {home.step for home in known.time.steps if self.completed.get((home.attempt, home.step)) is not False}
        begun: dict[tuple[int, str], int] = {}
        for row in left:
            story = self._left(row, trained, known_batches=whole <= pickled)
            # A group is of one era: of the step that trained others of it, or in which its first began.
            group = story.attempt, row["traj_group"] or row["span"]
            began = era(story.attempt, known.time.step_at(story.attempt, row["start"]))
            stories[trained.get(group, begun.setdefault(group, began))].append(story)
        self._write_eras(stories)
        if not left and not known.trajectories_traced:
            self._ignored()

    def _batches(self) -> dict[int, list[agentic.Trained]]:
        """Trajectories of each step's batch: what is of the same rows as at the last look of a watch is kept."""
        before = self.memory.get("batches", {})
        kept = {
            rows.identity: before.get(rows.identity) or agentic.trajectories_of(rows)
            for rows in self.known.rows.values()
        }
        self.memory["batches"] = kept
        return {step: kept[rows.identity] for step, rows in self.known.rows.items()}

    def _torn(
        self,
        batches: Mapping[int, Sequence[agentic.Trained]],
        traced: Mapping[int, Mapping[int, agentic.Traced]],
    ) -> None:
        """Say that spans of trajectories were lost, where some that were trained have none: so can others."""
        if not self.known.trajectories_traced:
            return
        untraced = (
            (step, one)
            for step, batch in batches.items()
            for at, one in enumerate(batch)
            if at not in traced.get(step, {})
        )
        alone = next(untraced, None)
        if alone is not None:
            step, one = alone
            message = (
                f"A trajectory that step {step} trained has no span, so the spans of others that were dropped "
                "may be lost as well: restore the traces."
            )
            self.sink.diagnose("warning", "trajectory-spans-lost", message, source=one.place["source"], opens="fates")

    def _stated(self, step: int, attempt: int, batch: Sequence[agentic.Trained], *, complete: bool) -> None:
        """A pickle has the whole batch; a dump lacks placeholders; deleted rows can make it fewer."""
        known = self.known
        size = known.settings.whole_number("rollout_batch_size")
        place = batch[0].place
        if self._deleting(step):
            most = len(batch) if complete else max(size or 0, len(batch))
            if self.completed.get((attempt, step)) is not None and (complete or size):
                constrain(self.rows, place, attempt, step, "trajectories", 1, op="ge")
                constrain(self.rows, place, attempt, step, "trajectories", most, op="le")
            return
        if complete and self.completed.get((attempt, step)) is None:
            return  # an unconfirmed step whose batch is known has nobody else
        home = known.time.last(step)
        if not complete and home is not None:
            window(known, self.rows, home)
        if complete:
            constrain(self.rows, place, attempt, step, "trajectories", len(batch))
        elif size and size >= len(batch):
            constrain(self.rows, place, attempt, step, "trajectories", size)
        else:
            constrain(self.rows, place, attempt, step, "trajectories", len(batch), op="ge")

    def _deleting(self, step: int) -> bool:
        """Whether rows of a batch may have been deleted before training (``batch_adjust_mode``)."""
        removed = self.known.metrics.get(step, {}).get("system/batch_remove_count")
        if removed is not None:
            return bool(removed["value"] > 0)
        return bool(self.known.settings.get("batch_adjust_mode") != "copy")

    def _facts(
        self,
        step: int,
        attempt: int,
        batch: Sequence[agentic.Trained],
        keys: Sequence[str],
        traced: Mapping[int, agentic.Traced],
    ) -> _Facts:
        """Return what the rows of a batch depend on; of its trajectories' own only spans are not in its rows."""
        deleting = self._deleting(step)
        created = {group: self.slots.created(group, attempt) for group in dict.fromkeys(one.group for one in batch)}
        alike = {(created[one.group], one.native): one for one in batch}
        return _Facts(
            step,
            attempt,
            self.known.rows[step].identity,
            deleting,
            deleting or self._masks(step),
            unused(self.known, [(attempt, step)], self.completed),
            {at: key for at, (key, one) in enumerate(zip(keys, batch, strict=True)) if key != one.name},
            created,
            {told: self._weights(one, told[0], attempt) for told, one in alike.items()},
            {
                at: (each.span["span"], each.span["source"], each.span["line"], self._turns(batch[at], each))
                for at, each in traced.items()
            },
        )

    def _weights(self, one: agentic.Trained, created: int | None, attempt: int) -> Interval:
        """Versions of a trajectory of which no turns are known, and of all of its batch that are told alike."""
        known = self.known
        return (None, None) if known.mocked else agentic.versions(one, created, attempt, self.slots, known.pushes)

    def _turns(self, one: agentic.Trained, traced: agentic.Traced) -> _Made | None:
        """Tokens and versions of a trajectory's turns, where its spans tell them."""
        known = self.known
        if known.mocked:
            return None
        turns = agentic.turn_versions(one, traced.generates, known.time, known.pushes, emptied=self.emptied)
        return None if turns is None else [((tokens, tokens), versions) for tokens, versions in turns]

    def _write_eras(self, stories: Mapping[int, Sequence[_Batch | _Left]]) -> None:
        """Write trajectories by the step that trained them, or else in which they began."""
        shared = everywhere(self.known)
        eras = [
            Era(number, sum(map(len, told)), repr((shared, [story.told for story in told])))
            for number, told in sorted(stories.items())
        ]

        def write(numbers: Sequence[int], sink: Sink) -> None:
            rows = Rows(sink)
            for number in numbers:
                for story in stories[number]:
                    story.write(rows)
            rows.close()

        self.sink.write_eras(eras, write)

    @cached_property
    def emptied(self) -> bool:
        """Whether engines on the training GPUs stop after each batch, which its metrics time (guide rule 7)."""
        told = [named for named in self.known.metrics.values() if UPDATE in named]
        if told:
            return any(SHRINK in named for named in told)
        return self.known.settings.get("partial_gpu_mode") is True

    def _masks(self, step: int) -> bool:
        """Masks of the agentic pipeline: only probability-ratio filters."""
        return bool(self.known.settings.get("train_infer_correction.filters")) or not self.known.settings.whole

    def _left(self, row: Span, trained: Collection[tuple[int, str]], *, known_batches: bool) -> _Left:
        known = self.known
        attempt = known.time.attempt_at(row["start"])
        home = known.time.ids.get(row["parent"] or "")
        low = known.pushes.version(home.step if home else 0, known.time.first.get(attempt, 0))[0]
        options = agentic.untrained_fate(row, known.time, self.slots, trained)
        if not options and self._redundant(row):
            # Its slot is open as long as its group waits in the queue, which nothing records.
            options = [("dropped", "surplus", None), ("pending", None, None)]
        uses: list[int] = []
        if not known_batches:
            # Batches are missing: it may have been in one of those.
            options = [*options, ("pending", None, None)]
            uses = [
                step.step
                for step in known.time.steps
                if step.attempt == attempt and step.step not in known.rows and (step.end or 0) >= row["end"]
            ]
        return _Left(row, attempt, low, list(dict.fromkeys(options)), uses)

    def _redundant(self, row: Span) -> bool:
        """Whether a group had all it needs when a trajectory of it arrived (guide rule 9), or may have had."""
        size = self.known.settings.whole_number("train_env_manager.group_size")
        if size is None:
            return True
        attempt = self.known.time.attempt_at(row["start"])
        return sum(other < (row["end"], row["span"]) for other in self.arrived[attempt, row["traj_group"]]) >= size

    def _ignored(self) -> None:
        """Groups that the console says were too old when their turn came (rule 12); others age out silently."""
        size = self.known.settings.whole_number("train_env_manager.group_size")
        for index, row in enumerate(row for row in self.known.lines if row["kind"] == "ignored"):
            key = f"anonymous:ignored@{row['step']}/{index}"
            cells = {"multiplicity_lo": size or 1, "multiplicity_hi": size}
            about = {"trajectory_id": key, "group_id": key, "attempt": max(self.known.time.attempts)}
            self.rows.add("trajectories", row, role="train", anonymous=True, **cells, **about)
            self.rows.add("groups", row, group_id=key, multiplicity_lo=1, multiplicity_hi=1)
            self.rows.span(row, key, 0, (0, None), (0, None))
            self.rows.add("events", row, kind="dropped", reason="stale", step=row["step"], multiplicity=size, **about)

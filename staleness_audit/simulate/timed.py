"""A policy against a clock: engines generate, a trainer trains, and what happens is written as an event log."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from random import Random
from typing import Any

from staleness_audit.simulate.engine import Cost, Engine, Sequence
from staleness_audit.simulate.eventlog import EventLog
from staleness_audit.simulate.kernel import apply, initial
from staleness_audit.simulate.policy import Policy
from staleness_audit.simulate.state import Group, State
from staleness_audit.simulate.summary import Summary
from staleness_audit.simulate.workload import Workload

_LOAD = attrgetter("active")
Progress = Callable[[int, int], None]
"""Called with the number of steps trained and to be trained."""


@dataclass(frozen=True)
class Resources:
    """What a run has: engines, and a trainer that takes ``train_s`` plus ``train_token_s`` per token of its batch.

    ``sync_s``: how long a weight transfer takes; the engines pause for it, and the trainer's step is longer by it.
    """

    engines: int = 4
    train_s: float = 1.0
    train_token_s: float = 0.0
    sync_s: float = 0.1


class _Trajectory:
    """One member of a group: what it still has to make, and what it made."""

    __slots__ = ("attempt", "engine", "group", "left", "length", "name", "tokens")

    def __init__(self, group: int, member: int, length: int) -> None:
        self.group = group
        self.name = f"g{group}/{member}"
        self.length = length
        self.left: list[int] = []  # tokens of the turns to come
        self.tokens: list[tuple[int, int]] = []
        self.attempt = 0
        self.engine = 0


class Simulation:
    """A run in progress: the policy's state, the engines, the clock."""

    def __init__(
        self,
        policy: Policy,
        workload: Workload,
        cost: Cost,
        resources: Resources,
        *,
        seed: int = 0,
        log: EventLog | None = None,
    ) -> None:
        self._policy, self._workload, self._resources = policy, workload, resources
        self._log = log
        self._chance = Random(seed)  # noqa: S311 - a simulation is to be repeated, not to be secret
        self._engines = [Engine(number, cost) for number in range(resources.engines)]
        self._planned = [0] * resources.engines
        self._events: list[tuple[float, int, str, Any, int]] = []
        self._number = 0
        self._now = 0.0
        self._members: dict[int, list[_Trajectory]] = {}
        self._missing: dict[int, int] = {}  # trajectories of a group that are not finished
        self._flying: dict[int, _Trajectory] = {}  # by the number of their current sequence
        self._calls = 0
        self._own: set[str] = set()
        self._dirty = True
        self._due = False  # the step's time is over, its version has yet to be published
        self._ended_at = 0.0  # when the last step's time was over; from then on the trainer waits
        self._began = 0.0
        self._waited = 0.0
        self._batch: list[_Trajectory] = []
        self.summary = Summary()
        self._state: State = initial(policy)

    # the clock

    def run(self, steps: int, progress: Progress | None = None) -> Summary:
        """Simulate until so many training steps are complete, or nothing can happen any more."""
        summary = self.summary
        self._settle()
        while summary.steps < steps:
            if not self._events:
                summary.stalled = True
                break
            self._now, _, kind, subject, number = heapq.heappop(self._events)
            if kind == "engine":
                if number != self._planned[subject]:
                    continue
                for sequence in self._engines[subject].run(self._now):
                    self._ended(sequence)
                self._plan(subject)
            elif kind == "train":
                self._due, self._ended_at = True, self._now
            elif kind == "turn":
                self._call(subject)
            else:
                self._own.discard(subject)
                if subject in self._policy.own(self._state):
                    self._move("own", subject)
            before = summary.steps
            self._settle()
            if progress is not None and summary.steps != before:
                progress(summary.steps, steps)
        self._close()
        return summary

    def _at(self, when: float, kind: str, subject: Any, number: int = 0) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, kind, subject, number))

    def _plan(self, engine: int) -> None:
        self._planned[engine] += 1
        when = self._engines[engine].plan(self._now)
        if when is not None:
            self._at(when, "engine", engine, self._planned[engine])

    def _settle(self) -> None:
        """Make every move that is possible now, until none is."""
        policy, state = self._policy, self._state
        self._tell()
        while True:
            if self._due and policy.may_publish(state):
                self._due = False
                self._move("publish", 0)
            elif not policy.eager and (room := policy.room(state)) > 0:
                self._move("admit", room)
            elif self._dirty and not policy.prompt and (policy.ahead or not state.training):
                self._dirty = False
                before = len(state.held), len(state.done)
                apply(policy, state, ("collect", 0))
                # Something may be complete in parts: look again as long as looking changes anything.
                self._dirty = before != (len(state.held), len(state.done))
                if not self._dirty:
                    break
                self._tell()
            else:
                break
        for name in policy.own(state):
            if name not in self._own and policy.delay(name) < math.inf:
                self._own.add(name)
                self._at(self._now + policy.delay(name), "own", name)

    def _move(self, kind: str, argument: int | str) -> None:
        self._dirty = True
        apply(self._policy, self._state, (kind, argument))
        self._tell()

    # generation

    def _begin(self, group: Group) -> None:
        lengths = self._workload.draws(self._chance)
        members = [_Trajectory(group.id, member, length) for member, length in enumerate(lengths)]
        self._members[group.id] = members
        self._missing[group.id] = len(members)
        self.summary.trajectories += len(members)
        touched = set()
        for trajectory in members:
            if self._log:
                self._admitted(trajectory)
            touched.add(self._start(trajectory))
        for engine in touched:
            self._plan(engine)

    def _start(self, trajectory: _Trajectory) -> int:
        """Begin an attempt; return the engine that got it."""
        turns = min(self._workload.turns, trajectory.length)
        size, rest = divmod(trajectory.length, turns)
        trajectory.left = [size + 1] * rest + [size] * (turns - rest)
        return self._place(trajectory)

    def _place(self, trajectory: _Trajectory) -> int:
        engine = min(self._engines, key=_LOAD)
        made = sum(tokens for _, tokens in trajectory.tokens) if trajectory.tokens else 0
        self._calls += 1
        self._flying[self._calls] = trajectory
        trajectory.engine = engine.number
        engine.add(Sequence(self._calls, self._workload.prompt + made, trajectory.left.pop(0), self._calls))
        return engine.number

    def _call(self, trajectory: _Trajectory) -> None:
        """The environment has answered: the next turn begins, unless the group was cancelled meanwhile."""
        if trajectory.group in self._missing:
            self._plan(self._place(trajectory))

    def _ended(self, sequence: Sequence) -> None:
        trajectory = self._flying.pop(sequence.trajectory)
        trajectory.tokens += sequence.tokens
        self.summary.generated_tokens += sum(tokens for _, tokens in sequence.tokens)
        if self._log:
            self._spans(trajectory, sequence.tokens)
        workload = self._workload
        if trajectory.left:
            self._at(self._now + self._chance.expovariate(1.0) * workload.environment_s, "turn", trajectory)
        elif workload.failures and self._chance.random() < workload.failures:
            self._fail(trajectory)
        else:
            self._finish(trajectory)

    def _fail(self, trajectory: _Trajectory) -> None:
        """An attempt is lost at its end, and made again from the prompt, under another name."""
        self.summary.lost_tokens += sum(tokens for _, tokens in trajectory.tokens)
        if self._log:
            self._fate("lost", trajectory, "error")
        trajectory.attempt += 1
        trajectory.name = f"{trajectory.name.partition('+')[0]}+{trajectory.attempt}"
        trajectory.tokens = []
        self.summary.trajectories += 1
        if self._log:
            self._admitted(trajectory)
        self._plan(self._start(trajectory))

    def _finish(self, trajectory: _Trajectory) -> None:
        self.summary.finished += 1
        self.summary.finished_tokens += trajectory.length
        if self._log:
            self._log.write("finished", f'"trajectory_id": "{trajectory.name}", "ts": {self._now:.6f}')
        self._missing[trajectory.group] -= 1
        if not self._missing[trajectory.group]:
            del self._missing[trajectory.group]
            self._move("finish", trajectory.group)

    # what moves did

    def _tell(self) -> None:
        """Carry out what the last moves did."""
        effects, self._state.effects = self._state.effects, []
        for kind, version, groups, reason in effects:
            if kind == "admitted":
                self._begin(groups[0])
            elif kind == "trained":
                self._train(groups)
            elif kind == "published":
                self._publish(version)
            elif kind == "serving":
                for number, engine in enumerate(self._engines):
                    engine.serve(version, self._resources.sync_s)
                    self._plan(number)
            elif kind in ("dropped", "cancelled", "lost"):
                for group in groups:
                    self._discard(kind, group, version, reason)

    def _train(self, groups: tuple[Group, ...]) -> None:
        self._batch = [trajectory for group in groups for trajectory in self._members.pop(group.id)]
        self._began = self._now
        self._waited = self._now - self._ended_at
        resources = self._resources
        tokens = sum(trajectory.length for trajectory in self._batch) + len(self._batch) * self._workload.prompt
        self._at(self._now + resources.train_s + resources.train_token_s * tokens + resources.sync_s, "train", None)

    def _publish(self, version: int) -> None:
        """A step is complete: only now its batch counts as trained."""
        summary, batch, step = self.summary, self._batch, version - 1
        histogram, tokens = summary.histogram, 0
        for trajectory in batch:
            tokens += trajectory.length
            for made_by, count in trajectory.tokens:
                histogram[step - made_by] += count
            if self._log:
                self._log.write("trained", f'"trajectory_id": "{trajectory.name}", "step": {step}')
        if self._log and batch:
            # A sync that has to wait comes later than the end of its step.
            self._log.write(
                "step",
                f'"step": {step}, "version": {step}, "started": {self._began:.6f}, "ended": {self._ended_at:.6f}, '
                f'"waited_us": {round(self._waited * 1e6)}, "trajectories": {len(batch)}, "loss_tokens": {tokens}',
            )
            self._log.write("sync", f'"version": {version}, "ts": {self._now:.6f}')
        summary.steps += bool(batch)
        summary.trained += len(batch)
        summary.trained_tokens += tokens
        summary.waited_s += self._waited
        self._batch = []

    def _discard(self, kind: str, group: Group, version: int, reason: str) -> None:
        """Groups end untrained: what they made is waste, and what still runs is stopped."""
        unfinished = self._missing.pop(group.id, 0)
        members = self._members.pop(group.id)
        if unfinished:
            self._stop(members)
        for trajectory in members:
            tokens = sum(count for _, count in trajectory.tokens)
            if kind == "dropped":
                self.summary.dropped_tokens += tokens
            elif kind == "cancelled":
                self.summary.cancelled_tokens += tokens
            else:
                self.summary.lost_tokens += tokens
            if self._log:
                self._fate(kind, trajectory, reason, version)

    def _stop(self, members: list[_Trajectory]) -> None:
        wanted = set(map(id, members))
        touched = set()
        for call in [call for call, trajectory in self._flying.items() if id(trajectory) in wanted]:
            trajectory = self._flying.pop(call)
            made = self._engines[trajectory.engine].cancel(call, self._now) or []
            trajectory.tokens += made
            self.summary.generated_tokens += sum(count for _, count in made)
            if self._log:
                self._spans(trajectory, made)
            touched.add(trajectory.engine)
        for engine in touched:
            self._plan(engine)

    def _close(self) -> None:
        """The run ends: what is in flight or waits is pending."""
        self.summary.seconds = self._now
        for call, trajectory in list(self._flying.items()):
            made = self._engines[trajectory.engine].cancel(call, self._now) or []
            trajectory.tokens += made
            self.summary.generated_tokens += sum(count for _, count in made)
            if self._log:
                self._spans(trajectory, made)
        unused = chain(self._batch, *self._members.values())
        self.summary.pending_tokens = sum(count for trajectory in unused for _, count in trajectory.tokens)

    # the log

    def _admitted(self, trajectory: _Trajectory) -> None:
        assert self._log is not None
        self._log.write(
            "admitted",
            f'"trajectory_id": "{trajectory.name}", "group_id": "g{trajectory.group}", '
            f'"prompt_tokens": {self._workload.prompt}, "ts": {self._now:.6f}',
        )

    def _spans(self, trajectory: _Trajectory, made: list[tuple[int, int]]) -> None:
        assert self._log is not None
        where = f'"ts": {self._now:.6f}, "worker": "engine {trajectory.engine}"'
        for version, tokens in made:
            self._log.write(
                "span", f'"trajectory_id": "{trajectory.name}", "tokens": {tokens}, "version": {version}, {where}'
            )

    def _fate(self, kind: str, trajectory: _Trajectory, reason: str, step: int | None = None) -> None:
        assert self._log is not None
        at = "" if step is None else f'"step": {step}, '
        self._log.write(kind, f'"trajectory_id": "{trajectory.name}", "reason": "{reason}", {at}"ts": {self._now:.6f}')

"""A policy against a clock: engines generate, a trainer trains, and what happens is written as an event log."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from random import Random
from typing import Any

from staleness_audit.simulate.engine import Cost, Engine, Sequence
from staleness_audit.simulate.eventlog import EventLog
from staleness_audit.simulate.kernel import apply, initial
from staleness_audit.simulate.policy import Load, Policy
from staleness_audit.simulate.state import Group, State
from staleness_audit.simulate.summary import Summary
from staleness_audit.simulate.workload import Workload

_LOAD = attrgetter("active")
_BACKGROUND = ("failure", "poll")
"""Events that come again and again, whatever else happens."""
_IDLE = 50
"""So many of them with nothing in between: nothing will happen any more."""
_HOPELESS = 20_000
"""So many attempts or engines that failed, and nothing finished in between: nothing will."""
Progress = Callable[[int, int], None]
"""Called with the number of steps trained and to be trained."""


@dataclass(frozen=True)
class Resources:
    """What a run has: engines, and a trainer that takes ``train_s`` plus ``train_token_s`` per token of its batch.

    ``sync_s``: how long a weight transfer takes; the engines pause for it, and the trainer's step is longer by it.
    ``rolling_s``: engines get new weights one after the other, each so much later than the one before it; until then
    they serve older weights than the control believes. ``engine_failures_s``: mean time between failures of an engine
    (0: none), which lose what it was generating; it is back after ``repair_s``. ``crash_steps``: the trainer dies in
    the middle of the step of this number in each attempt (0: never), and comes back ``restart_s`` later from its last
    checkpoint, made every ``checkpoint_steps`` steps; what was in flight or waited is lost, and the control starts
    afresh.
    """

    engines: int = 4
    train_s: float = 1.0
    train_token_s: float = 0.0
    sync_s: float = 0.1
    rolling_s: float = 0.0
    engine_failures_s: float = 0.0
    repair_s: float = 10.0
    crash_steps: int = 0
    checkpoint_steps: int = 1
    restart_s: float = 30.0


class _Trajectory:
    """One member of a group: what it still has to make, and what it made."""

    __slots__ = ("attempt", "engine", "group", "group_name", "left", "length", "name", "tokens")

    def __init__(self, group: int, group_name: str, member: int, length: int) -> None:
        self.group = group
        self.group_name = group_name
        self.name = f"{group_name}/{member}"
        self.length = length
        self.left: list[int] = []  # tokens of the turns to come
        self.tokens: list[tuple[int, int]] = []
        self.attempt = 0
        self.engine = 0


class _Saved:
    """Checkpoints: which attempt this is, the version it began from, and what was trained since the last checkpoint."""

    def __init__(self) -> None:
        self.attempt = 0
        self.base = 0
        self.begun = 0  # steps of this attempt
        self.down = False
        self._checkpoint = 0
        self._steps = self._trained = self._tokens = 0
        self._histogram: Counter[int] = Counter()

    def note(self, summary: Summary, version: int, saves: bool) -> None:
        """A step is complete, and perhaps saved."""
        if saves:
            self._checkpoint = version
            self._steps, self._trained, self._tokens = summary.steps, summary.trained, summary.trained_tokens
            self._histogram = summary.histogram.copy()

    def roll_back(self, summary: Summary) -> None:
        """Begin the next attempt: what was trained since the checkpoint is lost."""
        summary.lost_tokens += summary.trained_tokens - self._tokens
        summary.steps, summary.trained, summary.trained_tokens = self._steps, self._trained, self._tokens
        summary.histogram = self._histogram.copy()
        summary.attempts += 1
        self.attempt, self.base, self.begun, self.down = self.attempt + 1, self._checkpoint, 0, True


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
        self._policy, self._workload, self._resources, self._cost = policy, workload, resources, cost
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
        self._saved = _Saved()
        self._failed = 0  # attempts and engines, since something last finished
        self._failing = Random(f"failures {seed}")  # noqa: S311 - of its own, so that lengths stay the same
        self._handlers: dict[str, Callable[[Any, int], None]] = {
            "engine": self._engine,
            "train": lambda *_: self._trained(),
            "turn": lambda trajectory, _: self._call(trajectory),
            "own": lambda name, _: self._own_move(name),
            "poll": lambda *_: self._poll(),
            "serve": lambda served, _: self._serve(*served),
            "failure": lambda engine, _: self._break(engine),
            "crash": lambda *_: self._crash(),
            "restart": lambda *_: self._restart(),
        }
        self.summary = Summary()
        self._state: State = initial(policy)

    # the clock

    def run(self, steps: int, progress: Progress | None = None) -> Summary:
        """Simulate until so many training steps are complete, or nothing can happen any more."""
        summary, idle = self.summary, 0
        self._settle()
        if interval := self._policy.polls():
            self._at(interval, "poll", None)
        if self._resources.engine_failures_s:
            for number in range(len(self._engines)):
                self._fail_later(number)
        while summary.steps < steps:
            if not self._events:
                summary.stalled = True
                break
            self._now, _, kind, subject, number = heapq.heappop(self._events)
            idle = idle + 1 if kind in _BACKGROUND and all(event[2] in _BACKGROUND for event in self._events) else 0
            if idle > _IDLE or self._failed > _HOPELESS:
                summary.stalled = True
                break
            self._handlers[kind](subject, number)
            before = summary.steps
            self._settle()
            if progress is not None and summary.steps != before:
                progress(summary.steps, steps)
        self._close()
        return summary

    def _engine(self, engine: int, plan: int) -> None:
        """An engine has come to the end of something, unless it has been planned anew since."""
        if plan == self._planned[engine]:
            for sequence in self._engines[engine].run(self._now):
                self._ended(sequence)
            self._plan(engine)

    def _trained(self) -> None:
        self._due, self._ended_at = True, self._now

    def _own_move(self, name: str) -> None:
        self._own.discard(name)
        if name in self._policy.own(self._state):
            self._move("own", name)

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
        if self._saved.down:
            return
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
        name = f"a{self._saved.attempt}.g{group.id}" if self._saved.attempt else f"g{group.id}"
        members = [_Trajectory(group.id, name, member, length) for member, length in enumerate(lengths)]
        self._members[group.id] = members
        self.summary.trajectories += len(members)
        if self._log:
            for trajectory in members:
                self._admitted(trajectory)
        if group.id in self._state.done:
            self._restore(members, group.first)
            return
        self._missing[group.id] = len(members)
        for engine in {self._start(trajectory) for trajectory in members}:
            self._plan(engine)

    def _restore(self, members: list[_Trajectory], version: int) -> None:
        """A checkpoint has brought a group that is finished: an older run made its tokens."""
        for trajectory in members:
            self._made(trajectory, [(version, trajectory.length)])
            self._complete(trajectory)

    def _start(self, trajectory: _Trajectory) -> int:
        """Begin an attempt; return the engine that got it."""
        turns = min(self._workload.turns, trajectory.length)
        size, rest = divmod(trajectory.length, turns)
        trajectory.left = [size + 1] * rest + [size] * (turns - rest)
        return self._place(trajectory)

    def _place(self, trajectory: _Trajectory) -> int:
        up = [engine for engine in self._engines if engine.up_at <= self._now]
        engine = min(up or self._engines, key=_LOAD)
        made = sum(tokens for _, tokens in trajectory.tokens) if trajectory.tokens else 0
        self._calls += 1
        self._flying[self._calls] = trajectory
        trajectory.engine = engine.number
        engine.add(Sequence(self._calls, self._workload.prompt + made, trajectory.left.pop(0), self._calls))
        return engine.number

    def _poll(self) -> None:
        """The control looks at the engines, and perhaps cancels."""
        engines = self._engines
        running, waiting, usage = zip(*(engine.load() for engine in engines), strict=True)
        tokens = len(engines) * self._cost.kv_tokens
        load = Load(sum(running), sum(waiting), max(usage), sum(engine.preemptions for engine in engines), tokens)
        self._policy.polled(self._state, load)
        self._dirty = True
        self._at(self._now + self._policy.polls(), "poll", None)

    def _call(self, trajectory: _Trajectory) -> None:
        """The environment has answered: the next turn begins, unless the group was cancelled meanwhile."""
        if trajectory.group in self._missing:
            self._plan(self._place(trajectory))

    def _ended(self, sequence: Sequence) -> None:
        trajectory = self._flying.pop(sequence.trajectory)
        self._made(trajectory, sequence.tokens)
        workload = self._workload
        if trajectory.left:
            self._at(self._now + self._chance.expovariate(1.0) * workload.environment_s, "turn", trajectory)
        elif workload.failures and self._chance.random() < workload.failures:
            self._failed += 1
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

    def _complete(self, trajectory: _Trajectory) -> None:
        self.summary.finished += 1
        self.summary.finished_tokens += trajectory.length
        if self._log:
            self._log.write("finished", f'"trajectory_id": "{trajectory.name}", "ts": {self._now:.6f}')

    def _finish(self, trajectory: _Trajectory) -> None:
        self._failed = 0
        self._complete(trajectory)
        self._missing[trajectory.group] -= 1
        if not self._missing[trajectory.group]:
            del self._missing[trajectory.group]
            filtered = self._workload.filtered and self._chance.random() < self._workload.filtered
            self._move("reject" if filtered else "finish", trajectory.group)

    # what moves did

    def _tell(self) -> None:
        """Carry out what the last moves did."""
        effects, self._state.effects = self._state.effects, []
        for kind, local, groups, reason in effects:
            version = self._saved.base + local
            if kind == "admitted":
                self._begin(groups[0])
            elif kind == "trained":
                self._train(groups)
            elif kind == "published":
                self._publish(version)
            elif kind == "serving":
                for number in range(len(self._engines)):
                    if self._resources.rolling_s and number:
                        self._at(self._now + number * self._resources.rolling_s, "serve", (number, version))
                    else:
                        self._serve(number, version)
            elif kind in ("dropped", "cancelled", "lost"):
                for group in groups:
                    self._discard(kind, group, version, reason)

    def _serve(self, engine: int, version: int) -> None:
        self._engines[engine].serve(version, self._resources.sync_s)
        self._plan(engine)

    def _train(self, groups: tuple[Group, ...]) -> None:
        self._batch = [trajectory for group in groups for trajectory in self._members.pop(group.id)]
        self._began = self._now
        self._waited = self._now - self._ended_at
        resources = self._resources
        tokens = sum(trajectory.length for trajectory in self._batch) + len(self._batch) * self._workload.prompt
        takes = resources.train_s + resources.train_token_s * tokens + resources.sync_s
        self._saved.begun += 1
        if self._saved.begun == resources.crash_steps:
            self._at(self._now + takes / 2, "crash", None)
        else:
            self._at(self._now + takes, "train", None)

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
        if self._resources.crash_steps and batch:
            self._saved.note(summary, version, version % self._resources.checkpoint_steps == 0)
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
            self._made(trajectory, self._engines[trajectory.engine].cancel(call, self._now) or [])
            touched.add(trajectory.engine)
        for engine in touched:
            self._plan(engine)

    def _made(self, trajectory: _Trajectory, tokens: list[tuple[int, int]]) -> None:
        trajectory.tokens += tokens
        self.summary.generated_tokens += sum(count for _, count in tokens)
        if self._log:
            self._spans(trajectory, tokens)

    # what breaks

    def _fail_later(self, engine: int) -> None:
        self._at(self._now + self._failing.expovariate(1.0 / self._resources.engine_failures_s), "failure", engine)

    def _break(self, number: int) -> None:
        """An engine fails: its trajectories are made again elsewhere."""
        self._failed += 1
        for sequence in self._engines[number].fail(self._now, self._resources.repair_s):
            trajectory = self._flying.pop(sequence.trajectory)
            self._made(trajectory, sequence.tokens)
            self._fail(trajectory)
        self._plan(number)
        self._fail_later(number)

    def _crash(self) -> None:
        """The trainer dies: the step, what waits and what is in flight are lost, and steps since the checkpoint."""
        members = [*self._batch, *chain.from_iterable(self._members.values())]
        self._stop(members)
        for trajectory in members:
            self.summary.lost_tokens += sum(count for _, count in trajectory.tokens)
            if self._log:
                self._fate("lost", trajectory, "error")
        self._members.clear()
        self._missing.clear()
        self._own.clear()
        self._batch, self._due = [], False
        self._events = [event for event in self._events if event[2] in ("engine", *_BACKGROUND)]
        heapq.heapify(self._events)
        self._saved.roll_back(self.summary)
        if self._log:
            self._log.restart(self._saved.base - 1)
        self._at(self._now + self._resources.restart_s, "restart", None)

    def _restart(self) -> None:
        """The trainer is back: the control begins anew, at the version of the checkpoint."""
        self._saved.down = False
        for engine in range(len(self._engines)):
            self._serve(engine, self._saved.base)
        self._state = initial(self._policy)
        self._ended_at = self._now
        self._dirty = True

    def _close(self) -> None:
        """The run ends: what is in flight or waits is pending."""
        self.summary.seconds = self._now
        for call, trajectory in list(self._flying.items()):
            self._made(trajectory, self._engines[trajectory.engine].cancel(call, self._now) or [])
        unused = chain(self._batch, *self._members.values())
        self.summary.pending_tokens = sum(count for trajectory in unused for _, count in trajectory.tokens)

    # the log

    def _admitted(self, trajectory: _Trajectory) -> None:
        assert self._log is not None
        self._log.write(
            "admitted",
            f'"trajectory_id": "{trajectory.name}", "group_id": "{trajectory.group_name}", '
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

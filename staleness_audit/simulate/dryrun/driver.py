"""DryRun-RL's driver: admit, run the instances to the next completion or to the end of training, train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from staleness_audit.simulate.dryrun.instance import Instance, Limits, Request, Roofline
from staleness_audit.simulate.dryrun.policies import Loop, loop


@dataclass(frozen=True)
class DryRun:
    """Inputs of a run, by the names of DryRun-RL's configuration.

    A training step takes ``train_s`` (its ``fixed`` cost) and ``train_token_s`` for each token of prompts and responses
    in its batch (its ``linear`` cost), then ``recompute_token_s`` per token and ``sync_s``.
    """

    policy: str
    lengths: Sequence[int]
    batch_size: int = 8
    max_staleness: int = 2
    n_instances: int = 1
    partial_rollout: bool = True
    token_budget: int = 8192
    prompt: int = 512
    train_s: float = 1.0
    train_token_s: float = 0.0
    recompute_token_s: float = 0.0
    sync_s: float = 0.0
    limits: Limits = field(default_factory=Limits)
    cost: Roofline = field(default_factory=Roofline)
    knobs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """What a run did: for each step its start, its end and its requests; dropped and cancelled requests.

    ``events``: what happened in order, as (time, what, request, its tokens by version then); ``updates``: for each step
    the requests in flight at its start, as (instance, request, its tokens then); ``expired``: how many an update ended.
    """

    steps: list[tuple[float, float, list[Request]]] = field(default_factory=list)
    dropped: list[tuple[float, Request]] = field(default_factory=list)
    events: list[tuple[float, str, Request, dict[int, int]]] = field(default_factory=list)
    updates: list[list[tuple[int, Request, int]]] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)
    admitted: int = 0
    stalled: bool = False

    def staleness(self) -> list[int]:
        """Return the true staleness of every consumed request, in order: step minus version of its oldest token."""
        return [step - request.oldest() for step, (_, _, batch) in enumerate(self.steps) for request in batch]

    def figures(self) -> dict[str, Any]:
        """Return what DryRun-RL prints at the end of a run, and the mean staleness of trained tokens, by name."""
        ages = [(step, request) for step, (_, _, batch) in enumerate(self.steps) for request in batch]
        tokens = sum(request.generated for _, request in ages)
        seconds = self.steps[-1][1] if self.steps else 0.0
        late = sum((step - version) * made for step, request in ages for version, made in request.made.items())
        return {
            "steps": len(self.steps),
            "seconds": seconds,
            "stalled": self.stalled,
            "consumed": len(ages),
            "dropped": len(self.dropped),
            "tokens_consumed": tokens,
            "tokens_per_s": tokens / seconds if seconds else 0.0,
            "staleness_max": max(self.staleness(), default=None),
            "staleness_reported_max": max((step - request.newest() for step, request in ages), default=None),
            "staleness_mean": late / tokens if tokens else None,
        }


_NOTHING: dict[int, int] = {}


class _Driver:
    def __init__(self, run: DryRun) -> None:
        self._run = run
        self._loop: Loop = loop(run.policy, run.batch_size, run.max_staleness, **run.knobs)
        self._instances = [Instance(run.cost, run.token_budget, run.limits) for _ in range(run.n_instances)]
        self._now = 0.0
        self.outcome = Outcome()

    def simulate(self, versions: int) -> Outcome:
        while self._loop.version < versions:
            self._admit()
            batch = self._loop.take()
            if batch is not None:
                self._train(batch)
            elif not self._go(None):
                self.outcome.stalled = True
                break
        for instance in self._instances:
            instance.settle()
        return self.outcome

    def _admit(self) -> None:
        run, control = self._run, self._loop
        for _ in range(max(0, control.quota())):
            rid = self.outcome.admitted
            request = Request(rid, run.lengths[rid % len(run.lengths)], control.engine, self._now, run.prompt)
            instance = min(self._instances, key=Instance.active)
            if not instance.accepts(request):
                break  # No other instance is tried.
            request.instance = self._instances.index(instance)
            self.outcome.admitted += 1
            control.flying[rid] = request
            instance.add(request)
            control.admitted(request)
            self._note("admit", request)

    def _note(self, what: str, request: Request) -> None:
        # Nothing is made before "admit" nor after anything else, so no copy is needed.
        self.outcome.events.append((self._now, what, request, _NOTHING if what == "admit" else request.made))

    def _go(self, deadline: float | None) -> bool:
        """Run the instances to a deadline, or until a batch is complete; False if nothing could happen."""
        control = self._loop
        moved = False
        while True:
            plans = [(plan.end, number, plan) for number, i in enumerate(self._instances) if (plan := i.plan())]
            if not plans:
                break
            end, number, plan = min(plans, key=lambda entry: entry[:2])
            if deadline is not None and end > deadline:
                break
            moved = True
            ended = self._instances[number].carry_out(plan)
            if not ended:
                continue
            self._now = end
            for request in ended:
                self._complete(request)
            if deadline is None and control.has_batch():
                self._align(end)
                return True
            if control.quota() > 0:
                self._align(end)
                self._admit()
        if deadline is not None:
            self._align(deadline)
            self._now = deadline
        return moved

    def _complete(self, request: Request) -> None:
        control = self._loop
        del control.flying[request.rid]
        request.completed = self._now
        self._note("complete", request)
        if control.completed(request):
            control.ready.append(request)
        else:
            self._drop(request)

    def _drop(self, request: Request) -> None:
        self.outcome.dropped.append((self._now, request))
        self._note("drop", request)

    def _align(self, now: float) -> None:
        for instance in self._instances:
            if instance.clock < now:
                instance.advance(now)

    def _train(self, batch: list[Request]) -> None:
        run, control, start = self._run, self._loop, self._now
        taken = {request.rid for request in batch}
        control.ready = [request for request in control.ready if request.rid not in taken]
        for request in batch:
            self._note("consume", request)
        self.outcome.updates.append([(r.instance, r, r.generated) for r in control.flying.values()])
        # The weights of this step exist, and serve, from its start on.
        control.version += 1
        expired = control.updated()
        for instance in self._instances:
            instance.serve(control.engine)
        self.outcome.expired.append(len(expired))
        for request in expired:
            self._expire(request)
        if run.partial_rollout and control.flying:
            for instance in self._instances:
                instance.abort()
            control.aborted()
        self._admit()
        tokens = sum(request.prompt + request.generated for request in batch)
        end = start + run.train_s + (run.train_token_s + run.recompute_token_s) * tokens + run.sync_s
        self._go(end)
        self.outcome.steps.append((start, end, batch))

    def _expire(self, request: Request) -> None:
        control = self._loop
        if control.flying.pop(request.rid, None) is not None:
            for instance in self._instances:
                instance.remove(request)
        else:
            control.ready.remove(request)
        self._drop(request)


def simulate(run: DryRun, versions: int) -> Outcome:
    """Make a run of so many training steps.

    Raises:
        KeyError: no such policy.
    """
    return _Driver(run).simulate(versions)

"""DryRun-RL's inference instance: mixed steps while anything waits to be prefilled, else runs of decoding steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import attrgetter

_ORDER = attrgetter("dispatched", "rid")


@dataclass(frozen=True)
class Roofline:
    """Seconds of a step: ``max(floor, step + token * tokens + context * context tokens)``."""

    floor: float = 0.005
    step: float = 0.001
    token: float = 0.0001
    context: float = 1e-7

    def once(self, tokens: int, context: int) -> float:
        """Return the time of one step."""
        return max(self.floor, self.step + self.token * tokens + self.context * context)

    def run(self, steps: int, running: int, context: int) -> float:
        """Return the time of so many decoding steps, in which context grows by ``running`` a step."""
        first = self.step + self.token * running + self.context * context
        slope = self.context * running
        flat = 0
        if first < self.floor:
            flat = steps if slope == 0 else min(steps, math.ceil((self.floor - first) / slope))
        steep = steps - flat
        return flat * self.floor + steep * (first + slope * flat) + slope * steep * (steep - 1) / 2


@dataclass(frozen=True)
class Limits:
    """What an instance has room for: blocks of its cache, and sequences that run at once (None: any number).

    A request is admitted only if the cache could hold all requests there at their full length, so it never overflows.
    """

    kv_blocks: int = 100_000
    block_size: int = 16
    max_concurrency: int | None = None

    def blocks(self, request: Request) -> int:
        """Return the blocks that a request needs in the end."""
        return -(-(request.prompt + request.target) // self.block_size)


@dataclass(eq=False)
class Request:
    """A request. ``version``: that of the engines at admission (v_traj); ``made``: tokens by version, once settled."""

    rid: int
    target: int
    version: int
    dispatched: float
    prompt: int = 512
    generated: int = 0
    prefilled: int = 0
    instance: int = 0
    aborts: int = 0
    completed: float | None = None
    settled: int = 0
    made: dict[int, int] = field(default_factory=dict)

    def size(self) -> int:
        """Return its tokens of prompt and response."""
        return self.prompt + self.generated

    def oldest(self) -> int:
        """Return the version of its oldest token."""
        return min(self.made, default=self.version)

    def newest(self) -> int:
        """Return the version of its newest token."""
        return max(self.made, default=self.version)

    def settle(self, version: int) -> None:
        """Note that what was generated since the last time is of this version."""
        if self.generated > self.settled:
            self.made[version] = self.made.get(version, 0) + self.generated - self.settled
            self.settled = self.generated


@dataclass
class Plan:
    """The next event of an instance: a mixed step with its chunks, or a run of ``steps`` decoding steps."""

    end: float
    steps: int
    chunks: list[tuple[Request, int]]


class Instance:
    """One instance with a clock of its own."""

    def __init__(self, cost: Roofline, budget: int, limits: Limits) -> None:
        self._cost, self._budget, self._limits = cost, budget, limits
        self.clock = 0.0
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self._blocks = 0  # that its requests need in the end
        self._context = 0  # tokens of all that run
        self._version = 0  # that is served
        self._planned: Plan | None = None  # what ``plan`` said last, while nothing has changed

    def add(self, request: Request) -> None:
        """Let a request wait."""
        self.waiting.append(request)
        self._blocks += self._limits.blocks(request)
        self._planned = None

    def accepts(self, request: Request) -> bool:
        """Whether the cache has room for it.

        Raises:
            ValueError: it never will.
        """
        needed = self._limits.blocks(request)
        if needed > self._limits.kv_blocks:
            raise ValueError(f"request {request.rid} needs {needed} blocks, more than the whole cache")
        return self._blocks + needed <= self._limits.kv_blocks

    def remove(self, request: Request) -> None:
        """Cancel a request, if it is here."""
        for place in (self.waiting, self.running):
            if request in place:
                place.remove(request)
                self._context -= request.size() if place is self.running else 0
                request.settle(self._version)
                self._blocks -= self._limits.blocks(request)
                self._planned = None

    def serve(self, version: int) -> None:
        """Go on with other weights."""
        self.settle()
        self._version = version

    def settle(self) -> None:
        """Settle all requests that it has."""
        for request in (*self.running, *self.waiting):
            request.settle(self._version)

    def active(self) -> int:
        """Return how many requests it has."""
        return len(self.waiting) + len(self.running)

    def plan(self) -> Plan | None:
        """Return the next event; None if there is nothing to do."""
        if self._planned is None:
            self._planned = self._plan()
        return self._planned

    def _plan(self) -> Plan | None:
        if self.waiting:
            still = [request for request in self.waiting if request.prefilled < request.prompt + request.generated]
            if len(still) < len(self.waiting):
                joining = [r for r in self.waiting if r.prefilled >= r.prompt + r.generated]
                self.running += joining
                self._context += sum(map(Request.size, joining))
                self.waiting = still
        if not self.waiting and not self.running:
            return None
        context = self._context
        if not self.waiting:
            steps = self._shortest()
            return Plan(self.clock + self._cost.run(steps, len(self.running), context), steps, [])
        budget = self._budget - min(len(self.running), self._budget)
        chunks: list[tuple[Request, int]] = []
        places = self._limits.max_concurrency
        started = 0 if places is None else len(self.running) + sum(request.prefilled > 0 for request in self.waiting)
        for request in sorted(self.waiting, key=_ORDER):
            chunk = min(request.prompt + request.generated - request.prefilled, budget)
            begins = request.prefilled == 0
            if chunk <= 0 or (begins and places is not None and started >= places):
                break
            started += begins
            chunks.append((request, chunk))
            budget -= chunk
        tokens = min(len(self.running), self._budget) + sum(chunk for _, chunk in chunks)
        return Plan(self.clock + self._cost.once(tokens, context), 1, chunks)

    def _shortest(self) -> int:
        """Return after how many steps the first running request ends."""
        return min([request.target - request.generated for request in self.running])

    def carry_out(self, plan: Plan) -> list[Request]:
        """Make a planned event happen; return what completed, in running order."""
        mixed = bool(self.waiting)
        decoding = self.running[: self._budget] if mixed else self.running
        steps = plan.steps
        for request in decoding:
            request.generated += steps
        self._context += steps * len(decoding)
        for request, chunk in plan.chunks:
            request.prefilled += chunk
        self.clock = plan.end
        self._planned = None
        ended = [request for request in self.running if request.generated >= request.target]
        if ended:
            self.running = [request for request in self.running if request.generated < request.target]
            for request in ended:
                request.settle(self._version)
            self._blocks -= sum(map(self._limits.blocks, ended))
            self._context -= sum(map(Request.size, ended))
        return ended

    def advance(self, now: float) -> None:
        """Go on to ``now`` in whole steps; what is left of the time is lost."""
        if not self.waiting and self.running:
            left = now - self.clock
            # A completion is an event of its own, also where it would fall on this very time.
            low, high = 0, max(0, self._shortest() - 1)
            while low < high:
                middle = (low + high + 1) // 2
                if self._cost.run(middle, len(self.running), self._context) <= left:
                    low = middle
                else:
                    high = middle - 1
            for request in self.running:
                request.generated += low
            self._context += low * len(self.running)
        self.clock = now
        self._planned = None

    def abort(self) -> None:
        """Abort everything; tokens are kept, caches are not."""
        self.waiting = [*self.running, *self.waiting]
        self.running = []
        self._context = 0
        for request in self.waiting:
            request.prefilled = 0
            request.aborts += 1
        self._planned = None

"""DryRun-RL's five control loops. They are models of its own, not the frameworks they are named after."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from staleness_audit.simulate.dryrun.instance import Request


class Loop:
    """What the driver asks of a control loop. ``version``: of the trainer; ``engine``: what the instances serve."""

    def __init__(self, batch: int, staleness: int) -> None:
        self.batch, self.staleness = batch, staleness
        self.version = self.engine = 0
        self.ready: list[Request] = []
        self.flying: dict[int, Request] = {}

    def quota(self) -> int:
        """L1: how many requests may be admitted."""
        raise NotImplementedError

    def admitted(self, request: Request) -> None:
        """A request was admitted."""

    def completed(self, request: Request) -> bool:
        """L3: whether a completed request is kept; the driver appends it to ``ready``."""
        return True

    def take(self) -> list[Request] | None:
        """L3: the next batch, if it is there."""
        raise NotImplementedError

    def has_batch(self) -> bool:
        """Whether ``take`` would return one."""
        return len(self.ready) >= self.batch

    def updated(self) -> list[Request]:
        """L2: ``version`` has gone up; return what expires."""
        self.engine = self.version
        return []

    def aborted(self) -> None:
        """Everything in flight was aborted by the update."""

    def _oldest(self, requests: list[Request]) -> list[Request] | None:
        return requests[: self.batch] if len(requests) >= self.batch else None


class Areal(Loop):
    """A quota that grows with the version; batches of the earliest dispatched."""

    accepted = 0

    def quota(self) -> int:
        return (self.staleness + self.version + 1) * self.batch - self.accepted - len(self.flying)

    def completed(self, request: Request) -> bool:
        self.accepted += 1
        return True

    def take(self) -> list[Request] | None:
        return self._oldest(sorted(self.ready, key=lambda request: (request.dispatched, request.rid)))


class Roll(Loop):
    """A quota of begun requests; groups by start version, which expire."""

    finished = 0

    def quota(self) -> int:
        return (self.staleness + 1 + self.version) * self.batch - len(self.flying) - self.finished

    def completed(self, request: Request) -> bool:
        self.finished += 1
        return request.version >= self.version - self.staleness

    def take(self) -> list[Request] | None:
        return self._oldest(sorted(self.ready, key=lambda request: request.version))

    def updated(self) -> list[Request]:
        self.engine = self.version
        gone = self.version - 1 - self.staleness
        return [request for request in (*self.flying.values(), *self.ready) if request.version <= gone]


class Slime(Loop):
    """A round of requests per step; what is in flight at an update is cancelled."""

    round = 0

    def __init__(self, batch: int, staleness: int, over_sampling_ratio: float = 1.0, interval: int = 1) -> None:
        super().__init__(batch, staleness)
        self._sampled = max(1, round(over_sampling_ratio * batch))
        self._interval = interval
        self._armed: int | None = None

    def quota(self) -> int:
        return 0 if self.round >= self.batch else self._sampled

    def admitted(self, request: Request) -> None:
        self.round += 1

    def completed(self, request: Request) -> bool:
        return len(self.ready) < self.batch

    def take(self) -> list[Request] | None:
        taken = self._oldest(self.ready)
        if taken is not None:
            self.round = 0
        return taken

    def updated(self) -> list[Request]:
        # A push becomes active at the start of the step after the one that armed it.
        if self._armed is not None:
            self.engine, self._armed = self._armed, None
        if self.version % self._interval == 0:
            self._armed = self.version
        return list(self.flying.values())


class Verl(Loop):
    """A window of samples and a queue; no look at ages."""

    started = updates = 0

    def __init__(
        self, batch: int, staleness: int, staleness_threshold: float = 0.1, window: int = 4, require_batches: int = 1
    ) -> None:
        super().__init__(batch * require_batches, staleness)
        self._most = int(batch * require_batches * (1 + staleness_threshold) * window)
        self._window = window

    def quota(self) -> int:
        return 0 if len(self.ready) >= self._most else max(0, self._most - self.started)

    def admitted(self, request: Request) -> None:
        self.started += 1

    def completed(self, request: Request) -> bool:
        return len(self.ready) < self._most

    def take(self) -> list[Request] | None:
        return self._oldest(self.ready)

    def updated(self) -> list[Request]:
        self.engine = self.version
        self.updates += 1
        if self.updates % self._window == 0:
            self.started = len(self.flying) + len(self.ready)
        return []


@dataclass
class _Buffer:
    slots: list[Request | None]
    occupied: list[bool] = field(default_factory=list)

    def full(self) -> bool:
        """READY: all occupied."""
        return all(self.occupied)

    def empty(self) -> list[int]:
        """Slots that nobody has."""
        return [slot for slot, request in enumerate(self.slots) if request is None]


class Psrl(Loop):
    """Buffers with reserved and occupied slots; an update with partial rollouts clears every reservation."""

    def __init__(self, batch: int, staleness: int) -> None:
        super().__init__(batch, staleness)
        self._buffers: dict[int, _Buffer] = {}

    def _pending(self, first: int, last: int) -> list[int]:
        """Create buffers as needed and return those of a range that have an empty slot."""
        for number in range(self.version, self.version + self.staleness + 1):
            self._buffers.setdefault(number, _Buffer([None] * self.batch, [False] * self.batch))
        return [n for n in range(first, last + 1) if n in self._buffers and self._buffers[n].empty()]

    def quota(self) -> int:
        last = self.version + self.staleness
        return sum(len(self._buffers[n].empty()) for n in self._pending(self.version, last))

    def admitted(self, request: Request) -> None:
        number = self._pending(request.version, request.version + self.staleness)[-1]
        self._buffers[number].slots[self._buffers[number].empty()[-1]] = request

    def _place(self, request: Request) -> tuple[int, int] | None:
        for number, buffer in self._buffers.items():
            if request in buffer.slots:
                return number, buffer.slots.index(request)
        return None

    def completed(self, request: Request) -> bool:
        place = self._place(request)
        if place is None:
            return False
        number, slot = place
        self._buffers[number].slots[slot] = None
        self._fill(request.version, number, slot)
        lowest = self._pending(request.version, request.version + self.staleness)[0]
        buffer = self._buffers[lowest]
        first = buffer.empty()[0]
        buffer.slots[first], buffer.occupied[first] = request, True
        return True

    def _fill(self, version: int, number: int, slot: int) -> None:
        """Move the first reservation that may wait that long into the place that became free."""
        for n in range(version, min(version + self.staleness, number) + 1):
            buffer = self._buffers.get(n)
            if buffer is None or buffer.full():
                continue
            for place in range(slot if n == number else self.batch):
                moved = buffer.slots[place]
                if moved is None or buffer.occupied[place] or not number - self.staleness <= moved.version <= number:
                    continue
                self._buffers[number].slots[slot] = moved
                reserved = [p for p, r in enumerate(buffer.slots) if r is not None and not buffer.occupied[p]]
                gap = min((p for p in reserved if p < place), default=place)
                buffer.slots[place] = buffer.slots[gap] if gap != place else None
                buffer.slots[gap] = None
                return

    def has_batch(self) -> bool:
        """Whether the trainer's buffer is READY."""
        return self.version in self._buffers and self._buffers[self.version].full()

    def take(self) -> list[Request] | None:
        if not self.has_batch():
            return None
        buffer = self._buffers.pop(self.version)
        return [request for request in buffer.slots if request is not None]

    def aborted(self) -> None:
        for buffer in self._buffers.values():
            for slot, request in enumerate(buffer.slots):
                if request is not None and not buffer.occupied[slot]:
                    buffer.slots[slot] = None


def loop(name: str, batch: int, staleness: int, **knobs: Any) -> Loop:
    """Return a control loop by DryRun-RL's name for it.

    Raises:
        KeyError: no such policy.
    """
    return LOOPS[name](batch, staleness, **knobs)


LOOPS: dict[str, type[Any]] = {"areal": Areal, "roll": Roll, "slime": Slime, "verl": Verl, "psrl": Psrl}

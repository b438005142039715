"""DryRun-RL's five control loops. They are models of its own, not the frameworks they are named after."""

from __future__ import annotations

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
        """L1."""
        return (self.staleness + self.version + 1) * self.batch - self.accepted - len(self.flying)

    def completed(self, request: Request) -> bool:
        """L3: keep or drop."""
        self.accepted += 1
        return True

    def take(self) -> list[Request] | None:
        """L3: the batch."""
        return self._oldest(sorted(self.ready, key=lambda request: (request.dispatched, request.rid)))


class Roll(Loop):
    """A quota of begun requests; groups by start version, which expire."""

    finished = 0

    def quota(self) -> int:
        """L1."""
        return (self.staleness + 1 + self.version) * self.batch - len(self.flying) - self.finished

    def completed(self, request: Request) -> bool:
        """L3: keep or drop."""
        self.finished += 1
        return request.version >= self.version - self.staleness

    def take(self) -> list[Request] | None:
        """L3: the batch."""
        return self._oldest(sorted(self.ready, key=lambda request: request.version))

    def updated(self) -> list[Request]:
        """L2: a new version."""
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
        """L1."""
        return 0 if self.round >= self.batch else self._sampled

    def admitted(self, request: Request) -> None:
        """L1: count it."""
        self.round += 1

    def completed(self, request: Request) -> bool:
        """L3: keep or drop."""
        return len(self.ready) < self.batch

    def take(self) -> list[Request] | None:
        """L3: the batch."""
        taken = self._oldest(self.ready)
        if taken is not None:
            self.round = 0
        return taken

    def updated(self) -> list[Request]:
        """L2: a new version."""
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
        """L1."""
        return 0 if len(self.ready) >= self._most else max(0, self._most - self.started)

    def admitted(self, request: Request) -> None:
        """L1: count it."""
        self.started += 1

    def completed(self, request: Request) -> bool:
        """L3: keep or drop."""
        return len(self.ready) < self._most

    def take(self) -> list[Request] | None:
        """L3: the batch."""
        return self._oldest(self.ready)

    def updated(self) -> list[Request]:
        """L2: a new version."""
        self.engine = self.version
        self.updates += 1
        if self.updates % self._window == 0:
            self.started = len(self.flying) + len(self.ready)
        return []


class _Buffer:
    """Places of one step: who has each, and which are occupied rather than reserved."""

    def __init__(self, size: int) -> None:
        self.slots: list[Request | None] = [None] * size
        self.free = set(range(size))
        self.reserved: set[int] = set()

    def full(self) -> bool:
        """READY: all occupied."""
        return not self.free and not self.reserved

    def put(self, slot: int, request: Request, *, reserve: bool) -> None:
        """Give a free place away."""
        self.slots[slot] = request
        self.free.remove(slot)
        if reserve:
            self.reserved.add(slot)

    def clear(self, slot: int) -> Request | None:
        """Take a reserved place back."""
        request, self.slots[slot] = self.slots[slot], None
        self.reserved.remove(slot)
        self.free.add(slot)
        return request


class Psrl(Loop):
    """Buffers with reserved and occupied places; an update with partial rollouts clears every reservation."""

    def __init__(self, batch: int, staleness: int) -> None:
        super().__init__(batch, staleness)
        self._buffers: dict[int, _Buffer] = {}
        self._where: dict[int, tuple[int, int]] = {}  # place of a reserved request

    def _pending(self, first: int, last: int) -> list[int]:
        """Create buffers as needed and return those of a range that have a free place."""
        for number in range(self.version, self.version + self.staleness + 1):
            if number not in self._buffers:
                self._buffers[number] = _Buffer(self.batch)
        return [n for n in range(first, last + 1) if n in self._buffers and self._buffers[n].free]

    def quota(self) -> int:
        """L1."""
        last = self.version + self.staleness
        return sum(len(self._buffers[n].free) for n in self._pending(self.version, last))

    def admitted(self, request: Request) -> None:
        """L1: count it."""
        number = self._pending(request.version, request.version + self.staleness)[-1]
        self._reserve(request, number, max(self._buffers[number].free))

    def _reserve(self, request: Request, number: int, slot: int) -> None:
        self._buffers[number].put(slot, request, reserve=True)
        self._where[request.rid] = number, slot

    def completed(self, request: Request) -> bool:
        """L3: keep or drop."""
        place = self._where.pop(request.rid, None)
        if place is None:
            return False
        number, slot = place
        self._buffers[number].clear(slot)
        self._fill(request.version, number, slot)
        lowest = self._pending(request.version, request.version + self.staleness)[0]
        buffer = self._buffers[lowest]
        buffer.put(min(buffer.free), request, reserve=False)
        return True

    def _fill(self, version: int, number: int, slot: int) -> None:
        """Move the first reservation that may wait that long into the place that became free."""
        for n in range(version, min(version + self.staleness, number) + 1):
            buffer = self._buffers.get(n)
            for place in sorted(buffer.reserved) if buffer else ():
                moved = buffer.slots[place] if buffer else None
                if (n == number and place >= slot) or moved is None or buffer is None:
                    break
                if number - self.staleness <= moved.version <= number:
                    buffer.clear(place)
                    self._reserve(moved, number, slot)
                    self._close(n, place)
                    return

    def _close(self, number: int, gap: int) -> None:
        """The lowest reservation of a buffer takes a gap above it."""
        buffer = self._buffers[number]
        lowest = min(buffer.reserved, default=gap)
        if lowest < gap and (request := buffer.clear(lowest)) is not None:
            self._reserve(request, number, gap)

    def has_batch(self) -> bool:
        """Whether the trainer's buffer is READY."""
        return self.version in self._buffers and self._buffers[self.version].full()

    def take(self) -> list[Request] | None:
        """L3: the batch."""
        if not self.has_batch():
            return None
        buffer = self._buffers.pop(self.version)
        return [request for request in buffer.slots if request is not None]

    def aborted(self) -> None:
        """L2: what an abort means here."""
        for number, slot in self._where.values():
            self._buffers[number].clear(slot)
        self._where.clear()


def loop(name: str, batch: int, staleness: int, **knobs: Any) -> Loop:
    """Return a control loop by DryRun-RL's name for it.

    Raises:
        KeyError: no such policy.
    """
    made: Loop = LOOPS[name](batch, staleness, **knobs)
    return made


LOOPS: dict[str, type[Any]] = {"areal": Areal, "roll": Roll, "slime": Slime, "verl": Verl, "psrl": Psrl}

"""An inference engine with continuous batching, whose time goes by in closed form between events.

All running sequences gain a token per step. A step of ``n`` sequences with ``ctx`` tokens of context takes
``max(F, W + G n + A ctx)`` seconds (a roofline: a floor, then compute and memory traffic), and context grows by ``n`` a
step, so the time of ``k`` steps, and the number of steps in a time, are the sum of an arithmetic series. An engine is
touched when a sequence ends, joins, is preempted or cancelled, and when the weights change: never for a token.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Seconds of engine work, and limits.

    ``floor_s`` (F), ``step_s`` (W), ``token_s`` (G, per decoded or prefilled token), ``context_s`` (A, per token of
    context read). ``concurrency``: sequences that run at once; ``kv_tokens``: tokens that the cache holds.
    ``sync``: what a weight change does to running sequences, ``continue`` (in place), ``resume`` (aborted, and
    resumed with their prefix, whose cache must be filled again) or ``wait`` (they end first, and nothing else begins).
    """

    floor_s: float = 0.005
    step_s: float = 0.001
    token_s: float = 0.0001
    context_s: float = 1e-7
    concurrency: int = 256
    kv_tokens: int = 1_600_000
    sync: str = "continue"


class Sequence:
    """One engine call: ``need`` tokens to make after ``context`` tokens that are there."""

    __slots__ = ("context", "done", "end", "need", "order", "start", "tokens", "trajectory")

    def __init__(self, trajectory: int, context: int, need: int, order: int) -> None:
        self.trajectory = trajectory
        self.context = context
        self.need = need
        self.order = order
        self.start = self.end = 0
        self.tokens: list[tuple[int, int]] = []  # (version, tokens) of what was made so far
        self.done = False  # ended or cancelled: what the heap still holds of it is void


class Engine:
    """One engine. ``clock``: time of its last step boundary; ``step``: steps made; ``active``: sequences it has."""

    def __init__(self, number: int, cost: Cost) -> None:
        self.number = number
        self._cost = cost
        self.clock = 0.0
        self.step = 0
        self.active = 0
        self.preemptions = 0
        self.up_at = 0.0  # it has failed and is back at this time
        self._running = 0
        self._context = 0
        self._ends: list[tuple[int, int, Sequence]] = []  # a heap: last step, order of admission
        self._waiting: deque[Sequence] = deque()
        # Tokens of step number s come from the version of the last change before it.
        self._changes = [0]
        self._versions = [0]
        self._due: list[tuple[int, float]] = []  # version and pause of changes that wait for the step's end

    # time

    def _elapsed(self, steps: int) -> float:
        cost, running = self._cost, self._running
        first = cost.step_s + cost.token_s * running + cost.context_s * self._context
        slope = cost.context_s * running
        flat = 0
        if first < cost.floor_s:
            flat = steps if slope == 0 else min(steps, math.ceil((cost.floor_s - first) / slope))
        steep = steps - flat
        return flat * cost.floor_s + steep * (first + slope * flat) + slope * steep * (steep - 1) / 2

    def _within(self, seconds: float) -> int:
        """Return how many whole steps fit into a time."""
        if seconds <= 0:
            return 0
        low, high = 0, int(seconds / self._cost.floor_s) + 1 if self._cost.floor_s else 1 << 40
        while low < high:
            middle = (low + high + 1) // 2
            if self._elapsed(middle) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low

    def _go(self, steps: int) -> None:
        if steps:
            self.clock += self._elapsed(steps)
            self.step += steps
            self._context += steps * self._running

    def _to_boundary(self, now: float) -> None:
        """Go on to the first step boundary at or after ``now``."""
        if not self._running:
            self.clock = max(self.clock, now)
            return
        # Never past an end, which is another event at this very time.
        if self.clock < now:
            self._go(min(self._within(now - self.clock), self._next()))
        if self.clock < now - 1e-12:
            self._go(min(1, self._next()))

    # what happens next

    def plan(self, now: float) -> float | None:
        """Return the time of the next event: an end, a join, new weights, a full cache; None if nothing will happen."""
        self._clean()
        drains = bool(self._due) and self._cost.sync == "wait"
        changes = self._due and not (drains and self._running)
        if changes or (self._waiting and not drains and self._fits(self._waiting[0])):
            if not self._running:
                return max(self.clock, now)
            steps = self._within(now - self.clock)
            if self.clock + self._elapsed(steps) < now - 1e-12:
                steps += 1
            return self.clock + self._elapsed(min(steps, self._next()))
        return self.clock + self._elapsed(self._next()) if self._running else None

    def _next(self) -> int:
        """Return the steps to the next end or to a full cache, at least 0."""
        room = (self._cost.kv_tokens - self._context) // self._running if self._running > 1 else 1 << 60
        return max(0, min(self._ends[0][0] - self.step, room))

    def run(self, when: float) -> list[Sequence]:
        """Go on to the event that ``plan`` announced; return the sequences that ended."""
        if self._running:
            steps = self._next()
            if self.clock + self._elapsed(steps) > when + 1e-9:
                steps = self._within(when - self.clock + 1e-9)
            self._go(steps)
        else:
            self.clock = max(self.clock, when)
        ended = []
        self._clean()
        while self._ends and self._ends[0][0] <= self.step:
            sequence = heapq.heappop(self._ends)[2]
            self._leave(sequence)
            ended.append(sequence)
            self._clean()
        self._load()
        while self._running > 1 and self._context + self._running > self._cost.kv_tokens:
            self._preempt()
        self._join()
        return ended

    def _clean(self) -> None:
        while self._ends and self._ends[0][2].done:
            heapq.heappop(self._ends)
        while self._waiting and self._waiting[0].done:
            self._waiting.popleft()

    # sequences

    def load(self) -> tuple[int, int, float]:
        """Return running and waiting sequences, and the share of the cache in use, at the last step boundary."""
        return self._running, self.active - self._running, self._context / self._cost.kv_tokens

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for a place."""
        self._waiting.append(sequence)
        self.active += 1

    def _fits(self, sequence: Sequence) -> bool:
        if not self._running:
            return True
        return (
            self._running < self._cost.concurrency
            and self._context + sequence.context + self._running < self._cost.kv_tokens
        )

    def _join(self) -> None:
        if self._due:
            return  # What runs is awaited before the weights change.
        prefilled = 0
        while self._waiting:
            sequence = self._waiting[0]
            if not sequence.done:
                if not self._fits(sequence):
                    break
                sequence.start, sequence.end = self.step, self.step + sequence.need
                heapq.heappush(self._ends, (sequence.end, sequence.order, sequence))
                self._running += 1
                self._context += sequence.context
                prefilled += sequence.context
            self._waiting.popleft()
        self.clock += prefilled * self._cost.token_s

    def _leave(self, sequence: Sequence) -> None:
        """Take a running sequence out and note the versions of what it made since it joined."""
        made = self.step - sequence.start
        place = bisect_right(self._changes, sequence.start) - 1
        begin = sequence.start
        while made and begin < self.step:
            following = self._changes[place + 1] if place + 1 < len(self._changes) else self.step
            end = min(following, self.step)
            if end > begin:
                sequence.tokens.append((self._versions[place], end - begin))
            begin, place = end, place + 1
        sequence.context += made
        sequence.need -= made
        sequence.done = True
        self._running -= 1
        self._context -= sequence.context
        self.active -= 1

    def _preempt(self) -> None:
        """Send the youngest back to the front of the queue: it keeps its tokens and loses its cache."""
        self.preemptions += 1
        youngest = max((order, sequence) for _, order, sequence in self._ends if not sequence.done)[1]
        self._leave(youngest)
        again = Sequence(youngest.trajectory, youngest.context, youngest.need, youngest.order)
        again.tokens = youngest.tokens
        self._waiting.appendleft(again)
        self.active += 1

    def cancel(self, trajectory: int, now: float) -> list[tuple[int, int]] | None:
        """Stop a trajectory's sequence; return what it made as (version, tokens), None if it isn't here."""
        for _, _, sequence in self._ends:
            if sequence.trajectory == trajectory and not sequence.done:
                self._to_boundary(now)
                self._leave(sequence)
                return sequence.tokens
        for sequence in self._waiting:
            if sequence.trajectory == trajectory and not sequence.done:
                sequence.done = True
                self.active -= 1
                return sequence.tokens
        return None

    def serve(self, version: int, pause_s: float) -> None:
        """Change the weights at the end of the step, which takes a pause, and perhaps a prefill of what runs."""
        self._due.append((version, pause_s))

    def fail(self, now: float, repair_s: float) -> list[Sequence]:
        """Lose all sequences, and be back later; return them with what they made."""
        self._to_boundary(now)
        lost = [sequence for *_, sequence in self._ends if not sequence.done]
        for sequence in lost:
            self._leave(sequence)
        for sequence in self._waiting:
            if not sequence.done:
                sequence.done = True
                self.active -= 1
                lost.append(sequence)
        self._ends.clear()
        self._waiting.clear()
        self.clock = self.up_at = max(self.clock, now + repair_s)
        return lost

    def _load(self) -> None:
        if self._cost.sync == "wait" and self._running:
            return
        for version, pause_s in self._due:
            if self._changes[-1] == self.step:
                self._versions[-1] = version
            else:
                self._changes.append(self.step)
                self._versions.append(version)
            self.clock += pause_s
            if self._cost.sync == "resume":
                self.clock += self._context * self._cost.token_s
        self._due.clear()

"""What the gateway's trace says of every request: its calls, their segments, and the versions that made them.

A call is one turn; its segments end at pops. The first is of the call's tag (guide section 3); for the others it
lies between pins: an instance's versions never decrease, so a placement that was pinned on it earlier in the trace
gives the lower end and one pinned later the upper end. Lines are in the order of the gateway's decisions: no clock is
needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

Row = Mapping[str, Any]
Newest = Callable[[str | None, int], int | None]
"""Of an instance and a tag: the newest version that the first token placed there may have (None = open)."""


@dataclass(slots=True)
class Segment:
    """A run of ``tokens`` (None = never popped) on one instance. ``order``, ``popped``: its places in the trace."""

    placed: Row
    order: int
    tokens: int | None = None
    pop: Row | None = None
    popped: int | None = None


@dataclass(slots=True)
class Call:
    """One turn. ``before`` counts tokens that were made before its first known line."""

    tag: int
    prompt: int
    segments: list[Segment] = field(default_factory=list)
    total: int = 0

    @property
    def completed(self) -> bool:
        """Whether its last segment ended of itself."""
        return bool(self.segments) and (self.segments[-1].pop or {}).get("completed") is True


@dataclass(slots=True)
class Request:
    """All that was traced of a request id: attempts (retries begin from nothing again) of calls.

    ``latest``: place in the trace of its last line, ``ended``: of the last end of a segment; ``lines``: a digest of all
    its lines, in order.
    """

    request: int
    prompt: int | None
    first: Row
    attempts: list[list[Call]] = field(default_factory=list)
    latest: int = -1
    ended: int = -1
    lines: int = 0

    @property
    def calls(self) -> list[Call]:
        """The final attempt."""
        return self.attempts[-1]


@dataclass(frozen=True)
class Span:
    """Tokens of one version interval; ``hi`` None = open."""

    tokens_lo: int
    tokens_hi: int | None
    lo: int
    hi: int | None
    row: Row
    ended: Any = None


@dataclass
class Pinned:
    """Pins of an instance in the order of the trace: their places in it, and their tags.

    ``digests``: of the pins before each, and of all; ``new``: number of pins before the first one of each tag.
    """

    orders: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=lambda: [0])
    new: dict[int, int] = field(default_factory=dict)

    def add(self, order: int, tag: int) -> None:
        """Note a pin; places only grow."""
        self.new.setdefault(tag, len(self.orders))
        self.orders.append(order)
        self.tags.append(tag)
        self.digests.append(hash((self.digests[-1], order, tag)))


class Trace:
    """All lines that were followed so far, put together by request.

    A line changes the request that it names, and adds to what is told by place; nothing else. ``several``: requests
    have several turns, ``native``: each of them is pinned anew; else a later one may have carried the first one's tag
    (sessions). ``oldest``, ``newest``: tags of all calls. ``placed``: places where calls were placed first, and
    ``reached`` the newest tag up to each. ``last``: the request of the highest prompt. ``touched``: the requests of the
    lines that were taken last.
    """

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}
        self.several = self.native = False
        self.oldest: int | None = None
        self.newest = -1
        self.placed: list[int] = []
        self.reached: list[int] = []
        self.last: Request | None = None
        self.touched: set[int] = set()
        self._lines = 0
        self._first_pins: dict[str, Pinned] = defaultdict(Pinned)
        self._all_pins: dict[str, Pinned] = defaultdict(Pinned)

    @property
    def pins(self) -> Mapping[str, Pinned]:
        """Pins by instance: of every call where each is pinned, else of first ones."""
        return self._all_pins if self.native else self._first_pins

    def follow(self, rows: Sequence[Row]) -> None:
        """Take further lines, in the order of the trace."""
        for order, row in enumerate(rows, self._lines):
            request = self.requests.get(row["request"])
            if request is None:
                request = self.requests[row["request"]] = Request(row["request"], row["prompt"], row)
                if request.prompt and (self.last is None or request.prompt > (self.last.prompt or 0)):
                    self.last = request
            request.latest, request.lines = order, hash((request.lines, *row.values()))
            if row["pop"]:
                self._pop(request, row, order)
            else:
                self._place(request, row, order)
        self._lines += len(rows)
        self.touched = {row["request"] for row in rows}

    def _place(self, request: Request, row: Row, order: int) -> None:
        calls = request.attempts[-1] if request.attempts else None
        call = calls[-1] if calls else None
        continued = (
            call is not None
            and not call.completed
            and row["tag"] == call.tag
            and row["tokens"] == call.total
            and (row["tokens"] > 0 or call.segments[-1].pop is not None)
        )
        if call is not None and continued:
            call.segments.append(Segment(row, order))
            return
        fresh = Call(row["tag"], row["prompt_tokens"], [Segment(row, order)], row["tokens"])
        turn = call is not None and call.completed and row["prompt_tokens"] >= call.prompt + call.total
        if calls is not None and turn:
            self.several = True
            self.native = self.native or fresh.tag != calls[0].tag
            calls.append(fresh)
        else:
            request.attempts.append([fresh])
        self._note(fresh)
        if row["tokens"]:
            # Its beginning is missing: so many tokens were made before, by the tag's version or a newer one.
            fresh.segments.insert(0, Segment(row, -1, row["tokens"], row, order))
            request.ended = order
            return
        self.placed.append(order)
        self.reached.append(max(fresh.tag, self.reached[-1]) if self.reached else fresh.tag)
        name = str(row["instance"])
        self._all_pins[name].add(order, fresh.tag)
        if not turn:
            self._first_pins[name].add(order, fresh.tag)

    def _pop(self, request: Request, row: Row, order: int) -> None:
        call = request.attempts[-1][-1] if request.attempts else None
        if call is None or call.segments[-1].pop is not None:
            # Its placement is missing.
            if call is None or row["tokens"] < call.total or call.completed:
                call = Call(row["tag"], row["prompt_tokens"])
                request.attempts.append([call])
                self._note(call)
            call.segments.append(Segment(row, -1))
        segment = call.segments[-1]
        segment.tokens, segment.pop, segment.popped = max(row["tokens"] - call.total, 0), row, order
        call.total = max(call.total, row["tokens"])
        request.ended = order

    def _note(self, call: Call) -> None:
        self.oldest = call.tag if self.oldest is None else min(call.tag, self.oldest)
        self.newest = max(call.tag, self.newest)


class Pins:
    """Which version each instance had at which place of the trace."""

    def __init__(self, trace: Trace, newest: Newest) -> None:
        self.newest = newest = cache(newest)
        self.several, self.native = trace.several, trace.native
        self._pins = {name: _Bounded.by(pinned, name, newest) for name, pinned in trace.pins.items()}

    def spans(self, calls: Sequence[Call]) -> list[Span]:
        """Return the versions of an attempt's tokens."""
        return [
            self._span(segment, call, pinned=index == 0 and (number == 0 or self.native))
            for number, call in enumerate(calls)
            for index, segment in enumerate(call.segments)
            if segment.tokens != 0
        ]

    def until(self, order: int) -> list[tuple[Any, ...]]:
        """Tell the pins that bound the versions of segments placed and popped up to a place of the trace.

        They are those up to there, and of each instance the next one that bounds what ended before it.
        """
        return [(name, *pins.until(order)) for name, pins in sorted(self._pins.items())]

    def _span(self, segment: Segment, call: Call, *, pinned: bool) -> Span:
        name = str(segment.placed["instance"])
        lo, hi = self._between(name, segment) if segment.order >= 0 else (0, None)
        lo = max(lo, call.tag)
        if pinned and segment.order >= 0:
            newest = self.newest(name, call.tag)
            lo = call.tag
            hi = newest if hi is None else hi if newest is None else min(hi, newest)
        if hi is not None and hi < lo:
            hi = None
        tokens = segment.tokens
        ended = segment.pop["ts"] if segment.pop else None
        return Span(tokens or 0, tokens, lo, hi, segment.pop or segment.placed, ended)

    def _between(self, name: str, segment: Segment) -> tuple[int, int | None]:
        bounded = self._pins.get(name)
        if bounded is None:
            return 0, None
        pins = bounded.pins
        before = bisect_right(pins.orders, segment.order)
        lo = pins.tags[before - 1] if before else 0
        if segment.popped is None:
            return lo, None
        return lo, bounded.following(bisect_left(pins.orders, segment.popped))


@dataclass(frozen=True)
class _Bounded:
    """The pins of an instance with their upper ends, which the components' logs tell by tag.

    ``highs``: by tag in the order of their first pins, which ``starts`` numbers, and ``digests`` of those before each,
    and of all. ``next``: of each pin, the first from it on of which an upper end is known (their number: none).
    """

    pins: Pinned
    starts: Sequence[int]
    highs: Mapping[int, int | None]
    digests: Sequence[int]
    next: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def by(cls, pins: Pinned, name: str, newest: Newest) -> _Bounded:
        highs = {tag: newest(name, tag) for tag in pins.new}
        open_tags = [tag for tag, high in highs.items() if high is None]
        number = len(pins.orders)
        known = np.arange(number)
        if open_tags:
            known[np.isin(np.array(pins.tags, np.int64), np.array(open_tags, np.int64))] = number
        digests = list(accumulate(highs.values(), lambda digest, high: hash((digest, high)), initial=0))
        return cls(pins, list(pins.new.values()), highs, digests, np.minimum.accumulate(known[::-1])[::-1])

    def following(self, at: int) -> int | None:
        """Return the first upper end that is known of a pin or of those after it; None after the last."""
        at = int(self.next[at]) if at < len(self.next) else at
        return self.highs[self.pins.tags[at]] if at < len(self.pins.tags) else None

    def until(self, order: int) -> tuple[Any, ...]:
        """See ``Pins.until``."""
        before = bisect_right(self.pins.orders, order)
        return self.pins.digests[before], self.digests[bisect_left(self.starts, before)], self.following(before)

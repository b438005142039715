"""What the gateway's trace says of every request: its calls, their segments, and the versions that made them.

A call is one turn; its segments end at pops. The first is of the call's tag (guide section 3); for the others it
lies between pins: an instance's versions never decrease, so a placement that was pinned on it earlier in the trace
gives the lower end and one pinned later the upper end. Lines are in the order of the gateway's decisions: no clock is
needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import Any

Row = Mapping[str, Any]
Newest = Callable[[str | None, int], int | None]
"""Of an instance and a tag: the newest version that the first token placed there may have (None = open)."""


@dataclass
class Segment:
    """A run of ``tokens`` (None = never popped) on one instance. ``order``, ``popped``: its places in the trace."""

    placed: Row
    order: int
    tokens: int | None = None
    pop: Row | None = None
    popped: int | None = None


@dataclass
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


@dataclass
class Request:
    """All that was traced of a request id: attempts (retries begin from nothing again) of calls.

    ``latest``: place in the trace of its last line; ``lines``: a digest of all of them, in order.
    """

    request: int
    prompt: int | None
    first: Row
    attempts: list[list[Call]] = field(default_factory=list)
    latest: int = -1
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


def trace(rows: Iterable[Row]) -> dict[int, Request]:
    """Put the lines of every request together."""
    found: dict[int, Request] = {}
    for order, row in enumerate(rows):
        request = found.setdefault(row["request"], Request(row["request"], row["prompt"], row))
        request.latest, request.lines = order, hash((request.lines, *row.values()))
        if row["pop"]:
            _popped(request, row, order)
        else:
            _placed(request, row, order)
    return {number: request for number, request in found.items() if request.attempts}


def _placed(request: Request, row: Row, order: int) -> None:
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
    if row["tokens"]:
        # Its beginning is missing: so many tokens were made before, by the tag's version or a newer one.
        fresh.segments.insert(0, Segment(row, -1, row["tokens"], row, order))
    if calls is not None and call is not None and call.completed and row["prompt_tokens"] >= call.prompt + call.total:
        calls.append(fresh)
    else:
        request.attempts.append([fresh])


def _popped(request: Request, row: Row, order: int) -> None:
    call = request.attempts[-1][-1] if request.attempts else None
    if call is None or call.segments[-1].pop is not None:
        # Its placement is missing.
        if call is None or row["tokens"] < call.total or call.completed:
            call = Call(row["tag"], row["prompt_tokens"])
            request.attempts.append([call])
        call.segments.append(Segment(row, -1))
    segment = call.segments[-1]
    segment.tokens, segment.pop, segment.popped = max(row["tokens"] - call.total, 0), row, order
    call.total = max(call.total, row["tokens"])


class Pins:
    """Which version each instance had at which place of the trace."""

    def __init__(self, requests: Iterable[Request], newest: Newest) -> None:
        requests = list(requests)
        self.newest = newest = cache(newest)
        attempts = [calls for request in requests for calls in request.attempts]
        self.several = any(len(calls) > 1 for calls in attempts)
        self.native = any(len({call.tag for call in calls}) > 1 for calls in attempts)
        """Every turn is pinned anew; else a later turn may have carried the first one's tag (sessions)."""
        pins: dict[str, list[tuple[int, int, int | None]]] = defaultdict(list)
        for calls in attempts:
            for call in calls if self.native else calls[:1]:
                first = call.segments[0]
                if first.order >= 0 and first.placed["tokens"] == 0:
                    name = str(first.placed["instance"])
                    pins[name].append((first.order, call.tag, newest(name, call.tag)))
        self._pins = {name: _Pinned.of(sorted(found, key=lambda pin: pin[0])) for name, found in pins.items()}

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
        told = []
        for name, pins in sorted(self._pins.items()):
            before = bisect_right(pins.orders, order)
            told.append((name, pins.digests[before], pins.following[before]))
        return told

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
        pins = self._pins.get(name)
        if pins is None:
            return 0, None
        before = bisect_right(pins.orders, segment.order)
        lo = pins.tags[before - 1] if before else 0
        if segment.popped is None:
            return lo, None
        return lo, pins.following[bisect_left(pins.orders, segment.popped)]


@dataclass(frozen=True)
class _Pinned:
    """The pins of an instance: their places in the trace, and their tags.

    ``following``: the first upper end that is known of a pin or of those after it, and None after the last;
    ``digests``: of the pins before each, and of all.
    """

    orders: Sequence[int]
    tags: Sequence[int]
    following: Sequence[int | None]
    digests: Sequence[int]

    @classmethod
    def of(cls, pins: Sequence[tuple[int, int, int | None]]) -> _Pinned:
        following: list[int | None] = [None]
        for _, _, hi in reversed(pins):
            following.append(following[-1] if hi is None else hi)
        digests = list(accumulate(pins, lambda digest, pin: hash((digest, pin)), initial=0))
        return cls([order for order, _, _ in pins], [tag for _, tag, _ in pins], following[::-1], digests)

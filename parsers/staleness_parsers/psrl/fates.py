"""What became of requests that no step trained (guide sections 4 and 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from staleness_audit.parser import Sink
from staleness_parsers.psrl.components import MANAGER, TRACKER
from staleness_parsers.psrl.lives import Teller

if TYPE_CHECKING:
    from staleness_parsers.psrl.finish import Story

Row = Mapping[str, Any]
Fate = tuple[str, str | None, Row, str]
"""Kind, reason, the line that says so, and the evidence."""


def named_requests(story: Story) -> set[int]:
    """Return all requests that the trace or the inventory names."""
    known = set(story.requests)
    if story.siblings:
        known |= {prompt * story.siblings + index for prompt, index in story.book.reserved}
    return known


def write_fates(story: Story, teller: Teller, requests: Sequence[int], sink: Sink) -> None:
    """Write the lives and ends of untrained requests."""
    attempt = int(story.relaunched)
    events = []
    for request in requests:
        row = _proof(story, request)
        if row is None:
            continue
        teller.life(str(request), request, None, story.group(request), attempt, None, row)
        for kind, reason, place, evidence in fates_of(story, request):
            events.append(
                {
                    "seq": place["line"],
                    "ts": story.book.utc(place) if "kind" in place else None,
                    "kind": kind,
                    "trajectory_id": str(request),
                    "attempt": attempt,
                    "reason": reason,
                    "evidence": evidence,
                    "source": place["source"],
                    "line": place["line"],
                }
            )
    teller.flush(sink)
    if events:
        sink.write("events", pl.DataFrame(events, infer_schema_length=None))


def _proof(story: Story, request: int) -> Row | None:
    """Return the first line that names a request: of the trace, else its reservation."""
    traced = story.requests.get(request)
    if traced is not None or not story.siblings:
        return traced.first if traced else None
    return story.book.reserved.get((request // story.siblings, request % story.siblings))


def unseen_fates(story: Story, *, seen: bool) -> frozenset[str]:
    """Return the classes of fates that these logs don't show; ``seen``: they name any request."""
    told = {MANAGER, TRACKER} <= story.book.informed
    if story.requests or (seen and told):
        return frozenset({"lost"}) if story.relaunched else frozenset()
    return frozenset({"dropped", "cancelled", "lost", "pending"})


def fates_of(story: Story, request: int) -> Iterator[Fate]:
    """Yield what is certain of an untrained request, or the alternatives."""
    book = story.book
    row = _proof(story, request)
    if row is None:
        return
    group = story.group(request)
    prompt = int(group) if group is not None else -1
    for found, reason in ((book.old, "stale"), (book.refused, "stale"), (book.surplus, "surplus")):
        if place := found.get(request):
            yield from _stopped(story, request, reason, place)
            return
    if place := book.failed.get(prompt):
        yield from _failed(story, request, place)
    elif place := book.filtered.get(prompt):
        yield from _stopped(story, request, "zero_advantage", place)
    elif place := book.aborted.get(request):
        yield from _stopped(story, request, "unknown", place)
    elif (place := book.occupied.get(prompt)) and place["kind"] == "wasted" and place["numbers"][2] in book.buffers:
        yield "dropped", "surplus", place, "derived"
    elif not {MANAGER, TRACKER} <= book.informed:
        yield from ((kind, "unknown", row, "inferred") for kind in (*_ends(story, request), "lost"))
        yield "pending", None, row, "inferred"


def _ends(story: Story, request: int) -> tuple[str, ...]:
    """How a request that a rule stopped ended: after its generation (dropped), before (cancelled), or either."""
    traced = story.requests.get(request)
    if traced is not None and not traced.calls[-1].completed:
        return ("cancelled",)
    # Between two turns it is unfinished although its last call is complete; its text is written when it ends.
    if (traced is not None and not story.pins.several) or (request, None) in story.texts:
        return ("dropped",)
    return ("dropped", "cancelled")


def _stopped(story: Story, request: int, reason: str, place: Row) -> Iterator[Fate]:
    ends = _ends(story, request)
    for kind in ends:
        yield kind, reason, place, "derived" if len(ends) == 1 else "inferred"


def _failed(story: Story, request: int, place: Row) -> Iterator[Fate]:
    """One request of the group failed; its siblings were stopped, or had finished and went with it."""
    if story.siblings == 1:
        yield "lost", "error", place, "derived"
        return
    yield "lost", "error", place, "inferred"
    yield from ((kind, "group", place, "inferred") for kind in _ends(story, request))

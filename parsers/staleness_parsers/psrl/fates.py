"""What became of requests that no step trained (guide sections 4 and 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from staleness_audit.parser import Sink
from staleness_parsers.psrl.components import MANAGER, TRACKER
from staleness_parsers.psrl.lives import Teller

if TYPE_CHECKING:
    from staleness_parsers.psrl.finish import Story

Row = Mapping[str, Any]
Fate = tuple[str, str | None, Row, str]


def write_fates(story: Story, teller: Teller, trained: set[int], sink: Sink) -> frozenset[str]:
    """Write the lives and ends of untrained requests; returns the classes of fates that these logs don't show."""
    attempt = int(story.first > 1)
    known = set(story.requests)
    if story.siblings:
        known |= {prompt * story.siblings + index for prompt, index in story.book.reserved}
    events = []
    for request in sorted(known - trained):
        traced = story.requests.get(request)
        row = traced.first if traced else teller.reservation(request)
        if row is None:
            continue
        teller.life(str(request), request, None, story.group(request), attempt, None, row)
        for kind, reason, place, evidence in _fates(story, request, row):
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
    return _unseen(story, seen=bool(known))


def _unseen(story: Story, *, seen: bool) -> frozenset[str]:
    told = {MANAGER, TRACKER} <= story.book.informed
    if story.requests or (seen and told):
        return frozenset({"lost"}) if story.first > 1 else frozenset()
    return frozenset({"dropped", "cancelled", "lost", "pending"})


def _fates(story: Story, request: int, row: Row) -> Iterator[Fate]:
    """Yield what is certain, or the alternatives."""
    book = story.book
    group = story.group(request)
    prompt = int(group) if group is not None else -1
    traced = story.requests.get(request)
    finished = traced is not None and traced.calls[-1].completed
    for found, reason in ((book.old, "stale"), (book.refused, "stale"), (book.surplus, "surplus")):
        if place := found.get(request):
            yield ("dropped" if finished else "cancelled"), reason, place, "derived"
            return
    if place := book.failed.get(prompt):
        yield from _failed(story, request, prompt, place, finished=finished)
    elif place := book.filtered.get(prompt):
        yield ("dropped" if traced is None or finished else "cancelled"), "zero_advantage", place, "derived"
    elif place := book.aborted.get(request):
        yield ("dropped" if finished else "cancelled"), "unknown", place, "derived"
    elif (place := book.occupied.get(prompt)) and place["kind"] == "wasted" and place["numbers"][2] in book.buffers:
        yield "dropped", "surplus", place, "derived"
    elif not {MANAGER, TRACKER} <= book.informed:
        yield ("dropped" if finished else "cancelled"), "unknown", row, "inferred"
        yield "lost", "unknown", row, "inferred"
        yield "pending", None, row, "inferred"


def _failed(story: Story, request: int, prompt: int, place: Row, *, finished: bool) -> Iterator[Fate]:
    """One request of the group failed; its siblings were stopped, or had finished and went with it."""
    siblings = [other for other in story.requests if story.group(other) == str(prompt)]
    if story.siblings == 1 or siblings == [request] == [place["numbers"][0] * (story.siblings or 1)]:
        yield "lost", "error", place, "derived"
        return
    yield "lost", "error", place, "inferred"
    yield ("dropped" if finished else "cancelled"), "group", place, "inferred"

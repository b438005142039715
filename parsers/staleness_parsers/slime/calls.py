"""One sample of a rollout dump: which tokens came from which engine call, and what the loss mask does to them.

The rules are those of the guide, section 3 ("tokens per version") and 5.1: the n-th end of an ``sglang_generate`` span
belongs to the n-th entry of ``weight_versions``; an aborted call without ``completion_tokens`` made nothing and its
entry is dropped; calls follow each other in the response.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Final

from staleness_audit.readers.numbers import is_whole

DEFAULT_LABEL: Final = 0
"""SGLang's built-in label ``"default"`` (delta mode: weights never updated yet) among the integer labels."""

_GENERATE: Final = {"sglang_generate", "sglang_generate_stream"}
_GROUP: Final = "generate_and_rm_group"
_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True)
class Segment:
    """Consecutive sampled tokens of one call, or of all calls where they can't be told apart.

    ``label_lo/hi``: labels between which the tokens' labels lie; None = open. ``start``: position in the response,
    where known. ``positions``: the response positions of the tokens where they are not one run (tool output in
    between).
    """

    label_lo: int | None
    label_hi: int | None
    tokens_lo: int
    tokens_hi: int
    start: int | None = None
    positions: tuple[int, ...] | None = None
    started: datetime | None = None
    ended: datetime | None = None

    @property
    def exact(self) -> bool:
        """Whether label and number of tokens are recorded."""
        return self.label_lo is not None and self.label_lo == self.label_hi and self.tokens_lo == self.tokens_hi


@dataclass(frozen=True)
class Call:
    """A finished engine call: ``tokens`` None = not recorded."""

    tokens: int | None
    aborted: bool
    started: datetime | None
    ended: datetime | None


@dataclass
class Life:
    """What the trace of a sample tells about its life. ``passes``: how often its group was admitted."""

    calls: list[Call] = field(default_factory=list)
    admitted: datetime | None = None
    enqueued: datetime | None = None
    passes: int = 0


@dataclass(frozen=True)
class Sample:
    """The cells of a dumped sample that the audit needs. ``mask``: None = all ones; ``problems``: what is odd in it."""

    index: int | None
    group_index: int | None
    execution: int | None
    tokens: Sequence[Any]
    response_length: int
    mask: Sequence[int] | None
    removed: bool
    labels: tuple[int | None, ...]
    life: Life
    status: str | None
    recycled_since: int | None
    problems: tuple[str, ...]
    key: str | None = None
    """Name of its trajectory, where a framework on top of slime gives one."""
    parts: tuple[Segment, ...] | None = None
    """Its segments, where such a framework records a label per token."""

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens before the response."""
        return len(self.tokens) - self.response_length if len(self.tokens) >= self.response_length > 0 else None


def label_number(entry: object) -> int | None:
    """Turn a ``weight_versions`` entry into an integer; None where it is no label (guide section 7)."""
    if entry == "default":
        return DEFAULT_LABEL
    if is_whole(entry) and 0 < entry < 1 << 30:
        return entry
    if isinstance(entry, str) and _NUMBER.fullmatch(entry) and int(entry) > 0:
        return int(entry)
    return None


def read_sample(record: Mapping[str, Any]) -> Sample | None:
    """Read a sample's dict; None if it lacks the response length, without which nothing can be said of it."""
    problems = []
    length = _count(record.get("response_length"))
    if length is None:
        return None
    mask = record.get("loss_mask")
    if mask is not None and not (isinstance(mask, list) and len(mask) == length and all(bit in (0, 1) for bit in mask)):
        problems.append("its loss_mask does not fit its response_length")
        mask = ()
    entries = record.get("weight_versions")
    if entries is not None and not isinstance(entries, list):
        problems.append("its weight_versions is no list")
    labels = tuple(label_number(entry) for entry in entries) if isinstance(entries, list) else ()
    metadata = record.get("metadata")
    tokens = record.get("tokens")
    return Sample(
        index=_count(record.get("index")),
        group_index=_count(record.get("group_index")),
        execution=_count(record.get("rollout_id")),
        tokens=tokens if isinstance(tokens, list) else (),
        response_length=length,
        mask=mask,
        removed=record.get("remove_sample") is True,
        labels=labels,
        life=read_trace(record.get("trace")),
        status=record["status"] if isinstance(record.get("status"), str) else None,
        recycled_since=_count(metadata.get("start_rollout_id")) if isinstance(metadata, dict) else None,
        problems=tuple(problems),
    )


def read_trace(trace: object) -> Life:
    """Read the calls and the passes through the queue out of a sample's ``trace`` (guide section 5.1)."""
    life = Life()
    events = trace.get("events") if isinstance(trace, dict) else None
    started: dict[Any, datetime | None] = {}
    for event in events if isinstance(events, list) else ():
        if not isinstance(event, dict):
            continue
        kind, name, moment = event.get("type"), event.get("name"), _time(event.get("ts"))
        if kind == "span_start" and name == _GROUP:
            life.passes += 1
            life.admitted = life.admitted or moment
        elif kind == "span_end" and name == _GROUP:
            life.enqueued = moment
        elif kind == "span_start" and name in _GENERATE:
            started[event.get("span_id")] = moment
        elif kind == "span_end" and name in _GENERATE:
            attributes = event.get("attrs")
            attributes = attributes if isinstance(attributes, dict) else {}
            if "error_type" not in attributes and "error_type" not in event:
                life.calls.append(_call(attributes, started.get(event.get("span_id")), moment))
    return life


def _call(attributes: Mapping[str, Any], started: datetime | None, ended: datetime | None) -> Call:
    aborted = attributes.get("finish_reason") == "abort"
    tokens = _count(attributes.get("completion_tokens"))
    if tokens is None and aborted and "completion_tokens" not in attributes:
        tokens = 0  # aborted before its first token
    return Call(tokens, aborted, started, ended)


def segments(sample: Sample) -> list[Segment]:
    """Divide the sampled tokens of a response by call, as far as the dump tells."""
    length = sample.response_length
    if not length:
        return []
    if sample.parts is not None:
        return list(sample.parts)
    calls, labels = sample.life.calls, sample.labels
    counts = [call.tokens for call in calls]
    known = [count for count in counts if count is not None]
    if not calls or len(known) < len(calls) or len(labels) > len(calls) or sum(known) > length:
        return [_whole(sample)]
    starts = [0, *accumulate(known)]
    ones = _ones(sample) if sum(known) < length else None
    found = []
    for at, (call, count) in enumerate(zip(calls, known, strict=True)):
        if not count:
            continue
        lo, hi = _label_of_call(labels, at, len(calls))
        single = sum(known) == length
        positions = tuple(ones[starts[at] : starts[at + 1]]) if ones is not None and len(ones) == sum(known) else None
        found.append(Segment(lo, hi, count, count, starts[at] if single else None, positions, call.started, call.ended))
    return found


def _ones(sample: Sample) -> list[int] | None:
    """Positions that the mask calls the policy's, in a response that also holds tool output."""
    if not sample.mask:
        return None
    return [position for position, bit in enumerate(sample.mask) if bit]


def _label_of_call(labels: Sequence[int | None], at: int, calls: int) -> tuple[int | None, int | None]:
    """Labels a call can have: its own where every call left one, else between those its neighbours can have.

    Labels never decrease. With ``missing`` entries too few, call ``at`` comes no earlier than entry ``at - missing``.
    """
    missing = calls - len(labels)
    if not missing:
        if labels[at] is not None:
            return labels[at], labels[at]
        before = [label for label in labels[:at] if label is not None]
        after = [label for label in labels[at:] if label is not None]
        return (before[-1] if before else None), (after[0] if after else None)
    lo = labels[at - missing] if at >= missing else None
    hi = labels[at] if at < len(labels) else None
    return lo, hi


def _whole(sample: Sample) -> Segment:
    """All tokens as one segment: which call made which is not recorded, some calls may even have made none."""
    length, labels = sample.response_length, sample.labels
    sampled = length if sample.mask is None else sum(sample.mask)
    lo = hi = None
    if labels and None not in labels:
        lo, hi = (
            min(label for label in labels if label is not None),
            max(label for label in labels if label is not None),
        )
    elif labels:
        lo, hi = labels[0], labels[-1]
    ends = [call.ended for call in sample.life.calls if call.ended]
    starts = [call.started for call in sample.life.calls if call.started]
    return Segment(lo, hi, sampled, length, 0, None, min(starts, default=None), max(ends, default=None))


def loss_tokens(part: Segment, parts: Sequence[Segment], mask: Sequence[int] | None, length: int) -> tuple[int, int]:
    """Loss tokens of one segment under a mask over the response (None = all ones; empty = unreadable)."""
    if mask is None:
        mask = [1] * length
    if len(mask) != length:
        return 0, part.tokens_hi
    if part.positions is not None:
        exact = sum(mask[position] for position in part.positions)
        return exact, exact
    if part.start is not None:
        exact = sum(mask[part.start : part.start + part.tokens_hi])
        return exact, exact
    total = sum(mask)
    others = sum(other.tokens_hi for other in parts) - part.tokens_hi
    return max(0, total - others), min(part.tokens_hi, total)


def _count(value: object) -> int | None:
    return value if is_whole(value) and 0 <= value < 1 << 62 else None


def _time(value: object) -> datetime | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1 << 33:
        return None
    return datetime.fromtimestamp(value, UTC)

"""From a label per token to runs of tokens (guide section 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from staleness_audit.readers.numbers import is_whole
from staleness_parsers.slime.calls import Life, Sample, Segment, label_number
from staleness_parsers.slime.calls import read_sample as read_slime_sample

_CONTEXT: Final = "-1"
_NOT_GIVEN: Final = {"", "unknown", "none"}


@dataclass(frozen=True)
class Member:
    """How a dumped sample hangs together with sessions and admissions.

    ``alias``: its session's other name, where it has one. ``group``: the worker's admission number. ``failed``:
    sessions of its earlier tries. ``truncated``: tokens were cut off its end before the dump (pitfall 9).
    """

    session: str
    alias: str | None
    instance: str | None
    group_index: int | None
    group: int | None
    failed: tuple[str, ...]
    truncated: bool


def read_sample(record: Mapping[str, Any]) -> Sample | None:
    """Read a sample's dict as slime does, with Dressage's labels and names; None if slime can't (guide 5.1)."""
    sample = read_slime_sample(record)
    if sample is None:
        return None
    metadata = as_dict(record.get("metadata"))
    sample = replace(sample, key=session_of(record), life=_life(record.get("trace")))
    size, length = len(sample.tokens), sample.response_length
    labels = token_labels(metadata, size)
    problems = list(sample.problems)
    if labels is None or size < length:
        if "full_versions" in metadata or "version_spans" in metadata:
            problems.append("its versions do not fit its tokens")
        ends = (metadata.get("dressage_start_token_version"), metadata.get("dressage_end_token_version"))
        known = tuple(label_number(end) for end in ends)
        # First and last label of the tokens: labels never decrease within a session.
        return replace(sample, labels=known if None not in known else sample.labels, problems=tuple(problems))
    response = labels[size - length :]
    parts = label_runs(response, sample.mask, upper_only=is_snapshot(metadata.get("proxy_extra_info")))
    if opaque := {str(label) for label in response if _is_opaque(label)}:
        problems.append(f"its labels {sorted(opaque)[:3]} are no numbers, so their versions are unknown")
    seen = dict.fromkeys(part.label_hi for part in parts if part.label_hi is not None)
    return replace(sample, labels=tuple(seen), parts=tuple(parts), problems=tuple(problems))


def read_member(record: Mapping[str, Any]) -> Member | None:
    """Read what links a dumped sample to sessions; None if it names no session."""
    session = session_of(record)
    if session is None:
        return None
    metadata = as_dict(record.get("metadata"))
    history = metadata.get("blackbox_failure_history")
    failed = [as_dict(entry).get("session_id") for entry in history] if isinstance(history, list) else []
    failed.append(metadata.get("last_failed_session_id"))
    return Member(
        session,
        as_text(record.get("session_id")),
        as_text(metadata.get("instance_id")),
        as_count(record.get("group_index")),
        as_count(metadata.get("dressage_return_async_group_id")),
        tuple(name for name in failed if isinstance(name, str) and name != session),
        bool(metadata.get("truncated")),
    )


def session_of(record: Mapping[str, Any]) -> str | None:
    """Name the session of a sample; None where nothing names one (its ``parent_traj_id`` may be an instance's id)."""
    metadata = as_dict(record.get("metadata"))
    parent = as_text(metadata.get("parent_traj_id"))
    if parent is not None and parent not in {as_text(metadata.get("instance_id")), str(record.get("group_index"))}:
        return parent
    return as_text(record.get("session_id")) or as_text(metadata.get("session_id"))


def token_labels(metadata: Mapping[str, Any], size: int) -> list[Any] | None:
    """Return a label per token from ``full_versions``, else from ``version_spans``; None if neither fits ``size``."""
    full = metadata.get("full_versions")
    if isinstance(full, list) and len(full) == size:
        return list(full)
    labels: list[Any] = []
    spans = metadata.get("version_spans")
    for span in spans if isinstance(spans, list) else ():
        start, end = (as_count(as_dict(span).get(name)) for name in ("start", "end"))
        if start != len(labels) or end is None or end > size:
            return None
        labels += [span.get("version")] * (end - start)
    return labels if labels and len(labels) == size else None


def label_runs(labels: Sequence[Any], mask: Sequence[int] | None, *, upper_only: bool) -> list[Segment]:
    """Gather sampled tokens of one label that follow each other, context between them left out.

    ``labels`` and ``mask`` (None = all ones, empty = unreadable) are over the same tokens. A token without a label is
    sampled for sure only if the mask says so; a token that the mask says was sampled is so whatever its label.
    ``upper_only``: labels are upper ends of what they should be.
    """
    runs: list[tuple[int | None, list[int], int]] = []
    for position, label in enumerate(labels):
        masked_in = bool(mask[position]) if mask else mask is None
        word = _word(label)
        if word == _CONTEXT and not (masked_in and mask):
            continue
        number = label_number(word)
        sure = masked_in or word not in _NOT_GIVEN
        if not runs or runs[-1][0] != number:
            runs.append((number, [], 0))
        runs[-1][1].append(position)
        runs[-1] = (number, runs[-1][1], runs[-1][2] + sure)
    return [_segment(number, places, sure, upper_only=upper_only) for number, places, sure in runs]


def is_snapshot(extra: object) -> bool:
    """Whether ``proxy_extra_info`` (or ``extra_info``) tells of the mode that gives a segment its last step's label."""
    found = as_dict(extra)
    return found.get("token_build_mode") == "snapshot" or str(found.get("alignment_method")).startswith("snapshot")


def _segment(number: int | None, places: list[int], sure: int, *, upper_only: bool) -> Segment:
    contiguous = places[-1] - places[0] + 1 == len(places)
    return Segment(
        None if upper_only else number,
        number,
        sure,
        len(places),
        places[0] if contiguous else None,
        None if contiguous else tuple(places),
    )


def _life(trace: object) -> Life:
    """Read the last pass of the sample: earlier ones were other sessions (guide 5.1)."""
    events = list(_spans(trace))
    starts = [moment for kind, moment in events if kind == "span_start"]
    admitted = starts[-1] if starts else None
    ends = [moment for kind, moment in events if kind == "span_end" and admitted is not None and moment >= admitted]
    return Life(admitted=admitted, enqueued=ends[-1] if ends else None, passes=min(len(starts), 1))


def _spans(trace: object) -> Iterator[tuple[object, datetime]]:
    events = as_dict(trace).get("events")
    for event in events if isinstance(events, list) else ():
        moment = time_of(as_dict(event).get("ts"))
        if moment is not None and event.get("name") == "generate_and_rm_group":
            yield event.get("type"), moment


def time_of(value: object) -> datetime | None:
    """Turn seconds since the epoch into UTC; None if they are none."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1 << 33:
        return None
    return datetime.fromtimestamp(value, UTC)


def _word(label: object) -> str:
    return str("" if label is None else label).strip().lower()


def _is_opaque(label: object) -> bool:
    word = _word(label)
    return word != _CONTEXT and word not in _NOT_GIVEN and label_number(word) is None


def as_dict(value: object) -> dict[str, Any]:
    """Return a dict as it is, anything else as an empty one."""
    return value if isinstance(value, dict) else {}


def as_text(value: object) -> str | None:
    """Return a string that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def as_count(value: object) -> int | None:
    """Return a whole number from 0 on, else None."""
    return value if is_whole(value) and 0 <= value < 1 << 62 else None

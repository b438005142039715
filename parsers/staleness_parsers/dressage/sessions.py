"""Session and error payloads, staged as ``dressage_sessions`` and ``dressage_spans`` (guide sections 5.2 and 5.3).

``labels`` of a session are those of its spans, which are opened only for sessions that reached no dump.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from operator import eq
from typing import Any, Final

import orjson
import polars as pl

from staleness_audit.discovery import RunFile, RunFiles
from staleness_audit.errors import UnreadableInput
from staleness_audit.parser import Sink, Unit
from staleness_audit.readers.lines import BLOCK_BYTES
from staleness_audit.readers.numbers import is_whole
from staleness_parsers.dressage.tokens import (
    as_count,
    as_dict,
    as_text,
    is_snapshot,
    label_runs,
    read_sample,
    time_of,
    token_labels,
)

REJECTIONS: Final = ("partial_rollout_staleness_exceeded", "generation_preempted", "trajectory_version_changed")
"""Why the proxy stops a session for its versions (guide section 4, rules 3 and 4)."""
UNREAD: Final = "unread"
SESSIONS: Final[dict[str, Any]] = {
    "session": pl.String,
    "instance": pl.String,
    "group_index": pl.Int64,
    "group": pl.Int64,
    "finished": pl.Boolean,
    "rejection": pl.String,
    "prompt_tokens": pl.Int64,
    "ended": pl.Datetime("us", "UTC"),
    "labels": pl.List(pl.Int64),
    "source": pl.String,
}
SPANS: Final[dict[str, Any]] = {
    "session": pl.String,
    "span_index": pl.Int64,
    "tokens_lo": pl.Int64,
    "tokens_hi": pl.Int64,
    "loss_lo": pl.Int64,
    "loss_hi": pl.Int64,
    "label_lo": pl.Int64,
    "label_hi": pl.Int64,
    "source": pl.String,
}
_PER_UNIT: Final = 64


def files(run: RunFiles) -> list[RunFile]:
    """Payloads of sessions: ``session.json`` and ``error.json``; ``samples/N.json`` only where a session.json lacks."""
    found = [
        file for name in ("session.json", "error.json") for file in run.named(partial(eq, name)) if "/" in file.name
    ]
    homes = {f"{_home(file)}/samples" for file in found}
    alone = (file for file in run.named(_is_sample) if (home := _home(file)) not in homes and home.endswith("/samples"))
    return [*found, *alone]


def _is_sample(name: str) -> bool:
    return name.endswith(".json") and name.removesuffix(".json").isdigit()


def units(run: RunFiles) -> Iterator[Unit]:
    """Yield units of some dozens of sessions each: those that came one after the other, so that new ones move none."""
    found = sorted(files(run), key=lambda file: (file.changed, file.name))
    for at in range(0, len(found), _PER_UNIT):
        together = sorted(file.source for file in found[at : at + _PER_UNIT])
        yield Unit("sessions", tuple(run.whole(source) for source in together))


def read_sessions(unit: Unit, run: RunFiles, sink: Sink) -> None:
    """Stage what each payload says of its session; damage opens the fates, since none of this is training."""
    sessions: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []
    for piece in unit.pieces:
        try:
            value = _load(run, piece.source)
        except (ValueError, TypeError, OSError, EOFError, UnreadableInput) as error:
            message = f"Payload of a session not read ({error}); what became of that session is open."
            sink.diagnose("warning", "payload-unreadable", message, source=piece.source, opens="fates")
            _unread(run.file(piece.source), sessions, spans)
            continue
        file = run.file(piece.source)
        if file.name.endswith("/error.json"):
            sessions.append(_error(value, file))
        elif file.name.endswith("/session.json"):
            _finished(value, file, sessions, spans, sink)
        else:
            _sample(value, file, sessions, spans)
    labels: dict[str, set[int]] = {}
    for span in spans:
        labels.setdefault(span["source"], set()).update(
            label for end in ("label_lo", "label_hi") if (label := span.get(end)) is not None
        )
    for session in sessions:
        session["labels"] = sorted(labels.get(session["source"], ()))
    sink.write("dressage_sessions", _frame(sessions, SESSIONS))
    sink.write("dressage_spans", _frame(spans, SPANS))


def _unread(file: RunFile, sessions: list[dict[str, Any]], spans: list[dict[str, Any]]) -> None:
    """Keep what the path of an unreadable payload says: which session it is, and whether that finished."""
    home = _home(file).removesuffix("/samples")
    instance, _, name = home.rpartition("/")
    finished = not file.name.endswith("/error.json")
    row = {"session": name, "instance": instance.rpartition("/")[2] or None, "source": file.source}
    sessions.append({**row, "finished": finished, "rejection": None if finished else UNREAD})
    if finished:
        spans.append({"session": name, "span_index": 0, "tokens_lo": 0, "source": file.source})


def _load(run: RunFiles, source: str) -> dict[str, Any]:
    parts = []
    with run.open(source) as stream:
        while part := stream.read(BLOCK_BYTES):
            parts.append(part)
    value = orjson.loads(b"".join(parts))
    if not isinstance(value, dict):
        raise TypeError("it is no JSON object")
    return value


def _frame(rows: list[dict[str, Any]], schema: Mapping[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=dict(schema))


def _finished(
    value: dict[str, Any], file: RunFile, sessions: list[dict[str, Any]], spans: list[dict[str, Any]], sink: Sink
) -> None:
    data = value.get("data")
    segments = [part for part in data if isinstance(part, dict)] if isinstance(data, list) else []
    segments.sort(key=lambda part: part["segment_index"] if isinstance(part.get("segment_index"), int) else 0)
    if not segments:
        message = "A session without segments: its tokens are unknown."
        sink.diagnose("note", "session-empty", message, source=file.source)
    first: dict[str, Any] = segments[0] if segments else {}
    name = str(first.get("session_id") or _folder(file))
    times = [moment for part in segments if (moment := time_of(part.get("timestamp")))]
    sessions.append(
        {
            "session": name,
            "instance": as_text(first.get("instance_id")),
            "finished": True,
            "ended": max(times, default=None),
            "source": file.source,
        }
    )
    at = 0
    for part in segments:
        for row in _segment_spans(part):
            spans.append({"session": name, "span_index": at, "source": file.source, **row})
            at += 1
    if not at:
        spans.append({"session": name, "span_index": 0, "tokens_lo": 0, "source": file.source})


def _segment_spans(part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the runs of a segment; of one without usable labels all its output tokens as one."""
    tokens, mask = part.get("tokens"), part.get("full_loss_mask")
    size = len(tokens) if isinstance(tokens, list) else 0
    usable = isinstance(mask, list) and len(mask) == size and all(bit in (0, 1) for bit in mask)
    labels = token_labels(part, size) if size else None
    if labels is not None:
        bits: list[int] = mask if usable and isinstance(mask, list) else []
        for run in label_runs(labels, bits, upper_only=is_snapshot(part.get("extra_info"))):
            places = run.positions or range(run.start or 0, (run.start or 0) + run.tokens_hi)
            loss = sum(bits[place] for place in places) if bits else None
            yield {
                "tokens_lo": run.tokens_lo,
                "tokens_hi": run.tokens_hi,
                "loss_lo": 0 if loss is None else loss,
                "loss_hi": run.tokens_hi if loss is None else loss,
                "label_lo": run.label_lo,
                "label_hi": run.label_hi,
            }
        return
    ones = sum(mask) if usable and isinstance(mask, list) else 0
    counted = as_count(as_dict(part.get("extra_info")).get("output_token_count"))
    exact = counted if counted is not None and counted >= ones else None
    yield {"tokens_lo": exact or ones, "tokens_hi": exact if exact is not None else size or None, "loss_hi": None}


def _sample(value: dict[str, Any], file: RunFile, sessions: list[dict[str, Any]], spans: list[dict[str, Any]]) -> None:
    """Read a ``samples/N.json``, which has the shape of a dumped sample (its session.json was not written)."""
    name = as_text(value.get("session_id")) or file.name.split("/")[-3]
    sessions.append(
        {"session": name, "instance": as_text(value.get("instance_id")), "finished": True, "source": file.source}
    )
    sample = read_sample(value)
    for at, run in enumerate(sample.parts or () if sample else ()):
        row = {"tokens_lo": run.tokens_lo, "tokens_hi": run.tokens_hi, "loss_lo": 0, "loss_hi": run.tokens_hi}
        labels = {"label_lo": run.label_lo, "label_hi": run.label_hi}
        index = value.get("segment_index")
        index = index if is_whole(index) and 0 <= index < 1 << 11 else 0
        spans.append({"session": name, "span_index": (index << 20) + at, "source": file.source, **row, **labels})


def _error(value: dict[str, Any], file: RunFile) -> dict[str, Any]:
    sample = as_dict(value.get("sample"))
    metadata = as_dict(sample.get("metadata"))
    told = orjson.dumps([value.get("error"), value.get("http")]).decode()
    return {
        "session": as_text(value.get("session_id")) or _folder(file),
        "instance": as_text(value.get("instance_id")),
        "group_index": as_count(sample.get("group_index")),
        "group": as_count(metadata.get("dressage_async_group_id")),
        "finished": False,
        "rejection": next((reason for reason in REJECTIONS if reason in told), None),
        "ended": time_of(value.get("timestamp")),
        "source": file.source,
    }


def _home(file: RunFile) -> str:
    return file.name.rpartition("/")[0]


def _folder(file: RunFile) -> str:
    return _home(file).rpartition("/")[2]

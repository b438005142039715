"""Reading console logs into the staged table ``slime_lines``: one row per telling line (guide section 5.4).

Times are local and name no zone; they stay naive here (``finish`` finds the offset where other files betray it).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

import orjson
import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink, Unit
from staleness_audit.readers.console import (
    Messages,
    decimal_of,
    number_of,
    parse_dict,
    parse_local_time,
    stage_lines,
    undecorate,
)
from staleness_audit.readers.lines import telling_lines
from staleness_audit.readers.numbers import is_figure

LINES: Final[dict[str, Any]] = {
    "source": pl.String,
    "line": pl.Int64,
    "local": pl.Datetime("us"),
    "actor": pl.String,
    "pid": pl.Int64,
    "kind": pl.String,
    "rollout": pl.Int64,
    "number": pl.Float64,
    "count": pl.Int64,
    "text": pl.String,
}

_TELLING: Final = (
    r"Timer (?:train_wait|train|update_weights) |fully-async|(?:perf|step|eval) \d+: \{|Save debug "
    r"|partial samples|async rollout|No updatable|Rollout completed in|No progress for"
)
"""What every line that matters contains somewhere."""
_TIMERS: Final = ("train_wait", "train", "update_weights")
_WORTH: Final = re.compile(
    r"staleness/|dressage/|rollout/num_(?:trajectories|segments)$"  # of Dressage, which stands on slime
    r"|rollout/(staleness|dynamic_filter|fully_async|response_len)/|rollout/truncated_ratio$|train/global_batch_size$|train/step$"
    r"|perf/(rollout_time|train_wait_time|train_time|actor_train_time|actor_train_tok_per_s|step_time|update_weights_time|wait_time_ratio)$"
)
"""Metrics that are kept: those about staleness, sizes and time."""


_WITH_METRICS: Final = {"perf_rollout", "perf_train", "step", "critic_step"}


@lru_cache(maxsize=4096)
def worth_keeping(tag: str) -> bool:
    """Whether a metric says something the audit compares or uses."""
    return _WORTH.match(tag) is not None


Row = dict[str, Any]
_MESSAGES: Final = Messages(
    (
        ("timer", rf"Timer (?P<text>{'|'.join(_TIMERS)}) (?:start|end \(elapsed: (?P<number>[\d.]+)s\))$"),
        ("perf", r"perf (?P<id>\d+): (?P<text>\{.*)$"),
        ("step", r"step (?P<id>\d+): (?P<text>\{.*)$"),
        ("critic_step", r"critic-step (?P<id>\d+): (?P<text>\{.*)$"),
        ("eval", r"eval (?P<id>\d+): \{"),
        ("collect", r"fully-async rollout (?P<id>\d+): target=(?P<count>\d+) queue_warm=(?P<number>\d+)$"),
        ("waiting", r"fully-async rollout (?P<id>\d+): collected (?P<count>\d+)/\d+"),
        (
            "collected",
            r"fully-async rollout (?P<id>\d+): done in (?P<number>[\d.]+)s"
            r"(?:, kept=\d+ dropped=(?P<count>\d+)(?: \((?P<text>.*?)\))?)?, queue_left=\d+$",
        ),
        (
            "collected_pool",
            r"fully-async rollout (?P<id>\d+): took (?P<count>\d+) groups after (?P<number>[\d.]+)s;",
        ),
        ("worker", r"starting fully-async rollout worker"),
        ("group_lost", r"fully-async task crashed: (?P<text>.*)$"),
        ("group_lost", r"fully-async: generate_and_rm_group returned (?P<text>.*?), expected"),
        ("group_lost", r"fully-async: failed to requeue aborted group"),
        ("group_failed", r"fully-async: dropping a failed rollout"),
        ("saved_rollout", r"Save debug rollout data to (?P<text>.*)$"),
        ("saved_train", r"Save debug train data .*?to (?P<text>\S.*)$"),
        ("partial", r"Collected (?P<count>\d+) partial samples into the data buffer"),
        ("sync_skipped", r"No updatable SGLang engines are running; skip weight update"),
        ("collect_old", r"Starting async rollout generation for (?P<count>\d+) groups"),
        ("collected_old", r"Rollout completed in (?P<number>[\d.]+?)\s?s!"),
        ("waiting", r"Warning: No progress for (?P<number>[\d.]+)s\."),
    )
)
_SAVED_ID: Final = re.compile(r"(?P<eval>eval_)?(?<!\d)(?P<id>\d{1,9})(?=\D*$)")
_ENDS_BY_ITSELF: Final = re.compile(r"[)}]$")


def read_console(unit: Unit, run: RunFiles, sink: Sink) -> None:
    """Stage the telling lines of a piece of a console log."""
    piece = unit.pieces[0]
    stage_lines(_rows(run, piece, sink), sink, "slime_lines", LINES, piece.source)


def _rows(run: RunFiles, piece: Piece, sink: Sink) -> Iterator[Row]:
    for line, raw, cut in telling_lines(run, piece, _TELLING):
        if len(raw) > 1 << 20:
            continue
        row = _read_line(raw)
        if cut and not (row and _ENDS_BY_ITSELF.search(raw.rstrip())):
            sink.diagnose(
                "note",
                "cut-line",
                "The last line is cut: what it would have said did not happen.",
                source=piece.source,
                line=line,
            )
            continue
        if row is None:
            continue
        if row["kind"].endswith("_damaged"):
            sink.diagnose(
                "warning",
                "metrics-unreadable",
                "The metrics of this line cannot be read; the step itself counts.",
                source=piece.source,
                line=line,
            )
        yield {"source": piece.source, "line": line, **row}


def _read_line(raw: str) -> Row | None:
    line = undecorate(raw)
    local, text = parse_local_time(line.text)
    message = text.split(" - ", 1)[-1] if local else text
    told = _MESSAGES.match(message.rstrip())
    if told is None:
        return None
    kind, groups = told
    row: Row = {"local": local, "actor": line.actor, "pid": line.pid, "kind": kind, "text": groups.get("text")}
    if (number := groups.get("number")) is not None:
        row["number"] = decimal_of(number)
    for name, group in (("rollout", "id"), ("count", "count")):
        if (found := groups.get(group)) is not None:
            row[name] = number_of(found)
    if kind == "timer":
        row |= {"kind": f"{row['text']}_{'end' if number else 'start'}", "text": None}
    elif kind in {"perf", "step", "critic_step"}:
        row |= _metrics(kind, str(row["text"]))
    elif kind in {"saved_rollout", "saved_train"}:
        _read_path(row)
    return row


def _metrics(kind: str, text: str) -> Row:
    values = parse_dict(text)
    if values is None:
        return {"kind": f"{kind}_damaged", "text": "{}"}
    if kind == "perf":
        # Two lines share the shape: the rollout side names its own time, the train side the trainer's.
        train_side = any(key.startswith(("perf/train", "perf/step_time", "perf/actor_train")) for key in values)
        kind = "perf_train" if train_side else "perf_rollout"
    kept = {
        key: value
        for key, value in values.items()
        if worth_keeping(key) and isinstance(value, (int, float)) and is_figure(value)
    }
    return {"kind": kind, "text": orjson.dumps(kept).decode()}


def _read_path(row: Row) -> None:
    """Take the rollout id out of the name of a saved file (never following the path)."""
    found = _SAVED_ID.search(str(row["text"]).rsplit("/", 1)[-1])
    if found:
        row["rollout"] = number_of(found["id"])
        if found["eval"]:
            row["kind"] = "saved_eval"


def metrics_of(
    rows: Iterator[Mapping[str, Any]] | list[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], dict[str, float]]]:
    """Pair rows that carry metrics with their decoded dicts."""
    for row in rows:
        if row["kind"] in _WITH_METRICS and row["text"]:
            yield row, orjson.loads(row["text"])

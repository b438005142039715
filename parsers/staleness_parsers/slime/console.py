"""Reading console logs into the staged table ``slime_lines``: one row per telling line (guide section 5.4).

Times are local and name no zone; they stay naive here (``finish`` finds the offset where other files betray it).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import orjson
import polars as pl

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import Sink, Unit
from staleness_audit.readers.console import parse_dict, parse_local_time, undecorate
from staleness_audit.readers.lines import DamagedStream, numbered_lines

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

_CHEAP: Final = re.compile(
    r"Timer |fully-async|perf \d|step \d|eval \d|Save debug |partial samples|async rollout|No updatable"
    r"|Rollout completed in|No progress for"
)
"""What every line that matters contains somewhere."""
_TIMERS: Final = {"train_wait", "train", "update_weights"}
_WORTH: Final = re.compile(
    r"staleness/|dressage/|rollout/num_(?:trajectories|segments)$"  # of Dressage, which stands on slime
    r"|rollout/(staleness|dynamic_filter|fully_async|response_len)/|rollout/truncated_ratio$|train/global_batch_size$|train/step$"
    r"|perf/(rollout_time|train_wait_time|train_time|actor_train_time|actor_train_tok_per_s|step_time|update_weights_time|wait_time_ratio)$"
)
"""Metrics that are kept: those about staleness, sizes and time."""


_WITH_METRICS: Final = {"perf_rollout", "perf_train", "step", "critic_step"}


def worth_keeping(tag: str) -> bool:
    """Whether a metric says something the audit compares or uses."""
    return _WORTH.match(tag) is not None


Row = dict[str, Any]
_Maker = Callable[[re.Match[str]], Row | None]


def _metrics(kind: str) -> _Maker:
    def make(found: re.Match[str]) -> Row:
        values = parse_dict(found["dict"])
        name = kind
        if values is not None and kind == "perf":
            # Two lines share the shape: the rollout side names its own time, the train side the trainer's.
            train_side = any(key.startswith(("perf/train", "perf/step_time", "perf/actor_train")) for key in values)
            name = "perf_train" if train_side else "perf_rollout"
        kept = {
            key: value
            for key, value in (values or {}).items()
            if worth_keeping(key) and isinstance(value, (int, float)) and math.isfinite(value)
        }
        return {
            "kind": name if values is not None else f"{kind}_damaged",
            "rollout": int(found["id"]),
            "text": orjson.dumps(kept).decode(),
        }

    return make


def _plain(kind: str) -> _Maker:
    def make(found: re.Match[str]) -> Row:
        groups = found.groupdict()
        return {
            "kind": kind,
            "rollout": int(groups["id"]) if groups.get("id") else None,
            "number": float(groups["number"]) if groups.get("number") else None,
            "count": int(groups["count"]) if groups.get("count") else None,
            "text": groups.get("text"),
        }

    return make


def _timer(found: re.Match[str]) -> Row | None:
    if found["name"] not in _TIMERS:
        return None
    kind = "start" if found["edge"] == "start" else "end"
    return {"kind": f"{found['name']}_{kind}", "number": float(found["number"]) if found["number"] else None}


_PATTERNS: Final[tuple[tuple[re.Pattern[str], _Maker], ...]] = tuple(
    (re.compile(pattern), maker)
    for pattern, maker in (
        (r"Timer (?P<name>\w+) (?P<edge>start|end \(elapsed: (?P<number>[\d.]+)s\))$", _timer),
        (r"perf (?P<id>\d+): (?P<dict>\{.*)$", _metrics("perf")),
        (r"step (?P<id>\d+): (?P<dict>\{.*)$", _metrics("step")),
        (r"critic-step (?P<id>\d+): (?P<dict>\{.*)$", _metrics("critic_step")),
        (r"eval (?P<id>\d+): \{", _plain("eval")),
        (r"fully-async rollout (?P<id>\d+): target=(?P<count>\d+) queue_warm=(?P<number>\d+)$", _plain("collect")),
        (r"fully-async rollout (?P<id>\d+): collected (?P<count>\d+)/\d+", _plain("waiting")),
        (
            r"fully-async rollout (?P<id>\d+): done in (?P<number>[\d.]+)s"
            r"(?:, kept=\d+ dropped=(?P<count>\d+)(?: \((?P<text>.*?)\))?)?, queue_left=\d+$",
            _plain("collected"),
        ),
        (
            r"fully-async rollout (?P<id>\d+): took (?P<count>\d+) groups after (?P<number>[\d.]+)s;",
            _plain("collected_pool"),
        ),
        (r"starting fully-async rollout worker", _plain("worker")),
        (r"fully-async task crashed: (?P<text>.*)$", _plain("group_lost")),
        (r"fully-async: generate_and_rm_group returned (?P<text>.*?), expected", _plain("group_lost")),
        (r"fully-async: failed to requeue aborted group", _plain("group_lost")),
        (r"fully-async: dropping a failed rollout", _plain("group_failed")),
        (r"Save debug rollout data to (?P<text>.*)$", _plain("saved_rollout")),
        (r"Save debug train data .*?to (?P<text>\S.*)$", _plain("saved_train")),
        (r"Collected (?P<count>\d+) partial samples into the data buffer", _plain("partial")),
        (r"No updatable SGLang engines are running; skip weight update", _plain("sync_skipped")),
        (r"Starting async rollout generation for (?P<count>\d+) groups", _plain("collect_old")),
        (r"Rollout completed in (?P<number>[\d.]+?)\s?s!", _plain("collected_old")),
        (r"Warning: No progress for (?P<number>[\d.]+)s\.", _plain("waiting")),
    )
)
_SAVED_ID: Final = re.compile(r"(?P<eval>eval_)?(?P<id>\d+)(?=\D*$)")
_ENDS_BY_ITSELF: Final = re.compile(r"[)}]$")


def read_console(unit: Unit, run: RunFiles, sink: Sink) -> None:
    """Stage the telling lines of a piece of a console log."""
    piece = unit.pieces[0]
    rows: list[Row] = []
    try:
        for line, raw, cut in numbered_lines(run, piece):
            if len(raw) > 1 << 20 or not _CHEAP.search(raw):
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
            rows.append({"source": piece.source, "line": line, **row})
            if len(rows) >= 1 << 16:
                sink.write("slime_lines", _frame(rows))
                rows = []
    except DamagedStream as damage:
        sink.diagnose(
            "error",
            "console-damaged",
            f"Console log not read to its end: {damage}; restore it.",
            source=piece.source,
            line=damage.line,
            opens="training",
        )
    sink.write("slime_lines", _frame(rows))


def _frame(rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame([{name: row.get(name) for name in LINES} for row in rows], schema=dict(LINES))


def _read_line(raw: str) -> Row | None:
    line = undecorate(raw)
    local, text = parse_local_time(line.text)
    message = text.split(" - ", 1)[-1] if local else text
    for pattern, make in _PATTERNS:
        if found := pattern.match(message.rstrip()):
            row = make(found)
            if row is None:
                return None
            if row["kind"] in {"saved_rollout", "saved_train"}:
                _read_path(row)
            return {"local": local, "actor": line.actor, "pid": line.pid, **row}
    return None


def _read_path(row: Row) -> None:
    """Take the rollout id out of the name of a saved file (never following the path)."""
    found = _SAVED_ID.search(str(row["text"]).rsplit("/", 1)[-1])
    if found:
        row["rollout"] = int(found["id"])
        if found["eval"]:
            row["kind"] = "saved_eval"


def metrics_of(
    rows: Iterator[Mapping[str, Any]] | list[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], dict[str, float]]]:
    """Pair rows that carry metrics with their decoded dicts."""
    for row in rows:
        if row["kind"] in _WITH_METRICS and row["text"]:
            yield row, orjson.loads(row["text"])

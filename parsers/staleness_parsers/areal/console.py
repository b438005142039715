"""Reading the trainer's console log: task lines, step lines, restarts, and the statistics printed per step (guide 5.4).

Times are local and name no zone; they are staged as if they were UTC and moved when the join has found the zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.console import number_of, undecorate
from staleness_audit.readers.lines import DamagedStream, telling_lines
from staleness_audit.readers.numbers import is_figure
from staleness_parsers.areal.scalars import SCALARS, short_name

LOG = pa.schema(
    [
        ("source", pa.string()),
        ("line", pa.int64()),
        ("us", pa.int64()),
        ("kind", pa.string()),
        ("number", pa.int64()),
        ("rank", pa.int64()),
        ("controller", pa.bool_()),
        ("role", pa.string()),
        ("text", pa.string()),
    ]
)
"""Staged ``areal_log``: a line that means something. ``us``: local time in microseconds since 1970; ``number``: the
task id, the step, or a counter."""

RETRIES = pa.schema([("source", pa.string()), ("line", pa.int64()), ("us", pa.int64())])

_LINE = re.compile(
    r"(?:\[(?P<tag>[\w-]+)\s*\]\s+)?(?:\(AReaL\) )?(?P<time>\d{8}-\d\d:\d\d:\d\d\.\d{3}) "
    r"(?P<logger>.+?) (?:DEBUG|INFO|WARNING|ERROR|CRITICAL): (?P<text>.*)"
)
_TAG = re.compile(r"(?:\[(?:main|master)\s*\]\s)?\s*")
"""What stands before a row of the table: in ``merged.log`` the trainer's name."""
_KINDS: dict[str, re.Pattern[str]] = {
    "submitted": re.compile(r"AsyncTaskRunner: Submitted task (?P<number>\d+)\. Running: \d+"),
    "completed": re.compile(r"AsyncTaskRunner: Completed task (?P<number>\d+)\. Running: \d+"),
    "accept": re.compile(r"Finish and accept rollout\..*?accepted: (?P<number>\d+),"),
    "reject": re.compile(r"Finish but reject rollout\..*?rejected: (?P<number>\d+)\."),
    "failed": re.compile(r"Workflow execution failed: "),
    "timeout": re.compile(r"Rollout timed out after [\d.]+s"),
    "old_submit": re.compile(r"Submit rollout rid (?P<number>\d+)\. Submit: \d+, running: \d+, accepted: \d+\."),
    "old_finish": re.compile(
        r"Finish rollout (?P<number>\d+)\. Submit: \d+, running: \d+, accepted: (?P<text>\d{1,18})\."
    ),
    "old_accept": re.compile(r"Finish and accept rollout (?P<number>\d+)\. "),
    "old_reject": re.compile(r"Finish but reject rollout (?P<number>\d+)\. "),
    "old_kept": re.compile(r"Accept rollout result"),
    "old_refused": re.compile(r"Rollout is rejected\."),
    "done": re.compile(r"Epoch \d+/\d+ Step \d+/\d+ Train step (?P<number>\d+)/\d+ done\."),
    "recovering": re.compile(r"Recovering from StepInfo\(.*?global_step=(?P<number>\d+)[,)]"),
    "fresh": re.compile(r"Resume info not found at "),
    "tracer": re.compile(r"Configured global PerfTracer: .*?rank=(?P<rank>\d+)(?:, role=(?P<role>[\w-]+))?"),
    "retry": re.compile(r"HTTP request to \S+ failed with .*\(attempt \d+/\d+\)"),
    "shrunk": re.compile(r"GroupedRolloutWorkflow: (?P<number>\d+)/\d+ trajectories returned None"),
    "undumped": re.compile(r"Failed to dump trajectory for task (?P<number>\d+): (?P<text>.*)"),
}
_TELLING = (
    "AsyncTaskRunner|Finish |Submit rollout rid|Accept rollout result|Rollout is rejected"
    "|Workflow execution|Rollout timed|Train step |Recovering|Resume info"
    "|PerfTracer|HTTP request|GroupedRollout|Failed to dump|│"
)
OLD_KINDS = frozenset({"old_submit", "old_finish", "old_accept", "old_reject", "old_kept", "old_refused"})
"""Lines of v0.3 and v0.4, which name the task they speak of but not always the rank."""
_TASK_KINDS = OLD_KINDS | {"submitted", "completed", "accept", "reject", "failed", "timeout"}
_RANK = re.compile(r"[Rr]ank[ =]?(\d+)")
BEGINS = re.compile(
    rb"^(?:\x1b\[[\d;]*m|\[[\w-]+\s*\] +|\(AReaL\) ?| )*\d{8}-\d\d:\d\d:\d\d\.\d{3} \w+ INFO: "
    rb"Epoch \d+/\d+ Step \d+/\d+ Train step \d+/\d+ done\.(?:\x1b\[[\d;]*m)*\r?$",
    re.MULTILINE,
)
"""The line of a finished step, to which the table behind it belongs: from one on nothing before it matters."""


@contextmanager
def _up_to_damage(piece: Piece, sink: Sink) -> Iterator[None]:
    """Say where a log is damaged; what was read before that stays."""
    try:
        yield
    except DamagedStream as damage:
        sink.diagnose(
            "error",
            "console-damaged",
            f"From here on the log is damaged ({damage}); restore it from a copy.",
            source=piece.source,
            line=damage.line,
            opens="training",
        )


def read_console(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage a piece of the log of one process (or of all ranks that share a terminal)."""
    rows: list[dict[str, Any]] = []
    scalars: list[dict[str, Any]] = []
    step: int | None = None
    commit = 0
    with _up_to_damage(piece, sink):
        for line, raw, cut in telling_lines(run, piece, _TELLING):
            plain = undecorate(raw).text
            if (tag := _TAG.match(plain)) and plain.startswith("│", tag.end()):
                if step is not None and not cut:
                    scalars.extend(
                        _cells(
                            plain[tag.end() :], {"source": piece.source, "line": line, "step": step, "commit": commit}
                        )
                    )
                continue
            row = _row(plain)
            if row is None:
                continue
            rows.append({**row, "source": piece.source, "line": line})
            if row["kind"] == "done":
                step, commit = row["number"] - 1, line
    if rows:
        sink.write("areal_log", pa.Table.from_pylist(rows, schema=LOG))
    if scalars:
        sink.write("areal_scalars", pa.Table.from_pylist(scalars, schema=SCALARS))


def read_retries(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage as ``areal_retries`` when the rollout workers of a controller sent a request again (local time)."""
    rows: list[dict[str, Any]] = []
    with _up_to_damage(piece, sink):
        for line, raw, _ in telling_lines(run, piece, "HTTP request"):
            row = _row(undecorate(raw).text)
            if row is not None and row["kind"] == "retry":
                rows.append({"source": piece.source, "line": line, "us": row["us"]})
    if rows:
        sink.write("areal_retries", pa.Table.from_pylist(rows, schema=RETRIES))


def _row(plain: str) -> dict[str, Any] | None:
    found = _LINE.search(plain)
    if found is None:
        return None
    text = found["text"]
    for kind, pattern in _KINDS.items():
        match = pattern.match(text)
        if match is None:
            continue
        if kind in _TASK_KINDS and found["tag"] not in (None, "main", "master"):
            return None  # a worker's own counters, which repeat the controller's
        groups = match.groupdict()
        if groups.get("role") not in (None, "master"):
            return None  # a worker's tracer, which has a clock and a beginning of its own
        rank = groups.get("rank") or (_RANK.search(found["logger"]) or [None, None])[1]
        return {
            "us": _local(found["time"]),
            "kind": kind,
            "number": None if groups.get("number") is None else number_of(groups["number"]),
            "rank": number_of(rank or "0"),
            "controller": "Controller" in found["logger"],
            "role": groups.get("role"),
            "text": groups.get("text"),
        }
    return None


def _local(text: str) -> int | None:
    """``20261129-15:56:48.171`` in microseconds; None if it is no date."""
    day = _day(text[:8])
    hour, minute, second, milli = int(text[9:11]), int(text[12:14]), int(text[15:17]), int(text[18:21])
    return None if day is None else day + (((hour * 60 + minute) * 60 + second) * 1000 + milli) * 1000


@lru_cache(maxsize=64)
def _day(text: str) -> int | None:
    try:
        return int(datetime.strptime(text, "%Y%m%d").replace(tzinfo=UTC).timestamp()) * 1_000_000
    except ValueError:
        return None


def _cells(plain: str, place: dict[str, Any]) -> list[dict[str, Any]]:
    """Key and value pairs of one row of the table of statistics."""
    cells = [cell.strip() for cell in plain.strip().strip("│").split("│")]
    found = []
    for key, text in zip(cells[::2], cells[1::2], strict=False):
        name = short_name(key)
        try:
            value = float(text) if name else None
        except ValueError:
            continue
        if name is not None and value is not None and is_figure(value):
            found.append({**place, "name": name, "tag": key, "value": value, "wall": None, "printed": True})
    return found

"""Reading console logs: the few messages that matter, with the time of day they carry (guide section 5.3).

Lines say ``HH:MM:SS LEVEL message`` in local time without a date, or are JSON objects with a time stamp. Here the day
is counted from the file's first line (a fall by more than half a day is a midnight); ``clocks`` gives it a date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.console import number_of, strip_ansi, undecorate
from staleness_audit.readers.lines import DamagedStream, numbered_lines

LOG = pa.schema(
    [
        ("attempt", pa.int32()),
        ("launch", pa.int32()),
        ("process", pa.string()),
        ("source", pa.string()),
        ("line", pa.int64()),
        ("clock", pa.float64()),
        ("dated", pa.bool_()),
        ("kind", pa.string()),
        ("number", pa.int64()),
        ("count", pa.int64()),
        ("running", pa.int64()),
        ("version", pa.int64()),
        ("word", pa.string()),
        ("what", pa.string()),
    ]
)
"""Staged rows of ``prime_log``. ``clock``: epoch seconds if ``dated``, else seconds of local time since the midnight
before the file's first line. ``number`` is a step or version, ``count`` and ``running`` are counts, ``word`` a name;
``version``: the weights that a step line of an old release says were published."""

_LINE = re.compile(
    r"(?P<h>[01]\d|2[0-3]):(?P<m>[0-5]\d):(?P<s>[0-5]\d)\s+"
    r"\[?(?P<level>SUCCESS|WARNING|INFO|DEBUG|ERROR|CRITICAL|TRACE)\]?\s+(?P<text>.*)$"
)
_LAUNCHER = re.compile(r"^\[[A-Za-z_]+\d*\]:\s?")
_PLACE = re.compile(r"\s\[[\w./-]+::\d+\]\s*$")
_BAR = re.compile(r"\d%\|.*?(?=\d\d:\d\d:\d\d\s+\[?[A-Z]{4,8}\]?\s)")
"""Old logs draw progress bars, and a message starts right behind one on the same line."""

MAX_MESSAGE = 4000

_N = r"(?P<number>\d{1,9})"
_MESSAGES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("empty", rf"Step {_N}: empty train batch"),
        ("step", rf"Step {_N} \|"),
        ("sync", rf"Updating policy in-flight to v{_N}"),
        ("updating", rf"Updating weights to step {_N}"),
        ("paused", r"All inference engines paused"),
        ("resumed", r"All inference engines resumed"),
        ("updated", rf"Updated weights to step {_N} in "),
        (
            "drop",
            r"(?:drop|drain) train \| group=(?P<word>\S+) env=.*?(?:reason=(?P<reason>\w+) )?\| "
            r"cancelled=(?P<count>\d{1,9}) \(inflight=(?P<running>\d{1,9}) unscheduled=\d+\)",
        ),
        ("cancelled", rf"Cancelled (?P<count>\d{{1,9}}) train episodes past max_off_policy_steps={_N}"),
        ("overload", r"Cancelled (?P<count>\d{1,9}) youngest in-flight episodes after overload cut"),
        ("swept", rf"Dropped (?P<count>\d{{1,9}}) queued traces past max_off_policy_steps={_N}"),
        ("rejected", r"Finished group \|.*\| dropped: rejected by curriculum"),
        ("final", r"Shipped the final batch .*\(cancelled (?P<running>\d{1,9}) in-flight train episode"),
        ("scratch", r"Training from scratch"),
        ("resume", rf"Resuming orchestrator from checkpoint step {_N}"),
        ("start", rf"Starting from step {_N}"),
        ("loop", rf"Starting orchestrator loop(?: \(max_steps={_N}\))?"),
        ("gate", r"Pausing dispatcher to prevent orchestrator from racing"),
        ("open", r"Resuming dispatcher"),
        ("hold", rf"Holding batch {_N} until the trainer publishes policy"),
        ("awaiting", rf"Orchestrator paused: waiting for trainer to broadcast checkpoint {_N}"),
        ("waited", r"Waited for batch to arrive for (?P<word>[\d.]+) seconds"),
        ("training", rf"Starting training step {_N}"),
        ("finished", r"RL trainer finished!"),
    )
)
_FIRST_WORDS = re.compile(
    r"(?:Step|Updating|All inference|Updated|drop|drain|Cancelled|Dropped|Finished|Train|Shipped|Training|Resuming|"
    r"Starting|Pausing|Holding|Orchestrator|Waited|RL) "
)
_SHIPPED = re.compile(r"\| Trainable \d+/(\d+)")
_RECORDED_MAX = re.compile(r"\| Max Off-Policy (\d+)")
_OLD_STEP = re.compile(r"Step \d+ \| Time: ")
_OLD_LEVEL = re.compile(r"Max\. Off-Policy Level: (\d+)")
_ASYNC_LEVEL = re.compile(r"\| Async Level: (\d+)")


def read_log(run: RunFiles, piece: Piece, process: str, attempt: int | None, sink: Sink) -> None:
    """Stage the messages of one log that tell of steps, weights, drops and waits."""
    rows: list[dict[str, Any]] = []
    common = {"attempt": attempt, "process": process, "source": piece.source}
    launch, started, debug = 1, False, False
    last: dict[str, Any] | None = None
    try:
        for line, clock, dated, level, message in _messages(run, piece):
            debug = debug or level == "DEBUG"
            row = {**common, "launch": launch, "line": line, "clock": clock, "dated": dated}
            if last is None:
                rows.append({**row, "kind": "first"})
            last = row
            if not _FIRST_WORDS.match(message) or (found := _classify(message)) is None:
                continue
            # Without attempt folders a restart appends to the same file; these lines come once per launch.
            if found["kind"] in ("scratch", "resume") or (process == "trainer" and found["kind"] == "start"):
                launch += started
                started = True
                row["launch"] = launch
            rows.append(row | found)
    except DamagedStream as damage:
        sink.diagnose(
            "warning",
            "log-damaged",
            f"From here on the log is damaged ({damage}); restore it from a copy.",
            source=piece.source,
            line=damage.line,
            opens="fates",
        )
    if last is None:
        if piece.end:
            sink.diagnose(
                "note", "log-without-messages", "No line of this log has a time and a level.", source=piece.source
            )
        return
    rows.append({**last, "launch": launch, "kind": "last", "word": "DEBUG" if debug else "INFO"})
    sink.write("prime_log", pa.Table.from_pylist(rows, schema=LOG))


def _messages(run: RunFiles, piece: Piece) -> Iterator[tuple[int, float, bool, str, str]]:
    """Yield (line, clock, dated, level, message); lines without a time continue a message and are passed over."""
    day = 0
    previous: float | None = None
    for line, raw, _ in numbered_lines(run, piece):
        for shown in strip_ansi(raw).split("\r"):
            part = _LAUNCHER.sub("", undecorate(shown[:MAX_MESSAGE]).text)
            if part.startswith("{") and (entry := _json_entry(part)) is not None:
                yield line, *entry
                continue
            found = _LINE.match(part, bar.end() if (bar := _BAR.search(part)) else 0)
            if not found:
                continue
            seconds = int(found["h"]) * 3600.0 + int(found["m"]) * 60 + int(found["s"])
            if previous is not None and seconds < previous - 43200:
                day += 1
            # A line that comes late, from before a midnight just passed, belongs to the day before.
            late = previous is not None and day > 0 and seconds > previous + 43200
            if not late:
                previous = seconds
            yield line, (day - late) * 86400 + seconds, False, found["level"], _PLACE.sub("", found["text"])


def _json_entry(part: str) -> tuple[float, bool, str, str] | None:
    """Read a line of ``log.json_logging``; a time stamp without a zone is local, its zone is found like a date."""
    try:
        entry = orjson.loads(part)
        stamp = datetime.fromisoformat(str(entry["timestamp"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    dated = stamp.tzinfo is not None
    clock = (stamp if dated else stamp.replace(tzinfo=UTC)).timestamp()
    return clock, dated, str(entry.get("level", "")), str(entry.get("message", ""))


def _classify(message: str) -> dict[str, Any] | None:
    for kind, pattern in _MESSAGES:
        if not (found := pattern.match(message)):
            continue
        values = found.groupdict()
        row: dict[str, Any] = {
            "kind": kind,
            "number": _int(values.get("number")),
            "count": _int(values.get("count")),
            "running": _int(values.get("running")),
            "word": values.get("word"),
            "what": message[:300],
        }
        if kind == "drop":
            # The older code's line has no reason: it knew no other than age.
            row["what"] = values.get("reason") or "drain"
        if kind == "step":
            _step_fields(row, message)
        return row
    return None


def _step_fields(row: dict[str, Any], message: str) -> None:
    """``count`` = traces shipped, ``running`` = recorded maximum, ``word`` = which code wrote the line."""
    if shipped := _SHIPPED.search(message):
        row["count"] = number_of(shipped[1])
    if recorded := _RECORDED_MAX.search(message):
        row["running"] = number_of(recorded[1])
    if _OLD_STEP.match(message):
        row["word"] = "old"
        if level := _OLD_LEVEL.search(message):
            row["running"] = number_of(level[1])
        if behind := _ASYNC_LEVEL.search(message):
            row["version"] = row["number"] - number_of(behind[1])
    elif recorded:
        row["word"] = "cancelled" if "| Cancelled " in message else "no cancelled"


def _int(value: str | None) -> int | None:
    return number_of(value) if value is not None and value.isdecimal() else None

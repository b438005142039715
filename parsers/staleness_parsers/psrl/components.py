"""Logs of PSRL's components: lines become staged messages (guide section 5.2).

A message has a ``kind``, up to four ``numbers``, ``ids`` (requests) and, of instances, a ``worker``. Lines that several
handlers wrote twice are read once. A console shows the same lines as ``<Component> - message``; it is used only for
components without a file of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import polars as pl
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFile, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.console import number_of, parse_local_time, undecorate
from staleness_audit.readers.lines import DamagedStream, telling_lines

TABLE: Final = "psrl_messages"
ROWS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "source": pl.String,
    "line": pl.Int64,
    "ts": pl.Datetime("us"),
    "component": pl.String,
    "console": pl.Boolean,
    "kind": pl.String,
    "numbers": pl.List(pl.Int64),
    "ids": pl.List(pl.Int64),
    "worker": pl.String,
}
MANAGER: Final = "AgentLoopManager"
TRACKER: Final = "RequestStatusTracker"
NAMES: Final = (MANAGER, TRACKER, "Status", "TrainWorker_R0", "vLLMHTTPServer_Replica*", "DPLBStatCollector_*")
_COMPONENT: Final = (
    r"(AgentLoopManager|RequestStatusTracker|Status|TrainWorker_R0|vLLMHTTPServer_Replica\d+|DPLBStatCollector_\w+)"
)
_CONSOLE_LINE: Final = re.compile(rf"{_COMPONENT} - (.*)")
_FILE_LINE: Final = re.compile(r"(?:- )?(?:[\w.]+ - \d+ - )?(.*)")

_ENTRY: Final = (
    # Atomic, so that a line of many beginnings costs no more than its length.
    r"(?>EntryInfo\(rollout_instance_id=(?P<instance>.*?), prompt_id=)(?P<prompt>\d+), "
    r"request_idx=(?P<index>\[[^\]]*\]|-?\d+), model_version=(?P<version>\[[^\]]*\]|-?\d+),"
    r".*?is_validate=(?P<validate>True|False)\)"
)
_SLOT: Final = r"\(buffer (?P<buffer>\d+), entry (?P<slot>\d+)\)"
_WORDS: Final = r"[\w ]{0,60}"
_ENTRY_LINE: Final = re.compile(
    rf"\[(?P<what>[A-Z]{_WORDS}Entry{_WORDS}|Entry{_WORDS})(?: \([^\]]*\))?\]:? (?>.*?(?=EntryInfo\()){_ENTRY}"
)
_BUFFER: Final = re.compile(_SLOT)
_HEADER_TAG: Final = r"version_tag=(-?\d+): count=(\d+) \([\d.]+%\), staleness=(-?\d+)"
_PLAIN: Final[tuple[tuple[str, str, str, re.Pattern[str]], ...]] = tuple(
    (component, kind, word, re.compile(pattern))
    for component, kind, word, pattern in (
        (MANAGER, "header", "version tag distribution", r"TRAINING Buffer (\d+) version tag distribution"),
        (MANAGER, "tag", "version_tag=", _HEADER_TAG),
        (MANAGER, "validation", "VALIDATION Buffer", r"VALIDATION Buffer (\d+) "),
        (MANAGER, "wait", "is not ready", r"Buffer (\d+) is not ready, waiting"),
        (MANAGER, "ready", "is ready", r"(?:BUFFER_READY - Train )?Buffer (\d+) is ready"),
        (MANAGER, "gate", "ps model version", r"Waiting for ps model version: (\d+)"),
        (MANAGER, "failed", "notify_group_failed", r"notify_group_failed \(train\): .*parent_id=(\d+)"),
        (MANAGER, "filtered", "empty data", r"Post-processing function returned empty data for prompt (\d+)"),
        (MANAGER, "moved", "occupied entries", r"Moved (\d+) occupied entries \(the total gap"),
        (MANAGER, "chunk", "train chunk", r"Emitted train chunk buffer=(\d+) idx=(\d+) size=(\d+)"),
        (TRACKER, "push", "PUSH - Model", r"\[Single Event\] PUSH - Model with version tag (\d+)"),
        (TRACKER, "stale", "is stale", r"Request (\d+) is stale \(version (-?\d+) < (-?\d+)\)"),
        (TRACKER, "begin", "nitialized", r"(?:PSManager initialized|Initialized RequestStatusTracker)"),
        ("Status", "anchor", "stats recorder", r"Starting stats recorder loop"),
        ("TrainWorker_R0", "pushed", "PUSH - Push", r"\[End Event\] PUSH - Push model"),
        (
            "vLLM",
            "overtaken",
            "is higher than",
            r"Actual model version after pull .*? is (\d+), which is higher than the required PS version (\d+)",
        ),
    )
)
"""Who says it, what it is, a word it holds, and its pattern."""
_IDS: Final[tuple[tuple[str, str, re.Pattern[str]], ...]] = (
    (MANAGER, "surplus", re.compile(r"Aborting child requests (\[[^\]]*\]) for sample (\d+)")),
    (MANAGER, "stored", re.compile(r"Stored child IDs: (\[[^\]]*\])")),
    (TRACKER, "old", re.compile(r"Requests of version \d+ to abort: (\{[^}]*\}|\[[^\]]*\]|set\(\))")),
    (TRACKER, "aborted", re.compile(r"Added requests (\[[^\]]*\]|\{[^}]*\}) to abort set")),
)
_TELLING: Final = (
    r"version tag dist|version_tag=|VALIDATION Buffer|Buffer \d+ is |ps model version|notify_group_failed|empty data"
    r"|occupied entries|train chunk|\[Single Event\]|is stale|PSManager init|Initialized Request|stats recorder loop"
    r"|\[End Event\]|higher than the required|child requests|child IDs|to abort|Snapshot|EntryInfo|\x00|\x{FFFD}"
)
"""What every line of a component's own log that matters contains somewhere."""
_PULL: Final = re.compile(
    r"\[Single Event\] PULL - Rollout instance \[?(\(.*?\))\]? pulling latest model with version tag (\d+)"
)
_SNAPSHOT: Final = re.compile(r"Snapshot \(model version (-?\d+)\)")
_COUNTS: Final = re.compile(r"req_id_to_response_token_num['\"]?\s*[:=]\s*(?:\w+\()?\{([^}]*)\}")
_COUNT: Final = re.compile(r"['\"]?(\d+)['\"]?\s*:\s*(\d+)")


def files(run: RunFiles) -> list[RunFile]:
    """Return the logs of the components that say anything of use."""
    return [file for name in NAMES for file in run.match(f"{name}.log")]


def stage(run: RunFiles, piece: Piece, sink: Sink, *, console: bool) -> None:
    """Stage the messages of one log; ``present`` = the component's file has a line, ``damaged`` = it is broken."""
    stem = run.file(piece.source).name.rsplit("/", 1)[-1].removesuffix(".log")
    blank: dict[str, Any] = {
        "source": piece.source,
        "ts": None,
        "console": console,
        "ids": [],
        "numbers": [],
        "worker": None,
    }
    rows: list[dict[str, Any]] = []
    if not console and b"\n" in run.head(piece.source, 1 << 16):
        rows.append({**blank, "line": piece.first_line, "component": stem, "kind": "present"})
    last: tuple[int, datetime | None, str] = (0, None, "")
    try:
        for line, text, cut in telling_lines(run, piece, _COMPONENT if console else _TELLING):
            component, ts, message = _split(text, stem, console)
            if cut or component is None:
                continue
            # Two handlers write a message twice in a row.
            again = ts is not None and (ts, message) == last[1:] and (console or line == last[0] + 1)
            last = line, ts, message
            if again:
                continue
            place = {**blank, "line": line, "component": component}
            if "\0" in message or "\ufffd" in message:
                rows.append({**place, "kind": "damaged"})
                _damaged(sink, piece.source, line)
            rows.extend({**place, "ts": ts, **found} for found in _read(component, message) if found["kind"])
    except DamagedStream as damage:
        rows.append({**blank, "line": damage.line, "component": stem, "kind": "damaged"})
        _damaged(sink, piece.source, damage.line)
    # Arrow takes rows with lists many times faster than Polars does.
    sink.write(TABLE, pa.Table.from_pylist(rows, schema=pl.DataFrame(schema=ROWS).to_arrow().schema))


def _damaged(sink: Sink, source: str, line: int) -> None:
    message = "A line of a component's log is damaged; entries or aborts may be missing: restore the file."
    sink.diagnose("warning", "component-log-damaged", message, source=source, line=line, opens="fates")


def _split(text: str, stem: str, console: bool) -> tuple[str | None, datetime | None, str]:
    clean = undecorate(text).text
    ts, rest = parse_local_time(clean)
    if console:
        match = _CONSOLE_LINE.search(rest)
        return (match[1], ts, match[2]) if match else (None, None, "")
    match = _FILE_LINE.match(rest)
    return stem, ts, match[1] if match else rest


def _read(component: str, message: str) -> Iterator[dict[str, Any]]:
    for owner, kind, word, pattern in _PLAIN:
        if word in message and component.startswith(owner) and (match := pattern.search(message)):
            yield {"kind": kind, "numbers": [number_of(group) for group in match.groups()]}
            return
    for owner, kind, pattern in _IDS:
        if component == owner and (match := pattern.search(message)):
            yield {"kind": kind, "ids": _numbers(match[1])}
            return
    if component.startswith("DPLB"):
        yield from _snapshot(message)
    if component != TRACKER:
        return
    if match := _PULL.search(message):
        yield {"kind": "pull", "numbers": [number_of(match[2])], "worker": instance(match[1])}
    elif entry := _ENTRY_LINE.search(message):
        yield _entry(entry, message)


def _entry(entry: re.Match[str], message: str) -> dict[str, Any]:
    what = entry["what"]
    kind = {"Entry Reserve": "reserve", "Reserved Entry Update": "reserve", "Occupied Entry Clear": "clear"}.get(
        what, ""
    )
    if what.startswith("Entry Occupy"):
        kind = "wasted" if "is Wasted" in message else "occupy"
    if what == "Occupied Entry Move":
        kind = "move"
    if what == "Entry Update":
        kind = "retagged" if "(version tag is updated to" in message else ""
    slots = _BUFFER.findall(message[entry.end() :])
    version = _numbers(entry["version"])
    return {
        "kind": "validation" if entry["validate"] == "True" else kind,
        "numbers": [
            number_of(entry["prompt"]),
            min(version, default=-1),
            *(number_of(number) for number in (slots or [("-1", "-1")])[-1]),
        ],
        "ids": _numbers(entry["index"]),
        "worker": instance(entry["instance"]),
    }


def _snapshot(message: str) -> Iterator[dict[str, Any]]:
    found, counts = _SNAPSHOT.search(message), _COUNTS.search(message)
    if found and counts:
        for request, tokens in _COUNT.findall(counts[1]):
            if number_of(tokens):
                yield {"kind": "snapshot", "numbers": [number_of(found[1]), number_of(request), number_of(tokens)]}


def _numbers(text: str) -> list[int]:
    return [number_of(number) for number in re.findall(r"-?\d+", text)]


def instance(text: str) -> str:
    """Name an instance as the gateway does: ``('0', 0)`` is instance 0."""
    match = re.search(r"\('([^']*)'", text)
    return match[1] if match else text

"""Dressage's own lines of console and proxy logs, staged as ``dressage_lines`` (guide sections 5.4 and 5.5).

slime's reader reads the same files for slime's lines and says what is damaged in them.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson
import polars as pl

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import Sink, Unit
from staleness_audit.readers.console import number_of, parse_local_time, undecorate
from staleness_audit.readers.lines import DamagedStream, telling_lines

LINES: Final[dict[str, Any]] = {
    "source": pl.String,
    "line": pl.Int64,
    "local": pl.Datetime("us"),
    "kind": pl.String,
    "fields": pl.String,
}
MARKS: Final = (b"Dressage ", b"dressage.proxy")
_TELLING: Final = "Dressage|rollout|session_id="
_PATTERNS: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "worker",
            r"Dressage (?P<mode>fully|partial) async rollout worker started \(.*?max_active_groups=(?P<active>\d+) "
            r"samples_per_group=(?P<members>\d+)",
        ),
        (
            "collect",
            r"starting Dressage partial async rollout: rollout_id=(?P<rollout>\d+) target_groups=(?P<groups>\d+)",
        ),
        (
            "stale",
            r"dropping stale Dressage (?P<mode>fully|partial) async rollout group (?P<group>\S+): "
            r"cutoff_version_index=(?P<cutoff>\d+) cutoff_version=\S+ current_version_index=(?P<current>\d+)",
        ),
        (
            "failed_group",
            r"returned group (?P<group>\S+) to rollout buffer for retry(?P<partial> during partial rollout)?: "
            r"(?P<rest>.*)",
        ),
        (
            "failed_group",
            r"(?P<partial>partial )?rollout group (?P<group>\S+) exhausted retries and will be dropped: (?P<rest>.*)",
        ),
        ("final", r"final rollout (?P<rollout>\d+) (?:ending|completed); stopping"),
        ("final", r"skipping actor weight update after final rollout (?P<rollout>\d+)"),
        ("failed", r"blackbox rollout failed for session_id=(?P<session>[\w.\-]+): (?P<rest>.*)"),
        ("prompts", r"DressageDataSource: loaded (?P<count>\d+) samples"),
        ("waiting", r"no completed (?:partial )?rollout group for (?P<seconds>[\d.]+)s"),
        (
            "rejected",
            r"reject (?:non-)?partial rollout: error=(?P<error>\w+) session_id=(?P<session>[\w.\-]+) "
            r"instance_id=(?P<instance>\S+)(?P<rest>.*)",
        ),
        ("proxy", r"rollout pause abort summary|aborted SGLang request"),
    )
)
_LOGGER: Final = re.compile(r"(?:[A-Z]+:dressage[\w.]*:)")
_COMPLETED: Final = re.compile(r"\bCOMPLETED:(\d+)")
_SESSION: Final = re.compile(r"\bsession_id=([\w.\-]+)")
_LABELS: Final = re.compile(r"versions=\[([^\]]*)\]")
_SPAN: Final = re.compile(r"max_preempts=(\d+)")


def read_console(unit: Unit, run: RunFiles, sink: Sink) -> None:
    """Stage Dressage's lines of one piece of a log."""
    piece = unit.pieces[0]
    rows: list[dict[str, Any]] = []
    try:
        for number, raw, cut in telling_lines(run, piece, _TELLING):
            if cut or len(raw) > 1 << 20:
                continue
            if row := _read_line(raw):
                rows.append({"source": piece.source, "line": number, **row})
    except DamagedStream:
        pass  # slime's reader of the same piece reports it and opens the counts
    sink.write("dressage_lines", pl.DataFrame(rows, schema=LINES))


def _read_line(raw: str) -> dict[str, Any] | None:
    local, text = parse_local_time(undecorate(raw).text)
    message = text.split(" - ", 1)[-1] if local else text
    if prefix := _LOGGER.match(message):
        message = message[prefix.end() :]
    for kind, pattern in _PATTERNS:
        if found := pattern.match(message):
            fields: dict[str, Any] = {name: value for name, value in found.groupdict().items() if value is not None}
            rest = fields.pop("rest", "")
            if kind == "failed_group":
                completed = _COMPLETED.search(rest)
                fields |= {
                    "completed": number_of(completed[1]) if completed else 0,
                    "sessions": [name for name in _SESSION.findall(rest) if name != "None"],
                }
            elif kind == "rejected":
                fields["labels"] = [
                    label.strip(" '\"") for found in _LABELS.findall(rest) for label in found.split(",") if label
                ]
                if most := _SPAN.search(rest):
                    fields["max_preempts"] = number_of(most[1])
            elif rest:
                fields["text"] = rest[:200]
            return {"local": local, "kind": kind, "fields": orjson.dumps(fields).decode()}
    return None

"""Reading console logs: what trainer and worker say, in the order of the file (guide section 5.3)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC
from typing import Any, Final

import orjson
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.console import parse_dict, parse_local_time, strip_ansi
from staleness_audit.readers.lines import DamagedStream, numbered_lines
from staleness_parsers.trl.metrics import KEEP, Writer, damage, number

LINES: Final = pa.schema(
    [
        ("source", pa.string()),
        ("line", pa.int64()),
        ("seq", pa.int64()),
        ("ts", pa.float64()),
        ("kind", pa.string()),
        ("number", pa.int64()),
        ("count", pa.int64()),
        ("document", pa.string()),
    ]
)
"""Staged ``trl_console``: one row per message. ``seq`` orders the messages of a file; ``ts`` is seconds since 1970 if
the log's clock were UTC. ``number`` and ``count`` by kind: bar (steps done, of), drop (staleness, bound), oversize
(tokens, budget), score (queue size, rows), worker (generations per prompt, slots), derived (bound, samples per step).
"""

_BAR = re.compile(r"^\s*\d{1,3}%\|[^|]*\|\s*(?P<done>\d{1,15})/(?P<of>\d{1,15}) \[[^\]]*\]")
_RANK = re.compile(r"\[RANK (\d+)\]")
_MESSAGES: Final = (
    ("drop", re.compile(r"dropping stale sample \(staleness=(?P<number>-?\d{1,15}), max=(?P<count>-?\d{1,15})\)")),
    (
        "score",
        re.compile(r"\[score\] scored (?P<count>\d{1,15}) samples in [\d.]+s(?:, buffer_qsize=(?P<number>\d{1,15}))?"),
    ),
    ("pausing", re.compile(r"Weight sync: pausing vLLM")),
    ("transferring", re.compile(r"Weight sync: transferring (?:weights|adapter)")),
    ("done", re.compile(r"Weight sync: done\.")),
    (
        "oversize",
        re.compile(
            r"Dropping a rollout sample of (?P<number>\d{1,15}) tokens that exceeds token_budget=(?P<count>\d{1,15})"
        ),
    ),
    (
        "worker",
        re.compile(
            r"vllm worker started: num_generations=(?P<number>\d{1,15}), max_inflight_tasks=(?P<count>\d{1,15})"
        ),
    ),
    (
        "derived",
        re.compile(
            r"max_inflight_tasks set to \d+ \((?:max_staleness=|max\(max_staleness, ?1\)=)(?P<number>\d{1,15})"
            r" × samples_per_step=(?P<count>\d{1,15})\)"
        ),
    ),
    ("waiting", re.compile(r"waited [\d.]+s for sample \(qsize=0\)")),
    ("full", re.compile(r"\[score\] rollout buffer full")),
)
_WORDS = (
    "stale sample",
    "[score]",
    "Weight sync",
    "Dropping a",
    "vllm worker",
    "max_inflight_tasks set",
    "for sample (",
)
_RECORD = ("'loss':", "'train_runtime':", "'sample/", "'batch/")
_BOX = "│┃├┌└╭╰┏┡╮╯"


def read_console(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the messages of one log."""
    rows = Writer(sink, "trl_console", LINES)
    seq = 0
    try:
        for line, text, cut in numbered_lines(run, piece):
            # A progress bar rewrites its line: what stands between carriage returns was printed one after the other.
            for segment in text.split("\r"):
                for row in _messages(segment, cut, line, piece.source, sink):
                    rows.add({"source": piece.source, "line": line, "seq": seq, **row})
                    seq += 1
    except DamagedStream as error:
        damage(sink, "console", piece.source, str(error), line=error.line)
    rows.flush()


def _messages(segment: str, cut: bool, line: int, source: str, sink: Sink) -> Iterator[dict[str, Any]]:
    text = strip_ansi(segment) if "\x1b" in segment else segment
    if bar := _BAR.match(text):
        yield {"kind": "bar", "number": int(bar["done"]), "count": int(bar["of"])}
        text = text[bar.end() :]
    text = text.strip()
    # Completions are printed in boxes and may say anything.
    if not text or text[0] in _BOX:
        return
    if text[0] == "{" and any(word in text for word in _RECORD):
        record = parse_dict(text)
        if record is not None:
            kept = {key: _value(value) for key, value in record.items() if key in KEEP}
            yield {"kind": "record", "document": orjson.dumps(kept).decode()}
        elif not cut:
            damage(sink, "console", source, "a line of metrics cannot be read", line=line)
            yield {"kind": "record", "document": "{}"}
        return
    if not any(word in text for word in _WORDS):
        return
    rank = _RANK.search(text)
    if rank and rank[1] != "0":
        return
    found = [(match.start(), kind, match) for kind, pattern in _MESSAGES for match in pattern.finditer(text)]
    ts, _ = parse_local_time(text)
    for _, kind, match in sorted(found, key=lambda item: item[0]):
        groups = match.groupdict()
        yield {
            "kind": kind,
            "ts": None if ts is None else ts.replace(tzinfo=UTC).timestamp(),
            **{name: int(value) for name in ("number", "count") if (value := groups.get(name)) is not None},
        }


def _value(value: object) -> float | None:
    """Return a metric of the printed dict, where numbers are text of four digits."""
    if isinstance(value, str):
        try:
            return number(float(value))
        except ValueError:
            return None
    return number(value)

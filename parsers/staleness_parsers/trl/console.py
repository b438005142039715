"""Reading console logs: what trainer and worker say, in the order of the file (guide section 5.3)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC
from functools import lru_cache
from typing import Any, Final

import orjson
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.console import number_of, parse_dict, parse_local_time, strip_ansi
from staleness_audit.readers.lines import DamagedStream, telling_lines
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
"""Staged ``trl_console``: one row per message. ``seq`` orders the messages of a line; ``ts`` is seconds since 1970 if
the log's clock were UTC. ``number`` and ``count`` by kind: bar (steps done, of), drop (staleness, bound), oversize
(tokens, budget), score (queue size, rows), worker (generations per prompt, slots), derived (bound, samples per step).
"""

_BAR = re.compile(r"^\s*\d{1,3}%\|[^|]*\|\s*(?P<done>\d{1,15})/(?P<of>\d{1,15}) \[[^\]]*\]")
_RANK = re.compile(r"\[RANK (\d+)\]")
_MESSAGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "drop": (r"dropping stale sample \(staleness=(-?\d{1,9}), max=(-?\d{1,9})\)", ("number", "count")),
    "score": (r"\[score\] scored (\d{1,9}) samples in [\d.]+s(?:, buffer_qsize=(\d{1,9}))?", ("count", "number")),
    "pausing": (r"Weight sync: pausing vLLM", ()),
    "transferring": (r"Weight sync: transferring (?:weights|adapter)", ()),
    "done": (r"Weight sync: done\.", ()),
    "oversize": (
        r"Dropping a rollout sample of (\d{1,9}) tokens that exceeds token_budget=(\d{1,9})",
        ("number", "count"),
    ),
    "worker": (r"vllm worker started: num_generations=(\d{1,9}), max_inflight_tasks=(\d{1,9})", ("number", "count")),
    "derived": (
        r"max_inflight_tasks set to \d+ \((?:max_staleness=|max\(max_staleness, ?1\)=)(\d{1,9})"
        r" × samples_per_step=(\d{1,9})\)",
        ("number", "count"),
    ),
    "waiting": (r"waited [\d.]+s for sample \(qsize=0\)", ()),
    "full": (r"\[score\] rollout buffer full", ()),
}
"""Pattern of each message and what its groups are."""
_MESSAGE = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, (pattern, _) in _MESSAGES.items()))
_TELLING = (
    r"%\||dropping stale sample|\[score\]|Weight sync: |Dropping a rollout sample|vllm worker started"
    r"|max_inflight_tasks set|waited .* for sample|'loss':|'train_runtime':|'sample/|'batch/"
)
"""What every line that matters contains somewhere."""
_RECORD = ("'loss':", "'train_runtime':", "'sample/", "'batch/")
_BOX = "│┃├┌└╭╰┏┡╮╯"


def read_console(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the messages of a piece of a log."""
    rows = Writer(sink, "trl_console", LINES)
    try:
        for line, text, cut in telling_lines(run, piece, _TELLING):
            # A progress bar rewrites its line: what stands between carriage returns was printed one after the other.
            segments = text.split("\r")
            told = (row for segment in segments for row in _messages(segment, cut, line, piece.source, sink))
            for seq, row in enumerate(told):
                rows.add({"source": piece.source, "line": line, "seq": seq, **row})
    except DamagedStream as error:
        damage(sink, "console", piece.source, str(error), line=error.line)
    rows.flush()


def _messages(segment: str, cut: bool, line: int, source: str, sink: Sink) -> Iterator[dict[str, Any]]:
    text = strip_ansi(segment) if "\x1b" in segment else segment
    if bar := _BAR.match(text):
        yield {"kind": "bar", "number": number_of(bar["done"]), "count": number_of(bar["of"])}
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
    first = _MESSAGE.search(text)
    rank = _RANK.search(text) if first else None
    if first is None or (rank and rank[1] != "0"):
        return
    ts = _seconds(text[:32])
    for match in _MESSAGE.finditer(text, first.start()):
        kind = match.lastgroup or ""
        at = _MESSAGE.groupindex[kind]
        found = {name: match[at + offset] for offset, name in enumerate(_MESSAGES[kind][1], 1)}
        yield {"kind": kind, "ts": ts, **{name: number_of(value) for name, value in found.items() if value is not None}}


@lru_cache(maxsize=256)
def _seconds(beginning: str) -> float | None:
    """Return the time a line begins with, as if it were UTC; drops come in bursts of one moment."""
    ts, _ = parse_local_time(beginning)
    return None if ts is None else ts.replace(tzinfo=UTC).timestamp()


def _value(value: object) -> float | None:
    """Return a metric of the printed dict, where numbers are text of four digits."""
    if isinstance(value, str):
        try:
            return number(float(value))
        except ValueError:
            return None
    return number(value)

"""Reading console and Ray worker logs into the staged table ``openrlhf_lines`` (guide section 5.1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson
import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink, Unit
from staleness_audit.readers.config import as_json
from staleness_audit.readers.console import number_of, parse_dict, stage_lines, strip_ansi, undecorate
from staleness_audit.readers.lines import telling_lines
from staleness_audit.readers.numbers import is_figure
from staleness_parsers.openrlhf.settings import command_line

LINES: Final[dict[str, Any]] = {
    "source": pl.String,
    "line": pl.Int64,
    "kind": pl.String,
    "step": pl.Int64,
    "count": pl.Int64,
    "repeated": pl.Int64,
    "stamp": pl.String,
    "pid": pl.Int64,
    "text": pl.String,
}
"""One row per telling line. ``count``: the number it states (samples, members of a group, prompts, permits, passes);
``stamp``: its local time ``MM-DD HH:MM:SS`` (no year, no zone); ``pid``: the TrainingActor's, where Ray names it;
``text``: metrics or flags as JSON."""

_HEADER: Final = re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d) (?P<file>[\w.]+):\d+\] "
)
_CALL: Final = re.compile(r"Generate samples:\s+0%\|[^|]*\| 0/(\d+) \[00:00<\?, *\?it/s\]")
_PASS: Final = re.compile(r"Episode \[\d+/(\d+)\]:\s+0%\|[^|]*\| 0/\d+ \[00:00<\?, *\?it/s\]")
_STEP: Final = re.compile(r"(?:✨ )?Global step (?P<step>\d+): (?P<text>\{.*)$")
_SIMPLE: Final = (
    ("queue_size", re.compile(r"queue_size=(?P<count>\d+)$")),
    ("take", re.compile(r"🚀 Starting experience making with (?P<count>\d+) samples")),
    ("eval", re.compile(r"Eval at step (?P<step>\d+): ")),
    ("eval_start", re.compile(r"Starting async evaluation\.\.\.")),
    ("eval_end", re.compile(r"Async evaluation completed: ")),
    ("full", re.compile(r"Queue is full, waiting for training to consume samples")),
    (
        "old_filter",
        re.compile(r"Dynamic filtering pass rate: [\d.]+% \(\d+/\d+\)|filtered_samples [\d.]+ < rollout_batch_size"),
    ),
)
_FILTERED: Final = re.compile(r"Filtered out: avg_reward=.*?scores=(?P<scores>\[.*)$")
_SCORE: Final = re.compile(r"'[^']*'")
_TELLING: Final = (
    r"Global step |queue_size=|experience making with|Eval at step|async eval|Async eval|Queue is full|Filtered out"
    r"|filtered_samples|filtering pass rate|Generate samples:\s+0%|Episode \[\d+/\d+\]:\s+0%|train_ppo_ray"
    r"|OPENRLHF_ASYNC_QUEUE_SIZE"
)
KEPT: Final = re.compile(
    r"timing/\w+$|rollout/(num_samples|response_length_mean)$|dynamic_filtering_pass_rate$|policy_loss$|actor_grad_norm$"
    r"|actor_lr$|reward$|kl$"
)
"""Metrics that are kept: times, sizes, and a few by which two files are recognised as of one launch."""


def read_console(unit: Unit, run: RunFiles, sink: Sink) -> None:
    """Stage the telling lines of a piece of a log."""
    piece = unit.pieces[0]
    stage_lines(_rows(run, piece, sink), sink, "openrlhf_lines", LINES, piece.source)


def _rows(run: RunFiles, piece: Piece, sink: Sink) -> Iterator[dict[str, Any]]:
    for line, raw, cut in telling_lines(run, piece, _TELLING):
        for row in _read_line(raw):
            if row["kind"] == "step_damaged":
                _say_damaged(sink, piece.source, line, cut)
                if cut:
                    continue
            yield {"source": piece.source, "line": line, **row}


def _say_damaged(sink: Sink, source: str, line: int, cut: bool) -> None:
    if cut:
        message = "The last line is cut: what it would have said did not happen."
        sink.diagnose("note", "cut-line", message, source=source, line=line)
    else:
        message = "The metrics of this step cannot be read; the step counts, its times and tokens are unknown."
        sink.diagnose("warning", "metrics-unreadable", message, source=source, line=line)


def _read_line(raw: str) -> list[dict[str, Any]]:
    """Rows of one line: the passes and calls whose progress bars it begins, and its message."""
    clean = strip_ansi(raw)
    rows: list[dict[str, Any]] = []
    if "0/" in clean:
        rows += [{"kind": "passes", "count": number_of(total)} for total in _PASS.findall(clean)]
        rows += [{"kind": "call", "count": number_of(total)} for total in _CALL.findall(clean)]
    if (flags := command_line(clean)) is not None:
        rows.append({"kind": "flags", "text": as_json(flags)})
    line = undecorate(clean)
    header = _HEADER.search(line.text)
    # A generated text may say anything; only what follows the first header is the framework's own message.
    message = (line.text[header.end() :] if header else line.text).strip()
    trainer = line.actor == "TrainingActor"
    about = {
        "stamp": header["stamp"] if header else None,
        "repeated": line.repeated,
        "pid": line.pid if trainer else None,
    }
    # In asynchronous training the steps are the TrainingActor's, whichever file prints them.
    other_actor = line.actor is not None and not trainer
    row = _message(message, synchronous=other_actor and header is not None and header["file"] == "ppo_trainer.py")
    return [*rows, {**about, **row}] if row else rows


def _message(message: str, *, synchronous: bool) -> dict[str, Any] | None:
    if found := _STEP.match(message):
        values = parse_dict(found["text"])
        if values is None:
            return {"kind": "step_damaged", "step": number_of(found["step"])}
        return {"kind": "step_sync" if synchronous else "step", "step": number_of(found["step"]), "text": _kept(values)}
    if found := _FILTERED.match(message):
        # The list of scores has one entry per member of the group; a cut one tells nothing about their number.
        whole = found["scores"].rstrip().endswith("]")
        return {"kind": "filtered", "count": len(_SCORE.findall(found["scores"])) if whole else None}
    for kind, pattern in _SIMPLE:
        if found := pattern.match(message):
            groups = {key: number_of(value) for key, value in found.groupdict().items()}
            return {"kind": kind, **groups}
    return None


def _kept(values: dict[str, object]) -> str:
    kept = {
        key: float(value)
        for key, value in values.items()
        if KEPT.match(key) and isinstance(value, int | float) and is_figure(value)
    }
    return orjson.dumps(kept).decode()

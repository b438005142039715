"""Generations per step and texts per trajectory (guide section 5.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import orjson
import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.lines import DamagedStream, GarbledText, numbered_lines

ROLLOUTS: Final = "psrl_rollouts"
TEXTS: Final = "psrl_texts"
_ROLLOUT_ROWS: Final = {"source": pl.String, "line": pl.Int64, "step": pl.Int64, "uid": pl.Int64, "part": pl.Int64}
_TEXT_ROWS: Final = {
    "source": pl.String,
    "uid": pl.Int64,
    "part": pl.Int64,
    "version": pl.Int64,
    "prompt": pl.Int64,
    "tokens": pl.Int64,
    "environment": pl.Int64,
    "turns": pl.Int64,
}
_NOBODY: Final[dict[str, int | None]] = {"uid": None, "part": None}
_UID: Final = re.compile(r"(\d{1,18})(?:_(\d{1,9}))?")
_COUNTS: Final = re.compile(
    r"^\[Token Counts\] prompt: (\d{1,15}) \| assistant: (\d{1,15}) \| env: (\d{1,15}) \|", re.MULTILINE
)
_TURNS: Final = re.compile(r"^turns: (\d{1,15}),", re.MULTILINE)


def stage_rollouts(run: RunFiles, piece: Piece, step: int, sink: Sink) -> None:
    """Stage who was trained in a step; a row that can't be read was trained all the same (``uid`` null)."""
    rows: list[dict[str, object]] = []
    try:
        for line, text, _ in numbered_lines(run, piece):
            if text.strip():
                identity = _identity(text)
                if identity is None:
                    sink.diagnose(
                        "warning",
                        "bad-line",
                        "A row of a dump can't be read: it was trained all the same, but whose it is is not known.",
                        source=piece.source,
                        line=line,
                    )
                rows.append({"source": piece.source, "line": line, "step": step, **(identity or _NOBODY)})
    except GarbledText:
        pass  # every row was read; one whose identity is hit is above, as a row that can't be read
    except DamagedStream as damage:
        rows.append({"source": piece.source, "line": damage.line, "step": step, **_NOBODY})
    if not rows:
        rows.append({"source": piece.source, "line": 1, "step": step, **_NOBODY})
    sink.write(ROLLOUTS, pl.DataFrame(rows, schema=_ROLLOUT_ROWS))


def _identity(text: str) -> dict[str, int | None] | None:
    """Return who a row names, or None if it can't be read."""
    try:
        row = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    uid = row.get("uid") if isinstance(row, dict) else None
    match = _UID.fullmatch(str(uid)) if isinstance(uid, int | str) and not isinstance(uid, bool) else None
    if match is None:
        return _NOBODY
    return {"uid": int(match[1]), "part": int(match[2]) if match[2] else None}


def stage_texts(run: RunFiles, pieces: Sequence[Piece], names: re.Pattern[str], sink: Sink) -> None:
    """Stage token counts of trajectories; the texts themselves may quote anything, so only the last summary counts."""
    rows = []
    for piece in pieces:
        match = names.search(run.file(piece.source).name)
        if match is None:
            continue
        try:
            text = "\n".join(line for _, line, _ in numbered_lines(run, piece)).rpartition("=== Summary ===")[2]
        except DamagedStream:
            text = ""
        counts = (_COUNTS.findall(text) or [None])[-1]
        if counts is None:
            sink.diagnose(
                "warning",
                "trajectory-text-cut",
                "The summary of a trajectory's text is missing; its tokens are taken from elsewhere where possible.",
                source=piece.source,
            )
        turns = _TURNS.search(text)
        prompt, tokens, environment = map(int, counts) if counts else (None, None, None)
        rows.append(
            {
                "source": piece.source,
                "uid": int(match[2]),
                "part": int(match[3]) if match[3] else None,
                "version": int(match[1]),
                "prompt": prompt,
                "tokens": tokens,
                "environment": environment,
                "turns": int(turns[1]) if turns else None,
            }
        )
    sink.write(TEXTS, pl.DataFrame(rows, schema=_TEXT_ROWS))

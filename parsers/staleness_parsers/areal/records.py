"""Reading JSON lines: trajectory dumps, session records and the trainer's spans (guide sections 5.1 to 5.3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import orjson
import polars as pl
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.json_lines import BadLine, read_json_lines
from staleness_audit.readers.lines import DamagedStream, blocks
from staleness_audit.readers.numbers import is_whole
from staleness_parsers.areal.files import DUMP

_DUMP = pa.schema(
    [
        ("task_id", pa.int64()),
        ("sample_idx", pa.int64()),
        ("seqlen", pa.int64()),
        ("prompt_len", pa.int64()),
        ("head_version", pa.int64()),
        ("tail_version", pa.int64()),
        ("version_rle", pa.list_(pa.list_(pa.int64()))),
    ]
)
_PHASE = pa.list_(pa.struct([("start_ts", pa.float64()), ("end_ts", pa.float64())]))
_SESSION = pa.schema(
    [
        ("task_id", pa.int64()),
        ("session_id", pa.int64()),
        ("rank", pa.int64()),
        ("role", pa.string()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("submit_ts", pa.float64()),
        ("finalized_ts", pa.float64()),
        ("phases", pa.struct([("generate", _PHASE)])),
    ]
)
PERF = pa.schema(
    [
        ("source", pa.string()),
        ("line", pa.int64()),
        ("name", pa.string()),
        ("step", pa.int64()),
        ("begin", pa.int64()),
        ("end", pa.int64()),
        ("rank", pa.int64()),
    ]
)
"""Staged ``areal_perf``: the trainer's spans, microseconds since its tracer was configured; ``name`` ``start`` for the
metadata that a process writes first."""

_SPANS = frozenset({"train.rollout", "train.ppo_update", "train.update_weights", "train.eval", "train.log_stats"})
_ROWS = 1 << 16
"""Rows of dumps that are staged together, about."""
_NAME = re.compile(rb'"name"\s*:\s*"(train\.|process_name|workflow_executor\.prep|rollout_controller\.prep)')


def _complain(sink: Sink, source: str) -> Callable[[BadLine], None]:
    def on_bad(bad: BadLine) -> None:
        if bad.cut:
            sink.diagnose(
                "note", "line-cut", "The last line is cut: the record was never finished.", source=source, line=bad.line
            )
            return
        what = "From here on the file cannot be read" if bad.rest else "The line cannot be read"
        sink.diagnose(
            "error",
            "line-damaged",
            f"{what} ({bad.why}); restore it from a copy.",
            source=source,
            line=bad.line,
            opens="training",
        )

    return on_bad


def read_dumps(run: RunFiles, pieces: Iterable[Piece], sink: Sink) -> None:
    """Stage the rows of dumps, a file for each task, as ``areal_rows``; ``folder``: newest version of their group.

    ``runs`` is the list of [version, tokens], null where the dialect has none or the list makes no sense.
    """
    # Files are many and small: their rows are looked at together.
    several: list[pa.Table] = []
    rows = 0
    for piece in pieces:
        found = DUMP.fullmatch(run.file(piece.source).name)
        if found is None:
            continue
        named = (("source", piece.source), ("folder", int(found["version"])), ("task", int(found["task"])))
        for data in read_json_lines(run, piece, _DUMP, _complain(sink, piece.source)):
            columns = [pa.array([value] * data.num_rows) for _, value in named]
            names = [*data.column_names, *(name for name, _ in named)]
            several.append(pa.table([*data.columns, *columns], names=names))
            rows += data.num_rows
        if rows >= _ROWS:
            _stage_dumps(pa.concat_tables(several), sink)
            several, rows = [], 0
    if several:
        _stage_dumps(pa.concat_tables(several), sink)


def _stage_dumps(data: pa.Table, sink: Sink) -> None:
    rows = pl.from_arrow(data)
    assert isinstance(rows, pl.DataFrame)
    whole = pl.col("version_rle").list.eval((pl.element().list.len() == 2) & (pl.element().list.min() >= 0)).list.all()
    rows = rows.select(
        "source",
        "line",
        "folder",
        pl.col("task_id").fill_null(pl.col("task")).alias("task"),
        pl.col("sample_idx").alias("sample"),
        pl.col("seqlen").alias("length"),
        pl.when(pl.col("seqlen") >= pl.col("prompt_len")).then("prompt_len").alias("prompt"),
        pl.when(pl.col("head_version") >= 0).then("head_version").alias("head"),
        pl.when(pl.col("tail_version") >= 0).then("tail_version").alias("tail"),
        pl.when(whole).then("version_rle").alias("runs"),
        pl.col("version_rle").is_not_null().alias("listed"),
    )
    for bad in rows.filter(pl.col("listed") & pl.col("runs").is_null()).iter_rows(named=True):
        sink.diagnose(
            "warning",
            "runs-nonsense",
            "version_rle is no list of [version, tokens]; the versions are only bounded by times.",
            source=bad["source"],
            line=bad["line"],
        )
    sink.write("areal_rows", rows.with_columns(sample=pl.col("sample").fill_null(0)))


def read_sessions(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage session records as ``areal_sessions``: one row per sample, times in microseconds since 1970."""
    for data in read_json_lines(run, piece, _SESSION, _complain(sink, piece.source)):
        frame = pl.from_arrow(data)
        assert isinstance(frame, pl.DataFrame)
        generate = pl.col("phases").struct.field("generate")
        ends = generate.list.eval(pl.element().struct.field("end_ts"))
        sink.write(
            "areal_sessions",
            frame.filter(pl.col("task_id").is_not_null()).select(
                pl.lit(piece.source).alias("source"),
                "line",
                pl.col("task_id").alias("task"),
                pl.col("session_id").alias("session"),
                pl.col("rank").fill_null(0).alias("rank"),
                "role",
                "status",
                "reason",
                _micros("submit_ts").alias("submit"),
                _micros("finalized_ts").alias("final"),
                (ends.list.max() * 1e6).round().cast(pl.Int64, strict=False).alias("gen_end"),
                (ends.list.len() > ends.list.drop_nulls().list.len()).fill_null(value=False).alias("cut"),
                (generate.list.len() > 0).fill_null(value=False).alias("phased"),
            ),
        )


def _micros(column: str) -> pl.Expr:
    value = pl.col(column)
    return pl.when(value.is_between(1e8, 1e11)).then((value * 1e6).round()).cast(pl.Int64)


def read_perf(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the trainer's spans; profiler events, which may be hundreds of megabytes, are passed over unparsed."""
    rows: list[dict[str, Any]] = []
    complain = _complain(sink, piece.source)
    try:
        for block in blocks(run, piece):
            lines = block.data.split(b"\n")
            for index, data in enumerate(lines):
                if not data.strip():
                    continue
                line, cut = block.first_line + index, block.cut and index == len(lines) - 1
                if not _NAME.search(data):
                    # A line that is no object at all might have been one of ours.
                    if not data.lstrip().startswith(b"{") or not data.rstrip().endswith(b"}"):
                        complain(BadLine(line, "not one JSON object", "", cut=cut))
                    continue
                try:
                    rows.extend({**row, "source": piece.source, "line": line} for row in _spans(orjson.loads(data)))
                except ValueError as error:
                    complain(BadLine(line, str(error), "", cut=cut))
    except DamagedStream as damage:
        complain(BadLine(damage.line, str(damage), "", rest=True))
    if rows:
        sink.write("areal_perf", pa.Table.from_pylist(rows, schema=PERF))


def _spans(record: Any) -> list[dict[str, Any]]:
    if not isinstance(record, dict):
        return []
    name, args = record.get("name"), record.get("args")
    args = args if isinstance(args, dict) else {}
    if name == "process_name" and record.get("ph") == "M":
        return [{"name": "start", "rank": 0}]
    begin, length, step, rank = record.get("ts"), record.get("dur"), args.get("global_step"), args.get("rank")
    rank = rank if is_whole(rank) and abs(rank) >> 31 == 0 else 0
    if isinstance(name, str) and name.endswith(".prepare_batch"):
        return [{"name": name, "rank": rank}]
    if name not in _SPANS or not (is_whole(begin) and is_whole(length) and is_whole(step)):
        return []
    if any(abs(number) >> 62 for number in (begin, length, step)):
        raise ValueError("a number is too large")
    return [{"name": name, "step": step, "begin": begin, "end": begin + length, "rank": rank}]

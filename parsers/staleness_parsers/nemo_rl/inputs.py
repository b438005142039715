"""The other inputs: TensorBoard scalars, dumped rows, checkpoints (guide sections 5.1.2, 5.1.3, 5.2.2 to 5.2.4)."""

from __future__ import annotations

from typing import Any, Final

import orjson
import polars as pl
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.config import UnreadableConfig, read_config
from staleness_audit.readers.json_lines import BadLine, read_json_lines
from staleness_audit.readers.numbers import is_figure, is_whole
from staleness_audit.readers.records import CONFIG, DamagedRecords, Text
from staleness_audit.readers.scalars import read_values
from staleness_audit.readers.torch_files import BadTorchFile, open_torch
from staleness_parsers.nemo_rl.console import worth_keeping
from staleness_parsers.nemo_rl.files import exp_of, step_of
from staleness_parsers.nemo_rl.settings import from_mapping

SCALARS: Final = {
    "source": pl.String,
    "exp": pl.String,
    "tag": pl.String,
    "step": pl.Int64,
    "value": pl.Float64,
    "wall": pl.Float64,
    "record": pl.Int64,
}
ROWS: Final = pl.Schema(
    {
        "source": pl.String,
        "line": pl.Int64,
        "exp": pl.String,
        "step": pl.Int64,
        "row": pl.Int64,
        "prompt": pl.Int64,
        "tokens_lo": pl.Int64,
        "tokens_hi": pl.Int64,
        "masked": pl.Boolean,
    }
)
DUMPS: Final = {"exp": pl.String, "step": pl.Int64, "last": pl.Int64, "rows": pl.Int64}
"""What is looked at of a dump each time: how many rows, and the highest number of one."""
SAVED: Final = {
    "source": pl.String,
    "step": pl.Int64,
    "kind": pl.String,
    "index": pl.Int64,
    "version": pl.Int64,
    "target": pl.Int64,
    "text": pl.String,
}
_TIMES: Final = {"timing/train/total_step_time", "timing/train/exposed_generation", "rollout/idle_s"}
_JSON: Final = pa.schema(
    [
        ("idx", pa.int64()),
        ("input_lengths", pa.list_(pa.int64())),
        ("token_loss_mask", pa.list_(pa.list_(pa.float32()))),
        ("sample_loss_mask", pa.list_(pa.float64())),
    ]
)


def read_events(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage what a tracker's file says about steps, and the configuration that W&B keeps."""
    rows: list[dict[str, Any]] = []
    exp = exp_of(piece.source) or ""
    try:
        for scalar in read_values(run, piece):
            if isinstance(scalar, Text):
                if scalar.tag == CONFIG and (settings := from_mapping(orjson.loads(scalar.text))):
                    _save(sink, piece.source, [{"kind": "config", "text": orjson.dumps(settings).decode()}])
                continue
            tag = scalar.tag
            if (tag in _TIMES or (tag.startswith("train/") and worth_keeping(tag[6:]))) and is_figure(scalar.value):
                rows.append(
                    {
                        "source": piece.source,
                        "exp": exp,
                        "tag": tag,
                        "step": scalar.step,
                        "value": scalar.value,
                        "wall": scalar.wall_time,
                        "record": scalar.record,
                    }
                )
    except DamagedRecords as damage:
        if damage.cut:
            sink.diagnose("note", "cut-events", f"{damage}.", source=piece.source, locator=f"record {damage.record}")
        else:
            sink.diagnose(
                "warning",
                "damaged-events",
                f"{damage}; restore the file.",
                source=piece.source,
                locator=f"record {damage.record}",
                opens="training",
            )
    if rows:
        sink.write("nemo_scalars", pl.DataFrame(rows, schema=SCALARS))


def read_rows(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage one row per trajectory of a ``train_data_step<k>.jsonl``: its sampled tokens and whether it is masked.

    Every value is a one-element list; rows are padded, so only ``input_lengths`` elements of the mask count. The file
    as a whole gets one row, too (``DUMPS``).
    """
    exp, step = exp_of(piece.source) or "", step_of(run.file(piece.source).name)
    numbers: list[pl.Series] = []

    def bad(line: BadLine) -> None:
        if line.cut:
            sink.diagnose(
                "note", "cut-line", "The last row is cut and was left out.", source=piece.source, line=line.line
            )
            return
        what = "everything from here on is" if line.rest else "a row is"
        sink.diagnose(
            "error",
            "damaged-row",
            f"{what} unreadable ({line.why}); restore the file.",
            source=piece.source,
            line=line.line,
            opens="training",
        )

    for table in read_json_lines(run, piece, _JSON, bad):
        frame = pl.DataFrame(table)
        mask = pl.col("token_loss_mask").list.first()
        length = pl.col("input_lengths").list.first()
        count = (
            mask.list.head(pl.coalesce(length, mask.list.len())).list.eval(pl.element() > 0).list.sum().cast(pl.Int64)
        )
        rows = frame.select(
            pl.lit(piece.source).alias("source"),
            pl.col("line"),
            pl.lit(exp).alias("exp"),
            pl.lit(step, pl.Int64).alias("step"),
            pl.coalesce("idx", pl.col("line") - 1).alias("row"),
            (length - count).alias("prompt"),
            pl.coalesce(count, pl.lit(0)).alias("tokens_lo"),
            pl.coalesce(count, length).alias("tokens_hi"),
            (pl.col("sample_loss_mask").list.first() == 0).fill_null(False).alias("masked"),
        )
        sink.write("nemo_rows", rows.cast(ROWS))
        numbers.append(rows["row"])
    if numbers:
        every = pl.concat(numbers)
        told = {"exp": [exp], "step": [step], "last": [every.max()], "rows": [len(every)]}
        sink.write("nemo_dumps", pl.DataFrame(told, schema=DUMPS))


def read_settings(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage what a ``config.yaml`` says."""
    try:
        settings = from_mapping(read_config(run, piece.source))
    except UnreadableConfig as why:
        sink.diagnose("warning", "damaged-config", f"The configuration is unreadable: {why}.", source=piece.source)
        return
    if settings:
        _save(sink, piece.source, [{"kind": "config", "text": orjson.dumps(settings).decode()}])


def read_buffer(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the groups of a checkpoint's buffer: their versions and the steps they are meant for."""
    try:
        with open_torch(run, piece.source, stubs=True) as value:
            _save(sink, piece.source, _buffer(value))
    except BadTorchFile as why:
        sink.diagnose("warning", "damaged-checkpoint", f"The saved buffer is unreadable: {why}.", source=piece.source)


def _buffer(value: object) -> list[dict[str, Any]]:
    """Rows of a saved buffer, oldest first."""
    if not isinstance(value, dict):
        return []
    if isinstance(groups := value.get("groups"), list):
        plain = [group for group in groups if isinstance(group, dict)]
        return [
            {
                "kind": "sc",
                "version": group.get("start_weight"),
                "target": group.get("target_step"),
                "text": group.get("group_id"),
            }
            for group in plain
        ]
    versions, targets = value.get("trajectory_versions"), value.get("target_weight_versions")
    if not isinstance(versions, list) or not isinstance(targets, list) or len(versions) != len(targets):
        return []
    return [{"kind": "ag", "version": v, "target": t, "text": None} for v, t in zip(versions, targets, strict=True)]


def _save(sink: Sink, source: str, rows: list[dict[str, Any]]) -> None:
    kept = [
        {"source": source, "step": step_of(source.removesuffix(".gz").removesuffix(".zst")), "index": index, **row}
        for index, row in enumerate(rows)
        if all(item is None or isinstance(item, str) or (is_whole(item) and is_figure(item)) for item in row.values())
    ]
    if len(kept) < len(rows):
        message = f"{len(rows) - len(kept)} of {len(rows)} groups of the saved buffer are of no version or step."
        sink.diagnose("warning", "damaged-checkpoint", message, source=source)
    if kept:
        sink.write("nemo_saved", pl.DataFrame(kept, schema=SAVED))

"""Reading metric records: trainer_state.json, TensorBoard, trackio (guide sections 5.1 and 5.2).

All carry the same numbers per log record; where one source is damaged or switched off, another will do. Each number is
staged as one row, so that sources can be merged by (attempt, step) later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any, Final

import orjson
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.errors import OptionalReaderMissing
from staleness_audit.parser import Sink
from staleness_audit.readers.config import UnreadableConfig, parse_config, read_config
from staleness_audit.readers.numbers import is_figure
from staleness_audit.readers.records import CONFIG, DamagedRecords, Scalar, Text
from staleness_audit.readers.scalars import read_values
from staleness_audit.readers.sqlite import DamagedDatabase, Database, open_database

KEEP: Final = frozenset(
    {
        "loss",
        "train_runtime",
        "sample/staleness_max",
        "sample/staleness_mean",
        "sample/dropped_stale_total",
        "sample/rollout_queue_size",
        "sample/time_in_queue_s",
        "batch/dropped_oversize_total",
        "batch/samples_per_step",
        "batch/trained_tokens_per_step",
        "batch/groups_per_step",
        "batch/microbatches_per_step",
        "batch/packing_ratio",
        "rollout/samples_per_rollout",
        "rollout/fork_frac",
        "perf/step_s",
        "perf/rollout_wait_s",
        "perf/weight_sync_s",
        "weight_sync_time_s",
        "step_time",
        "iteration_time_s",
        "queue_wait_time_s",
        "buffer_qsize",
    }
)
"""Keys the audit uses or compares, new (1.11+) and old names. ``loss`` marks a record of training."""

RECORDS: Final = pa.schema(
    [
        ("origin", pa.string()),
        ("source", pa.string()),
        ("line", pa.int64()),
        ("locator", pa.string()),
        ("part", pa.string()),
        ("seq", pa.int64()),
        ("step", pa.int64()),
        ("ts", pa.float64()),
        ("name", pa.string()),
        ("value", pa.float64()),
    ]
)
"""Staged ``trl_records``. ``origin``: state, tensorboard, trackio or rollout; ``part``: what belongs to one launch
or is cut into launches later; ``seq`` the order of writing; ``ts`` seconds since 1970; ``value`` null = null or NaN."""

CONFIGS: Final = pa.schema(
    [
        ("origin", pa.string()),
        ("source", pa.string()),
        ("part", pa.string()),
        ("run_name", pa.string()),
        ("document", pa.string()),
    ]
)
"""Staged ``trl_configs``: training arguments as JSON."""

DAMAGE: Final = pa.schema(
    [
        ("origin", pa.string()),
        ("source", pa.string()),
        ("line", pa.int64()),
        ("locator", pa.string()),
        ("why", pa.string()),
    ]
)
"""Staged ``trl_damage``: what could not be read; whether it matters depends on the other sources."""

TRACES: Final = pa.schema(
    [
        ("trace_id", pa.string()),
        ("log_id", pa.string()),
        ("run_id", pa.string()),
        ("ts", pa.float64()),
        ("step", pa.int64()),
        ("trace_index", pa.int64()),
        ("group_id", pa.int64()),
        ("model_version", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("old", pa.bool_()),
        ("source", pa.string()),
        ("locator", pa.string()),
    ]
)
"""Staged ``trl_traces``: one row per delivered sample that trackio got; ``old``: it has 1.10's keys."""

STEPS: Final = ("train/global_step",)
"""Metrics that hold the step in rows of W&B."""


class Writer:
    """Collects rows of one staged table and hands them on in batches."""

    def __init__(self, sink: Sink, table: str, schema: pa.Schema) -> None:
        self._sink, self._table, self._schema = sink, table, schema
        self._rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Take one row; missing columns become null."""
        self._rows.append(row)
        if len(self._rows) >= 1 << 16:
            self.flush()

    def flush(self) -> None:
        """Hand on what was collected."""
        if self._rows:
            self._sink.write(self._table, pa.Table.from_pylist(self._rows, schema=self._schema))
            self._rows = []


def number(value: object) -> float | None:
    """Return a finite number; None for anything else (NaN metrics are logged as null)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if is_figure(value) else None


def whole(value: object) -> int | None:
    """Return an integer of sane size, also if written as a float; None for anything else."""
    found = number(value)
    return int(found) if found is not None and found == int(found) and abs(found) < 1 << 53 else None


def moment(text: object) -> float | None:
    """Return seconds since 1970 of an ISO-8601 time (UTC if it names no zone); None if it is none."""
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)).timestamp()  # noqa: UP017


def damage(
    sink: Sink, origin: str, source: str, why: str, *, line: int | None = None, locator: str | None = None
) -> None:
    """Stage a piece of damage."""
    row = {"origin": origin, "source": source, "line": line, "locator": locator, "why": why}
    sink.write("trl_damage", pa.Table.from_pylist([row], schema=DAMAGE))


def add_record(rows: Writer, common: Mapping[str, Any], items: Iterable[tuple[str, object]]) -> None:
    """Stage the kept numbers of one record."""
    for name, value in items:
        if name in KEEP:
            rows.add({**common, "name": name, "value": number(value)})


def read_state(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the log history of a checkpoint, and that its ``global_step`` was reached."""
    try:
        document = read_config(run, piece.source)
    except UnreadableConfig as error:
        damage(sink, "state", piece.source, str(error))
        return
    history = document.get("log_history")
    if not isinstance(history, list):
        damage(sink, "state", piece.source, "it has no list log_history", locator="log_history")
        history = []
    rows = Writer(sink, "trl_records", RECORDS)
    for index, record in enumerate(history):
        locator = f"log_history[{index}]"
        step = whole(record.get("step")) if isinstance(record, dict) else None
        if step is None:
            damage(sink, "state", piece.source, "a record is no object with a step", locator=locator)
            continue
        common = {"origin": "state", "source": piece.source, "locator": locator, "part": "", "seq": index, "step": step}
        add_record(rows, common, record.items())
    if (reached := whole(document.get("global_step"))) is not None:
        place = {"origin": "state", "source": piece.source, "locator": "global_step", "part": "", "seq": len(history)}
        rows.add({**place, "step": reached, "name": "global_step", "value": float(reached)})
    rows.flush()
    settings = {key: document[key] for key in ("logging_steps", "save_steps", "max_steps") if key in document}
    _config(sink, "state", piece.source, orjson.dumps(settings).decode())


def _config(
    sink: Sink, origin: str, source: str, document: str, *, part: str = "", run_name: str | None = None
) -> None:
    row = {"origin": origin, "source": source, "part": part, "run_name": run_name, "document": document}
    sink.write("trl_configs", pa.Table.from_pylist([row], schema=CONFIGS))


def read_rollout_state(run: RunFiles, piece: Piece, step: int, sink: Sink) -> None:
    """Stage ``rollout_state.json``: its keys date the release, and the file proves that the step was reached."""
    try:
        document = read_config(run, piece.source)
    except UnreadableConfig as error:
        sink.diagnose(
            "note", "rollout-state-unreadable", f"Not read ({error}); no figure needs it.", source=piece.source
        )
        return
    rows = Writer(sink, "trl_records", RECORDS)
    common = {"origin": "rollout", "source": piece.source, "locator": "", "part": "", "seq": 0, "step": step}
    for name in ("prompt_index", "model_version", "trained_prompt_count"):
        if name in document:
            rows.add({**common, "name": name, "value": number(document[name])})
    rows.flush()


def read_events(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the scalars ``train/...`` and the arguments of a piece of an event file, which one launch wrote."""
    rows = Writer(sink, "trl_records", RECORDS)
    try:
        for value in read_values(run, piece, STEPS):
            if isinstance(value, Text):
                if value.tag in ("args/text_summary", CONFIG):
                    _config(sink, "tensorboard", piece.source, value.text, part=piece.source)
            elif (name := value.tag.removeprefix("train/")) in KEEP:
                rows.add(_scalar_row(piece.source, name, value))
    except DamagedRecords as error:
        if error.cut:
            sink.diagnose(
                "note",
                "events-cut",
                f"{error}: it was never written whole.",
                source=piece.source,
                locator=f"record {error.record}",
            )
        else:
            damage(sink, "tensorboard", piece.source, str(error), locator=f"record {error.record}")
    except OptionalReaderMissing as error:
        sink.diagnose("warning", "extra-missing", str(error), source=piece.source)
    rows.flush()


def _scalar_row(source: str, name: str, value: Scalar) -> dict[str, Any]:
    return {
        "origin": "tensorboard",
        "source": source,
        "locator": f"record {value.record}",
        "part": source,
        "seq": value.record,
        "step": value.step,
        "ts": value.wall_time,
        "name": name,
        "value": number(value.value),
    }


def read_trackio(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the metrics, arguments and traces of a trackio database."""
    try:
        with open_database(run, piece.source) as database:
            for read in (_trackio_configs, _trackio_metrics, _trackio_traces):
                try:
                    read(database, piece.source, sink)
                except DamagedDatabase as error:
                    damage(sink, "trackio", piece.source, str(error), locator=read.__name__.removeprefix("_trackio_"))
    except DamagedDatabase as error:
        damage(sink, "trackio", piece.source, str(error))


def _trackio_configs(database: Database, source: str, sink: Sink) -> None:
    for row in database.rows("configs", ("run_id", "run_name", "config"), ("id",)):
        cell, name = row["config"], row["run_name"]
        document = cell.decode("utf-8", errors="replace") if isinstance(cell, bytes) else str(cell)
        run_name = name if isinstance(name, str) else None
        _config(sink, "trackio", source, document, part=str(row["run_id"] or name), run_name=run_name)


def _trackio_metrics(database: Database, source: str, sink: Sink) -> None:
    rows = Writer(sink, "trl_records", RECORDS)
    for row in database.rows("metrics", ("id", "run_id", "run_name", "timestamp", "metrics", "log_id"), ("id",)):
        document = _json(row["metrics"])
        locator = f"metrics[id={row['id']}]"
        if document is None:
            damage(sink, "trackio", source, "a metrics cell is no JSON object", locator=locator)
            continue
        # `step` of the table counts log calls; the training step is inside. Rows without it belong to traces.
        step = whole(document.get("train/global_step"))
        common = {
            "origin": "trackio",
            "source": source,
            "locator": locator,
            "part": str(row["run_id"] or row["run_name"]),
            "seq": row["id"],
            "step": step,
            "ts": moment(row["timestamp"]),
        }
        if step is not None:
            add_record(rows, common, ((key.removeprefix("train/"), value) for key, value in document.items()))
        elif isinstance(row["log_id"], str):
            rows.add({**common, "name": f"flush:{row['log_id']}", "value": None})
    rows.flush()


def _trackio_traces(database: Database, source: str, sink: Sink) -> None:
    rows = Writer(sink, "trl_traces", TRACES)
    wanted = ("id", "run_id", "run_name", "timestamp", "step", "key", "trace_index", "metadata", "log_id")
    for row in database.rows("traces", wanted, ("timestamp", "log_id", "trace_index")):
        if row["key"] not in ("rollouts", None):
            continue
        document = _json(row["metadata"])
        locator = f"traces[id={row['id']}]"
        if document is None:
            damage(sink, "traces", source, "the metadata of a trace is no JSON object", locator=locator)
            document = {}
        keys = ("group_id", "model_version", "prompt_tokens", "completion_tokens")
        rows.add(
            {
                "trace_id": str(row["id"]),
                "log_id": str(row["log_id"] or row["timestamp"]),
                "run_id": str(row["run_id"] or row["run_name"]),
                "ts": moment(row["timestamp"]),
                "step": whole(row["step"]),
                "trace_index": whole(row["trace_index"]),
                **{key: whole(document.get(key)) for key in keys},
                "old": "buffer_qsize" in document or "generation_tok_per_s" in document,
                "source": source,
                "locator": locator,
            }
        )
    rows.flush()


def _json(cell: object) -> dict[str, Any] | None:
    if not isinstance(cell, str | bytes):
        return None
    try:
        document = orjson.loads(cell)
        return document if isinstance(document, dict) else None
    except orjson.JSONDecodeError:
        pass  # NaN is for the reader of configurations to accept
    try:
        return parse_config(cell if isinstance(cell, bytes) else cell.encode("utf-8", errors="replace"), "json")
    except UnreadableConfig:
        return None


def documents(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Pair the rows of ``trl_configs`` with their documents; one that is no JSON object is passed over."""
    for row in rows:
        document = _json(row["document"])
        if document is not None:
            yield row, document

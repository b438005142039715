"""Reading training batches and checkpoints as data (guide sections 5.3 and 5.4).

A batch is a pickle of one object whose state holds raw buffers; no code of it is run, names in it are only noted.
Tensors of older files that pickled themselves are not looked at, the state beside them says the same.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import polars as pl
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.errors import UnreadableInput
from staleness_audit.parser import Sink
from staleness_audit.readers.config import as_json
from staleness_audit.readers.numbers import is_whole
from staleness_audit.readers.pickle_values import BadPickle, Opaque, read_pickle
from staleness_audit.readers.shapes import shaped
from staleness_audit.readers.torch_files import BadTorchFile, Tensor, load, most_bytes, open_torch
from staleness_parsers.skyrl.console import CONFIGS

GROUPS: Final[dict[str, Any]] = {
    "source": pl.String,
    "step": pl.Int64,
    "group": pl.Int64,
    "trajectories": pl.Int64,
    "unmasked": pl.Int64,
    "loss_tokens": pl.Int64,
    "masked_tokens": pl.Int64,
}
"""Staged ``skyrl_groups``, one row per group of a batch, in batch order: its trajectories, those with a token in the
loss, their loss tokens, and the response tokens (environment included) of the others."""

CHECKPOINTS: Final[dict[str, Any]] = {
    "source": pl.String,
    "step": pl.Int64,
    "consumed": pl.Int64,
    "filtered": pl.Int64,
    "epoch": pl.Int64,
}
"""Staged ``skyrl_checkpoints``: how many groups of the current epoch were trained and filtered (null = not
recorded)."""

_DTYPES: Final = {
    "float32": pa.float32(),
    "float64": pa.float64(),
    "float16": pa.float16(),
    "int64": pa.int64(),
    "int32": pa.int32(),
    "int16": pa.int16(),
    "int8": pa.int8(),
    "uint8": pa.uint8(),
}


class _NotABatch(Exception):
    """The pickle holds something else, or lacks what is needed; the message says which."""


def read_dumps(run: RunFiles, pieces: Sequence[Piece], steps: Sequence[int], sink: Sink) -> None:
    """Stage the groups of some training batches."""
    rows = [row for piece, step in zip(pieces, steps, strict=True) for row in _read_dump(run, piece, step, sink)]
    sink.write("skyrl_groups", pl.DataFrame(rows, schema=GROUPS))


def _read_dump(run: RunFiles, piece: Piece, step: int, sink: Sink) -> list[dict[str, Any]]:
    try:
        with run.open(piece.source) as stream, shaped(_NotABatch):
            rows = _groups(_state(stream.read(most_bytes(run.file(piece.source)))))
    except (BadPickle, BadTorchFile, _NotABatch, UnreadableInput, OSError, EOFError) as why:
        sink.diagnose(
            "warning",
            "batch-unreadable",
            f"This training batch cannot be read ({why}); sizes of its groups are taken from the metrics.",
            source=piece.source,
        )
        return []
    return [{"source": piece.source, "step": step} | row for row in rows]


def _state(data: bytes) -> dict[str, Any]:
    """Return ``batch_dict`` and ``metadata`` of the pickled batch."""
    states: list[dict[str, Any]] = []

    def name(module: str, name: str) -> object:
        return Opaque(f"{module}.{name}")

    def call(target: Any, arguments: Any) -> object:
        found = target.name if isinstance(target, Opaque) else ""
        if found.startswith("skyrl"):
            states.extend(item for item in arguments if isinstance(item, dict))
            # Before 2026-03-24 the batch was a dictionary of its own kind; its items are followed by its state.
            return {} if found.endswith("Batch") else Opaque(found)
        return Opaque(f"{found}(...)")

    read_pickle(data, name, call, on_build=lambda _, state: states.append(state) if isinstance(state, dict) else None)
    for state in states:
        if isinstance(state.get("batch_dict"), dict):
            return state
    raise _NotABatch("it holds no batch")


def _groups(state: dict[str, Any]) -> list[dict[str, int]]:
    batch = state["batch_dict"]
    metadata: dict[str, Any] = state["metadata"] if isinstance(state.get("metadata"), dict) else {}
    loss, response = _row_sums(batch.get("loss_mask")), _row_sums(batch.get("response_mask"))
    if loss is None:
        raise _NotABatch("its loss mask is missing")
    rows = len(loss) - _count(metadata.get("pad_size"))
    trajectories = _trajectories(metadata.get("is_last_step", batch.get("is_last_step")), rows)
    found: list[dict[str, int]] = []
    for start, end in _boundaries(metadata.get("policy_prompt_boundaries"), rows):
        members = [range(max(a, start), min(b, end)) for a, b in trajectories if a < end and b > start]
        sums = [sum(loss[row] for row in member) for member in members]
        masked = [member for member, tokens in zip(members, sums, strict=True) if not tokens]
        found.append(
            {
                "group": len(found),
                "trajectories": len(members),
                "unmasked": len(members) - len(masked),
                "loss_tokens": sum(sums),
                "masked_tokens": sum(response[row] for member in masked for row in member) if response else 0,
            }
        )
    return found


def _boundaries(value: object, rows: int) -> list[tuple[int, int]]:
    pairs = [tuple(item) for item in value if len(item) == 2] if isinstance(value, (list, tuple)) else []
    edges = [0, *(end for _, end in pairs)]
    if (
        not pairs
        or edges[-1] != rows
        or any(a >= b or a != start for (a, b), (start, _) in zip(pairs, pairwise(edges), strict=True))
    ):
        raise _NotABatch("it does not say which rows form a group")
    return [(int(start), int(end)) for start, end in pairs]


def _trajectories(last: object, rows: int) -> list[tuple[int, int]]:
    """Return the rows of each trajectory: one, or with step-wise training one per turn up to its last (pitfall 10)."""
    flags = last.get("data") if isinstance(last, dict) else last
    flags = list(flags) if isinstance(flags, (bytes, list, tuple)) else None
    if flags is None or len(flags) < rows:
        return [(row, row + 1) for row in range(rows)]
    ends = [row + 1 for row in range(rows) if flags[row]]
    return list(pairwise([0, *ends]))


def _row_sums(field: object) -> list[int] | None:
    """How many elements of each row of a mask are set; None if there is no such field."""
    if not isinstance(field, dict):
        return None
    if field.get("format") == "torch":
        tensor = load(io.BytesIO(field["data"]))
        if not isinstance(tensor, Tensor) or len(tensor.shape) != 2:
            raise _NotABatch("a mask is no table")
        values = pa.array([float(value) for value in tensor.flat()], pa.float64())
        shape: Sequence[int] = tensor.shape
    else:
        kind, shape, data = _DTYPES.get(str(field.get("dtype"))), field.get("shape", ()), field.get("data")
        if kind is None or not isinstance(data, bytes) or len(shape) != 2:
            raise _NotABatch(f"a mask of type {field.get('dtype')} cannot be read")
        count = int(shape[0]) * int(shape[1])
        if len(data) != count * kind.bit_width // 8:
            raise _NotABatch("a mask is not as large as its shape")
        values = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])
    if not len(values):
        return [0] * int(shape[0])
    width = int(shape[1])
    flags = (pl.Series(values) != 0).cast(pl.UInt32)
    return flags.reshape((len(flags) // width, width)).arr.sum().to_list()


def _count(value: object) -> int:
    return value if is_whole(value) and 0 < value < 1 << 63 else 0


def read_checkpoint(run: RunFiles, piece: Piece, step: int, sink: Sink) -> None:
    """Stage the counts of a ``fully_async_state.pt``, or the configuration of a ``trainer_state.pt``."""
    try:
        with open_torch(run, piece.source) as value:
            content = value if isinstance(value, dict) else {}
    except (BadTorchFile, UnreadableInput) as why:
        sink.diagnose("note", "checkpoint-unreadable", f"This checkpoint cannot be read ({why}).", source=piece.source)
        return
    row: dict[str, Any] = {"source": piece.source, "step": step}
    if isinstance(config := content.get("config"), dict):
        text = as_json(config)
        sink.write("skyrl_configs", pl.DataFrame([row | {"config": text}], schema=CONFIGS))
    if "consumed_uids" in content:
        epoch = content.get("epoch")
        row |= {"consumed": _distinct(content["consumed_uids"]), "filtered": _distinct(content.get("filtered_uids"))}
        row["epoch"] = epoch if is_whole(epoch) and 0 <= epoch < 1 << 31 else None
    sink.write("skyrl_checkpoints", pl.DataFrame([row], schema=CHECKPOINTS))


def _distinct(ids: object) -> int | None:
    """How many ids a list holds; None if it is none."""
    if not isinstance(ids, list) or not all(isinstance(each, str | int) for each in ids):
        return None
    return len(set(ids))

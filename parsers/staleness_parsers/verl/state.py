"""What pickled state holds: TransferQueue checkpoints and the dumps of ``skip.*`` (guide section 5 D, E and J).

V1 (``TABLE``): one staged row per key of the buffer with its tags: prompts (``kind`` ``prompt``: status and admission
step) and trajectories (``row``: admission step, the stamps ``min_global_steps`` and ``max_global_steps``, response
length, and the loss tokens where the storage units or the dump hold the mask). Fully async (``GROUPS``): one row per
trajectory of a dumped group. Pickles are read as data; no class in them is looked up.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import Sink, Unit
from staleness_audit.readers.numbers import is_figure
from staleness_audit.readers.numpy_stubs import array_values, scalar_value
from staleness_audit.readers.shapes import shaped
from staleness_audit.readers.torch_files import BadTorchFile, Stub, Tensor, load, open_torch

TABLE: Final = "verl_keys"
GROUPS: Final = "verl_groups"
UNREAD: Final = "verl_unread_state"
ROWS: Final = {
    "source": pl.String,
    "locator": pl.String,
    "step": pl.Int64,
    "part": pl.Int64,
    "origin": pl.String,
    "kind": pl.String,
    "key": pl.String,
    "uid": pl.String,
    "status": pl.String,
    "admitted": pl.Int64,
    "v_min": pl.Int64,
    "v_max": pl.Int64,
    "prompt_tokens": pl.Int64,
    "response": pl.Int64,
    "loss": pl.Int64,
    "padding": pl.Boolean,
}
GROUP_ROWS: Final = {
    "source": pl.String,
    "feed": pl.Int64,
    "row": pl.Int64,
    "uid": pl.String,
    "v_min": pl.Int64,
    "v_max": pl.Int64,
    "loss": pl.Int64,
    "prompt": pl.String,
    "score": pl.Float64,
}
_UNREAD_ROWS: Final = {"source": pl.String, "step": pl.Int64, "origin": pl.String}
_ITEMS: Final = {
    **{"int64": ("q", 8), "int32": ("i", 4), "int16": ("h", 2), "int8": ("b", 1), "uint8": ("B", 1), "bool": ("?", 1)},
    **{"float32": ("f", 4), "float64": ("d", 8)},
}
"""Code and bytes of the numbers in a consolidated tensordict."""


def group_of(key: str) -> str:
    """Return the group of a row key ``{uid}_{session}_{index}`` (no underscore in the uid, guide pitfall 11)."""
    return key.rsplit("_", 2)[0] if key.count("_") >= 2 else key


def stage_checkpoint(unit: Unit, run: RunFiles, sink: Sink) -> None:
    """Stage a TransferQueue checkpoint: the controller's tags, and the loss masks of the storage units beside it."""
    source, step = str(unit.options["source"]), int(unit.options["step"])
    try:
        with shaped(BadTorchFile), open_torch(run, source, stubs=True) as state:
            tags = dict(_controller_tags(state))
    except BadTorchFile as error:
        _unread(
            sink, source, step, "checkpoint", f"The TransferQueue checkpoint of step {step} cannot be read: {error}"
        )
        return
    masks: dict[int, int] = {}
    for other in unit.options["storage"]:
        try:
            with shaped(BadTorchFile), open_torch(run, str(other), stubs=True) as storage:
                masks.update(_masks(storage))
        except BadTorchFile as error:
            sink.diagnose(
                "warning",
                "storage-unreadable",
                f"A storage unit of the checkpoint of step {step} cannot be read ({error}): loss tokens are only "
                "bounded by response lengths.",
                source=str(other),
            )
    where = {"source": source, "step": step, "part": None, "origin": "checkpoint"}
    rows = [{**where, **_tagged(key, tag, masks.get(index))} for index, (key, tag) in tags.items()]
    sink.write(TABLE, pl.DataFrame(rows, schema=ROWS))


def stage_batch(unit: Unit, run: RunFiles, sink: Sink) -> None:
    """Stage a mini-batch that ``skip.rollout_tq`` dumped."""
    source, step = str(unit.options["source"]), int(unit.options["step"])
    try:
        with shaped(BadTorchFile), open_torch(run, source, stubs=True) as value:
            keys, tags = value.get("keys"), value.get("tags")
            fits = isinstance(keys, list) and isinstance(tags, list) and len(keys) == len(tags)
            losses = _jagged_sums(value.get("tensordict"), len(keys)) if fits else []
    except BadTorchFile as error:
        _unread(sink, source, step, "batch", f"A dumped mini-batch of step {step} cannot be read: {error}")
        return
    if not fits:
        _unread(sink, source, step, "batch", f"A dumped mini-batch of step {step} holds no keys and tags")
        return
    where = {"source": source, "step": step, "part": unit.options["part"], "origin": "batch"}
    rows = [{**where, **_tagged(str(key), tag, loss)} for key, tag, loss in zip(keys, tags, losses, strict=True)]
    sink.write(TABLE, pl.DataFrame(rows, schema=ROWS))


def stage_group(unit: Unit, run: RunFiles, sink: Sink) -> None:
    """Stage a group that ``skip.async_rollout`` dumped."""
    source, feed = str(unit.options["source"]), int(unit.options["feed"])
    try:
        with shaped(BadTorchFile), open_torch(run, source, stubs=True) as value:
            rows = _group_rows(value)
    except BadTorchFile as error:
        _unread(sink, source, feed, "group", f"The dumped group {feed} cannot be read: {error}")
        return
    frame = [{"source": source, "feed": feed, "row": at, **row} for at, row in enumerate(rows)]
    sink.write(GROUPS, pl.DataFrame(frame, schema=GROUP_ROWS))


def _unread(sink: Sink, source: str, step: int, origin: str, message: str) -> None:
    row = {"source": source, "step": step, "origin": origin}
    sink.write(UNREAD, pl.DataFrame([row], schema=_UNREAD_ROWS))
    sink.diagnose(
        "warning", f"{origin}-unreadable", f"{message}; what else the run left is used instead.", source=source
    )


def _controller_tags(state: object) -> Iterator[tuple[int, tuple[str, Mapping[str, Any]]]]:
    """Yield index, key and tag of everything in the partition ``train``."""
    partitions = state.get("partitions") if isinstance(state, dict) else None
    train = partitions.get("train") if isinstance(partitions, dict) else None
    inside = train.state if isinstance(train, Stub) else train
    if isinstance(inside, tuple):  # a class with slots: (None, attributes)
        inside = next((part for part in inside if isinstance(part, dict)), None)
    if not isinstance(inside, dict) or not isinstance(inside.get("keys_mapping"), dict):
        raise BadTorchFile("it has no partition of training rows")
    metas = inside.get("custom_meta") or {}
    for key, index in inside["keys_mapping"].items():
        tag = metas.get(index)
        yield index, (str(key), tag if isinstance(tag, dict) else {})


def _tagged(key: str, tag: Mapping[str, Any], loss: int | None) -> dict[str, Any]:
    prompt = bool(tag.get("is_prompt"))
    return {
        "locator": key,
        "kind": "prompt" if prompt else "row",
        "key": key,
        "uid": key if prompt else group_of(key),
        "status": None if tag.get("status") is None else str(tag["status"]),
        "admitted": _whole(tag.get("global_steps")),
        "v_min": _whole(tag.get("min_global_steps")),
        "v_max": _whole(tag.get("max_global_steps")),
        "prompt_tokens": _whole(tag.get("prompt_len")),
        "response": _whole(tag.get("response_len")),
        "loss": loss,
        "padding": bool(tag.get("is_padding")) or (key.startswith("pad") and "-" not in key),
    }


def _whole(value: object) -> int | None:
    value = scalar_value(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if is_figure(value) else None


def _masks(storage: object) -> Iterator[tuple[int, int]]:
    """Yield index and number of ones of each response mask in a storage unit."""
    fields = storage.get("field_data") if isinstance(storage, dict) else None
    masks = fields.get("response_mask") if isinstance(fields, dict) else None
    for index, mask in (masks or {}).items():
        if isinstance(mask, Tensor):
            yield index, sum(1 for value in mask.flat() if value)


def _jagged_sums(value: object, rows: int) -> list[int | None]:
    """Count the ones of each row's response mask in a pickled TensorDict of nested or padded tensors."""
    state = value.arguments[1] if isinstance(value, Stub) and len(value.arguments) > 1 else None
    fields = state.get("_tensordict") if isinstance(state, dict) else None
    mask = fields.get("response_mask") if isinstance(fields, dict) else None
    if isinstance(mask, Tensor) and len(mask.shape) == 2 and mask.shape[0] == rows:
        return [sum(1 for item in row if item) for row in mask.tolist()]
    if not (isinstance(mask, Stub) and mask.arguments and isinstance(mask.arguments[0], dict)):
        return [None] * rows
    values, offsets = mask.arguments[0].get("values"), mask.arguments[0].get("offsets")
    if not (isinstance(values, Tensor) and isinstance(offsets, Tensor)) or offsets.numel != rows + 1:
        return [None] * rows
    flat, ends = values.flat(), offsets.flat()
    return [sum(1 for item in flat[start:end] if item) for start, end in itertools.pairwise(ends)]


_GROUP_COLUMNS: Final = {
    "uid": ("uid",),
    "v_min": ("param_version_start", "min_global_steps"),
    "v_max": ("param_version_end", "max_global_steps"),
    "raw_prompt": ("raw_prompt",),
}
"""Columns of a dumped group by their names up to 0.7.0 and since 0.7.1."""


def _group_rows(value: object) -> list[dict[str, Any]]:
    """Rows of a dumped ``DataProto``: (archive of tensors, arrays by name, meta)."""
    state = value.state if isinstance(value, Stub) else value
    if not (
        isinstance(state, tuple) and len(state) >= 2 and isinstance(state[0], bytes) and isinstance(state[1], dict)
    ):
        raise BadTorchFile("it holds no batch of trajectories")
    columns = {
        name: array_values(state[1][spelling])
        for name, spellings in _GROUP_COLUMNS.items()
        for spelling in spellings
        if spelling in state[1]
    }
    if "uid" not in columns:
        raise BadTorchFile("its trajectories have no ids")
    count = len(columns["uid"])
    archive = load(io.BytesIO(state[0]), stubs=True)
    masks, scores = (_leaf_rows(archive, name) for name in ("response_mask", "rm_scores"))
    rows = []
    for at in range(count):
        low, high = (_whole(columns[name][at]) if name in columns else None for name in ("v_min", "v_max"))
        rows.append(
            {
                "uid": str(columns["uid"][at]),
                "v_min": low,
                "v_max": high,
                "loss": None if masks is None else sum(1 for item in masks[at] if item),
                "prompt": _prompt(columns.get("raw_prompt", [None] * count)[at]),
                "score": None if scores is None else float(sum(scores[at])),
            }
        )
    return rows


def _leaf_rows(archive: object, name: str) -> list[list[Any]] | None:
    """Return the rows of one tensor of a consolidated tensordict: a table of leaves, and all their bytes in one."""
    if isinstance(archive, dict) and isinstance(archive.get(name), Tensor):
        return archive[name].tolist()  # type: ignore[no-any-return]
    if not (isinstance(archive, Stub) and len(archive.arguments) >= 2):
        return None
    meta, storage = archive.arguments[:2]
    leaf = (meta.get("leaves") or {}).get(name) if isinstance(meta, dict) else None
    if not (isinstance(leaf, tuple) and len(leaf) >= 4 and isinstance(storage, Tensor)):
        return None
    dtype, shape, start, end = str(leaf[0]).removeprefix("torch."), leaf[1], leaf[2], leaf[3]
    if dtype not in _ITEMS or len(shape) != 2:
        return None
    code: Any
    code, width = _ITEMS[dtype]
    size = shape[0] * shape[1] * width
    if size > end - start:
        return None
    data = storage.raw()[start : start + size]
    numbers = memoryview(data).cast(code).tolist()
    return [numbers[row * shape[1] : (row + 1) * shape[1]] for row in range(shape[0])]


def _prompt(messages: object) -> str | None:
    """Text of the last message that has one: the dump of decoded texts holds it inside its ``input``."""
    for message in reversed(messages) if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str) and content.strip():
            return content
    return None

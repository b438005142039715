"""Batches as they were sampled: rollout dumps, rollout-mock pickles and board files (guide sections 5.2 to 5.5).

A dump is one line per file, an object of columns. A pickle is read by the shared reader that calls nothing. Row order
is the order of the batch in both; the driver reorders rows before it writes board files.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
import polars as pl

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.lines import DamagedStream, blocks
from staleness_audit.readers.numbers import is_whole
from staleness_audit.readers.shapes import shaped
from staleness_audit.readers.torch_files import BadTorchFile, Stub, Tensor, load, open_torch
from staleness_parsers.roll.files import DUMP, PICKLE

ROWS: Final[dict[str, Any]] = {
    "kind": pl.String,  # pickle or dump
    "agentic": pl.Boolean,
    "step": pl.Int64,
    "place": pl.Int64,  # position in the batch
    "key": pl.String,  # rollout_id, traj_id
    "grp": pl.String,  # dataset id, traj_group_id
    "domain": pl.String,
    "turn": pl.Int64,  # of step-wise managers
    "tokens": pl.Int64,
    "runs": pl.List(pl.Int64),  # lengths of the runs of ones in the mask: turns
    "name": pl.String,  # trajectory_id of trajectory_data
    "first_start": pl.Int64,  # start step of the batch's first row
    "first_request": pl.String,
    "source": pl.String,
    "locator": pl.String,
}
_AGENT = re.compile(r"_(?P<group>\d+)_(?P<episode>\d{1,18})_(?P<seed>-?\d+)\Z")
_TURNS = re.compile(rb"\x01+")
MAX_DUMP_BYTES: Final = 1 << 30


def read_dump(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage ``rows`` of one rollout dump; rows of validation (section 5.3, trap) are told by ``env_info.mode``."""
    found = DUMP.match(run.file(piece.source).name)
    assert found is not None
    step = int(found["step"])
    # Validation overwrites the agentic pipeline's dump (trap of section 5.3), but at the step it is named by.
    sink.write("begun", pl.DataFrame({"step": [step], "source": [piece.source]}))
    try:
        with run.open(piece.source) as stream:
            data = stream.read(MAX_DUMP_BYTES + 1)
        columns = orjson.loads(data) if len(data) <= MAX_DUMP_BYTES else None
    except Exception as error:
        columns, data = None, str(error).encode()
    if not isinstance(columns, dict) or not _even(columns):
        _damaged(sink, piece.source, "is not one JSON object of equally long columns", step)
        return
    logged = columns.get("global_step") or [step]
    if any(value != logged[0] for value in logged) or not is_whole(logged[0]):
        _damaged(sink, piece.source, "names no step or several", step)
        return
    if "trajectory_data" in columns:
        rows = list(_agent_dump(columns, logged[0], piece.source))
    else:
        rows = list(_prompt_dump(columns, logged[0], piece.source))
    if rows:
        sink.write("rows", pl.DataFrame(rows, schema=ROWS))


def read_appended(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage ``rows`` of v0.1.0's dumps, a line per step; of a step that was run again the later line counts."""
    found: dict[int, list[dict[str, Any]]] = {}
    try:
        for number, text, cut in _numbered(run, piece):
            columns = _parsed(text)
            steps = columns.get("global_step")
            if not text.strip() or (cut and not columns):
                continue  # a line that is cut did not happen
            if not _even(columns) or not isinstance(steps, list) or not steps or len(set(map(str, steps))) > 1:
                message = "The line is no batch with its step; restore the file."
                sink.diagnose("error", "bad-batch", message, source=piece.source, line=number, opens="training")
                continue
            rows = list(_prompt_dump(columns, int(steps[0]), piece.source))
            found[steps[0]] = [row | {"locator": f"line {number}, {row['locator']}"} for row in rows]
    except DamagedStream as damage:
        message = f"{damage}; what follows was not read, restore the file."
        sink.diagnose("error", "bad-batch", message, source=piece.source, line=damage.line, opens="training")
    sink.write("begun", pl.DataFrame({"step": list(found), "source": [piece.source] * len(found)}))
    if rows := [row for batch in found.values() for row in batch]:
        sink.write("rows", pl.DataFrame(rows, schema=ROWS))


def _numbered(run: RunFiles, piece: Piece) -> Iterator[tuple[int, bytes, bool]]:
    for block in blocks(run, piece):
        lines = block.data.split(b"\n")
        for number, text in enumerate(lines, block.first_line):
            yield number, text, block.cut and number == block.first_line + len(lines) - 1


def _even(columns: Mapping[str, Any]) -> bool:
    return all(isinstance(column, list) for column in columns.values()) and len(set(map(len, columns.values()))) <= 1


def _damaged(sink: Sink, source: str, why: str, step: int) -> None:
    # A dump tells who was in a batch; that the batch was trained is known from elsewhere.
    message = f"The file {why}, so the batch of step {step} is not known from it; restore the file."
    sink.diagnose("error", "bad-batch", message, source=source, opens="training")


def _row(kind: str, step: int, place: int, source: str, **cells: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(ROWS)
    row.update(kind=kind, step=step, place=place, source=source, locator=f"rows[{place}]", agentic=False)
    row.update(cells)
    return row


def _prompt_dump(columns: Mapping[str, Any], step: int, source: str) -> Iterator[dict[str, Any]]:
    size = len(columns.get("global_step", []))
    about = _parsed((columns.get("sampling_params") or [None])[0])
    ids, domains = columns.get("id", [None] * size), columns.get("domain", [None] * size)
    for place in range(size):
        yield _row(
            "dump",
            step,
            place,
            source,
            grp=_text(ids[place]),
            domain=_text(domains[place]),
            first_start=_whole(about.get("global_step")),
            first_request=_text(about.get("request_id")),
        )


def _agent_dump(columns: Mapping[str, Any], step: int, source: str) -> Iterator[dict[str, Any]]:
    for place, text in enumerate(columns["trajectory_data"]):
        about = _parsed(text)
        if _dict(about.get("env_info")).get("mode") == "val" or not isinstance(about.get("trajectory_id"), str):
            continue
        name = about["trajectory_id"]
        where = _dict(about.get("env_info"))
        group = None
        if _whole(where.get("episode_id")) is not None:
            group = f"{where.get('tag')}_{where.get('group_id')}_{where.get('episode_id')}_{where.get('seed')}"
        elif found := re.match(r"(?P<group>.+_\d+_\d+_-?\d+)_\d+_\d{8}_\d{6}", name):
            group = found["group"]
        yield _row("dump", step, place, source, agentic=True, name=name, grp=group)


def read_pickle_batch(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage ``rows`` of one pickled training batch."""
    found = PICKLE.match(run.file(piece.source).name)
    assert found is not None
    step = int(found["step"])
    try:
        with shaped(BadTorchFile), open_torch(run, piece.source, stubs=True) as value:
            state = value.state if isinstance(value, Stub) else None
            rows = list(_batch(state, step, piece.source))
    except BadTorchFile as error:
        _damaged(sink, piece.source, f"cannot be read ({error})", step)
        return
    if rows:
        sink.write("rows", pl.DataFrame(rows, schema=ROWS))


def _batch(state: object, step: int, source: str) -> Iterator[dict[str, Any]]:
    if not isinstance(state, tuple) or len(state) < 4:
        raise BadTorchFile("it is no batch of ROLL")
    buffer, objects, _, meta = state[:4]
    return _pickled(_tensors(buffer), _dict(objects), _dict(meta), step, source)


def _tensors(buffer: object) -> Mapping[str, Any]:
    """Tensors of the batch: a ``torch.save`` archive inside an in-memory file."""
    if not isinstance(buffer, Stub):
        return {}
    data = buffer.state[0] if isinstance(buffer.state, tuple) and buffer.state else (buffer.arguments or (b"",))[0]
    value = load(io.BytesIO(data), stubs=True) if isinstance(data, bytes) and data else None
    for part in [*value.arguments, value.state] if isinstance(value, Stub) else [value]:
        if isinstance(part, dict):
            inner = part.get("_tensordict", part)
            return _dict(inner)
    return {}


def _column(objects: Mapping[str, Any], name: str, size: int) -> list[Any]:
    array = objects.get(name)
    state = array.state if isinstance(array, Stub) else None
    values = state[4] if isinstance(state, tuple) and len(state) > 4 else array
    return values if isinstance(values, list) and len(values) == size else [None] * size


def _pickled(
    tensors: Mapping[str, Any], objects: Mapping[str, Any], meta: Mapping[str, Any], step: int, source: str
) -> Iterator[dict[str, Any]]:
    mask = tensors.get("response_mask")
    if not isinstance(mask, Tensor) or len(mask.shape) != 2:
        raise BadTorchFile("it has no response_mask")
    size, width = mask.shape
    flat = mask.flat()
    agentic = "traj_id" in objects
    keys = _column(objects, "traj_id" if agentic else "rollout_id", size)
    groups = _column(objects, "traj_group_id" if agentic else "id", size)
    domains, turns = _column(objects, "domain", size), _column(objects, "step", size)
    names = [_parsed(text).get("trajectory_id") for text in _column(objects, "trajectory_data", size)]
    for place in range(size):
        ones = bytes(map(bool, flat[place * width : (place + 1) * width]))
        runs = [len(run) for run in _TURNS.findall(ones)]
        yield _row(
            "pickle",
            step,
            place,
            source,
            agentic=agentic,
            key=_text(keys[place]),
            grp=_text(groups[place]),
            domain=_text(domains[place]),
            turn=_whole(turns[place]),
            tokens=sum(runs),
            runs=runs,
            name=_text(names[place]),
            first_start=None if agentic else _whole(meta.get("global_step")),
            first_request=None if agentic else _text(meta.get("request_id")),
        )


def read_board(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage ``boards``: per file its step, number of samples and response tokens (their order means nothing)."""
    try:
        counts = [_sample(text, line) for line, text, _ in _numbered(run, piece) if text.strip()]
    except DamagedStream as damage:
        # Everything a board file counts is a sum over all its lines.
        message = f"{damage}; its counts are not used."
        sink.diagnose("warning", "bad-board", message, source=piece.source, line=damage.line)
        return
    steps = {step for step, _ in counts}
    if len(steps) == 1:
        tokens = sum(tokens for _, tokens in counts)
        row = {"step": steps.pop(), "samples": len(counts), "tokens": tokens, "source": piece.source}
        sink.write("boards", pl.DataFrame([row]))


def _sample(text: bytes, line: int) -> tuple[int, int]:
    """Step and response tokens of one line of a board file."""
    row = _parsed(text)
    mask, step = row.get("new_response_mask"), _whole(row.get("step"))
    if not isinstance(mask, list) or step is None:
        raise DamagedStream("a line is no sample of a board file", line)
    return step, sum(1 for value in mask if value)


def split_group(group: str | None) -> tuple[str, int] | None:
    """Group and episode of a ``traj_group_id`` (``{tag}_{group_id}_{episode_id}_{group_seed}``)."""
    found = _AGENT.search(group or "")
    return (found["group"], int(found["episode"])) if found else None


def _parsed(text: object) -> Mapping[str, Any]:
    if not isinstance(text, str | bytes):
        return {}
    try:
        value = orjson.loads(text)
    except ValueError:
        try:
            value = json.loads(text)  # NaN
        except ValueError:
            return {}
    return _dict(value)


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _whole(value: object) -> int | None:
    return value if is_whole(value) else None


READERS: Final = {"dump": read_dump, "appended": read_appended, "pickle": read_pickle_batch, "board": read_board}


def read_batches(kind: str, run: RunFiles, pieces: Sequence[Piece], sink: Sink) -> None:
    """Read a bundle of files of one kind."""
    for piece in pieces:
        READERS[kind](run, piece, sink)

"""Reading trace files: one row per trace and one per turn, in whichever of the three shapes a line has.

A line is an *episode* (holds ``traces``; since 2026-08), a *trace* (v0.7.0-v0.8.0), or a *rollout* (v0.6.0, guide
section 5.1). Lines can be megabytes long with arrays per token, so a line is reduced at once to a few numbers per turn:
staged tables ``prime_traces`` and ``prime_turns``. Which of several rows of a trace counts is decided in ``lives``.

A turn is a node of the message graph with tokens of the policy. What a cut at ``seq_len`` leaves of it depends only on
where it stands on its path from the root, and a node shared by branches trains once; so the position, the length and
the place of the sampled tokens inside the node are kept and the cut is computed when the configuration is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.lines import DamagedStream, blocks
from staleness_audit.readers.numbers import is_whole
from staleness_parsers.prime_rl.files import TraceFile, trace_file
from staleness_parsers.prime_rl.values import dig, flag, items, moment, number, table, text, whole

BATCH_ROWS = 1 << 14

_KEY = [
    ("trajectory", pa.string()),
    ("part", pa.string()),
    ("step", pa.int32()),
    ("source", pa.string()),
    ("line", pa.int64()),
    ("ordinal", pa.int32()),
]
TRACES = pa.schema(
    [
        *_KEY,
        ("role", pa.string()),
        ("form", pa.string()),
        ("named", pa.bool_()),
        ("episode", pa.string()),
        ("grp", pa.string()),
        ("env", pa.string()),
        ("agent", pa.string()),
        ("v_start", pa.int32()),
        ("v_end", pa.int32()),
        ("dispatch_step", pa.int32()),
        ("clean", pa.bool_()),
        ("error", pa.string()),
        ("trainable", pa.bool_()),
        ("filtered", pa.bool_()),
        ("reward", pa.float64()),
        ("tokens", pa.int64()),
        ("prompt", pa.int64()),
        ("began", pa.float64()),
        ("generated", pa.float64()),
        ("scored", pa.float64()),
        ("first_call", pa.float64()),
        ("last_call", pa.float64()),
        ("commit", pa.string()),
    ]
)
"""Staged rows of traces (and of episodes that failed without one: ``named`` is false).

Times are epoch seconds: the episode began, its last request ended, it was scored."""

TURNS = pa.schema(
    [
        *_KEY,
        ("node", pa.int64()),
        ("token_start", pa.int64()),
        ("tokens", pa.int64()),
        ("position", pa.int64()),
        ("length", pa.int64()),
        ("head", pa.int64()),
        ("contiguous", pa.bool_()),
        ("weighted", pa.int64()),
        ("call_start", pa.float64()),
        ("call_end", pa.float64()),
    ]
)
"""Staged rows of turns: ``position`` tokens precede the node on its path, ``head`` unsampled ones inside it;
``weighted`` counts sampled tokens of a loss weight other than zero (null: the file says nothing about weights)."""


class Turn(NamedTuple):
    """One turn; the columns of ``TURNS`` without the key."""

    node: int
    token_start: int | None
    tokens: int | None
    position: int | None
    length: int | None
    head: int | None
    contiguous: bool | None
    weighted: int | None
    call_start: float | None
    call_end: float | None


_UNKNOWN = Turn(0, 0, None, None, None, None, None, None, None, None)
"""Stands for all tokens of a record that does not say how many it has."""


def read_traces(run: RunFiles, pieces: Sequence[Piece], sink: Sink) -> None:
    """Stage the traces of some files; what cannot be read becomes a diagnostic and a ``prime_damage`` row."""
    rows = _Rows(sink)
    for piece in pieces:
        where = trace_file(run.file(piece.source))
        if where is None:
            raise ValueError(f"{piece.source} is not a file of traces")
        try:
            for line, data, cut in _lines(run, piece):
                _read_line(line, data, cut, where, rows)
        except DamagedStream as damage:
            message = f"From here on the file cannot be read ({damage}); restore it from a copy."
            _damaged(where, rows, damage.line, message)
    rows.flush()


def _lines(run: RunFiles, piece: Piece) -> Iterator[tuple[int, bytes, bool]]:
    for block in blocks(run, piece):
        lines = block.data.split(b"\n")
        for index, data in enumerate(lines):
            if data.strip():
                yield block.first_line + index, data, block.cut and index == len(lines) - 1


def _read_line(line: int, data: bytes, cut: bool, where: TraceFile, rows: _Rows) -> None:
    try:
        record = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if cut:
            if where.role == "train":
                rows.damaged(where, line, cut=True)
            return
        _damaged(where, rows, line, f"Not a JSON object ({error}); restore the line from a copy of the file.")
        return
    if not isinstance(record, dict):
        _damaged(where, rows, line, "Not a JSON object; restore the line from a copy of the file.")
        return
    if where.form == "rollouts":
        _rollout(record, line, where, rows)
    elif "traces" in record or "nodes" not in record:
        _episode(record, line, where, rows)
    else:
        _single_trace(record, line, where, rows)


def _damaged(where: TraceFile, rows: _Rows, line: int, message: str) -> None:
    """Report a lost line: one of ``effective`` may have held trained tokens, one of ``all`` only fates."""
    opens = None if where.role == "eval" else "training" if where.part == "effective" else "fates"
    rows.sink.diagnose("error", "trace-line-damaged", message, source=where.file.source, line=line, opens=opens)  # type: ignore[arg-type]
    if where.role == "train":
        rows.damaged(where, line, cut=False)


def _episode(record: dict[str, Any], line: int, where: TraceFile, rows: _Rows) -> None:
    """Take one environment run: the span of versions is the episode's, tokens and outcome are its traces'."""
    work = table(dig(record, "run", "work"))
    if (kind := text(work.get("type"))) is not None and kind != where.role:
        _damaged(where, rows, line, f"A record of {kind!r} work in a folder of {where.role} work; it is left out.")
        return
    episode = text(record.get("id"))
    common = {
        "form": "episode",
        "episode": episode or f"{where.file.source}:{line}",
        "grp": text(dig(record, "group", "id")),
        "env": text(dig(record, "env", "name")) or text(dig(record, "env", "id")),
        "v_start": whole(dig(work, "policy", "start")),
        "v_end": whole(dig(work, "policy", "end")),
        "dispatch_step": whole(work.get("step")),
    }
    error = _error(record)
    traces = record.get("traces")
    if traces is not None and not isinstance(traces, list):
        _damaged(where, rows, line, "`traces` is not a list; restore the line from a copy of the file.")
        return
    found = [trace for trace in items(traces) if isinstance(trace, dict)]
    if len(found) != len(items(traces)):
        _damaged(where, rows, line, "A trace is not an object; restore the line from a copy of the file.")
    if not found:
        rows.trace(
            where,
            line,
            0,
            common
            | {
                "trajectory": f"episode/{common['episode']}",
                "named": False,
                "clean": False,
                "error": error or "no trace",
            },
            [_UNKNOWN],
        )
    for ordinal, trace in enumerate(found):
        _trace(trace, line, ordinal, common, error, flag(record.get("ok")), where, rows)


def _single_trace(record: dict[str, Any], line: int, where: TraceFile, rows: _Rows) -> None:
    """Take a line of v0.7.0-v0.8.0: provenance stands on the trace, and nothing says which version it ended under."""
    info = table(record.get("info"))
    common = {
        "form": "trace",
        "episode": text(info.get("episode_id")) or f"{where.file.source}:{line}",
        "grp": text(info.get("group_id")),
        "env": text(info.get("env_name")),
        "v_start": whole(info.get("policy_version")),
        "v_end": None,
        "dispatch_step": None,
    }
    _trace(record, line, 0, common, None, True, where, rows)


def _trace(
    trace: dict[str, Any],
    line: int,
    ordinal: int,
    common: dict[str, Any],
    error: str | None,
    episode_ok: bool | None,
    where: TraceFile,
    rows: _Rows,
) -> None:
    turns = _turns(trace)
    if turns is None:
        _damaged(where, rows, line, f"traces[{ordinal}]: `nodes` or `calls` has another shape than this format writes.")
        turns = [_UNKNOWN]
    timing = table(trace.get("timing"))
    began = moment(timing.get("start"))
    own_error = _error(trace)
    failed = flag(trace.get("ok")) is False or (own_error is not None and flag(trace.get("ok")) is not True)
    episode_failed = episode_ok is False or (error is not None and episode_ok is not True)
    identity = text(trace.get("id"))
    rows.trace(
        where,
        line,
        ordinal,
        common
        | {
            "trajectory": identity or f"{where.file.source}:{line}#{ordinal}",
            "named": identity is not None,
            "agent": text(dig(trace, "agent", "name")),
            "clean": not (failed or episode_failed),
            "error": own_error or error,
            "trainable": flag(dig(trace, "agent", "trainable")),
            "reward": _reward(trace.get("rewards")),
            "tokens": None if any(turn.tokens is None for turn in turns) else sum(turn.tokens or 0 for turn in turns),
            "prompt": turns[0].position if turns else None,
            "began": began,
            "generated": max((turn.call_end for turn in turns if turn.call_end is not None), default=None),
            "scored": moment(dig(timing, "scoring", "end")) or moment(dig(timing, "agent", "end")),
            "commit": text(dig(trace, "verifiers", "commit")),
        },
        turns,
    )


def _rollout(record: dict[str, Any], line: int, where: TraceFile, rows: _Rows) -> None:
    """Take a line of v0.6.0: the whole selected batch with filter marks; tokens are not in it."""
    start = whole(record.get("policy_version"))
    identity = text(record.get("rollout_id"))
    example = record.get("example_id")
    rows.trace(
        where,
        line,
        0,
        {
            "form": "rollout",
            "trajectory": identity or f"{where.file.source}:{line}",
            "named": identity is not None,
            "episode": identity or f"{where.file.source}:{line}",
            "grp": text(record.get("group_id")) or (None if example is None else f"step_{where.step}/{example}"),
            "env": text(record.get("env_name")),
            "v_start": start,
            "clean": record.get("error") in (None, "", {}),
            "error": text(record.get("error")) or ("error" if record.get("error") else None),
            "filtered": flag(record.get("is_filtered")),
            "reward": number(record.get("reward")),
        },
        [_UNKNOWN],
    )


def _error(record: dict[str, Any]) -> str | None:
    """Return the first error as ``type: message``, cut short; None if there is none."""
    for entry in items(record.get("errors")):
        kind, message = text(dig(entry, "type")) or "error", text(dig(entry, "message")) or ""
        return f"{kind}: {message}"[:200]
    return None


def _reward(rewards: Any) -> float | None:
    """Return the sum of score times weight (guide 5.1); a part that cannot be read makes it unknown."""
    total = 0.0
    for entry in table(rewards).values():
        score, weight = number(dig(entry, "score")), number(dig(entry, "weight"))
        if score is None:
            return None
        total += score * (1.0 if weight is None else weight)
    return total if isinstance(rewards, dict) and rewards else None


def _turns(trace: dict[str, Any]) -> list[Turn] | None:
    """List turns in the order of their nodes; None if the message graph has another shape than the format's."""
    nodes, calls = trace.get("nodes"), trace.get("calls")
    if not isinstance(nodes, list) or not (calls is None or isinstance(calls, list)):
        return None
    by_node = _calls(items(calls))
    positions: list[int | None] = []
    lengths: list[int | None] = []
    turns: list[Turn] = []
    total: int | None = 0
    for index, node in enumerate(nodes):
        if not isinstance(node, dict):
            return None
        mask = node.get("mask")
        if not (mask is None or isinstance(mask, list)):
            return None
        positions.append(_position(node.get("parent"), positions, lengths))
        lengths.append(
            len(mask) if mask is not None else len(node["token_ids"]) if _is_list(node, "token_ids") else None
        )
        sampled = mask.count(True) if mask is not None else None
        if sampled == 0 or (sampled is None and node.get("sampled") is not True):
            continue
        start, end, usage = by_node.get(index, (None, moment(node.get("timestamp")), None))
        tokens = usage if sampled is None else sampled
        head = mask.index(True) if mask is not None else None
        turns.append(
            Turn(
                index,
                total,
                tokens,
                positions[index],
                lengths[index],
                head,
                None
                if mask is None or head is None or sampled is None
                else mask[head : head + sampled].count(True) == sampled,
                _weighted(node.get("loss_weights"), mask, sampled),
                start,
                end,
            )
        )
        total = None if total is None or tokens is None else total + tokens
    return turns


def _is_list(node: dict[str, Any], key: str) -> bool:
    return isinstance(node.get(key), list)


def _position(parent: Any, positions: list[int | None], lengths: list[int | None]) -> int | None:
    """Count the tokens before a node on its path from the root; parents stand before their children."""
    if parent is None:
        return 0
    if not is_whole(parent) or not 0 <= parent < len(positions):
        return None
    before, length = positions[parent], lengths[parent]
    return None if before is None or length is None else before + length


def _weighted(weights: Any, mask: list[Any] | None, sampled: int | None) -> int | None:
    """Count sampled tokens with a loss weight; weights are laid out like the mask or like its true entries."""
    if not isinstance(weights, list) or not weights or mask is None or sampled is None:
        return None
    if len(weights) == len(mask):
        return sum(1 for weight, mine in zip(weights, mask, strict=True) if mine is True and weight)
    return sum(1 for weight in weights if weight) if len(weights) == sampled else None


def _calls(calls: list[Any]) -> dict[int, tuple[float | None, float | None, int | None]]:
    """Per node: when its first request began, when its last one ended, and the completion tokens they report.

    A call without a node made no turn of the trace (a failed request).
    """
    found: dict[int, tuple[float | None, float | None, int | None]] = {}
    for call in calls:
        node = whole(dig(call, "node"))
        if node is None:
            continue
        start, end = moment(dig(call, "time", "start")), moment(dig(call, "time", "end"))
        usage = whole(dig(call, "usage", "completion_tokens"))
        if node in found:
            # Several requests for one node: which of them made its tokens is not recorded, so the whole stretch counts.
            first, last, _ = found[node]
            start = None if start is None or first is None else min(start, first)
            end = None if end is None or last is None else max(end, last)
            usage = None
        found[node] = (start, end, usage)
    return found


class _Rows:
    """Collects staged rows and hands them on in batches."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._damage: list[dict[str, Any]] = []
        self._traces: list[dict[str, Any]] = []
        self._turns: list[tuple[Any, ...]] = []

    def trace(self, where: TraceFile, line: int, ordinal: int, values: dict[str, Any], turns: list[Turn]) -> None:
        """Take one trace. Turns of eval work are not needed and left out."""
        key = {"part": where.part, "step": where.step, "source": where.file.source, "line": line, "ordinal": ordinal}
        calls = {
            "first_call": min((turn.call_start for turn in turns if turn.call_start is not None), default=None),
            "last_call": max((turn.call_end for turn in turns if turn.call_end is not None), default=None),
        }
        self._traces.append({"role": where.role, **key, **values, **calls})
        if where.role == "train":
            first = (values["trajectory"], *key.values())
            self._turns.extend((*first, *turn) for turn in turns)
        if len(self._traces) >= BATCH_ROWS or len(self._turns) >= BATCH_ROWS:
            self.flush()

    def damaged(self, where: TraceFile, line: int, *, cut: bool) -> None:
        """Take a line that could not be read."""
        place = {"part": where.part, "step": where.step, "source": where.file.source, "line": line}
        self._damage.append({**place, "cut": cut})

    def flush(self) -> None:
        """Write what has been collected."""
        if self._traces:
            self.sink.write("prime_traces", pa.Table.from_pylist(self._traces, schema=TRACES))
        if self._turns:
            columns = list(zip(*self._turns, strict=True))
            arrays = [pa.array(column, kind.type) for column, kind in zip(columns, TURNS, strict=True)]
            self.sink.write("prime_turns", pa.table(arrays, schema=TURNS))
        if self._damage:
            self.sink.write("prime_damage", pa.Table.from_pylist(self._damage, schema=DAMAGE))
        self._traces, self._turns, self._damage = [], [], []


DAMAGE = pa.schema(
    [
        ("part", pa.string()),
        ("step", pa.int32()),
        ("source", pa.string()),
        ("line", pa.int64()),
        ("cut", pa.bool_()),
    ]
)
"""Staged rows for lines that could not be read: fates inferred from absence are then no longer certain.

``cut``: the unfinished last line of a file, which is no loss where the run ended with it (``finish``)."""

"""Reading one rollout's dumps into staged tables (guide sections 5.1 and 5.2).

A unit is a rollout id: its rollout dump and its train dump(s). Everything that can be said without knowing the process
it belongs to is said here; labels stay labels, ``finish`` turns them into versions.

Staged tables: ``slime_batches`` (one row per unit), ``slime_samples`` (per dumped sample), ``slime_segments`` (per
run of tokens of one call), ``slime_calls`` (per engine call, also those that made nothing), ``slime_orphans`` (per
trained sample that the rollout dump does not hold). What is asked of all units together is in ``slime_batches``, so
that one small file of each is opened: ``names`` of its samples, and ``edges``, per label between which moments its
calls began and ended.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import polars as pl

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import Sink, Unit
from staleness_audit.readers.numbers import is_figure
from staleness_audit.readers.torch_files import BadTorchFile, Tensor, open_torch
from staleness_parsers.slime.calls import Sample, Segment, loss_tokens, read_sample, segments

_TIME: Final = pl.Datetime("us", "UTC")
NAMES: Final[dict[str, Any]] = {"key": pl.String, "group_key": pl.String}
EDGES: Final[dict[str, Any]] = {
    "label": pl.Int64,
    "calls": pl.Int64,
    "first_end": _TIME,
    "last_end": _TIME,
    "last_abort": _TIME,
    "last_start": _TIME,
    "first_alone": _TIME,
}
BATCHES: Final[dict[str, Any]] = {
    "root": pl.String,
    "rollout": pl.Int64,
    "source": pl.String,
    "readable": pl.Boolean,
    "has_dump": pl.Boolean,
    "has_train": pl.Boolean,
    "train_readable": pl.Boolean,
    "train_source": pl.String,
    "samples": pl.Int64,
    "executions": pl.Int64,
    "groups": pl.Int64,
    "members": pl.Int64,
    "first_start": _TIME,
    "last_enqueued": _TIME,
    "label_min": pl.Int64,
    "label_max": pl.Int64,
    "labels": pl.List(pl.Int64),
    "first_begun": _TIME,
    "last_begun": _TIME,
    "has_default": pl.Boolean,
    "recycled": pl.Boolean,
    "partial": pl.Boolean,
    "matched": pl.Int64,
    "unmatched": pl.Int64,
    "ranks": pl.String,
    "whole": pl.Boolean,
    "skipped": pl.Int64,
    "max_index": pl.Int64,
    "digest": pl.String,
    "names": pl.List(pl.Struct(NAMES)),
    "edges": pl.List(pl.Struct(EDGES)),
}
SAMPLES: Final[dict[str, Any]] = {
    "root": pl.String,
    "rollout": pl.Int64,
    "position": pl.Int64,
    "execution": pl.Int64,
    "key": pl.String,
    "group_key": pl.String,
    "prompt_tokens": pl.Int64,
    "response_tokens": pl.Int64,
    "trained": pl.Boolean,
    "segments": pl.Int64,
    "admitted": _TIME,
    "started": _TIME,
    "finished": _TIME,
    "enqueued": _TIME,
    "digest": pl.String,
    "source": pl.String,
    "train_source": pl.String,
    "train_locator": pl.String,
}
SEGMENTS: Final[dict[str, Any]] = {
    "root": pl.String,
    "rollout": pl.Int64,
    "position": pl.Int64,
    "key": pl.String,
    "span_index": pl.Int64,
    "token_start": pl.Int64,
    "tokens_lo": pl.Int64,
    "tokens_hi": pl.Int64,
    "mask_lo": pl.Int64,
    "mask_hi": pl.Int64,
    "loss_lo": pl.Int64,
    "loss_hi": pl.Int64,
    "label_lo": pl.Int64,
    "label_hi": pl.Int64,
    "exact": pl.Boolean,
    "started": _TIME,
    "ended": _TIME,
    "source": pl.String,
}
CALLS: Final[dict[str, Any]] = {
    "root": pl.String,
    "rollout": pl.Int64,
    "position": pl.Int64,
    "key": pl.String,
    "label": pl.Int64,
    "aborted": pl.Boolean,
    "last": pl.Boolean,
    "started": _TIME,
    "ended": _TIME,
    "source": pl.String,
}
ORPHANS: Final[dict[str, Any]] = {
    "root": pl.String,
    "rollout": pl.Int64,
    "key": pl.String,
    "prompt_tokens": pl.Int64,
    "response_tokens": pl.Int64,
    "loss_lo": pl.Int64,
    "loss_hi": pl.Int64,
    "source": pl.String,
    "locator": pl.String,
}
EVALS: Final[dict[str, Any]] = {"key": pl.String, "prompt_tokens": pl.Int64, "source": pl.String, "locator": pl.String}


@dataclass(frozen=True)
class Trained:
    """A sample of a train dump. ``mask``: the final loss mask, empty if unreadable."""

    index: int | None
    position: int | None
    tokens: Sequence[Any]
    length: int | None
    mask: Sequence[int]
    source: str
    locator: str


@dataclass
class _TrainDumps:
    """All train dumps of one rollout. ``whole``: they hold every sample their own books list."""

    exists: bool = False
    readable: bool = True
    whole: bool = True
    ranks: set[int] = field(default_factory=set)
    by_index: dict[int | None, list[Trained]] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)


SampleReader = Callable[[Mapping[str, Any]], Sample | None]


def read_batch(unit: Unit, run: RunFiles, sink: Sink, reader: SampleReader = read_sample) -> None:
    """Read the dumps of one rollout id and stage what they say; ``reader`` understands a sample's dict."""
    rollout, root = int(unit.options["rollout"]), str(unit.options["root"])
    train = _TrainDumps()
    for source in unit.options["train"]:
        _read_train(run, source, rollout, train, sink)
    batch: dict[str, Any] = {"root": root, "rollout": rollout, "readable": False, "has_dump": False, "skipped": 0}
    tables: dict[str, list[dict[str, Any]]] = {"samples": [], "segments": [], "calls": []}
    for source in unit.options["rollout_dumps"]:
        batch.update(has_dump=True, source=source)
        try:
            with open_torch(run, source) as value:
                batch.update(
                    _read_rollout(
                        _dict(value),
                        source=source,
                        rollout=rollout,
                        root=root,
                        train=train,
                        tables=tables,
                        sink=sink,
                        reader=reader,
                    )
                )
        except BadTorchFile as error:
            # Whether that matters depends on whether the rollout was trained: finish says so.
            sink.diagnose("error", "dump-unreadable", f"Rollout dump not read: {error}; restore it.", source=source)
    begun = [part["started"] for part in tables["segments"] if part["started"]]
    orphans = [_orphan(root, rollout, sample) for left in train.by_index.values() for sample in left]
    batch.update(
        has_train=train.exists,
        train_readable=train.readable and train.exists,
        whole=train.whole,
        train_source=train.sources[0] if train.sources else None,
        unmatched=len(orphans),
        ranks=",".join(map(str, sorted(train.ranks))),
        labels=sorted({part[end] for part in tables["segments"] for end in ("label_lo", "label_hi")} - {None}),
        first_begun=min(begun, default=None),
        last_begun=max(begun, default=None),
        names=[{name: row[name] for name in NAMES} for row in tables["samples"]],
        edges=list(_edges(tables["calls"], tables["segments"])),
    )
    sink.write("slime_batches", _frame([batch], BATCHES))
    sink.write("slime_samples", _frame(tables["samples"], SAMPLES))
    sink.write("slime_segments", _frame(tables["segments"], SEGMENTS))
    sink.write("slime_calls", _frame(tables["calls"], CALLS))
    sink.write("slime_orphans", _frame(orphans, ORPHANS))


def _frame(rows: list[dict[str, Any]], schema: Mapping[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=dict(schema))


def read_eval(unit: Unit, run: RunFiles, sink: Sink) -> None:
    """Read an evaluation dump: its samples are listed with role ``eval`` and counted nowhere.

    Their ``index`` restarts at 0 in every dump, hence the ids of their own.
    """
    rollout, source = int(unit.options["rollout"]), str(unit.options["source"])
    rows = []
    try:
        with open_torch(run, source) as value:
            for position, record in enumerate(_samples(value)):
                rows.append({"key": f"eval{rollout}/{position}", "source": source, "locator": f"samples[{position}]"})
                if isinstance(record, dict) and (sample := read_sample(record)):
                    rows[-1]["prompt_tokens"] = sample.prompt_tokens  # type: ignore[assignment]
    except BadTorchFile as error:
        sink.diagnose("note", "eval-dump-unreadable", f"Evaluation dump not read: {error}.", source=source)
    frame = _frame(rows, EVALS).select(
        pl.col("key").alias("trajectory_id"),
        pl.lit("eval").alias("role"),
        pl.lit(False).alias("anonymous"),
        pl.lit(1).alias("multiplicity_lo"),
        pl.lit(1).alias("multiplicity_hi"),
        "prompt_tokens",
        pl.lit("recorded").alias("evidence"),
        "source",
        "locator",
    )
    sink.write("trajectories", frame)


def _dict(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadTorchFile("it holds no dict")
    return value


def _samples(value: object) -> list[Any]:
    if not isinstance(value, dict) or not isinstance(value.get("samples"), list):
        raise BadTorchFile("it holds no list of samples")
    samples: list[Any] = value["samples"]
    return samples


def _read_rollout(
    value: dict[str, Any],
    *,
    source: str,
    rollout: int,
    root: str,
    train: _TrainDumps,
    tables: dict[str, list[dict[str, Any]]],
    sink: Sink,
    reader: SampleReader,
) -> dict[str, Any]:
    records = _samples(value)
    if value.get("rollout_id") != rollout:
        raise BadTorchFile(f"it says rollout_id {value.get('rollout_id')!r}, not {rollout}")
    samples: list[tuple[int, Sample]] = []
    for position, record in enumerate(records):
        sample = reader(record) if isinstance(record, dict) else None
        if sample is None:
            sink.diagnose(
                "error",
                "sample-unreadable",
                "A sample without a response_length is left out; restore the dump.",
                source=source,
                locator=f"samples[{position}]",
                opens="training",
            )
            continue
        for problem in sample.problems:
            sink.diagnose(
                "warning",
                "sample-odd",
                f"Sample read in part: {problem}.",
                source=source,
                locator=f"samples[{position}]",
            )
        samples.append((position, sample))
    keys = _keys(rollout, samples)
    spans: Counter[str] = Counter()
    matched = 0
    digest = hashlib.blake2b(digest_size=8)
    for (position, sample), key in zip(samples, keys, strict=True):
        twin = _twin(sample, position, train)
        matched += twin is not None
        parts = segments(sample)
        row = _sample_row(sample, position, key, parts, twin)
        digest.update(row["digest"].encode())
        common = {"root": root, "rollout": rollout, "position": position, "key": key, "source": source}
        tables["samples"].append({**common, **row})
        for part in parts:
            tables["segments"].append({**common, **_segment_row(sample, part, parts, twin), "span_index": spans[key]})
            spans[key] += 1
        tables["calls"] += [{**common, **call} for call in _call_rows(sample)]
    labels = [label for _, sample in samples for label in sample.labels if label is not None]
    admitted = [sample.life.admitted for _, sample in samples if sample.life.admitted]
    enqueued = [sample.life.enqueued for _, sample in samples if sample.life.enqueued]
    groups = Counter(sample.group_index for _, sample in samples)
    # A group counts its members once, however many samples each fans out to.
    members = Counter(
        group for group, _ in {(sample.group_index, key) for (_, sample), key in zip(samples, keys, strict=True)}
    )
    return {
        "readable": True,
        "samples": len(records),
        "executions": len(set(keys)),
        "groups": len(groups),
        "members": max(members.values(), default=None),
        "first_start": min(admitted, default=None),
        "last_enqueued": max(enqueued, default=None),
        "label_min": min(labels, default=None),
        "label_max": max(labels, default=None),
        "has_default": 0 in labels,
        "recycled": any(sample.life.passes > 1 for _, sample in samples),
        "partial": any(sample.recycled_since is not None for _, sample in samples),
        "matched": matched,
        "skipped": len(records) - len(samples),
        "digest": digest.hexdigest(),
        "max_index": max((sample.index for _, sample in samples if sample.index is not None), default=None),
    }


def _keys(rollout: int, samples: list[tuple[int, Sample]]) -> list[str]:
    """Name the trajectories: by ``index``; by group and execution where an execution left several samples (fan-out)."""
    shared = Counter((sample.group_index, sample.execution) for _, sample in samples if sample.execution is not None)
    names = []
    for position, sample in samples:
        if sample.key is not None:
            names.append(sample.key)
        elif sample.execution is not None and shared[sample.group_index, sample.execution] > 1:
            names.append(f"g{sample.group_index}x{sample.execution}")
        elif sample.index is not None:
            names.append(str(sample.index))
        else:
            names.append(f"b{rollout}.{position}")
    return names


def _twin(sample: Sample, position: int, train: _TrainDumps) -> Trained | None:
    """Take the trained copies of a sample out of the train dumps; the tokens prove that they are copies.

    After a restart the train dump of an earlier attempt may lie beside the rollout dump of the next: then the
    indices can agree, and the tokens don't. Several copies (tensor or context parallel ranks) are one.
    """
    known = train.by_index.get(sample.index, []) + (train.by_index.get(None, []) if sample.index is not None else [])
    copies = [other for other in known if other.position in {None, position} and _agree(sample, other)]
    for other in copies:
        train.by_index[other.index].remove(other)
    masks = {tuple(other.mask) for other in copies}
    if len(masks) > 1:
        return replace(copies[0], mask=())  # the copies disagree: anything from nothing to everything
    return copies[0] if copies else None


def _agree(sample: Sample, other: Trained) -> bool:
    shared = min(len(other.tokens), len(sample.tokens))
    same_length = other.length in {None, sample.response_length}
    return same_length and list(other.tokens[:shared]) == list(sample.tokens[:shared])


def _sample_row(sample: Sample, position: int, key: str, parts: list[Segment], twin: Trained | None) -> dict[str, Any]:
    starts = [call.started for call in sample.life.calls if call.started]
    ends = [call.ended for call in sample.life.calls if call.ended]
    digest = hashlib.blake2b(repr((sample.tokens, sample.labels)).encode(), digest_size=8).hexdigest()
    return {
        "execution": sample.execution,
        "group_key": None if sample.group_index is None else str(sample.group_index),
        "prompt_tokens": sample.prompt_tokens,
        "response_tokens": sample.response_length,
        "trained": twin is not None,
        "segments": len(parts),
        "admitted": sample.life.admitted,
        "started": min(starts, default=None),
        "finished": max(ends, default=None),
        "enqueued": sample.life.enqueued,
        "digest": digest,
        "train_source": twin.source if twin else None,
        "train_locator": twin.locator if twin else None,
    }


def _segment_row(sample: Sample, part: Segment, parts: list[Segment], twin: Trained | None) -> dict[str, Any]:
    length = sample.response_length
    mask = loss_tokens(part, parts, [0] * length if sample.removed else sample.mask, length)
    loss = loss_tokens(part, parts, twin.mask, length) if twin else (None, None)
    return {
        "token_start": part.start,
        "tokens_lo": part.tokens_lo,
        "tokens_hi": part.tokens_hi,
        "mask_lo": mask[0],
        "mask_hi": mask[1],
        "loss_lo": loss[0],
        "loss_hi": loss[1],
        "label_lo": part.label_lo,
        "label_hi": part.label_hi,
        "exact": part.exact,
        "started": part.started,
        "ended": part.ended,
    }


def _call_rows(sample: Sample) -> Iterator[dict[str, Any]]:
    """Yield the calls with their labels, where every call left one."""
    paired = len(sample.labels) == len(sample.life.calls)
    for at, call in enumerate(sample.life.calls):
        yield {
            "label": sample.labels[at] if paired else None,
            "aborted": call.aborted,
            "started": call.started,
            "ended": call.ended,
            "last": at == len(sample.life.calls) - 1,
        }


def _edges(calls: Sequence[Mapping[str, Any]], parts: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield per label when its calls ended and began, and when the first tokens began that bear no other label."""
    moments: dict[int, dict[str, list[datetime | None]]] = defaultdict(lambda: defaultdict(list))
    for call in calls:
        if call["label"] is not None:
            moments[call["label"]]["end"].append(call["ended"])
            moments[call["label"]]["start"].append(call["started"])
            moments[call["label"]]["abort"].append(call["ended"] if call["aborted"] else None)
    for part in parts:
        if part["exact"]:
            moments[part["label_lo"]]["alone"].append(part["started"])
    for label, found in sorted(moments.items()):
        known = {name: [moment for moment in found[name] if moment] for name in ("end", "abort", "start", "alone")}
        yield {
            "label": label,
            "calls": len(found["end"]),
            "first_end": min(known["end"], default=None),
            "last_end": max(known["end"], default=None),
            "last_abort": max(known["abort"], default=None),
            "last_start": max(known["start"], default=None),
            "first_alone": min(known["alone"], default=None),
        }


def _read_train(run: RunFiles, source: str, rollout: int, train: _TrainDumps, sink: Sink) -> None:
    train.exists = True
    train.sources.append(source)
    try:
        with open_torch(run, source) as value:
            for sample in _train_samples(_dict(value), source, rollout):
                train.by_index.setdefault(sample.index, []).append(sample)
            if isinstance(value.get("rank"), int):
                train.ranks.add(value["rank"])
    except BadTorchFile as error:
        train.readable = train.whole = False
        sink.diagnose(
            "error",
            "train-dump-unreadable",
            f"Train dump not read: {error}; who was trained and under which mask is then taken from the rollout dump.",
            source=source,
            opens="training",
        )


def _train_samples(value: Mapping[str, Any], source: str, rollout: int) -> list[Trained]:
    if value.get("rollout_id") != rollout:
        raise BadTorchFile(f"it says rollout_id {value.get('rollout_id')!r}, not {rollout}")
    found = list(_version_2(value, source) if "samples" in value else _version_1(value, source))
    listed = _listed(value)
    if listed is not None and listed > {sample.index for sample in found}:
        raise BadTorchFile("it holds fewer samples than its dp_shards list")
    return found


def _listed(value: Mapping[str, Any]) -> set[Any] | None:
    shards = value.get("dp_shards")
    if not isinstance(shards, list):
        return None
    return {index for shard in shards if isinstance(shard, dict) for index in shard.get("sample_indices") or []}


def _version_2(value: Mapping[str, Any], source: str) -> Iterator[Trained]:
    for at, record in enumerate(_samples(value)):
        if not isinstance(record, dict):
            raise BadTorchFile(f"its samples[{at}] is no sample")
        yield Trained(
            _whole_number(record.get("sample_index")),
            _whole_number(record.get("rollout_position")),
            _values(record.get("tokens")),
            _whole_number(record.get("response_lengths")),
            _values(record.get("loss_masks")),
            source,
            f"samples[{at}]",
        )


def _version_1(value: Mapping[str, Any], source: str) -> Iterator[Trained]:
    """Read the layout of before 2026-08-12: one file per rank, a list per column."""
    columns = value.get("rollout_data")
    if not isinstance(columns, dict):
        raise BadTorchFile("it holds neither samples nor rollout_data")
    tokens, lengths = columns.get("tokens"), columns.get("response_lengths")
    indices, masks = columns.get("sample_indices"), columns.get("loss_masks")
    if not isinstance(tokens, list):
        raise BadTorchFile("its rollout_data holds no tokens")
    for at, one in enumerate(tokens):
        yield Trained(
            _whole_number(_at(indices, at)),
            None,
            _values(one),
            _whole_number(_at(lengths, at)),
            _values(_at(masks, at)),
            source,
            f"rollout_data[{at}]",
        )


def _at(column: object, index: int) -> object:
    if isinstance(column, Tensor):
        column = column.tolist()
    return column[index] if isinstance(column, list) and index < len(column) else None


def _values(column: object) -> Sequence[Any]:
    if isinstance(column, Tensor):
        values = column.flat()
        return [int(value) for value in values] if all(map(is_figure, values)) else ()
    return column if isinstance(column, list) else ()


def _whole_number(value: object) -> int | None:
    if isinstance(value, Tensor) and value.numel == 1:
        value = value.flat()[0]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or value.is_integer() else None


def _orphan(root: str, rollout: int, sample: Trained) -> dict[str, Any]:
    length = sample.length if sample.length is not None else len(sample.mask) or None
    fits = length is not None and len(sample.mask) == length
    total = sum(1 for bit in sample.mask if bit)
    return {
        "root": root,
        "rollout": rollout,
        "key": f"b{rollout}.{sample.locator}" if sample.index is None else str(sample.index),
        "prompt_tokens": len(sample.tokens) - length if length is not None and len(sample.tokens) >= length else None,
        "response_tokens": length,
        "loss_lo": total if fits else 0,
        "loss_hi": total if fits else length,
        "source": sample.source,
        "locator": sample.locator,
    }

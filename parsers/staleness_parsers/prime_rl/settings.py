"""The run's resolved configuration: what the control needs of it (guide section 2)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.config import as_json
from staleness_audit.readers.lines import DamagedStream, blocks
from staleness_parsers.prime_rl.values import dig, flag, items, table, text, whole

MAX_BYTES = 16 << 20
CONFIG = pa.schema([("source", pa.string()), ("document", pa.string())])
"""Staged ``prime_config``: the orchestrator's section of the configuration as JSON."""

_SHOWN = (
    ("max_off_policy_steps",),
    ("max_async_level",),
    ("strict_async_level",),
    ("batch_size",),
    ("token_batch_size",),
    ("group_size",),
    ("rollouts_per_example",),
    ("seq_len",),
    ("max_steps",),
    ("concurrency", "initial_inflight"),
    ("concurrency", "min_inflight"),
    ("concurrency", "max_inflight"),
    ("max_inflight_episodes",),
    ("max_inflight_rollouts",),
    ("oversampling_factor",),
    ("tasks_per_minute",),
    ("train", "filter_zero_advantages"),
    ("algo", "type"),
    ("algo", "sampling", "source"),
    ("algo", "length_penalty"),
    ("rollout_transport", "type"),
    ("weight_broadcast", "type"),
    ("monitors", "file", "path"),
    ("log", "level"),
    ("log", "json_logging"),
    ("num_train_workers",),
    ("resume", "step"),
    ("eval", "interval"),
)


@dataclass(frozen=True)
class Source:
    """One training environment.

    ``policy``: its episodes are sampled by the policy (None: not known).
    ``exact_advantage``: an advantage of zero can be told from rewards alone (GRPO without length penalty).
    """

    group_size: int | None = None
    policy: bool | None = None
    exact_advantage: bool = False
    curriculum: bool = True


@dataclass(frozen=True)
class Settings:
    """What the files say of the control; None where they don't.

    ``most_skipped``: how far one update can move the weights. Broadcasts in memory come one by one; of those on disk
    the newest is taken, and batch N ships only under v{N-2} or later, or N - 1 - ``max_async_level`` in older code.
    """

    found_in: str | None = None
    shown: Mapping[str, Any] = field(default_factory=dict)
    bound: int | None = None
    batch_size: int | None = None
    group_size: int | None = None
    seq_len: int | None = None
    seq_len_assumed: bool = False
    max_steps: int | None = None
    train_workers: int | None = None
    filters_zero: bool = True
    lora: bool = False
    most_skipped: int = 2
    file_monitor: bool | None = None
    sources: Mapping[str, Source] = field(default_factory=dict)

    def source(self, env: str | None) -> Source:
        """Return the settings of an environment; those of the only one, or cautious ones, if it is not named."""
        if env is not None and env in self.sources:
            return self.sources[env]
        return Source(group_size=self.group_size)

    @property
    def groups_per_step(self) -> int | None:
        """Groups in a batch; None in token mode, where batches vary."""
        if not self.batch_size or not self.group_size:
            return None
        return self.batch_size // self.group_size if self.batch_size % self.group_size == 0 else None


def read_config(run: RunFiles, piece: Piece, syntax: str, sink: Sink) -> None:
    """Stage the orchestrator's section; a file that can't be read becomes a warning."""
    try:
        document = _document(run, piece, syntax)
    except (ValueError, DamagedStream) as error:
        sink.diagnose(
            "warning",
            "config-unreadable",
            f"The configuration cannot be read ({error}); restore it, or give --bound.",
            source=piece.source,
        )
        return
    section = document.get("orchestrator")
    document = section if isinstance(section, dict) else document
    dumped = as_json(document)
    sink.write("prime_config", pa.Table.from_pylist([{"source": piece.source, "document": dumped}], schema=CONFIG))


def _document(run: RunFiles, piece: Piece, syntax: str) -> dict[str, Any]:
    if piece.end > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES >> 20} MiB")
    data = b"".join(block.data for block in blocks(run, piece))
    document = orjson.loads(data) if syntax == "json" else tomllib.loads(data.decode("utf-8"))
    if not isinstance(document, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one kind of trouble for the caller
    return document


def settings_from(source: str, document: dict[str, Any]) -> Settings:
    """Pick out of the orchestrator's section what the control needs."""
    group_size = whole(document.get("group_size")) or whole(document.get("rollouts_per_example"))
    shown = {".".join(path): value for path in _SHOWN if (value := dig(document, *path)) is not None}
    monitors = document.get("monitors")
    return Settings(
        found_in=source,
        shown=shown,
        bound=whole(document.get("max_off_policy_steps")),
        batch_size=whole(document.get("batch_size")),
        group_size=group_size,
        seq_len=whole(document.get("seq_len")),
        max_steps=whole(document.get("max_steps")),
        train_workers=whole(document.get("num_train_workers")),
        filters_zero=flag(dig(document, "train", "filter_zero_advantages")) is not False,
        lora=dig(document, "model", "lora") is not None,
        most_skipped=1
        if dig(document, "weight_broadcast", "type") in ("nccl", "nixl")
        else max(2, (whole(document.get("max_async_level")) or 0) + 1),
        file_monitor=None if not isinstance(monitors, dict) or "file" not in monitors else monitors["file"] is not None,
        sources=_sources(document, group_size),
    )


def _sources(document: dict[str, Any], group_size: int | None) -> dict[str, Source]:
    found = {}
    for entry in map(table, items(dig(document, "train", "source"))):
        name = text(entry.get("name")) or text(dig(entry, "env", "name")) or text(dig(entry, "env", "taskset", "id"))
        if name is None:
            continue
        algo = table(entry.get("algo")) or table(document.get("algo"))
        sampling = dig(algo, "sampling", "source")
        found[name] = Source(
            group_size=whole(entry.get("group_size")) or group_size,
            policy=None if sampling is None else sampling == "policy",
            exact_advantage=algo.get("type") == "grpo" and algo.get("length_penalty") is None,
            curriculum=entry.get("curriculum") is not None,
        )
    return found

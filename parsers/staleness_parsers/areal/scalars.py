"""Statistics per step: which of them the audit needs, and reading them from TensorBoard (guide section 5.5)."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from staleness_audit.discovery import Piece, RunFiles
from staleness_audit.errors import OptionalReaderMissing
from staleness_audit.parser import Sink
from staleness_audit.readers.numbers import is_figure
from staleness_audit.readers.records import DamagedRecords
from staleness_audit.readers.scalars import read_scalars

SCALARS = pa.schema(
    [
        ("source", pa.string()),
        ("line", pa.int64()),
        ("commit", pa.int64()),
        ("step", pa.int64()),
        ("name", pa.string()),
        ("tag", pa.string()),
        ("value", pa.float64()),
        ("wall", pa.int64()),
        ("printed", pa.bool_()),
    ]
)
"""Staged ``areal_scalars``. ``name`` is the tag without its role, ``wall`` microseconds since 1970, ``printed``:
from the console's table, with five digits. ``commit`` tells the tables of one log apart."""

_ACTOR = re.compile(r"\w*actor/(?:update/)?(?P<name>n_seqs|n_valid_tokens|seq_len/(?:avg|min|max)|version_stats/\w+)")
_TIMES = re.compile(
    r"timeperf/(?:rollout|train_step|update_weights|recompute_logp|compute_advantage|save|checkpoint_for_recover|eval)"
)

RATIO_FILTER = "actor/update/rs_filtered_fraction"
"""End of the tag of a statistic that only a ratio filter makes."""


def short_name(tag: str) -> str | None:
    """Name of a statistic the audit uses, without role and prefix; None for any other.

    ``ppo_actor/update/n_valid_tokens`` counts after the ratio filter and is not ``ppo_actor/n_valid_tokens``.
    """
    if found := _ACTOR.fullmatch(tag):
        nested = "/update/" in tag
        return found["name"] if nested == found["name"].startswith("version_stats/") else None
    return tag if _TIMES.fullmatch(tag) or tag.endswith(RATIO_FILTER) else None


def read_events(run: RunFiles, piece: Piece, sink: Sink) -> None:
    """Stage the scalars of a piece of an event file; damage and a missing extra become diagnostics."""
    rows: list[dict[str, Any]] = []
    source = piece.source
    try:
        for scalar in read_scalars(run, piece):
            if (name := short_name(scalar.tag)) and is_figure(scalar.value):
                rows.append(
                    {
                        "source": source,
                        "line": scalar.record,
                        "commit": 0,
                        "step": scalar.step,
                        "name": name,
                        "tag": scalar.tag,
                        "value": scalar.value,
                        "wall": int(scalar.wall_time * 1e6),
                        "printed": False,
                    }
                )
    except OptionalReaderMissing as missing:
        sink.diagnose("warning", "tensorboard-not-read", str(missing), source=source)
    except DamagedRecords as damage:
        if damage.cut:
            sink.diagnose("note", "record-cut", f"The last record did not happen: {damage}.", source=source)
        else:
            sink.diagnose(
                "error",
                "events-damaged",
                f"The event file cannot be read to its end ({damage}); restore it from a copy.",
                source=source,
                locator=f"record {damage.record}",
                opens="training",
            )
    if rows:
        sink.write("areal_scalars", pa.Table.from_pylist(rows, schema=SCALARS))

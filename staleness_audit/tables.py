"""The event tables: what a parser writes and everything after it reads (DESIGN section 4).

A table is a set of Parquet parts in a folder of its name. Every column may be null. Intervals are pairs
``x_lo``/``x_hi``, both ends included; null at an end means that end is open. Times are UTC microseconds.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

TIME: Final = pa.timestamp("us", tz="UTC")
COUNT: Final = pa.int64()
VERSION: Final = pa.int32()
FLAG: Final = pa.bool_()
TEXT: Final = pa.string()
WORD: Final = pa.dictionary(pa.int32(), pa.string())
NUMBER: Final = pa.float64()

EVIDENCE: Final = ("recorded", "derived", "inferred", "assumed")
"""How a row is known, best first. ``inferred`` terminal events are alternatives of which at most one is true."""

EVENT_KINDS: Final = (
    "admitted",
    "started",
    "paused",
    "resumed",
    "finished",
    "enqueued",
    "sampled",
    "trained",
    "dropped",
    "cancelled",
    "requeued",
    "lost",
    "pending",
)
"""Lifecycle events. ``pending`` is never logged; a parser writes it (always ``inferred``) beside other inferred
fates to say that the trajectory may also simply have been left over when the logs end."""

REASONS: Final = (
    "stale",
    "group",
    "zero_advantage",
    "filtered",
    "surplus",
    "overload",
    "error",
    "rolled_back",
    "unknown",
)
"""Why a trajectory was dropped, cancelled or lost; also ``other:<the framework's word>``."""

SEVERITIES: Final = ("error", "warning", "note")

OPENS: Final = ("training", "fates")
"""What an unread piece may have held. ``training``: spans, uses or steps, so upper ends of all counts open and the
verdict cannot be ``pass``. ``fates``: only admissions, drops, cancellations, losses; trained tokens are all known."""

_PROVENANCE: Final = [("evidence", WORD), ("source", WORD), ("line", COUNT), ("locator", TEXT)]

SCHEMAS: Final[dict[str, pa.Schema]] = {
    "trajectories": pa.schema(
        [
            ("trajectory_id", TEXT),
            ("group_id", TEXT),
            ("attempt", VERSION),
            ("role", WORD),
            ("anonymous", FLAG),
            ("multiplicity_lo", COUNT),
            ("multiplicity_hi", COUNT),
            ("prompt_tokens", COUNT),
            *_PROVENANCE,
        ]
    ),
    "spans": pa.schema(
        [
            ("trajectory_id", TEXT),
            ("span_index", COUNT),
            ("token_start", COUNT),
            ("tokens_lo", COUNT),
            ("tokens_hi", COUNT),
            ("loss_tokens_lo", COUNT),
            ("loss_tokens_hi", COUNT),
            ("version_lo", VERSION),
            ("version_hi", VERSION),
            ("monotone", FLAG),
            ("started", TIME),
            ("ended", TIME),
            ("worker", WORD),
            *_PROVENANCE,
        ]
    ),
    "uses": pa.schema(
        [
            ("trajectory_id", TEXT),
            ("attempt", VERSION),
            ("step", VERSION),
            ("span_index", COUNT),
            ("loss_tokens_lo", COUNT),
            ("loss_tokens_hi", COUNT),
            ("staleness_lo", VERSION),
            ("staleness_hi", VERSION),
            ("member", FLAG),
            *_PROVENANCE,
        ]
    ),
    "events": pa.schema(
        [
            ("seq", COUNT),
            ("ts", TIME),
            ("kind", WORD),
            ("trajectory_id", TEXT),
            ("group_id", TEXT),
            ("attempt", VERSION),
            ("step", VERSION),
            ("version_lo", VERSION),
            ("version_hi", VERSION),
            ("multiplicity", COUNT),
            ("reason", WORD),
            *_PROVENANCE,
        ]
    ),
    "groups": pa.schema(
        [
            ("group_id", TEXT),
            ("attempt", VERSION),
            ("members_lo", COUNT),
            ("members_hi", COUNT),
            ("multiplicity_lo", COUNT),
            ("multiplicity_hi", COUNT),
            *_PROVENANCE,
        ]
    ),
    "steps": pa.schema(
        [
            ("attempt", VERSION),
            ("step", VERSION),
            ("v_train_lo", VERSION),
            ("v_train_hi", VERSION),
            ("started", TIME),
            ("ended", TIME),
            ("waited_us", COUNT),
            ("updates", COUNT),
            ("completed", FLAG),
            ("superseded", FLAG),
            *_PROVENANCE,
        ]
    ),
    "syncs": pa.schema(
        [
            ("attempt", VERSION),
            ("version_lo", VERSION),
            ("version_hi", VERSION),
            ("started", TIME),
            ("ended", TIME),
            ("worker", WORD),
            *_PROVENANCE,
        ]
    ),
    "constraints": pa.schema(
        [
            ("attempt", VERSION),
            ("step", VERSION),
            ("quantity", WORD),
            ("op", WORD),
            ("value", NUMBER),
            ("unit", WORD),
            *_PROVENANCE,
        ]
    ),
    "reported": pa.schema(
        [
            ("attempt", VERSION),
            ("step", VERSION),
            ("ts", TIME),
            ("name", WORD),
            ("raw_name", TEXT),
            ("value", NUMBER),
            *_PROVENANCE,
        ]
    ),
    "sources": pa.schema(
        [
            ("source", WORD),
            ("path", TEXT),
            ("kind", WORD),
            ("bytes", COUNT),
            ("digest", TEXT),
            ("parser", WORD),
            ("rows", COUNT),
        ]
    ),
    "diagnostics": pa.schema(
        [
            ("source", WORD),
            ("line", COUNT),
            ("locator", TEXT),
            ("severity", WORD),
            ("code", WORD),
            ("message", TEXT),
            ("opens", WORD),
        ]
    ),
}
"""Arrow schema of every event table, in the order of DESIGN section 4.

Beyond DESIGN: ``spans.loss_tokens_lo/hi`` (the mask as the log gives it with the tokens; null = all tokens count),
``uses.member`` (false = the trajectory may have been in the batch, or not: such a use counts only in upper ends) and
``diagnostics.opens`` (see ``OPENS``)."""

PARSER_TABLES: Final = tuple(name for name in SCHEMAS if name not in {"sources", "diagnostics"})
"""Tables a parser writes rows to; ``sources`` is written by ingestion, ``diagnostics`` through ``Sink.diagnose``."""

QUANTITIES: Final = ("trajectories", "loss_tokens", "staleness_max", "staleness_min", "first_step")
"""Quantities a ``constraints`` row may speak of: distinct trajectories and loss tokens of one step, and the largest and
smallest token staleness in it. ``first_step`` (op ``eq``) is for logs that sum over several steps: what is written for
this step took place in some of the steps from ``value`` to this one. Rows with another quantity are kept and shown but
not used."""


def duckdb_type(arrow: pa.DataType) -> str:
    """Name of the DuckDB type that holds a column of an event table."""
    if pa.types.is_timestamp(arrow):
        return "TIMESTAMPTZ"
    names = {COUNT: "BIGINT", VERSION: "INTEGER", NUMBER: "DOUBLE", FLAG: "BOOLEAN"}
    return names.get(arrow, "VARCHAR")

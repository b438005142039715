"""The figures of an audit by dotted path, as thresholds, baselines and comparisons name them.

A path is where the figure stands in the JSON document (docs/json.md): ``waste.ratio``, ``tokens.dropped.stale``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from staleness_audit.check.intervals import NOTHING, UNKNOWN, Interval, total
from staleness_audit.errors import AuditError
from staleness_audit.tables import REASONS

Data = Mapping[str, Any]
Kind = Literal["count", "tokens", "versions", "share", "ratio", "seconds", "rate", "word"]


@dataclass(frozen=True)
class Figure:
    """A figure: its path, what it is called, and its kind (shares are 0 to 1; words are compared for equality only).

    ``words``: all that a figure of words can say.
    """

    path: str
    title: str
    kind: Kind
    words: tuple[str, ...] = ()


FIGURES: tuple[Figure, ...] = (
    Figure("verdict", "verdict", "word", ("pass", "fail", "inconclusive", "no-bound")),
    Figure("bound.value", "bound judged", "count"),
    Figure("guarantee.strict", "bound is guaranteed", "word", ("true", "false")),
    Figure("run.steps", "training steps", "count"),
    Figure("run.attempts", "launches of the trainer", "count"),
    Figure("run.health.state", "how the run ended", "word", ("finished", "crashed", "stuck", "running")),
    Figure("violations.trajectories", "violating trajectories", "count"),
    Figure("violations.groups", "violating groups", "count"),
    Figure("violations.tokens", "violating tokens", "tokens"),
    Figure("staleness.max", "largest staleness", "versions"),
    Figure("staleness.smallest_satisfied_bound", "smallest bound it satisfies", "versions"),
    Figure("staleness.token_mean", "mean token staleness", "versions"),
    Figure("staleness.token_p50", "median token staleness", "versions"),
    Figure("staleness.token_p90", "90th percentile", "versions"),
    Figure("staleness.token_p99", "99th percentile", "versions"),
    Figure("staleness.trajectory_mean", "mean trajectory staleness", "versions"),
    Figure("staleness.in_flight_mean", "of the mean, in flight", "versions"),
    Figure("staleness.in_queue_mean", "of the mean, in the queue", "versions"),
    Figure("staleness.optimizer_steps.max", "largest, in optimizer steps", "versions"),
    Figure("staleness.optimizer_steps.token_mean", "mean, in optimizer steps", "versions"),
    Figure("trajectories.seen", "trajectories seen", "count"),
    Figure("trajectories.trained", "trained", "count"),
    Figure("trajectories.dropped", "dropped", "count"),
    Figure("trajectories.cancelled", "cancelled", "count"),
    Figure("trajectories.lost", "lost", "count"),
    Figure("trajectories.pending", "pending at the end", "count"),
    Figure("trajectories.unknown", "fate unknown", "count"),
    Figure("tokens.generated", "tokens generated", "tokens"),
    Figure("tokens.trained", "trained (per use)", "tokens"),
    Figure("tokens.trained_distinct", "trained (each once)", "tokens"),
    Figure("tokens.masked", "masked out of the loss", "tokens"),
    Figure("tokens.dropped", "dropped", "tokens"),
    Figure("tokens.cancelled", "cancelled", "tokens"),
    Figure("tokens.lost", "lost", "tokens"),
    Figure("tokens.pending", "pending at the end", "tokens"),
    Figure("tokens.unaccounted", "unaccounted", "tokens"),
    Figure("waste.ratio", "generated but never trained", "share"),
    Figure("waste.doomed_tokens", "doomed tokens", "tokens"),
    Figure("waste.needless_drop_tokens", "needlessly dropped tokens", "tokens"),
    Figure("waste.length_bias.mean_ratio", "length of trained to finished", "ratio"),
    Figure("waste.length_bias.ks", "distance of their lengths (KS)", "ratio"),
    Figure("waste.length_bias.longest_decile_trained_share", "trained of the longest tenth", "share"),
    Figure("throughput.wall_s", "time, first to last step", "seconds"),
    Figure("throughput.generated_tokens_per_s", "tokens/s generated", "rate"),
    Figure("throughput.trained_tokens_per_s", "tokens/s trained", "rate"),
    Figure("throughput.in_bound_tokens_per_s", "tokens/s trained in bound", "rate"),
    Figure("throughput.trainer_busy", "trainer busy", "share"),
    Figure("throughput.trainer_waiting", "trainer waiting", "share"),
    Figure("throughput.mean_in_flight", "trajectories in flight", "ratio"),
    Figure("throughput.mean_queued", "trajectories queued", "ratio"),
    Figure("coverage.tokens_exact", "staleness known exactly", "share"),
    Figure("coverage.tokens_bounded", "known within limits", "share"),
    Figure("coverage.tokens_unknown", "not known", "share"),
    Figure("coverage.trajectories_identified", "trajectories with an identity", "share"),
    Figure("diagnostics.errors", "errors in the logs", "count"),
    Figure("diagnostics.warnings", "warnings about the logs", "count"),
)
"""All figures of a document that are single values, in the order in which they are shown."""

BY_REASON = frozenset(f"{of}.{fate}" for of in ("trajectories", "tokens") for fate in ("dropped", "cancelled", "lost"))
"""Figures that are split by reason: the figure is their sum, and each reason may be named behind another dot."""

_MEASURED = ("throughput.", "coverage.")
_BY_PATH = {figure.path: figure for figure in FIGURES}


def figure_at(path: str) -> Figure:
    """Return the figure of a path; ``AuditError`` with near matches if there is none."""
    if path in _BY_PATH:
        return _BY_PATH[path]
    block, reason = _split(path)
    if block and (reason in REASONS or reason.startswith("other:")):
        return Figure(path, f"{_BY_PATH[block].title}: {reason}", _BY_PATH[block].kind)
    known = [*_BY_PATH, *(f"{block}.{reason}" for block in sorted(BY_REASON) for reason in REASONS)]
    near = (
        difflib.get_close_matches(path, known, n=3, cutoff=0.5)
        or [name for name in known if path and (name.endswith(f".{path}") or name.startswith(f"{path}."))][:3]
    )
    hint = f"did you mean {' or '.join(near)}?" if near else "docs/ci.md lists them."
    raise AuditError(f"There is no figure {path!r} in the audit; {hint}")


def value_at(data: Data, path: str) -> Interval | str | bool | None:
    """Return what a document knows of a figure: an interval of a number, or a word; None if nothing is known.

    Numbers come as intervals, exact ones too. What has no value (no bound, no times) is None, and so is what was
    measured over the steps that could be read where others may have gone unread, and the word ``unknown``.
    """
    if path.startswith(_MEASURED) and any(item["opens"] == "training" for item in data["diagnostics"]["items"]):
        return None
    block, reason = _split(path)
    if block:
        return _of_reason(_reach(data, block), reason)
    found = _reach(data, path)
    if path in BY_REASON and found is not None:
        return total(_interval(part) for part in found.values())
    if isinstance(found, Mapping):
        return _interval(found)
    if isinstance(found, str):
        return None if found == "unknown" else found
    if isinstance(found, bool) or found is None:
        return found
    return Interval.exact(found)


def _split(path: str) -> tuple[str, str]:
    """Return the block and the reason of a path that names one; two empty strings otherwise."""
    for block in BY_REASON:
        if path.startswith(f"{block}."):
            return block, path.removeprefix(f"{block}.")
    return "", ""


def _reach(data: Data, path: str) -> Any:
    found: Any = data
    for key in path.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return found


def _interval(value: Data) -> Interval:
    return Interval(value["lo"], value["hi"])


def _of_reason(parts: Data | None, reason: str) -> Interval:
    """Return the count of one reason, to which everything of unknown reason may belong."""
    if parts is None:
        return UNKNOWN
    own = _interval(parts[reason]) if reason in parts else NOTHING
    if reason == "unknown" or "unknown" not in parts:
        return own
    return own + Interval(0, parts["unknown"]["hi"])

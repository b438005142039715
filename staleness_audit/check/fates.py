"""What became of every trajectory and token, and whether the parts add up (DESIGN ``trajectories``, ``tokens``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from staleness_audit.check.classes import Classes, sum_open
from staleness_audit.check.intervals import NOTHING, Interval, total
from staleness_audit.check.openings import Openings


def _by_fate(classes: Classes, low: str, high: str) -> dict[str, Interval]:
    """Count by ``kind:reason``: certain ones in the lower end, possible ones in the upper."""
    result: dict[str, Interval] = {}
    for row in classes.fates:
        for fate in row["fates"]:
            certain = row[low] if len(row["fates"]) == 1 else 0
            result[fate] = result.get(fate, NOTHING) + Interval(certain, row[high])
    return result


def _reasons(by_fate: Mapping[str, Interval], kind: str, openings: Openings) -> dict[str, Interval]:
    reasons = {fate.removeprefix(f"{kind}:"): count for fate, count in by_fate.items() if fate.startswith(f"{kind}:")}
    if kind == "lost" and openings.any:
        # That nothing more is heard of them proves nothing where lines are missing.
        reasons = {
            reason: Interval(0, count.hi) if reason in ("unknown", "rolled_back") else count
            for reason, count in reasons.items()
        }
    if openings.undone:
        reasons = {reason: Interval(0, count.hi) for reason, count in reasons.items()}
    if openings.any or kind in openings.unseen:
        reasons = {reason: count.open_above(openings.any) for reason, count in reasons.items()}
        reasons["unknown"] = reasons.get("unknown", NOTHING).open_above()
    return reasons


def _pending(by_fate: Mapping[str, Interval], openings: Openings) -> Interval:
    pending = by_fate.get("pending:", NOTHING)
    hidden = openings.any or bool({"dropped", "cancelled", "lost"} & openings.unseen)
    if hidden:
        # Left over as far as the log shows, but it does not show everything that can happen to them.
        pending = Interval(0, pending.hi)
    return pending.open_above(openings.any or "pending" in openings.unseen)


_LEFT_OVER = frozenset({"pending:", "unknown:", "lost:unknown"})
"""Fates of trajectories of which nothing says what ended them: one of them may be one whose training went unread."""


def _counted_twice(classes: Classes, missing: str, known: str) -> int:
    """At most how much both the unidentified rest of the steps and trajectories left over may stand for."""
    # With replay the rest adds nothing of its own (``fate_classes``), so that nothing is counted twice.
    distinct = any(row["distinct_lo"] for row in classes.residual)
    rest: int = sum(row[missing] for row in classes.residual) if distinct else 0
    left: int = sum(row[known] for row in classes.fates if _LEFT_OVER & set(row["fates"]))
    return min(rest, left)


def trajectory_fates(
    classes: Classes, openings: Openings, per_step: Mapping[Any, Any], *, replay: bool
) -> dict[str, Any]:
    """Return the ``trajectories`` block: distinct trajectories by what became of them, as intervals."""
    by_fate = _by_fate(classes, "trajectories_lo", "trajectories_hi")
    least = (
        by_fate.get("trained:", NOTHING).lo
        if openings.undone
        else sum(row["trajectories_lo"] for row in classes.fates)
        - _counted_twice(classes, "distinct_lo", "trajectories_lo")
    )
    trained = by_fate.get("trained:", NOTHING)
    # The members of one step are distinct, whoever they are; without replay those of all steps are.
    counts = [row["members"] for row in per_step.values()]
    fullest = max((count.lo for count in counts), default=0) if replay else total(counts).lo
    most = total(counts).hi
    if most is not None and (trained.hi is None or most < trained.hi):
        trained = Interval(trained.lo, max(most, trained.lo or 0))
    trained = Interval(max(trained.lo or 0, fullest or 0), trained.hi)
    least = max(least or 0, fullest or 0)
    everything = Interval(least, sum_open(row["trajectories_hi"] for row in classes.fates))
    return {
        "seen": everything.open_above(openings.any or bool(openings.unseen)),
        "trained": trained.open_above(openings.training),
        "dropped": _reasons(by_fate, "dropped", openings),
        "cancelled": _reasons(by_fate, "cancelled", openings),
        "lost": _reasons(by_fate, "lost", openings),
        "pending": _pending(by_fate, openings),
        "unknown": by_fate.get("unknown:", NOTHING).open_above(openings.any),
    }


def _generated_at_least(classes: Classes, openings: Openings) -> int:
    """Tokens of all classes, each at its least."""
    surely = [row for row in classes.fates if not openings.undone or row["fates"] == ["trained:"]]
    twice = 0 if openings.undone else _counted_twice(classes, "loss_lo", "tokens_lo")
    return int(sum(row["tokens_lo"] for row in surely)) - twice


def _never_trained_at_least(classes: Classes, openings: Openings) -> int:
    """Tokens of classes none of which was trained, nor can be among those that steps trained without a name."""
    if openings.undone:
        return 0
    unlike = {"trained:"} | (_LEFT_OVER if classes.residual else frozenset())
    return int(sum(row["tokens_lo"] for row in classes.fates if not unlike & set(row["fates"])))


def token_fates(classes: Classes, openings: Openings, per_step: Mapping[Any, Any], *, replay: bool) -> dict[str, Any]:
    """Return the ``tokens`` block: every sampled token once by its best fate; ``trained`` counts per use."""
    by_fate = _by_fate(classes, "tokens_lo", "tokens_hi")
    trained = total(row["loss"] for row in per_step.values())
    candidates = [row for row in classes.fates if "trained:" in row["fates"]]
    distinct = Interval(
        sum(row["trained_lo"] for row in candidates if len(row["fates"]) == 1),
        sum_open(row["trained_hi"] for row in candidates),
    )
    if distinct.hi is None or (trained.hi is not None and trained.hi < distinct.hi):
        distinct = Interval(distinct.lo, trained.hi)
    if not replay and not openings.undone:
        # Without replay every use is of tokens that no other use has: what the steps state is distinct.
        distinct = Interval(max(distinct.lo or 0, trained.lo or 0), distinct.hi)
    masked = Interval(
        sum(
            max(row["tokens_lo"] - row["trained_hi"], 0)
            for row in candidates
            if len(row["fates"]) == 1 and row["trained_hi"] is not None
        ),
        sum_open(
            None
            if row["tokens_hi"] is None
            else row["tokens_hi"] - (row["trained_lo"] if len(row["fates"]) == 1 else 0)
            for row in candidates
        ),
    )
    generated = Interval(
        max(_generated_at_least(classes, openings), (distinct.lo or 0) + _never_trained_at_least(classes, openings)),
        sum_open(row["tokens_hi"] for row in classes.fates),
    )
    return {
        "generated": generated.open_above(openings.any or bool(openings.unseen)),
        "trained": trained.open_above(openings.training),
        "trained_distinct": distinct.open_above(openings.training),
        "masked": masked.open_above(openings.training),
        "dropped": _reasons(by_fate, "dropped", openings),
        "cancelled": _reasons(by_fate, "cancelled", openings),
        "lost": _reasons(by_fate, "lost", openings),
        "pending": _pending(by_fate, openings),
        "unaccounted": by_fate.get("unknown:", NOTHING).open_above(openings.any),
    }

"""The checker: intervals and a bound in, verdict and figures out (station *check*, DESIGN sections 2, 3 and 5).

It knows the rebuilt products, which are small tables of classes, and no framework. Every count has a lower end from what
counts for certain and an upper end from what may count; what went unread opens upper ends (``openings``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import polars as pl

from staleness_audit import __version__
from staleness_audit.check.health import health
from staleness_audit.check.intervals import NOTHING, UNKNOWN, Class, Interval, histogram, mean, quantile, total
from staleness_audit.check.openings import Openings, read_diagnostics, read_openings
from staleness_audit.check.reported import CANONICAL, compare
from staleness_audit.check.worst import worst_violations
from staleness_audit.rebuild import Rebuilt

SCHEMA = "staleness-audit/1"
Count = Literal["trajectories", "tokens", "groups"]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Gate:
    """When a run fails (DESIGN section 5): more than ``max_violations`` in the unit ``count``.

    ``given``: some gate option was set by the user, so that a run without a bound is not waved through.
    """

    count: Count = "trajectories"
    max_violations: int = 0
    strict: bool = False
    allow_inconclusive: bool = False
    exit_zero: bool = False
    given: bool = False

    def exit_code(self, verdict: str, violations: Interval | None) -> int:
        """0 clean, 1 violated, 3 not known; ``exit_zero`` turns 1 and 3 into 0."""
        code = self._judge(verdict, violations)
        return 0 if self.exit_zero else code

    def _judge(self, verdict: str, violations: Interval | None) -> int:
        if violations is None:
            return 3 if self.given else 0
        if (violations.lo or 0) > self.max_violations:
            return 1
        if verdict != "inconclusive" and violations.hi is not None and violations.hi <= self.max_violations:
            return 0
        if self.allow_inconclusive:
            return 0
        return 1 if self.strict else 3


class _Classes:
    """The rebuilt products as rows, read once."""

    def __init__(self, rebuilt: Rebuilt) -> None:
        self.steps: Rows = rebuilt.frame("step_lives").sort("attempt", "step").to_dicts()
        self.tokens: Rows = rebuilt.frame("token_classes").to_dicts()
        self.flights: Rows = rebuilt.frame("flight_classes").to_dicts()
        self.uses: Rows = rebuilt.frame("use_classes").to_dicts()
        worst = rebuilt.frame("worst_classes").to_dicts()
        self.trajectories: Rows = [row for row in worst if row["of"] == "trajectories"]
        self.groups: Rows = [row for row in worst if row["of"] == "groups"]
        self.fates: Rows = [
            {**row, "fates": row["fates"].split("\x1f")} for row in rebuilt.frame("fate_classes").to_dicts()
        ]
        self.ages: Rows = rebuilt.frame("age_classes").to_dicts()
        self.drops: Rows = rebuilt.frame("drop_classes").to_dicts()
        self.lengths = rebuilt.frame("length_classes")
        self.occupancy: dict[str, Any] = rebuilt.frame("occupancy").row(0, named=True)


def check(rebuilt: Rebuilt, bound: int | None = None, *, gate: Gate | None = None, worst: int = 10) -> dict[str, Any]:
    """Judge a rebuilt run and return the JSON document of DESIGN section 5.

    Args:
        rebuilt: the products of ``rebuild.rebuild``.
        bound: largest allowed ``v_train - v_gen``; None takes the one that the run's configuration states, if any.
        gate: how the verdict becomes an exit code.
        worst: how many violations to tell with their story.
    """
    facts = rebuilt.dataset.facts
    gate = gate or Gate()
    classes = _Classes(rebuilt)
    diagnostics = read_diagnostics(rebuilt)
    openings = read_openings(diagnostics, facts["unseen"])
    bound_block = _bound(bound, facts)
    limit = bound_block["value"]
    per_step = _per_step(classes, limit, rebuilt, openings)
    staleness = _staleness(classes, openings, facts)
    trajectories, tokens = _trajectories(classes, openings), _tokens(classes, openings, per_step)
    _check_conservation(tokens, openings, diagnostics)
    _cap_histogram(staleness["token_histogram"], tokens["trained"])
    violations = _violations(classes, openings, limit, per_step)
    verdict = _verdict(limit, violations, openings, classes, diagnostics)
    exit_code = gate.exit_code(verdict, violations[gate.count] if limit is not None else None)
    listed = worst_violations(rebuilt, limit, worst, facts.get("groups_per_step"), openings.training) if limit is not None and worst else []
    return {
        "schema": SCHEMA,
        "tool": {"version": __version__},
        "run": _run(rebuilt, classes, openings),
        "bound": bound_block,
        "verdict": verdict,
        "gate": {"count": gate.count, "max_violations": gate.max_violations, "exit": exit_code},
        "guarantee": _guarantee(facts, limit),
        "coverage": _coverage(classes, trajectories["trained"]),
        "staleness": staleness,
        "violations": {
            **{unit: _json_or_null(violations[unit], limit) for unit in ("tokens", "trajectories", "groups")},
            "steps": _violating_steps(per_step) if limit is not None else None,
            "worst": listed if limit is not None else None,
        },
        "trajectories": _jsonify(trajectories),
        "tokens": _jsonify(tokens),
        "waste": _waste(classes, openings, tokens, limit),
        "throughput": _throughput(classes, tokens, violations["tokens"] if limit is not None else None),
        "per_step": _jsonify([row["shown"] for row in per_step.values()]),
        "reported": _reported(rebuilt, per_step),
        "diagnostics": {
            "errors": sum(item["severity"] == "error" for item in diagnostics),
            "warnings": sum(item["severity"] == "warning" for item in diagnostics),
            "items": diagnostics,
        },
        "hints": facts["hints"],
    }


# ------------------------------------------------------------------------------------------------- the run and its bound


def _run(rebuilt: Rebuilt, classes: _Classes, openings: Openings) -> dict[str, Any]:
    facts = rebuilt.dataset.facts
    certain = [row for row in classes.steps if row["certain"]]
    possible = [row for row in classes.steps if row["possible"]]
    timed = [row for row in classes.steps if row["ended"] is not None or row["started"] is not None]
    times = [moment for row in timed for moment in (row["started"], row["ended"]) if moment is not None]
    starts = sorted(row["started"] for row in certain if row["started"] is not None)
    durations = [later - earlier for earlier, later in zip(starts, starts[1:], strict=False)]
    steps = Interval(_distinct_versions(certain), _distinct_versions(possible)).open_above(openings.training)
    return {
        "path": rebuilt.dataset.manifest["run"],
        "framework": facts["framework"],
        "framework_version": facts["framework_version"],
        "dialect": facts["dialect"],
        "parser": f"{rebuilt.dataset.manifest['parser']} {rebuilt.dataset.manifest['parser_version']}",
        "detected_by": rebuilt.dataset.manifest["detected_by"],
        "attempts": len(facts["attempts"]) or 1,
        "started": min(times).isoformat() if times else None,
        "ended": max(times).isoformat() if times else None,
        "steps": steps.json(),
        "health": health(facts["signs"], durations, max(times) if times else None),
    }


def _distinct_versions(steps: Rows) -> int:
    """Number of distinct ``v_train``; a step whose version is not known stands for one of its own."""
    return len(
        {
            row["v_train_lo"] if row["v_train_lo"] is not None and row["v_train_lo"] == row["v_train_hi"] else (row["attempt"], row["step"])
            for row in steps
        }
    )


def _bound(bound: int | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    stated = facts["bound"]
    if bound is not None:
        return {"value": bound, "source": "cli", "key": None, "configured": stated["configured"], "conversion": None}
    if stated["value"] is None:
        return {"value": None, "source": None, "key": stated["key"], "configured": stated["configured"], "conversion": stated["conversion"]}
    return {
        "value": stated["value"],
        "source": "config",
        "key": stated["key"],
        "configured": stated["configured"],
        "conversion": stated["conversion"],
    }


def _guarantee(facts: Mapping[str, Any], bound: int | None) -> dict[str, Any]:
    limit, reason = facts["guarantee"]["limit"], facts["guarantee"]["reason"]
    strict: bool | None = None
    if limit == "none":
        strict = False
    elif limit is not None and bound is not None:
        strict = limit <= bound
    return {"strict": strict, "limit": limit, "reason": reason}


def _verdict(bound: int | None, violations: Mapping[str, Interval], openings: Openings, classes: _Classes, diagnostics: Rows) -> str:
    if bound is None:
        return "no-bound"
    if any((violations[unit].lo or 0) > 0 for unit in ("tokens", "trajectories", "groups")):
        return "fail"
    trained = any(row["certain"] and row["uses_lo"] and row["possible"] for row in classes.uses)
    clean = all(violations[unit].hi == 0 for unit in ("tokens", "trajectories", "groups"))
    contradicted = any(item["severity"] == "error" and item["opens"] == "training" for item in diagnostics)
    return "pass" if trained and clean and not openings.training and not contradicted else "inconclusive"


# ------------------------------------------------------------------------------------------------- staleness


def _token_class(row: Mapping[str, Any]) -> Class:
    return Class(row["staleness_lo"], row["staleness_hi"], row["tokens_lo"] if row["certain"] else 0, row["tokens_hi"])


def _member_class(row: Mapping[str, Any]) -> Class:
    low = row["sure_lo"] if row["sure"] and row["sure_lo"] is not None else row["staleness_lo"]
    return Class(low or 0, row["staleness_hi"], row["members_lo"] if row["sure"] else 0, row["members_hi"])


def _staleness(classes: _Classes, openings: Openings, facts: Mapping[str, Any]) -> dict[str, Any]:
    tokens = [_token_class(row) for row in classes.tokens]
    members = [_member_class(row) for row in classes.trajectories]
    largest = _largest(classes, openings)
    flights = [Class(row["flight_lo"], row["flight_hi"], row["tokens_lo"] if row["certain"] else 0, row["tokens_hi"]) for row in classes.flights]
    queues = [Class(row["queue_lo"], row["queue_hi"], row["tokens_lo"] if row["certain"] else 0, row["tokens_hi"]) for row in classes.flights]

    def average(interval: Interval, least: int | None = 0) -> dict[str, Any]:
        # Unread tokens can pull an average anywhere from the least possible value on.
        return (Interval(least, None) if openings.training else interval).json()

    return {
        "unit": facts["unit"],
        "max": largest.json(),
        "smallest_satisfied_bound": largest.json(),
        "token_mean": average(mean(tokens)),
        "token_p50": average(quantile(tokens, 0.5)),
        "token_p90": average(quantile(tokens, 0.9)),
        "token_p99": average(quantile(tokens, 0.99)),
        "trajectory_mean": average(mean(members)),
        "in_flight_mean": average(mean(flights), None),
        "in_queue_mean": average(mean(queues)),
        "optimizer_steps": _optimizer_steps(classes, openings),
        "token_histogram": histogram(tokens, "tokens", openings.training),
        "trajectory_histogram": histogram(members, "trajectories", openings.training),
    }


def _largest(classes: _Classes, openings: Openings) -> Interval:
    """Largest token staleness: reached for certain, and reachable."""
    reached = [row["sure_lo"] for row in classes.trajectories if row["sure"] and row["sure_lo"] is not None and row["members_lo"]]
    reached += [row["stated_max_lo"] for row in classes.steps if row["certain"] and row["stated_max_lo"] is not None]
    reached += [row["staleness_lo"] for row in classes.tokens if row["certain"] and row["tokens_lo"]]
    if not any(row["uses_hi"] is None or row["uses_hi"] > 0 for row in classes.uses):
        return Interval(None, None)
    reachable = [row["staleness_hi"] for row in classes.trajectories]
    finite = [value for value in reachable if value is not None]
    opened = openings.training or len(finite) < len(reachable)
    if not reachable and not opened:
        return Interval(None, None)  # everything trained was masked
    return Interval(max(reached, default=0), None if opened else max(finite))


def _cap_histogram(rows: Rows, trained: Interval) -> None:
    """No class holds more tokens than were trained, whatever each of its rows could hold by itself."""
    for row in rows:
        high = row["tokens"]["hi"]
        if trained.hi is not None and (high is None or high > trained.hi):
            row["tokens"]["hi"] = trained.hi


def _optimizer_steps(classes: _Classes, openings: Openings) -> dict[str, Any] | None:
    """Staleness in optimizer steps where a training step holds S > 1 of them.

    A token s versions old waited through s whole steps of S updates, and is used in the last of its own step's S at the
    latest: between S*s and S*s + S - 1.
    """
    updates = [row["updates"] for row in classes.steps if row["possible"]]
    if not updates or None in updates or len(set(updates)) != 1 or updates[0] <= 1:
        return None
    per_step = updates[0]
    scaled = [
        Class(item.lo * per_step, None if item.hi is None else item.hi * per_step + per_step - 1, item.n_lo, item.n_hi)
        for item in map(_token_class, classes.tokens)
    ]
    largest = _largest(classes, openings)
    top = None if largest.hi is None else largest.hi * per_step + per_step - 1
    # All S updates of a step train on its batch: some token of the largest staleness may sit in the first or the last.
    low = None if largest.lo is None else largest.lo * per_step
    average = Interval(0, None) if openings.training else mean(scaled)
    return {"max": Interval(low, top).json(), "token_mean": average.json(), "updates_per_step": per_step}


def _coverage(classes: _Classes, trained: Interval) -> dict[str, Any]:
    exact = bounded = unknown = 0
    for row in classes.tokens:
        weight = row["tokens_hi"] if row["tokens_hi"] is not None else row["tokens_lo"]
        if row["staleness_hi"] is None:
            unknown += max(weight, 1)
        elif row["staleness_lo"] == row["staleness_hi"]:
            exact += weight
        else:
            bounded += weight
    everything = exact + bounded + unknown
    uses = sum(row["uses_hi"] or row["uses_lo"] for row in classes.uses)
    identified = sum(row["identified"] for row in classes.uses)
    return {
        "tokens_exact": exact / everything if everything else None,
        "tokens_bounded": bounded / everything if everything else None,
        "tokens_unknown": unknown / everything if everything else None,
        "trajectories_identified": identified / uses if uses else None,
    }


# ------------------------------------------------------------------------------------------------- violations


def _violations(classes: _Classes, openings: Openings, bound: int | None, per_step: Mapping[Any, Any]) -> dict[str, Interval]:
    if bound is None:
        return {"tokens": NOTHING, "trajectories": NOTHING, "groups": NOTHING}
    # A step whose largest staleness is stated to exceed the bound holds a violator even if none is identified.
    stated = any(row["certain"] and row["stated_max_lo"] is not None and row["stated_max_lo"] > bound for row in classes.steps)
    least = {
        "trajectories": sum(row["members_lo"] for row in classes.trajectories if row["sure"] and (row["sure_lo"] or 0) > bound),
        "groups": sum(row["members_lo"] for row in classes.groups if row["sure"] and (row["sure_lo"] or 0) > bound),
        "tokens": sum(row["violating"].lo or 0 for row in per_step.values()),
    }
    # Every trajectory has a group.
    least["groups"] = max(least["groups"], int(least["trajectories"] > 0))
    most: dict[str, float | None] = {
        "trajectories": _sum_open(row["members_hi"] for row in classes.trajectories if _exceeds(row, bound)),
        "groups": _sum_open(row["members_hi"] for row in classes.groups if _exceeds(row, bound)),
        "tokens": _sum_open(row["violating"].hi for row in per_step.values()),
    }
    return {
        unit: Interval(max(least[unit], int(stated)), None if openings.training else most[unit])
        for unit in ("tokens", "trajectories", "groups")
    }


def _exceeds(row: Mapping[str, Any], bound: int) -> bool:
    """Whether a class may hold a violation."""
    return row["staleness_hi"] is None or row["staleness_hi"] > bound


def _sum_open(values: Any) -> float | None:
    listed = list(values)
    return None if any(value is None for value in listed) else sum(listed)


def _violating_steps(per_step: Mapping[Any, Any]) -> Rows:
    return [
        {"attempt": row["shown"]["attempt"], "step": row["shown"]["step"], "trajectories": row["shown"]["violations"].json()}
        for row in per_step.values()
        if row["shown"]["violations"] is not None and (row["shown"]["violations"].lo or 0) > 0
    ]


# ------------------------------------------------------------------------------------------------- steps


def _per_step(classes: _Classes, bound: int | None, rebuilt: Rebuilt, openings: Openings) -> dict[tuple[int, int], dict[str, Any]]:
    """One entry per step that counts or may count; ``shown`` is the JSON row, the rest feeds totals and comparisons."""
    tokens_of = _grouped(classes.tokens)
    uses_of = _grouped(classes.uses)
    dropped = _dropped_per_step(rebuilt)
    result = {}
    for step in classes.steps:
        key = (step["attempt"], step["step"])
        if not step["possible"] or (key not in uses_of and not step["certain"]):
            continue
        tokens, uses = tokens_of.get(key, []), uses_of.get(key, [])
        sure = step["certain"]
        trajectories = Interval(
            sum(row["uses_lo"] for row in uses) if sure else 0, _sum_open(row["uses_hi"] for row in uses)
        )
        loss = _step_tokens(step, uses)
        token_classes = [_token_class(row) for row in tokens]
        with_tokens = [row for row in uses if row["possible"]]
        members = [Class(row["staleness_lo"] or 0, row["staleness_hi"], row["uses_lo"] if sure and row["sure"] else 0, row["uses_hi"]) for row in with_tokens]
        largest = _step_largest(step, with_tokens, tokens)
        violating = _step_violating(step, tokens, with_tokens, loss, bound)
        violations = None
        if bound is not None:
            floor = int(sure and step["stated_max_lo"] is not None and step["stated_max_lo"] > bound)
            proven = sum(row["uses_lo"] for row in with_tokens if sure and row["sure"] and row["staleness_lo"] > bound)
            violations = Interval(max(proven, floor), _sum_open(row["uses_hi"] for row in with_tokens if _exceeds(row, bound)))
        started, ended = step["started"], step["ended"]
        result[key] = {
            "loss": loss,
            "violating": violating,
            "members_mean": mean(members),
            "shown": {
                "step": step["step"],
                "attempt": step["attempt"],
                "v_train": Interval(step["v_train_lo"], step["v_train_hi"]),
                "certain": sure,
                "trajectories": trajectories.open_above(openings.training),
                "tokens": loss.open_above(openings.training),
                "max": largest.open_above(openings.training),
                "mean": Interval(0, None) if openings.training else mean(token_classes),
                "violations": violations.open_above(openings.training) if violations is not None else None,
                "dropped": dropped.get(key, NOTHING).open_above(openings.any or "dropped" in openings.unseen),
                "waited_s": None if step["waited_us"] is None else step["waited_us"] / 1e6,
                "duration_s": (ended - started).total_seconds() if started and ended else None,
                "started": started.isoformat() if started else None,
            },
        }
    _spread(classes.steps, result)
    return result


def _spread(steps: Rows, entries: dict[tuple[int, int], dict[str, Any]]) -> None:
    """Show what is only known of several steps together as possible in each of them; totals are not touched.

    An average over nothing is nothing, so with its lower end at 0 it stays within the largest value.
    """
    for step in steps:
        key = (step["attempt"], step["step"])
        if step["first_step"] is None or step["first_step"] >= step["step"] or key not in entries:
            continue
        whole = dict(entries[key]["shown"])
        for number in range(step["first_step"], step["step"] + 1):
            if entry := entries.get((step["attempt"], number)):
                shown = entry["shown"]
                for name in ("trajectories", "tokens", "violations", "max", "mean"):
                    if whole[name] is not None:
                        shown[name] = Interval(0, whole["max" if name == "mean" else name].hi)


def _grouped(rows: Rows) -> dict[tuple[int, int], Rows]:
    grouped: dict[tuple[int, int], Rows] = {}
    for row in rows:
        grouped.setdefault((row["attempt"], row["step"]), []).append(row)
    return grouped


def _step_tokens(step: Mapping[str, Any], uses: Rows) -> Interval:
    """Loss tokens of a step: what its uses add up to, narrowed by what the log states of the step."""
    least = max(sum(row["loss_lo"] for row in uses), step["stated_loss_lo"] or 0) if step["certain"] else 0
    sums = _sum_open(row["loss_hi"] for row in uses)
    stated = step["stated_loss_hi"]
    most = stated if sums is None else (sums if stated is None else min(sums, stated))
    if most is not None and most < least:  # a contradiction that the findings report
        most = least
    return Interval(least, most)


def _step_largest(step: Mapping[str, Any], uses: Rows, tokens: Rows) -> Interval:
    if not uses:
        return UNKNOWN
    reached = [row["staleness_lo"] for row in uses if row["sure"] and row["uses_lo"]]
    reached += [row["staleness_lo"] for row in tokens if row["tokens_lo"]]
    least = max([*reached, step["stated_max_lo"] or 0, 0])
    highs = [row["staleness_hi"] for row in uses]
    most = None if None in highs else max(highs)
    if step["stated_max_hi"] is not None:
        most = step["stated_max_hi"] if most is None else min(most, step["stated_max_hi"])
    return Interval(least, most)


def _step_violating(step: Mapping[str, Any], tokens: Rows, uses: Rows, loss: Interval, bound: int | None) -> Interval:
    """Loss tokens of a step beyond the bound."""
    if bound is None:
        return NOTHING
    sure = step["certain"]
    least = sum(row["tokens_lo"] for row in tokens if sure and row["staleness_lo"] > bound)
    # A trajectory proven to violate has at least one violating token, even if it is not known which.
    proven = sum(row["uses_lo"] for row in uses if sure and row["sure"] and row["staleness_lo"] > bound)
    stated = int(sure and step["stated_max_lo"] is not None and step["stated_max_lo"] > bound)
    most = _sum_open(row["tokens_hi"] for row in tokens if _exceeds(row, bound))
    clean = sum(row["tokens_lo"] for row in tokens if row["staleness_hi"] is not None and row["staleness_hi"] <= bound)
    if loss.hi is not None:
        most = loss.hi - clean if most is None else min(most, loss.hi - clean)
    if any(row["staleness_hi"] is not None and row["staleness_hi"] <= bound for row in uses) and most is None:
        most = None
    least = max(least, proven, stated)
    return Interval(least, None if most is None else max(most, least))


def _dropped_per_step(rebuilt: Rebuilt) -> dict[tuple[int, int], Interval]:
    rows = (
        rebuilt.dataset.scan("events")
        .filter((pl.col("kind") == "dropped") & pl.col("step").is_not_null() & (pl.col("evidence") != "inferred"))
        .group_by(pl.col("attempt").fill_null(0), "step")
        .agg(pl.col("multiplicity").fill_null(1).sum().alias("dropped"))
        .collect()
    )
    return {(row["attempt"], row["step"]): Interval.exact(row["dropped"]) for row in rows.to_dicts()}


def _reported(rebuilt: Rebuilt, per_step: Mapping[tuple[int, int], Mapping[str, Any]]) -> Rows:
    rows = rebuilt.dataset.scan("reported").filter(pl.col("name").cast(pl.String).is_in(list(CANONICAL))).collect().to_dicts()
    rebuilt_values = {
        key: {
            "step.trajectories": row["shown"]["trajectories"],
            "step.loss_tokens": row["loss"],
            "step.staleness_max": row["shown"]["max"],
            "step.staleness_token_mean": row["shown"]["mean"],
            "step.staleness_trajectory_mean": row["members_mean"],
            "step.dropped": row["shown"]["dropped"],
        }
        for key, row in per_step.items()
    }
    return compare(rows, rebuilt_values)


# ------------------------------------------------------------------------------------------------- fates


def _by_fate(classes: _Classes, low: str, high: str) -> dict[str, Interval]:
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
        reasons = {reason: Interval(0, count.hi) if reason in ("unknown", "rolled_back") else count for reason, count in reasons.items()}
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


def _trajectories(classes: _Classes, openings: Openings) -> dict[str, Any]:
    by_fate = _by_fate(classes, "trajectories_lo", "trajectories_hi")
    everything = Interval(sum(row["trajectories_lo"] for row in classes.fates), _sum_open(row["trajectories_hi"] for row in classes.fates))
    return {
        "seen": everything.open_above(openings.any or bool(openings.unseen)),
        "trained": by_fate.get("trained:", NOTHING).open_above(openings.training),
        "dropped": _reasons(by_fate, "dropped", openings),
        "cancelled": _reasons(by_fate, "cancelled", openings),
        "lost": _reasons(by_fate, "lost", openings),
        "pending": _pending(by_fate, openings),
        "unknown": by_fate.get("unknown:", NOTHING).open_above(openings.any),
    }


def _tokens(classes: _Classes, openings: Openings, per_step: Mapping[Any, Any]) -> dict[str, Any]:
    by_fate = _by_fate(classes, "tokens_lo", "tokens_hi")
    trained = total(row["loss"] for row in per_step.values())
    candidates = [row for row in classes.fates if "trained:" in row["fates"]]
    distinct = Interval(
        sum(row["trained_lo"] for row in candidates if len(row["fates"]) == 1), _sum_open(row["trained_hi"] for row in candidates)
    )
    if distinct.hi is None or (trained.hi is not None and trained.hi < distinct.hi):
        distinct = Interval(distinct.lo, trained.hi)
    masked = Interval(
        sum(max(row["tokens_lo"] - row["trained_hi"], 0) for row in candidates if len(row["fates"]) == 1 and row["trained_hi"] is not None),
        _sum_open(None if row["tokens_hi"] is None else row["tokens_hi"] - (row["trained_lo"] if len(row["fates"]) == 1 else 0) for row in candidates),
    )
    generated = Interval(sum(row["tokens_lo"] for row in classes.fates), _sum_open(row["tokens_hi"] for row in classes.fates))
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


def _check_conservation(tokens: dict[str, Any], openings: Openings, diagnostics: Rows) -> None:
    """The parts must be able to add up to what was generated; if not, the rebuild is wrong and the audit says so."""
    parts = total(
        [
            tokens["trained_distinct"],
            tokens["masked"],
            tokens["pending"],
            tokens["unaccounted"],
            *(count for kind in ("dropped", "cancelled", "lost") for count in tokens[kind].values()),
        ]
    )
    generated = tokens["generated"]
    too_many = generated.hi is not None and parts.lo is not None and parts.lo > generated.hi
    too_few = parts.hi is not None and generated.lo is not None and parts.hi < generated.lo
    if too_many or too_few:
        diagnostics.insert(
            0,
            {
                "source": None,
                "line": None,
                "locator": None,
                "severity": "error",
                "code": "tokens-not-conserved",
                "message": f"The parts of the generated tokens ({parts.lo} to {parts.hi}) do not add up to all ({generated.lo} to "
                f"{generated.hi}); please report this with the run.",
                "opens": "training",
            },
        )


# ------------------------------------------------------------------------------------------------- cost and throughput


def _waste(classes: _Classes, openings: Openings, tokens: Mapping[str, Any], bound: int | None) -> dict[str, Any]:
    distinct, generated = tokens["trained_distinct"], tokens["generated"]
    others_lo = max((generated.lo or 0) - distinct.hi, 0) if distinct.hi is not None else 0
    low = others_lo / (others_lo + distinct.hi) if distinct.hi else (1.0 if distinct.hi == 0 and generated.lo else 0.0)
    others_hi = None if generated.hi is None else max(generated.hi - (distinct.lo or 0), 0)
    high = 1.0 if others_hi is None else (others_hi / (others_hi + distinct.lo) if distinct.lo or others_hi else 0.0)
    nothing = generated.hi == 0
    doomed = needless = None
    if bound is not None:
        doomed = Interval(
            sum(row["tokens_lo"] for row in classes.ages if row["age_lo"] > bound),
            _sum_open(row["tokens_hi"] for row in classes.ages if row["age_hi"] is None or row["age_hi"] > bound),
        ).open_above(openings.any or bool({"dropped", "cancelled", "lost"} & openings.unseen))
        needless = Interval(
            sum(row["tokens_lo"] for row in classes.drops if row["certain"] and row["age_hi"] is not None and row["age_hi"] <= bound),
            _sum_open(row["tokens_hi"] for row in classes.drops if row["age_lo"] is None or row["age_lo"] <= bound),
        ).open_above(openings.any or "dropped" in openings.unseen)
    return {
        "ratio": (UNKNOWN if nothing else Interval(low, high)).json(),
        "doomed_tokens": _json_or_null(doomed, bound),
        "needless_drop_tokens": _json_or_null(needless, bound),
        "length_bias": _length_bias(classes.lengths, openings),
    }


def _length_bias(lengths: pl.DataFrame, openings: Openings) -> dict[str, Any]:
    """Trained against all finished trajectories by length; null where the finished ones are not all known."""
    unknown = {"mean_ratio": None, "ks": None, "longest_decile_trained_share": None}
    if openings.any or "dropped" in openings.unseen or not lengths.height:
        return unknown
    finished, trained = int(lengths["finished"].sum()), int(lengths["trained"].sum())
    if not trained:
        return unknown
    mean_finished = (lengths["tokens"] * lengths["finished"]).sum() / finished
    mean_trained = (lengths["tokens"] * lengths["trained"]).sum() / trained
    by_length = lengths.sort("tokens").with_columns(
        (pl.col("finished").cum_sum() / finished).alias("f"), (pl.col("trained").cum_sum() / trained).alias("g")
    )
    decile = by_length.sort("tokens", descending=True).with_columns(pl.col("finished").cum_sum().alias("count"))
    # The longest tenth, with all trajectories as long as its shortest.
    cut = decile.filter(pl.col("count") >= finished / 10)["tokens"][0]
    longest = decile.filter(pl.col("tokens") >= cut)
    return {
        "mean_ratio": mean_trained / mean_finished if mean_finished else None,
        "ks": float((by_length["f"] - by_length["g"]).abs().max()),  # type: ignore[arg-type]
        "longest_decile_trained_share": int(longest["trained"].sum()) / int(longest["finished"].sum()),
    }


def _throughput(classes: _Classes, tokens: Mapping[str, Any], violating: Interval | None) -> dict[str, Any]:
    occupancy = classes.occupancy
    started, ended = occupancy["wall_started"], occupancy["wall_ended"]
    wall = (ended - started) / 1e6 if started is not None and ended is not None and ended > started else None

    def rate(count: Interval | None) -> float | None:
        return count.lo / wall if wall and count is not None and count.is_exact and count.lo is not None else None

    def share(microseconds: float | None) -> float | None:
        return microseconds / 1e6 / wall if wall and microseconds is not None else None

    in_bound = None
    if violating is not None and violating.is_exact and tokens["trained"].is_exact:
        in_bound = Interval.exact(tokens["trained"].lo - (violating.lo or 0))
    timed = occupancy["trajectories"] and occupancy["timed"] == occupancy["trajectories"]
    return {
        "wall_s": wall,
        "generated_tokens_per_s": rate(tokens["generated"]),
        "trained_tokens_per_s": rate(tokens["trained"]),
        "in_bound_tokens_per_s": rate(in_bound),
        "trainer_busy": share(occupancy["busy_us"]),
        "trainer_waiting": share(occupancy["waited_us"]),
        "mean_in_flight": share(occupancy["in_flight_us"]) if timed else None,
        "mean_queued": share(occupancy["queued_us"]) if timed else None,
    }


# ------------------------------------------------------------------------------------------------- as JSON


def _json_or_null(interval: Interval | None, bound: int | None) -> dict[str, Any] | None:
    return None if bound is None or interval is None else interval.json()


def _jsonify(value: Any) -> Any:
    """Intervals inside dicts and lists as JSON."""
    if isinstance(value, Interval):
        return value.json()
    if isinstance(value, dict):
        return {key: _jsonify(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_jsonify(item) for item in value]
    return value

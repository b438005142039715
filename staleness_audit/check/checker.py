"""The checker: intervals and a bound in, verdict and figures out (station *check*, DESIGN sections 2, 3 and 5).

It knows the rebuilt products, which are small tables of classes, and no framework. Every count has a lower end from what
counts for certain and an upper end from what may count; what went unread opens upper ends (``openings``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from staleness_audit import __version__
from staleness_audit.check.classes import Classes, Rows, exceeds, json_or_null, jsonify, sum_open
from staleness_audit.check.conservation import cast_nets
from staleness_audit.check.cost import throughput, waste
from staleness_audit.check.fates import token_fates, trajectory_fates
from staleness_audit.check.gate import Gate
from staleness_audit.check.health import health
from staleness_audit.check.intervals import NOTHING, Interval
from staleness_audit.check.openings import Openings, read_diagnostics, read_openings
from staleness_audit.check.provenance import inputs
from staleness_audit.check.staleness import cap_beyond, coverage, staleness
from staleness_audit.check.steps import per_step_rows, reported_rows, violating_ranges, violating_steps
from staleness_audit.check.worst import worst_violations
from staleness_audit.rebuild import Rebuilt

SCHEMA = "staleness-audit/1"


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
    classes = Classes(rebuilt)
    diagnostics = read_diagnostics(rebuilt)
    openings = read_openings(diagnostics, facts)
    bound_block = _bound(bound, facts)
    limit = bound_block["value"]
    per_step = per_step_rows(classes, limit, rebuilt, openings)
    trajectories, tokens = (
        trajectory_fates(classes, openings, per_step, replay=facts["replay"]),
        token_fates(classes, openings, per_step, replay=facts["replay"]),
    )
    stale = staleness(classes, openings, facts, tokens["trained"])
    violations = _violations(classes, openings, limit, per_step)
    if limit is not None:
        cap_beyond(stale, violations, limit)
    verdict = _verdict(limit, violations, openings, classes, diagnostics)
    listed = (
        worst_violations(rebuilt, limit, worst, facts.get("groups_per_step"), openings.training)
        if limit is not None and worst
        else []
    )
    document = {
        "schema": SCHEMA,
        "tool": {"version": __version__},
        "inputs": inputs(rebuilt),
        "run": _run(rebuilt, classes, openings),
        "bound": bound_block,
        "verdict": verdict,
        "gate": {},
        "guarantee": _guarantee(facts, limit),
        "coverage": coverage(classes),
        "staleness": stale,
        "violations": {
            **{unit: json_or_null(violations[unit], limit) for unit in ("tokens", "trajectories", "groups")},
            "steps": violating_steps(per_step) if limit is not None else None,
            "step_ranges": violating_ranges(per_step) if limit is not None else None,
            "worst": listed if limit is not None else None,
        },
        "trajectories": jsonify(trajectories),
        "tokens": jsonify(tokens),
        "waste": waste(classes, openings, tokens, limit),
        "throughput": throughput(classes, tokens, violations["tokens"] if limit is not None else None),
        "per_step": jsonify([row["shown"] for row in per_step.values()]),
        "reported": reported_rows(rebuilt, per_step, openings),
        "diagnostics": {
            "errors": sum(item["severity"] == "error" for item in diagnostics),
            "warnings": sum(item["severity"] == "warning" for item in diagnostics),
            "items": diagnostics,
        },
        "hints": facts["hints"],
    }
    cast_nets(document)
    document["gate"] = gate.judge(document)
    return document


def _run(rebuilt: Rebuilt, classes: Classes, openings: Openings) -> dict[str, Any]:
    facts = rebuilt.dataset.facts
    certain = [row for row in classes.steps if row["certain"]]
    possible = [row for row in classes.steps if row["possible"]]
    timed = [row for row in classes.steps if row["ended"] is not None or row["started"] is not None]
    times = [moment for row in timed for moment in (row["started"], row["ended"]) if moment is not None]
    starts = sorted(row["started"] for row in certain if row["started"] is not None)
    durations = [later - earlier for earlier, later in pairwise(starts)]
    steps = Interval(_fewest_versions(certain), _most_versions(possible)).open_above(openings.training)
    return {
        "path": rebuilt.dataset.manifest["run"],
        "framework": facts["framework"],
        "framework_version": facts["framework_version"],
        "dialect": facts["dialect"],
        "parser": f"{rebuilt.dataset.manifest['parser']} {rebuilt.dataset.manifest['parser_version']}",
        "detected_by": rebuilt.dataset.manifest["detected_by"],
        "attempts": sum(
            attempt["resumed_after"] is not None or attempt["resumed_after_lo"] is None for attempt in facts["attempts"]
        )
        or 1,
        "started": min(times).isoformat() if times else None,
        "ended": max(times).isoformat() if times else None,
        "steps": steps.json(),
        "health": health(facts["signs"], durations, max(times) if times else None),
    }


def _fewest_versions(steps: Rows) -> int:
    """Smallest possible number of distinct ``v_train``: as few versions as can lie in all the steps' intervals."""
    count, last = 0, -1.0
    for low, high in sorted(
        ((row["v_train_lo"] or 0, math.inf if row["v_train_hi"] is None else row["v_train_hi"]) for row in steps),
        key=lambda ends: ends[1],
    ):
        if low > last:
            count, last = count + 1, high
    return count


def _most_versions(steps: Rows) -> int:
    """Largest possible number of distinct ``v_train``: a step whose version is not known may have one of its own."""
    return len(
        {
            row["v_train_lo"]
            if row["v_train_lo"] is not None and row["v_train_lo"] == row["v_train_hi"]
            else (row["attempt"], row["step"])
            for row in steps
        }
    )


def _bound(bound: int | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    stated = facts["bound"]
    if bound is not None:
        return {"value": bound, "source": "cli", "key": None, "configured": stated["configured"], "conversion": None}
    if stated["value"] is None:
        return {
            "value": None,
            "source": None,
            "key": stated["key"],
            "configured": stated["configured"],
            "conversion": stated["conversion"],
        }
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


def _verdict(
    bound: int | None, violations: Mapping[str, Interval], openings: Openings, classes: Classes, diagnostics: Rows
) -> str:
    if bound is None:
        return "no-bound"
    if any((violations[unit].lo or 0) > 0 for unit in ("tokens", "trajectories", "groups")):
        return "fail"
    trained = any(row["certain"] and row["uses_lo"] and row["possible"] for row in classes.uses)
    clean = all(violations[unit].hi == 0 for unit in ("tokens", "trajectories", "groups"))
    contradicted = any(item["severity"] == "error" and item["opens"] == "training" for item in diagnostics)
    return "pass" if trained and clean and not openings.training and not contradicted else "inconclusive"


def _violations(
    classes: Classes, openings: Openings, bound: int | None, per_step: Mapping[Any, Any]
) -> dict[str, Interval]:
    if bound is None:
        return {"tokens": NOTHING, "trajectories": NOTHING, "groups": NOTHING}
    # A step whose largest staleness is stated to exceed the bound holds a violator even if none is identified.
    stated = any(
        row["certain"] and row["stated_max_lo"] is not None and row["stated_max_lo"] > bound for row in classes.steps
    )
    least = {
        "trajectories": sum(
            row["members_lo"] for row in classes.trajectories if row["sure"] and (row["sure_lo"] or 0) > bound
        ),
        "groups": sum(row["members_lo"] for row in classes.groups if row["sure"] and (row["sure_lo"] or 0) > bound),
        "tokens": sum(row["violating"].lo or 0 for row in per_step.values()),
    }
    # A violating trajectory is in some group.
    least["groups"] = max(least["groups"], min(least["trajectories"], 1))
    most: dict[str, float | None] = {
        "trajectories": sum_open(row["members_hi"] for row in classes.trajectories if exceeds(row, bound)),
        "groups": sum_open(row["members_hi"] for row in classes.groups if exceeds(row, bound)),
        "tokens": sum_open(row["violating"].hi for row in per_step.values()),
    }
    if most["trajectories"] is not None:
        # Every violating group holds a violating trajectory.
        most["groups"] = min(most["trajectories"], most["trajectories"] if most["groups"] is None else most["groups"])
    return {
        unit: Interval(max(least[unit], int(stated)), None if openings.training else most[unit])
        for unit in ("tokens", "trajectories", "groups")
    }

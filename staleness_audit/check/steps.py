"""Training steps one by one: what each trained, how stale, how much beyond the bound, and what it reported itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from staleness_audit.check.classes import Classes, Rows, exceeds, sum_open
from staleness_audit.check.intervals import NOTHING, UNKNOWN, Class, Interval, mean, total
from staleness_audit.check.openings import Openings
from staleness_audit.check.reported import CANONICAL, compare
from staleness_audit.check.staleness import token_class
from staleness_audit.rebuild import Rebuilt


def per_step_rows(
    classes: Classes, bound: int | None, rebuilt: Rebuilt, openings: Openings
) -> dict[tuple[int, int], dict[str, Any]]:
    """One entry per step that counts or may count; ``shown`` is the JSON row, the rest feeds totals and comparisons."""
    tokens_of = _grouped(classes.tokens)
    uses_of = _grouped(classes.uses)
    dropped = _fated_per_step(rebuilt, openings, "dropped:")
    result = {}
    for step in classes.steps:
        key = (step["attempt"], step["step"])
        if not step["possible"] or (key not in uses_of and not step["certain"]):
            continue
        tokens, uses = tokens_of.get(key, []), uses_of.get(key, [])
        sure = step["certain"]
        trajectories = _step_members(step, uses)
        loss = _step_tokens(step, uses)
        token_classes = [token_class(row) for row in tokens]
        with_tokens = [row for row in uses if row["possible"]]
        members = [
            Class(
                row["staleness_lo"] or 0,
                row["staleness_hi"],
                row["uses_lo"] if row["certain"] and row["sure"] else 0,
                row["uses_hi"],
            )
            for row in with_tokens
        ]
        largest = _step_largest(step, with_tokens, tokens)
        violating = _step_violating(step, tokens, with_tokens, loss, bound)
        violations = None
        if bound is not None:
            floor = int(sure and step["stated_max_lo"] is not None and step["stated_max_lo"] > bound)
            proven = sum(
                row["uses_lo"] for row in with_tokens if row["certain"] and row["sure"] and row["staleness_lo"] > bound
            )
            violations = Interval(
                max(proven, floor), sum_open(row["uses_hi"] for row in with_tokens if exceeds(row, bound))
            )
        started, ended = step["started"], step["ended"]
        result[key] = {
            "members": trajectories,
            "loss": loss,
            "violating": violating,
            "by_member": members,
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
                "dropped": _of_step(dropped, key, openings, "dropped"),
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
        entries[key]["together"] = {"first_step": step["first_step"], "violations": whole["violations"]}
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


def _step_members(step: Mapping[str, Any], uses: Rows) -> Interval:
    """Trajectories of a step: what its uses add up to, narrowed by what the log states of the step."""
    least = sum(row["uses_lo"] for row in uses if row["certain"])
    if step["certain"]:
        least = max(least, step["stated_lo"] or 0)
    ends = [end for end in (sum_open(row["uses_hi"] for row in uses), step["stated_hi"]) if end is not None]
    most = min(ends, default=None)
    return Interval(least, most if most is None or most >= least else least)


def _step_tokens(step: Mapping[str, Any], uses: Rows) -> Interval:
    """Loss tokens of a step: what its uses add up to, narrowed by what the log states of the step."""
    least = sum(row["loss_lo"] for row in uses if row["certain"])
    if step["certain"]:
        least = max(least, step["stated_loss_lo"] or 0)
    sums = sum_open(row["loss_hi"] for row in uses)
    stated = step["stated_loss_hi"]
    most = stated if sums is None else (sums if stated is None else min(sums, stated))
    if most is not None and most < least:  # a contradiction that the findings report
        most = least
    return Interval(least, most)


def _step_largest(step: Mapping[str, Any], uses: Rows, tokens: Rows) -> Interval:
    if not uses:
        return UNKNOWN
    reached = [row["staleness_lo"] for row in uses if row["certain"] and row["sure"] and row["uses_lo"]]
    reached += [row["staleness_lo"] for row in tokens if row["certain"] and row["tokens_lo"]]
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
    least = sum(row["tokens_lo"] for row in tokens if row["certain"] and row["staleness_lo"] > bound)
    # A trajectory proven to violate has at least one violating token, even if it is not known which.
    proven = sum(row["uses_lo"] for row in uses if row["certain"] and row["sure"] and row["staleness_lo"] > bound)
    stated = int(sure and step["stated_max_lo"] is not None and step["stated_max_lo"] > bound)
    most = sum_open(row["tokens_hi"] for row in tokens if exceeds(row, bound))
    clean = sum(
        row["tokens_lo"]
        for row in tokens
        if row["certain"] and row["staleness_hi"] is not None and row["staleness_hi"] <= bound
    )
    if loss.hi is not None:
        most = loss.hi - clean if most is None else min(most, loss.hi - clean)
    if any(row["staleness_hi"] is not None and row["staleness_hi"] <= bound for row in uses) and most is None:
        most = None
    least = max(least, proven, stated)
    return Interval(least, None if most is None else max(most, least))


def _fated_per_step(rebuilt: Rebuilt, openings: Openings, fate: str) -> dict[tuple[int | None, int | None], Interval]:
    """Trajectories with a fate (``dropped:`` or ``dropped:stale``) while each (attempt, step) was being collected.

    None stands for any attempt or step.
    """
    kind, _, reason = fate.partition(":")
    # A reason that is not known may be the one that is asked for.
    possible_fates = [fate, f"{kind}:unknown"] if reason else [fate]
    certain = pl.col("fates") == fate if reason else ~pl.col("fates").str.contains("\x1f", literal=True)
    rows = (
        rebuilt.scan("trajectory_lives")
        .filter(pl.any_horizontal(pl.col("fates").str.contains(one, literal=True) for one in possible_fates))
        .group_by(pl.when(certain | pl.col("fate_step").is_not_null()).then("fate_attempt"), "fate_step")
        .agg(
            pl.col("multiplicity_lo").filter(certain).sum(),
            pl.col("multiplicity_hi").sum(),
            pl.col("multiplicity_hi").is_null().any().alias("open"),
        )
        .collect()
    )
    counts: dict[tuple[int | None, int | None], Interval] = {}
    for attempt, number, low, high, endless in rows.iter_rows():
        least = 0 if openings.undone or number is None else low
        counts[attempt, number] = Interval(least, None if endless else high)
    possible = (
        rebuilt.dataset.scan("events")
        .filter((pl.col("kind") == kind) & pl.col("step").is_not_null() & (pl.col("evidence") == "inferred"))
        .filter(pl.lit(not reason) | (pl.col("reason").cast(pl.String).fill_null("unknown").is_in([reason, "unknown"])))
        .group_by(pl.col("attempt").fill_null(0), "step")
        .agg(pl.col("multiplicity").fill_null(1).sum())
        .collect()
    )
    for attempt, number, some in possible.iter_rows():
        counts[attempt, number] = counts.get((attempt, number), NOTHING) + Interval(0, some)
    return counts


def _of_step(
    fated: Mapping[tuple[int | None, int | None], Interval], key: tuple[int, int], openings: Openings, kind: str
) -> Interval:
    """Trajectories that met a fate in a step: those said to, and perhaps those of which the step is not known."""
    places = (key, (key[0], None), (None, None))
    return total(fated[place] for place in places if place in fated).open_above(openings.any or kind in openings.unseen)


def violating_steps(per_step: Mapping[Any, Any]) -> Rows:
    """Return the steps with a proven violation."""
    return [
        {
            "attempt": row["shown"]["attempt"],
            "step": row["shown"]["step"],
            "trajectories": row["shown"]["violations"].json(),
        }
        for row in per_step.values()
        if row["shown"]["violations"] is not None and (row["shown"]["violations"].lo or 0) > 0
    ]


def violating_ranges(per_step: Mapping[Any, Any]) -> Rows:
    """Return runs of steps that trained a proven violation of which it is not known in which of them it took place."""
    return [
        {
            "attempt": row["shown"]["attempt"],
            "first_step": row["together"]["first_step"],
            "step": row["shown"]["step"],
            "trajectories": row["together"]["violations"].json(),
        }
        for row in per_step.values()
        if row.get("together") and row["together"]["violations"] is not None and row["together"]["violations"].lo
    ]


def reported_rows(rebuilt: Rebuilt, per_step: Mapping[tuple[int, int], Mapping[str, Any]], openings: Openings) -> Rows:
    """Return the framework's own figures beside the rebuilt ones."""
    rows = (
        rebuilt.dataset.scan("reported")
        .filter(pl.col("name").cast(pl.String).is_in(list(CANONICAL)))
        .sort("attempt", "step", "name", "raw_name", "line")
        .collect()
        .to_dicts()
    )
    if not rows:
        return []
    names = {row["name"] for row in rows}
    rebuilt_values = {
        key: {
            "step.trajectories": row["shown"]["trajectories"],
            "step.loss_tokens": row["loss"],
            "step.staleness_max": row["shown"]["max"],
            "step.staleness_token_mean": row["shown"]["mean"],
            "step.staleness_trajectory_mean": mean(row["by_member"]),
            "step.dropped": row["shown"]["dropped"],
        }
        for key, row in per_step.items()
    }
    # What few frameworks log is rebuilt only for those that do.
    if names & {"step.in_flight_mean", "step.in_queue_mean", "step.in_queue_max"}:
        for key, parts in _parts_per_step(rebuilt, openings).items():
            rebuilt_values.setdefault(key, {}).update(parts)
    for name, fate, unseen in (
        ("step.dropped_stale", "dropped:stale", "dropped"),
        ("step.cancelled", "cancelled:", "cancelled"),
    ):
        if name in names:
            fated = _fated_per_step(rebuilt, openings, fate)
            for key in per_step:
                rebuilt_values[key][name] = _of_step(fated, key, openings, unseen)
    return compare(rows, rebuilt_values, rebuilt.dataset.manifest.get("figures", ()))


def _parts_per_step(rebuilt: Rebuilt, openings: Openings) -> dict[tuple[int, int], dict[str, Interval]]:
    """In-flight and in-queue staleness over the trajectories of each step that have loss tokens."""
    with rebuilt.connect() as connection:
        rows = connection.execute(
            """
            SELECT step_lives.attempt, step, use_lives.certain AND loss_lo > 0 AS sure, flight_lo, flight_hi, queue_lo, queue_hi,
                sum(multiplicity_lo)::BIGINT AS n_lo,
                CASE WHEN count(multiplicity_hi) = count(*) THEN sum(multiplicity_hi)::BIGINT END AS n_hi
            FROM use_lives JOIN members USING (key) JOIN step_lives USING (step_key)
            WHERE loss_hi IS NULL OR loss_hi > 0
            GROUP BY ALL
            UNION ALL
            SELECT attempt, step, false, flight_lo, flight_hi, queue_lo, queue_hi, 0, trajectories_hi FROM residual_uses
            """
        ).fetchall()
    parts: dict[tuple[int, int], tuple[list[Class], list[Class]]] = {}
    for attempt, step, sure, flight_lo, flight_hi, queue_lo, queue_hi, least, most in rows:
        flights, queues = parts.setdefault((attempt, step), ([], []))
        flights.append(Class(flight_lo, flight_hi, least if sure else 0, most))
        queues.append(Class(queue_lo or 0, queue_hi, least if sure else 0, most))
    return {
        key: {
            "step.in_flight_mean": _open_mean(flights, openings),
            "step.in_queue_mean": _open_mean(queues, openings),
            "step.in_queue_max": Interval(
                max((item.lo or 0 for item in queues if item.n_lo), default=0),
                None if any(item.hi is None for item in queues) else max(item.hi or 0 for item in queues),
            ).open_above(openings.training),
        }
        for key, (flights, queues) in parts.items()
    }


def _open_mean(classes: list[Class], openings: Openings) -> Interval:
    return Interval(0, None) if openings.training else mean(classes)

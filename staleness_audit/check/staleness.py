"""How stale the trained tokens are: extremes, averages, histograms, coverage (DESIGN ``staleness``, ``coverage``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from staleness_audit.check.classes import Classes, Rows
from staleness_audit.check.intervals import Class, Interval, histogram, mean, merged, quantile
from staleness_audit.check.openings import Openings


def token_class(row: Mapping[str, Any]) -> Class:
    """Return a row of ``token_classes`` as a class; tokens of a step that only may count have no lower end."""
    return Class(row["staleness_lo"], row["staleness_hi"], row["tokens_lo"] if row["certain"] else 0, row["tokens_hi"])


def _member_class(row: Mapping[str, Any], lost: bool) -> Class:
    """Members by their largest staleness. ``lost``: unread lines may hold older tokens of any of them."""
    low = row["sure_lo"] if row["sure"] and row["sure_lo"] is not None else row["staleness_lo"]
    high = None if lost else row["staleness_hi"]
    return Class(low or 0, high, row["members_lo"] if row["sure"] else 0, row["members_hi"])


def staleness(classes: Classes, openings: Openings, facts: Mapping[str, Any], trained: Interval) -> dict[str, Any]:
    """Return the ``staleness`` block: extremes, means and quantiles as intervals, and both histograms."""
    tokens = merged(token_class(row) for row in classes.tokens)
    members = [_member_class(row, openings.training) for row in classes.trajectories]
    largest = _largest(classes, openings)
    known = max((row["v_train_hi"] or 0 for row in classes.steps), default=0)
    flights = [
        Class(row["flight_lo"], row["flight_hi"], row["tokens_lo"] if row["certain"] else 0, row["tokens_hi"])
        for row in classes.flights
    ]
    queues = [
        Class(row["queue_lo"], row["queue_hi"], row["tokens_lo"] if row["certain"] else 0, row["tokens_hi"])
        for row in classes.flights
    ]

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
        "token_histogram": _capped(histogram(tokens, "tokens", openings.training, known), trained),
        "trajectory_histogram": histogram(members, "trajectories", openings.training, known),
    }


def _capped(rows: Rows, trained: Interval) -> Rows:
    """No class holds more tokens than were trained, whatever each of its rows could hold by itself."""
    for row in rows:
        high = row["tokens"]["hi"]
        if trained.hi is not None and (high is None or high > trained.hi):
            row["tokens"]["hi"] = trained.hi
    return rows


def cap_beyond(stale: Mapping[str, Any], violations: Mapping[str, Interval], bound: int) -> None:
    """Lower upper ends of both histograms: no class beyond the bound holds more than may violate it in all.

    What is certainly in other classes beyond the bound is not in this one. The histograms count what the violations
    count: tokens per use, trajectories once by their oldest token.
    """
    for name, unit in (("token_histogram", "tokens"), ("trajectory_histogram", "trajectories")):
        most = violations[unit].hi
        beyond = [row[unit] for row in stale[name] if row["staleness"] > bound]
        if most is None:
            continue
        certain = sum(count["lo"] or 0 for count in beyond)
        for count in beyond:
            end = max(most - certain, 0) + (count["lo"] or 0)
            count["hi"] = end if count["hi"] is None else min(count["hi"], end)


def _largest(classes: Classes, openings: Openings) -> Interval:
    """Largest token staleness: reached for certain, and reachable."""
    reached = [
        row["sure_lo"]
        for row in classes.trajectories
        if row["sure"] and row["sure_lo"] is not None and row["members_lo"]
    ]
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


def _optimizer_steps(classes: Classes, openings: Openings) -> dict[str, Any] | None:
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
        for item in map(token_class, classes.tokens)
    ]
    largest = _largest(classes, openings)
    top = None if largest.hi is None else largest.hi * per_step + per_step - 1
    # All S updates of a step train on its batch: some token of the largest staleness may sit in the first or the last.
    low = None if largest.lo is None else largest.lo * per_step
    average = Interval(0, None) if openings.training else mean(scaled)
    return {"max": Interval(low, top).json(), "token_mean": average.json(), "updates_per_step": per_step}


def coverage(classes: Classes) -> dict[str, Any]:
    """Return the ``coverage`` block: shares of trained tokens by how well their staleness is known."""
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

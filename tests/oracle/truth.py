"""The figures of the JSON document, token by token (DESIGN sections 2, 3 and 5), as a flat dictionary.

Keys are paths of the document (``staleness.max``); values are exact: int, Fraction or None. Made from the design alone.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

from .lives import Life, Run, Step

TERMINAL = ("dropped", "cancelled", "lost")


def fate(run: Run, life: Life) -> tuple[str, str | None]:
    """What became of a trajectory, and why."""
    if any(run.counts(use.attempt, use.step) for use in life.uses):
        return "trained", None
    last = max(run.attempts)
    end: tuple[str, str | None] | None = None
    for happening in life.happenings:
        if happening.kind in TERMINAL:
            end = happening.kind, happening.reason or "unknown"
        elif happening.kind == "requeued":
            end = None
    if end is not None:
        return end
    if any(not run.superseded(use.attempt, use.step) for use in life.uses):
        return "pending", None
    if life.uses:
        return "lost", "rolled_back"
    return ("pending", None) if life.attempt == last else ("lost", "unknown")


def trained_tokens(run: Run, life: Life) -> list[tuple[Step, list[int]]]:
    """Every counted use as its step and the indices of the tokens in its loss."""
    found = []
    for use in life.uses:
        if run.counts(use.attempt, use.step):
            loss = life.loss if use.loss is None else list(use.loss)
            found.append((run.by_key[use.attempt, use.step], [i for i, flag in enumerate(loss) if flag]))
    return found


def quantile(values: list[int], share: Fraction) -> int | None:
    """Nearest rank: the smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return next((v for i, v in enumerate(ordered, 1) if Fraction(i, len(ordered)) >= share), None)


def mean(values: list[int]) -> Fraction | None:
    """Exact mean, None of nothing."""
    return Fraction(sum(values), len(values)) if values else None


def figures(run: Run, bound: int | None) -> dict[str, Any]:
    """Every determined figure of the document for a run and a bound."""
    lives = [life for life in run.lives if life.role == "train"]
    out: dict[str, Any] = {}
    out |= _staleness(run, lives, bound)
    out |= _fates(run, lives)
    out |= _waste(run, lives, bound)
    out |= _steps(run, lives, bound)
    out |= _throughput(run, lives, bound, out)
    return out


def _staleness(run: Run, lives: list[Life], bound: int | None) -> dict[str, Any]:
    tokens: list[int] = []
    flight: list[int] = []
    queue: list[int] = []
    worst: dict[str, int] = {}
    groups: dict[str, int] = {}
    for life in lives:
        for step, indices in trained_tokens(run, life):
            for index in indices:
                staleness = step.version - life.versions[index]
                tokens.append(staleness)
                flight.append(life.versions[-1] - life.versions[index])
                queue.append(step.version - life.versions[-1])
                worst[life.trajectory_id] = max(staleness, worst.get(life.trajectory_id, staleness))
                groups[life.group] = max(staleness, groups.get(life.group, staleness))
    out: dict[str, Any] = {
        "staleness.max": max(tokens, default=None),
        "staleness.smallest_satisfied_bound": max(0, *tokens) if tokens else None,
        "staleness.token_mean": mean(tokens),
        "staleness.token_p50": quantile(tokens, Fraction(1, 2)),
        "staleness.token_p90": quantile(tokens, Fraction(9, 10)),
        "staleness.token_p99": quantile(tokens, Fraction(99, 100)),
        "staleness.trajectory_mean": mean(list(worst.values())),
        "staleness.in_flight_mean": mean(flight),
        "staleness.in_queue_mean": mean(queue),
        "staleness.token_histogram": dict(Counter(tokens)),
        "staleness.trajectory_histogram": dict(Counter(worst.values())),
    }
    if bound is not None:
        out["violations.tokens"] = sum(value > bound for value in tokens)
        out["violations.trajectories"] = sum(value > bound for value in worst.values())
        out["violations.groups"] = sum(value > bound for value in groups.values())
    if bound is None:
        out["verdict"] = "no-bound"
    elif not tokens:
        out["verdict"] = "inconclusive"
    else:
        out["verdict"] = "fail" if max(tokens) > bound else "pass"
    return out


def _fates(run: Run, lives: list[Life]) -> dict[str, Any]:
    lived: dict[str, Any] = {"seen": len(lives), "trained": 0, "pending": 0, "unknown": 0}
    tokens: dict[str, Any] = dict.fromkeys(
        ("generated", "trained", "trained_distinct", "masked", "pending", "unaccounted"), 0
    )
    for name in TERMINAL:
        lived[name], tokens[name] = Counter(), Counter()
    for life in lives:
        kind, reason = fate(run, life)
        size = len(life.versions)
        tokens["generated"] += size
        if kind == "trained":
            lived["trained"] += 1
            uses = trained_tokens(run, life)
            distinct = {index for _, indices in uses for index in indices}
            tokens["trained"] += sum(len(indices) for _, indices in uses)
            tokens["trained_distinct"] += len(distinct)
            tokens["masked"] += size - len(distinct)
        elif kind == "pending":
            lived["pending"] += 1
            tokens["pending"] += size
        else:
            lived[kind][reason] += 1
            tokens[kind][reason] += size
    out = {f"trajectories.{name}": value for name, value in lived.items()}
    return out | {f"tokens.{name}": value for name, value in tokens.items()}


def doomed(life: Life, bound: int) -> int:
    """Tokens more than the bound newer than the trajectory's oldest unmasked token: an ideal cancel saves them."""
    unmasked = [version for version, in_loss in zip(life.versions, life.loss, strict=True) if in_loss]
    return sum(version - min(unmasked) > bound for version in life.versions) if unmasked else 0


def needless(run: Run, life: Life, bound: int) -> int | None:
    """Tokens of a trajectory dropped for age although the step then being collected could have taken it.

    Age is that of the oldest token that would have counted. None if it is not determined: none would have counted, or
    the reason for the drop is not known.
    """
    kind, reason = fate(run, life)
    if kind != "dropped" or reason not in ("stale", "group", "unknown"):
        return 0
    drop = [happening for happening in life.happenings if happening.kind == "dropped"][-1]
    step = run.by_key[life.attempt if drop.attempt is None else drop.attempt, drop.step]  # type: ignore[index]
    unmasked = [version for version, in_loss in zip(life.versions, life.loss, strict=True) if in_loss]
    if not unmasked:
        return None if life.versions else 0
    if step.version - min(unmasked) > bound:
        return 0
    return None if reason == "unknown" else len(life.versions)


def _waste(run: Run, lives: list[Life], bound: int | None) -> dict[str, Any]:
    generated = sum(len(life.versions) for life in lives)
    distinct = sum(len({index for _, indices in trained_tokens(run, life) for index in indices}) for life in lives)
    out: dict[str, Any] = {"waste.ratio": 1 - Fraction(distinct, generated) if generated else None}
    if bound is not None:
        out["waste.doomed_tokens"] = sum(doomed(life, bound) for life in lives)
        needlessly = [needless(run, life, bound) for life in lives]
        if None not in needlessly:
            out["waste.needless_drop_tokens"] = sum(tokens or 0 for tokens in needlessly)
    return out


def _steps(run: Run, lives: list[Life], bound: int | None) -> dict[str, Any]:
    counted = [step for step in run.steps if run.counts(step.attempt, step.step)]
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for step in counted:
        rows[step.attempt, step.step] = {
            "v_train": step.version,
            "trajectories": 0,
            "values": [],
            "worst": [],
            "dropped": 0,
        }
    for life in lives:
        for step, indices in trained_tokens(run, life):
            row = rows[step.attempt, step.step]
            row["trajectories"] += 1
            values = [step.version - life.versions[index] for index in indices]
            row["values"] += values
            if values:
                row["worst"].append(max(values))
        kind, _ = fate(run, life)
        if kind == "dropped":
            drop = [happening for happening in life.happenings if happening.kind == "dropped"][-1]
            key = (life.attempt if drop.attempt is None else drop.attempt, drop.step)
            if key in rows:
                rows[key]["dropped"] += 1
    for row in rows.values():
        values, worst = row.pop("values"), row.pop("worst")
        row |= {"tokens": len(values), "max": max(values, default=None), "mean": mean(values)}
        if bound is not None:
            row["violations"] = sum(value > bound for value in worst)
    out: dict[str, Any] = {"run.steps": len({step.version for step in counted}), "per_step": rows}
    if bound is not None:
        out["violations.steps"] = sorted(key for key, row in rows.items() if row["violations"])
    return out


def _throughput(run: Run, lives: list[Life], bound: int | None, sofar: dict[str, Any]) -> dict[str, Any]:
    counted = [step for step in run.steps if run.counts(step.attempt, step.step)]
    if not run.timed or not counted:
        return {}
    return {}

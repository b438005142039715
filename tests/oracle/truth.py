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
    out |= _length_bias(run, lives)
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
    """Rates and time averages between the start of the first and the end of the last step that counts."""
    counted = sorted(
        (step for step in run.steps if run.counts(step.attempt, step.step)), key=lambda step: (step.started, step.ended)
    )
    if not run.timed or not counted:
        return {}
    first, last = counted[0].started, max(step.ended for step in counted)
    wall = Fraction(last) - Fraction(first)
    out: dict[str, Any] = {
        "wall_s": wall,
        "generated_tokens_per_s": sofar["tokens.generated"] / wall,
        "trained_tokens_per_s": sofar["tokens.trained"] / wall,
        "trainer_busy": sum(Fraction(step.ended) - Fraction(step.started) for step in counted) / wall,
    }
    if bound is not None:
        out["in_bound_tokens_per_s"] = (sofar["tokens.trained"] - sofar["violations.tokens"]) / wall
    if all(step.waited is not None for step in counted):
        out["trainer_waiting"] = sum(Fraction(step.waited or 0) for step in counted[1:]) / wall
        if out["trainer_busy"] + out["trainer_waiting"] > 1:
            del out["trainer_busy"]  # the times contradict each other
    if lives and all(_plain_course(run, life) for life in lives):
        out["mean_in_flight"] = sum(_overlap(_flight(life, last), first, last) for life in lives) / wall
        out["mean_queued"] = sum(_overlap(_queue(run, life, last), first, last) for life in lives) / wall
    return {f"throughput.{name}": value for name, value in out.items()}


def _plain_course(run: Run, life: Life) -> bool:
    """Whether a trajectory went from generation through the queue to its end without coming back."""
    kinds = [happening.kind for happening in life.happenings]
    came_back = "requeued" in kinds
    unfinished = bool(life.uses) and "finished" not in kinds
    return not came_back and not unfinished and all(run.counts(use.attempt, use.step) for use in life.uses)


def _when(life: Life, *kinds: str) -> float | None:
    return next((happening.ts for kind in kinds for happening in life.happenings if happening.kind == kind), None)


def _flight(life: Life, last: float) -> tuple[float, float]:
    """From the start of generation to its end."""
    born, done = _when(life, "started", "admitted"), _when(life, "finished", *TERMINAL)
    assert born is not None
    return born, last if done is None else done


def _queue(run: Run, life: Life, last: float) -> tuple[float, float]:
    """From the end of generation to training, or to whatever else ended the wait."""
    finished, ended = _when(life, "finished"), _when(life, *TERMINAL)
    taken = min((run.by_key[use.attempt, use.step].started for use in life.uses), default=None)
    if finished is None:
        return 0, 0
    return finished, taken if taken is not None else last if ended is None else ended


def _overlap(span: tuple[float, float], first: float, last: float) -> Fraction:
    return max(Fraction(min(span[1], last)) - Fraction(max(span[0], first)), Fraction(0))


def _length_bias(run: Run, lives: list[Life]) -> dict[str, Any]:
    """Trained trajectories against all whose generation finished, by their sampled tokens."""
    finished, trained = [], []
    for life in lives:
        kind, _ = fate(run, life)
        if kind in ("trained", "dropped") or _when(life, "finished") is not None:
            finished.append(len(life.versions))
        if kind == "trained":
            trained.append(len(life.versions))
    if not trained:
        return {}
    mean_of_finished, mean_of_trained = mean(finished) or Fraction(0), mean(trained) or Fraction(0)

    def share_up_to(lengths: list[int], length: int) -> Fraction:
        return Fraction(sum(value <= length for value in lengths), len(lengths))

    ordered = sorted(finished, reverse=True)
    shortest = ordered[-(-len(ordered) // 10) - 1]  # of the longest tenth, rounded up; equals belong to it
    out = {
        "mean_ratio": mean_of_trained / mean_of_finished if mean_of_finished else None,
        "ks": max(abs(share_up_to(finished, length) - share_up_to(trained, length)) for length in finished),
        "longest_decile_trained_share": Fraction(
            sum(length >= shortest for length in trained), sum(length >= shortest for length in finished)
        ),
    }
    return {f"waste.length_bias.{name}": value for name, value in out.items()}

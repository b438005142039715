"""What holds for a verl run as a whole: bound, guarantee, health, hints (guide sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from staleness_audit.parser import Attempt, Bound, Guarantee, Hint, RunFacts, Sign
from staleness_parsers.verl.launches import Launch
from staleness_parsers.verl.settings import THETA_KEY, THRESHOLD_KEY, Settings, bound_of

UNITS: Final = {"v1": "global steps", "fa": "parameter versions", "oso": "training steps", "other": "training steps"}
_PROGRESS: Final = {"saving", "dumped", "micro", "sync"}
_WAITING: Final = {
    "waiting": "the sampler waits for finished groups",
    "requesting": "the trainer waits for groups in the queue",
}


def bound(settings: Settings, rule: str, scale: int) -> Bound:
    """Convert the configured bound to ``v_train - v_gen``."""
    if rule == "fa":
        theta = settings.get(THETA_KEY)
        return Bound(
            None,
            THETA_KEY,
            theta,
            "a ratio of samples that may be generated ahead, not a number of versions: give a bound with --bound",
        )
    if rule == "oso":
        return Bound(None, None, None, "one step off states no bound; its lag is 1 by construction")
    raw = settings.get(THRESHOLD_KEY)
    if rule == "other" or settings.threshold is None or settings.trainer == "sync":
        return Bound(None, THRESHOLD_KEY if settings.known else None, raw, "no threshold is in force")
    value = bound_of(settings.threshold, scale)
    if value is not None and value < 0:
        return Bound(None, THRESHOLD_KEY, raw, "a threshold that no trained token can keep is no bound")
    strategy = settings.get("trainer.v1.sampler.max_off_policy_strategy")
    nominal = (
        "" if strategy == "drop" else "; with strategy wait the natural reading of the setting, which nothing enforces"
    )
    how = "T - 1" if scale == 1 else f"T * k + k - 2 with k = {scale}, a global step being one mini-batch"
    return Bound(
        value,
        THRESHOLD_KEY,
        raw,
        f"{how}: trained is s - a + 1 <= T for a group admitted at step a, v_train = s - 1, v_gen >= a - "
        f"{scale}{nominal}",
    )


def guarantee(settings: Settings, rule: str, scale: int) -> Guarantee:
    """State the largest staleness that the mechanism lets pass."""
    if rule == "oso":
        return Guarantee(1, "One batch is generated while the one before it trains, and the sync waits for it.")
    if rule == "fa":
        if settings.get(THETA_KEY) == 0:
            return Guarantee(
                0,
                "With theta = 0 at most as many groups start per version as the next sync needs, so nothing is "
                "outstanding at a sync.",
            )
        return Guarantee(
            "none",
            "theta caps how many groups are admitted between two syncs; how many syncs one of them spans is not "
            "limited.",
        )
    if rule == "other" or settings.trainer in ("unknown", "sync"):
        return Guarantee(None, "No configuration says which of verl's asynchronous trainers ran.")
    if settings.get("trainer.v1.sampler.custom_sampler.path"):
        return Guarantee(None, "A custom sampler class replaces the rules of the replay buffer.")
    if settings.threshold is None:
        return Guarantee("none", "Without a threshold nothing is evicted and nothing waits.")
    if settings.get("trainer.v1.sampler.max_off_policy_strategy") == "drop":
        return Guarantee(
            bound_of(settings.threshold, scale),
            "Finished groups whose admission age exceeds the threshold are evicted before each mini-batch, and "
            "no token is older than the admission.",
        )
    return Guarantee(
        "none",
        "Strategy wait only waits for groups in flight: finished ones are trained at any age, and the warm-up "
        "batches settle the staleness at their number.",
    )


def facts(
    settings: Settings,
    launches: Sequence[Launch],
    rule: str,
    scale: int,
    *,
    unseen: frozenset[str],
    seen: Mapping[str, bool],
) -> RunFacts:
    """State the facts of a run. ``seen``: which artifacts were found (rollouts, checkpoints, metrics, groups)."""
    trainer = settings.trainer
    k = settings.updates_per_sync
    batch = settings.count("data.train_batch_size")
    if rule == "fa":
        mini = settings.count("actor_rollout_ref.actor.ppo_mini_batch_size")
        batch = None if mini is None else mini * (settings.count("async_training.require_batches") or 1) * k
    dialect = {
        "v1": f"V1 {trainer}" if trainer != "unknown" else "V1",
        "fa": "fully_async_policy (up to 0.7.0)" if seen["old_groups"] else "fully_async_policy",
        "oso": "one_step_off_policy",
        "other": "legacy trainer",
    }[rule]
    return RunFacts(
        framework="verl",
        unit=UNITS[rule],
        framework_version=None,
        dialect=dialect + _age(scale, seen),
        config=settings.shown,
        bound=bound(settings, rule, scale),
        guarantee=guarantee(settings, rule, scale),
        attempts=tuple(
            Attempt(index, launch.resumed if index else None, started=_edge(launch, 0), ended=_edge(launch, -1))
            for index, launch in enumerate(launches)
        ),
        signs=tuple(_signs(launches)),
        unseen=unseen,
        hints=tuple(_hints(settings, rule, seen)),
        groups_per_step=batch,
    )


def _age(scale: int, seen: Mapping[str, bool]) -> str:
    """Say of a V1 run that it is of an older release, if its metrics show it (guide section 1)."""
    if scale > 1:
        return " (one mini-batch per global step, before 2026-07-08)"
    return " (dropped_samples, before 2026-07-23)" if seen["old_names"] else ""


def _edge(launch: Launch, at: int) -> datetime | None:
    times = [message["ts"] for message in launch.messages if message["ts"] is not None]
    return _moment(times[at]) if times else None


def _moment(local: datetime | None) -> datetime | None:
    """Console times name no zone; they are taken as UTC, which only shifts them together."""
    return None if local is None else local.replace(tzinfo=UTC)


def _signs(launches: Sequence[Launch]) -> Iterator[Sign]:
    """Yield progress, and the waiting that no progress followed; verl prints no line that says finished or crashed."""
    for launch in launches:
        waiting: dict[str, Sign] = {}
        for message in launch.messages:
            place = (message["source"], message["line"])
            if message["kind"] in _PROGRESS:
                waiting.clear()
                yield Sign("progress", _moment(message["ts"]), f"{message['kind']} {message['a']}", *place)
            elif message["kind"] in _WAITING:
                waiting[message["kind"]] = Sign("waiting", _moment(message["ts"]), _WAITING[message["kind"]], *place)
        if launch is launches[-1]:
            yield from waiting.values()


def _hints(settings: Settings, rule: str, seen: Mapping[str, bool]) -> Iterator[Hint]:
    if not settings.known:
        yield Hint(
            "the configured bound and the strategy",
            "keep Hydra's outputs/<date>/<time>/.hydra/config.yaml beside the logs",
        )
    if rule == "v1":
        if not seen["checkpoints"]:
            yield Hint(
                "first and last version of each row",
                "save a checkpoint every step (trainer.save_freq=1): the data plane is saved with it",
            )
        if not seen["metrics"]:
            yield Hint("the staleness that verl itself measures", "add 'file' to trainer.logger")
    if rule == "fa" and not seen["groups"]:
        yield Hint(
            "first and last version of each row",
            "set skip.async_rollout.enable=True with all feed indices in skip.async_rollout.steps, or trace with "
            "actor_rollout_ref.rollout.trace.backend",
        )
    if not seen["rollouts"]:
        yield Hint("which rows each step trained", "set trainer.rollout_data_dir")
    if rule in ("v1", "fa"):
        yield Hint(
            "which tokens of a row that spans versions belong to which",
            "no setting of this trainer records it"
            if rule == "v1"
            else "trace with actor_rollout_ref.rollout.trace.backend",
        )


def reported(launches: Sequence[Launch], rule: str, scale: int, trigger: int) -> Iterator[dict[str, Any]]:
    """Yield the framework's own figures: canonical names where they mean the rebuilt figure of the step.

    ``trajectory_staleness_worst`` is measured from recorded first versions, so it can only be too high. Evictions are
    of groups.
    """
    for index, launch in enumerate(launches):
        for number, record in sorted(launch.records.items()):
            place = {
                "source": record["source"],
                "line": record["line"],
                "locator": record["locator"],
                "attempt": index,
                "evidence": "recorded",
            }
            step = number if rule != "fa" else number * trigger - 1
            for column, name, factor in _FIGURES:
                value = record[column]
                if value is not None:
                    yield {
                        **place,
                        "step": step,
                        "name": name,
                        "raw_name": _RAW[column],
                        "value": value * (scale if factor else 1),
                    }


_FIGURES: Final = (
    ("worst_max", "step.staleness_max", True),
    ("worst_mean", "step.staleness_trajectory_mean", True),
    ("last_max", "step.in_queue_max", True),
    ("span_max", "verl.version_range_max", False),
    ("stale", "verl.groups_evicted_stale", False),
    ("stale_old", "verl.groups_evicted_stale", False),
    ("failed", "verl.groups_evicted_failed", False),
    ("filtered", "verl.groups_evicted_filtered", False),
    ("fa_stale", "verl.stale_trajectories_so_far", False),
    ("fa_partial", "verl.partial_trajectories", False),
    ("fa_span", "verl.partial_span_max", False),
    ("fa_dropped", "verl.groups_dropped_so_far", False),
)
from staleness_parsers.verl.metrics import METRICS as _RAW  # noqa: E402

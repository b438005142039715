"""What holds for the run as a whole: bound, guarantee, hints, findings about the configuration (guide section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from staleness_audit.parser import Attempt, Bound, Guarantee, Hint, RunFacts, Sign, Sink
from staleness_parsers.areal.assembly import Batches
from staleness_parsers.areal.content import Dialect
from staleness_parsers.areal.launches import Launch
from staleness_parsers.areal.settings import Settings
from staleness_parsers.areal.tasks import Task

KEY = "rollout.max_head_offpolicyness"


@dataclass(frozen=True)
class Known:
    """What the join found out. ``dumped``, ``traced``: there are dump rows, there are tasks."""

    settings: Settings
    launches: Sequence[Launch]
    tasks: Sequence[Task]
    batches: dict[int, Batches]
    dialect: Dialect
    words: str
    dumped: bool
    traced: bool
    attempts: Sequence[Attempt]
    signs: Sequence[Sign]


def facts(known: Known, sink: Sink) -> RunFacts:
    """State what holds for the run; configuration findings go to the sink."""
    settings = known.settings
    _configuration_findings(known, sink)
    controlled = any(row["controller"] for launch in known.launches for row in launch.log)
    ranks = len({task.rank for task in known.tasks})
    how = "single controller" if controlled else (f"{ranks} ranks" if ranks > 1 else "one process or one rank")
    return RunFacts(
        framework="areal",
        unit="training steps",
        dialect=f"{known.words}; {how}" if known.traced else known.words,
        config=settings.shown,
        bound=Bound(
            settings.eta,
            KEY if settings.found else None,
            settings.shown.get(KEY),
            "eta counts versions and a step trains on the version of its number, so the bound is eta"
            if settings.found
            else None,
        ),
        guarantee=guarantee(settings, _resumed_with_old_code(known)),
        attempts=known.attempts,
        signs=known.signs,
        unseen=_unseen(known),
        hints=_hints(known),
        groups_per_step=settings.batch,
    )


def guarantee(settings: Settings, resumed_with_old_code: bool) -> Guarantee:
    """Derive the largest possible staleness from the configuration (guide section 4.5)."""
    eta, quota, batch = settings.eta, settings.quota, settings.batch
    if eta is None:
        return Guarantee(None, "the configuration was not found")
    if settings.token_mask:
        if settings.behind is None:
            return Guarantee(None, "tokens are taken out of the loss by stamps that may be far newer than they are")
        late = " by their stamps, which may be one version newer" if settings.behind else ""
        return Guarantee(
            eta + settings.behind,
            f"tokens older than max_head_offpolicyness are taken out of the loss{late} when they are trained",
        )
    if settings.dynamic:
        return Guarantee(
            "none", "dynamic_bs trains smaller batches while the quota grows by C, so the backlog ages without limit"
        )
    ranks = settings.data_parallel or 1
    if quota is not None and batch is not None and max(1, quota) > batch:
        return Guarantee(
            "none",
            "consumer_batch_size is larger than the batch, so more is admitted than trained and the backlog ages",
        )
    if resumed_with_old_code:
        return Guarantee(
            "none", "after a resume the code up to v1.0.4 counts accepted tasks from 0, which opens the quota"
        )
    if eta > 0:
        return Guarantee(
            "none", "admission counts tasks but not their age: up to eta * C tasks can be overtaken for ever"
        )
    if quota is None or batch is None or (max(1, quota // ranks) * ranks > batch):
        return Guarantee(None, "the sizes of quota and batch, or of their shares per rank, are not known to agree")
    return Guarantee(0, "with eta = 0 every admitted task is needed for the batch of its version")


def _resumed_with_old_code(known: Known) -> bool:
    old = known.dumped and not known.dialect.listed
    return old and any(
        launch.first for launch in known.launches if any(row["kind"] == "recovering" for row in launch.log)
    )


def _configuration_findings(known: Known, sink: Sink) -> None:
    settings = known.settings
    quota, batch, eta = settings.quota, settings.batch, settings.eta
    if quota is not None and batch is not None and quota != batch:
        hangs = (
            "more is admitted than trained, so staleness grows"
            if quota > batch
            else "the quota runs out and the run hangs"
        )
        message = (
            f"rollout.consumer_batch_size is {quota} and train_dataset.batch_size {batch}: {hangs}; set them equal."
        )
        sink.diagnose("warning", "quota-not-batch", message)
    if settings.dynamic:
        sink.diagnose(
            "warning",
            "dynamic-batch",
            "dynamic_bs is on: rejected tasks shrink batches but not the quota, so staleness grows.",
        )
    ranks = len({task.rank for task in known.tasks})
    if quota is not None and ranks > 1 and quota % ranks:
        message = (
            f"consumer_batch_size {quota} is not a multiple of the {ranks} ranks, each of which rounds its share down."
        )
        sink.diagnose("warning", "quota-share", message)
    if _resumed_with_old_code(known):
        message = (
            "The run was resumed by code that counts accepted tasks from 0 again (up to v1.0.4): its quota is too big."
        )
        sink.diagnose("warning", "old-resume", message)
    if eta is None:
        sink.diagnose("warning", "config-missing", f"No config.yaml tells {KEY}; restore it, or give --bound.")


def _unseen(known: Known) -> frozenset[str]:
    """Fates that these logs can't show."""
    if not known.traced:
        return frozenset({"dropped", "cancelled", "lost", "pending"})
    unseen = set()
    if any(batch.hidden for batch in known.batches.values()):
        unseen |= {"pending", "lost"}
    if any(not task.sure for task in known.tasks if task.ready is not None):
        unseen.add("dropped")
    active = [launch for launch in known.launches if launch.steps or launch.sessions]
    if not all(any(row["kind"] in ("submitted", "old_submit") for row in launch.log) for launch in active):
        # Tasks that fail before their first sample leave no record, and a crash takes up to 255 records with it.
        unseen |= {"dropped", "lost", "pending"}
    return frozenset(unseen)


def _hints(known: Known) -> list[Hint]:
    hints = []
    if not known.traced:
        hints.append(
            Hint(
                "which trajectories a step trained",
                "rollout.enable_rollout_tracing=true, or perf_tracer.enabled and perf_tracer.session_tracer.enabled",
            )
        )
    if not known.dumped:
        hints.append(
            Hint("the version of each token", "rollout.dump_to_file=true with rollout.tokenizer_path (v2.0.0 or later)")
        )
    elif not known.dialect.listed:
        hints.append(Hint("the version of each token", "AReaL v2.0.0 or later, whose dumps have version_rle"))
    if not any("n_valid_tokens" in step.values for launch in known.launches for step in launch.steps.values()):
        hints.append(Hint("the numbers of sequences and tokens that check the replay", "stats_logger.tensorboard.path"))
    if known.traced and not any(launch.spans for launch in known.launches):
        hints.append(Hint("when exactly each batch was collected", "perf_tracer.enabled=true"))
    return hints

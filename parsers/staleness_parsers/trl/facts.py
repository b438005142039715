"""What holds for a run as a whole: bound, guarantee, release, health, and what its logs can't show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from staleness_audit.parser import Attempt, Bound, Guarantee, Hint, RunFacts, Sign
from staleness_parsers.trl.rows import time
from staleness_parsers.trl.settings import Settings
from staleness_parsers.trl.write import Teller

UNIT = "weight syncs"
KEY = "max_staleness"


@dataclass(frozen=True)
class Known:
    """All that was found out about a run. ``traced``: 1.10's traces are there."""

    settings: Settings
    tellers: Sequence[Teller]
    records: Sequence[Mapping[str, Any]]
    traced: bool
    forked: bool


def facts(known: Known) -> RunFacts:
    """State the facts of a run."""
    settings = known.settings
    release = _release(known)
    return RunFacts(
        framework="trl",
        unit=UNIT,
        framework_version=release,
        dialect=release,
        config=dict(settings.shown),
        bound=Bound(
            settings.bound,
            KEY if settings.bound is not None else None,
            settings.bound,
            None
            if settings.bound is None
            else "as it is: trainer version minus the group's, in weight syncs, when a row is pulled from the queue",
        ),
        guarantee=_guarantee(settings),
        attempts=tuple(_attempts(known)),
        signs=tuple(_signs(known)),
        unseen=_unseen(known),
        hints=tuple(_hints(known)),
        groups_per_step=_groups_per_step(known),
        # A forked conversation's rows may be trained in different steps.
        replay=known.forked,
        # One server makes all tokens, and each sync halts it, with its requests, until it has the new weights.
        ascending=True,
    )


def _release(known: Known) -> str | None:
    """Tell the release, which is the dialect, from keys that came and went; None if there are none."""
    names = _names(known)
    if _renamed(known):
        if "batch/packing_ratio" in names:
            return "1.16 or later"
        return "1.14 or later" if "model_version" in names else "1.11 or later"
    if known.traced or {"step_time", "iteration_time_s"} & names:
        return "1.10"
    return "1.10 or older" if names else None


def _names(known: Known) -> set[str]:
    return {row["name"] for row in known.records}


def _renamed(known: Known) -> bool:
    """Whether keys and settings have the names of release 1.11 and later."""
    return known.settings.new or bool({"batch/samples_per_step", "sample/staleness_max"} & _names(known))


def _guarantee(settings: Settings) -> Guarantee:
    if settings.bound is None:
        return Guarantee(None, "No file states max_staleness.")
    single = (settings.micro or 1) == 1 and (settings.sync_every or 1) == 1
    if single and settings.budget is not False:
        return Guarantee(
            settings.bound + 2,
            "Staleness is checked when a row is pulled from the queue; the row that opens a token-budget micro-batch "
            "is pulled two steps before it is trained.",
        )
    return Guarantee(
        settings.bound + 1,
        "Staleness is checked when a row is pulled from the queue, and the loader pulls one micro-batch ahead of the "
        "optimizer.",
    )


def _attempts(known: Known) -> Iterator[Attempt]:
    for told in known.tellers:
        launch = told.launch
        times = [record.ts for record in launch.records.values() if record.ts is not None]
        resumed = launch.number > 0 or launch.start > 0
        yield Attempt(
            launch.number,
            launch.start if resumed else None,
            launch.start_lo if resumed and launch.start_lo < launch.start else None,
            time(min(times, default=None)),
            time(max(times, default=None)),
        )


def _signs(known: Known) -> Iterator[Sign]:
    for told in known.tellers:
        for sync in told.story.syncs:
            yield Sign(
                "progress",
                told.time(sync.ended),
                f"weights v{sync.version} published",
                sync.row["source"],
                sync.row["line"],
            )
        for segment in told.launch.consoles:
            waits = [row for row in segment.events if row["kind"] in ("waiting", "full")]
            for row in waits[-1:]:
                what = (
                    "the trainer waits for samples"
                    if row["kind"] == "waiting"
                    else "the worker waits for room in the sample queue"
                )
                yield Sign("waiting", told.time(row["ts"]), what, row["source"], row["line"])
    last = known.tellers[-1].launch if known.tellers else None
    if last and last.finished:
        row = last.finished
        yield Sign("finished", None, "the closing record with train_runtime", row["source"], row.get("line"))


def _unseen(known: Known) -> frozenset[str]:
    """Name what leaves no record: rows in flight at the end; drops without 1.11's metrics and without a console."""
    unseen = {"pending"}
    if len(known.tellers) > 1:
        unseen.add("lost")
    if not all(told.drops_known for told in known.tellers):
        unseen.add("dropped")
    return frozenset(unseen)


def _groups_per_step(known: Known) -> int | None:
    settings = known.settings
    for told in known.tellers:
        if told.shape.per_micro and told.shape.micro and settings.generations:
            return max(told.shape.per_micro * told.shape.micro // settings.generations, 1)
    return None


def _hints(known: Known) -> Iterator[Hint]:
    settings = known.settings
    if not any(told.story.syncs for told in known.tellers):
        yield Hint(
            "when groups were scored and rows dropped, which proves how old trained tokens are at least",
            "call logging.basicConfig(level=logging.INFO) at module level of the training script and keep its output",
        )
    if not settings.told:
        yield Hint(
            "max_staleness, weight_sync_steps and the batch size",
            "use report_to tensorboard or trackio: both store the arguments",
        )
    if any((told.per_record or 1) > 1 for told in known.tellers):
        yield Hint("what each step trained, instead of several together", "set logging_steps=1")
    if _renamed(known):
        yield Hint(
            "the version of each trained row",
            "no setting records it since 1.11: traces hold eight rows in eight versions",
        )
    elif not known.traced:
        yield Hint(
            "each delivered row with its version",
            "use report_to trackio with release 1.10, or the metrics of 1.11 and later",
        )
    yield Hint("versions of single tokens", "no setting records them: a row carries the version its group began with")
    yield Hint("what was in flight when the run ended", "no setting records it")

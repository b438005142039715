"""Dressage on one page (guide sections 2 to 5)."""

from __future__ import annotations

from typing import Final

from staleness_audit.parser import Artifact, Card, Figure, Mode
from staleness_parsers.slime.card import UNIT

KEEP: Final = "dressage_staleness_keep_versions"
NO_CONVERSION: Final = (
    f"{KEEP} counts distinct end labels in the order in which collected results showed them; labels nobody collected "
    "do not count, and nothing looks at the trainer's version, so it converts into no bound; give one with --bound"
)
NO_LIMIT: Final = (
    "The window of end labels compares collected results with each other, not with the trainer, ignores first tokens, "
    "and does not look again at a collected batch; a group can wait in the queue for any number of steps."
)
CARD: Final = Card(
    title="Dressage (fully-async, partial-async and synchronous agent rollouts on slime)",
    unit=UNIT,
    artifacts=(
        Artifact(
            "rollout_data/<rollout_id>.pt",
            "--save-debug-rollout-data TEMPLATE or --dump-details DIR, and the proxy's --record-token-versions",
            "the version of every trained token; without --record-token-versions only an interval",
        ),
        Artifact(
            "traj_payload/<run>/<instance>/<session>/session.json",
            "written always (LOG_DIR, DRESSAGE_TRAJECTORY_PAYLOAD_LOG_DIR)",
            "tokens and versions of every session that finished, trained or not",
        ),
        Artifact(
            "traj_err/<run>/<instance>/<session>/error.json",
            "written always (LOG_DIR, DRESSAGE_TRAJECTORY_ERROR_LOG_DIR)",
            "sessions that failed or were rejected for their versions, without their tokens",
        ),
        Artifact(
            "proxy/<run>.log",
            "PROXY_LOG_FILE",
            "every session rejected for its versions, also those preempted that leave no error.json",
        ),
        Artifact(
            "console log (*.log, *.out, *.txt)",
            "keep the output of the job",
            "completed trainings and weight syncs, launches, groups dropped as stale or retried",
        ),
        Artifact(
            "events.out.tfevents.*",
            "--use-tensorboard (reading needs the extra `tensorboard`)",
            "numbers Dressage reports about itself",
        ),
    ),
    modes=(
        Mode("partial async", KEEP, NO_CONVERSION, False, "none", NO_LIMIT),
        Mode("fully async", KEEP, NO_CONVERSION, False, "none", NO_LIMIT),
        Mode(
            "synchronous rollout",
            None,
            "no control of staleness",
            False,
            "as slime's default rollout: 0 with train.py, --update-weights-interval with train_async.py",
            "the next batch is begun when the last one is complete, and nothing is left over.",
        ),
    ),
    betrays=(
        "As for slime, what a rollout dump held is betrayed by the console and the ids around it. A session without "
        "session.json or error.json is betrayed only by the proxy log or the console. A torn console is betrayed as "
        "slime's is, a single lost line about a stale group by the rollouts' metrics (staleness/dropped_groups), but "
        "not one about a group that failed or was tried again. Groups surplus to a fully async batch leave "
        "their sessions and no line; sessions cancelled at the end of a run leave nothing. The launch "
        "scripts clear the session folders, so only the last launch's sessions are there."
    ),
    refines=("slime",),
    figures=(
        Figure(
            "staleness/version_gap_*",
            "counted from the label of a trajectory's end to the newest label seen: it ignores early tokens and "
            "the trainer, and no value of it shows that a bound was kept",
        ),
        Figure(
            "staleness/dropped_groups",
            "counted anew in every call",
        ),
    ),
)

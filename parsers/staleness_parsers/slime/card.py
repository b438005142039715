"""slime on one page (guide sections 2, 3 and 5)."""

from __future__ import annotations

from typing import Final

from staleness_audit.parser import Artifact, Card, Figure, Mode

UNIT: Final = "trained rollouts"
NO_LIMIT: Final = (
    "slime has no staleness threshold: no admission, cancellation or batch rule looks at versions, and a group that "
    "syncs keep interrupting is trained at whatever age it finishes."
)
CARD: Final = Card(
    title="slime (fully-async, one-step-off and synchronous rollouts)",
    unit=UNIT,
    artifacts=(
        Artifact(
            "rollout_data/<rollout_id>.pt",
            "--dump-details DIR, or --save-debug-rollout-data TEMPLATE",
            "the version of every token where samples carry their trace (2026-03-29 and later), else an interval per "
            "trajectory; the life of every trajectory that reached a batch",
        ),
        Artifact(
            "train_data/<rollout_id>.pt",
            "--dump-details DIR, or --save-debug-train-data TEMPLATE",
            "which samples were trained, under which loss mask",
        ),
        Artifact(
            "console log (*.log, *.out, *.txt)",
            "keep the output of the job",
            "completed trainings, weight syncs and waiting to a second; launches and resumes; how many trajectories "
            "a step took; lost and filtered groups",
        ),
        Artifact(
            "events.out.tfevents.*",
            "--use-tensorboard (reading needs the extra `tensorboard`)",
            "numbers slime reports about itself; sizes and steps where no console log is left",
        ),
        Artifact(
            "rollout/global_dataset_state_dict_<rollout_id>.pt",
            "saved with every checkpoint",
            "how many trajectories had been admitted, hence how many never reached a batch",
        ),
        Artifact(
            "run-*.wandb",
            "--use-wandb --wandb-mode offline",
            "the same numbers as the event files, where there are none",
        ),
    ),
    modes=(
        Mode("fully-async rollout", None, "slime states no bound; give one with --bound", False, "none", NO_LIMIT),
        Mode(
            "one-step-off (train_async.py with the default rollout)",
            None,
            "slime states no bound; give one with --bound",
            False,
            "--update-weights-interval (1 by default); none with --partial-rollout",
            "the next batch is collected while one trains, and unfinished work is thrown away; partial rollouts "
            "keep it at any age.",
        ),
        Mode(
            "train.py with the default rollout",
            None,
            "slime states no bound; give one with --bound",
            False,
            "0; none with --partial-rollout",
            "collecting, training and syncing take turns; partial rollouts are kept at any age.",
        ),
    ),
    betrays=(
        "A missing or cut rollout dump is betrayed by its train dump, the console, or the ids around it; a missing "
        "train dump only where the console or other train dumps are there. The loss of the first dumps of a run is "
        "betrayed by labels above 1, of the last ones by the console only. Lines missing inside a console are "
        "betrayed by the numbers of rollouts and optimizer steps, its lost end by event files (--use-tensorboard). "
        "Nothing betrays a single lost line about a dropped group; without a console, rollouts that trained a critic "
        "only; and, under --flush-cache-interval other than 1, calls that lived through a sync in dumps without traces "
        "or, without a console, with no call of an older label that ended meanwhile. Trajectories that reached no "
        "batch leave no record: what became of them nobody can say."
    ),
    figures=(
        Figure(
            "rollout/staleness/*",
            "the label served when collection starts minus a sample's smallest one; it counts entries without "
            "tokens and ignores loss masks",
        ),
    ),
)

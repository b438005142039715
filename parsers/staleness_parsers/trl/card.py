"""TRL on one page, for ``staleness-audit frameworks`` and the documentation."""

from __future__ import annotations

from staleness_audit.parser import Artifact, Card, Figure, Mode

_REASON = (
    "Staleness is checked when a row is pulled from the queue, and the loader pulls one micro-batch ahead of the "
    "optimizer, so the first micro-batch of a step is trained one version later than checked."
)

CARD = Card(
    title="TRL (asynchronous GRPO)",
    unit="weight syncs",
    artifacts=(
        Artifact(
            "<output_dir>/checkpoint-*/trainer_state.json",
            "save_steps",
            "steps, rows and tokens per log record; since 1.11 drops and staleness at the check: an upper end",
        ),
        Artifact(
            "<output_dir>/runs/*/events.out.tfevents.*",
            'report_to="tensorboard"',
            "the same, with times, and the arguments",
        ),
        Artifact(
            "<trackio>/<project>.db",
            'report_to="trackio"',
            "the same; in 1.10 also every delivered row with version, group and tokens, whose step is replayed exactly",
        ),
        Artifact(
            "console log",
            "logging.basicConfig(level=logging.INFO) in the training script",
            "drops with their versions, weight syncs, and when groups were scored: how old trained tokens are at least",
        ),
        Artifact("<output_dir>/checkpoint-*/rollout_state.json", "1.11 and later, with checkpoints", "the release"),
        Artifact(
            "run-*.wandb",
            "report_to: wandb, offline",
            "the same numbers as the event files, where there are none",
        ),
    ),
    modes=(
        Mode("fixed count (token_budget <= 0)", "max_staleness", "as it is", False, "bound + 1", _REASON),
        Mode(
            "token budget, one micro-batch per step, sync every step",
            "max_staleness",
            "as it is",
            False,
            "bound + 2",
            "The row that opens a micro-batch was checked while the one before was filled, two versions too early.",
        ),
        Mode("token budget otherwise", "max_staleness", "as it is", False, "bound + 1", _REASON),
    ),
    betrays=(
        "Metric records are kept in up to four places, so damage to one is made good by the others; a lost record is "
        "betrayed by the gap in steps, lost console lines by the number of weight syncs and by drop counters, a lost "
        "flush of traces by its version labels. Nothing betrays steps beyond every file's last record, or a launch all "
        "of whose files are lost."
    ),
    figures=(
        Figure(
            "sample/staleness_*",
            "taken when a sample is pulled from the queue, over delivered samples; the loader pulls ahead of the "
            "optimizer, so they may be trained one or two versions later",
        ),
        Figure(
            "sample/dropped_stale_total",
            "a sum of dropped rows over the log window; absent when there were none",
        ),
        Figure(
            "batch/*_per_step",
            "a mean over the log window",
        ),
    ),
)

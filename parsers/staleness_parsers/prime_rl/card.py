"""prime-rl on one page, for ``staleness-audit frameworks`` and the documentation."""

from __future__ import annotations

from staleness_audit.parser import Artifact, Card, Figure, Mode

CARD = Card(
    title="prime-rl",
    unit="training steps",
    artifacts=(
        Artifact(
            "rollouts/step_*/train/effective/traces.jsonl",
            "on by default; `--no-monitors.file` removes it",
            "which traces were trained at which step, their tokens, the loss mask, and the interval of their versions",
        ),
        Artifact(
            "rollouts/step_*/train/all/traces.jsonl",
            "on by default; `--no-monitors.file` removes it",
            "every episode that came back and when, so what was dropped, failed or left over",
        ),
        Artifact(
            "rollouts/step_*/train_rollouts.jsonl",
            "v0.6.0",
            "the selected batch with its start versions; no tokens, so versions and steps only",
        ),
        Artifact(
            "metrics.jsonl",
            "on by default; `--no-monitors.file` removes it",
            "that a step was trained, when, and how long the trainer waited; dates for the logs",
        ),
        Artifact(
            "logs/attempt_*/orchestrator.log",
            'always; `log.level = "debug"` adds when an update ended and which groups were dropped',
            "weight updates (narrower versions), numbers of cancelled and voided traces, restarts",
        ),
        Artifact("logs/attempt_*/trainer.log", "always", "that a step was trained; that the run finished"),
        Artifact("configs/orchestrator.json", "always", "the bound, group and batch size, where branches are cut"),
        Artifact(
            "run-*.wandb",
            "monitors.wandb, offline",
            "the same rows as metrics.jsonl, where there is none",
        ),
    ),
    modes=(
        Mode(
            "since PR #3313 (v0.8.1.dev65)",
            "max_off_policy_steps",
            "as it is",
            False,
            "bound + 1 (broadcasts on disk: bound + 2)",
            "Stale groups are cancelled at each version and the queue is swept before selection, but the version is "
            "counted before the engines have it, so the oldest tokens can be of the version before, or of the one "
            "before that where an update from disk skips a version.",
        ),
        Mode(
            "since PR #3385",
            "max_off_policy_steps",
            "as it is",
            True,
            "bound",
            "The version is counted after the engines have it. Files don't tell this code from the former.",
        ),
        Mode(
            "up to v0.8.0",
            "max_off_policy_steps",
            "as it is (limits only version changes seen in flight)",
            False,
            "none",
            "Nothing limits how long a finished trace waits in the queue.",
        ),
    ),
    betrays=(
        "A damaged line is reported. A lost file of shipped traces is betrayed by the trainer's row of its step, a "
        "lost trace by the step line's count of shipped traces, a lost trainer row by the weights published later, a "
        "file that ends inside a record by later steps, a torn orchestrator log by the rows of metrics.jsonl "
        "(log.level debug names each dropped group beside the warning that counts them). A lost line of `all`, a lost "
        "warning of the log, and the last steps if every file ends before them are betrayed by nothing."
    ),
    figures=(
        Figure(
            "Max Off-Policy",
            "counted from the version an episode is recorded to have started with; members dispatched late "
            "generate with newer weights, so it is at least the true one",
        ),
        Figure(
            "off_policy/max",
            "counted from the version an episode is recorded to have started with; members dispatched late "
            "generate with newer weights, so it is at least the true one",
        ),
        Figure(
            "off_policy/*mean",
            "a mean over shipped episodes, not weighted by tokens, counted from the version an episode is "
            "recorded to have started with, which may be older than its first token",
        ),
    ),
)

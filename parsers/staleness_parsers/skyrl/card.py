"""SkyRL on one page (guide sections 2 to 6)."""

from __future__ import annotations

from typing import Final

from staleness_audit.parser import Artifact, Card, Figure, Mode

UNIT: Final = "training steps"
CONVERSION: Final = (
    "the bound itself: reported staleness (step trained minus step admitted) is the age of a group's oldest token, or "
    "one more"
)
STRICT: Final = (
    "With a bound of 0, the quota of a step is its batch: training waits until every admitted group is done, and each "
    "is trained in the step that admitted it."
)
NO_LIMIT: Final = (
    "Only admission is limited: a group that takes long is trained in whatever step of its epoch it ends, with a "
    "warning, and nothing is dropped or cancelled for age."
)
BATCH_REASON: Final = (
    "Whole batches are generated between weight syncs, at most one step ahead of the trainer (one-step-off), or none "
    "(synchronous)."
)
CARD: Final = Card(
    title="SkyRL (fully async trainer)",
    unit=UNIT,
    artifacts=(
        Artifact(
            "console log (*.log, *.out, *.txt; wandb's files/output.log)",
            "keep the output of the job from its first line on: it begins with the configuration; with "
            "trainer.logger=console it also has the metrics",
            "which steps were trained; the reported age of each group over the bound, so proven violations from "
            "bound + 2 on; with the metrics the ages of all others, exactly up to a bound of 2",
        ),
        Artifact(
            "events.out.tfevents.*",
            "trainer.logger=tensorboard (reading needs the extra `tensorboard`)",
            "per step mean, share, extremes and count of reported ages, and loss tokens; alone, no violation is proven",
        ),
        Artifact(
            "wandb/offline-run-*/run-*.wandb",
            "trainer.logger=wandb with WANDB_MODE=offline",
            "the same numbers in full precision, and the configuration",
        ),
        Artifact(
            "dumped_data/global_step_<g>_training_input.pkl",
            "trainer.dump_data_batch=true",
            "loss tokens and masks of every group, in no known order of age",
        ),
        Artifact(
            "global_step_<g>/{fully_async_state,trainer_state}.pt",
            "trainer.ckpt_interval > 0",
            "the configuration; that steps were completed",
        ),
    ),
    modes=(
        Mode("fully async, bound 0", "trainer.fully_async.max_staleness_steps", CONVERSION, True, "0", STRICT),
        Mode(
            "fully async, bound 1 and more",
            "trainer.fully_async.max_staleness_steps",
            CONVERSION,
            False,
            "none",
            NO_LIMIT,
        ),
        Mode("one-step-off", None, "SkyRL states no bound here; give one with --bound", None, "1", BATCH_REASON),
        Mode(
            "synchronous",
            None,
            "SkyRL states no bound here; give one with --bound",
            None,
            "0",
            "Generation and training alternate.",
        ),
    ),
    betrays="A damaged line inside a step's metrics is reported; a step of which every line is lost shows as a gap in "
    "the numbers; a lost warning contradicts the count in the metrics, where there are any. Nothing betrays groups "
    "that were running, or done and untrained, when a launch ended: the quota bounds them.",
    figures=(
        Figure(
            "async/staleness_*",
            "a difference of step counters over the trained groups: at least the true one, and one more for "
            "groups admitted between a weight sync and the next step's beginning",
        ),
        Figure(
            "async/num_groups_dropped",
            "groups without variance dropped while the batch was filled; those of a last batch that was never "
            "filled are in no metric",
        ),
    ),
)

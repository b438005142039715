"""verl on one page, for ``staleness-audit frameworks`` and the documentation."""

from __future__ import annotations

from typing import Final

from staleness_audit.parser import Artifact, Card, Figure, Mode

CARD: Final = Card(
    title="verl",
    unit="global steps (V1), parameter versions (fully async), training steps (one step off)",
    artifacts=(
        Artifact(
            "<default_local_dir>/global_step_<s>/transfer_queue/",
            "`trainer.save_freq=1` in an async V1 mode (TransferQueue 0.1.9 or later)",
            "every row trained in step s with its first and last version and its loss mask; what was in the buffer",
        ),
        Artifact(
            "<rollout_data_dir>/<s>.jsonl",
            "`trainer.rollout_data_dir=DIR`",
            "which rows a step (fully async: a micro-step) trained",
        ),
        Artifact(
            "<project>/<experiment>.jsonl",
            "`trainer.logger` contains `file`",
            "mean, smallest and largest staleness of each step's rows by their first and last version; evicted groups",
        ),
        Artifact(
            "console log",
            "`trainer.logger` contains `console`; keep the output of the job",
            "the same records; restarts, syncs, fully-async micro-steps and what was outstanding at each sync",
        ),
        Artifact("events.out.tfevents.*", "`trainer.logger` contains `tensorboard`", "the same records, with times"),
        Artifact(
            "<dump_dir>/*/GBS*/<s>/<i>/tq_batch.pt",
            "`skip.rollout_tq.enable=True`, `.steps=[..]` (no warm-up batches then)",
            "the rows of each mini-batch with their versions, if the console shows that none was replayed",
        ),
        Artifact(
            "<dump_dir>/*/GBS*/<feed index>/gen_batch.dp",
            "`skip.async_rollout.enable=True`, `.steps=[..]` (fully async)",
            "first and last version and loss mask of each row of a group",
        ),
        Artifact(
            "outputs/<date>/<time>/.hydra/config.yaml",
            "always (Hydra)",
            "the trainer, the threshold and strategy, batch sizes",
        ),
        Artifact(
            "run-*.wandb",
            "`trainer.logger` contains `wandb`, offline",
            "the same numbers as the event files, where there are none",
        ),
    ),
    modes=(
        Mode(
            "V1 separate_async, colocate_async: drop",
            "trainer.v1.sampler.max_off_policy_threshold",
            "bound = T - 1: a finished group is evicted when s - a + 1 > T, and v_gen >= a - 1",
            True,
            "T - 1",
            "Finished groups over the admission age are evicted before each mini-batch, and the selection "
            "re-checks it.",
        ),
        Mode(
            "V1 separate_async, colocate_async: wait",
            "trainer.v1.sampler.max_off_policy_threshold",
            "bound = T - 1 (the natural reading; nothing enforces it)",
            False,
            "none",
            "Only groups still in flight make the sampler wait; finished ones are trained at any age, and the "
            "warm-up batches alone settle the staleness at W.",
        ),
        Mode("V1, threshold null", None, "states no bound", False, "none", "Nothing is evicted and nothing waits."),
        Mode(
            "fully_async_policy",
            "async_training.staleness_threshold",
            "a ratio of samples, not of versions: states no bound",
            False,
            "none (theta = 0: 0)",
            "The ratio caps what is admitted between two syncs; a straggler may span any number of them. With "
            "theta = 0 nothing is outstanding at a sync.",
        ),
        Mode(
            "one_step_off_policy",
            None,
            "states no bound; the lag is fixed",
            True,
            "1",
            "One batch is in flight while the one before it trains.",
        ),
    ),
    betrays=(
        "A lost or cut rollout dump is betrayed by the step's record, a lost record by the numbers of its neighbours, "
        "a lost row of a dump by the checkpoint of its step or by the tokens its record counts, a damaged checkpoint "
        "by its file. Nothing betrays the last steps if every file ends before them, or a row that the dump of the "
        "last fully-async micro-step lost: no record is ever written of that."
    ),
    figures=(
        Figure(
            "training/off_policy/trajectory_staleness_worst/*",
            "counted from the oldest version of each trained row, padding left out",
        ),
        Figure(
            "training/off_policy/trajectory_staleness/*",
            "counted from the newest version of each trained row, that of its last token",
        ),
        Figure(
            "training/off_policy/evicted_samples_staleness/*",
            "counted from admission, not from generation, and one more than the lag",
        ),
        Figure(
            "fully_async/count/stale_trajectory_processed",
            "a running count by the newest version of each trajectory, which hides partial rollouts; it starts "
            "anew with each launch",
        ),
    ),
)

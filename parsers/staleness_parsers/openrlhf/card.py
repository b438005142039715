"""OpenRLHF on one page (guide sections 2, 4 and 5)."""

from __future__ import annotations

from typing import Final

from staleness_audit.parser import Artifact, Card, Mode

UNIT: Final = "training steps"
QUEUE: Final = "train.async_queue_size"
NO_BOUND: Final = (
    "OpenRLHF has no staleness bound to configure; the queue size (1 by default), in batches, is the limit without "
    "over-sampling: give --bound"
)
CARD: Final = Card(
    title="OpenRLHF (asynchronous PPO and GRPO)",
    unit=UNIT,
    artifacts=(
        Artifact(
            "console log or Ray worker logs (*.log, *.out, *.err, *.txt)",
            "keep the output of the job",
            "every step, its size and timings, evaluations, the queue size, generation calls and discarded groups: the "
            "version of every batch as exact as the clocks allow",
        ),
        Artifact(
            "<tensorboard_dir>/<run_name>/events.out.tfevents.*",
            "--logger.tensorboard_dir DIR, --logger.logging_steps 1 (reading needs the extra `tensorboard`)",
            "the same timings, dated; not the queue size, without which nothing limits how long a batch waited",
        ),
        Artifact(
            "wandb config.yaml or wandb-metadata.json, or the launch script (*.sh)",
            "--logger.wandb.key, or keep the script with the logs",
            "whether generation overlaps weight syncs, over-sampling, group and batch sizes",
        ),
        Artifact(
            "run-*.wandb",
            "--logger.wandb.key, offline",
            "the same numbers as the event files, where there are none",
        ),
    ),
    modes=(
        Mode(
            "asynchronous",
            QUEUE,
            NO_BOUND,
            True,
            "train.async_queue_size",
            "the permit for batch n comes back when batch n - Q is taken, after its version n - Q was broadcast.",
        ),
        Mode(
            "asynchronous with partial rollouts",
            QUEUE,
            NO_BOUND,
            True,
            "train.async_queue_size",
            "generation goes on through weight syncs, so later tokens are only newer; admission is the same.",
        ),
        Mode(
            "asynchronous with over-sampling (vllm_generate_batch_size > batch_size)",
            QUEUE,
            NO_BOUND,
            False,
            "train.async_queue_size + D, D = ceil((B_gen + B - 1) / B) - 1 (B_gen / B - 1 if B divides B_gen)",
            "samples left in the generator's buffer hold no permit and grow older by a version per batch served.",
        ),
        Mode(
            "releases up to 0.9.0 with dynamic filtering",
            QUEUE,
            NO_BOUND,
            False,
            "2 * train.async_queue_size + 1",
            "a batch is collected over several calls while the trainer uses up the queue.",
        ),
        Mode("synchronous", None, NO_BOUND, True, "0", "generation and training take turns."),
    ),
    betrays=(
        "A missing step is betrayed by the numbers of later ones, unless they are the last; missing metrics by the "
        "step's line, a lost end of the log by later steps of an event file (--logger.tensorboard_dir, with "
        "--logger.logging_steps 1), a lost line of a discarded group by the pass rate of its batch (unless calls make "
        "more than a batch: rollout.vllm_generate_batch_size). Nothing betrays a lost line of an evaluation, or the "
        "loss of the end of every file. Samples that the training data loader drops (the last incomplete "
        "micro-batch of a rank) are logged nowhere: members of a batch count as trained, with at least one token "
        "each."
    ),
)

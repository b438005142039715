"""NeMo-RL on one page, for ``staleness-audit frameworks`` and the documentation."""

from __future__ import annotations

from staleness_audit.parser import Artifact, Card, Figure, Mode

CARD = Card(
    title="NeMo-RL",
    unit="training steps",
    artifacts=(
        Artifact(
            "console log (ray-driver.log, output.log, Ray's worker-*.out and .err)",
            "keep it with `2>&1 | tee`, through Slurm or with wandb; set RAY_DEDUP_LOGS=0",
            "single controller: groups, tokens and the largest staleness of every step, evictions, aborts; "
            "async_grpo: version of every group, evictions; restarts, the bound",
        ),
        Artifact(
            "exp_*/train_data_step*.jsonl",
            "async_grpo only: on by default; `env.should_log_nemo_gym_responses: true` removes it",
            "trained trajectories and their tokens; with the console the version of each",
        ),
        Artifact(
            "exp_*/tensorboard/events.out.tfevents.*",
            "logger.tensorboard_enabled: true",
            "times, tokens and masked rows of steps, evictions of closed steps; no staleness of the single controller",
        ),
        Artifact(
            "step_*/config.yaml, replay_buffer.pt",
            "checkpointing.enabled: true",
            "the bound; async_grpo: versions of groups then buffered",
        ),
        Artifact("exp_*/wandb/*/*/files/config.yaml", "logger.wandb_enabled: true, online", "the bound"),
        Artifact(
            "run-*.wandb",
            "logger.wandb_enabled: true, offline",
            "the same numbers as the event files, where there are none",
        ),
    ),
    modes=(
        Mode(
            "single controller, windowed",
            "async_rl.sampler.max_staleness_versions",
            "as it is",
            True,
            "bound",
            "The window is checked at selection; what falls out of it is evicted or aborted.",
        ),
        Mode(
            "single controller, weight_fifo",
            "async_rl.sampler.max_staleness_versions",
            "as it is",
            True,
            "bound",
            "Only groups inside the window are selected, oldest version first; can stall for good.",
        ),
        Mode(
            "single controller, in_order",
            "async_rl.sampler.max_lookahead_versions",
            "as it is",
            True,
            "bound; after a resume with a smaller lookahead, the larger one before",
            "Groups are trained at the step they were admitted for; restored ones are not checked again.",
        ),
        Mode(
            "single controller, ready_first",
            "async_rl.sampler.max_staleness_versions",
            "only how far admission may lead, no bound (0 is one)",
            False,
            "none",
            "Whatever is ready is trained, however old.",
        ),
        Mode(
            "single controller, custom",
            None,
            "not known",
            None,
            "not known",
            "The sampler is the user's own code.",
        ),
        Mode(
            "async_grpo",
            "grpo.async_grpo.max_trajectory_age_steps",
            "as it is",
            True,
            "bound",
            "A group is trained at its target step only, and evicted once it is too old.",
        ),
    ),
    betrays=(
        "A lost step line is betrayed by the numbers of its neighbours, a lost eviction of a closed step by its "
        "metrics, a lost row of a dump by the step's count of groups, a console's lost end by later steps of the "
        "event files (keep TensorBoard on). Nothing betrays evictions after the last closed step, retries, or the "
        "last steps if every file ends before them."
    ),
    figures=(
        Figure(
            "lag",
            "the largest staleness by the versions in which generation started",
        ),
        Figure(
            "*avg_trajectory_age",
            "a mean over groups, not the largest age",
        ),
        Figure(
            "evicted_stale_prompt_groups*",
            "groups evicted while the step was assembled; those of a last step that never closed are in no metric",
        ),
    ),
)

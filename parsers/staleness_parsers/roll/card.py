"""ROLL on one page, for ``staleness-audit frameworks`` and the documentation."""

from __future__ import annotations

from staleness_audit.parser import Artifact, Card, Figure, Mode

CARD = Card(
    title="ROLL",
    unit="global steps",
    artifacts=(
        Artifact(
            "<otlp_output_dir>/traces/traces*.jsonl",
            'since v0.3.0: `system_envs: {ROLL_OTEL_ENABLED: "1"}`',
            "RLVR: each prompt's start step, the weights of each segment, train step, drops and cancels; plain agentic "
            "managers: the weights of each turn; all: steps, syncs and times",
        ),
        Artifact(
            "<rollout_mock.dump_dir>/train/step_*.pkl",
            "since v0.2.0: `rollout_mock: {enable: true, mode: dump}`",
            "who was in each batch and its tokens; agentic: episode numbers, so the step at which a slot was created",
        ),
        Artifact(
            "<rollout_dump_dir>/rollout_dump_data.step_*.jsonl",
            "`rollout_dump_dir`, an absolute path",
            "who was in each batch; RLVR: start step of the oldest; agent-native: first and last step of each",
        ),
        Artifact("<save_logging_board_dir>data_*.jsonl", "`save_logging_board_dir`", "response tokens of a step"),
        Artifact(
            "console log",
            "capture the driver's output; `track_with: stdout` adds metrics",
            "the configuration, finished steps, batch sizes, filtered prompts, steps that pushed weights",
        ),
        Artifact(
            "checkpoint-*/pipeline/worker_state_pipeline.json, TensorBoard events",
            "`save_steps`; `track_with: tensorboard`",
            "finished steps, steps that pushed weights, skipped steps, the framework's mean lag",
        ),
        Artifact("<config_name>.yaml", "keep it beside the run", "the bound, batch and group sizes, F"),
        Artifact(
            "run-*.wandb",
            "track_with: wandb, offline",
            "the same numbers as the event files, where there are none",
        ),
    ),
    modes=(
        Mode(
            "RLVR, model_update_frequency 1",
            "async_generation_ratio",
            "ceil(R)",
            True,
            "bound",
            "Nothing that began before the window is taken, and weights are pushed at every step.",
        ),
        Mode(
            "agentic, model_update_frequency 1",
            "async_generation_ratio",
            "R",
            True,
            "bound",
            "Groups whose slot is older than R steps are ignored, and weights are pushed at every step.",
        ),
        Mode(
            "model_update_frequency F > 1",
            "async_generation_ratio",
            "ceil(R)",
            False,
            "bound + F - 1",
            "The window counts steps, not weights: what begins F - 1 steps after a push is that much older.",
        ),
    ),
    betrays=(
        "A damaged line or file is reported. A lost batch of spans is betrayed by numbers of prompts that are left "
        "out, finished prompts without all responses or rewards, a pause that cut a request of which no sequel is "
        "there, a step whose batch cannot be filled, or whose get_batch is missing; one of the driver's by a step "
        "without its own span; a lost dump or pickle by the step's spans; lost lines of the agentic pipeline's printed "
        "configuration by the fields that it always prints; a clock that was set back by more than a minute by spans "
        "that end before earlier ones of their process; those of the agentic pipeline's trajectories by a trained one "
        "that has none. Lines of RLVR's printed configuration (keep the YAML "
        "beside the logs), other lost console lines, and the last spans of every file are betrayed by nothing."
    ),
    figures=(
        Figure(
            "*scheduler/off_policy_ratio",
            "a mean over samples of training step minus the step its sampling began in: a lag in steps, blind "
            "to weights pushed only every F-th step, to critic warm-up and to skipped steps",
        ),
        Figure(
            "global_step - sampling_params.global_step",
            "the largest lag in steps of the batch, of its first domain only, and blind to weights pushed only "
            "every F-th step",
        ),
    ),
)

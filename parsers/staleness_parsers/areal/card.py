"""AReaL on one page, for ``staleness-audit frameworks`` and the documentation."""

from __future__ import annotations

from staleness_audit.parser import Artifact, Card, Figure, Mode

CARD = Card(
    title="AReaL",
    unit="training steps",
    artifacts=(
        Artifact(
            "rollout/{version}/{task}.jsonl",
            "rollout.dump_to_file=true and rollout.tokenizer_path (v0.5.2 or later)",
            "the version of each token (`version_rle`, v2.0.0 or later), else the newest version of the group; neither "
            "the step that trained it nor whether it was rejected",
        ),
        Artifact(
            "main.log (or the captured console)",
            "always; task lines with rollout.enable_rollout_tracing=true",
            "when each task was started and when its result was ready, from which its step is replayed; restarts; the "
            "statistics of each step with five digits",
        ),
        Artifact(
            "session_tracer/[role/]sessions-r*.jsonl",
            "perf_tracer.enabled and perf_tracer.session_tracer.enabled",
            "when each sample ran, and whether its task was accepted",
        ),
        Artifact(
            "perf_tracer/[role/]traces-r*.jsonl",
            "perf_tracer.enabled=true",
            "when each batch was collected, each step trained and each update finished; evaluations",
        ),
        Artifact(
            "tensorboard/events.out.tfevents.*",
            "stats_logger.tensorboard.path",
            "number of trajectories and tokens of each step, the checksum of the replay; that a step's largest "
            "staleness is at least the logged one",
        ),
        Artifact("config.yaml", "always (overwritten at a restart)", "the bound, the sizes of batch, group and quota"),
        Artifact(
            "run-*.wandb",
            "stats_logger.wandb.mode: offline",
            "the same numbers as the event files, where there are none",
        ),
    ),
    modes=(
        Mode(
            "eta = 0, C = B, dynamic_bs off",
            "rollout.max_head_offpolicyness",
            "as it is",
            True,
            "0",
            "All tasks that may be admitted at a version are needed for its batch, so none is left when it changes.",
        ),
        Mode(
            "eta >= 1",
            "rollout.max_head_offpolicyness",
            "as it is",
            False,
            "none",
            "Admission counts tasks and looks at none: up to eta * C of them can be overtaken for ever, and a "
            "straggler is trained as soon as it ends.",
        ),
        Mode(
            "C > B, or dynamic_bs",
            "rollout.max_head_offpolicyness",
            "as it is",
            False,
            "none",
            "The quota grows faster than batches use it up, so the backlog and its age grow without limit.",
        ),
        Mode(
            "resumed, up to v1.0.4",
            "rollout.max_head_offpolicyness",
            "as it is",
            False,
            "none",
            "The counter of accepted tasks restarts at 0 under a high version, which opens the quota.",
        ),
        Mode(
            "max_concurrent_samples set (PR #1722)",
            "rollout.max_head_offpolicyness",
            "as it is",
            True,
            "eta",
            "Tokens older than eta are taken out of the loss when the batch is trained.",
        ),
        Mode(
            "the same in the v2 controller",
            "rollout.max_head_offpolicyness",
            "as it is",
            False,
            "eta + 1",
            "The mask goes by stamps, and those of the v2 controller may be one version newer than the tokens.",
        ),
    ),
    betrays=(
        "A damaged line is reported. A lost dump, task or batch is betrayed by the step's number of sequences and of "
        "valid tokens, a lost step by the steps around it or by the step a later launch continues from, a log that "
        "was cut short by batches, steps or samples that other files show later than its end, a clock that was set "
        "back by more than a minute by the order of the console's lines and of the session ids. Nothing betrays "
        "a lost rejection, or the last steps if every file ends before them."
    ),
    figures=(
        Figure(
            "*version_stats/sample_staleness_*_max",
            "until PR #1736 the mean over micro-batches and data-parallel ranks of each one's maximum, so at "
            "most the true one; the last token of every sample is left out",
        ),
        Figure(
            "*version_stats/sample_staleness_*_avg",
            "until PR #1736 the plain mean over micro-batches and ranks, not weighted by tokens; the last token "
            "of every sample is left out, and an answer of one token altogether",
        ),
    ),
)

"""PSRL on one page (guide sections 2, 4 and 5)."""

from __future__ import annotations

from typing import Final

from staleness_audit.parser import Artifact, Card, Figure, Mode

UNIT: Final = "training steps"
STALENESS: Final = "psrl.staleness"
CONVERSION: Final = "v_train - v_gen <= psrl.staleness: buffer id minus the version at which a trajectory began"
CARD: Final = Card(
    title="PSRL (StaleFlow)",
    unit=UNIT,
    artifacts=(
        Artifact(
            "<logging_path>/route_trace.log",
            "on by default (psrl.rollout_gateway.rust_log_filter with route_trace=info)",
            "the pinned version of every call, and the exact tokens of every segment",
        ),
        Artifact("<rollout_data_dir>/{step}.jsonl", "trainer.rollout_data_dir", "which requests each step trained"),
        Artifact(
            "<logging_path>/trajectories/v*/{uid}.txt",
            "on by default (psrl.agentic_rl.trajectory_output.enable)",
            "loss tokens, and an upper end for the version of the last one",
        ),
        Artifact(
            "<logging_path>/RequestStatusTracker.log, AgentLoopManager.log",
            "PSRL_LOGGING_LEVEL=INFO: pulls, pushes, aborts, buffers; =DEBUG: entries",
            "that no pull overtook an advertised version; the fates of untrained requests; at DEBUG who was trained, "
            "and at which version each request began, without trace and generations",
        ),
        Artifact("outputs/*/*/.hydra/config.yaml", "written by Hydra", "the bound, group and buffer sizes"),
    ),
    modes=(
        Mode(
            "single-turn and session loops",
            STALENESS,
            CONVERSION,
            True,
            STALENESS,
            "a reserved slot is never later than its group's version plus the bound; groups take the lowest legal.",
        ),
        Mode(
            "native multi-turn loops without sticky routing",
            STALENESS,
            CONVERSION,
            False,
            "2 * psrl.staleness",
            "every turn is pinned anew, also to an instance older than the first turn's; the books keep the first pin.",
        ),
        Mode(
            "releases that re-tag resumed requests",
            STALENESS,
            CONVERSION,
            False,
            "none",
            "a raised tag makes an entry movable to later buffers, again and again.",
        ),
    ),
    betrays=(
        "A missing step's generations are betrayed by later steps and by the buffers' headers, unless they are the "
        "last at the default log level; lost rows of generations by the size of the other steps or of their buffer, a "
        "torn gateway trace by trained requests that it lacks, a component's lost end by later steps. Nothing betrays "
        "lost lines of the trace's middle of requests that were never trained, nor a folder of trajectories that is "
        "missing; PSRL_LOGGING_LEVEL=DEBUG logs where every request went."
    ),
    refines=("verl",),
    figures=(
        Figure(
            "staleness",
            "counted from the version a request was given when it was first placed; a later turn of a "
            "trajectory can be older, and inside mixed groups single tags are unreliable",
        ),
        Figure(
            "mean of staleness by count",
            "counted from the versions that requests were given when they were first placed; inside mixed "
            "groups old ones are over-counted",
        ),
    ),
)

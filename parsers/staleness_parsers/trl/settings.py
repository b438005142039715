"""What the run was told to do: the training arguments, or what the log betrays of them (guide section 2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from staleness_parsers.trl.metrics import whole

SHOWN: Final = (
    "max_staleness",
    "weight_sync_steps",
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "token_budget",
    "num_generations",
    "max_inflight_tasks",
    "queue_maxsize",
    "max_steps",
    "logging_steps",
    "save_steps",
    "fork_threshold_tokens",
    "max_tool_calling_iterations",
    "max_completion_length",
    "report_to",
    "run_name",
    "resume_from_checkpoint",
)
"""Arguments worth showing with a result."""


@dataclass(frozen=True)
class Settings:
    """The arguments that matter; None = no file states it.

    ``budget``: micro-batches are filled up to a token budget (False = a fixed count of rows). ``samples``: rows per
    step of all processes, as the log has it. ``told``: some file holds the training arguments as such.
    """

    bound: int | None = None
    sync_every: int | None = None
    micro: int | None = None
    size: int | None = None
    budget: bool | None = None
    budget_tokens: int | None = None
    generations: int | None = None
    logging: int | None = None
    saves: int | None = None
    max_steps: int | None = None
    samples: int | None = None
    told: bool = False
    new: bool | None = None
    shown: Mapping[str, Any] = field(default_factory=dict)


def settings_from(documents: Sequence[tuple[str, Mapping[str, Any]]], log: Iterable[Mapping[str, Any]]) -> Settings:
    """Join what the files say; the first document that has an argument wins. ``log``: rows of ``trl_console``."""
    merged: dict[str, Any] = {}
    for _, document in documents:
        for key, value in document.items():
            merged.setdefault(key, value)
    told = "max_staleness" in merged and "weight_sync_steps" in merged
    bound, generations = whole(merged.get("max_staleness")), whole(merged.get("num_generations"))
    samples: int | None = None
    for row in log:
        if bound is None and row["kind"] == "drop":
            bound = row["count"]
        if bound is None and row["kind"] == "derived":
            bound = row["number"]
        if row["kind"] == "derived":
            samples = row["count"]
        if generations is None and row["kind"] == "worker":
            generations = row["number"]
    tokens = whole(merged.get("token_budget"))
    logging = whole(merged.get("logging_steps"))
    return Settings(
        bound=bound,
        sync_every=_positive(merged.get("weight_sync_steps")),
        micro=_positive(merged.get("gradient_accumulation_steps")),
        size=_positive(merged.get("per_device_train_batch_size")),
        # Not set means the server's context length, which is a budget.
        budget=(tokens is None or tokens > 0) if "token_budget" in merged else None,
        budget_tokens=tokens if tokens is not None and tokens > 0 else None,
        generations=generations,
        logging=logging if logging is not None and logging >= 1 else None,
        saves=_positive(merged.get("save_steps")),
        max_steps=_positive(merged.get("max_steps")),
        samples=_positive(samples),
        told=told,
        new="weight_sync_timeout" in merged if told else None,
        shown={key: merged[key] for key in SHOWN if key in merged},
    )


def _positive(value: object) -> int | None:
    found = whole(value)
    return found if found is not None and found > 0 else None

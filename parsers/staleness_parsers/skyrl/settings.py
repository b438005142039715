"""What a configuration says, in every spelling (guide section 2), and what follows for staleness (sections 3 and 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from staleness_audit.readers.config import lookup
from staleness_audit.readers.numbers import is_whole

BOUND_KEY: Final = "trainer.fully_async.max_staleness_steps"
CONCURRENCY: Final = 512
"""Requests in flight per engine unless ``SKYRL_GENERATE_CONCURRENCY_PER_ENGINE`` says otherwise, which no file
records."""
MAX_SEQS: Final = 1024


@dataclass(frozen=True)
class Settings:
    """The keys that matter; None where the configuration is not at hand or does not name the key.

    ``bound`` is S, ``groups`` B, ``samples`` n, ``workers`` W of the guide. ``raw`` is the configuration as found.
    """

    bound: int | None = None
    groups: int | None = None
    samples: int | None = None
    workers: int | None = None
    fully_async: bool | None = None
    refill: bool | None = None
    masks_zero_variance: bool | None = None
    masks_overlong: bool | None = None
    stepwise: bool | None = None
    engines: int | None = None
    max_seqs: int | None = None
    updates: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether a configuration is at hand."""
        return bool(self.raw)

    def starts_at_once(self, concurrency: int | None) -> bool:
        """Whether no request can have waited for a slot, so that a group starts before the sync after its admission."""
        if not (self.workers and self.samples and self.engines):
            return False
        slots = min(concurrency or CONCURRENCY, self.max_seqs or MAX_SEQS)
        return self.workers * self.samples <= self.engines * slots


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Understand a configuration; keys that are missing or of another type are None."""

    def find(*keys: str) -> Any:
        return next((value for key in keys if (value := lookup(config, key)) is not None), None)

    def count(*keys: str) -> int | None:
        value = find(*keys)
        return value if is_whole(value) and value >= 0 else None

    def flag(*keys: str, default: bool | None = None) -> bool | None:
        value = find(*keys)
        return value if isinstance(value, bool) else default

    if not config:
        return Settings()
    fully_async = flag("trainer.fully_async.enabled")
    batch = ("trainer.policy_mini_batch_size", "trainer.train_batch_size")
    engine = "generator.inference_engine"
    return Settings(
        bound=count(BOUND_KEY),
        groups=count(*(batch[::-1] if fully_async is False else batch)) or None,
        samples=count("generator.n_samples_per_prompt") or None,
        workers=count("trainer.fully_async.num_parallel_generation_workers"),
        # The key exists since 2026-06-23; before that, the trainer was chosen by its entry point alone.
        fully_async=fully_async,
        refill=flag("trainer.fully_async.sample_full_batch", default=False),
        masks_zero_variance=flag("trainer.algorithm.zero_variance_filter", default=False),
        masks_overlong=flag("generator.apply_overlong_filtering", default=False),
        stepwise=flag(
            "generator.step_wise_trajectories",
            "generator.step_wise_training",
            "trainer.step_wise_training",
            default=False,
        ),
        engines=count(f"{engine}.num_engines", "generator.num_inference_engines"),
        max_seqs=count(f"{engine}.max_num_seqs", "generator.max_num_seqs"),
        updates=count("trainer.update_epochs_per_batch"),
        raw=config,
    )

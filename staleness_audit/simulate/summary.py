"""What a timed run did, in figures."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Summary:
    """What a simulated run did, as the simulator knows it.

    Tokens are counted by their fate; ``histogram``: trained tokens by staleness; ``lengths``: tokens of trained, and of
    all finished trajectories, summed with their numbers, for length bias. ``stalled``: nothing can happen any more.
    Steps that a crash of the trainer rolled back count nowhere, and what they trained is lost.
    """

    seconds: float = 0.0
    steps: int = 0
    attempts: int = 1
    trajectories: int = 0
    trained: int = 0
    generated_tokens: int = 0
    trained_tokens: int = 0
    dropped_tokens: int = 0
    cancelled_tokens: int = 0
    lost_tokens: int = 0
    pending_tokens: int = 0
    waited_s: float = 0.0
    stalled: bool = False
    histogram: Counter[int] = field(default_factory=Counter)
    finished: int = 0
    finished_tokens: int = 0

    def mean_staleness(self) -> float:
        """Return the mean staleness of trained tokens; nan if there are none."""
        ages = sum(age * tokens for age, tokens in self.histogram.items())
        return ages / self.trained_tokens if self.trained_tokens else math.nan

    def max_staleness(self) -> int | None:
        """Return the largest staleness of a trained token; None if there is none."""
        return max(self.histogram) if self.histogram else None

    def figures(self) -> dict[str, Any]:
        """Return all figures by name, as plain values."""
        made, seconds = self.generated_tokens, self.seconds or math.nan
        return {
            "seconds": self.seconds,
            "steps": self.steps,
            "attempts": self.attempts,
            "stalled": self.stalled,
            "trajectories": self.trajectories,
            "trajectories_trained": self.trained,
            "tokens_generated": made,
            "tokens_trained": self.trained_tokens,
            "tokens_dropped": self.dropped_tokens,
            "tokens_cancelled": self.cancelled_tokens,
            "tokens_lost": self.lost_tokens,
            "tokens_pending": self.pending_tokens,
            "wasted_share": (self.dropped_tokens + self.cancelled_tokens + self.lost_tokens) / made if made else 0.0,
            "trained_tokens_per_s": self.trained_tokens / seconds,
            "trainer_waiting_share": self.waited_s / seconds,
            "staleness_max": self.max_staleness(),
            "staleness_mean": self.mean_staleness(),
            "length_ratio": self._length_ratio(),
            "histogram": dict(sorted(self.histogram.items())),
        }

    def _length_ratio(self) -> float:
        """Return how long trained trajectories are compared with all that finished."""
        if not self.trained or not self.finished_tokens:
            return math.nan
        return (self.trained_tokens / self.trained) / (self.finished_tokens / self.finished)

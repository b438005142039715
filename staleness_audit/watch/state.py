"""What a watch knows at a moment: the audit's document of what was written so far, and what is under way."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RECENT = 60.0
"""Seconds over which the present throughput is averaged."""


@dataclass(frozen=True)
class State:
    """A run so far.

    ``data``: the audit's document (``docs/json.md``) without the worst violations, which ``newest`` stands for: the
    proven ones of the latest steps, in the same form. ``in_flight``, ``queued``: trajectories that are being generated
    and that wait to be trained, as far as the logs name them. ``generated_per_s``, ``trained_per_s``: tokens of the
    last minute (None = not known yet). ``at``: seconds since 1970; ``took``: seconds the refresh cost. ``changed``:
    whether the run wrote anything since the last state. ``trouble``: why the run could not be read this time; all else
    is then as it was.
    """

    data: Mapping[str, Any]
    newest: list[dict[str, Any]]
    in_flight: int
    queued: int
    generated_per_s: float | None
    trained_per_s: float | None
    at: float
    took: float
    changed: bool
    trouble: str | None = None

    @property
    def proven(self) -> bool:
        """Whether a violation is proven."""
        return bool(self.data["verdict"] == "fail")

    @property
    def under_way(self) -> tuple[dict[str, int | None], dict[str, int | None]]:
        """``in_flight`` and ``queued`` as intervals: open above where the logs need not show all that is left over."""
        known = self.data["trajectories"]["pending"]["hi"] is not None
        return (
            {"lo": self.in_flight, "hi": self.in_flight if known else None},
            {"lo": self.queued, "hi": self.queued if known else None},
        )

    @property
    def over(self) -> bool:
        """Whether the logs say that the run has ended."""
        return self.data["run"]["health"]["state"] in ("finished", "crashed")


@dataclass
class Speed:
    """Tokens per second over the last minute, from counts that were read off now and then."""

    readings: deque[tuple[float, int, int]] = field(default_factory=deque)

    def read(self, data: Mapping[str, Any]) -> tuple[float | None, float | None]:
        """Take the counts of a document; return generated and trained tokens per second."""
        now = time.monotonic()
        self.readings.append((now, data["tokens"]["generated"]["lo"] or 0, data["tokens"]["trained"]["lo"] or 0))
        while len(self.readings) > 2 and now - self.readings[0][0] > RECENT:
            self.readings.popleft()
        begun, generated, trained = self.readings[0]
        if now == begun:
            return None, None
        _, generated_now, trained_now = self.readings[-1]
        # A restart rolls back what was trained: then nothing is said until a minute has passed.
        if generated_now < generated or trained_now < trained:
            return None, None
        return (generated_now - generated) / (now - begun), (trained_now - trained) / (now - begun)


def record(state: State) -> dict[str, Any]:
    """Return a state as the object of a JSON line (``docs/watch.md``); intervals are ``{"lo", "hi"}``."""
    data = state.data
    last = data["per_step"][-1] if data["per_step"] else None
    return {
        "schema": "staleness-watch/1",
        "at": state.at,
        "took_s": round(state.took, 3),
        "verdict": data["verdict"],
        "health": data["run"]["health"]["state"],
        "bound": data["bound"]["value"],
        "steps": data["run"]["steps"],
        "last_step": last and {name: last[name] for name in ("attempt", "step", "v_train", "max", "violations")},
        "staleness_max": data["staleness"]["max"],
        "violations": {unit: data["violations"][unit] for unit in ("tokens", "trajectories", "groups")},
        "tokens": {name: data["tokens"][name] for name in ("generated", "trained")},
        "waste_ratio": data["waste"]["ratio"],
        "in_flight": state.in_flight,
        "queued": state.queued,
        "generated_tokens_per_s": state.generated_per_s,
        "trained_tokens_per_s": state.trained_per_s,
        "newest_violations": state.newest,
        "trouble": state.trouble,
    }

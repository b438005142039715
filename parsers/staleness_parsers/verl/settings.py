"""Configuration of a verl run: Hydra's dump, or the dictionary that the console begins with (guide section 2).

Interpolations stand unresolved in the file; all keys used here are plain values in both forms.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final, Literal

import polars as pl

from staleness_audit.discovery import Piece, RunFiles, natural
from staleness_audit.parser import Sink
from staleness_audit.readers.config import UnreadableConfig, lookup, read_config
from staleness_audit.readers.numbers import is_whole

CONFIG_TABLE: Final = "verl_config"
CONFIG_ROWS: Final = {"source": pl.String, "line": pl.Int64, "text": pl.String}
THRESHOLD_KEY: Final = "trainer.v1.sampler.max_off_policy_threshold"
_STARTED: Final = "(started)"
THETA_KEY: Final = "async_training.staleness_threshold"

Trainer = Literal["separate_async", "colocate_async", "sync", "fully_async", "one_step_off", "unknown"]

_SHOWN: Final = (
    "trainer.use_v1",
    "trainer.v1.trainer_mode",
    "trainer.v1.separate_async",
    "trainer.v1.colocate_async",
    "trainer.v1.sampler",
    "trainer.critic_warmup",
    "trainer.save_freq",
    "trainer.resume_mode",
    "trainer.balance_batch",
    "data.train_batch_size",
    "data.max_response_length",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.rollout.n",
    "algorithm.filter_groups",
    "algorithm.rollout_correction.rollout_rs",
    "async_training",
    "rollout.total_rollout_steps",
    "skip",
)


def stage_config(run: RunFiles, pieces: Sequence[Piece], sink: Sink) -> None:
    """Stage a Hydra ``config.yaml``, and of the ``hydra.yaml`` beside it which program was started."""
    values = []
    for piece in pieces:
        try:
            values.append(read_config(run, piece.source))
        except UnreadableConfig as error:
            sink.diagnose(
                "warning",
                "config-unreadable",
                f"The configuration cannot be read: {error}; the bound then has to be given with --bound.",
                source=piece.source,
            )
            values.append({})
    if values[0]:
        started = {key: lookup(item, f"hydra.{key}") for item in values[1:] for key in ("job", "runtime")}
        write_config({**values[0], _STARTED: _program(started)}, pieces[0].source, None, sink)


def _program(hydra: Mapping[str, Any]) -> list[str]:
    """Names of the program: of its main configuration and the folders that configurations were taken from."""
    sources = lookup(hydra, "runtime.config_sources")
    paths = [item.get("path") for item in sources if isinstance(item, Mapping)] if isinstance(sources, list) else []
    return [str(name) for name in (lookup(hydra, "job.config_name"), *paths) if name]


def write_config(value: Mapping[str, Any], source: str, line: int | None, sink: Sink) -> None:
    """Stage a configuration that was found somewhere."""
    row = {"source": source, "line": line, "text": json.dumps(value, default=str)}
    sink.write(CONFIG_TABLE, pl.DataFrame([row], schema=CONFIG_ROWS))


@dataclass(frozen=True)
class Settings:
    """What the parser needs of a configuration; every value may be missing (``known`` False = there is none)."""

    values: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None

    @property
    def known(self) -> bool:
        """Whether a configuration was found."""
        return bool(self.values)

    def get(self, dotted: str) -> Any:
        """Return the value under a dotted key, or None."""
        return lookup(self.values, dotted)

    def count(self, dotted: str) -> int | None:
        """Return a whole number under a dotted key, or None."""
        value = self.get(dotted)
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def trainer(self) -> Trainer:
        """Which of verl's trainers ran, as far as the configuration tells."""
        if isinstance(self.get("async_training"), Mapping):
            return "fully_async"
        apart = self.get("actor_rollout_ref.hybrid_engine") is False and self.get("rollout.nnodes") is not None
        if apart or any("one_step_off" in name for name in self.get(_STARTED) or ()):
            return "one_step_off"
        mode = self.get("trainer.v1.trainer_mode")
        if self.get("trainer.use_v1") is False or mode not in ("separate_async", "colocate_async", "sync"):
            return "unknown"
        return mode  # type: ignore[no-any-return]

    @property
    def updates_per_sync(self) -> int:
        """k: mini-batches (V1) or micro-steps (fully async) per weight sync."""
        trainer = self.trainer
        if trainer == "fully_async":
            return self.count("async_training.trigger_parameter_sync_step") or 4
        return (self.count("trainer.v1.separate_async.parameter_sync_step") or 4) if trainer == "separate_async" else 1

    @property
    def threshold(self) -> int | None:
        """T, the off-policy threshold of the V1 sampler; None if it is switched off or not stated."""
        value = self.get(THRESHOLD_KEY)
        return value if is_whole(value) and value > 0 else None

    @property
    def enforced(self) -> int | None:
        """Largest ``v_train - v_gen`` that the drop strategy lets pass (guide section 3, "Bound"); None = none."""
        if self.trainer not in ("separate_async", "colocate_async") or self.get(
            "trainer.v1.sampler.custom_sampler.path"
        ):
            return None
        return (
            self.threshold - 1
            if self.threshold and self.get("trainer.v1.sampler.max_off_policy_strategy") == "drop"
            else None
        )

    def may_replay(self, kind: str, step: int | None = None) -> bool:
        """Whether ``skip.<kind>`` may have put an earlier run's rollouts in place of a step's (any step if None)."""
        steps = self.get(f"skip.{kind}.steps")
        listed = not isinstance(steps, list) or (bool(steps) if step is None else step in steps)
        return self.get(f"skip.{kind}.enable") is True and listed

    @property
    def masks(self) -> bool:
        """Whether rejection sampling may take sampled tokens out of the loss, as far as is known."""
        return not self.known or self.get("algorithm.rollout_correction.rollout_rs") is not None

    def folder(self, dotted: str) -> str | None:
        """Return the last part of a path in the configuration: the run may have been copied since."""
        value = self.get(dotted)
        return PurePosixPath(value).name if isinstance(value, str) else None

    @property
    def shown(self) -> dict[str, Any]:
        """Return the part of the configuration that matters for staleness, for the report."""
        found = {key: self.get(key) for key in _SHOWN}
        return {key: value for key, value in found.items() if value is not None}


def choose(rows: list[dict[str, Any]]) -> list[Settings]:
    """Return the configurations found, one per launch where names tell (Hydra's folders are named by date and time).

    The one in force at the end comes last; a console's dictionary only counts where no file was found.
    """
    ordered = sorted(rows, key=lambda row: (natural(row["source"]), row["line"] or 0))
    files = [row for row in ordered if row["line"] is None]
    return [Settings(json.loads(row["text"]), row["source"]) for row in files or ordered]


def bound_of(threshold: int | None, scale: int) -> int | None:
    """Return the threshold as ``v_train - v_gen`` in global steps (guide section 3, "Bound")."""
    if threshold is None:
        return None
    # While a step was one mini-batch: (s - a + 1) / k <= T, and a group admitted at a has weights of a - k at least.
    return threshold - 1 if scale == 1 else threshold * scale + scale - 2

"""The configuration, and what follows from it: R, W, F, batch and group sizes, bound and guarantee (guide 2 to 4)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import polars as pl

from staleness_audit.parser import Bound, Guarantee, Sink
from staleness_audit.readers.config import lookup
from staleness_audit.readers.numbers import is_whole

R_KEY: Final = "async_generation_ratio"
F_KEY: Final = "actor_train.model_update_frequency"
B_KEY: Final = "rollout_batch_size"
N_KEY: Final = "num_return_sequences_in_group"
DEFAULTS: Final[dict[str, Any]] = {
    R_KEY: 0,
    F_KEY: 1,
    B_KEY: 128,
    N_KEY: 1,
    "is_use_additional_prompts": False,
    "critic_warmup": 0,
    "adv_estimator": None,
    "max_len_mask": False,
    "difficulty_mask": False,
    "error_max_len_clip": False,
    "train_infer_correction.filters": None,
    "train_env_manager.num_env_groups": 128,
    "train_env_manager.group_size": 1,
    "train_env_manager.group_size_redundancy": 0,
    "train_env_manager.max_traj_per_env": None,
    "batch_adjust_mode": "copy",
    "partial_gpu_mode": True,
    "rollout_dump_dir": None,
    "rollout_mock.enable": False,
    "rollout_mock.mode": "dump",
}
_ALWAYS_PRINTED: Final = (
    R_KEY,
    F_KEY,
    B_KEY,
    "train_env_manager.num_env_groups",
    "train_env_manager.group_size",
)
ASSUMPTIONS: Final = {
    R_KEY: "the ratio R where the logs do not print it",
    F_KEY: "weights are pushed at every F-th step, where the logs do not say so",
    B_KEY: "prompts (RLVR) or trajectories (agentic) of a step, where the logs do not print it",
    N_KEY: "responses of a prompt, where the logs do not print it",
}
_SCHEMA: Final = {
    "key": pl.String,
    "value": pl.String,
    "whole": pl.Boolean,
    "source": pl.String,
    "line": pl.Int64,
}


def settings_rows(config: Mapping[str, Any], source: str, line: int | None, sink: Sink, *, whole: bool) -> None:
    """Stage the known keys of a configuration; ``whole``: a key that it lacks has its default.

    The agentic pipeline prints every field: where one lacks, lines are lost, and an absent key may have any value.
    """
    if not {R_KEY, B_KEY, "actor_train", "rewards", "train_env_manager"} & set(config):
        return
    if whole and line is not None and "train_env_manager" in config:
        lacking = [key for key in _ALWAYS_PRINTED if lookup(config, key) is None]
        if lacking:
            whole = False
            message = f"The printed configuration lacks {', '.join(lacking)}: lines of it are lost; restore the log."
            sink.diagnose("warning", "settings-torn", message, source=source, line=line)
    rows: list[dict[str, Any]] = [{"key": "", "value": "null", "whole": whole, "source": source, "line": line}]
    filters = config.get("rewards")
    for name, reward in filters.items() if isinstance(filters, Mapping) else ():
        kind = lookup(reward, "query_filter_config.type") if isinstance(reward, Mapping) else None
        rows.append({"key": f"rewards.{name}.query_filter_config.type", "value": json.dumps(kind or "no_filter")})
    for key in DEFAULTS:
        value = lookup(config, key)
        # An interpolation of the configuration language is no value.
        if value is not None and not (isinstance(value, str) and "${" in value):
            rows.append({"key": key, "value": json.dumps(value)})
    where = {"whole": whole, "source": source, "line": line}
    sink.write("settings", pl.DataFrame([{**where, **row} for row in rows], schema=_SCHEMA))


@dataclass
class Settings:
    """The configuration as found.

    ``values``: per key all values that the logs print (several only if they disagree). ``whole``: what is absent has
    its default. ``assumed``: keys the user answered for.
    """

    values: dict[str, list[Any]] = field(default_factory=dict)
    whole: bool = False
    assumed: set[str] = field(default_factory=set)

    @classmethod
    def collect(cls, rows: Iterable[Mapping[str, Any]], assume: Mapping[str, str]) -> Settings:
        """Join printed configurations and files with what the user assumes where they are silent."""
        found = cls()
        for row in rows:
            found.whole |= row["whole"]
            if row["key"]:
                value = json.loads(row["value"])
                known = found.values.setdefault(row["key"], [])
                if value not in known:
                    known.append(value)
        for key in ASSUMPTIONS:
            if key in assume and key not in found.values and not found.whole:
                try:
                    found.values[key] = [float(assume[key]) if key == R_KEY else int(assume[key])]
                except ValueError:
                    continue
                found.assumed.add(key)
        return found

    def get(self, key: str) -> Any:
        """Return the (last) value, the default where absence means it, or None where nothing is known."""
        if key in self.values:
            return self.values[key][-1]
        return DEFAULTS.get(key) if self.whole else None

    def whole_number(self, key: str) -> int | None:
        """Return a whole number, or None."""
        value = self.get(key)
        return value if is_whole(value) else None

    @cached_property
    def ratio(self) -> float | None:
        """R, or None where it is not known or the logs print several."""
        if len(self.values.get(R_KEY, ())) > 1:
            return None
        value = self.get(R_KEY)
        good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 20
        return value if good else None

    @cached_property
    def window(self) -> int | None:
        """W = ceil(R)."""
        return None if self.ratio is None else math.ceil(self.ratio)

    @property
    def filters(self) -> bool | None:
        """Whether prompts may be filtered by reward; None where that is not known."""
        kinds = [value for key, found in self.values.items() if key.startswith("rewards.") for value in found]
        if kinds or self.whole:
            return any(kind != "no_filter" for kind in kinds)
        return None

    @property
    def masks(self) -> bool:
        """Whether sampled tokens may be masked out of the loss."""
        keys = ("max_len_mask", "difficulty_mask", "error_max_len_clip", "train_infer_correction.filters")
        return not self.whole or any(self.get(key) for key in keys)

    @cached_property
    def slots(self) -> int | None:
        """T, episodes per env group and step."""
        found = self.whole_number("train_env_manager.max_traj_per_env")
        if found is not None and found > 0:
            return found
        batch, groups, size = (
            self.whole_number(key)
            for key in (B_KEY, "train_env_manager.num_env_groups", "train_env_manager.group_size")
        )
        return -(-batch // (groups * size)) if batch and groups and size and batch > 0 else None


class Pushes:
    """Which weights the engines hold after ``model_update`` of a step: ``version(step)`` as an interval.

    ``frequencies`` are those that agree with the configuration, or else with the steps whose metrics tell a push from
    a no-op; None stands for "any", also for one larger than the run is long.
    """

    def __init__(self, known: Sequence[int], told: Mapping[int, bool]) -> None:
        self.told = dict(told)
        self.frequencies = self._candidates(known)
        self.contradicted = bool(known) and not self._fits(known)

    def _fits(self, known: Sequence[int]) -> list[int]:
        return [f for f in known if f > 0 and all(pushed == (step % f == 0) for step, pushed in self.told.items())]

    def _candidates(self, known: Sequence[int]) -> list[int] | None:
        if known:
            return self._fits(known) or None
        if not self.told:
            return None
        last = max(self.told)
        fits = self._fits(range(1, last + 2))
        # A frequency beyond the last step fits as one that is just beyond it does.
        return fits or None

    @property
    def frequency(self) -> int | None:
        """F, if it is known."""
        return self.frequencies[0] if self.frequencies is not None and len(self.frequencies) == 1 else None

    def version(self, step: int, first_step: int = 0) -> tuple[int, int]:
        """Versions that may be in the engines after ``model_update(step)`` of a launch that began at ``first_step``."""
        if self.told.get(step) or step <= 0:
            return max(step, 0), max(step, 0)
        if self.frequencies is None:
            hi = step
            while self.told.get(hi) is False and hi > 0:
                hi -= 1
            lo = max((past for past, pushed in self.told.items() if pushed and past <= step), default=0)
            return min(lo, hi), hi
        found = [step // f * f for f in self.frequencies]
        if self.told and max(self.frequencies) > max(self.told) and step > max(self.told) and len(found) > 1:
            found.append(0)  # ... nor does anything tell how far beyond the metrics' last step it lies
        # After a resume the engines hold whatever they were started with until the first push.
        if min(found) < first_step:
            return 0, max(found)
        return min(found), max(found)


def bound(settings: Settings) -> Bound:
    """State the bound as configured."""
    ratio = settings.ratio
    if ratio is None:
        several = settings.values.get(R_KEY)
        return Bound(None, R_KEY, several, "launches disagree" if several else None)
    return Bound(settings.window, R_KEY, ratio, "ceil(async_generation_ratio) global steps, v_train - v_gen")


def guarantee(settings: Settings, pushes: Pushes) -> Guarantee:
    """State what the mechanism promises (guide 4.1 and 4.2, verdicts)."""
    window, frequency = settings.window, pushes.frequency
    if window is None:
        return Guarantee(None, f"the logs do not tell {R_KEY}.")
    if frequency is None:
        return Guarantee(None, f"the logs do not tell {F_KEY}: the limit is {window} + F - 1.")
    if frequency == 1:
        return Guarantee(window, "Nothing older than the window is taken, and weights are pushed at every step.")
    reason = f"The window is counted in steps, but weights are pushed only every {frequency} steps."
    return Guarantee(window + frequency - 1, reason)

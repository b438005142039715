"""Settings of the run: Hydra's ``config.yaml`` and the statistics' ``stats_config.json`` (guide section 2)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import orjson
import polars as pl

from staleness_audit.discovery import RunFiles
from staleness_audit.parser import Sink
from staleness_audit.readers.config import UnreadableConfig, lookup, read_config
from staleness_audit.readers.numbers import is_whole

TABLE: Final = "psrl_settings"
STALENESS: Final = "psrl.staleness"
_COORDINATION: Final = "psrl.rollout_coordination"
_REDUNDANT: Final = f"{_COORDINATION}.redundant_rollout"
SHOWN: Final = (
    STALENESS,
    "psrl.staleness_buffer_entries",
    "psrl.rollout_n",
    "psrl.max_dispatch_ahead",
    f"{_COORDINATION}.partial_rollout.enable",
    f"{_REDUNDANT}.enable",
    f"{_REDUNDANT}.redundant_rollout_n",
    f"{_COORDINATION}.proactive_filter_strategy.method",
    f"{_COORDINATION}.sync_and_mig_strategy.method",
    f"{_COORDINATION}.routing_strategy.enable_trajectory_sticky",
    f"{_COORDINATION}.routing_strategy.enable_group_sticky",
    "psrl.group_post_process.enable",
    "psrl.fine_grain_overlap.granularity",
    "trainer.critic_warmup",
    "trainer.test_freq",
    "trainer.val_before_train",
)
"""What an audit makes use of; the rest of the configuration is not kept."""
_REFERENCE: Final = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True)
class Settings:
    """The last launch's settings; a value that isn't stated is None."""

    shown: Mapping[str, Any] = field(default_factory=dict)
    started: datetime | None = None
    source: str | None = None
    launches: int = 0

    def number(self, name: str) -> int | None:
        """Return a whole number of at least 0."""
        value = self.shown.get(name)
        return value if is_whole(value) and value >= 0 else None

    @property
    def siblings(self) -> int | None:
        """Requests per prompt, by which request ids count (n, with redundancy n')."""
        if self.shown.get(f"{_REDUNDANT}.enable") is True:
            return self.number(f"{_REDUNDANT}.redundant_rollout_n")
        return self.number("psrl.rollout_n")

    @property
    def sticky(self) -> bool:
        """Whether later turns stay on the instance of the first."""
        return self.shown.get(f"{_COORDINATION}.routing_strategy.enable_trajectory_sticky") is True

    @property
    def partial(self) -> bool | None:
        """Whether generation is interrupted and continued at weight syncs."""
        value = self.shown.get(f"{_COORDINATION}.partial_rollout.enable")
        return value if isinstance(value, bool) else None

    @property
    def validates(self) -> bool:
        """Whether validation, whose request ids are the same as those of training, is not excluded."""
        frequency, before = self.shown.get("trainer.test_freq"), self.shown.get("trainer.val_before_train")
        return not (is_whole(frequency) and frequency <= 0 and before is False)


def stage(run: RunFiles, source: str, sink: Sink) -> None:
    """Stage the settings an audit needs, references (``${a.b}``) resolved."""
    try:
        config = read_config(run, source)
    except UnreadableConfig as error:
        message = f"The settings cannot be read ({error}); what they would say is taken as unknown."
        sink.diagnose("warning", "settings-unreadable", message, source=source)
        return
    if run.file(source).name.endswith("stats_config.json"):
        partial = config.get("partial_rollout")
        found = {"started": config.get("started_at"), f"{_COORDINATION}.partial_rollout.enable": partial}
    else:
        found = {name: _resolve(config, lookup(config, name)) for name in SHOWN}
        if found["psrl.rollout_n"] is None:
            found["psrl.rollout_n"] = _resolve(config, lookup(config, "gen_actor_rollout_ref.rollout.n"))
    text = orjson.dumps({name: value for name, value in found.items() if value is not None}).decode()
    sink.write(TABLE, pl.DataFrame([{"source": source, "text": text}]))


def _resolve(config: Mapping[str, Any], value: Any) -> Any:
    for _ in range(8):
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return value
        value = lookup(config, match[1])
    return None


def combine(rows: Sequence[Mapping[str, Any]], sink: Sink) -> Settings:
    """Join the files: of several launches (folders are named by time) the last one's settings hold."""
    hydra = sorted(
        (row for row in rows if row["source"].split(".gz")[0].split(".zst")[0].endswith(".yaml")),
        key=lambda row: row["source"],
    )
    shown: dict[str, Any] = {}
    started = None
    for row in rows:
        if row not in hydra:
            shown |= orjson.loads(row["text"])
            text = shown.pop("started", None)
            try:
                started = datetime.fromisoformat(text) if isinstance(text, str) else started
            except ValueError:
                started = None
    bounds = {orjson.loads(row["text"]).get(STALENESS) for row in hydra}
    if len(bounds) > 1:
        message = "The launches of this run had different bounds (psrl.staleness); that of the last one is used."
        sink.diagnose("warning", "settings-changed", message, source=hydra[-1]["source"])
    if hydra:
        shown |= orjson.loads(hydra[-1]["text"])
    return Settings(shown, started, hydra[-1]["source"] if hydra else None, len(hydra))

"""What is generated: lengths, groups, turns, failures; read from one line, ``NAME[:key=value,...]``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any

from staleness_audit.errors import AuditError, choices

MOST = 1_000_000_000
"""No length, time or parameter is larger."""

Draw = Callable[[Random], int]
"""Draws a number of response tokens, at least 1."""


@dataclass(frozen=True)
class Workload:
    """Trajectories and their lengths.

    ``name``: family of response lengths in tokens. ``fixed``: ``low``. ``uniform``: ``low`` to ``high``. ``lognormal``:
    exp(normal(``mu``, ``sigma``)). ``pareto``: ``low`` * (1 - u) ** (-1 / ``alpha``). ``bimodal``: ``high`` for a share
    ``long`` of trajectories, else ``low``. ``empirical``: drawn from ``lengths``. All are cut at ``longest``.
    ``prompt``: prompt tokens; ``group``: trajectories per group; ``turns``: engine calls per trajectory, between which
    its environment takes ``environment_s`` seconds on average (exponential); ``failures``: share of attempts that fail
    at their end and are made again; ``filtered``: share of groups that a filter discards when they are complete, as one
    for groups without advantage does; ``shared``: correlation of lengths inside a group, from 0 to 1 (a hard problem is
    long for all).
    """

    name: str = "lognormal"
    low: int = 50
    high: int = 200
    mu: float = 5.0
    sigma: float = 1.0
    alpha: float = 2.0
    long: float = 0.25
    longest: int = 32_768
    prompt: int = 512
    group: int = 1
    turns: int = 1
    environment_s: float = 1.0
    failures: float = 0.0
    filtered: float = 0.0
    shared: float = 0.0
    lengths: tuple[int, ...] = field(default=(), repr=False)

    def draws(self, chance: Random) -> list[int]:
        """Return the response lengths of a new group."""
        common = chance.gauss(0.0, 1.0) if self.shared else 0.0
        own = math.sqrt(1.0 - self.shared**2)
        return [
            self._length(self.shared * common + own * chance.gauss(0.0, 1.0)) if self.shared else self._draw(chance)
            for _ in range(self.group)
        ]

    def _draw(self, chance: Random) -> int:
        if self.name == "lognormal":
            return self._cut(_exp(chance.gauss(self.mu, self.sigma)))
        return self._quantile(chance.random(), chance)

    def _length(self, normal: float) -> int:
        """Return the length at a standard normal deviate, so that groups can share one."""
        if self.name == "lognormal":
            return self._cut(_exp(self.mu + self.sigma * normal))
        return self._quantile(0.5 * math.erfc(-normal / math.sqrt(2.0)), None)

    def _quantile(self, share: float, chance: Random | None) -> int:
        if self.name == "uniform":
            return self._cut(self.low + share * (self.high + 1 - self.low))
        if self.name == "pareto":
            return self._cut(self.low * max(1.0 - share, 1e-12) ** (-1.0 / self.alpha))
        if self.name == "bimodal":
            return self._cut(self.high if share >= 1.0 - self.long else self.low)
        if self.name == "empirical":
            return self._cut(self.lengths[min(int(share * len(self.lengths)), len(self.lengths) - 1)])
        return self._cut(self.low)

    def _cut(self, length: float) -> int:
        return max(1, min(int(length), self.longest))


def _exp(power: float) -> float:
    """Return e to a power, but nothing larger than a number can be: lengths are cut anyway."""
    return math.exp(min(power, 700.0))


FAMILIES = ("fixed", "uniform", "lognormal", "pareto", "bimodal", "empirical")


def read_workload(text: str) -> Workload:
    """Read a workload from ``NAME[:key=value,...]``; ``empirical:tables=DIR`` draws from an audited run's tables.

    Raises:
        AuditError: unknown name or key, a value that is none, tables that can't be read.
    """
    name, _, rest = text.partition(":")
    if name not in FAMILIES:
        raise AuditError(f"--workload {text}: there is no {name!r}; {choices(name, FAMILIES)}")
    kinds = {knob.name: str(knob.type) for knob in fields(Workload) if knob.name not in ("name", "lengths")}
    values: dict[str, Any] = {"name": name}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        if key == "tables" and name == "empirical":
            values["lengths"] = _lengths(Path(value))
            continue
        if key not in kinds:
            raise AuditError(f"--workload {text}: there is no {key!r}; {choices(key, kinds)}")
        try:
            values[key] = int(value) if kinds[key] == "int" else float(value)
        except ValueError as error:
            raise AuditError(f"--workload {text}: {key} is a number, and {value!r} is none.") from error
        if not abs(values[key]) <= MOST:  # which nan is not, either
            raise AuditError(f"--workload {text}: {key} is a number up to {MOST:,}, and {value!r} is none.")
    workload = replace(Workload(), **values)
    if problem := _problem(workload):
        raise AuditError(f"--workload {text}: {problem}.")
    return workload


def _problem(workload: Workload) -> str | None:
    if workload.name == "empirical" and not workload.lengths:
        return "write empirical:tables=DIR, with the tables of an audited run (`ingest --tables`)"
    if min(workload.low, workload.group, workload.turns, workload.longest) < 1 or workload.prompt < 0:
        return "lengths, group and turns are at least 1"
    if workload.name in ("uniform", "bimodal") and workload.high < workload.low:
        return "high is at least low"
    if workload.alpha < 0.05 or workload.sigma < 0 or workload.environment_s < 0:
        return "alpha is at least 0.05, sigma and environment_s at least 0"
    if not (0 <= workload.failures < 1 and 0 <= workload.filtered < 1):
        return "failures and filtered are shares below 1"
    if not (0 <= workload.long <= 1 and 0 <= workload.shared <= 1):
        return "long and shared are shares"
    return None


def _lengths(tables: Path) -> tuple[int, ...]:
    """Return the sorted numbers of sampled tokens of the trajectories in a folder of event tables."""
    import polars as pl  # noqa: PLC0415 - only for this workload

    from staleness_audit.engine import scan  # noqa: PLC0415

    files = sorted(tables.rglob("spans/*.parquet")) or sorted(tables.rglob("spans*.parquet"))
    if not files:
        raise AuditError(f"{tables}: holds no spans table; write one with `staleness-audit ingest RUN --tables DIR`.")
    spans = scan(files).filter(pl.col("tokens_lo") == pl.col("tokens_hi"))
    lengths = spans.group_by("trajectory_id").agg(pl.col("tokens_lo").sum()).collect().get_column("tokens_lo").sort()
    found = tuple(int(length) for length in lengths.to_list() if length)
    if not found:
        raise AuditError(f"{tables}: no trajectory has a length that is known exactly.")
    return found

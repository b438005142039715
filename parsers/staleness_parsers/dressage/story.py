"""What the logs tell of the run's course besides slime's lines: mode, drops, retries, the end (guide 5.4, 5.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import polars as pl

from staleness_audit.parser import Staged
from staleness_parsers.slime.finish import Model


@dataclass
class Story:
    """Dressage's lines, and what is known of the run from them.

    ``single``: one launch, so that group ids and labels mean one thing. ``orderly``: the last rollout came to its end,
    so that no payload is missing because its writing was cut off.
    """

    lines: list[dict[str, Any]]
    single: bool
    orderly: bool
    mode: str | None

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the lines of a kind, in the order of the log."""
        return [line for line in self.lines if line["kind"] == kind]

    def numbers(self, kind: str, name: str) -> set[int]:
        """Return the different values of a number in the lines of a kind."""
        return {int(line[name]) for line in self.of(kind) if name in line}


def tell(model: Model, members: pl.DataFrame, staged: Staged) -> Story:
    """Read the staged lines; one that two logs tell counts once."""
    lines: list[dict[str, Any]] = []
    told: dict[Any, str] = {}
    frame = staged.scan("dressage_lines").sort("source", "line").collect() if staged.has("dressage_lines") else None
    for row in frame.iter_rows(named=True) if frame is not None else ():
        fields: dict[str, Any] = orjson.loads(row["fields"])
        key = (row["kind"], row["local"], row["fields"])
        if told.setdefault(key, row["source"]) == row["source"]:
            lines.append({**row, **fields})
    kinds = {line["kind"] for line in lines}
    modes = {str(line["mode"]) for line in lines if "mode" in line}
    modes |= {"partial" for line in lines if "partial" in line or line["kind"] == "collect"}
    if not modes and members["group"].is_not_null().any():
        modes = {"partial"}
    workers = sum(line["kind"] == "worker" for line in lines)
    return Story(
        lines,
        single=len(model.processes) == 1 and workers <= 1,
        orderly="final" in kinds,
        mode=next(iter(modes)) if len(modes) == 1 else None,
    )

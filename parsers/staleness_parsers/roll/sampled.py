"""Batches as they were sampled, per step; their rows are only made where they are written (see ``batches``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, overload

import polars as pl

from staleness_audit.parser import Staged
from staleness_parsers.roll.batches import ROWS

Row = Mapping[str, Any]
_ORDER = ("kind", "source", "step", "place")


class Sampled(Sequence[Row]):
    """Rows of one batch, in its order.

    Arguments:
        frame: the rows, of which there is at least one.
        domains: RLVR's domains of the rows; None where there is none.
        identity: what tells the rows from others: where they are from, and how many they are. What is at a place of a
            file stays there as long as files are only appended to.
    """

    def __init__(self, frame: pl.DataFrame, domains: Set[str | None], identity: str) -> None:
        self.domains, self.identity = domains, identity
        self._frame = frame

    def __repr__(self) -> str:
        return self.identity

    def __len__(self) -> int:
        return len(self._frame)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self._first if index == 0 else self._rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    @cached_property
    def _first(self) -> Row:
        return self._frame.row(0, named=True)

    @cached_property
    def _rows(self) -> list[Row]:
        return list(self._frame.to_dicts())

    def restricted(self, domains: Set[str | None]) -> Sampled | None:
        """Return the rows of some domains; None if there are none."""
        chosen = self._frame.filter(pl.col("domain").is_in(list(domains), nulls_equal=True))
        about = f"{sorted(map(str, domains))} of {self.identity}"
        return Sampled(chosen, self.domains & domains, about) if len(chosen) else None

    def followed_by(self, other: Sampled) -> Sampled:
        """Return the rows of both."""
        frame = pl.concat([self._frame, other._frame])
        return Sampled(frame, self.domains | other.domains, f"{self.identity}, {other.identity}")


def read_sampled(staged: Staged) -> tuple[dict[int, Sampled], bool]:
    """Rows of each step's batch, and whether any is of the agentic pipeline.

    The pickle's where there is one, else the dump's; the dump's domains with both.
    """
    if not staged.has("rows"):
        return {}, False
    frame = staged.scan("rows").collect().select(list(ROWS)).sort(_ORDER, nulls_last=False, maintain_order=True)
    by_file = frame.with_row_index("at").group_by("kind", "source", "step", maintain_order=True)
    parts = by_file.agg(
        pl.col("at").first(),
        pl.len(),
        pl.col("domain").unique(),
        pl.col("locator").first().alias("first"),
        pl.col("locator").last().alias("last"),
    )
    found: dict[int, Sampled] = {}
    in_turn = sorted(parts.iter_rows(), key=lambda row: (row[0] != "pickle", row[2], row[0], row[1]))
    for kind, source, step, at, count, domains, *ends in in_turn:
        part = Sampled(frame.slice(at, count), set(domains), repr((kind, source, count, ends)))
        best = found.get(step)
        if best is None:
            found[step] = part
        elif kind == "dump" and best[0]["kind"] == "pickle" and count > len(best):
            # Several domains write one pickle over another; the dump has them all, in their order.
            others = part.restricted(part.domains - best.domains)
            found[step] = best.followed_by(others) if others else best
    return found, bool(frame["agentic"].any())

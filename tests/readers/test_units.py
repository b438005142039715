"""What a watch keeps of staged tables from one look to the next, by the unit that wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from staleness_audit.ingest import StagedParts
from staleness_audit.readers.units import frame_of


def test_the_parts_of_a_unit_are_opened_only_once(tmp_path: Path) -> None:
    """Unit b has come, and unit c gone: the part of a is not looked for again, and nothing of c is left."""
    memory: dict[str, Any] = {}

    def look(**units: int) -> list[tuple[int, str]]:
        parts = [tmp_path / unit / "words.parquet" for unit in units]
        for part, word in zip(parts, units.values(), strict=True):
            if word:
                part.parent.mkdir()
                pl.DataFrame({"word": [word]}).write_parquet(part)
        return sorted(frame_of(StagedParts(tmp_path, {"words": parts}, memory=memory), "words").iter_rows())

    assert look(a=1, c=3) == [(1, "a"), (3, "c")]
    (tmp_path / "a" / "words.parquet").unlink()
    assert look(a=0, b=2) == [(1, "a"), (2, "b")]

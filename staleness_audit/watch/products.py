"""The products of a growing run: of its open rows, rebuilt at each look, and of blocks, as they were rebuilt once."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from staleness_audit.engine import connect, literal, read_parquet
from staleness_audit.ingest import Dataset
from staleness_audit.rebuild import Rebuilt
from staleness_audit.rebuild.partial import SIDE_BY_SIDE, add_parts, build_part, build_whole
from staleness_audit.rebuild.partitions import DIVIDED
from staleness_audit.tables import SCHEMAS
from staleness_audit.watch.seal import Frozen, freeze
from staleness_audit.watch.tail import Rewritten


@dataclass(frozen=True)
class Merged(Rebuilt):
    """The run's products: classes that were added up, and lives side by side in several files."""

    side_by_side: tuple[Path, ...] = ()
    blocks: tuple[Path, ...] = ()

    def parts(self, product: str) -> list[Path]:
        """All files that a published product is in."""
        if product not in SIDE_BY_SIDE:
            return [self.folder / f"{product}.parquet"]
        return [folder / f"{product}.parquet" for folder in self.side_by_side]

    def dataset_of(self, trajectories: Sequence[str]) -> Dataset:
        """The open rows, and those of the blocks that hold these trajectories."""
        tables: dict[str, list[Path]] = {table: list(self.dataset.parts(table)) for table in SCHEMAS}
        for block in _holding(trajectories, self.blocks):
            for table in DIVIDED:
                tables[table] += sorted((block / table).glob("*.parquet"))
        return Dataset(self.dataset.folder, {**self.dataset.manifest, "tables": shown(tables)})


def _holding(trajectories: Sequence[str], blocks: Sequence[Path]) -> list[Path]:
    found = []
    with connect() as connection:
        wanted = ", ".join(f"key_of({literal(name)})" for name in trajectories)
        for block in blocks if trajectories else ():
            keys = read_parquet([block / "keys.parquet"])
            if connection.execute(f"SELECT 1 FROM {keys} WHERE key IN ({wanted}) LIMIT 1").fetchone():
                found.append(block)
    return found


def shown(tables: dict[str, list[Path]]) -> dict[str, list[str]]:
    """Name parts as a manifest does, whichever folder they are in."""
    return {table: [str(part) for part in parts] for table, parts in tables.items() if parts}


@dataclass
class Products:
    """Products below ``folder``; ``blocks``: folders of the products and rows of what was set aside (``seal``)."""

    folder: Path
    blocks: list[Path] = field(default_factory=list)
    _sums: Path | None = None  # the blocks' products, added up
    _frozen: Frozen | None = None
    _numbers: count[int] = field(default_factory=count)

    def place(self, what: str) -> Path:
        """Return a new path below the folder."""
        return self.folder / f"{what}-{next(self._numbers)}"

    def rebuild(self, dataset: Dataset) -> tuple[Path, Rebuilt]:
        """Rebuild open rows; return their products, and with them those of the run.

        Raises:
            Rewritten: what blocks rest on has changed.
        """
        old = [path for name in ("open", "whole") for path in self.folder.glob(f"{name}-*")]
        part, whole = self.place("open"), self.place("whole")
        build_whole(dataset, part, self._sums, whole)
        if self._frozen is not None and self.blocks and not self._frozen.still_holds(part, dataset.facts):
            raise Rewritten("what sealed trajectories rest on has changed")
        for path in old:
            shutil.rmtree(path, ignore_errors=True)
        return part, Merged(dataset, whole, side_by_side=(*self.blocks, part), blocks=tuple(self.blocks))

    def build(self, rows: Dataset, part: Path, block: Path) -> Path:
        """Rebuild the rows of a block, whose tables and keys go with its products; return their folder.

        ``rows``: all steps, and the trajectories of the block; ``part``: products of the open rows.
        """
        built = self.place("block")
        build_part(rows, built, part / "step_lives.parquet")
        for table in (*DIVIDED, "keys.parquet"):
            if (block / table).exists():
                (block / table).rename(built / table)
        return built

    def seal(self, dataset: Dataset, part: Path, built: Sequence[Path]) -> None:
        """Set blocks aside that were built beside the open rows of ``dataset`` and their products, ``part``."""
        before, self._frozen = self._frozen, freeze(dataset, part, self.place("frozen"))
        if before is not None:
            before.steps.unlink(missing_ok=True)
        self._add([*self.blocks, *built])

    def keep(self, blocks: Sequence[Path]) -> None:
        """Forget all blocks but these."""
        for block in set(self.blocks) - set(blocks):
            shutil.rmtree(block, ignore_errors=True)
        if list(blocks) != self.blocks:
            self._add(blocks)

    def _add(self, blocks: Sequence[Path]) -> None:
        new = [block for block in blocks if block not in self.blocks]
        only_more = self._sums is not None and len(blocks) == len(self.blocks) + len(new)
        old, sums = self._sums, self.place("sums") if blocks else None
        if sums is not None:
            add_parts(sums, [old, *new] if only_more and old is not None else blocks)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        self.blocks, self._sums = list(blocks), sums

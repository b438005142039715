"""A growing run rebuilt at the price of what is new: for formats whose lines stand alone (``units_stand_alone``).

What was read is kept in Parquet parts below a folder of the watch's own. The trajectories that are not done with are
rebuilt at each look; those that are, were set aside in blocks (``seal``), whose products are added to theirs
(``rebuild.partial``). New rows that speak of a trajectory in a block bring the whole block back. If anything changes
that blocks rest on - a step's own record, an attempt, a file that was cut - all is read anew.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from staleness_audit.discovery import RunFiles
from staleness_audit.engine import connect, create_view, literal, read_parquet, write_parquet
from staleness_audit.errors import AuditError
from staleness_audit.ingest import Dataset, StagedParts, describe, join_units, parts_by_table
from staleness_audit.parser import Parser
from staleness_audit.plugins import Choice
from staleness_audit.rebuild import Rebuilt
from staleness_audit.rebuild.partial import SIDE_BY_SIDE, add_parts, build_part, build_whole
from staleness_audit.rebuild.partitions import DIVIDED
from staleness_audit.sink import PartWriter
from staleness_audit.tables import SCHEMAS
from staleness_audit.watch.seal import Frozen, assign, divide, freeze, touched
from staleness_audit.watch.tail import NewLines, Rewritten, Tail

SEAL_FROM = 10_000
"""Trajectories that are done with from which it is worth setting them aside."""
BLOCK = 50_000
"""Trajectories of a block, about: what a late line brings back."""
MANY_PARTS = 24
"""Parts of a table from which they are joined to one."""
PATIENCE = 3
"""How often in ``LOOKS`` all may be read anew before nothing is set aside for a while."""
LOOKS = 30


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
        return Dataset(self.dataset.folder, {**self.dataset.manifest, "tables": _names(tables)})


def _holding(trajectories: Sequence[str], blocks: Sequence[Path]) -> list[Path]:
    found = []
    with connect() as connection:
        wanted = ", ".join(f"hash({literal(name)})" for name in trajectories)
        for block in blocks if trajectories else ():
            keys = read_parquet([block / "keys.parquet"])
            if connection.execute(f"SELECT 1 FROM {keys} WHERE key IN ({wanted}) LIMIT 1").fetchone():
                found.append(block)
    return found


def _names(tables: dict[str, list[Path]]) -> dict[str, list[str]]:
    return {table: [str(part) for part in parts] for table, parts in tables.items() if parts}


@dataclass
class _Kept:
    """What was read so far: parts by table, blocks, and how far each file was read."""

    folder: Path
    parts: dict[str, list[Path]] = field(default_factory=dict)
    blocks: list[Path] = field(default_factory=list)
    sealed: Path | None = None  # the blocks' products, added up
    tails: dict[str, Tail] = field(default_factory=dict)
    frozen: Frozen | None = None
    names: count[int] = field(default_factory=count)
    listing: tuple[object, ...] | None = None

    def place(self, what: str) -> Path:
        """Return a new path below the folder."""
        return self.folder / f"{what}-{next(self.names)}"


class GrowingRun:
    """Brings the products of a growing run up to date.

    Arguments:
        parser: who reads it; it must have ``units_stand_alone``.
        folder: where everything is kept; made if missing, and removed with the watch by whoever made its parent.
    """

    def __init__(self, parser: Parser, folder: Path) -> None:
        self.parser = parser
        self._folder = folder
        self.resets = 0
        self._looks = 0
        self._reset_at: deque[int] = deque(maxlen=PATIENCE)
        self._begin()

    def _begin(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._kept = _Kept(self._folder)
        self._last: tuple[Dataset, Path] | None = None

    def update(self, run: RunFiles, choice: Choice) -> Rebuilt | None:
        """Read what is new and rebuild what it touches; None if nothing is new.

        ``run``: the files as they are now, from ``discover``; ``choice``: the parser, and why it.
        """
        self._looks += 1
        try:
            return self._update(run, choice)
        except Rewritten:
            self.resets += 1
            self._reset_at.append(self._looks)
            self._begin()
            return self._update(run, choice)

    def _update(self, run: RunFiles, choice: Choice) -> Rebuilt | None:
        kept = self._kept
        new_lines = NewLines(run.root, run.files, run.is_directory, run.skipped, run.repeated, tails=kept.tails)
        new = self._read(new_lines)
        listing = (sorted(new_lines.reached), run.skipped, run.repeated)
        if not any(new.values()) and kept.listing == listing and self._last is not None:
            return None
        reopened = touched(new, kept.blocks)
        # From here on there is no state until all is done: after an error the next look tries again.
        self._last = None
        kept.listing, kept.tails = listing, {**kept.tails, **new_lines.reached}
        for table, parts in new.items():
            kept.parts.setdefault(table, []).extend(parts)
        for block in reopened:
            self._reopen(block)
        self._compact()
        dataset = self._finish(new_lines, choice)
        return self._rebuild(dataset, changed=bool(reopened))

    def _read(self, run: NewLines) -> dict[str, list[Path]]:
        """Read the new lines; return the parts that they became."""
        folders = []
        for unit in self.parser.plan(run):
            folder = self._kept.place("unit")
            folder.mkdir()
            with PartWriter(folder) as sink:
                self.parser.read(unit, run, sink)
            folders.append(folder)
        return parts_by_table(folders)

    def _reopen(self, block: Path) -> None:
        """Bring the rows of a block back among the open ones."""
        for table in DIVIDED:
            if (block / table).exists():
                rows = (block / table).rename(self._kept.place(table))
                self._kept.parts.setdefault(table, []).extend(sorted(rows.glob("*.parquet")))
        self._kept.blocks.remove(block)
        shutil.rmtree(block, ignore_errors=True)

    def _compact(self) -> None:
        """Join the many small parts of a table to one, so that looking at them stays cheap."""
        kept = self._kept
        crowded = {table: parts for table, parts in kept.parts.items() if len(parts) > MANY_PARTS}
        if not crowded:
            return
        with connect(kept.folder) as connection:
            for table, parts in crowded.items():
                create_view(connection, table, parts)
                target = kept.place(table).with_suffix(".parquet")
                write_parquet(connection, f'SELECT * FROM "{table}"', target)
                kept.parts[table] = [target]
                for part in parts:
                    part.unlink()
                    with suppress(OSError):
                        part.parent.rmdir()

    def _finish(self, run: NewLines, choice: Choice) -> Dataset:
        """Let the parser say what holds for the run as a whole."""
        kept = self._kept
        for old in kept.folder.glob("finish-*"):
            shutil.rmtree(old, ignore_errors=True)
        folder = kept.place("finish")
        folder.mkdir()
        with PartWriter(folder) as sink:
            facts = join_units(run, choice, StagedParts(kept.folder, kept.parts), sink, sorted(kept.tails))
        last = parts_by_table([folder])
        if set(last) - {"diagnostics"}:
            raise AuditError(f"The {self.parser.name} parser's units do not stand alone; this is a defect.")
        tables = {table: [*parts, *last.get(table, [])] for table, parts in kept.parts.items() if table in SCHEMAS}
        tables.setdefault("diagnostics", last.get("diagnostics", []))
        key = folder.name
        return Dataset(kept.folder, {**describe(run, choice, facts), "key": key, "tables": _names(tables)})

    def _rebuild(self, dataset: Dataset, *, changed: bool) -> Rebuilt:
        kept = self._kept
        old = [path for name in ("open", "whole") for path in kept.folder.glob(f"{name}-*")]
        part, whole = kept.place("open"), kept.place("whole")
        if changed:
            self._add_blocks()
        build_whole(dataset, part, kept.sealed, whole)
        if kept.frozen is not None and kept.blocks and not kept.frozen.still_holds(part, dataset.facts):
            raise Rewritten("what sealed trajectories rest on has changed")
        for path in old:
            shutil.rmtree(path, ignore_errors=True)
        self._last = (dataset, part)
        return Merged(dataset, whole, side_by_side=(*kept.blocks, part), blocks=tuple(kept.blocks))

    def _add_blocks(self) -> None:
        kept = self._kept
        kept.sealed = kept.place("sealed") if kept.blocks else None
        if kept.sealed is not None:
            add_parts(kept.sealed, kept.blocks)

    def settle(self) -> None:
        """Set aside what is done with, if it is much; between two looks, as it takes about as long as one."""
        if self._last is None:
            return
        if len(self._reset_at) == PATIENCE and self._looks - self._reset_at[0] < LOOKS:
            return
        kept, (dataset, part) = self._kept, self._last
        connection = assign(dataset, part, BLOCK, SEAL_FROM)
        if connection is None:
            return
        folder = kept.place("division")
        folder.mkdir()
        with connection:
            blocks, stay = divide(connection, folder)
        kept.frozen = freeze(dataset, part, folder / "frozen.parquet")
        for block in blocks:
            tables = {table: [Path(name) for name in parts] for table, parts in dataset.manifest["tables"].items()}
            tables |= {table: sorted((block / table).glob("*.parquet")) for table in DIVIDED}
            rows = Dataset(kept.folder, {**dataset.manifest, "tables": _names(tables)})
            built = kept.place("block")
            build_part(rows, built, part / "step_lives.parquet")
            for table in (*DIVIDED, "keys.parquet"):
                if (block / table).exists():
                    (block / table).rename(built / table)
            kept.blocks.append(built)
        for table in DIVIDED:
            for old in kept.parts.pop(table, []):
                old.unlink()
            kept.parts[table] = stay[table]
        self._add_blocks()
        self._last = None

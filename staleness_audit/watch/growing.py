"""A growing run rebuilt at the price of what is new: for formats whose lines stand alone (``units_stand_alone``).

What was read is kept in Parquet parts below a folder of the watch's own. The trajectories that are not done with are
rebuilt at each look; those that are, were set aside in blocks (``seal``), whose products are added to theirs
(``rebuild.partial``). New rows that speak of a trajectory in a block bring the whole block back. If anything changes
that blocks rest on - a step's own record, an attempt, a file that was cut - all is read anew.
"""

from __future__ import annotations

import shutil
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from staleness_audit.discovery import RunFiles, Tail
from staleness_audit.engine import connect, create_view, write_parquet
from staleness_audit.errors import AuditError
from staleness_audit.ingest import Dataset, StagedParts, describe, join_units, parts_by_table
from staleness_audit.parser import Parser
from staleness_audit.plugins import Choice
from staleness_audit.rebuild import Rebuilt
from staleness_audit.rebuild.partitions import DIVIDED
from staleness_audit.sink import PartWriter
from staleness_audit.tables import SCHEMAS
from staleness_audit.watch.products import Products, shown
from staleness_audit.watch.seal import assign, divide, touched
from staleness_audit.watch.tail import NewLines, Rewritten

SEAL_FROM = 10_000
"""Trajectories that are done with from which it is worth setting them aside."""
BLOCK = 50_000
"""Trajectories of a block, about: what a late line brings back."""
MANY_PARTS = 24
"""Parts of a table from which they are joined to one."""
PATIENCE = 3
"""How often in ``LOOKS`` all may be read anew before nothing is set aside for a while."""
LOOKS = 30


@dataclass
class _Kept:
    """What was read so far: parts by table, blocks, and how far each file was read."""

    folder: Path
    parts: dict[str, list[Path]] = field(default_factory=dict)
    tails: dict[str, Tail] = field(default_factory=dict)
    listing: tuple[object, ...] | None = None

    def __post_init__(self) -> None:
        """Begin without blocks."""
        self.products = Products(self.folder)
        self.place = self.products.place


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
        reopened = touched(new, kept.products.blocks)
        # From here on there is no state until all is done: after an error the next look tries again.
        self._last = None
        kept.listing, kept.tails = listing, {**kept.tails, **new_lines.reached}
        for table, parts in new.items():
            kept.parts.setdefault(table, []).extend(parts)
        for block in reopened:
            self._reopen(block)
        kept.products.keep([block for block in kept.products.blocks if block not in reopened])
        self._compact()
        dataset = self._finish(new_lines, choice)
        part, rebuilt = kept.products.rebuild(dataset)
        self._last = (dataset, part)
        return rebuilt

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
        # What was set aside has been told of none the less.
        aside = {table for table in DIVIDED if any((block / table).exists() for block in kept.products.blocks)}
        with PartWriter(folder) as sink:
            facts = join_units(run, choice, StagedParts(kept.folder, kept.parts, aside), sink, sorted(kept.tails))
        last = parts_by_table([folder])
        if set(last) - {"diagnostics"}:
            raise AuditError(f"The {self.parser.name} parser's units do not stand alone; this is a defect.")
        tables = {table: [*parts, *last.get(table, [])] for table, parts in kept.parts.items() if table in SCHEMAS}
        tables.setdefault("diagnostics", last.get("diagnostics", []))
        key = folder.name
        return Dataset(kept.folder, {**describe(run, choice, facts), "key": key, "tables": shown(tables)})

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
        built = []
        for block in blocks:
            tables = {table: [Path(name) for name in parts] for table, parts in dataset.manifest["tables"].items()}
            tables |= {table: sorted((block / table).glob("*.parquet")) for table in DIVIDED}
            rows = Dataset(kept.folder, {**dataset.manifest, "tables": shown(tables)})
            built.append(kept.products.build(rows, part, block))
        for table in DIVIDED:
            for old in kept.parts.pop(table, []):
                old.unlink()
            kept.parts[table] = stay[table]
        kept.products.seal(dataset, part, built)
        self._last = None

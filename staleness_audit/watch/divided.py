"""A growing run of a format whose parser writes in blocks (``Sink.write_blocks``), at about the price of what is new.

Units whose input is as it was are not read again, as in any ingestion. The parser then joins all of them, but writes only
the blocks that this makes different (``blocks``); and of those that stay, whose trajectories are all over, the products
are kept as well (``products``). Everything else is open and rebuilt at each look. So a look yields what a fresh audit
does as long as files were appended to; when one was not, all blocks are made anew.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from staleness_audit.discovery import Known, Piece, RunFiles, read_fully
from staleness_audit.engine import read_parquet, session, write_parquet
from staleness_audit.ingest import Dataset, StagedParts, by_table, describe, join_units, parts_by_table, read_units
from staleness_audit.parser import Parser
from staleness_audit.plugins import Choice
from staleness_audit.rebuild import Rebuilt
from staleness_audit.rebuild.partitions import DIVIDED
from staleness_audit.store import FolderStore
from staleness_audit.tables import SCHEMAS
from staleness_audit.watch.blocks import Block, BlockWriter
from staleness_audit.watch.products import Products, shown
from staleness_audit.watch.seal import holding, keys_of, open_keys, touched
from staleness_audit.watch.tail import Rewritten

_CHUNK = 16 << 20


class DividedRun:
    """Brings the products of a growing run up to date.

    Arguments:
        parser: who reads it; its ``finish`` writes in blocks.
        folder: where everything is kept; made if missing, and removed with the watch by whoever made its parent.
    """

    def __init__(self, parser: Parser, folder: Path) -> None:
        self.parser = parser
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("blocks", "products"):
            (folder / name).mkdir(parents=True)
        self._folder = folder
        self._units = FolderStore(folder / "units")
        self._inputs: Known = {}
        self._parts: dict[str, list[Path]] = {}  # of each unit
        self._key: str | None = None
        self._numbers = count()
        self._forget()

    def _forget(self) -> None:
        """Begin anew with what units have left."""
        for name in ("blocks", "products"):
            for left in (self._folder / name).iterdir():
                shutil.rmtree(left, ignore_errors=True)
        self._blocks: dict[str, Block] = {}
        self._products = Products(self._folder / "products")
        self._sealed: dict[str, Path] = {}  # folder of the products, by the digest of a block
        self._unfit: set[str] = set()  # blocks that stay open, by their own rows or as other rows speak of them
        self._aside: dict[str, Path] = {}  # rows and keys of blocks that may be sealed once all of them is over
        self._last: tuple[Dataset, Path] | None = None
        self._memory: dict[str, Any] = {}

    def update(self, run: RunFiles, choice: Choice) -> Rebuilt | None:
        """Read what is new and rebuild what it touches; None if nothing is new.

        ``run``: the files as they are now, from ``discover``; ``choice``: the parser, and why it.
        """
        keys, inputs, key = read_units(run, self.parser, self._units, self._inputs)
        before, self._inputs = self._inputs, inputs
        if key == self._key:
            return None
        # From here on there is no state until all is done: after an error the next look tries again.
        self._key = None
        self._units.clean(set(keys), {})
        if not only_grown(run, before, inputs):
            self._forget()
        memory, self._memory = self._memory, {}
        dataset = self._join(run, choice, keys, memory)
        self._memory = memory
        try:
            rebuilt = self._rebuild(dataset)
        except Rewritten:
            self._seal({})
            rebuilt = self._rebuild(dataset)
        self._key = key
        return rebuilt

    def _join(self, run: RunFiles, choice: Choice, keys: Sequence[str], memory: dict[str, Any]) -> Dataset:
        """Let the parser finish; return the tables without the rows of blocks, which ``_blocks`` names."""
        for old in self._folder.glob("finish-*"):
            shutil.rmtree(old, ignore_errors=True)
        folder = self._folder / f"finish-{next(self._numbers)}"
        folder.mkdir()
        self._parts = {key: self._parts.get(key, []) for key in keys}
        self._parts |= self._units.parts([key for key, parts in self._parts.items() if not parts])
        staged = by_table(chain.from_iterable(self._parts.values()))
        sink = BlockWriter(folder, self._folder / "blocks", self._blocks)
        with sink:
            facts = join_units(run, choice, StagedParts(self._folder, staged, memory=memory), sink, self._inputs)
        for gone in set(self._blocks) - set(sink.blocks):
            shutil.rmtree(self._blocks[gone].folder, ignore_errors=True)
        self._blocks = sink.blocks
        tables = {table: parts for table, parts in staged.items() if table in SCHEMAS}
        for table, parts in parts_by_table([folder]).items():
            tables.setdefault(table, []).extend(parts)
        described = {**describe(run, choice, facts), "key": folder.name}
        return Dataset(self._folder, {**described, "tables": shown(tables)})

    def _rebuild(self, dataset: Dataset) -> Rebuilt:
        """Rebuild all rows but those of sealed blocks of which no other row speaks."""
        self._seal({digest: folder for digest, folder in self._sealed.items() if digest in self._blocks})
        reopened = touched(self._tables(dataset), self._products.blocks)
        self._unfit |= {digest for digest, folder in self._sealed.items() if folder in reopened}
        self._seal({digest: folder for digest, folder in self._sealed.items() if folder not in reopened})
        whole = Dataset(dataset.folder, {**dataset.manifest, "tables": shown(self._tables(dataset))})
        part, rebuilt = self._products.rebuild(whole)
        self._last = (whole, part)
        return rebuilt

    def _tables(self, dataset: Dataset) -> dict[str, list[Path]]:
        """All parts but those of trajectories of sealed blocks."""
        tables = _tables_of(dataset)
        for digest, block in self._blocks.items():
            for table, parts in parts_by_table([block.folder]).items():
                if digest not in self._sealed or table not in DIVIDED:
                    tables.setdefault(table, []).extend(parts)
        return tables

    def _seal(self, sealed: Mapping[str, Path]) -> None:
        """Let these blocks be the sealed ones; they were before."""
        self._sealed = dict(sealed)
        self._products.keep([folder for folder in self._products.blocks if folder in sealed.values()])

    def settle(self) -> None:
        """Set blocks aside whose trajectories are over; between two looks, as it may take longer than one."""
        if self._last is None:
            return
        (dataset, part), self._last = self._last, None
        self._put_aside()
        if not self._aside:
            return
        rest = {table: parts for table, parts in _tables_of(dataset).items() if table not in DIVIDED}
        built: dict[str, Path] = {}
        with open_keys(dataset, part) as connection:
            still_open = holding(connection, "SELECT key FROM open_keys", [*self._aside.values()])
        for digest in [digest for digest, aside in self._aside.items() if aside not in still_open]:
            tables = _divided(self._blocks[digest])
            if touched(tables, [*self._products.blocks, *built.values()]):
                continue
            rows = Dataset(dataset.folder, {**dataset.manifest, "tables": shown({**rest, **tables})})
            aside = self._aside.pop(digest)
            built[digest] = self._products.build(rows, part, aside)
            shutil.rmtree(aside)
        if built:
            self._products.seal(dataset, part, list(built.values()))
            self._sealed |= built

    def _put_aside(self) -> None:
        """Look once at the rows of each block that is full: those that can be sealed some day are put aside."""
        for gone in self._aside.keys() - self._blocks.keys():
            shutil.rmtree(self._aside.pop(gone))
        self._unfit &= self._blocks.keys()
        looked_at = self._sealed.keys() | self._unfit | self._aside.keys()
        for digest, block in self._blocks.items():
            if not block.full or digest in looked_at:
                continue
            tables = _divided(block)
            if not _fit(tables):
                self._unfit.add(digest)
                continue
            aside = self._products.place("sealing")
            _link(tables, aside)
            self._aside[digest] = aside


def _divided(block: Block) -> dict[str, list[Path]]:
    """Parts of a block with rows of trajectories."""
    return {table: parts for table, parts in parts_by_table([block.folder]).items() if table in DIVIDED}


def _fit(tables: Mapping[str, Sequence[Path]]) -> bool:
    """Whether a block can be sealed once all of it is over; that depends on nothing but its rows."""
    if not tables.get("trajectories"):
        return False
    own = f"SELECT key_of(trajectory_id) FROM {read_parquet(tables['trajectories'])}"
    doubts = []
    for table in set(tables) - {"trajectories"}:
        # A row of a trajectory without one of its own: it may be that of another block.
        rows = read_parquet(tables[table], union_by_name=True)
        doubts.append(f"SELECT 1 FROM {rows} WHERE trajectory_id IS NOT NULL AND key_of(trajectory_id) NOT IN ({own})")
        if table == "events":  # the check counts alternatives over the rows of the whole run
            doubts.append(f"SELECT 1 FROM {rows} WHERE evidence = 'inferred'")
    with session() as connection:
        return not any(connection.execute(f"{doubt} LIMIT 1").fetchone() for doubt in doubts)


def _link(tables: Mapping[str, Sequence[Path]], aside: Path) -> None:
    """Make a folder of a block's rows and keys, as ``seal.divide`` leaves it."""
    aside.mkdir()
    for table, parts in tables.items():
        (aside / table).mkdir()
        for number, part in enumerate(parts):
            (aside / table / f"{number}.parquet").hardlink_to(part)
    with session() as connection:
        keys = f"SELECT DISTINCT key FROM ({keys_of(tables)}) ORDER BY key"
        write_parquet(connection, keys, aside / "keys.parquet")


def _tables_of(dataset: Dataset) -> dict[str, list[Path]]:
    return {table: list(dataset.parts(table)) for table in dataset.manifest["tables"]}


def only_grown(run: RunFiles, before: Known, now: Known) -> bool:
    """Whether all files that were read before still begin with what was read of them (``inputs`` of ``read_units``)."""
    return all(
        source in now and (pieces == now[source][1] or _begins_with(run, source, pieces, now[source][1]))
        for source, (_, pieces) in before.items()
    )


def _begins_with(run: RunFiles, source: str, before: Sequence[Piece], now: Sequence[Piece]) -> bool:
    """A piece's digest is that of the file up to its end; where no piece ends now, the bytes are read again."""
    ends = [(piece.end, piece.digest) for piece in before]
    known = {(piece.end, piece.digest) for piece in now}
    if ends[-1] in known or (len(ends) > 1 and ends[-2] in known):
        return True
    end, digest = ends[-1]
    file = run.file(source)
    if file.compressed or file.bytes < end:
        return False
    content = hashlib.sha256()
    with run.open(source) as stream:
        while end > 0 and (chunk := read_fully(stream, min(end, _CHUNK))):
            content.update(chunk)
            end -= len(chunk)
    return not end and content.hexdigest() == digest

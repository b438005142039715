"""Writing what a parser joins in blocks, of which those are kept whose rows are made from the same.

A block is known by a digest of everything that its rows are made from, as the parser found it at this look: by its
queries (``write_blocks``), or in its own words (``write_eras``). So nothing has to be foreseen: what a new line changes,
however old, makes another block. Only rows that a query reaches by way of the block's (the turns of a trajectory) are not
looked at again; they stay because files are appended to, which whoever keeps the blocks must see to.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from staleness_audit.parser import Era, Sink
from staleness_audit.sink import PartWriter

BLOCK = 4_000
"""Rows of a block's first relation, about: what is written and rebuilt again at each look."""


@dataclass(frozen=True)
class Block:
    """Rows of event tables in a folder, as a unit leaves them; ``full``: later eras have a block of their own."""

    folder: Path
    full: bool
    tally: list[tuple[Any, ...]]


class BlockWriter(PartWriter):
    """A ``PartWriter`` whose blocks go to folders of their own below ``place``; ``known`` ones are not written again.

    ``blocks``: those of this time by their digest, in order.
    """

    def __init__(self, folder: Path, place: Path, known: Mapping[str, Block]) -> None:
        super().__init__(folder)
        self.blocks: dict[str, Block] = {}
        self._place = place
        self._known = known

    def write_blocks(
        self,
        connection: duckdb.DuckDBPyConnection,
        relations: Sequence[str],
        queries: Sequence[tuple[str, str]],
        *,
        beside: Sequence[str] = (),
        first: Callable[[], None] | None = None,
        tally: str | None = None,
    ) -> list[tuple[Any, ...]]:
        """See ``parser.Sink.write_blocks``."""
        seed = hashlib.sha256(repr((relations, queries, tally)).encode())
        for table in beside:
            seed.update(repr(_hashed(connection, table, "0")).encode())
        made_from = [_hashed(connection, relation, "era") for relation in relations]
        # Those from zero up, then those below zero, away from it.
        in_order = sorted(set().union(*made_from), key=lambda era: (era < 0, abs(era)))
        cuts = list(_cut([(era, made_from[0].get(era, (0,))[0]) for era in in_order]))
        contents = [repr([(era, [hashes.get(era) for hashes in made_from]) for era in block]) for block in cuts]

        def write(eras: Sequence[int], sink: Sink) -> list[tuple[Any, ...]]:
            for relation in relations:
                connection.execute(
                    f"CREATE OR REPLACE TEMP VIEW block_{relation} AS "
                    f"SELECT * FROM {relation} WHERE era BETWEEN {min(eras)} AND {max(eras)}"
                )
            if first is not None:
                first()
            for table, query in queries:
                sink.write_query(table, connection, query)
            return connection.execute(tally).fetchall() if tally is not None else []

        return self._keep(seed, cuts, contents, write)

    def write_eras(self, eras: Sequence[Era], write: Callable[[Sequence[int], Sink], None]) -> None:
        """See ``parser.Sink.write_eras``."""
        cuts = list(_cut([(era.number, era.rows) for era in eras]))
        told = {era.number: era.made_from for era in eras}
        contents = [repr([(era, told[era]) for era in block]) for block in cuts]

        def write_block(eras: Sequence[int], sink: Sink) -> list[tuple[Any, ...]]:
            write(eras, sink)
            return []

        self._keep(hashlib.sha256(b"eras"), cuts, contents, write_block)

    def _keep(
        self,
        seed: hashlib._Hash,
        cuts: Sequence[Sequence[int]],
        contents: Sequence[str],
        write: Callable[[Sequence[int], Sink], list[tuple[Any, ...]]],
    ) -> list[tuple[Any, ...]]:
        """Write the blocks that are not known by their contents; return what all of them yield for the tally."""
        found = []
        for number, (eras, made_from) in enumerate(zip(cuts, contents, strict=True)):
            content = seed.copy()
            content.update(made_from.encode())
            digest = content.hexdigest()[:24]
            block = self._known.get(digest)
            if block is None:
                folder = self._place / digest
                shutil.rmtree(folder, ignore_errors=True)  # of a look that ended in an error
                folder.mkdir()
                with PartWriter(folder) as sink:
                    block = Block(folder, full=False, tally=write(eras, sink))
            following = cuts[number + 1][0] if number + 1 < len(cuts) else None
            full = following is not None and (following < 0) == (eras[0] < 0)
            self.blocks[digest] = Block(block.folder, full, block.tally)
            found += block.tally
        return found


def _cut(eras: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield the eras of each block; a block is full by what is in it, so that later eras leave it as it is."""
    block: list[int] = []
    size = 0
    for era, rows in eras:
        if block and (size >= BLOCK or (era < 0) != (block[0] < 0)):
            yield block
            block, size = [], 0
        block.append(era)
        size += rows
    if block:
        yield block


def _hashed(connection: duckdb.DuckDBPyConnection, relation: str, key: str) -> dict[int, tuple[int, ...]]:
    """The number of a relation's rows, and what tells them from others, whatever their order, by ``key``."""
    query = f"SELECT {key}, count(*), bit_xor(hash(row_)), sum(hash(row_)) FROM {relation} AS row_ GROUP BY ALL"
    return {number: tuple(hashes) for number, *hashes in connection.execute(query).fetchall()}

"""What a parser writes in blocks is written again only where it is made from something else than before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import polars as pl
import pytest

from staleness_audit.parser import Era, Sink
from staleness_audit.sink import PartWriter
from staleness_audit.watch import blocks
from staleness_audit.watch.blocks import Block, BlockWriter

LIVES = (
    "trajectories",
    "SELECT name AS trajectory_id, prefix || name AS group_id, 'train' AS role, tokens AS prompt_tokens "
    "FROM block_lives CROSS JOIN prefixes",
)


@pytest.fixture
def connection():
    """Each era has two trajectories of ten tokens; era -1 is for those that wait."""
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE lives AS SELECT i // 2 AS era, 't' || i AS name, 10 AS tokens FROM range(6) t(i)"
        )
        connection.execute("INSERT INTO lives VALUES (-1, 'w0', 10), (-1, 'w1', 10)")
        connection.execute("CREATE TABLE prefixes AS SELECT 'g' AS prefix")
        yield connection


def test_blocks_are_kept_as_long_as_what_they_are_made_from(
    tmp_path: Path, connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of four: eras 0 and 1, era 2, era -1. Era 3 fills the second; a change in era 0 makes the first anew."""
    monkeypatch.setattr(blocks, "BLOCK", 4)
    known: dict[str, Block] = {}
    tokens = []

    def write(name: str) -> list[tuple[int, bool]]:
        """Return the rows of each block that was written now, and whether it is full."""
        nonlocal known
        (tmp_path / name).mkdir()
        with (sink := BlockWriter(tmp_path / name, tmp_path / "blocks", known)):
            tally = "SELECT sum(tokens)::BIGINT FROM block_lives"
            found = sink.write_blocks(connection, ["lives"], [LIVES], beside=["prefixes"], tally=tally)
        tokens.append([number for (number,) in found])
        new = [block for digest, block in sink.blocks.items() if digest not in known]
        known = sink.blocks
        return [(len(pl.read_parquet(block.folder / "trajectories.1.parquet")), block.full) for block in new]

    (tmp_path / "blocks").mkdir()
    assert write("first") == [(4, True), (2, False), (2, False)]
    assert write("same") == []
    connection.execute("INSERT INTO lives VALUES (3, 't6', 10), (3, 't7', 10)")
    assert write("grown") == [(4, False)]
    connection.execute("UPDATE lives SET tokens = 11 WHERE name = 't0'")
    assert write("changed") == [(4, True)]
    assert tokens == [[40, 20, 20], [40, 20, 20], [40, 40, 20], [41, 40, 20]]
    connection.execute("UPDATE prefixes SET prefix = 'h'")
    assert write("beside") == [(4, True), (4, False), (2, False)]


def test_eras_are_written_again_only_if_they_are_made_from_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of four of eras with two trajectories each: new ones change the last one."""
    monkeypatch.setattr(blocks, "BLOCK", 4)
    known: dict[str, Block] = {}

    def written(sink: BlockWriter | PartWriter, facts: list[str]) -> list[list[int]]:
        """Return the eras that were written together; each has its fact in the ids of its trajectories."""
        calls: list[list[int]] = []

        def write(eras: Sequence[int], into: Sink) -> None:
            calls.append(list(eras))
            ids = [f"{facts[era]}{era}.{member}" for era in eras for member in range(2)]
            into.write("trajectories", pl.DataFrame({"trajectory_id": ids}))

        sink.write_eras([Era(number, 2, fact) for number, fact in enumerate(facts)], write)
        return calls

    def look(facts: list[str]) -> list[list[int]]:
        nonlocal known
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        with (sink := BlockWriter(folder, tmp_path / "blocks", known)):
            calls = written(sink, facts)
        known = sink.blocks
        parts = [pl.read_parquet(block.folder / "trajectories.parquet") for block in known.values()]
        assert pl.concat(parts)["trajectory_id"].str.slice(0, 2).unique(maintain_order=True).to_list() == [
            f"{fact}{era}" for era, fact in enumerate(facts)
        ]
        return calls

    (tmp_path / "blocks").mkdir()
    assert look(["a", "a", "a"]) == [[0, 1], [2]]
    assert look(["a", "a", "a"]) == []
    assert look(["a", "a", "a", "a", "a"]) == [[2, 3], [4]]
    assert look(["b", "a", "a", "a", "a"]) == [[0, 1]]
    assert [block.full for block in known.values()] == [True, True, False]
    with PartWriter(tmp_path / "blocks") as sink:
        assert written(sink, ["a", "a", "a"]) == [[0, 1, 2]]


def test_for_an_audit_all_is_one_block(tmp_path: Path, connection: duckdb.DuckDBPyConnection) -> None:
    with PartWriter(tmp_path) as sink:
        found = sink.write_blocks(connection, ["lives"], [LIVES], beside=["prefixes"], tally="FROM block_lives LIMIT 1")
    assert len(found) == 1
    assert len(pl.read_parquet(tmp_path / "trajectories.1.parquet")) == 8

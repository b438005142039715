"""SQLite databases of runs: nothing is left beside them, and nothing in them is trusted."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
import zstandard

from staleness_audit.discovery import discover
from staleness_audit.readers import sqlite
from staleness_audit.readers.sqlite import DamagedDatabase, open_database


def make(path: Path, rows: int = 3, wal: bool = False) -> sqlite3.Connection:
    base = sqlite3.connect(path)
    if wal:
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA wal_autocheckpoint = 0")
    base.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, step INTEGER, metrics BLOB)")
    base.executemany("INSERT INTO metrics VALUES (?, ?, ?)", [(9 - index, index, b"{}") for index in range(rows)])
    base.commit()
    return base


def read(
    folder: Path, source: str = "x.db", table: str = "metrics", wanted: tuple[str, ...] = ("step", "log_id")
) -> list[dict]:
    with open_database(discover(folder), source) as database:
        return list(database.rows(table, wanted, ("id", "nothing")))


def test_rows_come_in_order_and_a_missing_column_is_none(tmp_path: Path) -> None:
    make(tmp_path / "x.db").close()
    assert read(tmp_path) == [{"step": step, "log_id": None} for step in (2, 1, 0)]
    assert read(tmp_path, table="nothing") == []


def test_a_database_in_wal_mode_is_read_without_files_beside_it(tmp_path: Path) -> None:
    make(tmp_path / "x.db", wal=True).close()  # closing merges and removes the log, the mode stays
    before = (tmp_path / "x.db").read_bytes()
    (tmp_path / "x.db").chmod(0o444)
    assert len(read(tmp_path)) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["x.db"]
    assert (tmp_path / "x.db").read_bytes() == before


def test_rows_that_are_only_in_the_log_count_and_the_log_is_not_merged(tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    writer = make(live / "x.db", wal=True)
    run = tmp_path / "run"
    shutil.copytree(live, run)
    writer.close()
    (run / "x.db-shm").unlink()
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert len(read(run)) == 3
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    (run / "x.db-wal").unlink()
    assert read(run) == []  # without the log the table does not even exist


def test_a_compressed_database_is_read(tmp_path: Path) -> None:
    make(tmp_path / "x.db").close()
    (tmp_path / "x.db.zst").write_bytes(zstandard.compress((tmp_path / "x.db").read_bytes()))
    (tmp_path / "x.db").unlink()
    assert len(read(tmp_path, "x.db.zst")) == 3


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "page"])
def test_damage_is_one_kind_of_error(tmp_path: Path, damage: str) -> None:
    make(tmp_path / "x.db", rows=3000).close()
    data = (tmp_path / "x.db").read_bytes()
    broken = {"empty": b"", "text": b"hello", "cut": data[:5000], "page": data[:4096] + b"\xff" * 4096 + data[8192:]}
    (tmp_path / "x.db").write_bytes(broken[damage])
    with pytest.raises(DamagedDatabase):
        read(tmp_path)


def test_a_view_is_not_run_and_a_long_query_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = sqlite3.connect(tmp_path / "x.db")
    endless = "WITH RECURSIVE n(step) AS (SELECT 1 UNION ALL SELECT step + 1 FROM n) SELECT step FROM n"
    base.execute(f"CREATE VIEW metrics AS {endless}")
    base.commit()
    base.close()
    assert read(tmp_path) == []
    (tmp_path / "x.db").unlink()
    make(tmp_path / "x.db", rows=200_000).close()
    monkeypatch.setattr(sqlite, "MAX_SECONDS", 0.0)
    monkeypatch.setattr(sqlite, "_STEPS_PER_CHECK", 10)
    with pytest.raises(DamagedDatabase, match="interrupted"):
        read(tmp_path)

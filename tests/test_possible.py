"""Rows that cannot be true, whatever a log says, are told and count as little as they can."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl
import pytest

from staleness_audit.sink import PartWriter

WIDE = {"tokens_lo": pl.Int128, "tokens_hi": pl.Int128}


def written(folder: Path, table: str, rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Write rows; return what is read back of them, and what is said of it, by line."""
    with PartWriter(folder) as sink:
        sink.write(table, rows.with_columns(source=pl.lit("x.log"), line=pl.int_range(1, len(rows) + 1)))
    told = folder / "diagnostics.parquet"
    said = pl.read_parquet(told) if told.exists() else pl.DataFrame({"line": [], "message": [], "opens": []})
    assert set(said["opens"]) <= {"training"}
    notes = [f"{line}: {message}" for line, message in said.select("line", "message").iter_rows()]
    return pl.read_parquet(folder / f"{table}.parquet"), notes


def test_a_version_that_is_none_is_unknown_and_its_tokens_stay(tmp_path: Path) -> None:
    """Of version -1 a token would be older than the first; beyond 31 bits no table could hold it."""
    rows = pl.DataFrame(
        {"tokens_lo": [5, 5, 5], "tokens_hi": [5] * 3, "version_lo": [3, -1, 4], "version_hi": [3, 2, 2**31]}
    )
    kept, said = written(tmp_path, "spans", rows)
    assert kept.select("tokens_lo", "version_lo", "version_hi").rows() == [(5, 3, 3), (5, None, 2), (5, 4, None)]
    assert said == [
        "2: Of spans, version: it says -1, which is impossible; it is unknown; restore the file.",
        "3: Of spans, version: it says 2147483648, which is impossible; it is unknown; restore the file.",
    ]


def test_a_sum_beyond_64_bits_is_unknown(tmp_path: Path) -> None:
    """Damaged digits of a mean length, times the number of rows."""
    rows = pl.DataFrame({"tokens_lo": [3, 10**30], "tokens_hi": [4, 10**30]}, schema_overrides=WIDE)
    kept, said = written(tmp_path, "spans", rows)
    assert kept.select("tokens_lo", "tokens_hi").rows() == [(3, 4), (None, None)]
    beyond = "it says a number beyond 64 bits, which is impossible; it is unknown; restore the file."
    assert said == [f"2: Of spans, {name}: {beyond}" for name in ("tokens_lo", "tokens_hi")]


def test_a_step_that_is_none_is_left_out(tmp_path: Path) -> None:
    kept, said = written(tmp_path, "steps", pl.DataFrame({"step": [0, 1, -2, 3]}))
    assert kept["step"].to_list() == [0, 1, 3]
    assert said == ["3: Of steps, step: it says -2, which is impossible; the record was left out; restore the file."]


def test_what_excludes_itself_may_be_all_between(tmp_path: Path) -> None:
    """Seven of the tokens are told of one line, five of all lines: between five and seven were trained."""
    kept, said = written(tmp_path, "uses", pl.DataFrame({"loss_tokens_lo": [2, 7], "loss_tokens_hi": [4, 5]}))
    assert kept.select("loss_tokens_lo", "loss_tokens_hi").rows() == [(2, 4), (5, 7)]
    assert said == [
        "2: Of uses, loss_tokens: 7 to 5 exclude each other; all between was taken as possible; restore the file."
    ]


def test_a_count_below_zero_is_none_at_least_and_open_above(tmp_path: Path) -> None:
    """A damaged sign must not prove that there was nothing."""
    kept, said = written(tmp_path, "groups", pl.DataFrame({"members_lo": [-4, 2, -3], "members_hi": [8, None, -3]}))
    assert kept.select("members_lo", "members_hi").rows() == [(0, 8), (2, None), (0, None)]
    assert said == [
        "1: Of groups, members: it says -4, which is impossible; it counts as none; restore the file.",
        "3: Of groups, members: it says -3, which is impossible; it is unknown; restore the file.",
    ]


def test_possible_rows_are_as_they_were(tmp_path: Path) -> None:
    """A lag below zero is none of these: a trajectory may be told of a version that is not served yet."""
    rows = pl.DataFrame({"step": [0, 1], "staleness_lo": [None, -1], "staleness_hi": [0, None]})
    kept, said = written(tmp_path, "uses", rows)
    assert kept.select(rows.columns).rows() == rows.rows() and not said


ALMOST = 2**31 - 1
"""No step or version is so great."""


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("steps", {"step": [0, -1, 2], "updates": [1, 1, -1]}),
        ("steps", {"step": [0, 1, ALMOST], "v_train_lo": [0, 1, 2], "v_train_hi": [0, 1, ALMOST]}),
        ("uses", {"staleness_lo": [0, -ALMOST, None], "staleness_hi": [0, 1, 1]}),
        ("uses", {"loss_tokens_lo": [2, 7, 1], "loss_tokens_hi": [4, 5, None]}),
        ("spans", {"tokens_lo": [-5, 1, 1], "tokens_hi": [-5, 1, 1], "version_lo": [None] * 3}),
        # Of these the statistics of the file leave open whether an interval is crossed, and none is.
        ("spans", {"version_lo": [1, 7, None], "version_hi": [1, 7, 3], "tokens_lo": [9, 2, 4]}),
    ],
)
def test_rows_of_a_query_are_held_to_the_same(tmp_path: Path, table: str, columns: dict[str, list[int | None]]) -> None:
    rows = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Int32))
    (tmp_path / "rows").mkdir()
    kept, said = written(tmp_path / "rows", table, rows)
    (tmp_path / "query").mkdir()
    with duckdb.connect() as connection, PartWriter(tmp_path / "query") as sink:
        connection.register("found", rows.with_columns(source=pl.lit("x.log"), line=pl.int_range(1, len(rows) + 1)))
        sink.write_query(table, connection, "FROM found")
    told = tmp_path / "query" / "diagnostics.parquet"
    notes = pl.read_parquet(told).select("line", "message").rows() if told.exists() else []
    assert [f"{line}: {message}" for line, message in notes] == said
    again = pl.read_parquet(list((tmp_path / "query").glob(f"{table}.*")))
    assert again.rows() == kept.rows() and sink.rows[table] == len(kept)

"""Rebuilding a run in parts that share no trajectory and no group, and adding the parts up.

What a trajectory comes to depends on its own rows, on those of its group, and on the run's steps and attempts. So the
modules can run over the rows of some trajectories at a time, as long as each part sees *all* steps. Products with a row
per trajectory or use are then simply side by side; the classes are sums, and add up. Only what compares the sum of all
trajectories with what the steps state (``residual_uses``, the findings about steps) must wait for the total: it is
rebuilt last, from the sums alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import duckdb

from staleness_audit.engine import create_view, read_parquet, write_parquet
from staleness_audit.ingest import Dataset
from staleness_audit.rebuild import STEP_RANGE, make, modules, prepare
from staleness_audit.rebuild.partitions import DIVIDED

SIDE_BY_SIDE = ("use_lives", "trajectory_lives", "members")
"""Products of which the parts are the files."""


def _sums() -> dict[str, tuple[str, ...]]:
    """Products that add up, with the columns that do. An open end (null) stays open."""
    return {module.product: module.sums for module in modules() if module.sums}


def build_part(dataset: Dataset, folder: Path, step_lives: Path | None = None) -> None:
    """Run the modules over a dataset that holds all steps and the rows of some trajectories; write into ``folder``.

    ``step_lives``: the product of another part, to be used instead of one's own, so that both number the steps alike.
    Products that wait for the total are left empty.
    """
    with dataset.connect() as connection:
        _build_part(connection, dataset, folder, step_lives)


def build_whole(dataset: Dataset, part: Path, sealed: Path | None, whole: Path) -> None:
    """Rebuild the rows of ``dataset`` as a part, and write the products of the run into ``whole``.

    ``sealed``: folder of the products of all other parts, added up (``add_parts``). What waits for the total is rebuilt
    from the sums alone: as if there were no trajectories, but uses that add up to those of all parts.
    """
    whole.mkdir(parents=True)
    with dataset.connect() as connection:
        _build_part(connection, dataset, part, None)
        parts = [part] if sealed is None else [sealed, part]
        for module in modules():
            if module.stage == "part" and not module.view:
                _empty(connection, module.product)
        _hide(connection, DIVIDED)
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE step_sums AS {_added('step_sums', _files(parts, 'step_sums'))}"
        )
        connection.execute("DROP VIEW temp.steps")
        for module in modules():
            if module.stage == "whole" and not module.lens:
                connection.execute(module.create())
        _add(connection, whole, parts, with_total=True)
        _copy(connection, "SELECT * FROM residual_uses", whole, "residual_uses")
    shutil.copyfile(part / "step_lives.parquet", whole / "step_lives.parquet")


def add_parts(folder: Path, parts: Sequence[Path]) -> None:
    """Add the products of parts (folders that ``build_part`` wrote, or this) up into ``folder``, which is one again."""
    folder.mkdir(parents=True)
    with duckdb.connect(config={"memory_limit": "600MB"}) as connection:
        _add(connection, folder, parts, with_total=False)
        _copy(connection, _added("step_sums", _files(parts, "step_sums")), folder, "step_sums")


def _build_part(connection: duckdb.DuckDBPyConnection, dataset: Dataset, folder: Path, step_lives: Path | None) -> None:
    folder.mkdir(parents=True)
    prepare(connection, dataset, *STEP_RANGE)
    for module in modules():
        if module.lens:
            continue
        sql = module.sql
        if module.product == "step_lives" and step_lives is not None:
            sql = f"SELECT * FROM {read_parquet([step_lives])}"
        if module.product == "residual_uses":
            sql = f"SELECT * FROM ({sql}\n) WHERE false"
        if module.product == "findings":
            # Sums of a part contradict nothing, and contradictions among the steps are found once.
            _hide(connection, ("steps",))
            _empty(connection, "step_totals")
        wanted = module.published and module.product != "residual_uses"
        make(connection, replace(module, sql=sql), folder / f"{module.product}.parquet" if wanted else None)
        if module.product == "step_sums":
            # Parquet has no integers as wide as those of DuckDB's sums.
            columns = ", ".join(f"{name}::BIGINT AS {name}" for name in _sums()["step_sums"])
            _copy(connection, f"SELECT step_key, {columns} FROM step_sums", folder, "step_sums")


def _empty(connection: duckdb.DuckDBPyConnection, product: str) -> None:
    """Let a product that was made have no rows."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {product} AS SELECT * FROM {product} WHERE false")


def _hide(connection: duckdb.DuckDBPyConnection, tables: Iterable[str]) -> None:
    """Let event tables look empty."""
    for table in tables:
        connection.execute(f"CREATE TEMP VIEW {table} AS SELECT * FROM memory.main.{table} WHERE false")


def _add(connection: duckdb.DuckDBPyConnection, folder: Path, parts: Sequence[Path], *, with_total: bool) -> None:
    """Add the parts' products up into ``folder``; ``with_total``: and what the connection's own products say beside."""
    for product in _sums():
        if product != "step_sums":
            rest = f" UNION ALL BY NAME SELECT * FROM {product}" if with_total else ""
            _copy(connection, f"{_added(product, _files(parts, product))}{rest}", folder, product)
    found = f"SELECT * FROM {read_parquet(_files(parts, 'findings'))}"
    every_finding = f"{found} UNION ALL BY NAME SELECT * FROM findings" if with_total else found
    _copy(connection, _FINDINGS.format(findings=every_finding), folder, "findings")
    # What a part has of the run as a whole (its times) is the same in all; the latest part knows it best.
    newest, every = read_parquet(_files(parts, "occupancy")[-1:]), read_parquet(_files(parts, "occupancy"))
    _copy(connection, _OCCUPANCY.format(newest=newest, every=every), folder, "occupancy")


_FINDINGS = """
    SELECT code, severity, message, opens, sum(cases)::BIGINT AS cases, min(source) AS source, min(line) AS line, min(locator) AS locator
    FROM ({findings}) GROUP BY code, severity, message, opens"""

_OCCUPANCY = """
    SELECT wall_started, wall_ended, busy_us, waited_us, sums.*
    FROM {newest} CROSS JOIN (
        SELECT sum(in_flight_us)::BIGINT AS in_flight_us, coalesce(sum(queued_us), 0)::BIGINT AS queued_us,
            sum(timed)::BIGINT AS timed, sum(trajectories)::BIGINT AS trajectories
        FROM {every}
    ) AS sums"""


def _added(product: str, files: Sequence[Path]) -> str:
    """SQL that adds the rows of a product up that count the same."""
    sums = ", ".join(
        f"CASE WHEN count({name}) = count(*) THEN sum({name})::BIGINT END AS {name}"
        if name.endswith("_hi")
        else f"sum({name})::BIGINT AS {name}"
        for name in _sums()[product]
    )
    rest = ", ".join(_sums()[product])
    return f"SELECT * EXCLUDE ({rest}), {sums} FROM {read_parquet(files)} GROUP BY ALL"


def _files(folders: Iterable[Path], product: str) -> list[Path]:
    return [folder / f"{product}.parquet" for folder in folders]


def _copy(connection: duckdb.DuckDBPyConnection, sql: str, folder: Path, product: str) -> None:
    write_parquet(connection, sql, folder / f"{product}.parquet")


def views(connection: duckdb.DuckDBPyConnection, folder: Path, products: Iterable[str]) -> None:
    """Make views of some products of a part."""
    for product in products:
        create_view(connection, product, [folder / f"{product}.parquet"])

"""Rebuilding a run in parts that share no trajectory and no group, and adding the parts up.

What a trajectory comes to depends on its own rows, on those of its group, and on the run's steps and attempts. So the
modules can run over the rows of some trajectories at a time, as long as each part sees *all* steps. Products with a row
per trajectory or use are then simply side by side; the classes are sums, and add up. Only what compares the sum of all
trajectories with what the steps state (``residual_uses``, the findings about steps) must wait for the total: it is
rebuilt last, from the sums alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import duckdb

from staleness_audit.engine import create_view, read_parquet, write_parquet
from staleness_audit.ingest import Dataset
from staleness_audit.rebuild import STEP_RANGE, make, modules, prepare
from staleness_audit.rebuild.partitions import DIVIDED

SIDE_BY_SIDE = ("use_lives", "trajectory_lives", "members")
"""Products of which the parts are the files."""

SUMS: dict[str, tuple[str, ...]] = {
    "token_classes": ("tokens_lo", "tokens_hi"),
    "flight_classes": ("tokens_lo", "tokens_hi"),
    "age_classes": ("tokens_lo", "tokens_hi"),
    "use_classes": ("uses_lo", "uses_hi", "loss_lo", "loss_hi", "identified"),
    "worst_classes": ("members_lo", "members_hi"),
    "fate_classes": ("trajectories_lo", "trajectories_hi", "tokens_lo", "tokens_hi", "trained_lo", "trained_hi"),
    "drop_classes": ("trajectories_lo", "trajectories_hi", "tokens_lo", "tokens_hi"),
    "length_classes": ("finished", "trained"),
    "step_sums": ("uses_lo", "uses_hi", "loss_lo", "loss_hi"),
}
"""Products that add up, with the columns that do; all others say what is counted. An open end (null) stays open."""


def build_part(dataset: Dataset, folder: Path, step_lives: Path | None = None) -> None:
    """Run the modules over a dataset that holds all steps and the rows of some trajectories; write into ``folder``.

    ``step_lives``: the product of another part, to be used instead of one's own, so that both number the steps alike.
    Products that wait for the total are left empty.
    """
    folder.mkdir(parents=True)
    given = {} if step_lives is None else {"step_lives": f"SELECT * FROM {read_parquet([step_lives])}"}
    _run(dataset, folder, given, total=False)


def build_total(dataset: Dataset, folder: Path, step_lives: Path, step_sums: Sequence[Path]) -> None:
    """Rebuild what waits for the total, from the ``step_sums`` of all parts; write into ``folder``."""
    folder.mkdir(parents=True)
    given = {
        "step_lives": f"SELECT * FROM {read_parquet([step_lives])}",
        "step_sums": _added("step_sums", step_sums),
    }
    _run(dataset, folder, given, total=True)


def _run(dataset: Dataset, folder: Path, given: Mapping[str, str], *, total: bool) -> None:
    with dataset.connect() as connection:
        prepare(connection, dataset, *STEP_RANGE)
        if total:
            _hide(connection, DIVIDED)
        for module in modules():
            if module.lens:
                continue
            sql = given.get(module.product, module.sql)
            if module.product == "residual_uses" and not total:
                sql = f"SELECT * FROM ({sql}\n) WHERE false"
            if module.product == "findings" and not total:
                # Sums of a part contradict nothing, and contradictions among the steps are found once.
                _hide(connection, ("steps",))
                connection.execute("CREATE OR REPLACE TEMP TABLE step_totals AS SELECT * FROM step_totals WHERE false")
            part = folder / f"{module.product}.parquet" if module.published else None
            make(connection, replace(module, sql=sql), part)
            if module.product == "step_sums":
                _write_step_sums(connection, folder)


def _hide(connection: duckdb.DuckDBPyConnection, tables: Iterable[str]) -> None:
    """Let event tables look empty."""
    for table in tables:
        connection.execute(f"CREATE TEMP VIEW {table} AS SELECT * FROM memory.main.{table} WHERE false")


def _write_step_sums(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    # Parquet has no integers as wide as those of DuckDB's sums.
    columns = ", ".join(f"{name}::BIGINT AS {name}" for name in SUMS["step_sums"])
    write_parquet(connection, f"SELECT step_key, {columns} FROM step_sums", folder / "step_sums.parquet")


def add_parts(folder: Path, parts: Sequence[Path], total: Path | None) -> None:
    """Add the parts' products up into ``folder``; without a ``total`` the result is a part again.

    ``parts``, ``total``: folders that ``build_part`` (or this) and ``build_total`` wrote.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with duckdb.connect(config={"memory_limit": "600MB"}) as connection:
        for product in SUMS:
            rest = [] if total is None or product == "step_sums" else [total / f"{product}.parquet"]
            _copy(connection, _with_rest(_added(product, _files(parts, product)), rest), folder, product)
        findings = [*_files(parts, "findings"), *([] if total is None else [total / "findings.parquet"])]
        _copy(connection, _FINDINGS.format(files=read_parquet(findings)), folder, "findings")
        # What a part has of the run as a whole (its times) is the same in all; the latest part knows it best.
        newest, every = read_parquet(_files(parts, "occupancy")[-1:]), read_parquet(_files(parts, "occupancy"))
        _copy(connection, _OCCUPANCY.format(newest=newest, every=every), folder, "occupancy")


_FINDINGS = """
    SELECT code, severity, message, opens, sum(cases)::BIGINT AS cases, min(source) AS source, min(line) AS line, min(locator) AS locator
    FROM {files} GROUP BY code, severity, message, opens"""

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
        for name in SUMS[product]
    )
    rest = ", ".join(SUMS[product])
    return f"SELECT * EXCLUDE ({rest}), {sums} FROM {read_parquet(files)} GROUP BY ALL"


def _with_rest(sql: str, rest: Sequence[Path]) -> str:
    return sql if not rest else f"{sql} UNION ALL BY NAME SELECT * FROM {read_parquet(rest)}"


def _files(folders: Iterable[Path], product: str) -> list[Path]:
    return [folder / f"{product}.parquet" for folder in folders]


def _copy(connection: duckdb.DuckDBPyConnection, sql: str, folder: Path, product: str) -> None:
    write_parquet(connection, sql, folder / f"{product}.parquet")


def views(connection: duckdb.DuckDBPyConnection, folder: Path, products: Iterable[str]) -> None:
    """Make views of some products of a part."""
    for product in products:
        create_view(connection, product, [folder / f"{product}.parquet"])

"""Every event table and published product as a file of its own, for spreadsheets and other tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import duckdb

from staleness_audit.api import AuditResult
from staleness_audit.engine import literal
from staleness_audit.errors import AuditError
from staleness_audit.whole import whole_file

_FORMULA = r"^[=+\-@\t\r\n＝＋－＠]"
"""How text begins that a spreadsheet would run as a formula."""


def write_files(result: AuditResult, folder: Path, form: Literal["csv", "parquet"]) -> Iterator[tuple[Path, int]]:
    """Write each table and product to ``folder/<name>.<form>``; yield each file with its number of rows.

    In CSV, text that begins like a formula gets an apostrophe in front, so that a spreadsheet shows it and runs
    nothing; lists are JSON. Parquet holds every value as it is.

    Raises:
        AuditError: the folder lies in the run, or cannot be written.
    """
    run = Path(result.data["run"]["path"])
    if folder.resolve().is_relative_to(run.resolve()):
        raise AuditError(f"{folder}: nothing is ever written into the run directory; choose another --output.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AuditError(f"{folder}: cannot be written ({error.strerror}); choose another --output.") from error
    with result.rebuilt.connect() as connection:
        for name in result.tables:
            path = folder / f"{name}.{form}"
            options = "FORMAT csv, HEADER true" if form == "csv" else "FORMAT parquet, COMPRESSION zstd"
            query = _harmless(connection, name) if form == "csv" else f'FROM "{name}"'
            try:
                with whole_file(path) as aside:
                    (rows,) = connection.execute(f"COPY ({query}) TO {literal(str(aside))} ({options})").fetchall()[0]
            except (duckdb.IOException, OSError) as error:
                raise AuditError(f"{path}: cannot be written; choose another --output.") from error
            yield path, int(rows)


def _harmless(connection: duckdb.DuckDBPyConnection, name: str) -> str:
    """Return a query of a view whose text no spreadsheet takes for a formula."""
    columns = []
    for column, kind, *_ in connection.execute(f'DESCRIBE "{name}"').fetchall():
        quoted = f'"{column}"'
        if kind.endswith("[]"):
            columns.append(f"to_json({quoted})::VARCHAR AS {quoted}")
        elif kind == "VARCHAR" or kind.startswith("ENUM"):
            guarded = f"CASE WHEN regexp_matches({quoted}, '{_FORMULA}') THEN '''' || {quoted} ELSE {quoted} END"
            columns.append(f"{guarded} AS {quoted}")
        else:
            columns.append(quoted)
    return f'SELECT {", ".join(columns)} FROM "{name}"'

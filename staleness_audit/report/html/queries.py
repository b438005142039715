"""Runs the report's own SQL: aggregates over the rebuilt products, small enough to draw."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Any

import duckdb

Rows = list[dict[str, Any]]


def fetch(connection: duckdb.DuckDBPyConnection, name: str, **parameters: Any) -> Rows:
    """Run ``sql/<name>.sql`` with those of the parameters that it names, and return its rows as dicts.

    The queries read the views of ``Rebuilt.connect``; values only ever arrive as parameters.
    """
    query = _query(name)
    wanted = set(re.findall(r"\$(\w+)", query))
    cursor = connection.execute(query, {key: parameters[key] for key in wanted})
    titles = [column[0] for column in cursor.description or []]
    return [dict(zip(titles, row, strict=True)) for row in cursor.fetchall()]


@cache
def _query(name: str) -> str:
    text = (resources.files(__package__) / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))

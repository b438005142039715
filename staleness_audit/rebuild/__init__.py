"""Rebuilding lifecycles: SQL over the event tables (station *rebuild*).

Each module in ``sql/`` yields one product, described in its head; modules build on the products before them. Products
marked ``Publish: yes`` are kept as Parquet beside the tables. None of them depends on the bound, so that asking about
another bound costs only the check.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa

from staleness_audit.engine import create_view, literal
from staleness_audit.ingest import Dataset, locked

STEP_RANGE = (-(2**31), 2**31 - 1)


@dataclass(frozen=True)
class Module:
    """One SQL file: its product, what a row is, its columns, and the query.

    ``view``: evaluated wherever it is used instead of once. ``lens``: a view for readers over what is published.
    """

    product: str
    grain: str
    sources: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    published: bool
    view: bool
    lens: bool
    sql: str

    @property
    def in_memory(self) -> bool:
        """Whether the product is a table while the modules run, and nothing afterwards."""
        return not (self.published or self.view or self.lens)

    def create(self) -> str:
        """SQL that makes the product."""
        return f"CREATE TEMP {'VIEW' if self.view or self.lens else 'TABLE'} {self.product} AS {self.sql}"


@cache
def modules() -> tuple[Module, ...]:
    """All modules in the order in which they run."""
    folder = resources.files(__package__) / "sql"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return tuple(_parse((folder / name).read_text()) for name in names)


def _parse(text: str) -> Module:
    head = [line[3:] if line.startswith("-- ") else "" for line in text.splitlines() if line.startswith("--")]
    fields = {
        key: value.strip()
        for line in head
        if (m := re.match(r"(Product|Grain|From|Publish|Kind): (.*)", line))
        for key, value in [m.groups()]
    }
    start = next(index for index, line in enumerate(head) if line.startswith("Columns:"))
    columns: list[tuple[str, str]] = []
    for line in head[start + 1 :]:
        if not (
            entry := re.match(
                r"  (\w[\w, ]*?)(?:  +(\S.*))?$", line.split(" (", 1)[0] if "  " not in line.strip() else line
            )
        ):
            break
        columns += [(name.strip(), entry[2] or "") for name in entry[1].split(",")]
    sources = tuple(name.strip() for name in fields["From"].rstrip(".").split(","))
    return Module(
        product=fields["Product"],
        grain=fields["Grain"],
        sources=sources,
        columns=tuple(columns),
        published=fields.get("Publish") == "yes",
        view=fields.get("Kind") == "view",
        lens=fields.get("Kind") == "lens",
        sql=text,
    )


def _last_used_by(index: int) -> list[str]:
    """Tables that no module after this one reads: they can be dropped to make room."""
    known = modules()
    views = {module.product: module.sources for module in known if module.view and not module.published}
    last: dict[str, int] = {}
    for at, module in enumerate(known):
        for source in (
            module.product,
            *module.sources,
            *(name for view in module.sources for name in views.get(view, ())),
        ):
            last[source] = at
    return [module.product for module in known if module.in_memory and last[module.product] == index]


@dataclass(frozen=True)
class Rebuilt:
    """The products of a dataset, by name as Parquet files."""

    dataset: Dataset
    folder: Path

    def part(self, product: str) -> Path:
        """Parquet file of a published product."""
        return self.folder / f"{product}.parquet"

    def parts(self, product: str) -> list[Path]:
        """All files that a published product is in."""
        return [self.part(product)]

    def dataset_of(self, trajectories: Sequence[str]) -> Dataset:
        """Return tables that hold at least all rows of these trajectories and their groups."""
        return self.dataset

    def frame(self, product: str) -> pl.DataFrame:
        """Return a published product as a frame; meant for the small ones (classes, steps)."""
        return pl.read_parquet(self.part(product))

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Open a DuckDB connection with views of all event tables and published products."""
        connection = self.dataset.connect()
        for module in modules():
            if module.lens:
                connection.execute(module.create())
            elif module.published:
                create_view(connection, module.product, self.parts(module.product))
        return connection


def rebuild(
    dataset: Dataset,
    steps: tuple[int | None, int | None] = (None, None),
    progress: Callable[[int, int, str], None] | None = None,
) -> Rebuilt:
    """Run the modules over a dataset, or return what an earlier run over the same tables left.

    ``steps``: first and last training step that count (the framework's numbers, None = no limit). Trajectories trained
    only in other steps are left out; those that were never trained are all kept.
    """
    first, last = (STEP_RANGE[0] if steps[0] is None else steps[0]), (STEP_RANGE[1] if steps[1] is None else steps[1])
    code = sha256("\0".join([*(module.sql for module in modules()), f"{first}:{last}"]).encode()).hexdigest()[:8]
    folder = dataset.folder / ".rebuilt" / f"{dataset.key}-{code}"
    rebuilt = Rebuilt(dataset, folder)
    if not folder.exists():
        with locked(dataset.folder):
            if not folder.exists():  # another process may have made it meanwhile
                _run(dataset, folder, (first, last), progress)
    return rebuilt


def _run(
    dataset: Dataset, folder: Path, steps: tuple[int, int], progress: Callable[[int, int, str], None] | None
) -> None:
    """Run all modules into ``folder``, which appears only when it is whole; drop what older tables left."""
    aside = folder.with_name(f".{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    with dataset.connect() as connection:
        prepare(connection, dataset, *steps)
        for index, module in enumerate(modules()):
            if progress:
                progress(index, len(modules()), module.product)
            make(connection, module, aside)
            for product in _last_used_by(index):
                connection.execute(f"DROP TABLE {product}")
    for other in folder.parent.iterdir():
        if not other.name.startswith(dataset.key) and other != aside:
            shutil.rmtree(other, ignore_errors=True)
    aside.rename(folder)


def make(connection: duckdb.DuckDBPyConnection, module: Module, folder: Path) -> None:
    """Make a product; a published one is written at once and read from its file by later modules, to save memory."""
    if module.lens or not module.published:
        connection.execute(module.create())
        return
    part = folder / f"{module.product}.parquet"
    connection.execute(
        f"COPY ({module.sql}) TO {literal(str(part))} (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
    )
    create_view(connection, module.product, [part])


@contextmanager
def zoom(rebuilt: Rebuilt, trajectories: Sequence[str]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Rebuild a few trajectories by themselves and yield a connection with *all* products of just these.

    The products that sum over the whole run (classes, occupancy) are left out.
    """
    dataset = rebuilt.dataset_of(trajectories)
    with dataset.connect() as connection:
        prepare(connection, dataset, *STEP_RANGE)
        connection.register("wanted", pa.table({"trajectory_id": pa.array(list(trajectories), pa.string())}))
        for table in ("trajectories", "spans", "uses", "events"):
            connection.execute(
                f'CREATE TEMP TABLE {table} AS SELECT * FROM memory.main."{table}" WHERE trajectory_id IN (SELECT trajectory_id FROM wanted)'
            )
        for module in modules():
            if module.product.endswith("_lives") or module.view or module.lens or not module.published:
                connection.execute(module.create())
        yield connection


def prepare(connection: duckdb.DuckDBPyConnection, dataset: Dataset, first: int, last: int) -> None:
    """Give the modules what is not a table: the attempts, the run's facts, and the range of steps."""
    connection.register("attempts", _attempts(dataset))
    connection.register(
        "facts", pa.table({name: [bool(dataset.facts.get(name, False))] for name in ("replay", "ascending")})
    )
    connection.execute(f"SET VARIABLE first_step = {int(first)}::BIGINT")
    connection.execute(f"SET VARIABLE last_step = {int(last)}::BIGINT")


def _attempts(dataset: Dataset) -> pa.Table:
    """The attempts of the run: ``attempt``, ``resumed_after``, ``resumed_after_lo`` (int32)."""
    rows = dataset.facts["attempts"] or [{"attempt": 0}]
    columns = {
        "attempt": [row["attempt"] for row in rows],
        "resumed_after": [row.get("resumed_after") for row in rows],
        "resumed_after_lo": [
            row["resumed_after_lo"] if row.get("resumed_after_lo") is not None else row.get("resumed_after")
            for row in rows
        ],
    }
    return pa.table({name: pa.array(values, pa.int32()) for name, values in columns.items()})

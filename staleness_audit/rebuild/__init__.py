"""Rebuilding lifecycles: SQL over the event tables (station *rebuild*).

Each module in ``sql/`` yields one product, described in its head; modules build on the products before them. Products
marked ``Publish: yes`` are kept as Parquet beside the tables. None of them depends on the bound, so that asking about
another bound costs only the check.

A module's ``Stage`` says what it looks at: ``run``, the small tables of the whole run; ``part``, one partition of the
trajectories (a run that fits into memory is one partition); ``whole``, what all partitions have yielded.
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
import pyarrow.parquet as pq

from staleness_audit.engine import MACROS, create_view, scan, write_parquet
from staleness_audit.errors import UnreadableInput
from staleness_audit.ingest import Dataset, unwritable
from staleness_audit.places import fetched, is_url
from staleness_audit.pool import Here, Pool
from staleness_audit.rebuild.partitions import DIVIDED, Divided, by_partition, count_partitions, divide, select, shares
from staleness_audit.store import FolderStore, Store, locked, store

STEP_RANGE = (-(2**31), 2**31 - 1)


@dataclass(frozen=True)
class Module:
    """One SQL file: its product, what a row is, its columns, and the query.

    ``stage``: ``run``, ``part`` or ``whole``. ``sums``: columns that add up over parts of the run that share no
    trajectory and no group; the others say what is counted. ``view``: evaluated wherever it is used instead of once. ``lens``: a view
    for readers over what is published. ``as_written``: its joins are not to be reordered.
    """

    product: str
    stage: str
    grain: str
    sources: tuple[str, ...]
    sums: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    published: bool
    view: bool
    lens: bool
    as_written: bool
    sql: str

    @property
    def in_memory(self) -> bool:
        """Whether the product is a table while the modules run, and nothing afterwards."""
        return not (self.published or self.view or self.lens)

    def create(self) -> str:
        """SQL that makes the product."""
        return f"CREATE OR REPLACE TEMP {'VIEW' if self.view or self.lens else 'TABLE'} {self.product} AS {self.sql}"


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
        if (m := re.match(r"(Product|Grain|From|Sums|Publish|Kind|Stage|Joins): (.*)", line))
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
    return Module(
        product=fields["Product"],
        stage=fields["Stage"],
        grain=fields["Grain"],
        sources=_names(fields["From"]),
        sums=_names(fields["Sums"]) if "Sums" in fields else (),
        columns=tuple(columns),
        published=fields.get("Publish") == "yes",
        view=fields.get("Kind") == "view",
        lens=fields.get("Kind") == "lens",
        as_written=fields.get("Joins") == "as written",
        sql=text,
    )


def _names(listed: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in listed.rstrip(".").split(","))


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


@cache
def _handed_over() -> frozenset[str]:
    """Products of single partitions that modules over the whole read."""
    whole = [module for module in modules() if module.stage == "whole"]
    return frozenset(
        module.product
        for module in modules()
        if module.stage == "part" and any(module.product in reader.sources for reader in whole)
    )


@dataclass(frozen=True)
class Rebuilt:
    """The products of a dataset, by name as Parquet files."""

    dataset: Dataset
    folder: Path

    def parts(self, product: str) -> list[Path]:
        """Parquet files of a published product, one per partition; none of a lens."""
        return sorted(self.folder.glob(f"{product}.*.parquet"))

    def scan(self, product: str) -> pl.LazyFrame:
        """Return a published product as a Polars lazy frame."""
        return scan(self.parts(product))

    def dataset_of(self, trajectories: Sequence[str]) -> Dataset:
        """Return tables that hold at least all rows of these trajectories and their groups."""
        return self.dataset

    def frame(self, product: str) -> pl.DataFrame:
        """Return a published product as a frame; meant for the small ones (classes, steps)."""
        return self.scan(product).collect()

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
    pool: Pool | None = None,
) -> Rebuilt:
    """Run the modules over a dataset, or return what an earlier run over the same tables left.

    ``steps``: first and last training step that count (the framework's numbers, None = no limit). Trajectories trained
    only in other steps are left out; those that were never trained are all kept. ``pool``: rebuilds the partitions.
    """
    first, last = (STEP_RANGE[0] if steps[0] is None else steps[0]), (STEP_RANGE[1] if steps[1] is None else steps[1])
    made_by = [MACROS, *(module.sql for module in modules()), f"{first}:{last}"]
    code = sha256("\0".join(made_by).encode()).hexdigest()[:8]
    folder = dataset.work / ".rebuilt" / f"{dataset.key}-{code}"
    rebuilt = Rebuilt(dataset, folder)
    if not folder.exists():
        with locked(dataset.work):
            if not folder.exists():  # another process may have made it meanwhile
                try:
                    _run(dataset, folder, (first, last), progress, pool or Here())
                except duckdb.Error as error:
                    _refuse_damaged(dataset, error)
                    if isinstance(error, duckdb.IOException):
                        raise unwritable(dataset.folder, error) from error
                    raise
                except OSError as error:
                    raise UnreadableInput(
                        f"{folder}: cannot be written ({error.strerror}); make a copy of the tables where it can."
                    ) from error
    return rebuilt


def _refuse_damaged(dataset: Dataset, error: duckdb.Error) -> None:
    """``UnreadableInput`` if a query failed because a part is no Parquet file."""
    for part in (part for table in dataset.manifest["tables"] for part in dataset.parts(table)):
        if is_url(part):
            continue
        try:
            pq.read_metadata(part)
        except (pa.ArrowException, OSError):
            raise UnreadableInput(
                f"{part}: damaged; remove {dataset.folder} and make the tables again with `staleness-audit ingest`."
            ) from error


def _run(
    dataset: Dataset,
    folder: Path,
    steps: tuple[int, int],
    progress: Callable[[int, int, str], None] | None,
    pool: Pool,
) -> None:
    """Run all modules into ``folder``, which appears only when it is whole."""
    aside = folder.with_name(f".{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    counter = _Counter(progress)
    with dataset.connect() as connection:
        prepare(connection, dataset, *steps)
        counter.total = len(modules())
        _run_stage(connection, "run", aside, counter)
        count = count_partitions(connection, pool.width)
        if count == 1:
            _run_stage(connection, "part", aside, counter)
            _run_stage(connection, "whole", aside, counter)
        else:
            with _exchange(dataset, aside, pool) as kept:
                _run_partitions(connection, dataset, steps, count, kept, aside, counter, pool)
                _run_stage(connection, "whole", aside, counter)
    aside.rename(folder)


class _Counter:
    """Tells ``progress`` how many modules have run, of how many."""

    def __init__(self, progress: Callable[[int, int, str], None] | None) -> None:
        self.total = 0
        self._progress = progress
        self._done = 0

    def starts(self, product: str) -> None:
        if self._progress:
            self._progress(self._done, self.total, product)
        self._done += 1


def _run_stage(connection: duckdb.DuckDBPyConnection, stage: str, folder: Path, counter: _Counter) -> None:
    """Run the modules of a stage over everything."""
    for index, module in enumerate(modules()):
        if module.stage == stage:
            counter.starts(module.product)
            make(connection, module, folder / f"{module.product}.0.parquet" if module.published else None)
            _drop(connection, _last_used_by(index))


@contextmanager
def _exchange(dataset: Dataset, folder: Path, pool: Pool) -> Iterator[Store]:
    """Yield where partitions and what they yield are kept meanwhile: where all who rebuild them see it."""
    if is_url(dataset.folder) and not isinstance(pool, Here):
        place = dataset.folder / ".exchange" / folder.name.removeprefix(".")
        kept = store(place)
        kept.begin()
        try:
            yield kept
        finally:
            kept.clean((), {})
        return
    place = folder / ".partitions"
    kept = FolderStore(place)
    kept.begin()
    yield kept
    shutil.rmtree(place, ignore_errors=True)


def _run_partitions(
    connection: duckdb.DuckDBPyConnection,
    dataset: Dataset,
    steps: tuple[int, int],
    count: int,
    kept: Store,
    folder: Path,
    counter: _Counter,
    pool: Pool,
) -> None:
    """Divide the tables, and run the modules over each partition; what the whole needs of them goes through files."""
    todo = {f"{table}-{at}": (table, parts) for at, (table, parts) in enumerate(shares(dataset, pool.width))}
    counter.total += len(todo) + (count - 1) * sum(module.stage == "part" for module in modules())
    shared = pool.share((dataset, count, kept))
    for _ in pool.each(divide, [(shared, table, parts, unit) for unit, (table, parts) in todo.items()]):
        counter.starts("dividing")
    divided = by_partition(((todo[unit][0], files) for unit, files in kept.parts(todo).items()), count)
    shared = pool.share((dataset, steps, _run_tables(connection), kept))
    for _ in pool.each(_run_partition, [(shared, number, files) for number, files in enumerate(divided)]):
        for module in modules():
            if module.stage == "part":
                counter.starts(module.product)
    found: dict[str, list[Path]] = {}
    published = {module.product for module in modules() if module.published}
    for parts in kept.parts([f"partition-{number}" for number in range(count)]).values():
        for part in parts:
            product = part.name.split(".", 1)[0]
            found.setdefault(product, []).append(fetched(part, folder) if product in published else part)
    for product, files in found.items():
        create_view(connection, product, files)


def _run_tables(connection: duckdb.DuckDBPyConnection) -> dict[str, pa.Table]:
    """What the modules over the whole run have yielded, for those who look at a part of it."""
    return {
        module.product: connection.sql(f"SELECT * FROM {module.product}").to_arrow_table()
        for module in modules()
        if module.stage == "run"
    }


def _run_partition(
    shared: tuple[Dataset, tuple[int, int], dict[str, pa.Table], Store], number: int, partition: Divided
) -> None:
    """Run the modules over one partition; leave what is published, and what the whole needs of it."""
    dataset, steps, given, kept = shared
    with kept.fresh(f"partition-{number}", anew=True) as folder, dataset.connect() as connection:
        prepare(connection, dataset, *steps)
        for product, rows in given.items():
            connection.register(product, rows)
        select(connection, partition)
        for index, module in enumerate(modules()):
            if module.stage == "part":
                leaves = module.published or module.product in _handed_over()
                make(connection, module, folder / f"{module.product}.{number}.parquet" if leaves else None)
                _drop(connection, _last_used_by(index))


def _drop(connection: duckdb.DuckDBPyConnection, products: Sequence[str]) -> None:
    """Make room; of a divided run, some products are not in memory."""
    for product in products:
        connection.execute(f"DROP TABLE IF EXISTS temp.{product}")


def make(connection: duckdb.DuckDBPyConnection, module: Module, part: Path | None) -> None:
    """Make a product; one that has a file is written at once and read from it by later modules, to save memory."""
    if module.as_written:
        connection.execute("SET disabled_optimizers = 'join_order'")
    try:
        _make(connection, module, part)
    finally:
        if module.as_written:
            connection.execute("RESET disabled_optimizers")


def _make(connection: duckdb.DuckDBPyConnection, module: Module, part: Path | None) -> None:
    if module.lens or part is None:
        connection.execute(module.create())
        return
    write_parquet(connection, module.sql, part)
    create_view(connection, module.product, [part])


@contextmanager
def zoom(rebuilt: Rebuilt, trajectories: Sequence[str]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Rebuild a few trajectories by themselves, as one partition, and yield a connection with its products."""
    dataset = rebuilt.dataset_of(trajectories)
    with dataset.connect() as connection:
        prepare(connection, dataset, *STEP_RANGE)
        connection.register("wanted", pa.table({"trajectory_id": pa.array(list(trajectories), pa.string())}))
        for table in DIVIDED:
            # An event of a group is one of each of its members.
            of_groups = " OR trajectory_id IS NULL AND group_id IN (SELECT group_id FROM trajectories)"
            connection.execute(
                f'CREATE TEMP TABLE {table} AS SELECT * FROM memory.main."{table}" '
                f"WHERE trajectory_id IN (SELECT trajectory_id FROM wanted){of_groups if table == 'events' else ''}"
            )
        for module in modules():
            if module.stage != "whole" or module.lens:
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

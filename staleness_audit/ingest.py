"""Ingestion: from the files of a run to a folder of event tables (stations *parse* and *tables*).

The folder holds ``<table>/<unit>.parquet`` and ``run.json``. ``run.json`` is the authority: it names the parts that
belong together and is replaced in one rename, so that whoever reads it sees either the old tables or the new ones.
Parts are named by the digest of what they were made from and never change; a unit whose input is unchanged keeps its
parts, and units already read by an interrupted ingestion are not read again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

import duckdb
import polars as pl
import pyarrow as pa

from staleness_audit import __version__, plugins
from staleness_audit.discovery import CACHE_FOLDER, Known, Piece, RunFiles
from staleness_audit.engine import connect, create_view, scan, session
from staleness_audit.errors import UnreadableInput
from staleness_audit.limits import limits
from staleness_audit.parser import INTERFACE_VERSION, Parser, RunFacts, Unit
from staleness_audit.places import is_url, read_text
from staleness_audit.pool import Pool
from staleness_audit.readers.lines import is_garbled
from staleness_audit.reading import Counter, Progress, Work, read_here, read_in_pool, read_together
from staleness_audit.scratch import scratch_folder
from staleness_audit.sink import PartWriter
from staleness_audit.store import Store, alone, cache_folder, hold, locked, refuse_links, remove, store, work_folder
from staleness_audit.tables import PARSER_TABLES, SCHEMAS

LAYOUT_VERSION = 2
_KEY: Final = "[0-9a-f]{24}"
_LOG_SUFFIXES = frozenset({".log", ".jsonl", ".txt", ".out", ".err"})
_TEXT_SUFFIXES = _LOG_SUFFIXES | {".yaml", ".yml", ".json"}


@dataclass(frozen=True)
class Dataset:
    """An ingested run: the folder and its ``run.json`` as read once; later ingestions don't disturb it.

    ``held``: the lock that keeps them from dropping its parts, for as long as this object lives.
    """

    folder: Path
    manifest: Mapping[str, Any]
    held: BinaryIO | None = dataclasses.field(default=None, repr=False, compare=False)

    @classmethod
    def load(cls, folder: Path) -> Dataset:
        """Read ``run.json``; raises ``UnreadableInput`` if the folder is not one of tables this version can read."""
        held = hold(folder) if is_url(folder) or folder.is_dir() else None
        return cls(folder, _read_manifest(folder), held)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the lock with the process that holds it, for as long as it waits for the workers it sends this to."""
        return {"folder": self.folder, "manifest": self.manifest, "held": None}

    @property
    def work(self) -> Path:
        """Folder of this machine for what is derived from the tables."""
        return work_folder(self.folder)

    @property
    def key(self) -> str:
        """Digest of everything the tables were made from."""
        return str(self.manifest["key"])

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """``RunFacts`` as JSON; times are ISO 8601 strings."""
        facts: Mapping[str, Any] = self.manifest["facts"]
        return facts

    def parts(self, table: str) -> list[Path]:
        """Parquet files of an event table (none if nobody wrote rows)."""
        return [self.folder / part for part in self.manifest["tables"].get(table, [])]

    def scan(self, table: str) -> pl.LazyFrame:
        """Return an event table as a Polars lazy frame."""
        parts = self.parts(table)
        if not parts:
            return _empty(table)
        # Rows of a query come as plain strings, those of an Arrow table dictionary-encoded: one schema for both.
        words = pl.ScanCastOptions(categorical_to_string="allow")
        return scan(parts, schema=_empty(table).collect_schema(), cast_options=words)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Open a DuckDB connection with one view per event table."""
        connection = connect(self.work)
        for table in SCHEMAS:
            create_view(connection, table, self.parts(table))
        return connection


def is_tables(folder: Path) -> bool:
    """Whether a folder is one of tables that an ingestion has written."""
    return (folder / "run.json").is_file() and (folder / ".parts").is_dir()


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Read ``run.json`` and check that it leads nowhere else: a stranger may have written it."""
    if not is_url(folder) and folder.is_dir():
        refuse_links(folder)
    try:
        manifest = json.loads(read_text(folder / "run.json"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableInput(f"{folder}: no readable run.json; make one with `staleness-audit ingest`.") from error
    if not isinstance(manifest, dict) or manifest.get("layout") != LAYOUT_VERSION:
        raise UnreadableInput(f"{folder}: tables of another version; make them again with `staleness-audit ingest`.")
    tables: Any = manifest.get("tables")
    sound = (
        isinstance(manifest.get("key"), str)
        and re.fullmatch(_KEY, manifest["key"])
        and all(isinstance(manifest.get(name), dict) for name in ("tables", "facts", "inputs"))
        and isinstance(manifest.get("figures"), list)
        and all(isinstance(manifest.get(name), str) for name in ("identity", "run", "parser", "tool_version"))
    )
    if not sound or not all(
        table in SCHEMAS
        and isinstance(parts, list)
        and all(
            isinstance(part, str) and re.fullmatch(rf"({table}/{_KEY}|\.parts/{_KEY}/{table})(\.\d+)?\.parquet", part)
            for part in parts
        )
        for table, parts in tables.items()
    ):
        raise UnreadableInput(f"{folder}: run.json is damaged; make the tables again with `staleness-audit ingest`.")
    for part in (part for parts in tables.values() for part in parts if not is_url(folder)):
        if (folder / part).is_symlink() or not (folder / part).is_file():
            raise UnreadableInput(
                f"{folder}: {part} is missing or a link; make the tables again with `staleness-audit ingest`."
            )
    return manifest


def _empty(table: str) -> pl.LazyFrame:
    frame = pl.from_arrow(SCHEMAS[table].empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(pl.selectors.categorical().cast(pl.String)).lazy()


class StagedParts:
    """Implements ``parser.Staged`` over the parts of all units, by table; of ``aside``, more rows are elsewhere."""

    def __init__(
        self,
        folder: Path,
        parts: Mapping[str, list[Path]],
        aside: Collection[str] = (),
        memory: dict[str, Any] | None = None,
    ) -> None:
        self.memory = {} if memory is None else memory
        self._folder = folder
        self._parts = parts
        self._aside = aside

    def has(self, table: str) -> bool:
        """See ``parser.Staged.has``."""
        return bool(self._parts.get(table)) or table in self._aside

    def units(self, table: str) -> Collection[str]:
        """See ``parser.Staged.units``."""
        return {part.parent.name for part in self._parts.get(table, [])}

    def scan(self, table: str, *, units: Collection[str] | None = None, named: bool = False) -> pl.LazyFrame:
        """See ``parser.Staged.scan``; a unit's parts are in a folder of its name."""
        all_parts = self._parts.get(table, [])
        if not all_parts and table not in SCHEMAS:
            raise KeyError(f"no unit wrote a table {table!r}; ask has() first")
        parts = all_parts if units is None else [part for part in all_parts if part.parent.name in units]
        if not parts:
            rows = _empty(table) if table in SCHEMAS else self._scan(all_parts[:1]).clear()
            return rows.with_columns(pl.lit(None, pl.String).alias("unit")) if named else rows
        if not named:
            return self._scan(parts)
        if is_url(parts[0]):
            each = [self._scan([part]).with_columns(pl.lit(part.parent.name).alias("unit")) for part in parts]
            return pl.concat(each, how="diagonal")
        path = pl.col("unit").str.split("/").list.get(-2)
        return self._scan(parts, include_file_paths="unit").with_columns(path.alias("unit"))

    def _scan(self, parts: list[Path], **options: Any) -> pl.LazyFrame:
        return scan(parts, missing_columns="insert", extra_columns="ignore", **options)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """See ``parser.Staged.connect``."""
        connection = connect(self._folder)
        for table in {*self._parts, *SCHEMAS}:
            create_view(connection, table, self._parts.get(table, []))
        return connection


def default_tables(run: RunFiles, name: str, base: Path | None = None) -> Path:
    """Return the cache folder of a run below the current directory."""
    identity = hashlib.sha256(os.fsencode(f"{run.root}\0{name}")).hexdigest()[:12]
    # The identity tells runs apart; the name is for people, and no query may take it for a pattern.
    shown = re.sub(r"[^\w.=,+-]", "_", run.root.name)
    return cache_folder(base) / f"{shown}-{identity}"


def ingest(
    run: RunFiles,
    choice: plugins.Choice,
    folder: Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    pool: Pool | None = None,
) -> Dataset:
    """Bring the tables in ``folder`` up to date with the run's files and return them.

    Args:
        run: the files, from ``discovery.discover``.
        choice: the parser, from ``plugins.choose``.
        folder: where the tables live; made if missing. Must not be inside the run directory.
        workers: processes for units; default: one per core for large inputs, none for small ones.
        progress: called after every unit.
        pool: reads the units, instead of processes of this machine.

    Raises:
        UnreadableInput: a file cannot be opened, or the folder cannot be written.
    """
    if _is_inside(folder, run):
        raise UnreadableInput(f"{folder}: tables are never written into the run directory; choose another --tables.")
    try:
        with locked(work_folder(folder)):
            return _ingest(run, choice, store(folder), Readers(workers, pool), progress)
    except OSError as error:
        if error.filename is not None and not is_url(run.root) and Path(error.filename).is_relative_to(run.root):
            raise  # what cannot be read of a run is not for the folder of its tables to mend
        raise UnreadableInput(
            f"{error.filename or folder}: cannot be written ({error.strerror}); choose another --tables folder."
        ) from error
    except duckdb.IOException as error:
        raise unwritable(folder, error) from error


def unwritable(folder: Path, error: duckdb.Error) -> UnreadableInput:
    """Say that DuckDB could not write below a folder, which it does in many words."""
    why = "no space is left" if "No space left" in str(error) else str(error).splitlines()[0]
    return UnreadableInput(f"{folder}: cannot be written ({why}); make room, or choose another --tables folder.")


def _is_inside(folder: Path, run: RunFiles) -> bool:
    """Whether a folder is in a run's, and not in a cache there."""
    if not run.is_directory or is_url(folder) != is_url(run.root):
        return False
    at = folder if is_url(folder) else folder.resolve()
    return at.is_relative_to(run.root) and CACHE_FOLDER not in at.relative_to(run.root).parts


@dataclass(frozen=True)
class Readers:
    """Who reads units: so many processes of this machine (None: what is worth it), or a pool."""

    workers: int | None
    pool: Pool | None


def _ingest(run: RunFiles, choice: plugins.Choice, kept: Store, readers: Readers, progress: Progress | None) -> Dataset:
    parser = choice.parser
    old = _load_old(kept.folder, parser)
    known = _known_from_json(old.manifest["inputs"]) if old else {}
    keys, inputs, key = read_units(run, parser, kept, known, readers, progress)
    if old is not None and old.key == key:
        if known != inputs:  # same bytes, new times: remember the new signatures
            return _publish(kept, {**old.manifest, "inputs": _as_json(inputs)})
        return dataclasses.replace(old, held=hold(kept.folder))
    facts = _finish(run, keys, key, kept, choice, inputs)
    return _assemble(run, choice, kept, keys, key, inputs, facts)


def read_units(
    run: RunFiles,
    parser: Parser,
    kept: Store,
    known: Known,
    readers: Readers | None = None,
    progress: Progress | None = None,
) -> tuple[list[str], Known, str]:
    """Read the units of which ``kept`` has no parts yet.

    ``known``: the second value that an earlier call returned, so that files that are as they were then are not read.
    Returns the keys of all units, in order; signature and pieces of every input file; a digest of all that was read.
    """
    run.known = dict(known)
    kept.begin()
    readers = readers or Readers(None, None)
    # Workers elsewhere would not see a folder of this machine.
    with _spooled(run) if readers.pool is None else nullcontext():
        units, keys = _read_units(run, parser, kept, readers, progress)
    key = _digest(
        [
            _identity(parser),
            keys,
            sorted(run.skipped + run.repeated),
            sorted(file.source for file in run.files),
            run.assume,
        ]
    )
    return keys, _inputs(run, units), key


def _load_old(folder: Path, parser: Parser) -> Dataset | None:
    try:
        old = Dataset(folder, _read_manifest(folder))
    except UnreadableInput:
        return None
    return old if old.manifest["identity"] == _identity(parser) else None


def _identity(parser: Parser) -> str:
    """Say what made a part, besides its input: another parser, version, schema or code makes other parts."""
    code = _code_digest(type(parser).__module__)
    return f"{parser.name} {parser.version}, interface {INTERFACE_VERSION}, code {code}"


@cache
def _code_digest(module: str) -> str:
    schemas = {name: [str(column) for column in schema] for name, schema in SCHEMAS.items()}
    code = sorted(_sources_of(module) | _sources_of("staleness_audit.readers") | _sources_of("staleness_audit.sink"))
    return _digest([schemas, [hashlib.sha256(path.read_bytes()).hexdigest() for path in code]])[:8]


def _sources_of(module: str) -> set[Path]:
    """Python files of a module, or of the folder it is a package of (``a.b.c`` in folder ``b``: all of ``b``)."""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if file is None:
        return set()
    parent = module.rpartition(".")[0]
    in_folder = Path(file).name == "__init__.py" or "." in parent
    return set(Path(file).parent.glob("*.py")) if in_folder else {Path(file)}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


def _unit_key(parser: Parser, unit: Unit) -> str:
    return _digest(
        [_identity(parser), unit.kind, [tuple(vars(piece).values()) for piece in unit.pieces], dict(unit.options)]
    )


def _inputs(run: RunFiles, units: list[Unit]) -> Known:
    """Signature and pieces of every input file.

    A file changed within the clock's granularity of now could change again unseen; it gets no signature and is hashed
    again next time.
    """
    settled = time.time_ns() - 2_000_000_000
    pieces: dict[str, list[Piece]] = {}
    for unit in units:
        for piece in unit.pieces:
            pieces.setdefault(piece.source, []).append(piece)
    inputs: Known = {}
    for source in sorted(pieces):
        file, found = run.file(source), pieces[source]
        if len(found) > 1:
            found = sorted(set(found), key=lambda piece: piece.start)
        inputs[source] = (file.signature if file.changed < settled else "", tuple(found))
    return inputs


def _as_json(inputs: Known) -> dict[str, Any]:
    """What ``run.json`` says of input files."""
    return {
        source: {"signature": signature, "pieces": [dict(vars(piece)) for piece in pieces]}
        for source, (signature, pieces) in inputs.items()
    }


def _known_from_json(inputs: Mapping[str, Any]) -> Known:
    return {
        source: (entry["signature"], tuple(Piece(**piece) for piece in entry["pieces"]))
        for source, entry in inputs.items()
    }


@contextmanager
def _spooled(run: RunFiles) -> Iterator[None]:
    """Let what is fetched of a URL to be cut be kept until it is read."""
    if not is_url(run.root):
        yield
        return
    with scratch_folder("staleness-audit-spool-", limits().spill) as folder:
        run.spool = folder
        try:
            yield
        finally:
            run.spool = None


def _read_units(
    run: RunFiles, parser: Parser, kept: Store, readers: Readers, progress: Progress | None
) -> tuple[list[Unit], list[str]]:
    """Read the units that have no part yet, while the plan goes on naming others; return all units and their keys."""
    units: list[Unit] = []
    keys: list[str] = []
    counter = Counter(progress)

    def unread() -> Iterator[tuple[str, Unit]]:
        seen = set()
        for unit in parser.plan(run):
            key = _unit_key(parser, unit)
            units.append(unit)
            keys.append(key)
            if key not in seen and not kept.has(key):
                counter.planned += 1
                yield key, unit
            else:
                run.forget(unit.pieces)
            seen.add(key)

    work = Work(parser, dataclasses.replace(run, known={}), kept)
    workers = limits().workers if readers.workers is None else readers.workers
    if readers.pool is not None:
        read_in_pool(work, readers.pool, unread(), counter)
    elif workers > 1:
        read_together(work, workers, unread(), counter, at_once=readers.workers is not None)
    else:
        read_here(work, unread(), counter)
    return units, keys


def _finish(
    run: RunFiles,
    keys: list[str],
    key: str,
    kept: Store,
    choice: plugins.Choice,
    inputs: Known,
) -> RunFacts:
    """Let the parser join the units; its rows become one more part, named by the key of the whole run."""
    staged = StagedParts(work_folder(kept.folder), by_table(chain.from_iterable(kept.parts(keys).values())))
    with kept.fresh(key, anew=True) as folder, PartWriter(folder) as sink:
        return join_units(run, choice, staged, sink, inputs)


def join_units(
    run: RunFiles, choice: plugins.Choice, staged: StagedParts, sink: PartWriter, read: Collection[str]
) -> RunFacts:
    """Say which files were not read, and let the parser finish; ``read`` are the sources that some unit has read."""
    for source, why in run.repeated:
        sink.diagnose("note", "file-not-read", f"Not read: {why}.", source=source)
    for source, why in run.skipped:
        holds = _could_hold_logs(run, source, read)
        sink.diagnose(
            "warning" if holds else "note",
            "file-not-read",
            f"Not read: {why}.{' If it holds logs of the run, copy them into it.' if holds else ''}",
            source=source,
            opens="training" if holds else None,
        )
    for source in _no_text(run, read):
        sink.diagnose(
            "warning",
            "file-garbled",
            "Not read: by its name it is text, but its first bytes are none (another encoding, or zeros); "
            "restore the file.",
            source=source,
            # A configuration adds no trajectory; what depends on it, its parser leaves open.
            opens="training" if _suffix(run.file(source).name) in _LOG_SUFFIXES else None,
        )
    for left, instead in _left_for_another(run, read):
        sink.diagnose(
            "error",
            "one-name-two-files",
            f"Not read: {instead} has the same name and other contents, and was read instead; "
            "remove the one that is not the run's.",
            source=left,
            opens="training",
        )
    facts = choice.parser.finish(staged, run, sink)
    if facts.dialect is None and choice.detection.dialect is not None:
        facts = dataclasses.replace(facts, dialect=choice.detection.dialect)
    return facts


def _could_hold_logs(run: RunFiles, source: str, inputs: Collection[str]) -> bool:
    """Whether what was not read could be a folder, or a file of a kind that was read elsewhere in the run."""
    suffix = _suffix(source.removesuffix(".gz").removesuffix(".zst"))
    return any(_suffix(run.file(read).name) == suffix for read in inputs) or (run.root / source).is_dir()


def _no_text(run: RunFiles, inputs: Collection[str]) -> Iterator[str]:
    """Yield files that no unit reads, are named like logs and begin with what is no text: no parser can know them."""
    for file in run.files:
        if file.source in inputs or run.texts.get(file.source) == file.signature:
            continue
        if _suffix(file.name) in _TEXT_SUFFIXES and is_garbled(run.head(file.source)):
            yield file.source
        else:
            run.texts[file.source] = file.signature


def _suffix(name: str) -> str:
    """What ``PurePath.suffix`` is, which costs a multiple."""
    last = name.rpartition("/")[2]
    at = last.rfind(".")
    return last[at:] if 0 < at < len(last) - 1 else ""


def _left_for_another(run: RunFiles, inputs: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield files that no unit reads although one reads another file of their name (``x.log.gz`` beside ``x.log``)."""
    read = {run.file(source).name: source for source in inputs}
    for file in run.files:
        if file.source not in inputs and file.name in read:
            yield file.source, read[file.name]


def parts_by_table(folders: list[Path]) -> dict[str, list[Path]]:
    """The parts that units left in their folders, by table, in the order of the units."""
    return by_table(part for folder in folders for part in sorted(folder.glob("*.parquet")))


def by_table(parts: Iterable[Path]) -> dict[str, list[Path]]:
    """Sort parts, named as ``PartWriter`` and ``Store`` name them, by table."""
    tables: dict[str, list[Path]] = {}
    for part in parts:
        tables.setdefault(_table_of(part), []).append(part)
    return tables


def _table_of(part: Path) -> str:
    """Return ``spans`` for ``spans.parquet`` and ``spans.1.parquet``."""
    return part.name.split(".", 1)[0]


def _assemble(
    run: RunFiles,
    choice: plugins.Choice,
    kept: Store,
    keys: list[str],
    key: str,
    inputs: Known,
    facts: RunFacts,
) -> Dataset:
    """Name the parts of all units as those of their tables, write ``run.json``, and drop what is left over."""
    tables: dict[str, list[str]] = {}
    for unit, parts in kept.parts(dict.fromkeys([*keys, key])).items():
        for part in parts:
            if (table := _table_of(part)) in SCHEMAS:
                tables.setdefault(table, []).append(kept.show(table, unit, part))
    rows = _rows_per_source(kept.folder, tables)
    tables["sources"] = [kept.write("sources", key, _sources(run, choice.parser, inputs, rows))]
    kept.publish({**describe(run, choice, facts), "key": key, "tables": tables, "inputs": _as_json(inputs)})
    with alone(kept.folder) as nobody_reads:
        if nobody_reads:  # otherwise the next ingestion that changes something drops what is left over
            kept.clean({*keys, key}, tables)
            for products in (work_folder(kept.folder) / ".rebuilt").glob("*"):
                if not products.name.startswith(key):
                    remove(products)
    return Dataset(kept.folder, _read_manifest(kept.folder), hold(kept.folder))


def _publish(kept: Store, manifest: Mapping[str, Any]) -> Dataset:
    kept.publish(manifest)
    return Dataset(kept.folder, manifest, hold(kept.folder))


def describe(run: RunFiles, choice: plugins.Choice, facts: RunFacts) -> dict[str, Any]:
    """What ``run.json`` says beside the names of parts: the run, its parser, its facts."""
    return {
        "layout": LAYOUT_VERSION,
        "tool_version": __version__,
        "identity": _identity(choice.parser),
        "run": str(run.path),
        "parser": choice.parser.name,
        "parser_version": choice.parser.version,
        "detected_by": list(choice.detection.evidence),
        "assume": dict(run.assume),
        "facts": _plain(facts),
        "figures": [[figure.raw_name, figure.measures] for figure in choice.parser.card.figures],
    }


def _rows_per_source(folder: Path, tables: Mapping[str, list[str]]) -> dict[str, int]:
    """Count the event-table rows that stand on each file."""
    written = [table for table in PARSER_TABLES if table in tables]
    if not written:
        return {}
    with session() as connection:
        for table in written:
            create_view(connection, table, [folder / part for part in tables[table]], temporary=True)
        union = " UNION ALL ".join(f"SELECT source::VARCHAR AS source FROM {table}" for table in written)
        return dict(connection.execute(f"SELECT source, count(*) FROM ({union}) GROUP BY source").fetchall())


def _sources(run: RunFiles, parser: Parser, inputs: Known, rows: Mapping[str, int]) -> pa.Table:
    listed = [
        {
            "source": source,
            "path": source,
            "kind": Path(run.file(source).name).suffix.removeprefix("."),
            "bytes": run.file(source).bytes,
            "digest": _named_digest(pieces[-1].digest),
            "parser": parser.name,
            "rows": rows.get(source, 0),
        }
        for source, (_, pieces) in inputs.items()
    ]
    return pa.Table.from_pylist(listed, schema=SCHEMAS["sources"])


def _named_digest(digest: str) -> str:
    return digest if ":" in digest else f"sha256:{digest}"


def _plain(value: Any) -> Any:
    """Dataclasses, times and sets as plain JSON values; anything else unknown as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(_plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and math.isnan(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)

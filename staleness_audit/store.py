"""Where tables are kept: a folder of this machine (or of a shared disk), or a place that a URL names.

Units leave their Parquet parts in ``.parts/<unit>/``, which counts from when it is whole. ``run.json`` names the parts
that belong together and is replaced in one go, so that whoever reads it sees either the old tables or the new ones.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from staleness_audit.discovery import CACHE_FOLDER
from staleness_audit.errors import UnreadableInput
from staleness_audit.places import files_at, is_url, reaching, upload
from staleness_audit.scratch import scratch_folder
from staleness_audit.tables import SCHEMAS

PARTS = ".parts"
_WHOLE = "whole"


def cache_folder(base: Path | None = None) -> Path:
    """Return the folder of all caches below the current directory, made and self-ignoring for git."""
    cache = (base or Path.cwd()) / CACHE_FOLDER
    ignore = cache / ".gitignore"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        raise UnreadableInput(f"{cache}: cannot be written ({error.strerror}); name a folder with --tables.") from error
    return cache


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time work on a folder of this machine; the kernel drops the lock when its process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    refuse_links(folder)
    with _open_lock(folder / ".lock") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def refuse_links(folder: Path) -> None:
    """``UnreadableInput`` if part of a folder of tables lies elsewhere, where nothing may be read or written."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise UnreadableInput(f"{folder}: {entry.name} is a link, which tables never are; remove it.")


def hold(tables: Path) -> BinaryIO | None:
    """Share tables with other readers; as long as the handle is open, nobody drops parts of them on this machine."""
    try:
        handle = _open_lock(work_folder(tables) / ".readers")
    except OSError:  # nobody can write here, so nobody drops anything
        return None
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


@contextmanager
def alone(tables: Path) -> Iterator[bool]:
    """Yield whether nobody reads tables at the moment; nobody begins to until it is left."""
    with _open_lock(work_folder(tables) / ".readers") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _open_lock(file: Path) -> BinaryIO:
    """Open a lock file, made if it is missing; where nothing can be written it can be read."""
    try:
        number = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError:
        number = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(number, "rb")


def work_folder(tables: Path) -> Path:
    """Return the folder of this machine for what is derived from tables: theirs, or a cache if a URL names them."""
    if not is_url(tables):
        return tables
    return cache_folder() / f"{tables.name or 'tables'}-{sha256(str(tables).encode()).hexdigest()[:12]}"


def remove(folder: Path) -> None:
    """Remove a folder that counts as whole because its name is there: killed on the way, a part must not count."""
    aside = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(aside, ignore_errors=True)
    with suppress(OSError):
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def store(folder: Path) -> Store:
    """Return the store at a path or URL."""
    return ObjectStore(folder) if is_url(folder) else FolderStore(folder)


class Store(Protocol):
    """Keeps the parts of units, and ``run.json``. It is handed to worker processes."""

    folder: Path

    def begin(self) -> None:
        """Make the place, and look at what is there."""

    def has(self, unit: str) -> bool:
        """Whether the parts of a unit are there, whole."""

    def fresh(self, unit: str, *, anew: bool = False) -> AbstractContextManager[Path]:
        """Yield a folder to write parts into, which become those of the unit when it is left.

        ``anew``: they stand instead of those that are there.
        """

    def parts(self, units: Iterable[str]) -> dict[str, list[Path]]:
        """Parts of each unit, in order."""

    def show(self, table: str, unit: str, part: Path) -> str:
        """Return the name, relative to the place, under which a part is one of a table."""

    def write(self, table: str, key: str, rows: pa.Table) -> str:
        """Write a part that belongs to no unit, and return its name."""

    def publish(self, manifest: Mapping[str, Any]) -> None:
        """Replace ``run.json``."""

    def clean(self, units: Collection[str], tables: Mapping[str, list[str]]) -> None:
        """Remove what is neither a part of these units nor of these tables."""


class FolderStore:
    """A folder: parts are linked into a folder per table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self) -> None:
        """See ``Store``."""
        (self.folder / PARTS).mkdir(parents=True, exist_ok=True)
        for place, pattern in (
            (self.folder, ".run.json.*"),
            *((self.folder / name, ".*") for name in (PARTS, *SCHEMAS)),
        ):
            for left in place.glob(pattern):  # of killed ones: whoever has the lock is the only one that writes
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)

    def has(self, unit: str) -> bool:
        """See ``Store``."""
        return (self.folder / PARTS / unit).exists()

    @contextmanager
    def fresh(self, unit: str, *, anew: bool = False) -> Iterator[Path]:
        """See ``Store``."""
        target = self.folder / PARTS / unit
        # Not the number of the process alone: workers of several machines may share the folder.
        folder = target.with_name(f".{unit}.{os.uname().nodename}.{os.getpid()}")
        shutil.rmtree(folder, ignore_errors=True)
        if anew:
            remove(target)
        folder.mkdir(parents=True)
        try:
            yield folder
            try:
                folder.rename(target)
            except OSError:  # another worker that was given up was not dead: it has written the same
                if not target.exists():
                    raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def parts(self, units: Iterable[str]) -> dict[str, list[Path]]:
        """See ``Store``."""
        return {unit: sorted((self.folder / PARTS / unit).glob("*.parquet")) for unit in units}

    def show(self, table: str, unit: str, part: Path) -> str:
        """See ``Store``; a part that old tables share with new ones never goes away in between."""
        name = f"{table}/{unit}{part.name.removeprefix(table)}"
        target = self.folder / name
        target.parent.mkdir(exist_ok=True)
        if target.exists() and target.samefile(part):
            return name
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        aside.unlink(missing_ok=True)
        try:
            aside.hardlink_to(part)
        except OSError:  # a file system without hard links
            shutil.copyfile(part, aside)
        aside.replace(target)
        return name

    def write(self, table: str, key: str, rows: pa.Table) -> str:
        """See ``Store``."""
        (self.folder / table).mkdir(exist_ok=True)
        pq.write_table(rows, self.folder / table / f"{key}.parquet")
        return f"{table}/{key}.parquet"

    def publish(self, manifest: Mapping[str, Any]) -> None:
        """See ``Store``."""
        aside = self.folder / f".run.json.{os.getpid()}"
        aside.write_text(_json(manifest), encoding="utf-8")
        aside.replace(self.folder / "run.json")

    def clean(self, units: Collection[str], tables: Mapping[str, list[str]]) -> None:
        """See ``Store``."""
        kept = {name for parts in tables.values() for name in parts}
        for table in SCHEMAS:
            for part in (self.folder / table).glob("*.parquet"):
                if f"{table}/{part.name}" not in kept:
                    part.unlink()
        for unit in (self.folder / PARTS).iterdir():
            if unit.name not in units:
                remove(unit)


class ObjectStore:
    """A place that a URL names: parts are uploaded once and named where they lie; an empty object says *whole*."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, list[str]] = {}

    def begin(self) -> None:
        """See ``Store``."""
        self._found = self._list(PARTS)

    def has(self, unit: str) -> bool:
        """See ``Store``."""
        return _WHOLE in self._found.get(unit, ())

    @contextmanager
    def fresh(self, unit: str, *, anew: bool = False) -> Iterator[Path]:
        """See ``Store``."""
        target = self.folder / PARTS / unit
        with scratch_folder("staleness-audit-part-") as folder:
            yield folder
            if anew and (old := self._list(f"{PARTS}/{unit}").get("")):
                self._remove(f"{PARTS}/{unit}/{name}" for name in old)
            upload(folder, target)
            with reaching(target):
                system, base = files_at(target)
                system.pipe_file(f"{base}/{_WHOLE}", b"")

    def parts(self, units: Iterable[str]) -> dict[str, list[Path]]:
        """See ``Store``."""
        self.begin()
        return {
            unit: [
                self.folder / PARTS / unit / name
                for name in sorted(self._found.get(unit, ()))
                if name.endswith(".parquet")
            ]
            for unit in units
        }

    def show(self, table: str, unit: str, part: Path) -> str:
        """See ``Store``."""
        return f"{PARTS}/{unit}/{part.name}"

    def write(self, table: str, key: str, rows: pa.Table) -> str:
        """See ``Store``."""
        with scratch_folder("staleness-audit-part-") as folder:
            pq.write_table(rows, folder / f"{key}.parquet")
            upload(folder, self.folder / table)
        return f"{table}/{key}.parquet"

    def publish(self, manifest: Mapping[str, Any]) -> None:
        """See ``Store``."""
        with reaching(self.folder):
            system, base = files_at(self.folder)
            system.pipe_file(f"{base}/run.json", _json(manifest).encode())

    def clean(self, units: Collection[str], tables: Mapping[str, list[str]]) -> None:
        """See ``Store``."""
        kept = {name for parts in tables.values() for name in parts}
        left = [f"{PARTS}/{unit}/{name}" for unit, names in self._found.items() if unit not in units for name in names]
        written = self._list("sources").get("", ())
        self._remove([*left, *(f"sources/{name}" for name in written if f"sources/{name}" not in kept)])

    def _remove(self, names: Iterable[str]) -> None:
        """Remove objects; what says *whole* goes first, so that a part never counts if this ends on the way."""
        system, base = files_at(self.folder)
        by_turn: tuple[list[str], list[str]] = [], []
        for name in names:
            by_turn[not name.endswith(f"/{_WHOLE}")].append(f"{base}/{name}")
        with reaching(self.folder):
            for paths in filter(None, by_turn):
                system.rm(paths)

    def _list(self, below: str) -> dict[str, list[str]]:
        """Names of the objects in each folder below a folder of the place, and (as "") in that folder itself."""
        with reaching(self.folder):
            system, base = files_at(self.folder / below)
            system.invalidate_cache()
            try:
                paths = system.find(base)
            except FileNotFoundError:
                return {}
        found: dict[str, list[str]] = {}
        for path in paths:
            unit, _, name = path.removeprefix(base.rstrip("/") + "/").rpartition("/")
            found.setdefault(unit, []).append(name)
        return found


def _json(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, indent=1)
